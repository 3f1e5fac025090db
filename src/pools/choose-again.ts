/**
 * Pools that name neither a runtime nor an image, and run their jobs as processes because Docker could not be used: Docker is
 * looked at again while the manager runs, and such pools move to it. Nothing ever moves the other way.
 */
import type { Clock } from '../core/clock.ts';
import { toFailure } from '../errors.ts';
import type { Log } from '../log.ts';
import type { Runtimes } from '../runtimes/choose.ts';
import type { Observer } from './observe.ts';
import type { Reconciler } from './reconciler.ts';

/** ms between two looks. */
export const chooseEvery = 30_000;

export interface ChooseAgainParts {
  readonly clock: Clock;
  readonly log: Log;
  readonly runtimes: Pick<Runtimes, 'best' | 'reason' | 'chooseAgain'>;
  readonly reconciler: Pick<Reconciler, 'pools'>;
  readonly observer: Pick<Observer, 'add'>;
}

/** Looks until the function it returns is called. */
export function keepChoosing({ clock, log, runtimes, reconciler, observer }: ChooseAgainParts): () => void {
  let ended = false;
  const look = async (): Promise<void> => {
    try {
      if ((await runtimes.chooseAgain()) && !ended) {
        for (const pool of reconciler.pools) if (pool.config.runtime === null && !pool.leaving) pool.moveTo(runtimes.best);
        log.info('runtime chosen', { reason: runtimes.reason });
        await observer.add(runtimes.best);
      }
    } catch (error) {
      log.warn('runtime not looked at', { reason: toFailure(error).message });
    }
    if (!ended) callOff = clock.after(chooseEvery, look);
  };
  let callOff = clock.after(chooseEvery, look);
  return () => {
    ended = true;
    callOff();
  };
}
