/**
 * Which process is meant: a pid alone is reused, so a process is its pid, its start time and the boot it lives in.
 * Never signals a process whose identity does not match.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { codeOf, OnejobError } from '../errors.ts';

/** Environment variable that every process of an agent inherits. */
export const markVariable = 'ONEJOB_AGENT_MARK';

export interface ProcessIdentity {
  readonly pid: number;
  /** Field 22 of /proc/PID/stat: clock ticks since boot (proc(5)). */
  readonly start: string;
}

/** One line of /proc/PID/stat; null when it is not one. The command name in it may hold spaces and brackets. */
export function parseStat(
  line: string,
): (ProcessIdentity & { readonly state: string; readonly parent: number; readonly group: number }) | null {
  const pid = Number.parseInt(line, 10);
  const fields = line.slice(line.lastIndexOf(')') + 2).split(' ');
  const [state, parent, start] = [fields[0], fields[1], fields[19]];
  if (!(pid > 0) || state === undefined || parent === undefined || start === undefined) return null;
  return { pid, start, state, parent: Number(parent), group: Number(fields[2]) };
}

function stat(pid: number): ReturnType<typeof parseStat> {
  const line = readOr(`/proc/${pid}/stat`, null);
  return line === null ? null : parseStat(line);
}

/** Whether exactly this process still runs. One that has ended but was not waited for does not. */
export function isAlive(process: ProcessIdentity): boolean {
  const now = stat(process.pid);
  return now !== null && now.start === process.start && now.state !== 'Z' && now.state !== 'X';
}

/** Signals exactly this process; false when it is gone. */
export function signalProcess(target: ProcessIdentity, signal: 'TERM' | 'KILL'): boolean {
  if (!isAlive(target)) return false;
  return killPid(target.pid, signal);
}

export function killPid(pid: number, signal: 'TERM' | 'KILL'): boolean {
  try {
    process.kill(pid, `SIG${signal}`);
    return true;
  } catch {
    return false;
  }
}

export function bootId(): string {
  return readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
}

export function allPids(): number[] {
  return readdirSync('/proc').flatMap((name) => (/^\d+$/.test(name) ? [Number(name)] : []));
}

/**
 * Descriptors, other than the first three, that this process was started with and hands on to its children: whatever Node
 * opens itself is closed on exec (O_CLOEXEC in /proc/self/fdinfo, proc(5)).
 */
export function inheritedDescriptors(): number[] {
  return readdirSync('/proc/self/fdinfo')
    .map(Number)
    .filter((fd) => {
      const flags = /^flags:\s*([0-7]+)/m.exec(readOr(`/proc/self/fdinfo/${fd}`, ''))?.[1];
      return fd > 2 && flags !== undefined && (Number.parseInt(flags, 8) & 0o2000000) === 0;
    });
}

/** Every living process that one of `roots` brought into being and whose ancestors still live, with the roots. */
export function withDescendants(roots: Iterable<number>): Set<number> {
  const children = new Map<number, number[]>();
  for (const pid of allPids()) {
    const parent = stat(pid)?.parent;
    if (parent !== undefined) children.set(parent, [...(children.get(parent) ?? []), pid]);
  }
  const found = new Set<number>();
  const queue = [...roots];
  for (let pid = queue.pop(); pid !== undefined; pid = queue.pop()) {
    if (found.has(pid)) continue;
    found.add(pid);
    queue.push(...(children.get(pid) ?? []));
  }
  return found;
}

/** The file is not there, or will never be ours to read. Any other code says only that it could not be read now. */
const absent: readonly string[] = ['ENOENT', 'ESRCH', 'ENOTDIR', 'EISDIR', 'ELOOP', 'EACCES', 'EPERM', 'ENODEV', 'EOPNOTSUPP'];

/**
 * The file's text, or `otherwise` when it is gone, or not ours.
 * @throws OnejobError E_SANDBOX_UNREAD when it may be there: no free descriptor, or a disk that fails, says nothing (S6).
 */
export function readOr<T>(path: string, otherwise: T): string | T {
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    if (absent.includes(codeOf(error))) return otherwise;
    throw unread(path, error);
  }
}

/** Whether what failed so may succeed later: no free descriptor, a disk that does not answer. */
export function mayPass(error: unknown): boolean {
  if (error instanceof OnejobError) return error.retry;
  const code = codeOf(error);
  return code !== '' && !absent.includes(code);
}

export function unread(path: string, cause: unknown): OnejobError {
  const why = cause instanceof Error ? cause.message : String(cause);
  return new OnejobError('E_SANDBOX_UNREAD', `Cannot read ${path} now: ${why}.`, {
    hint: 'Look for a failing disk, or a limit on open files.',
    retry: true,
    cause,
  });
}
