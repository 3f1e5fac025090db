/** The part of the client that is about images. Its schemas are loaded with the first such request. */
import type { IncomingMessage } from 'node:http';
import { createInterface } from 'node:readline';
import type { z } from 'zod';
import { OnejobError } from '../errors.ts';
import { fromErrorView } from './http-errors.ts';
import type { ImageDesk } from './image-desk.ts';
import type { ImageOutcome } from './image-schema.ts';

export interface ImageCalls {
  readonly images: ImageDesk;
}

interface Call {
  readonly method: 'GET' | 'POST';
  readonly path: string;
  readonly body?: unknown;
  readonly patience?: number | null;
  readonly signal?: AbortSignal;
}

/** One request whose answer is of the schema that `load` gives. */
type Ask = <T extends z.ZodType>(load: () => Promise<T>, call: Call) => Promise<z.output<T>>;

/** How long an Engine may take over removing images, in ms. */
const slow = 600_000;

/** `open`: an answer that has begun well, unread. */
export function imageCalls(ask: Ask, open: (call: Call) => Promise<IncomingMessage>): ImageCalls {
  const schemas = () => import('./image-schema.ts');
  return {
    images: {
      list: (signal) => ask(async () => (await schemas()).imageList, { method: 'GET', path: '/v1/images', signal }),

      async make(what, pools, progress, signal) {
        const call = { method: 'POST', path: `/v1/images/${what}`, body: { pools }, patience: null, signal } as const;
        const response = await open(call);
        const { imageEvent } = await schemas();
        const outcomes: ImageOutcome[] = [];
        try {
          for await (const line of createInterface({ input: response })) {
            const event = imageEvent.parse(JSON.parse(line));
            if (event.kind === 'progress') progress(event.pool, event.line);
            else if (event.kind === 'done') outcomes.push(event.outcome);
            else if (event.kind === 'error') throw fromErrorView(event.error);
            else return outcomes;
          }
        } catch (error) {
          signal.throwIfAborted();
          throw error instanceof OnejobError ? error : cut(error);
        } finally {
          response.destroy();
        }
        signal.throwIfAborted();
        throw cut();
      },

      async prune(signal) {
        const call = { method: 'POST', path: '/v1/images/prune', patience: slow, signal } as const;
        return (await ask(async () => (await schemas()).prunedView, call)).removed;
      },
    },
  };
}

function cut(cause?: unknown): OnejobError {
  return new OnejobError('E_DAEMON_CUT', 'The daemon ended before the images were made.', {
    hint: 'Type the same again; what was built is kept.',
    retry: true,
    cause,
  });
}
