/** A job's output on our own streams: bytes as they are, notes as lines of onejob's, or all of it as JSON. */
import { isUtf8 } from 'node:buffer';
import type { LogPiece } from '../api/manager.ts';
import type { Output } from './output.ts';

export interface JobPrinter {
  /** Resolves when the stream takes more. @throws OutputClosed */
  show(piece: LogPiece): Promise<void>;
}

export function jobPrinter(output: Output): JobPrinter {
  return {
    async show({ stream, bytes }) {
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
