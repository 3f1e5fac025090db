/** What of an Engine matters for the GPUs of its host, for `doctor`. */
import { systemClock } from '../../clock.ts';
import type { PoolConfig } from '../../config/config.ts';
import type { Clock } from '../../core/clock.ts';
import type { DockerSettings } from './endpoint.ts';
import { anyGrant, chooseGrant, type Way } from './grants.ts';
import { probeDocker, resolveEndpoint } from './probe.ts';

/** As `EngineFacts` of `src/gpu/doctor.ts`. */
export interface EngineFacts {
  readonly version: string;
  readonly cgroupDriver: string | null;
  readonly way: Way | null;
}

/**
 * Of the Engine that gives these pools their devices. null when none has to, none answers, or the one that does is not on this
 * host. Never throws but when `signal` aborts.
 */
export async function engineFacts(
  pools: readonly Pick<PoolConfig, 'devices' | 'runtime' | 'recipe'>[],
  environment: DockerSettings,
  signal: AbortSignal,
  clock: Clock = systemClock,
): Promise<EngineFacts | null> {
  const [pool] = pools.filter(({ devices, runtime }) => devices.count !== 0 && runtime !== 'process');
  if (pool === undefined) return null;
  const setting = pool.recipe.grant.way;
  const endpoint = await resolveEndpoint(environment).catch(() => null);
  const probe = endpoint === null ? null : await probeDocker(endpoint, signal, clock);
  if (probe === null || !probe.reachable || !probe.local) return null;
  const { info, version } = probe.told;
  const { way } = chooseGrant(info, version, { ...anyGrant, setting });
  return { version: probe.version, cgroupDriver: info.CgroupDriver ?? null, way };
}
