/** Checks of services, and of pools that take their jobs from one. */
import { ownQueue } from '../ci/own-queue/type.ts';
import type { ServiceType } from '../ci/service-type.ts';
import { serviceType, serviceTypes, tellingOrigin, titlesWith } from '../ci/types.ts';
import type { Checking } from './checking.ts';
import type { PoolConfig } from './config.ts';
import { suggest } from './problem.ts';
import { mapIn } from './service-keys.ts';

export function checkPoolService(pool: PoolConfig, checking: Checking): void {
  const { config, written, sound, own, inPool } = checking;
  if (!sound(pool, 'service')) return;
  const known = ['own', ...Object.keys(written.top.services ?? {})];
  if (pool.service !== 'own' && !known.includes(pool.service)) {
    inPool(pool, ['service'], `"services" has no ${JSON.stringify(pool.service)}; ${suggest(pool.service, known)}`);
  }
  if (pool.service === 'own' && own(pool, 'queue')) {
    inPool(pool, ['queue'], 'is not used: "service" is the own queue, whose jobs ask for a pool by its name', 'warning');
  }
  const service = config.services.find((one) => one.name === pool.service);
  if (service !== undefined) serviceType(service.type).checkPool(pool, service, checking);
  // One that has a problem of its own may say all the same of which type it is.
  const found = pool.service === 'own' ? ownQueue.type : mapIn(written.top.services?.[pool.service]).type;
  const type = serviceTypes.find((one) => one.type === found);
  if (type !== undefined) checkUnused(pool, type, checking);
}

/** What only some services know. `defaults` may hold it for pools of others. */
function checkUnused(pool: PoolConfig, { poolKeys }: ServiceType, { own, inPool }: Checking): void {
  const of =
    pool.service === 'own' ? 'jobs of the own queue come from users of this host' : `service ${pool.service} does not tell it`;
  if (own(pool, 'trust') && !poolKeys.includes('trust'))
    inPool(pool, ['trust'], `is not used: it is about where jobs come from, and ${of}`, 'warning');
  for (const key of ['hooks', 'plugins'] as const) {
    if (own(pool, key) && pool[key] !== null && !poolKeys.includes(key))
      inPool(pool, [key], `is not used: only agents of ${titlesWith(key)} know ${key}`, 'warning');
  }
  if (own(pool, 'isolation') && pool.isolation === 'none' && pool.service === 'own') {
    inPool(pool, ['isolation'], 'is not used: the own queue has no credentials that a job could read', 'warning');
  }
}

export function checkServices(checking: Checking): void {
  const { config, at } = checking;
  for (const service of config.services) serviceType(service.type).check(service, checking);
  if (config.secretsKey !== null && tellingOrigin(config.services).size === 0) {
    const types = serviceTypes.filter(({ poolKeys }) => poolKeys.includes('trust')).map(({ type }) => type);
    at(['secrets', 'key'], `is not used: only jobs of a service of type ${types.join(' or ')} bring encrypted secrets`, 'warning');
  }
}
