/** Programs that run in a container beside its script: `docker exec`, with input and output for the caller only. */

import { OnejobError } from '../../base/errors.ts';
import { deadline, sleep } from '../../core/clock.ts';
import type { RunningShell } from '../../ports/runtime.ts';
import { upgrade } from '../engine/call.ts';
import type { Engine } from '../engine/engine.ts';
import { Refusal, translate } from '../engine/failures.ts';
import { demultiplexed } from './holding.ts';

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
  const socket = await upgrade(engine.endpoint, `/exec/${exec}/start`, signal, { Detach: false, Tty: false }).catch(
    (error: unknown) => {
      signal.throwIfAborted();
      throw translate(error, 'run a program in a container', engine.endpoint);
    },
  );
  if ('status' in socket) {
    // The container has ended since.
    if (socket.status === 404 || socket.status === 409) throw lost();
    throw translate(new Refusal(socket.status, socket.body), 'run a program in a container', engine.endpoint);
  }
  const { promise: read, resolve } = Promise.withResolvers<void>();
  const abort = () => socket.destroy();
  signal.addEventListener('abort', abort, { once: true });
  if (signal.aborted) abort();
  socket.once('close', resolve).on('error', () => {});
  const ended = async (): Promise<number> => {
    try {
      await read;
      signal.throwIfAborted();
      using limit = deadline(engine.clock, codePatience, signal);
      while (!limit.signal.aborted) {
        const code = await engine.execEnded(exec, limit.signal);
        if (code !== null) return code;
        await sleep(engine.clock, betweenLooks, limit.signal);
      }
      signal.throwIfAborted();
      throw lost();
    } finally {
      signal.removeEventListener('abort', abort);
    }
  };
  const over = ended();
  // Not everyone waits for it.
  over.catch(() => {});
  return { stdin: socket, output: demultiplexed(socket), resize: () => {}, ended: over };
}

function lost(): OnejobError {
  return new OnejobError('E_SANDBOX_LOST', 'Cannot run a program in the sandbox of this job: the sandbox does not run any more.');
}
