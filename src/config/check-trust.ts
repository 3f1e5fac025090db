/** Checks how far a pool keeps jobs and credentials apart, and whether its trust rules can be kept. */
import type { Runtime } from '../ports/runtime.ts';
import { follow } from '../system/real-path.ts';
import type { Checking } from './checking.ts';
import type { PoolConfig, TrustConfig } from './config.ts';
import { engineSocketIn } from './host-places.ts';
import { hasImages } from './types.ts';

export function checkTrust(pool: PoolConfig, checking: Checking): void {
  const { config, sound, inPool } = checking;
  if (!sound(pool, 'trust')) return;
  const { trust, recipe } = pool;
  if (trust.network === 'none' || trust.network === 'host') {
    const why =
      trust.network === 'none'
        ? 'the agent of an untrusted job must reach the filter on this host'
        : 'an untrusted job could reach everything that listens on this host';
    inPool(pool, ['trust', 'network'], `is "${trust.network}", but ${why}; use "internet"`);
  }
  if (trust.image !== null && !hasImages(pool)) {
    inPool(pool, ['trust', 'image'], `is not used: "runtime" is ${pool.runtime}, which has no images`, 'warning');
  }
  if (trust.containers === 'allow' && recipe.containers === undefined && sound(pool, 'containers')) {
    inPool(pool, ['trust', 'containers'], 'is not used: the pool has no "containers: true"', 'warning');
  }
  const open = acceptedOutsiders(trust);
  if (open.length === 0) return;
  if (isOpenProcess(pool) && sound(pool, 'runtime', 'isolation')) {
    const how = `whose jobs can reach private networks, and this host if it lacks pasta, and untrusted jobs come in through ${quoted(open)}`;
    const help = `write ${closing(open)}, or runtime: docker, or accept the risk with "isolation: none"`;
    inPool(pool, ['runtime'], `is process, ${how}; ${help}`);
  }
  for (const { host, cache } of recipe.mounts) {
    if (cache === null && host.includes('{name}') && pool.agents === 'per-device' && follow(host).server !== null) {
      const why = '"agents" is per-device, so onejob cannot see beforehand where it leads';
      inPool(pool, ['volumes'], `contain ${host} on a file server, which untrusted jobs do not get: ${why}`, 'warning');
    }
    const real = config.places.get(host)?.real ?? host;
    if (cache !== null || !sound(pool, 'volumes') || (engineSocketIn(host) ?? engineSocketIn(real)) === null) continue;
    const how = `and untrusted jobs come in through ${quoted(open)}; write ${closing(open)}`;
    inPool(pool, ['volumes'], `contain ${host}, which lets a job do everything on this host, ${how}`);
  }
}

export type Outsider = 'forks' | 'others';

/** Whether it is a pool of processes, which have no network `internet`, that lets untrusted jobs in without `isolation: none`. */
export function isOpenProcess({ runtime, isolation, trust }: Pick<PoolConfig, 'runtime' | 'isolation' | 'trust'>): boolean {
  return runtime === 'process' && isolation === 'full' && acceptedOutsiders(trust).length > 0;
}

/** The keys that let untrusted jobs in. */
export function acceptedOutsiders(trust: TrustConfig): Outsider[] {
  return (['forks', 'others'] as const).filter((outsider) => trust[outsider] !== 'refuse');
}

function quoted(outsiders: readonly Outsider[]): string {
  return outsiders.map((outsider) => `"${outsider}"`).join(' and ');
}

function closing(outsiders: readonly Outsider[]): string {
  return `trust: { ${outsiders.map((outsider) => `${outsider}: refuse`).join(', ')} }`;
}

/** Why a pool must not get credentials of its CI service with this runtime (S8), as a reason for a pause; null when it may. */
export function isolationProblem(
  { service, isolation }: Pick<PoolConfig, 'service' | 'isolation'>,
  { name, capabilities }: Pick<Runtime, 'name' | 'capabilities'>,
): string | null {
  if (service === 'own' || isolation === 'none' || capabilities.holdsSecrets) return null;
  const why = capabilities.weaker === null ? '' : ` (${capabilities.weaker.replace(/\.$/, '')})`;
  const help = 'use "runtime: docker", or accept the risk with "isolation: none"';
  return `runtime ${name} cannot keep credentials of service ${service} from other jobs of this host${why}; ${help}`;
}
