/** Where a secret could have come to light, and the search for it: containers, processes, files, outputs. */
import { readdirSync, readFileSync, readlinkSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { engineAt, machineSocket } from './engine-http.ts';
import type { Home } from './onejob.ts';

/** A named value that must not be found, in one of the forms in which it travels. */
export interface Needle {
  readonly what: string;
  readonly bytes: Buffer;
}

/** The value itself, and what headers and encoders make of it. */
export function needlesOf(what: string, value: string): Needle[] {
  const forms = { plain: value, header: base64(`:${value}`), 'named header': base64(`PAT:${value}`), base64: base64(value) };
  return Object.entries(forms).map(([form, text]) => ({
    what: `${what} (${form})`,
    bytes: Buffer.from(text.replace(/=+$/, '')),
  }));
}

function base64(text: string): string {
  return Buffer.from(text).toString('base64');
}

/** Which of them are where: `place: what`. */
export function found(needles: readonly Needle[], places: Iterable<readonly [string, Buffer | string]>): string[] {
  return [...places].flatMap(([place, text]) => {
    const bytes = typeof text === 'string' ? Buffer.from(text) : text;
    return needles.filter((needle) => bytes.includes(needle.bytes)).map(({ what }) => `${place}: ${what}`);
  });
}

/** Every file below a folder, whole. */
export function* filesIn(folder: string): Generator<[string, Buffer]> {
  for (const name of readdirSync(folder, { recursive: true, encoding: 'utf8' })) {
    const path = join(folder, name);
    if (!statSync(path, { throwIfNoEntry: false })?.isFile()) continue;
    try {
      yield [path, readFileSync(path)];
    } catch (error) {
      // A manager that runs may remove it after the look.
      if (!(error instanceof Error && 'code' in error && error.code === 'ENOENT')) throw error;
    }
  }
}

/**
 * Arguments, environment and title of every process of this host but this one and its parents, and but those in the container
 * whose first process is `but`: such that begin while this looks are left out, too.
 */
export function* processes(but: number | null = null): Generator<[string, Buffer]> {
  const mine = new Set([String(process.pid), String(process.ppid)]);
  const theirs = but === null ? null : namespaceOf(but);
  for (const pid of readdirSync('/proc').filter((name) => /^\d+$/.test(name) && !mine.has(name))) {
    if (theirs !== null && namespaceOf(pid) === theirs) continue;
    for (const file of ['cmdline', 'environ', 'comm']) {
      try {
        yield [`/proc/${pid}/${file}`, readFileSync(`/proc/${pid}/${file}`)];
      } catch {
        // It has just ended.
      }
    }
  }
}

/** Null when the process has just ended. */
function namespaceOf(pid: number | string): string | null {
  try {
    return readlinkSync(`/proc/${pid}/ns/pid`);
  } catch {
    return null;
  }
}

/** What the Engine tells of every container of this owner, its log, and its networks and images. */
export async function engineTells(owner: string, image: string): Promise<[string, string][]> {
  using engine = engineAt(machineSocket);
  const filters = encodeURIComponent(JSON.stringify({ label: [`onejob.owner=${owner}`] }));
  const list = (await engine.ok('GET', `/containers/json?all=1&filters=${filters}`)) as { readonly Id: string }[];
  const paths = list.flatMap(({ Id }) => [
    `/containers/${Id}/json`,
    `/containers/${Id}/top`,
    `/containers/${Id}/logs?stdout=1&stderr=1`,
  ]);
  paths.push(`/networks?filters=${filters}`, `/images/${image}/json`, `/images/${image}/history`);
  const told: [string, string][] = [];
  for (const path of paths) {
    // One connection each: what is closed after a log must not be used again.
    using other = engineAt(machineSocket);
    const { body } = await other.call('GET', path);
    told.push([path, typeof body === 'string' ? body : JSON.stringify(body)]);
  }
  return told;
}

/** What a person and a script can ask of onejob. */
export async function outputs(here: Home, asked: readonly (readonly string[])[] = questions): Promise<[string, string][]> {
  return Promise.all(
    asked.map(async (words): Promise<[string, string]> => {
      const { stdout, stderr } = await here.cli(words).ended;
      return [`onejob ${words.join(' ')}`, stdout + stderr];
    }),
  );
}

const questions = [
  ['status'],
  ['status', '--json'],
  ['plan', '--json'],
  ['jobs', '--all', '--json'],
  ['jobs', '--all'],
  ['doctor', '--json'],
  ['doctor'],
  ['config', 'show'],
  ['config', 'check'],
  ['logs', 'ci/1'],
  ['logs', 'ci/1', '--previous'],
];

/**
 * A job that puts into /out whatever it can read: what processes were started with, and all files but programs. Its output ends
 * with how much that was.
 */
export const prying = [
  'for p in /proc/[0-9]* /proc/self; do for f in environ cmdline status; do cat $p/$f; done; done >/out/processes 2>/dev/null',
  'env >/out/env',
  'find / \\( -path /proc -o -path /sys -o -path /dev -o -path /out -o -path /lib -o -path /usr/lib \\) -prune -o -type f -size -8192k -print 2>/dev/null | while read f; do echo "== $f"; cat "$f"; done >/out/files 2>/dev/null',
  'ls -la / /tmp /opt/agent >/out/list 2>&1',
  'echo pried $(wc -c </out/files)',
].join('\n');
