/** Why jobs end whose agents do not report it, in words for their pages and logs. */

import { formatDuration, formatSize } from '../../base/units.ts';
import type { PoolConfig } from '../../config/config.ts';
import type { JobResult, StopReason } from '../../core/slot.ts';

/**
 * Why a job was lost whose agent did not report its end. `result`: null if nobody knows how that ended. `pool`: undefined when
 * config no longer has it.
 */
export function whyLost(result: JobResult | null, pool: PoolConfig | undefined): string {
  switch (result?.kind) {
    case undefined:
      return 'This job was lost: its agent ended while onejob was not running.';
    case 'timeout':
    case 'disk':
      return overLimit(result.kind, pool);
    case 'cancelled':
      return 'onejob ended this job: it was cancelled.';
    case 'oom':
      return outOfMemory(pool);
    case 'lost':
      return `This job was lost: ${result.reason}. ${notTheJobs}`;
    case 'unstartable':
      return `This job was lost: ${result.failure.message} ${result.failure.code === 'E_NO_CONTAINERS' ? notFitting : notTheJobs}`;
    case 'code':
      return `This job was lost: its agent ended with exit code ${result.code}, and did not report how the job ended.`;
    case 'signal':
      return `This job was lost: its agent was ended by ${result.signal}.`;
  }
}

function outOfMemory(pool: PoolConfig | undefined): string {
  const limit = pool?.recipe.memory ?? null;
  const its = pool === undefined || limit === null ? '' : `; pool ${pool.name} lets a job have ${formatSize(limit)} at most`;
  return `This job was lost: its sandbox ran out of memory${its}.`;
}

/** The verdict `infrastructure`, for the page of a job. */
const notTheJobs = 'The infrastructure is to blame, not the job.';

/** The same for a host that can never give the pool what it asks for. */
const notFitting = 'The configuration of its pool is to blame, not the job.';

/** Why a running job is ended, as a sentence for its log; null: the service knows it. */
export function whyEnding(why: StopReason, pool: PoolConfig | undefined): string | null {
  if (why === 'timeout' || why === 'disk') return overLimit(why, pool);
  if (why === 'taken') return `onejob ended this job: the cloud ends its machine. ${notTheJobs} Run it again.`;
  return why === 'shutdown' ? 'onejob ended this job: onejob was told to stop.' : null;
}

function overLimit(key: 'timeout' | 'disk', pool: PoolConfig | undefined): string {
  const limit = pool?.[key] ?? null;
  const isLong = key === 'timeout';
  if (pool === undefined || limit === null)
    return `onejob ended this job: ${isLong ? 'it took longer' : 'its files took more'} than its pool allowed.`;
  const what = isLong ? `a job run for ${formatDuration(limit)}` : `the files of a job take ${formatSize(limit)}`;
  return `onejob ended this job: pool ${pool.name} lets ${what} at most.`;
}
