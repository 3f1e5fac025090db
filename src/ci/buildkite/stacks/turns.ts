/** Work that is due at times, and again whenever something changes: a turn at a time, without ever missing a change. */

import { OnejobError } from '../../../base/errors.ts';
import { doubling, sleep } from '../../../core/clock.ts';
import { LaterError } from '../api.ts';
import type { Shared } from '../shared.ts';

export type Turns = ReturnType<typeof takeTurns>;

export interface Work {
  /** When the next turn is due (the clock's `now`); null: not before something changes. */
  readonly due: () => number | null;
  readonly turn: () => Promise<void>;
  /** A turn has failed, for the `failures`th time in a row. Answers for how long nothing may be tried, ms. */
  readonly failed?: (error: unknown, failures: number) => number;
  /** ms. Longest wait after failures (1 s, 2 s, 4 s …, up to a fifth less at random), unless `failed` or the service wants more. */
  readonly longest: number;
}

export function takeTurns({ due, turn, failed = () => 0, longest }: Work, { config, clock, log, random, signal }: Shared) {
  let changed = new AbortController();
  let failures = 0;
  let notBefore = Number.NEGATIVE_INFINITY;
  /** Something has changed: `due` is asked again. */
  const wake = (): void => changed.abort();
  signal.addEventListener('abort', wake, { once: true });

  const take = async (): Promise<void> => {
    try {
      await turn();
      failures = 0;
    } catch (error) {
      if (signal.aborted) return;
      failures += 1;
      if (!(error instanceof OnejobError)) log.error('cannot follow jobs', { service: config.name, error });
      const asked = error instanceof LaterError ? error.retryAfter : 0;
      const wait = Math.round(doubling(1_000, longest, failures) * (1 - random() / 5));
      notBefore = clock.now() + Math.max(failed(error, failures), asked, wait);
    }
  };
  const run = async (): Promise<void> => {
    while (!signal.aborted) {
      changed = new AbortController();
      const at = due();
      const next = Math.max(at ?? 0, notBefore);
      if (at === null) await new Promise((resolve) => changed.signal.addEventListener('abort', resolve, { once: true }));
      else if (clock.now() < next) await sleep(clock, next - clock.now(), changed.signal);
      else await take();
    }
  };
  return {
    wake,
    /** Resolves once `signal` is aborted and nothing is under way. */
    ended: run(),
  };
}
