/** Agent names: each slot of this host has its own, and every runtime and CI service can carry it. */

import { untrustedFolder } from './caches.ts';
import type { Checking } from './checking.ts';
import type { PoolConfig } from './config.ts';
import { countsSlots, expandName, templateProblem } from './template.ts';
import { isNamed } from './volumes.ts';

/** A name is also a host name: https://man7.org/linux/man-pages/man7/hostname.7.html allows 64, Docker 63. */
const longest = 63;

export function checkNames({ config, sound, inPool }: Checking): void {
  const taken = new Map<string, PoolConfig>();
  for (const pool of config.pools) {
    if (!sound(pool, 'name', 'agents') || templateProblem(pool.agentName) !== null) continue;
    const slots = pool.agents === 'per-device' ? 1 : pool.agents;
    const written = JSON.stringify(pool.agentName);
    if (!countsSlots(pool.agentName) && (pool.agents === 'per-device' || pool.agents > 1)) {
      inPool(
        pool,
        ['name'],
        `${written} gives all slots of the pool the same name, but "agents" is ${pool.agents}; add {n} or {1..}`,
      );
      continue;
    }
    for (let n = 1; n <= slots; n++) {
      const name = expandName(pool.agentName, { host: config.host, pool: pool.name, n });
      const other = taken.get(name);
      if (name.length > longest) {
        inPool(pool, ['name'], `${written} becomes ${JSON.stringify(name)}, which has more than ${longest} characters`);
        break;
      }
      if (name === untrustedFolder && pool.recipe.mounts.some(({ cache }) => isNamed(cache))) {
        inPool(pool, ['name'], `is ${name}, which is what the folder with the caches of untrusted jobs is called; choose another`);
        break;
      }
      if (other !== undefined) {
        const both = `pools.${other.name} and pools.${pool.name}`;
        inPool(
          pool,
          ['name'],
          `${written} gives a slot the name ${JSON.stringify(name)}, which another one has: ${both} must differ`,
        );
        break;
      }
      taken.set(name, pool);
    }
  }
}
