/** Checks across keys. Each problem stands at one key and names the other, and says what would go wrong. */
import { checkDevices, checkPartition, checkRepair } from './check-devices.ts';
import { checkImage } from './check-image.ts';
import { checkMounts } from './check-mounts.ts';
import { checkNames } from './check-names.ts';
import { checkPoolService, checkServices } from './check-services.ts';
import type { Checking } from './checking.ts';
import type { Config, PoolConfig } from './config.ts';
import type { HostFacts } from './environment.ts';
import type { Path, Place, Problem } from './problem.ts';
import { formatPath, suggest } from './problem.ts';
import { formatSize } from './units.ts';
import type { Written } from './written.ts';

/** Where things are written, as `Combined` knows it. */
export interface Writing {
  has(path: Path): boolean;
  locate(path: Path, at?: 'key' | 'value'): Place;
}

export function checkAcross(config: Config, written: Written, writing: Writing, host: HostFacts | null): Problem[] {
  const problems: Problem[] = [];
  const at: Checking['at'] = (path, message, level = 'error') => {
    problems.push({ ...writing.locate(path, 'key'), level, key: formatPath(path), message });
  };
  const checking: Checking = {
    config,
    written,
    host,
    sound: (pool, ...keys) =>
      !keys.some((key) => written.broken.has(`pools.${pool.name}.${key}`) || written.broken.has(`defaults.${key}`)),
    own: (pool, key) => writing.has(['pools', pool.name, key]),
    inPool(pool, path, message, level = 'error') {
      const own = ['pools', pool.name, ...path];
      const shared = ['defaults', ...path];
      const place = !writing.has(own) && writing.has(shared) ? writing.locate(shared) : writing.locate(own);
      problems.push({ ...place, level, key: formatPath(own), message });
    },
    at,
  };
  if (written.pools?.size === 0) at(['pools'], 'is empty: onejob would run nothing; write a pool, or remove the key');
  for (const pool of config.pools) {
    checkPoolService(pool, checking);
    checkDevices(pool, checking);
    checkRecipe(pool, checking);
    checkImage(pool, checking);
    checkMounts(pool, checking);
  }
  checkServices(checking);
  checkNames(checking);
  checkPartition(checking);
  checkRepair(checking);
  checkSums(checking);
  return problems;
}

const limits = 'core cpu data fsize locks memlock msgqueue nice nofile nproc rss rtprio rttime sigpending stack'.split(' ');

function checkRecipe(pool: PoolConfig, { written, sound, own, inPool }: Checking): void {
  const { recipe, imageRecipe } = pool;
  if (sound(pool, 'image') && imageRecipe !== null) {
    if (imageRecipe.base === null && imageRecipe.dockerfile === null) {
      inPool(pool, ['image'], 'has neither "base" nor "dockerfile": there is nothing to build on');
    } else if (imageRecipe.base !== null && imageRecipe.dockerfile !== null) {
      inPool(pool, ['image', 'base'], 'and "dockerfile" are both given: a Dockerfile names its own base; remove one of the two');
    }
  }
  const image = own(pool, 'image') ? written.pools?.get(pool.name)?.image : undefined;
  if (typeof image === 'object' && image.base !== 'auto') {
    for (const key of ['flavour', 'distribution'] as const) {
      if (image[key] !== undefined) inPool(pool, ['image', key], 'is not used: "base" is not auto', 'warning');
    }
  }
  if (pool.runtime === 'process' && own(pool, 'image')) {
    inPool(pool, ['image'], 'is not used: "runtime" is process, which has no images', 'warning');
  }
  if (sound(pool, 'shm_size', 'memory') && recipe.shmSize !== null && recipe.memory !== null && recipe.shmSize > recipe.memory) {
    const [shm, memory] = [formatSize(recipe.shmSize), formatSize(recipe.memory)];
    inPool(pool, ['shm_size'], `is ${shm}, more than "memory" with ${memory}: a job that filled it would be ended`);
  }
  for (const { name, soft, hard } of recipe.ulimits) {
    if (!limits.includes(name)) inPool(pool, ['ulimits', name], `unknown limit; ${suggest(name, limits)}`);
    const above = hard !== -1 && (soft === -1 || soft > hard);
    if (above) inPool(pool, ['ulimits', name], `"soft" is above "hard": the sandbox would not start`);
  }
  const { env = {}, cpu_env: cpuVariable } = written.pools?.get(pool.name) ?? written.defaults;
  if (typeof cpuVariable === 'string' && sound(pool, 'cpu_env', 'env', 'cpus')) {
    if (Object.hasOwn(env, cpuVariable)) {
      inPool(pool, ['cpu_env'], `is ${cpuVariable}, which "env" sets too: only one of them can hold; remove the other`);
    } else if (recipe.cpus === null) {
      inPool(pool, ['cpu_env'], `is ${cpuVariable}, but "cpus" is not set: there is no number to put into it; write both`);
    } else if (cpuVariable.startsWith('ONEJOB_')) {
      inPool(pool, ['cpu_env'], 'names that begin with ONEJOB_ are set by onejob itself');
    }
  }
  for (const [key, value] of Object.entries(env)) {
    const path = ['env', key];
    if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(key))
      inPool(pool, path, 'is no name of a variable: letters, digits and "_", not a digit first');
    else if (key.startsWith('ONEJOB_')) inPool(pool, path, 'names that begin with ONEJOB_ are set by onejob itself');
    if (/^SECRET_./.test(key) && pool.service !== 'own') {
      inPool(
        pool,
        path,
        'goes into every job of the pool as it is: encrypted values are opened only where a pipeline brings them; take it out of this file',
        'warning',
      );
    } else if (looksSecret(key) && value !== '') {
      inPool(pool, path, 'looks like a secret: every job of the pool can read it, and so can who reads this file', 'warning');
    }
  }
}

function looksSecret(name: string): boolean {
  return /(^|_)(TOKEN|PASSWORD|PASSWD|SECRET|PRIVATE_KEY|API_KEY|ACCESS_KEY)$/i.test(name);
}

function checkSums({ config, host, at }: Checking): void {
  if (host === null) return;
  let cpus = 0;
  let memory = 0;
  for (const { agents, recipe } of config.pools) {
    const slots = agents === 'per-device' ? 1 : agents;
    cpus += slots * (recipe.cpus ?? 0);
    memory += slots * (recipe.memory ?? 0);
  }
  if (cpus > host.cpus) {
    at(
      ['pools'],
      `"cpus" and "agents" add up to ${Number(cpus.toFixed(2))} CPUs, this host has ${host.cpus}: jobs would slow each other down`,
      'warning',
    );
  }
  if (memory > host.memory) {
    const gib = (bytes: number) => `${(bytes / 2 ** 30).toFixed(1)}GiB`;
    at(
      ['pools'],
      `"memory" and "agents" add up to ${gib(memory)}, this host has ${gib(host.memory)}: the kernel may end jobs`,
      'warning',
    );
  }
}
