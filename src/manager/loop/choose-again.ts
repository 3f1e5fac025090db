/** Moves pools that run jobs as processes to Docker, once it can be used. */

import { toFailure } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { type Clock, every } from '../../core/clock.ts';
import type { Runtimes } from '../../runtimes/choose.ts';
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

/**
 * For pools that name neither a runtime nor an image, and run their jobs as processes because Docker could not be used: checks
 * Docker again while the manager runs, and moves such pools to it, until the returned function is called. Nothing ever moves the
 * other way.
 */
export function keepChoosing({ clock, log, runtimes, reconciler, observer }: ChooseAgainParts): () => void {
  let isOver = false;
  const look = async (): Promise<void> => {
    if (!(await runtimes.chooseAgain()) || isOver) return;
    for (const pool of reconciler.pools) if (pool.config.runtime === null && !pool.leaving) pool.moveTo(runtimes.best);
    log.info('runtime chosen', { reason: runtimes.reason });
    await observer.add(runtimes.best);
  };
  const stop = every(clock, chooseEvery, look, (error) =>
    log.warn('failed to check runtimes', { reason: toFailure(error).message }),
  );
  return () => {
    isOver = true;
    stop();
  };
}
