/** What is there, what would be done next, and what is wrong. */
import type { FastifyInstance } from 'fastify';
import { type RouteContext, signalOf } from '../requests.ts';

export function statusRoutes(app: FastifyInstance, { manager, closing }: RouteContext): void {
  app.get('/v1/status', async () => manager.status());
  app.get('/v1/plan', async () => manager.plan());
  app.get('/v1/doctor', async (_request, reply) => manager.doctor(signalOf(reply, closing)));
}
