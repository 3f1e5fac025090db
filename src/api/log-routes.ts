/** Output of a job, an agent, or whoever works in a slot, or what such an agent logs itself, as frames (see `frames.ts`). */
import { Readable } from 'node:stream';
import { z } from 'zod';
import type { Counts } from '../logs/gap.ts';
import { lastLines, skip } from '../logs/select.ts';
import { beginFrame, endFrame, errorFrame, pieceFrames } from './frames.ts';
import { toErrorView } from './http-errors.ts';
import type { LogPiece, LogSource, Manager } from './manager.ts';
import { checked, type Routes } from './requests.ts';

const flag = z
  .enum(['true', '1', 'false', '0'])
  .default('false')
  .transform((text) => text === 'true' || text === '1');
const logQuery = z
  .strictObject({
    job: z.string().optional(),
    agent: z.string().optional(),
    slot: z.string().optional(),
    previous: flag,
    follow: flag,
    /** The logs that the agent itself keeps, instead of its output. */
    own: flag,
    /** Bytes of each stream that the client has already, or knows to be missing. */
    stdout: z.coerce.number().int().min(0).default(0),
    stderr: z.coerce.number().int().min(0).default(0),
    /** Only so many of the last lines of what there is so far. */
    tail: z.coerce.number().int().min(0).max(1_000_000).optional(),
  })
  .refine(
    (each) => [each.job, each.agent, each.slot].filter((id) => id !== undefined).length === 1,
    'name one of job, agent and slot',
  );

export function logRoutes(manager: Manager): Routes {
  return {
    'GET /v1/logs'({ query, signal, response }) {
      const asked = checked(logQuery, query, 'query');
      const source = sourceOf(asked);
      const read = (follow: boolean) => (asked.own ? manager.agentLogs(source, signal) : manager.logs(source, { follow }, signal));
      const pieces = asked.tail === undefined ? read(asked.follow) : lastLines(read, asked.tail, asked.follow);
      response.setHeader('content-type', 'application/octet-stream');
      return Readable.from(frames(pieces, asked, signal), { objectMode: false });
    },
  };
}

function sourceOf(asked: z.output<typeof logQuery>): LogSource {
  if (asked.job !== undefined) return { job: asked.job };
  if (asked.agent !== undefined) return { agent: asked.agent };
  return { slot: asked.slot ?? '', previous: asked.previous };
}

async function* frames(pieces: AsyncIterable<LogPiece>, from: Counts, signal: AbortSignal): AsyncGenerator<Buffer> {
  try {
    // Something, so that the answer begins at once: a job may wait for hours before its first output.
    yield beginFrame();
    for await (const piece of skip(pieces, from)) yield* pieceFrames(piece);
    // An aborted source may end like a finished one; without an end frame the client knows better.
    if (!signal.aborted) yield endFrame();
  } catch (error) {
    if (!signal.aborted) yield errorFrame(JSON.stringify(toErrorView(error)));
  }
}
