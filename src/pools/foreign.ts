/** What a temporary manager found in its slots that is not the own queue's: a daemon before it had begun it. */
import type { CiService } from '../ci/ci-service.ts';
import { isEmpty, type Slot } from '../core/slot.ts';
import type { Reconciler } from './reconciler.ts';
import type { ShutdownParts } from './shutdown.ts';

/** Everything that is not `own`'s counts as another's: sandboxes at the gate as well as running jobs. */
export function foreignTo(own: CiService, reconciler: Reconciler): Pick<ShutdownParts, 'isForeign' | 'drainOthers'> {
  const isForeign = (slot: Slot): boolean => !isEmpty(slot) && reconciler.poolOf(slot.key).serviceOf(slot) !== own;
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
