/** Images that onejob builds: which there are, making them, removing what is not used. */
import { PassThrough } from 'node:stream';
import type { FastifyInstance } from 'fastify';
import { toErrorView } from '../http-errors.ts';
import type { ImageDesk } from '../image-desk.ts';
import { type ImageEvent, imageRequest } from '../image-schema.ts';
import { checked, signalOf } from '../requests.ts';

export function imageRoutes(app: FastifyInstance, images: ImageDesk, closing: AbortSignal): void {
  app.get('/v1/images', async (_request, reply) => images.list(signalOf(reply, closing)));

  app.post('/v1/images/prune', async (_request, reply) => ({ removed: await images.prune(signalOf(reply, closing)) }));

  for (const what of ['build', 'refresh'] as const) {
    app.post(`/v1/images/${what}`, async (request, reply) => {
      const { pools } = checked(imageRequest, request.body, 'request');
      const signal = signalOf(reply, closing);
      const body = new PassThrough();
      const send = (event: ImageEvent) => void body.write(`${JSON.stringify(event)}\n`);
      images
        .make(what, pools, (pool, line) => send({ kind: 'progress', pool, line }), signal)
        .then(
          (outcomes) => {
            for (const outcome of outcomes) send({ kind: 'done', outcome });
            send({ kind: 'end' });
          },
          (error: unknown) => {
            // What ends because nobody waits for it, or because the daemon does, is no failure: the client knows better.
            if (!signal.aborted) send({ kind: 'error', error: toErrorView(error) });
          },
        )
        .finally(() => body.end());
      return reply.type('application/x-ndjson').send(body);
    });
  }
}
