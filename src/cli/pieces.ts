/** Printers of output and logs: a job's bytes unchanged and notes as lines of onejob, or everything as JSON. */
import { isUtf8 } from 'node:buffer';
import type { LogPiece } from '../api/manager.ts';
import { createColorsOnly, createPlain, type Plain } from '../logs/plain.ts';
import type { Output } from './output.ts';
import { harmless } from './text.ts';

export interface JobPrinter {
  /** Resolves when the stream takes more. @throws OutputClosed */
  show(piece: LogPiece): Promise<void>;
  /** Shows what was held back for a next piece. */
  end?(): Promise<void>;
}

/**
 * As `jobPrinter`, for a job that may belong to another user: on a terminal only its text and colours, elsewhere every byte. `run`
 * shows the user's own job unchanged, as a shell would.
 */
export function foreignPrinter(output: Output): JobPrinter {
  const printer = jobPrinter(output);
  if (output.json) return printer;
  const streams = (['stdout', 'stderr'] as const).filter((stream) => output.isTerminal(stream));
  const filters = new Map<LogPiece['stream'], Plain>(streams.map((stream) => [stream, createColorsOnly()]));
  return {
    async show(piece) {
      const filter = filters.get(piece.stream);
      await printer.show(filter === undefined ? piece : { stream: piece.stream, bytes: filter.take(piece.bytes) });
    },
    async end() {
      for (const [stream, filter] of filters) await printer.show({ stream, bytes: filter.rest() });
    },
  };
}

/** As `printer`, but if the output must be plain, it removes escape sequences from what was written for a terminal. */
export function plainPrinter(output: Output, printer: JobPrinter): JobPrinter {
  if (!output.plain) return printer;
  const filters = { stdout: createPlain(), stderr: createPlain() };
  return {
    show({ forTerminal, ...piece }) {
      if (!forTerminal || piece.stream === 'note') return printer.show(piece);
      return printer.show({ ...piece, bytes: filters[piece.stream].take(piece.bytes) });
    },
    async end() {
      for (const stream of ['stdout', 'stderr'] as const) await printer.show({ stream, bytes: filters[stream].rest() });
      await printer.end?.();
    },
  };
}

export function jobPrinter(output: Output): JobPrinter {
  return {
    async show({ stream, bytes }) {
      if (bytes.length === 0) return;
      const text = () => Buffer.from(bytes).toString();
      if (output.json) {
        const data = isUtf8(bytes) ? { text: text() } : { base64: Buffer.from(bytes).toString('base64') };
        return output.value({ event: 'output', stream, ...data });
      }
      if (stream === 'note') return output.say(text().trimEnd());
      await output.write(stream, bytes);
    },
  };
}

/** As `jobPrinter`, for text that was not written for a terminal: without control characters. */
export function agentLogPrinter(output: Output): JobPrinter {
  if (output.json) return jobPrinter(output);
  const printer = jobPrinter(output);
  // A letter may be split between two pieces.
  const decoder = new TextDecoder();
  return {
    async show(piece) {
      if (piece.stream === 'note') return printer.show(piece);
      const text = decoder.decode(piece.bytes, { stream: true });
      await printer.show({ stream: piece.stream, bytes: Buffer.from(harmless(text)) });
    },
  };
}
