/**
 * Runs a program of this host to its end and returns its output. For programs that may hang in the kernel, where not even KILL
 * ends them, see `gpu/run.ts`.
 */
import { type ExecFileException, execFile } from 'node:child_process';

export interface Ended {
  /** Its exit code; null if it was killed; the system's code, such as `ENOENT`, if it could not start. */
  readonly code: number | string | null;
  /** null if it exited with 0. */
  readonly error: ExecFileException | null;
  readonly stdout: Buffer;
  readonly stderr: string;
}

export interface RunOptions {
  readonly cwd?: string;
  /** Default: the environment of this process. */
  readonly env?: Readonly<Record<string, string>>;
  /** In addition to that. */
  readonly moreEnv?: Readonly<Record<string, string>>;
  /** Its standard input. Default: empty. */
  readonly input?: string | Uint8Array;
  /** ms after which it is killed. Default: never. */
  readonly timeout?: number;
  /** Maximum bytes of each stream. Default: 64 MiB. */
  readonly most?: number;
  readonly signal?: AbortSignal;
  /** Whose process it is, without other groups. Default: as this one. */
  readonly uid?: number;
  readonly gid?: number;
  /** The signal that ends it after a timeout or abort. Default: KILL. */
  readonly killSignal?: 'SIGKILL' | 'SIGTERM';
}

/**
 * A failure is part of the result; callers that pass `signal` check whether it has aborted.
 * @throws what the system reports if a process cannot be created, such as `E2BIG`
 */
export function run(program: string, args: readonly string[], options: RunOptions = {}): Promise<Ended> {
  const { input = '', most = 64 * 2 ** 20, killSignal = 'SIGKILL', env = process.env, moreEnv = {}, ...rest } = options;
  return new Promise((resolve) => {
    const how = { ...rest, env: { ...env, ...moreEnv }, encoding: 'buffer', maxBuffer: most, killSignal } as const;
    const child = execFile(program, args, how, (error, stdout, stderr) => {
      resolve({ code: error === null ? 0 : (error.code ?? null), error, stdout, stderr: stderr.toString() });
    });
    // It may end without reading its input.
    child.stdin?.on('error', () => {});
    child.stdin?.end(input);
  });
}
