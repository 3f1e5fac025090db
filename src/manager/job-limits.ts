/** The limits that a job has or had, as far as they are certain. Pure. */

import type { PoolConfig } from '../config/config.ts';
import type { JobView } from '../contract/schema.ts';

export type Limits = NonNullable<JobView['limits']>;

export interface LimitFacts {
  readonly job: Pick<JobView, 'state' | 'startedAt'>;
  /** What the job asked for itself; null: nothing is known of that, as its service keeps it. */
  readonly own: { readonly memory: number | null; readonly cpus: number | null; readonly timeout: number | null } | null;
  /** Its pool as it is now; null: config has it no more. `poolTimeout`: as in `CiCapabilities`. */
  readonly pool: {
    readonly config: Pick<PoolConfig, 'timeout'> & { readonly recipe: Pick<PoolConfig['recipe'], 'memory' | 'cpus'> };
    readonly poolTimeout: boolean;
  } | null;
  /** Since when config is as it is now; wall clock, ms. */
  readonly since: number;
}

/** What is not certain is left out: the config of a job that began before may have been another one. */
export function limitsOf({ job, own, pool, since }: LimitFacts): Limits {
  const isNow = job.startedAt === null ? job.state !== 'done' : job.startedAt >= since;
  const known = pool === null || !isNow ? null : pool;
  const one = (asked: number | null | undefined, of: (found: NonNullable<typeof known>) => number | null) =>
    asked ?? (known === null ? undefined : of(known));
  const memory = one(own?.memory, ({ config }) => config.recipe.memory);
  const cpus = one(own?.cpus, ({ config }) => config.recipe.cpus);
  const timeout = one(own?.timeout, ({ config, poolTimeout }) => (poolTimeout ? config.timeout : null));
  return {
    ...(memory !== undefined && { memory }),
    ...(cpus !== undefined && { cpus }),
    // A service may have a time limit of its own, of which nobody here knows.
    ...(timeout !== undefined && !(pool?.poolTimeout === false && timeout === null) && { timeout }),
  };
}
