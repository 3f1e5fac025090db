/**
 * Bodies that are read whole before their call goes on. What a job can make the broker hold is bounded twice: few such calls at
 * a time for one agent and its job each, and so many bytes for all of them; beyond that the largest goes, so that small ones always have room.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { OnejobError } from '../../../errors.ts';
import type { GatewayLimits } from './gateway-limits.ts';
import type { AgentMemory, Lane } from './gateway-memory.ts';

export interface Reads {
  /**
   * What was read counts until the call is answered.
   * @throws OnejobError E_API_REQUEST: larger than `limit` bytes, or with `retry` one too many; whatever a stream that breaks off does
   */
  whole(call: Reading, limit: number): Promise<Buffer>;
}

export interface Reading {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly memory: AgentMemory;
  readonly lane: Lane;
  readonly signal: AbortSignal;
}

interface Reader {
  /** With what was made for more to come. */
  held: Buffer;
  stop(): void;
}

/** Grown by doubling, so that many small pieces cost no more than their bytes. */
const leastBytes = 4096;

export function createReads({ reading, readBytes, wholeMs }: Pick<GatewayLimits, 'reading' | 'readBytes' | 'wholeMs'>): Reads {
  const readers = new Set<Reader>();
  let total = 0;

  const remove = (reader: Reader): void => {
    if (readers.delete(reader)) total -= reader.held.length;
  };
  const grow = (reader: Reader, size: number): void => {
    const held = Buffer.alloc(size);
    reader.held.copy(held);
    total += held.length - reader.held.length;
    reader.held = held;
    while (total > readBytes) {
      const largest = [...readers].reduce((one, other) => (other.held.length > one.held.length ? other : one), reader);
      remove(largest);
      if (largest === reader) throw busy();
      largest.stop();
    }
  };

  return {
    async whole({ request, response, memory, lane, signal }, limit) {
      if (Number(request.headers['content-length'] ?? 0) > limit) throw tooLarge(limit);
      if (memory.reading[lane] >= reading) throw busy();
      const reader: Reader = { held: Buffer.alloc(0), stop: () => void request.destroy() };
      if (signal.aborted) reader.stop();
      signal.addEventListener('abort', reader.stop, { once: true });
      readers.add(reader);
      memory.reading[lane] += 1;
      const over = (): void => {
        memory.reading[lane] -= 1;
        remove(reader);
      };
      if (response.destroyed) over();
      else response.once('close', over);
      const timer = setTimeout(reader.stop, wholeMs);
      try {
        let size = 0;
        for await (const part of request.iterator({ destroyOnReturn: false })) {
          const bytes = part as Buffer;
          if (size + bytes.length > limit) throw tooLarge(limit);
          const room = reader.held.length;
          if (size + bytes.length > room) grow(reader, Math.min(limit, Math.max(leastBytes, room * 2, size + bytes.length)));
          bytes.copy(reader.held, size);
          size += bytes.length;
        }
        return reader.held.subarray(0, size);
      } finally {
        clearTimeout(timer);
        signal.removeEventListener('abort', reader.stop);
      }
    },
  };
}

function tooLarge(limit: number): OnejobError {
  return new OnejobError('E_API_REQUEST', `The body of the call is larger than ${limit} bytes.`);
}

function busy(): OnejobError {
  return new OnejobError('E_API_REQUEST', 'Too many calls of this kind at a time.', { retry: true });
}
