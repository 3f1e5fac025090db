/** How jobs end, in words: for their pages at the service, and for the list of jobs of this host. */
import type { JobResult } from '../../../core/slot.ts';
import { endUnreported, type JobEnd } from '../../kit/job-rows.ts';
import { stageOf } from '../stacks/stacks.ts';

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

/** How a job ended, by its state at the service and by its agent's exit, which reflects the job's. */
export function buildkiteEnd(state: string, result: JobResult | null): JobEnd {
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
    default:
      return endUnreported(result);
  }
}
