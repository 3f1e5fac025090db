/**
 * The folder of an agent. It holds all that a new manager needs to continue, so `kill -9` of the previous one loses nothing.
 *
 * ```
 * agents/AGENT/   spec.json    the intent, written before anything is started
 *                 run.sh       the supervisor's program; args: what bubblewrap is told; filter: the seccomp filter
 *                 proc, job    identity of the supervisor and of the job's first process
 *                 network      identity of the pasta of its network; door.PORT: that of one of its doors
 *                 stdin        the gate's standard input, a FIFO
 *                 log/         stdout and stderr, continued in STREAM.BYTES; STREAM.end once a stream is complete
 *                 work home tmp   what the job may write
 * exits/AGENT     exit code of the first process: one folder for all, so that one watch sees every exit
 * ```
 */
import { lstatSync, readdirSync } from 'node:fs';
import { mkdir, readdir, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { attempt, OnejobError } from '../../base/errors.ts';
import { type AgentId, type Exit, hostRestarted } from '../../core/slot.ts';
import type { SandboxSeen } from '../../ports/runtime.ts';
import { jsonOf } from '../../system/json.ts';
import { isAlive, type ProcessIdentity, parseStat, readOr, unread } from '../../system/process-identity.ts';
import { unfinished } from '../first-look.ts';
import { oomKilled, peakMemory } from './cgroup.ts';

const intent = z.object({
  owner: z.string(),
  agent: z.string(),
  pool: z.string(),
  slot: z.string(),
  fingerprint: z.string(),
  mode: z.enum(['bubblewrap', 'plain']),
  /** The agent's own user; null if it runs as the manager's. */
  uid: z.number().nullable(),
  files: z.string(),
  /** Its cgroup folders, the one that can kill first. */
  cgroups: z.array(z.string()),
  /** In which it was made; empty in older files. */
  boot: z.string().default(''),
});
/** What was decided about a sandbox before it started. */
export type Intent = z.infer<typeof intent>;

/** Where a runtime keeps its sandboxes. */
export interface Layout {
  readonly agents: string;
  readonly exits: string;
}

export function layout(dir: string): Layout {
  return { agents: join(dir, 'agents'), exits: join(dir, 'exits') };
}

/** Begins the name of a folder that is being removed. */
export const doomed = '.gone-';

/** Creates the agent's folder and the intent in it, in one step. */
export async function makeFolder(at: Layout, about: Intent): Promise<string> {
  const draft = join(at.agents, unfinished + about.agent);
  const path = join(at.agents, about.agent);
  await mkdir(join(draft, 'log'), { recursive: true, mode: 0o700 });
  await Promise.all([
    writeFile(join(draft, 'spec.json'), JSON.stringify(about)),
    writeFile(join(draft, 'log/stdout'), ''),
    writeFile(join(draft, 'log/stderr'), ''),
    // Long enough for any exit code, so that it can be overwritten in place on a full disk.
    writeFile(join(at.exits, about.agent), '-----\n'),
  ]);
  await rename(draft, path);
  return path;
}

/** @throws OnejobError E_SANDBOX_UNREAD if that is unknown now */
function exists(path: string): boolean {
  try {
    return lstatSync(path, { throwIfNoEntry: false }) !== undefined;
  } catch (error) {
    throw unread(path, error);
  }
}

/**
 * The agent's intent; null if there is no such sandbox, `damaged` if a crash of the host destroyed it.
 * @throws OnejobError E_SANDBOX_UNREAD if it cannot be read now
 */
export function readIntent(at: Layout, agent: AgentId): Intent | 'damaged' | null {
  const path = join(at.agents, agent);
  const read = (): string | null => readOr(join(path, 'spec.json'), null);
  let text = read();
  if (text === null) {
    if (!exists(path)) return null;
    // The folder appears and disappears by a rename, which may have happened between the two looks.
    text = read();
    if (text === null) return exists(path) ? 'damaged' : null;
  }
  return intent.safeParse(jsonOf(text)).data ?? 'damaged';
}

/** What this owner's runtime keeps, and where. */
interface Owned {
  readonly at: Layout;
  readonly owner: string;
}

/** The agent's intent if it is this owner's and whole, else null. @throws OnejobError E_SANDBOX_UNREAD */
export function intentOf({ at, owner }: Owned, agent: AgentId): Intent | null {
  const about = readIntent(at, agent);
  return about === null || about === 'damaged' || about.owner !== owner ? null : about;
}

/** @throws OnejobError E_SANDBOX_LOST, E_SANDBOX_UNREAD */
export function requireIntent(owned: Owned, agent: AgentId): Intent {
  const about = intentOf(owned, agent);
  if (about !== null) return about;
  throw new OnejobError('E_SANDBOX_LOST', `Agent ${agent} no longer has a sandbox on this host.`);
}

/** Agents that have a folder. @throws OnejobError E_SANDBOX_UNREAD if that cannot be read: then nothing is known (S6) */
export async function agentsIn(at: Layout): Promise<AgentId[]> {
  const names = await readdir(at.agents).catch((error: unknown) => {
    throw unread(at.agents, error);
  });
  return names.filter((name) => !name.startsWith('.'));
}

/** The agent's supervisor and its boot; null until that is written. */
export function supervisorOf(path: string): (ProcessIdentity & { readonly boot: string }) | null {
  const [boot, line, end] = readOr(join(path, 'proc'), '').split('\n');
  const identity = parseStat(line ?? '');
  return identity === null || end === undefined || boot === undefined ? null : { ...identity, boot };
}

/** The sandbox's first process on the host: bubblewrap, or the gate itself. */
export function firstProcessOf(path: string): ProcessIdentity | null {
  return identityIn(path, 'job');
}

/** A process whose identity is in a file of the folder; null if that is not written. */
export function identityIn(path: string, name: string): ProcessIdentity | null {
  const [line, end] = readOr(join(path, name), '').split('\n');
  return end === undefined ? null : parseStat(line ?? '');
}

/** What carries the network of the sandbox, and its doors. */
export function carriersOf(path: string): ProcessIdentity[] {
  const names = (attempt(() => readdirSync(path)) ?? []).filter((name) => /^(network|door\.\d+)$/.test(name));
  return names.flatMap((name) => identityIn(path, name) ?? []);
}

/** The exit code; null until it is written. */
function exitCode(at: Layout, agent: AgentId): number | null {
  const written = /^(\d+) *\n/.exec(readOr(join(at.exits, agent), ''));
  return written === null ? null : Number(written[1]);
}

/**
 * The state of the agent, from its folder alone. Death by a signal is 128 + its number, as in Docker. It is lost only after a
 * restart of the host, or if its processes are gone without an exit code.
 */
export function stateOf(at: Layout, about: Intent, boot: string): SandboxSeen['state'] {
  const path = join(at.agents, about.agent);
  const ended = (code: number): SandboxSeen['state'] => {
    if (code !== 137 || !oomKilled(about.cgroups)) return { kind: 'exited', exit: { kind: 'code', code } };
    const peak = peakMemory(about.cgroups);
    const exit: Exit = { kind: 'oom', ...(peak !== null && { peak }) };
    return { kind: 'exited', exit };
  };
  const lost = (reason: string): SandboxSeen['state'] => ({ kind: 'exited', exit: { kind: 'lost', reason } });
  const code = exitCode(at, about.agent);
  if (code !== null) return ended(code);
  const supervisor = supervisorOf(path);
  // A power cut may have taken what its supervisor wrote, or a part of it.
  if (supervisor === null && about.boot === boot) return { kind: 'created' };
  if (supervisor === null || supervisor.boot !== boot) return { kind: 'exited', exit: hostRestarted };
  const first = firstProcessOf(path);
  if (isAlive(supervisor) || (first !== null && isAlive(first))) return { kind: 'running' };
  // It may have ended between the two looks.
  const late = exitCode(at, about.agent);
  return late === null ? lost('its processes were killed from outside') : ended(late);
}
