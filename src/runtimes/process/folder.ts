/**
 * What an agent's folder holds. Everything a new manager needs to go on with a sandbox stands here and nowhere else, so
 * that `kill -9` of the old one loses nothing.
 *
 * ```
 * agents/AGENT/   spec.json    the intent, written before anything is started
 *                 run.sh       the supervisor's program; args: what bubblewrap is told; filter: for the kernel
 *                 proc, job    who the supervisor and the job's first process are
 *                 stdin        the gate's standard input, a FIFO
 *                 log/         stdout, stderr, what goes on in stdout.BYTES, stderr.BYTES, and stdout.end, stderr.end once nothing more will come
 *                 work home tmp   what the job may write
 * exits/AGENT     how the first process ended: one folder for all, so that one watch sees every exit
 * ```
 */
import { lstatSync } from 'node:fs';
import { mkdir, readdir, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import type { AgentId, Exit } from '../../core/slot.ts';
import { jsonOf } from '../../system/json.ts';
import { isAlive, type ProcessIdentity, parseStat, readOr, unread } from '../../system/process-identity.ts';
import type { SandboxSeen } from '../runtime.ts';
import { oomKilled } from './cgroup.ts';

const intent = z.object({
  owner: z.string(),
  agent: z.string(),
  pool: z.string(),
  slot: z.string(),
  fingerprint: z.string(),
  mode: z.enum(['bubblewrap', 'plain']),
  /** The agent's own user; null when it runs as the manager's. */
  uid: z.number().nullable(),
  /** Folder that holds work, home and tmp. */
  files: z.string(),
  /** Cgroup folders made for it; the one that can kill first. */
  cgroups: z.array(z.string()),
});
/** What was decided about a sandbox before it was started. */
export type Intent = z.infer<typeof intent>;

/** The paths of one runtime's folder. */
export interface Layout {
  readonly agents: string;
  readonly exits: string;
}

export function layout(dir: string): Layout {
  return { agents: join(dir, 'agents'), exits: join(dir, 'exits') };
}

/** Prefixes of folders that are no sandbox: one being made, one being removed. */
export const unfinished = '.new-';
export const doomed = '.gone-';

/** Makes the agent's folder with its intent in it, both or neither. */
export async function makeFolder(at: Layout, about: Intent): Promise<string> {
  const draft = join(at.agents, unfinished + about.agent);
  const path = join(at.agents, about.agent);
  await mkdir(join(draft, 'log'), { recursive: true, mode: 0o700 });
  await Promise.all([
    writeFile(join(draft, 'spec.json'), JSON.stringify(about)),
    writeFile(join(draft, 'log/stdout'), ''),
    writeFile(join(draft, 'log/stderr'), ''),
    // Long enough for any exit code, so that it can be written over in place when the disk is full.
    writeFile(join(at.exits, about.agent), '-----\n'),
  ]);
  await rename(draft, path);
  return path;
}

/** @throws OnejobError E_SANDBOX_UNREAD when that cannot be told now. */
function exists(path: string): boolean {
  try {
    return lstatSync(path, { throwIfNoEntry: false }) !== undefined;
  } catch (error) {
    throw unread(path, error);
  }
}

/**
 * The agent's intent; null when there is no such sandbox, `damaged` when a crash of the host left no whole one.
 * @throws OnejobError E_SANDBOX_UNREAD when it cannot be read now.
 */
export function readIntent(at: Layout, agent: AgentId): Intent | 'damaged' | null {
  const path = join(at.agents, agent);
  const read = (): string | null => readOr(join(path, 'spec.json'), null);
  let text = read();
  if (text === null) {
    if (!exists(path)) return null;
    // It appears and goes as a whole, by a rename, which may have happened between the two looks.
    text = read();
    if (text === null) return exists(path) ? 'damaged' : null;
  }
  return intent.safeParse(jsonOf(text)).data ?? 'damaged';
}

/** Agents that have a folder. @throws OnejobError E_SANDBOX_UNREAD when that cannot be read: then nothing is known (S6). */
export async function agentsIn(at: Layout): Promise<AgentId[]> {
  const names = await readdir(at.agents).catch((error: unknown) => {
    throw unread(at.agents, error);
  });
  return names.filter((name) => !name.startsWith('.'));
}

/** Who supervises the agent, and since which boot; null while that is not written. */
export function supervisorOf(path: string): (ProcessIdentity & { readonly boot: string }) | null {
  const [boot, line, end] = readOr(join(path, 'proc'), '').split('\n');
  const found = parseStat(line ?? '');
  return found === null || end === undefined || boot === undefined ? null : { ...found, boot };
}

/** The sandbox's first process as the host sees it: bubblewrap, or the gate itself. */
export function firstProcessOf(path: string): ProcessIdentity | null {
  const [line, end] = readOr(join(path, 'job'), '').split('\n');
  return end === undefined ? null : parseStat(line ?? '');
}

/** The exit code as it was written; null while there is none. */
function exitCode(at: Layout, agent: AgentId): number | null {
  const written = /^(\d+) *\n/.exec(readOr(join(at.exits, agent), ''));
  return written === null ? null : Number(written[1]);
}

/**
 * How the agent stands, from its folder alone. Death by a signal is 128 + its number, as Docker tells it too. Only a
 * host restart, or processes that are gone without having left a code, count as lost.
 */
export function stateOf(at: Layout, about: Intent, boot: string): SandboxSeen['state'] {
  const path = join(at.agents, about.agent);
  const ended = (code: number): SandboxSeen['state'] => {
    const exit: Exit = code === 137 && oomKilled(about.cgroups) ? { kind: 'oom' } : { kind: 'code', code };
    return { kind: 'exited', exit };
  };
  const lost = (reason: string): SandboxSeen['state'] => ({ kind: 'exited', exit: { kind: 'lost', reason } });
  const code = exitCode(at, about.agent);
  if (code !== null) return ended(code);
  const supervisor = supervisorOf(path);
  if (supervisor === null) return { kind: 'created' };
  if (supervisor.boot !== boot) return lost('the host was restarted');
  const first = firstProcessOf(path);
  if (isAlive(supervisor) || (first !== null && isAlive(first))) return { kind: 'running' };
  // It may have ended between the two looks.
  const late = exitCode(at, about.agent);
  return late === null ? lost('its processes were killed from outside') : ended(late);
}
