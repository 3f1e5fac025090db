/**
 * Runs a GPU vendor's tool so that nothing it does can hold up the manager. A tool may hang for ever inside the driver, where
 * not even KILL ends it, and a child of it may keep the pipe open after it (facts: a GPU off the bus, a dead GSP). So the
 * end is never waited for: at the limit it is killed, its pipes are dropped, and it is not started again while it lives.
 */

import { type ChildProcess, spawn } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { access, constants, stat } from 'node:fs/promises';
import { constants as system } from 'node:os';
import { isAbsolute, join } from 'node:path';
import { systemClock } from '../clock.ts';
import type { Clock } from '../core/clock.ts';

/** What a GPU vendor's tool answered, live or in a recording. */
export interface Reply {
  /** Name of the tool, such as `nvidia-smi`. */
  readonly tool: string;
  /** What it was asked; empty in a recording that does not say. */
  readonly args: readonly string[];
  /** Standard output, then standard error. NVIDIA's tool prints its complaints to the first. */
  readonly output: string;
  /** Exit code, 127 where there is no such tool; null when we ended it, or in a recording. */
  readonly code: number | null;
  /** It did not end in its time. What it said until then may be half of it. */
  readonly hung: boolean;
}

/** A text as the answer of a tool of which nothing else is known. */
export function recorded(output: string, args: readonly string[] = [], tool = 'nvidia-smi'): Reply {
  return { tool, args, output, code: null, hung: false };
}

/** A reply, and why there may be less of it than the tool meant to say. */
export interface ToolReply extends Reply {
  /** Nobody has such a tool: `code` is 127, as a shell says it. */
  readonly missing: boolean;
  /** It said more than is read, and was ended for that. */
  readonly cut: boolean;
}

export interface RunOptions {
  /** ms after which it counts as hung. */
  readonly limit: number;
  /** Ends it before that, which counts as hung too. */
  readonly signal?: AbortSignal;
}

export interface ToolRunner {
  /** Runs `tool`; never rejects. Of a tool that still lives after it was killed no second one is started: hung at once. */
  run(tool: string, args: readonly string[], options: RunOptions): Promise<ToolReply>;
  /** The file that `tool` would be; null when there is none. */
  find(tool: string): Promise<string | null>;
}

/** Runs a tool with limits that somebody else has chosen; never rejects. */
export type Run = (tool: string, ...args: string[]) => Promise<ToolReply>;

export interface RunnerOptions {
  /** As `$PATH`: folders between colons, only absolute ones count. The tools get it too. */
  readonly path: string;
  /** Bytes of both streams together. */
  readonly most?: number;
  /** ms that a pipe may stay open after its tool has ended. */
  readonly drain?: number;
  /** Default: the real one. */
  readonly clock?: Clock;
  /** How a process group is killed; a test has one that cannot be. */
  readonly kill?: (group: number) => void;
  /** Open files that this process may have; a test has another. */
  readonly openFiles?: number | null;
}

/** Where vendors put their tools beside the usual `$PATH`: ROCm, and WSL 2. */
export const vendorFolders: readonly string[] = ['/opt/rocm/bin', '/usr/lib/wsl/lib'];

/** A tool that was killed: pid, also of its process group, and start time in clock ticks since boot (proc(5)). */
interface Killed {
  readonly pid: number;
  readonly start: string | null;
}

/** nvidia-smi maps memory for each descriptor it might have: 24 s instead of 2 s at 10^9 (nvidia-container-toolkit#1053). */
const openFilesAtMost = 65_536;

export function createRunner(options: RunnerOptions): ToolRunner {
  const { path, most = 16 * 2 ** 20, drain = 250, clock = systemClock, kill = killGroup, openFiles = ownOpenFiles() } = options;
  const killed = new Map<string, Killed>();

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
      const child = start(file, args, path, openFiles);
      if (child instanceof Error) return { ...about, output: `cannot start ${file}: ${child.message}` };
      const mine: Killed | null = child.pid === undefined ? null : { pid: child.pid, start: startOf(child.pid) };
      const end = await endOf(child, { clock, most, drain, limit, ...(signal && { signal }) });
      if (end.how !== 'closed' && mine !== null) {
        kill(mine.pid);
        killed.set(file, mine);
      }
      return { ...about, output: end.output, code: end.code, hung: end.how === 'hung', cut: end.how === 'cut' };
    },
  };
}

function start(file: string, args: readonly string[], path: string, openFiles: number | null): ChildProcess | Error {
  // Node raises its own limit to the highest allowed, and children inherit that.
  const few = openFiles !== null && openFiles <= openFilesAtMost;
  const limited = ['-c', `ulimit -n ${openFilesAtMost} 2>/dev/null; exec "$0" "$@"`, file, ...args];
  try {
    return spawn(few ? file : '/bin/sh', few ? args : limited, {
      cwd: '/',
      env: { LC_ALL: 'C', PATH: path },
      stdio: ['ignore', 'pipe', 'pipe'],
      // A group of its own, so that what a wrapper script started is killed with it.
      detached: true,
    });
  } catch (error) {
    return error instanceof Error ? error : new Error(String(error));
  }
}

/** How listening to a tool came to an end: `left` behind a process that keeps its pipes open. */
interface End {
  readonly how: 'closed' | 'hung' | 'cut' | 'left';
  readonly code: number | null;
  readonly output: string;
}

type Limits = RunOptions & Required<Pick<RunnerOptions, 'clock' | 'most' | 'drain'>>;

/** Resolves when the tool has ended or will not be waited for; nothing of it is heard afterwards. */
function endOf(child: ChildProcess, { clock, limit, most, drain, signal }: Limits): Promise<End> {
  const { promise, resolve } = Promise.withResolvers<End>();
  const said = { stdout: [] as Buffer[], stderr: [] as Buffer[] };
  let bytes = 0;
  let code: number | null = null;
  let giveUp = (): void => {};
  const finish = (how: End['how'], problem?: string) => {
    callOff();
    giveUp();
    signal?.removeEventListener('abort', hang);
    child.stdout?.destroy();
    child.stderr?.destroy();
    child.unref();
    resolve({ how, code, output: problem ?? Buffer.concat([...said.stdout, ...said.stderr]).toString() });
  };
  const hang = () => finish('hung');
  const callOff = clock.after(limit, hang);
  signal?.addEventListener('abort', hang, { once: true });
  for (const name of ['stdout', 'stderr'] as const) {
    child[name]?.on('error', () => {});
    child[name]?.on('data', (data: Buffer) => {
      bytes += data.length;
      if (bytes > most) finish('cut');
      else said[name].push(data);
    });
  }
  // It never ran: no right to the file, or no room for another process.
  child.once('error', (error) => finish('closed', `cannot start ${child.spawnfile}: ${error.message}`));
  child.once('exit', (ended, by) => {
    code = ended ?? (by === null ? null : 128 + system.signals[by]);
    giveUp = clock.after(drain, () => finish('left'));
  });
  child.once('close', () => finish('closed'));
  return promise;
}

async function isExecutable(file: string): Promise<boolean> {
  try {
    await access(file, constants.X_OK);
    return (await stat(file)).isFile();
  } catch {
    return false;
  }
}

function killGroup(group: number): void {
  try {
    process.kill(-group, 'SIGKILL');
  } catch {
    // It has ended by itself.
  }
}

/** Whether the process, or another of its group, is still there. What cannot be seen counts as there. */
function lives({ pid, start }: Killed): boolean {
  const now = startOf(pid);
  // The number belongs to another process by now, so nobody of that group is left.
  if (now !== null && start !== null && now !== start) return false;
  try {
    process.kill(-pid, 0);
  } catch (error) {
    return !(error instanceof Error && 'code' in error && error.code === 'ESRCH');
  }
  // The dead that nobody waits for answer too, for ever where process 1 is none that does.
  try {
    return readdirSync('/proc').some((name) => {
      const other = /^\d+$/.test(name) ? statOf(name) : null;
      return other !== null && other.group === String(pid) && !/^[ZX]/.test(other.state);
    });
  } catch {
    return true;
  }
}

function startOf(pid: number): string | null {
  return statOf(String(pid))?.start ?? null;
}

/** Of /proc/PID/stat (proc(5)): state, process group and start time. The command's name in it may hold spaces and brackets. */
function statOf(pid: string): { readonly state: string; readonly group: string; readonly start: string } | null {
  try {
    const line = readFileSync(`/proc/${pid}/stat`, 'utf8');
    const fields = line.slice(line.lastIndexOf(')') + 2).split(' ');
    return { state: fields[0] ?? '', group: fields[2] ?? '', start: fields[19] ?? '' };
  } catch {
    return null;
  }
}

/** The soft limit that children inherit; null where it is not known. */
function ownOpenFiles(): number | null {
  try {
    const soft = /^Max open files\s+(\S+)/m.exec(readFileSync('/proc/self/limits', 'utf8'))?.[1];
    return soft === 'unlimited' ? Number.POSITIVE_INFINITY : Number(soft);
  } catch {
    return null;
  }
}
