/** What the page of a job says where onejob ends it, or where its agent did not say itself how it ended. */
import type { PoolConfig } from '../../config/config.ts';
import { formatDuration, formatSize } from '../../config/units.ts';
import type { JobResult, StopReason } from '../../core/slot.ts';

/** Of a job whose agent ended without telling the service how its job did. `pool`: the job's, undefined where config has it no more. */
export function whyLost(result: JobResult, pool: PoolConfig | undefined): string {
  switch (result.kind) {
    case 'timeout':
      return tooLong(pool);
    case 'disk':
      return tooLarge(pool);
    case 'cancelled':
      return 'onejob ended this job: it was cancelled.';
    case 'oom':
      return 'This job was lost: its sandbox ran out of memory.';
    case 'lost':
      return `This job was lost: ${result.reason}.`;
    case 'unstartable':
      return `This job was lost: ${result.failure.message}`;
    case 'code':
      return `This job was lost: its agent ended with exit code ${result.code}, and did not say how the job ended.`;
    case 'signal':
      return `This job was lost: its agent was ended by ${result.signal}.`;
  }
}

/** Why a job that runs is being ended, for its log, as a sentence; null where the service knows that itself. */
export function whyEnding(why: StopReason, pool: PoolConfig | undefined): string | null {
  if (why === 'timeout') return tooLong(pool);
  if (why === 'disk') return tooLarge(pool);
  return why === 'shutdown' ? 'onejob ended this job: it was told to stop.' : null;
}

function tooLong(pool: PoolConfig | undefined): string {
  const limit = pool?.timeout ?? null;
  if (pool === undefined || limit === null) return 'onejob ended this job: it took longer than its pool allowed.';
  return `onejob ended this job: pool ${pool.name} lets a job run for ${formatDuration(limit)} at most.`;
}

function tooLarge(pool: PoolConfig | undefined): string {
  const limit = pool?.disk ?? null;
  if (pool === undefined || limit === null) return 'onejob ended this job: its files took more than its pool allowed.';
  return `onejob ended this job: pool ${pool.name} lets the files of a job take ${formatSize(limit)} at most.`;
}
