/** Which pipelines may use encrypted values that are bound to none themselves. */
import type { FastifyInstance } from 'fastify';
import { z } from 'zod';
import { checked } from '../requests.ts';
import type { SecretDesk } from '../secret-desk.ts';
import { allowRequest, fingerprintText, forgetRequest } from '../secret-schema.ts';

const byFingerprint = z.object({ fingerprint: fingerprintText });

export function secretRoutes(app: FastifyInstance, secrets: SecretDesk): void {
  const named = (params: unknown) => checked(byFingerprint, params, 'path').fingerprint;

  app.get('/v1/secret-pins', async () => secrets.pins());
  app.post('/v1/secret-pins/:fingerprint/allow', async (request) =>
    secrets.allow(named(request.params), checked(allowRequest, request.body, 'request').pipelines),
  );
  app.post('/v1/secret-pins/:fingerprint/forget', async (request) =>
    secrets.forget(named(request.params), checked(forgetRequest, request.body, 'request').pipeline),
  );
}
