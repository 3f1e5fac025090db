/** A job's files on their way in: a tar stream, counted while it passes. */
import { pipeline, Transform } from 'node:stream';
import type { FastifyInstance } from 'fastify';
import { OnejobError } from '../../errors.ts';
import { type RouteContext, signalOf } from '../requests.ts';
import { workspaceLimit } from '../schema.ts';

export function workspaceRoutes(app: FastifyInstance, { manager, closing }: RouteContext): void {
  // In a context of its own, because here a body is not read by fastify but passed on.
  app.register(async (scope) => {
    scope.removeAllContentTypeParsers();
    scope.addContentTypeParser('*', (_request, payload, done) => done(null, payload));
    scope.put('/v1/workspaces', { bodyLimit: Number.MAX_SAFE_INTEGER }, async (request, reply) => {
      const signal = signalOf(reply, closing);
      const files = pipeline(request.raw, limited(workspaceLimit), () => {});
      try {
        return { id: await manager.putWorkspace(files, signal) };
      } catch (error) {
        // What the client still sends is read and dropped, so that it gets to see the answer.
        request.raw.resume();
        throw files.errored instanceof OnejobError ? files.errored : error;
      }
    });
  });
}

/** Passes on at most `limit` bytes. @throws OnejobError E_WORKSPACE_TOO_LARGE as the stream's error. */
export function limited(limit: number): Transform {
  let bytes = 0;
  return new Transform({
    transform(chunk: Uint8Array, _encoding, done) {
      bytes += chunk.length;
      if (bytes <= limit) return done(null, chunk);
      const size = `${Math.round(limit / 2 ** 30)} GiB`;
      done(
        new OnejobError('E_WORKSPACE_TOO_LARGE', `Cannot take the workspace: it is larger than ${size}.`, {
          hint: 'Name what the job does not need in .onejobignore, or use --no-workspace and --volume.',
        }),
      );
    },
  });
}
