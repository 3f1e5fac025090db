/** Work that is due at times, and again whenever something changes: a turn at a time, without ever missing a change. */
import { type Clock, sleep } from '../../../core/clock.ts';
import { LaterError } from '../api.ts';

export type Turns = ReturnType<typeof takeTurns>;

/** `due`: when the next turn is due (the clock's `now`); null: not before something changes. */
export function takeTurns(due: () => number | null, turn: () => Promise<void>, clock: Clock, signal: AbortSignal) {
  let changed = new AbortController();
  /** Something has changed: `due` is asked again. */
  const wake = (): void => changed.abort();
  signal.addEventListener('abort', wake, { once: true });

  const run = async (): Promise<void> => {
    while (!signal.aborted) {
      changed = new AbortController();
      const at = due();
      if (at === null) await new Promise((resolve) => changed.signal.addEventListener('abort', resolve, { once: true }));
      else if (clock.now() < at) await sleep(clock, at - clock.now(), changed.signal);
      else await turn();
    }
  };
  return {
    wake,
    /** Resolves once `signal` is aborted and nothing is under way. */
    ended: run(),
  };
}

/**
 * ms until the next try after `failures` in a row: 1 s, 2 s, 4 s … `longest`, up to a fifth less at random (`random`: [0, 1)), but
 * at least what the service asks for in `error`.
 */
export function retryWait(error: unknown, failures: number, random: () => number, longest: number): number {
  const wait = Math.min(1_000 * 2 ** Math.min(failures - 1, 10), longest);
  return Math.max(error instanceof LaterError ? error.retryAfter : 0, Math.round(wait * (1 - random() / 5)));
}
