/**
 * Where paths lead on file servers. A look at one that is away takes for ever, and this whole process would stand still for as long: so
 * a program of its own looks, which may hang, and is given up then.
 */
import { statSync } from 'node:fs';
import { attempt } from '../base/errors.ts';
import { killGroup, listen, startGroup } from './group.ts';
import { jsonOf } from './json.ts';
import { ownMounts } from './mountinfo.ts';
import { childrenOf, readOr } from './process-identity.ts';
import { follow } from './real-path.ts';
import { systemClock } from './system-clock.ts';

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
