/** A loop that polls when something is due, and again whenever something changes. It never misses a change. */

import { OnejobError } from '../../../base/errors.ts';
import { doubling, sleep } from '../../../core/clock.ts';
import { LaterError } from '../api.ts';
import type { Shared } from '../shared.ts';

export interface PollLoop {
  /** Something has changed: `due` is asked again. */
  wake(): void;
  /** Resolves once the service is closed and nothing is under way. */
  readonly ended: Promise<void>;
}

export interface Work {
  /** When the next poll is due (the clock's `now`); null: not before something changes. */
  due(): number | null;
  poll(): Promise<void>;
  /** A poll has failed, for the `failures`th time in a row. Answers for how long nothing may be tried, ms. */
  failed?(error: unknown, failures: number): number;
  /** ms. Longest wait after failures (1 s, 2 s, 4 s …, up to a fifth less at random), unless `failed` or the service wants more. */
  readonly longest: number;
}

export function startPollLoop(work: Work, { config, clock, log, random, signal }: Shared): PollLoop {
  let changed = new AbortController();
  let failures = 0;
  let notBefore = Number.NEGATIVE_INFINITY;
  const wake = (): void => changed.abort();
  signal.addEventListener('abort', wake, { once: true });

  const poll = async (): Promise<void> => {
    try {
      await work.poll();
      failures = 0;
    } catch (error) {
      if (signal.aborted) return;
      failures += 1;
      if (!(error instanceof OnejobError)) log.error('cannot follow jobs', { service: config.name, error });
      const asked = error instanceof LaterError ? error.retryAfter : 0;
      const wait = Math.round(doubling(1_000, work.longest, failures) * (1 - random() / 5));
      notBefore = clock.now() + Math.max(work.failed?.(error, failures) ?? 0, asked, wait);
    }
  };
  const run = async (): Promise<void> => {
    while (!signal.aborted) {
      changed = new AbortController();
      const at = work.due();
      const next = Math.max(at ?? 0, notBefore);
      if (at === null) await new Promise((resolve) => changed.signal.addEventListener('abort', resolve, { once: true }));
      else if (clock.now() < next) await sleep(clock, next - clock.now(), changed.signal);
      else await poll();
    }
  };
  return { wake, ended: run() };
}
