/** The own queue as a type of service: config may give it a name of its own. */
import type { ServiceType } from '../../config/service-type.ts';

export const ownQueue: ServiceType<{ readonly name: string; readonly type: 'own-queue' }> = {
  type: 'own-queue',
  title: 'the own queue',
  agent: null,
  poolKeys: [],
  keys: {},
  maps: {},
  needs: [],
  resolve: (name) => ({ name, type: 'own-queue' }),
  secrets: () => [],
  check() {},
  checkPool() {},
};
