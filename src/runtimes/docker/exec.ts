/** Programs in containers, with their input and output on a connection: `docker exec` next to a script, and shells of held sandboxes. */
import type { Socket } from 'node:net';
import { OnejobError } from '../../base/errors.ts';
import { deadline, sleep } from '../../core/clock.ts';
import type { RunningShell } from '../../ports/runtime.ts';
import type { Engine } from '../engine/engine.ts';
import { statusOf, translate } from '../engine/failures.ts';

/** ms that the Engine gets to know the exit code, from the end of the output on, and between two looks. */
const [codePatience, betweenLooks] = [10_000, 50];

/**
 * Runs `command` in the container `id`, null if it is gone. The Engine does not end the program when the connection closes, only its
 * input ends.
 * @throws OnejobError as `Runtime.exec`
 */
export async function runInside(
  engine: Engine,
  id: string | null,
  command: readonly string[],
  signal: AbortSignal,
): Promise<RunningShell> {
  const exec = id === null ? null : await engine.exec(id, command, signal);
  if (exec === null) throw lost();
  const path = `/exec/${exec}/start`;
  const doing = 'run a program in a container';
  const socket = await engine.upgrade(path, doing, signal, { Detach: false, Tty: false }).catch((error: unknown) => {
    signal.throwIfAborted();
    // The container has ended since.
    if (statusOf(error) === 404 || statusOf(error) === 409) throw lost();
    throw translate(error, doing, engine.endpoint);
  });
  const exitCode = async (): Promise<number> => {
    using limit = deadline(engine.clock, codePatience, signal);
    while (!limit.signal.aborted) {
      const code = await engine.execEnded(exec, limit.signal);
      if (code !== null) return code;
      await sleep(engine.clock, betweenLooks, limit.signal);
    }
    signal.throwIfAborted();
    throw lost();
  };
  return programOn(socket, signal, { output: demultiplexed(socket), resize: () => {}, exitCode, end: async () => {} });
}

export interface ProgramParts extends Pick<RunningShell, 'output' | 'resize'> {
  /** Asked once its output has ended. */
  readonly exitCode: () => Promise<number>;
  /** Removes what is left of it, however it ended. */
  readonly end: () => Promise<void>;
}

/** A program whose input and output are on `socket`, which closes when `signal` aborts. */
export function programOn(socket: Socket, signal: AbortSignal, { output, resize, exitCode, end }: ProgramParts): RunningShell {
  const { promise: closed, resolve } = Promise.withResolvers<void>();
  const abort = () => socket.destroy();
  signal.addEventListener('abort', abort, { once: true });
  if (signal.aborted) abort();
  if (socket.closed) resolve();
  // The end of a connection is the end of the output, whatever ended it.
  socket.once('close', resolve).on('error', () => {});
  const run = async (): Promise<number> => {
    try {
      await closed;
      signal.throwIfAborted();
      return await exitCode();
    } finally {
      signal.removeEventListener('abort', abort);
      await end();
    }
  };
  const ended = run();
  // Not everyone waits for it.
  ended.catch(() => {});
  return { stdin: socket, output, resize, ended };
}

/** The output of a program with a terminal. */
export async function* terminalOutput(socket: Socket): RunningShell['output'] {
  for await (const bytes of untilClosed(socket)) yield { stream: 'stdout', bytes };
}

/** A header of eight bytes (stream, three zeros, big-endian length) before each piece (Engine API, "Attach to a container"). */
export async function* demultiplexed(socket: Socket): RunningShell['output'] {
  let rest: Buffer = Buffer.alloc(0);
  let left = 0;
  let stream: 'stdout' | 'stderr' = 'stdout';
  for await (const chunk of untilClosed(socket)) {
    rest = rest.length === 0 ? chunk : Buffer.concat([rest, chunk]);
    for (;;) {
      if (left > 0 && rest.length > 0) {
        const bytes = rest.subarray(0, left);
        rest = rest.subarray(bytes.length);
        left -= bytes.length;
        yield { stream, bytes };
      } else if (left === 0 && rest.length >= 8) {
        stream = rest[0] === 2 ? 'stderr' : 'stdout';
        left = rest.readUInt32BE(4);
        rest = rest.subarray(8);
      } else break;
    }
  }
}

async function* untilClosed(socket: Socket): AsyncGenerator<Buffer> {
  try {
    for await (const bytes of socket) yield bytes as Buffer;
  } catch {
    // Ended says how it ended.
  }
}

function lost(): OnejobError {
  return new OnejobError('E_SANDBOX_LOST', 'Cannot run a program in the sandbox of this job: the sandbox does not run any more.');
}
