/** What the service is told of a job that onejob ends, or whose agent did not say itself how it ended. */
import type { PoolConfig } from '../../config/config.ts';
import { formatDuration, formatSize } from '../../config/units.ts';
import type { JobResult, StopReason } from '../../core/slot.ts';
import type { EndRequest } from './broker/protocol.ts';

/** `pool`: the job's, undefined where config does not have it any more. */
export function endOf(result: JobResult, pool: PoolConfig | undefined): EndRequest {
  switch (result.kind) {
    case 'timeout':
      return { reason: tooLong(pool), signalReason: 'agent_stop' };
    case 'disk':
      return { reason: tooLarge(pool), signalReason: 'agent_stop' };
    case 'cancelled':
      return { reason: 'The job was cancelled.', signalReason: 'agent_stop' };
    case 'oom':
      return lost('its sandbox ran out of memory');
    case 'lost':
      return lost(result.reason);
    case 'unstartable':
      return lost(result.failure.message);
    case 'code':
      return lost(`its agent ended with exit code ${result.code} without a result`);
    case 'signal':
      return lost(`its agent was ended by ${result.signal} without a result`);
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

/** `why`: the middle of a sentence. */
export function lost(why: string): EndRequest {
  return { reason: `This job was lost: ${why}.`, signalReason: 'process_run_error' };
}
