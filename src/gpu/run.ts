/**
 * Runs a GPU vendor's tool so that nothing it does can block the manager. A tool may hang for ever inside the driver (with a GPU
 * off the bus, or a dead GSP), where not even KILL ends it, and its child may keep the pipe open. So onejob never waits for the
 * end: at the limit it kills the tool and drops its pipes, and does not start it again while it lives.
 */
import { readFileSync } from 'node:fs';
import { access, constants, stat } from 'node:fs/promises';
import { constants as system } from 'node:os';
import { isAbsolute, join } from 'node:path';
import { attempt, codeOf } from '../base/errors.ts';
import type { Clock } from '../core/clock.ts';
import { killGroup, listen, startGroup } from '../system/group.ts';
import { allPids, type ProcessIdentity, parseStat } from '../system/process-identity.ts';
import { systemClock } from '../system/system-clock.ts';

/** The answer of a GPU vendor's tool, live or in a recording. */
export interface Reply {
  readonly tool: string;
  /** Its arguments; empty in a recording that does not contain them. */
  readonly args: readonly string[];
  /** Standard output, then standard error. NVIDIA's tool prints errors to standard output. */
  readonly output: string;
  /** Exit code, 127 where there is no such tool; null when onejob ended it, or in a recording. */
  readonly code: number | null;
  /** It timed out. `output` may be incomplete. */
  readonly hung: boolean;
}

/** A text as the answer of a tool, with nothing else known. */
export function recorded(output: string, args: readonly string[] = [], tool = 'nvidia-smi'): Reply {
  return { tool, args, output, code: null, hung: false };
}

export interface ToolReply extends Reply {
  /** There is no such tool: `code` is 127, as in a shell. */
  readonly missing: boolean;
  /** It printed too much, so onejob ended it. */
  readonly cut: boolean;
}

export interface ToolRunOptions {
  /** ms after which it counts as hung. */
  readonly limit: number;
  /** Ends it before that, which counts as hung too. */
  readonly signal?: AbortSignal;
}

export interface ToolRunner {
  /** Runs `tool`; never rejects. A tool that still lives after it was killed is not started again: it counts as hung. */
  run(tool: string, args: readonly string[], options: ToolRunOptions): Promise<ToolReply>;
  /** Path of the tool's file; null when there is none. */
  find(tool: string): Promise<string | null>;
}

/** Runs a tool with fixed limits; never rejects. */
export type ToolRun = (tool: string, ...args: string[]) => Promise<ToolReply>;

interface RunnerOptions {
  /** As `$PATH`: folders between colons, only absolute ones count. The tools get it too. */
  readonly path: string;
  /** Bytes of both streams together. */
  readonly most?: number;
  /** ms that a pipe may stay open after its tool has ended. */
  readonly drain?: number;
  /** Default: the real one. */
  readonly clock?: Clock;
  /** Kills a process group; a test has one that cannot be killed. */
  readonly kill?: (group: number) => void;
}

/** Where vendors put their tools outside the usual `$PATH`: ROCm, and WSL 2. */
export const vendorFolders: readonly string[] = ['/opt/rocm/bin', '/usr/lib/wsl/lib'];

/**
 * nvidia-smi maps memory for each descriptor it might have: 24 s instead of 2 s at 10^9 (nvidia-container-toolkit#1053). Node
 * raises its own limit to the highest allowed, and children inherit that.
 */
const limited = 'ulimit -n 65536 2>/dev/null; exec "$0" "$@"';

export function createRunner(options: RunnerOptions): ToolRunner {
  const { path, most = 16 * 2 ** 20, drain = 250, clock = systemClock, kill = killGroup } = options;
  const killed = new Map<string, ProcessIdentity>();

  const find = async (tool: string): Promise<string | null> => {
    const files = path.split(':').flatMap((folder) => (isAbsolute(folder) ? [join(folder, tool)] : []));
    for (const file of files) if (await isExecutable(file)) return file;
    return null;
  };

  return {
    find,
    async run(tool, args, { limit, signal }) {
      const about = { tool, args, output: '', code: null, missing: false, cut: false, hung: false };
      const file = await find(tool);
      if (file === null) return { ...about, code: 127, missing: true };
      const before = killed.get(file);
      if (signal?.aborted === true || (before !== undefined && lives(before))) return { ...about, hung: true };
      killed.delete(file);
      const child = startGroup('/bin/sh', ['-c', limited, file, ...args], { LC_ALL: 'C', PATH: path });
      if (child instanceof Error) return { ...about, output: `cannot start ${file}: ${child.message}` };
      const { pid } = child;
      const start = pid === undefined ? '' : (statOf(pid)?.start ?? '');
      const printed = { stdout: [] as Buffer[], stderr: [] as Buffer[] };
      let bytes = 0;
      const take = (data: Buffer, name: 'stdout' | 'stderr'): boolean => {
        bytes += data.length;
        if (bytes <= most) printed[name].push(data);
        return bytes <= most;
      };
      const end = await listen(child, { clock, drain, limit, signal, take });
      if (end instanceof Error) return { ...about, output: `cannot start ${child.spawnfile}: ${end.message}` };
      if (end !== 'closed' && pid !== undefined) {
        kill(pid);
        killed.set(file, { pid, start });
      }
      const output = Buffer.concat([...printed.stdout, ...printed.stderr]).toString();
      const code = child.exitCode ?? (child.signalCode === null ? null : 128 + system.signals[child.signalCode]);
      return { ...about, output, code, hung: end === 'hung', cut: end === 'cut' };
    },
  };
}

async function isExecutable(file: string): Promise<boolean> {
  const stats = await access(file, constants.X_OK)
    .then(() => stat(file))
    .catch(() => null);
  return stats?.isFile() === true;
}

/** Whether the process, or another of its group, is still there. One that cannot be read counts as there. */
function lives({ pid, start }: ProcessIdentity): boolean {
  const now = statOf(pid);
  // Another process has the number by now, so no process of that group is left.
  if (now !== null && start !== '' && now.start !== start) return false;
  try {
    process.kill(-pid, 0);
  } catch (error) {
    return codeOf(error) !== 'ESRCH';
  }
  // Zombies answer too, for ever where process 1 does not reap them.
  const isLive = (other: number): boolean => {
    const stat = statOf(other);
    return stat !== null && stat.group === pid && !/^[ZX]/.test(stat.state);
  };
  return attempt(() => allPids().some(isLive)) ?? true;
}

function statOf(pid: number) {
  return attempt(() => parseStat(readFileSync(`/proc/${pid}/stat`, 'utf8')));
}
