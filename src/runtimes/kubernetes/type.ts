/** Kubernetes as a type of runtime: what config holds of one. */

import { acceptedOutsiders } from '../../config/check-trust.ts';
import type { Checking } from '../../config/checking.ts';
import type { PoolConfig } from '../../config/config.ts';
import { kubernetesPoolKeys } from '../../config/kubernetes-keys.ts';
import type { RuntimeType } from '../../config/runtime-type.ts';
import { complete } from '../../schema/key.ts';
import { completePool, guardedNetworks, type KubernetesConfig, type KubernetesPool, kubernetesKeys } from './config.ts';

/** ms that an agent may need in addition to its job. */
const slack = 10 * 60_000;
/** That of the cluster, and those that policies keep. */
const networks: readonly string[] = ['default', ...guardedNetworks];

export const kubernetes: RuntimeType<KubernetesConfig> = {
  type: 'kubernetes',
  title: 'Kubernetes',
  keys: kubernetesKeys,
  needs: [],
  poolKeys: kubernetesPoolKeys,
  resolve: (name, written) => ({ type: 'kubernetes', name, ...complete(kubernetesKeys, written) }),
  wants({ devices, timeout, standby, standbyMaxAge, written }) {
    return {
      gpus: typeof devices.count === 'number' ? devices.count : 0,
      model: devices.model,
      images: true,
      folders: false,
      lifetime: timeout === null ? null : timeout + slack + (standby ? standbyMaxAge : 0),
      keys: completePool(written),
    };
  },
  checkPool(pool, { name }, checking) {
    const { sound, own, inPool } = checking;
    const of = `"runtime" is ${name}, of type kubernetes`;
    const refuse = (key: string, is: string, instead: string): void => inPool(pool, [key], `${is}, but ${of}${instead}`);
    const { recipe } = pool;
    if (sound(pool, 'agents') && pool.agents === 'per-device')
      refuse('agents', 'is per-device', ', where "agents" is how many may exist at a time; write a number');
    if (pool.imageRecipe !== null)
      refuse('image', 'is to be built', ', which only runs images of a registry: write the name of one');
    if (sound(pool, 'user') && recipe.user !== null && !/^\d+(:\d+)?$/.test(recipe.user))
      refuse('user', `is ${recipe.user}`, ', which knows users by number: write "1000" or "1000:1000"');
    if (keysOf(pool).security === 'restricted' && /^0(:|$)/.test(recipe.user ?? ''))
      refuse('user', 'is root', ' with "security: restricted": write another number');
    if (sound(pool, 'network') && !networks.includes(recipe.network))
      refuse('network', `is "${recipe.network}"`, ': write "default", "internet" or "none"');
    if (recipe.mounts.some(({ cache }) => cache === null))
      refuse('volumes', 'has folders of this host', ': pods see none of them; use "claims" of "kubernetes"');
    if (recipe.mounts.some(({ cache }) => cache !== null))
      refuse('caches', 'has folders of this host', ': pods see none of them; use "claims" of "kubernetes"');
    if (recipe.ulimits.length > 0) refuse('ulimits', 'is set', ', which has no such limits; remove the key');
    if (own(pool, 'pids') && recipe.pids !== null)
      inPool(pool, ['pids'], `is not used: ${of}, whose nodes limit processes by themselves`, 'warning');
    if (own(pool, 'hold_failed') && pool.holdFailed !== null)
      inPool(pool, ['hold_failed'], `is not used: ${of}, which keeps no files of failed jobs`, 'warning');
    if (sound(pool, 'trust') && acceptedOutsiders(pool.trust).length > 0) checkUntrusted(pool, name, checking);
  },
  async open(config, { owner, clock }) {
    const [{ createKubernetesRuntime }, { accessOf }] = await Promise.all([import('./kubernetes.ts'), import('./kubeconfig.ts')]);
    return createKubernetesRuntime({ config, access: await accessOf(config, clock), owner, clock });
  },
};

/** Jobs of strangers. */
function checkUntrusted(pool: PoolConfig, name: string, { config, inPool }: Checking): void {
  // Rules of "trust" are for services that say where a job comes from.
  if (!config.origins.has(pool.service)) return;
  if (keysOf(pool).security !== 'restricted') {
    const why = `is not restricted, but the pool accepts untrusted jobs, and "runtime" is ${name}, of type kubernetes`;
    inPool(pool, ['kubernetes', 'security'], `${why}; write "restricted", or keep them out with forks: refuse, others: refuse`);
  }
  if (!networks.includes(pool.trust.network)) {
    const why = `is "${pool.trust.network}", but "runtime" is ${name}, of type kubernetes; write "internet"`;
    inPool(pool, ['trust', 'network'], `${why}, or "default" to let untrusted jobs reach the network of the cluster`);
  }
}

function keysOf({ recipe }: Pick<PoolConfig, 'recipe'>): Partial<KubernetesPool> {
  return recipe.wants?.keys ?? {};
}
