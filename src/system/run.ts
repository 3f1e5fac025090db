/**
 * Runs a program of this host to its end and takes what it says. For what may hang in the kernel, where not even KILL ends it, there is
 * `gpu/run.ts`.
 */
import { type ExecFileException, execFile } from 'node:child_process';

export interface Ended {
  /** Its exit code; null when it was killed, and the system's own word, such as `ENOENT`, when it could not be run. */
  readonly code: number | string | null;
  /** null when it ended with 0. */
  readonly error: ExecFileException | null;
  readonly stdout: Buffer;
  readonly stderr: string;
}

export interface RunOptions {
  readonly cwd?: string;
  /** Default: that of this process. */
  readonly env?: Readonly<Record<string, string>>;
  /** Its standard input; default empty. */
  readonly input?: string | Uint8Array;
  /** ms after which it is killed; default never. */
  readonly timeout?: number;
  /** Bytes of each stream that it may say; default 64 MiB. */
  readonly most?: number;
  readonly signal?: AbortSignal;
  /** How it is ended when it takes too long or nobody waits any more; default KILL. */
  readonly killSignal?: 'SIGKILL' | 'SIGTERM';
}

/**
 * A failure is part of the answer: whoever gave `signal` looks whether it has aborted.
 * @throws what the system says when no process can be made, such as `E2BIG`
 */
export function run(program: string, args: readonly string[], options: RunOptions = {}): Promise<Ended> {
  const { input = '', most = 64 * 2 ** 20, killSignal = 'SIGKILL', ...rest } = options;
  return new Promise((resolve) => {
    const how = { ...rest, encoding: 'buffer', maxBuffer: most, killSignal } as const;
    const child = execFile(program, args, how, (error, stdout, stderr) => {
      resolve({ code: error === null ? 0 : (error.code ?? null), error, stdout, stderr: stderr.toString() });
    });
    // It may end without having read it.
    child.stdin?.on('error', () => {});
    child.stdin?.end(input);
  });
}
