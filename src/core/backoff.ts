/** How long a pool waits after failures in a row, so that a failing image, credential or disk never makes it spin (S9). */

import type { Failure } from '../base/errors.ts';
import { doubling } from './clock.ts';

export interface Backoff {
  readonly failures: number;
  /** Nothing is started before this time (core clock, ms). */
  readonly until: number;
  readonly stage: 'prepare' | 'release';
  readonly last: Failure;
}

const first = 1_000;
const longest = 5 * 60_000;

/**
 * The pool's back-off after one more failure: 1 s, 2 s, 4 s … up to 5 min. A failure that a retry cannot fix starts at 30 s.
 * `jitter` in [0, 1) spreads pools that failed together by up to a fifth.
 */
export function backoff(before: Backoff | null, failure: Failure, stage: Backoff['stage'], now: number, jitter: number): Backoff {
  const failures = (before?.failures ?? 0) + 1;
  const wait = doubling(failure.retry ? first : 30_000, longest, failures);
  return { failures, until: now + Math.round(wait * (1 - jitter / 5)), stage, last: failure };
}
