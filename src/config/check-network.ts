/**
 * Whose jobs may be in the network of the host. Such a job can listen at the host's addresses, and so answer in the place of onejob: of
 * the filter, through which other jobs talk to their service and get their secrets. An open port does not say who answers.
 */
import type { Runtime } from '../ports/runtime.ts';
import type { Checking } from './checking.ts';
import type { Config, PoolConfig } from './config.ts';

type Together = Pick<Config, 'pools' | 'origins'>;

/** Pools that are written to share the network of a host on which jobs go through the filter. */
export function checkNetworks({ config, sound, inPool }: Checking): void {
  for (const pool of config.pools) {
    if (pool.recipe.network !== 'host' || !sound(pool, 'network', 'service')) continue;
    const why = whyApart(pool, config);
    if (why !== null) inPool(pool, ['network'], `is "host", but ${why}; write "default", or move one of them to another host`);
  }
}

/** Why a pool must start nothing with this runtime, as a reason for a pause; null when it may. */
export function networkProblem(
  pool: Pick<PoolConfig, 'name' | 'service' | 'recipe'>,
  together: Together,
  { capabilities: { hostNetwork } }: Pick<Runtime, 'capabilities'>,
): string | null {
  if (hostNetwork === null || pool.recipe.network === 'none') return null;
  const why = whyApart(pool, together);
  if (why === null) return null;
  const help = 'install both (apt-get install bubblewrap passt), or use "runtime: docker"';
  return `its jobs would share the network of this host (${hostNetwork.replace(/\.$/, '')}), but ${why}; ${help}`;
}

function whyApart(pool: Pick<PoolConfig, 'name' | 'service'>, { pools, origins: filtered }: Together): string | null {
  const other = pools.find(({ service }) => filtered.has(service));
  if (other === undefined) return null;
  const whose = filtered.has(pool.service) ? `jobs of service ${pool.service}` : `jobs of pool ${other.name}`;
  return `${whose} reach their service through a filter on this host, and a job in its network could answer in the place of that`;
}
