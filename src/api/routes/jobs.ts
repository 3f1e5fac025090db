/** Jobs: list and wait for those of every CI service; hand in, cancel and take the artifacts of those of the own queue. */
import type { FastifyInstance } from 'fastify';
import { z } from 'zod';
import { OnejobError } from '../../errors.ts';
import { checked, knownJob, type RouteContext, signalOf, stopping } from '../requests.ts';
import { jobRequest, pruneRequest } from '../schema.ts';

const byId = z.object({ id: z.string() });
const listQuery = z.strictObject({
  all: z.enum(['true', 'false']).default('false'),
  pool: z.string().nullable().default(null),
  limit: z.coerce.number().int().min(1).max(1_000_000).optional(),
});

/** A list of thousands of jobs is megabytes, kept until it was read: so many are, each for so many ms. */
const listsAtOnce = 16;
const listPatience = 60_000;

export function jobRoutes(app: FastifyInstance, { manager, closing }: RouteContext): void {
  app.post('/v1/jobs', async (request, reply) => {
    const job = manager.submit(checked(jobRequest, request.body, 'job'));
    return reply.status(201).send(job);
  });

  // For whoever has a workspace to send first: what is refused should be so before gigabytes were sent.
  app.post('/v1/jobs/check', async (request, reply) => {
    manager.verify(checked(jobRequest, request.body, 'job'));
    return reply.status(204).send();
  });

  let unread = 0;
  app.get('/v1/jobs', async (request, reply) => {
    const { all, pool, limit } = checked(listQuery, request.query, 'query');
    if (unread >= listsAtOnce) throw busy();
    if (!request.raw.socket.destroyed) {
      unread += 1;
      const late = setTimeout(() => reply.raw.destroy(), listPatience).unref();
      reply.raw.once('close', () => {
        unread -= 1;
        clearTimeout(late);
      });
    }
    return manager.jobs({ all: all === 'true', pool, limit });
  });

  app.post('/v1/jobs/prune', async (request) => manager.pruneJobs(checked(pruneRequest, request.body, 'body')));

  app.get('/v1/jobs/:id', async (request) => knownJob(manager, checked(byId, request.params, 'path').id));

  app.get('/v1/jobs/:id/settled', async (request, reply) => {
    const { id } = knownJob(manager, checked(byId, request.params, 'path').id);
    try {
      return await manager.settled(id, signalOf(reply, closing));
    } catch (error) {
      throw closing.aborted ? stopping() : error;
    }
  });

  app.post('/v1/jobs/:id/cancel', async (request) =>
    manager.cancel(knownJob(manager, checked(byId, request.params, 'path').id).id),
  );

  app.get('/v1/jobs/:id/artifacts', async (request, reply) => {
    const { id } = knownJob(manager, checked(byId, request.params, 'path').id);
    const files = manager.artifacts(id);
    if (files === null) return reply.status(204).send();
    return reply.type('application/x-tar').send(files);
  });
}

function busy(): OnejobError {
  return new OnejobError('E_API_BUSY', `Cannot list jobs: ${listsAtOnce} lists of them are being read just now.`, {
    hint: 'Try again in a minute.',
    retry: true,
  });
}
