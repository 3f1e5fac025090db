/** A job's files on their way in: a tar stream, counted while it passes. */
import { pipeline, Transform } from 'node:stream';
import { OnejobError } from '../errors.ts';
import type { Manager } from './manager.ts';
import type { Routes } from './requests.ts';
import { workspaceLimit } from './schema.ts';

export function workspaceRoutes(manager: Manager): Routes {
  return {
    async 'PUT /v1/workspaces'({ request, signal }) {
      const files = pipeline(request, limited(workspaceLimit), () => {});
      try {
        return { id: await manager.putWorkspace(files, signal) };
      } catch (error) {
        throw files.errored instanceof OnejobError ? files.errored : error;
      }
    },
  };
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
