/** Slurm as a type of runtime: what config holds of one. */

import { acceptedOutsiders } from '../../config/check-trust.ts';
import type { Checking } from '../../config/checking.ts';
import type { PoolConfig } from '../../config/config.ts';
import { slurmPoolKeys } from '../../config/keys.ts';
import type { RuntimeType } from '../../config/runtime-type.ts';
import type { ServiceType } from '../../config/service-type.ts';
import { complete } from '../../schema/key.ts';
import { isFromImage, keepsApart, poolOf, type SandboxKind, type SlurmConfig, type SlurmPool, slurmKeys } from './config.ts';

/** ms that an agent may need in addition to its job. */
const slack = 10 * 60_000;

export const slurm: RuntimeType<SlurmConfig> = {
  type: 'slurm',
  title: 'Slurm',
  keys: slurmKeys,
  needs: [],
  poolKeys: slurmPoolKeys,
  resolve(name, written) {
    const { node_folder: nodeFolder, ...rest } = complete(slurmKeys, written);
    return { type: 'slurm', name, nodeFolder, ...rest };
  },
  wants({ devices, timeout, standby, standbyMaxAge, written }) {
    const keys = poolOf(written);
    const longest = timeout === null ? null : timeout + slack + (standby ? standbyMaxAge : 0);
    return {
      gpus: typeof devices.count === 'number' ? devices.count : 0,
      model: devices.model,
      images: false,
      folders: true,
      lifetime: keys.time ?? longest,
      keys,
    };
  },
  checkPool(pool, runtime, checking, agent) {
    const { name } = runtime;
    const { sound, own, inPool } = checking;
    checkImage(pool, runtime, checking);
    const of = `"runtime" is ${name}, of type slurm`;
    if (sound(pool, 'service') && pool.service !== 'own') checkOfService(pool, name, checking, agent);
    if (sound(pool, 'agents') && pool.agents === 'per-device')
      inPool(pool, ['agents'], `is per-device, but ${of}, where "agents" is how many may exist at a time; write a number`);
    if (sound(pool, 'user') && pool.recipe.user !== null)
      inPool(pool, ['user'], `is set, but ${of}: jobs are of the user that onejob runs as; remove the key`);
    if (sound(pool, 'network') && pool.recipe.network !== 'default')
      inPool(pool, ['network'], `is "${pool.recipe.network}", but ${of}: jobs have the network of their node; remove the key`);
    for (const [at, { host, cache }] of pool.recipe.mounts.entries())
      if (cache !== null) {
        const what = cache.name === null ? host : cache.name;
        inPool(pool, ['caches', String(at)], `has ${what}, but ${of}: it has no caches; use a volume that the nodes share`);
      }
    if (own(pool, 'hold_failed') && pool.holdFailed !== null)
      inPool(pool, ['hold_failed'], `is not used: ${of}, which keeps no files of failed jobs`, 'warning');
  },
  open: async (config, parts) => (await import('./slurm.ts')).createSlurmRuntime({ config, ...parts }),
};

/** What keeps credentials of a CI service in the sandboxes of its own jobs. */
function checkOfService(pool: PoolConfig, name: string, { config, sound, inPool }: Checking, agent: ServiceType['agent']): void {
  const of = `"service" is ${pool.service}`;
  const open = config.pools.find((other) => other.runtime === name && !keepsApart(sandboxOf(other)));
  if (agent === 'in-image' && !isFromImage(sandboxOf(pool))) {
    const how = 'whose agent is part of an image: there would be no agent';
    const instead = 'write "sandbox: apptainer" or "sandbox: pyxis", and as "image" one that contains the agent';
    inPool(pool, ['slurm', 'sandbox'], `is "${sandboxOf(pool)}", but ${of}, ${how}; ${instead}`);
    return;
  }
  if (sandboxOf(pool) === 'none') {
    inPool(pool, ['slurm', 'sandbox'], `is "none", but ${of}, whose agent needs a sandbox; remove the key`);
    return;
  }
  if (open !== undefined && sound(pool, 'isolation') && pool.isolation === 'full') {
    const why = `of the same user, and pool ${open.name} has "sandbox: ${sandboxOf(open)}": its jobs could read the credentials of service ${pool.service}`;
    inPool(pool, ['isolation'], `is full, but jobs of ${name} are all ${why}; give up this protection with "isolation: none"`);
  }
  // Rules of "trust" are for services that say where a job comes from.
  if (
    config.origins.has(pool.service) &&
    sound(pool, 'trust') &&
    acceptedOutsiders(pool.trust).length > 0 &&
    pool.trust.network !== 'default'
  ) {
    const why = `is "${pool.trust.network}", but "runtime" is ${name}, of type slurm: untrusted jobs too have the network of their node`;
    inPool(
      pool,
      ['trust', 'network'],
      `${why}; write "default" to accept that, or keep them out with forks: refuse, others: refuse`,
    );
  }
}

/** The keys of "slurm" that belong together. */
function checkImage(pool: PoolConfig, { folder }: SlurmConfig, { inPool }: Checking): void {
  const sandbox = sandboxOf(pool);
  const { image } = keysOf(pool);
  if (isFromImage(sandbox) && image === undefined)
    inPool(pool, ['slurm', 'sandbox'], `is ${sandbox}, which makes a container from an image; add "image"`);
  if (!isFromImage(sandbox) && image !== undefined)
    inPool(pool, ['slurm', 'image'], `is not used: "sandbox" is ${sandbox}; write apptainer, podman or pyxis`, 'warning');
  if (sandbox === 'pyxis' && folder === null)
    inPool(pool, ['slurm', 'sandbox'], 'is pyxis, which needs a "folder" of the runtime that all nodes share');
}

function keysOf({ recipe }: Pick<PoolConfig, 'recipe'>): Partial<SlurmPool> {
  return recipe.wants?.keys ?? {};
}

function sandboxOf(pool: Pick<PoolConfig, 'recipe'>): SandboxKind {
  return keysOf(pool).sandbox ?? 'bubblewrap';
}
