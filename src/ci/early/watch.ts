/**
 * One look after the other at each queue of the service, whatever the number of slots: who is online, who has which job, what waits.
 * A look that fails says nothing about any agent (S6); it only keeps new ones from being begun.
 */
import { OnejobError, toFailure } from '../../errors.ts';
import type { EarlyParts, Shown } from './port.ts';

export interface WatchParts extends Pick<EarlyParts, 'clock' | 'log' | 'pollEvery' | 'random'> {
  readonly list: (signal: AbortSignal) => Promise<Shown>;
  /**
   * Told of each look that succeeded. What goes wrong there says nothing of the service. `steadySince`: since when every look has
   * succeeded, core clock, ms: before that nobody knows what could come online.
   */
  readonly saw: (shown: Shown, steadySince: number) => void;
  /** Told why nobody could look; null once somebody could. */
  readonly failed: (reason: string | null) => void;
}

const longest = 60_000;

/** Looks at once, and again from then on until the signal aborts. */
export function watch({ clock, log, pollEvery: every, list, random, saw, failed }: WatchParts, signal: AbortSignal): void {
  let failures = 0;
  let steadySince: number | null = null;
  let cancel: () => void = () => {};

  async function look(): Promise<void> {
    let shown: Shown;
    try {
      shown = await list(signal);
    } catch (error) {
      if (signal.aborted) return;
      // A credential that is refused is held back before anything is sent, so looking whether it was changed costs nothing.
      failures = error instanceof OnejobError && error.code === 'E_CI_CREDENTIAL' ? 1 : failures + 1;
      steadySince = null;
      failed(toFailure(error).message);
      return;
    }
    if (signal.aborted) return;
    failures = 0;
    steadySince ??= clock.now();
    failed(null);
    try {
      saw(shown, steadySince);
    } catch (error) {
      if (!signal.aborted) log.error('what a CI service shows was not followed up', { reason: toFailure(error).message });
    }
  }

  async function again(): Promise<void> {
    await look();
    if (signal.aborted) return;
    const wait = Math.max(every, Math.min(longest, every * 2 ** Math.min(failures - 1, 10)));
    cancel = clock.after(wait * (0.9 + random() * 0.2), () => void again());
  }

  signal.addEventListener('abort', () => cancel(), { once: true });
  void again();
}
