/** A child process as a test sees it: what it has said so far, what it will say, how it ended. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync } from 'node:fs';

export interface Ended {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stdout: string;
  readonly stderr: string;
}

export interface Child {
  readonly pid: number;
  /** So far. */
  readonly stdout: string;
  readonly stderr: string;
  readonly stdoutBytes: Buffer;
  /** Resolves at the end, however it came; never rejects. */
  readonly ended: Promise<Ended>;
  readonly running: boolean;
  signal(signal: NodeJS.Signals): void;
  /** SIGKILL, and waits for the end. */
  kill(): Promise<Ended>;
  /** Resolves with the match once its output, both streams together, matches. @throws Error when it ends first. */
  says(pattern: RegExp): Promise<RegExpMatchArray>;
  /** Standard input; ends it. */
  type(text: string): void;
  /** Some standard input; more may follow. */
  typeMore(text: string): void;
}

export interface ChildOptions {
  readonly cwd: string;
  readonly env: NodeJS.ProcessEnv;
}

/** Bytes of the end of what a child has said so far. To look through all of it again and again would cost the square of it. */
const lately = 2 ** 20;

function endOf(chunks: readonly Buffer[]): string {
  let from = chunks.length;
  for (let bytes = 0; from > 0 && bytes < lately; from--) bytes += chunks[from - 1]?.length ?? 0;
  return Buffer.concat(chunks.slice(from)).toString();
}

export function startChild(command: string, args: readonly string[], options: ChildOptions): Child {
  const child: ChildProcess = spawn(command, args, { ...options, stdio: 'pipe' });
  const out: Buffer[] = [];
  const err: Buffer[] = [];
  const listeners = new Set<() => void>();
  const heard = (into: Buffer[]) => (bytes: Buffer) => {
    into.push(bytes);
    for (const listener of listeners) listener();
  };
  child.stdout?.on('data', heard(out));
  child.stderr?.on('data', heard(err));
  child.stdin?.on('error', () => {});
  const stdout = (): string => Buffer.concat(out).toString();
  const stderr = (): string => Buffer.concat(err).toString();
  // `close` comes once all output was read, in the same moment as `exit` or later. A process that inherited the pipes may
  // hold them open for ever, so the end does not wait for it alone.
  const closed = new Promise<void>((resolve) => child.once('close', () => resolve()));
  const ended = once(child, 'exit').then(
    async ([code, signal]): Promise<Ended> => {
      const { promise: late, resolve } = Promise.withResolvers<void>();
      const timer = setTimeout(resolve, 2_000);
      await Promise.race([closed, late]);
      clearTimeout(timer);
      return { code, signal, stdout: stdout(), stderr: stderr() };
    },
    (error): Ended => ({ code: null, signal: null, stdout: '', stderr: String(error) }),
  );
  return {
    pid: child.pid ?? 0,
    get stdout() {
      return stdout();
    },
    get stderr() {
      return stderr();
    },
    get stdoutBytes() {
      return Buffer.concat(out);
    },
    ended,
    get running() {
      return child.exitCode === null && child.signalCode === null;
    },
    signal: (signal) => void child.kill(signal),
    kill() {
      child.kill('SIGKILL');
      return ended;
    },
    says(pattern) {
      return new Promise((resolve, reject) => {
        const look = (text: string): boolean => {
          const found = text.match(pattern);
          if (found === null) return false;
          listeners.delete(lookAtEnd);
          resolve(found);
          return true;
        };
        const lookAtEnd = (): boolean => look(endOf(out) + endOf(err));
        if (look(stdout() + stderr())) return;
        listeners.add(lookAtEnd);
        void ended.then((end) => {
          if (!look(stdout() + stderr()))
            reject(new Error(`ended (${end.code ?? end.signal}) without saying ${pattern}:\n${end.stdout}${end.stderr}`));
        });
      });
    },
    type: (text) => void child.stdin?.end(text),
    typeMore: (text) => void child.stdin?.write(text),
  };
}

/** Whether the process exists and is not merely waiting to be reaped. While one of its threads is there, its sockets are. */
export function isAlive(pid: number): boolean {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    if (!/^[ZX]/.test(stat.slice(stat.lastIndexOf(')') + 2))) return true;
    return readdirSync(`/proc/${pid}/task`).length > 1;
  } catch {
    return false;
  }
}

/** Waits until a process that is not our child is gone. @throws Error after `patience` ms. */
export async function untilGone(pid: number, patience = 20_000): Promise<void> {
  // The kernel tells only a parent, so this has to look again and again.
  for (const until = Date.now() + patience; isAlive(pid); ) {
    if (Date.now() > until) throw new Error(`process ${pid} is still there after ${patience} ms`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
