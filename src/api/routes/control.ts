/** What a person does to the daemon: pause, resume, drain, stop; and holding a temporary one open. */
import { PassThrough } from 'node:stream';
import type { FastifyInstance } from 'fastify';
import { z } from 'zod';
import { checked, type RouteContext, signalOf, stopping } from '../requests.ts';
import { downRequest, pauseRequest } from '../schema.ts';

const byPool = z.object({ pool: z.string().nullable().default(null) });

export function controlRoutes(app: FastifyInstance, { manager, closing }: RouteContext): void {
  const pool = (params: unknown) => checked(byPool, params, 'path').pool;
  for (const path of ['/v1', '/v1/pools/:pool']) {
    app.post(`${path}/pause`, async (request, reply) => {
      manager.pause(pool(request.params), checked(pauseRequest, request.body, 'request').reason);
      return reply.status(204).send();
    });
    app.post(`${path}/resume`, async (request) =>
      manager.resume(pool(request.params), checked(pauseRequest, request.body, 'request').reason),
    );
    app.post(`${path}/drain`, async (request, reply) => {
      manager.drain(pool(request.params));
      return reply.status(204).send();
    });
  }

  app.post('/v1/down', async (request, reply) => {
    manager.down(checked(downRequest, request.body, 'request'));
    return reply.status(202).send();
  });

  app.get('/v1/forgotten', async (_request, reply) => {
    try {
      return await manager.forgotten(signalOf(reply, closing));
    } catch (error) {
      throw closing.aborted ? stopping() : error;
    }
  });

  // The answer begins at once and ends with the daemon or the client, whichever is first.
  app.get('/v1/hold', async (_request, reply) => {
    const release = manager.hold();
    const body = new PassThrough();
    body.write('\n');
    const signal = signalOf(reply, closing);
    const end = () => {
      release();
      body.end();
    };
    if (signal.aborted) end();
    else signal.addEventListener('abort', end, { once: true });
    return reply.send(body);
  });
}
