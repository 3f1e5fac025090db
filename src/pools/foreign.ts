/** What a temporary manager found in its slots that is not its own: a daemon before it had begun it, and the next one takes it over. */
import type { OwnQueue } from '../ci/own-queue/own-queue.ts';
import { isEmpty, jobsIn, type Slot } from '../core/slot.ts';
import type { Reconciler } from './reconciler.ts';
import type { ShutdownParts } from './shutdown.ts';

/** What is not `own`'s counts as another's, sandboxes at the gate as well as running jobs; so do jobs that `own` holds for their daemon. */
export function foreignTo(own: OwnQueue, reconciler: Reconciler): Pick<ShutdownParts, 'isForeign' | 'drainOthers'> {
  const isForeign = (slot: Slot): boolean =>
    !isEmpty(slot) && (reconciler.poolOf(slot.key).serviceOf(slot) !== own || jobsIn(slot).some((job) => own.isHeld(job)));
  return {
    isForeign,
    drainOthers() {
      const kept = new Set(reconciler.slots.filter(isForeign).map(({ key }) => reconciler.poolOf(key)));
      for (const pool of reconciler.pools) {
        // A pool that is drained takes its idle agents back from their service, too.
        if (kept.has(pool)) continue;
        pool.draining = true;
        reconciler.replanAll(pool);
      }
    },
  };
}
