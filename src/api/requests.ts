/** What routes share: checked input, a signal that follows the client, an answer given while waiting. */
import type { FastifyReply } from 'fastify';
import type { z } from 'zod';
import { OnejobError } from '../errors.ts';
import type { Manager } from './manager.ts';
import type { JobView } from './schema.ts';

/** What the routes need. `closing` aborts when the server closes. */
export interface RouteContext {
  readonly manager: Manager;
  readonly closing: AbortSignal;
}

/** @throws OnejobError E_API_REQUEST naming every problem with its path. */
export function checked<T extends z.ZodType>(schema: T, input: unknown, what: string): z.output<T> {
  const result = schema.safeParse(input ?? {});
  if (result.success) return result.data;
  const problems = result.error.issues.map((issue) => {
    const path = issue.path.map(String).join('.');
    return path === '' ? issue.message : `${path}: ${issue.message}`;
  });
  throw new OnejobError('E_API_REQUEST', `Cannot read the ${what}: ${problems.join('; ')}.`);
}

/** Aborts when the client has gone or the server closes; the work for this answer then has nobody to go to. */
export function signalOf(reply: FastifyReply, closing: AbortSignal): AbortSignal {
  const gone = new AbortController();
  reply.raw.once('close', () => gone.abort());
  return AbortSignal.any([gone.signal, closing]);
}

/** @throws OnejobError E_JOB_UNKNOWN */
export function knownJob(manager: Manager, id: string): JobView {
  const job = manager.job(id);
  if (job !== null) return job;
  throw new OnejobError('E_JOB_UNKNOWN', `There is no job ${id}.`, { hint: 'List jobs with "onejob jobs --all".' });
}

export function stopping(): OnejobError {
  return new OnejobError('E_DAEMON_STOPPING', 'The daemon is stopping.', {
    hint: 'Try again once it is back.',
    retry: true,
  });
}
