/** Devices of this host: what each is to jobs, what a person wants done with one, and the proofs there were. */
import type { FastifyInstance } from 'fastify';
import { z } from 'zod';
import { proofsAtMost, proofsListed, quarantineRequest, reserveRequest } from '../device-schema.ts';
import { checked, type RouteContext } from '../requests.ts';

/** A UUID or its beginning, an index or a PCI address. */
const byName = z.object({ device: z.string().min(1) });
const proofQuery = z.strictObject({
  device: z.string().min(1).nullable().default(null),
  limit: z.coerce.number().int().min(1).max(proofsAtMost).default(proofsListed),
});

export function deviceRoutes(app: FastifyInstance, { manager }: RouteContext): void {
  const named = (params: unknown) => checked(byName, params, 'path').device;

  app.get('/v1/devices', async () => manager.devices());

  app.post('/v1/devices/:device/reserve', async (request) =>
    manager.changeDevice(named(request.params), { act: 'reserve', ...checked(reserveRequest, request.body, 'request') }),
  );
  app.post('/v1/devices/:device/quarantine', async (request) =>
    manager.changeDevice(named(request.params), { act: 'quarantine', ...checked(quarantineRequest, request.body, 'request') }),
  );
  for (const act of ['return', 'clear', 'forget'] as const) {
    app.post(`/v1/devices/:device/${act}`, async (request) => manager.changeDevice(named(request.params), { act }));
  }

  app.get('/v1/proofs', async (request) => manager.proofs(checked(proofQuery, request.query, 'query')));
}
