/**
 * Programs in a process group of their own, so that what they start can be killed with them. Nothing here waits for the end of one
 * that cannot be killed.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { attempt } from '../base/errors.ts';
import { formatDuration } from '../base/units.ts';
import { type Clock, deadline } from '../core/clock.ts';
import { isAlive, killPid, membersOf, withDescendants } from './process-identity.ts';

/** Starts a program in a process group of its own, so that what it starts can be killed with it. */
export function startGroup(
  program: string,
  args: readonly string[],
  env: Record<string, string>,
  stdin: 'ignore' | 'pipe' = 'ignore',
): ChildProcess | Error {
  try {
    return spawn(program, args, { cwd: '/', env, stdio: [stdin, 'pipe', 'pipe'], detached: true });
  } catch (error) {
    return error instanceof Error ? error : new Error(String(error));
  }
}

interface Listening {
  readonly clock: Clock;
  /** ms after which it counts as hung. */
  readonly limit: number;
  /** ms that a pipe may stay open after the program has ended. */
  readonly drain: number;
  /** Ends the wait before that, which counts as hung too. */
  readonly signal: AbortSignal | undefined;
  /** Takes a piece of output; false when it is too much. */
  readonly take: (data: Buffer, from: 'stdout' | 'stderr') => boolean;
}

/** How listening ended; an error: the program never ran. */
type Ending = 'closed' | 'hung' | 'cut' | 'left' | Error;

/** Resolves when the program has ended or is given up (`left`: others keep its pipes open). Error: not started. Never rejects. */
export function listen(child: ChildProcess, { clock, limit, drain, signal, take }: Listening): Promise<Ending> {
  const { promise, resolve } = Promise.withResolvers<Ending>();
  let giveUp = (): void => {};
  const finish = (how: Ending) => {
    callOff();
    giveUp();
    signal?.removeEventListener('abort', hang);
    child.stdin?.destroy();
    child.stdout?.destroy();
    child.stderr?.destroy();
    child.unref();
    resolve(how);
  };
  const hang = () => finish('hung');
  const callOff = clock.after(limit, hang);
  signal?.addEventListener('abort', hang, { once: true });
  for (const name of ['stdout', 'stderr'] as const) {
    child[name]?.on('error', () => {});
    child[name]?.on('data', (data: Buffer) => {
      if (!take(data, name)) finish('cut');
    });
  }
  // It never ran: no permission for the file, or no room for another process.
  child.once('error', finish);
  child.once('exit', () => {
    giveUp = clock.after(drain, () => finish('left'));
  });
  child.once('close', () => finish('closed'));
  return promise;
}

/** Does nothing if it has ended by itself. */
export function killGroup(group: number): void {
  attempt(() => process.kill(-group, 'SIGKILL'));
}

export interface OwnersCommand {
  readonly command: readonly [program: string, ...args: string[]];
  readonly env: Record<string, string>;
  /** Its standard input; default: none. */
  readonly input?: string;
  /** ms */
  readonly timeout: number;
  readonly clock: Clock;
  /** Ends it, because onejob is stopping. */
  readonly signal: AbortSignal;
  /** Once it has ended with 0, what it left in the background may finish within `timeout`; default: is killed. */
  readonly background?: boolean;
}

/** ms to wait for the end of a killed command: a driver in trouble may keep it for ever. */
const patience = 5_000;
/** ms that a pipe may stay open after the program has ended. */
const drain = 250;

/** What ended a command, as the end of a sentence; null: it ended with 0. */
interface CommandEnd {
  readonly why: string | null;
  /** null: it did not end by itself. */
  readonly code: number | null;
  /** It never ran. */
  readonly isUnstarted: boolean;
}

/**
 * Runs a command of the config, with nothing of this process' environment, and kills it with all that it started when its time is
 * over, or when `take` has had too much of its output. Never rejects.
 */
export async function runGroup(options: OwnersCommand & Pick<Listening, 'take'>): Promise<CommandEnd> {
  const { env, input, timeout, clock, signal, background = false, take } = options;
  const [program, ...args] = options.command;
  const notStarted = ({ message }: Error) => ({
    why: `${program} cannot be started: ${message}`,
    code: null,
    isUnstarted: true,
  });
  const child = startGroup(program, args, env, input === undefined ? 'ignore' : 'pipe');
  if (child instanceof Error) return notStarted(child);
  // It may end without reading its input.
  child.stdin?.on('error', () => {});
  child.stdin?.end(input);
  const whole = listen(child, { clock, limit: timeout, drain: background ? timeout : drain, signal, take });
  const end = await (background ? Promise.race([whole, leftRunning(child, clock, whole)]) : whole);
  if (end instanceof Error) return notStarted(end);
  const isOver = child.exitCode !== null || child.signalCode !== null;
  if (end === 'continues') void endLater(child, whole);
  // What it left in the background may hold the pipes open for ever. Its number may be another's once it has ended.
  else if (end !== 'closed' && child.pid !== undefined) (isOver ? killGroup : killFamily)(child.pid);
  let why: string | null = null;
  if (signal.aborted) why = 'onejob is stopping';
  else if (end === 'cut') why = 'it printed too much';
  else if (end === 'hung' && !isOver) {
    why = `it took longer than ${formatDuration(timeout)} and was killed`;
    using limit = deadline(clock, patience, signal);
    await once(child, 'exit', { signal: limit.signal }).catch(() => {});
  } else if (child.signalCode !== null) why = `it was ended by ${child.signalCode}`;
  else if (child.exitCode !== 0) why = `it exited with ${child.exitCode}`;
  return { why, code: isOver && end !== 'cut' ? child.exitCode : null, isUnstarted: false };
}

/** Bytes of output that are kept, the last ones. */
const mostOutput = 8 * 1024;

/** The same, with the end of what it printed. */
export async function runOwners(options: OwnersCommand) {
  let output = Buffer.alloc(0);
  const take = (data: Buffer): boolean => {
    output = Buffer.concat([output, data]).subarray(-mostOutput);
    return true;
  };
  const { why, isUnstarted } = await runGroup({ ...options, take });
  return { why, output: isUnstarted ? '' : output.toString() };
}

/** Resolves `drain` ms after the end of the program; `continues`: it has ended with 0, and what it left may continue. */
function leftRunning(child: ChildProcess, clock: Clock, whole: Promise<unknown>): Promise<'continues' | 'left'> {
  return new Promise((resolve) => {
    child.once('exit', (code) => {
      const callOff = clock.after(drain, () => resolve(code === 0 ? 'continues' : 'left'));
      void whole.then(callOff);
    });
  });
}

/** Kills what the program has left in its group, once its time is over. The number of an empty group may be another's by then. */
async function endLater({ pid }: ChildProcess, whole: Promise<Ending>): Promise<void> {
  if (pid === undefined) return;
  const left = attempt(() => membersOf(pid)) ?? [];
  if ((await whole) !== 'closed' && left.some((one) => isAlive(one))) killGroup(pid);
}

/** Kills a group and its leader's descendants that left it: a child with a session of its own is still a child. */
function killFamily(leader: number): void {
  const family = attempt(() => withDescendants([leader])) ?? [];
  killGroup(leader);
  for (const pid of family) killPid(pid, 'KILL');
}
