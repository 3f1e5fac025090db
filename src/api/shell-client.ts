/** The client's end of a shell. */
import type { Duplex } from 'node:stream';
import { OnejobError } from '../base/errors.ts';
import { fromErrorView } from '../contract/http-errors.ts';
import { errorView } from '../contract/schema.ts';
import {
  drained,
  readShellFrames,
  type ShellStart,
  shellBodies,
  shellBody,
  shellFrame,
  shellFrames,
} from '../contract/shell-frames.ts';
import type { TerminalSize } from '../ports/runtime.ts';

/** Starts a shell on an upgraded connection. */
export class RemoteShell {
  readonly #connection: Duplex;

  constructor(connection: Duplex, start: ShellStart) {
    this.#connection = connection;
    connection.on('error', () => {});
    connection.write(shellFrame('start', start));
  }

  /** Resolves when the next input may be written. */
  async write(bytes: Uint8Array): Promise<void> {
    for (const frame of shellFrames('stdin', bytes))
      if (this.#connection.writable && !this.#connection.write(frame)) await drained(this.#connection);
  }

  /** There is no more input. */
  end(): void {
    if (this.#connection.writable) this.#connection.write(shellFrame('eof'));
  }

  resize(size: TerminalSize): void {
    if (this.#connection.writable) this.#connection.write(shellFrame('size', size));
  }

  /**
   * Reads the output to its end; the exit code.
   * @throws OnejobError what ended the shell, E_DAEMON_CUT if the daemon has gone
   */
  async run(show: (stream: 'stdout' | 'stderr', bytes: Uint8Array) => Promise<void>): Promise<number> {
    try {
      for await (const frame of readShellFrames(untilBroken(this.#connection))) {
        if (frame.kind === 'stdout' || frame.kind === 'stderr') await show(frame.kind, frame.bytes);
        else if (frame.kind === 'exit') return shellBody(shellBodies.exit, frame).code;
        else if (frame.kind === 'error') throw fromErrorView(shellBody(errorView, frame));
      }
    } finally {
      this.#connection.destroy();
    }
    throw new OnejobError('E_DAEMON_CUT', 'The shell has ended because the daemon has gone.', {
      hint: 'What it changed outside of the workspace is lost. If the job is still held, open another shell once the daemon is back.',
    });
  }

  close(): void {
    this.#connection.destroy();
  }
}

/** How a connection breaks does not matter. */
async function* untilBroken(connection: Duplex): AsyncGenerator<Uint8Array, void> {
  const pieces = connection[Symbol.asyncIterator]();
  for (;;) {
    const piece = await pieces.next().catch(() => null);
    if (piece === null || piece.done === true) return;
    yield piece.value;
  }
}
