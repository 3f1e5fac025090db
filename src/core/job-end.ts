/** How jobs end, in the words that all CI services share. */
import type { JobResult } from './slot.ts';

export const outcomes = ['passed', 'failed', 'cancelled', 'lost'] as const;
export type Outcome = (typeof outcomes)[number];

/** `lost`: its agent was lost, so nobody knows how it would have ended. */
export function outcomeOf(result: JobResult): Outcome {
  switch (result.kind) {
    case 'code':
      return result.code === 0 ? 'passed' : 'failed';
    case 'cancelled':
    case 'lost':
      return result.kind;
    case 'signal':
    case 'oom':
    case 'timeout':
    case 'disk':
    case 'unstartable':
      return 'failed';
  }
}

/** Where a failed job failed: in its own script, or in what its runner does before and around that. */
export const failedPlaces = ['script', 'runner'] as const;
export type FailedIn = (typeof failedPlaces)[number];
