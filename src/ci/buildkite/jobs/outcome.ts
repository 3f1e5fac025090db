/** How jobs end, in words: for their pages at the service, and for the list of jobs of this host. */
import type { PoolConfig } from '../../../config/config.ts';
import { formatDuration, formatSize } from '../../../config/units.ts';
import type { JobResult, StopReason } from '../../../core/slot.ts';
import type { Outcome } from '../../../verdict/verdict.ts';
import { stageOf } from '../stacks/stacks.ts';

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
      return 'This job was lost: its sandbox ran out of memory.';
    case 'lost':
      return `This job was lost: ${result.reason}. ${notTheJobs}`;
    case 'unstartable':
      return `This job was lost: ${result.failure.message} ${notTheJobs}`;
    case 'code':
      return `This job was lost: its agent ended with exit code ${result.code}, and did not report how the job ended.`;
    case 'signal':
      return `This job was lost: its agent was ended by ${result.signal}.`;
  }
}

/** The verdict `infrastructure`, for the page of a job. */
const notTheJobs = 'The infrastructure is to blame, not the job.';

/** Why a running job is ended, as a sentence for its log; null: the service knows it. */
export function whyEnding(why: StopReason, pool: PoolConfig | undefined): string | null {
  if (why === 'timeout' || why === 'disk') return overLimit(why, pool);
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

/** Exit codes of the agent: its `core/client.go`, `clicommand/agent_start.go`. */
export function whyNotAcquired(result: JobResult): string {
  switch (result.kind) {
    case 'code':
      if (result.code === 27) return 'the service did not allow its agent to acquire it';
      return `its agent ended with exit code ${result.code} before it acquired the job`;
    case 'signal':
      return `its agent was ended by ${result.signal} before it acquired the job`;
    case 'oom':
      return 'its sandbox ran out of memory before its agent acquired the job';
    case 'timeout':
      return "its agent did not acquire it within the pool's `timeout`";
    case 'disk':
      return "its files took more than the pool's `disk` before its agent acquired the job";
    case 'cancelled':
      return 'it was cancelled before its agent acquired it';
    case 'lost':
      return result.reason;
    case 'unstartable':
      return result.failure.message;
  }
}

/** How a job ended: in a word for people, and what that means; null: unknown. */
export interface JobEnd {
  readonly word: string;
  readonly outcome: Outcome | null;
}

/** How a job ended, by its state at the service and by its agent's exit, which reflects the job's. */
export function endOf(state: string, result: JobResult | null): JobEnd {
  if (state === 'canceled' || state === 'canceling') return { word: 'cancelled', outcome: 'cancelled' };
  if (state === 'timing_out' || state === 'timed_out') return { word: 'timed out', outcome: 'failed' };
  if (state !== 'finished' && stageOf(state) === 'over') return { word: state.replaceAll('_', ' '), outcome: null };
  switch (result?.kind) {
    case undefined:
      return { word: 'ended', outcome: null };
    case 'code':
      if (state !== 'finished') return { word: 'lost', outcome: 'lost' };
      if (result.code === 0) return { word: 'passed', outcome: 'passed' };
      return { word: `failed (exit ${result.code})`, outcome: 'failed' };
    case 'signal':
      return { word: `failed (${result.signal})`, outcome: 'failed' };
    case 'timeout':
    case 'disk':
      return { word: 'stopped', outcome: 'failed' };
    case 'cancelled':
      return { word: 'stopped', outcome: 'cancelled' };
    case 'oom':
      return { word: 'lost', outcome: 'failed' };
    default:
      return { word: 'lost', outcome: 'lost' };
  }
}
