/** What is put into a sandbox: no path and no variable twice, and nothing that must stay outside (S8). */
import type { Mount } from '../runtimes/runtime.ts';
import type { SecretReference } from '../secrets/reference.ts';
import type { Checking } from './check.ts';
import type { Config, PoolConfig } from './config.ts';
import type { Path } from './problem.ts';
import { formatPath } from './problem.ts';
import { pathProblem } from './volumes.ts';

export function checkMounts(pool: PoolConfig, checking: Checking): void {
  const { written, config, inPool, sound } = checking;
  if (!sound(pool, 'volumes', 'caches')) return;
  const volumes = (written.pools?.get(pool.name) ?? written.defaults).volumes?.length ?? 0;
  const paths = new Map<string, string>();
  const variables = new Map(Object.keys(pool.recipe.env).map((name) => [name, `env.${name}`]));
  for (const [index, mount] of pool.recipe.mounts.entries()) {
    const path: Path = index < volumes ? ['volumes', index] : ['caches', index - volumes];
    const other = paths.get(mount.container);
    if (other !== undefined) inPool(pool, path, `uses the container path ${mount.container} again; ${other} has it already`);
    paths.set(mount.container, formatPath(path));
    const setBy = mount.variable === null ? undefined : variables.get(mount.variable);
    if (setBy !== undefined) inPool(pool, path, `sets the variable ${mount.variable} again; ${setBy} has it already`);
    if (mount.variable !== null) variables.set(mount.variable, formatPath(path));
    const why = hostPathProblem(mount, config);
    if (why !== null) inPool(pool, path, why);
    else if (/^\/(var\/)?run\/docker\.sock$/.test(mount.host)) {
      inPool(pool, path, 'gives every job of the pool all rights over this host', 'warning');
    }
  }
  for (const container of Object.keys(pool.recipe.tmpfs)) {
    const path = ['tmpfs', container];
    const why = pathProblem(container);
    if (why !== null) inPool(pool, path, why);
    const other = paths.get(container);
    if (other !== undefined) inPool(pool, path, `uses the container path ${container} again; ${other} has it already`);
  }
}

/** Why no job may see this host path; null when it may. Holds for a pool's volumes and for those of a single job alike. */
export function hostPathProblem(mount: Pick<Mount, 'host'>, config: Config): string | null {
  for (const [key, secret] of secretsOf(config)) {
    if (secret.kind === 'file' && contains(mount.host, secret.path)) {
      return `would show jobs the secret file of ${key}, ${secret.path}; move the secret, or choose a narrower folder`;
    }
  }
  if (!contains(mount.host, config.stateDir) && !contains(config.stateDir, mount.host)) return null;
  return `shows jobs the state of onejob, because "state_dir" is ${config.stateDir}; choose another folder`;
}

/** Every secret of a config, with the key it stands at. */
export function secretsOf(config: Config): [string, SecretReference][] {
  const found: [string, SecretReference][] = config.secretsKey === null ? [] : [['secrets.key', config.secretsKey]];
  for (const service of config.services)
    if (service.type !== 'own-queue') found.push([`services.${service.name}.token`, service.token]);
  return found;
}

function contains(folder: string, path: string): boolean {
  return folder === '/' || path === folder || path.startsWith(`${folder}/`);
}
