/** The kinds of sandboxes that a pool's jobs run in: its own, and that of untrusted jobs where it differs in what an agent meets. */
import { openDoors } from '../../config/check-trust.ts';
import type { PoolConfig } from '../../config/config.ts';
import type { Recipe } from '../../runtimes/runtime.ts';
import type { Trial, TrialSandbox } from '../trial.ts';
import { untrustedRecipe } from './recipe-class.ts';

/** Whether jobs that are not trusted may run in it. */
export function isOpenToUntrusted({ trust }: Pick<PoolConfig, 'trust'>): boolean {
  return openDoors(trust).length > 0;
}

export interface SandboxClass {
  readonly pool: PoolConfig;
  /** For people: `agents of pool gpu`, `untrusted jobs of pool gpu`. */
  readonly whose: string;
  /** null: there is nothing yet that it could be made from. */
  readonly sandbox: TrialSandbox | null;
  /** Its agents speak to the service through the filter. */
  readonly isUntrusted: boolean;
  /** Its programs are those of the pool's own, which are looked at there. */
  readonly isSameInside: boolean;
  /** That, and its network, is the pool's own: what keeps one from being made keeps both. */
  readonly isSame: boolean;
}

export function classesOf(pools: readonly PoolConfig[], trial: Trial, stateDir: string): SandboxClass[] {
  return pools.flatMap((pool) => {
    const own: SandboxClass = {
      pool,
      whose: `agents of pool ${pool.name}`,
      sandbox: trial.like(pool.name),
      isUntrusted: false,
      isSameInside: false,
      isSame: false,
    };
    if (!isOpenToUntrusted(pool)) return [own];
    const change = (recipe: Recipe): Recipe => untrustedRecipe(recipe, pool, null, stateDir);
    const other = trial.like(pool.name, change);
    const [mine, its] = [own.sandbox?.recipe, other?.recipe];
    const isSameInside = mine?.image === its?.image;
    const isSame = isSameInside && mine?.network === its?.network;
    if (other === null && own.sandbox === null) return [own];
    return [own, { pool, whose: `untrusted jobs of pool ${pool.name}`, sandbox: other, isUntrusted: true, isSameInside, isSame }];
  });
}
