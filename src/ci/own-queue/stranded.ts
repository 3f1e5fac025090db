/** Jobs that wait in pools which the config no longer has. */
import { quoted } from '../../base/quoted.ts';

export interface StrandedJobs {
  /** Names of the pools that take jobs of the own queue. */
  readonly pools: ReadonlySet<string>;
  /** Jobs that wait, also for others, by pool. */
  readonly waiting: ReadonlyMap<string, number>;
}

/** What a person can type about the jobs of a pool that is gone. */
export function strandedHint(pool: string, pools: ReadonlySet<string>): string {
  const [only = 'POOL'] = pools.size === 1 ? pools : [];
  const cancel = `"onejob cancel --waiting --pool ${quoted(pool)}"`;
  return pools.size === 0
    ? `Type ${cancel}.`
    : `Type "onejob move --waiting --pool ${quoted(pool)} --to ${quoted(only)}", or ${cancel}.`;
}
