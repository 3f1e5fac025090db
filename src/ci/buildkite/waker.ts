/** Waiting for a change or for a time, whichever comes first, without ever missing a change that came in between. */
import type { Clock } from '../../core/clock.ts';

export interface Waker {
  /** Ends the wait, or the next one. */
  wake(): void;
  /** Until `wake` or until the clock's `now` is `until`; null: only `wake`. */
  wait(until: number | null): Promise<void>;
}

export function createWaker(clock: Clock): Waker {
  let isDue = false;
  let resume: (() => void) | null = null;
  return {
    wake() {
      if (resume === null) isDue = true;
      else resume();
    },
    wait: (until) =>
      new Promise((resolve) => {
        if (isDue || (until !== null && until <= clock.now())) {
          isDue = false;
          resolve();
          return;
        }
        const callOff = until === null ? () => {} : clock.after(until - clock.now(), () => resume?.());
        resume = () => {
          resume = null;
          callOff();
          resolve();
        };
      }),
  };
}

/** Growing waits between tries that fail: 1 s, 2 s, 4 s … 30 s, up to a fifth shorter so that many do not come together. */
export function retryWait(failures: number, random: () => number, least = 0): number {
  const wait = Math.min(1_000 * 2 ** Math.min(Math.max(failures - 1, 0), 10), 30_000);
  return Math.max(least, Math.round(wait * (1 - random() / 5)));
}
