/**
 * Where paths of this host lead. A look at a file server that is away takes for ever, and this whole process would stand still
 * for as long: so it never looks at one itself. A program of its own does, which may hang, and is given up then.
 */
import { existsSync, lstatSync, readlinkSync, type Stats, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { attempt } from '../base/errors.ts';
import { killGroup, listen, startGroup } from './group.ts';
import { jsonOf } from './json.ts';
import { ownMounts, serversIn } from './mountinfo.ts';
import { childrenOf, readOr } from './process-identity.ts';
import { systemClock } from './system-clock.ts';

export interface Way {
  /** Without links, also if its last parts do not exist. Of what lies on a server, as it is written. */
  readonly end: string;
  /** Where the file server is mounted that decides about the rest; null: only this host does. */
  readonly server: string | null;
  /** Whether it exists, and only root and this user decide where it leads. */
  readonly isOurs: boolean;
}

/** As many links as Linux follows. */
const mostLinks = 40;

/** Follows an absolute path up to the first file server. */
export function follow(path: string, mountinfo = ownMounts()): Way {
  const serverOf = serversIn(mountinfo);
  const rest = path.split('/').filter((part) => part !== '' && part !== '.');
  let isOurs = true;
  let at = '/';
  let links = 0;
  let server = serverOf(at);
  while (server === null) {
    const part = rest.shift();
    if (part === undefined) break;
    const next = part === '..' ? dirname(at) : join(at, part);
    server = serverOf(next);
    const entry = server === null ? attempt(() => lstatSync(next)) : null;
    isOurs &&= isDecidedIn(at, entry);
    const target = entry?.isSymbolicLink() ? attempt(() => readlinkSync(next)) : null;
    if (target !== null) links += 1;
    if (target === null || links > mostLinks) at = next;
    else {
      if (target.startsWith('/')) at = '/';
      rest.unshift(...target.split('/').filter((each) => each !== '' && each !== '.'));
    }
  }
  return { end: join(at, ...rest), server, isOurs: isOurs && server === null && links <= mostLinks };
}

/** Whether only root and this user decide what a folder has under the name of this entry. */
function isDecidedIn(folder: string, entry: Stats | null): boolean {
  const isOurs = ({ uid }: Stats): boolean => uid === 0 || uid === process.getuid?.();
  const above = attempt(() => lstatSync(folder));
  if (above === null || entry === null || !isOurs(above)) return false;
  // In a sticky folder others leave alone what is not theirs.
  return (above.mode & 0o022) === 0 || ((above.mode & 0o1000) !== 0 && isOurs(entry));
}

/** A path with links resolved, as far as this host decides about them. */
export function realOf(path: string): string {
  return follow(path).end;
}

/** Whether this process finds a path; null: it lies on a file server, which may be away. */
export function isFound(path: string): boolean | null {
  const { end, server } = follow(path);
  return server === null ? existsSync(end) : null;
}

/** What a path led to, at one moment. */
export interface Look {
  /** As far as this host decides. */
  readonly near: string;
  /** The whole way; null: its file server did not answer. */
  readonly real: string | null;
  /** null: unknown, as where this user may not look. */
  readonly exists: boolean | null;
}

type Answers = readonly (readonly [real: string, exists: boolean])[];
/** Asks one file server, by where it is mounted, about paths; null: it did not answer in time. */
export type AskServer = (paths: readonly string[], server: string) => Promise<Answers | null>;

/** Looks at each path, also on file servers. */
export async function lookAt(
  paths: Iterable<string>,
  ask: AskServer = askServer,
  mountinfo = ownMounts(),
): Promise<ReadonlyMap<string, Look>> {
  const ways = [...new Set(paths)].map((path) => ({ path, ...follow(path, mountinfo) }));
  const looks = new Map<string, Look>();
  const byServer = Map.groupBy(ways, ({ server }) => server);
  for (const { path, end } of byServer.get(null) ?? []) {
    const exists = attempt(() => statSync(end, { throwIfNoEntry: false }) !== undefined);
    looks.set(path, { near: end, real: end, exists });
  }
  byServer.delete(null);
  // One that is away keeps no other from answering.
  const asked = [...byServer].map(async ([server, some]) => {
    const answers = await ask(
      some.map(({ end }) => end),
      server ?? '/',
    );
    for (const [at, { path, end }] of some.entries()) {
      const [real, exists] = answers?.[at] ?? [null, null];
      looks.set(path, { near: end, real, exists });
    }
  });
  await Promise.all(asked);
  return looks;
}

/** Whether a path can be read without waiting for ever: it lies on this host, or its file server answers. */
export async function isReachable(path: string, ask: AskServer = askServer, mountinfo = ownMounts()): Promise<boolean> {
  if (follow(path, mountinfo).server === null) return true;
  return (await lookAt([path], ask, mountinfo)).get(path)?.real !== null;
}

/** ms that a server may take to answer. */
const patience = 5_000;

const program = `
const { closeSync, constants, existsSync, openSync, readSync, realpathSync } = require('node:fs');
const { basename, dirname, join } = require('node:path');
const realOf = (path) => {
  try { return realpathSync(path); } catch { return path === '/' ? path : join(realOf(dirname(path)), basename(path)); }
};
// What only looks may be answered from a cache, long after the server has gone.
const read = (path) => {
  try {
    const file = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK);
    try { readSync(file, Buffer.alloc(1)); } finally { closeSync(file); }
  } catch {}
};
process.argv.slice(2).forEach(read);
process.stdout.write(JSON.stringify(process.argv.slice(2).map((path) => [realOf(path), existsSync(path)])));`;

const askServer: AskServer = async (paths, server) => {
  const answers = await askAt(server, program, paths);
  return Array.isArray(answers) ? (answers as Answers) : null;
};

/** The JSON that a program says of a server, as code for Node; its first argument is the server. null: it did not answer in time. */
export async function askAt(server: string, code: string, args: readonly string[]): Promise<unknown> {
  if (hangsAt(server)) return null;
  const child = startGroup(process.execPath, ['-e', code, '--', server, ...args], {});
  if (child instanceof Error) return null;
  const said: Buffer[] = [];
  const take = (data: Buffer, from: 'stdout' | 'stderr'): boolean => {
    if (from === 'stdout') said.push(data);
    return true;
  };
  const end = await listen(child, { clock: systemClock, limit: patience, drain: 250, signal: undefined, take });
  if (end !== 'closed' && child.pid !== undefined) killGroup(child.pid);
  return end === 'closed' ? jsonOf(Buffer.concat(said).toString()) : null;
}

/**
 * Whether an earlier program still hangs at this server although it was killed, which nothing ends before the server is back. Another
 * one would only hang there, too.
 */
function hangsAt(server: string): boolean {
  return childrenOf(process.pid).some((pid) => {
    const [, , , , where] = readOr(`/proc/${pid}/cmdline`, '').split('\0');
    const [, waiting = '0'] = /^SigPnd:\s*([0-9a-f]+)$/m.exec(readOr(`/proc/${pid}/status`, '')) ?? [];
    return where === server && (BigInt(`0x${waiting}`) & killed) !== 0n;
  });
}

/** SIGKILL, as /proc/PID/status has it: bit 8. https://man7.org/linux/man-pages/man5/proc_pid_status.5.html */
const killed = 0x100n;
