/**
 * What `doctor` says of homes that outlive jobs. Programs run what they find there: start-up files, settings of SSH, tools in a
 * `bin` folder. What one job leaves there runs in the next one, before that job's own script, with its secrets.
 */
import type { PoolConfig } from '../../config/config.ts';
import type { Finding } from '../../runtimes/runtime.ts';

/** Of pools whose trusted jobs have secrets. One pipeline can do to itself whatever it likes. */
export function homesAmong(pool: PoolConfig): Finding[] {
  const { pipelines } = pool.trust;
  const isOne = pipelines?.length === 1 && !/[*?{}()[\]|]/.test(pipelines[0] ?? '');
  if (isOne) return [];
  return pool.recipe.mounts
    .filter(({ container, readOnly }) => !readOnly && isHome(container, pool))
    .map(({ container, cache }) => ({
      level: 'warning' as const,
      subject: `pool ${pool.name}`,
      message: `${container} is a home and outlives jobs ("${cache === null ? 'volumes' : 'caches'}"): what a job of one pipeline leaves there runs in the next one of another, with its secrets.`,
      hint: 'Keep folders of it instead, such as "depot:/root/.julia", or give each pipeline a pool of its own with "trust: { pipelines: [ORGANISATION/PIPELINE] }".',
    }));
}

/** Of its user, or of any: which one an image chooses is not known. */
function isHome(container: string, { recipe }: Pick<PoolConfig, 'recipe'>): boolean {
  return /^\/(root|home(\/[^/]+)?)$/.test(container) || container === recipe.env.HOME;
}
