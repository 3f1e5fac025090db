/**
 * Identifies processes: pids are reused, so a process is its pid, its start time and the boot it lives in. A process whose
 * identity does not match is never signalled.
 */
import { constants, readdirSync, readFileSync } from 'node:fs';
import { codeOf, messageOf, OnejobError } from '../base/errors.ts';

/** Environment variable that every process of an agent inherits. */
export const markVariable = 'ONEJOB_AGENT_MARK';

/** Environment variable that says to which installation a helper of an agent belongs. No job has it. */
export const ownerVariable = 'ONEJOB_OWNER';

export interface ProcessIdentity {
  readonly pid: number;
  /** Field 22 of /proc/PID/stat: clock ticks since boot (proc(5)). */
  readonly start: string;
}

interface ProcessStat extends ProcessIdentity {
  /** A letter, such as `Z` for a zombie. */
  readonly state: string;
  readonly parent: number;
  readonly group: number;
}

/** Parses a line of /proc/PID/stat; null if it is invalid. The command name in it may contain spaces and brackets. */
export function parseStat(line: string): ProcessStat | null {
  const pid = Number.parseInt(line, 10);
  const fields = line.slice(line.lastIndexOf(')') + 2).split(' ');
  const [state, parent, start] = [fields[0], fields[1], fields[19]];
  if (!(pid > 0) || state === undefined || parent === undefined || start === undefined) return null;
  return { pid, start, state, parent: Number(parent), group: Number(fields[2]) };
}

function stat(pid: number): ProcessStat | null {
  const line = readOr(`/proc/${pid}/stat`, null);
  return line === null ? null : parseStat(line);
}

/** Whether exactly this process still runs. A zombie does not. */
export function isAlive(process: ProcessIdentity): boolean {
  const now = stat(process.pid);
  return now !== null && now.start === process.start && now.state !== 'Z' && now.state !== 'X';
}

/** Signals exactly this process; false if it is gone. */
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
 * Descriptors but the first three that this process inherited and passes on to its children. Node closes its own on exec
 * (O_CLOEXEC in /proc/self/fdinfo, proc(5)).
 */
export function inheritedDescriptors(): number[] {
  return readdirSync('/proc/self/fdinfo')
    .map(Number)
    .filter((fd) => {
      const flags = /^flags:\s*([0-7]+)/m.exec(readOr(`/proc/self/fdinfo/${fd}`, ''))?.[1];
      return fd > 2 && flags !== undefined && (Number.parseInt(flags, 8) & 0o2000000) === 0;
    });
}

/** Processes that `pid` has started. A kernel without CONFIG_PROC_CHILDREN has no list of them. */
export function childrenOf(pid: number, list: string | null = readOr(`/proc/${pid}/task/${pid}/children`, null)): number[] {
  if (list !== null) return list.split(' ').filter(Boolean).map(Number);
  return allPids().filter((other) => stat(other)?.parent === pid);
}

/** `roots` and every living process whose ancestors lead to one of them. */
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

/** The living processes of a process group. */
export function membersOf(group: number): ProcessIdentity[] {
  return allPids().flatMap((each) => {
    const found = stat(each);
    return found?.group === group && found.state !== 'Z' ? [{ pid: each, start: found.start }] : [];
  });
}

/** The file does not exist, or will never be readable. Any other code only means that it could not be read now. */
const absent: readonly string[] = ['ENOENT', 'ESRCH', 'ENOTDIR', 'EISDIR', 'ELOOP', 'EACCES', 'EPERM', 'ENODEV', 'EOPNOTSUPP'];

/**
 * The file's text, or `otherwise` if it does not exist or is not ours.
 * @throws OnejobError E_SANDBOX_UNREAD if it may exist: a lack of descriptors or a failing disk says nothing (S6)
 */
export function readOr<T>(path: string, otherwise: T): string | T {
  try {
    // A FIFO without a writer would hold the whole process, not only the caller.
    return readFileSync(path, { encoding: 'utf8', flag: constants.O_RDONLY | constants.O_NONBLOCK });
  } catch (error) {
    if (absent.includes(codeOf(error))) return otherwise;
    throw unread(path, error);
  }
}

/** Whether such an error may pass: a lack of descriptors, a disk that does not respond. */
export function mayPass(error: unknown): boolean {
  if (error instanceof OnejobError) return error.retry;
  const code = codeOf(error);
  return code !== '' && !absent.includes(code);
}

export function unread(path: string, cause: unknown): OnejobError {
  const hint = 'Look for a failing disk, or a limit on open files.';
  return new OnejobError('E_SANDBOX_UNREAD', `Cannot read ${path} now: ${messageOf(cause)}.`, { hint, retry: true, cause });
}
