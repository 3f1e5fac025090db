/** The own queue as a type of service: config may give it a name of its own. */
import type { ServiceType } from '../service-type.ts';

export const ownQueue: ServiceType<{ readonly name: string; readonly type: 'own-queue' }> = {
  type: 'own-queue',
  title: 'the own queue',
  agent: null,
  poolKeys: [],
  defaults: {},
  init: null,
  schema: async () => ({ keys: (await import('zod')).z.strictObject({}), maps: {}, needs: [] }),
  resolve: (name) => ({ name, type: 'own-queue' }),
  secrets: () => [],
  check() {},
  checkPool() {},
};
