/**
 * What CI services are told of the slots that an agent of theirs stands for: whether this one would take a job now, takes
 * none, or is gone. Each is told once, when it changes.
 */
import type { SlotOffer } from '../ci/ci-service.ts';
import { isOpen } from '../core/plan.ts';
import type { Slot } from '../core/slot.ts';
import type { Pool } from './pool.ts';
import { type HostView, viewOf } from './step.ts';

export class Offers {
  /** By slot. */
  readonly #told = new Map<string, SlotOffer>();

  tell(slot: Slot, pool: Pool, host: HostView): void {
    if (!pool.tellsOffers || !pool.service.capabilities.standsForSlots) return;
    const view = viewOf(slot, pool, host);
    const offer: SlotOffer = !view.wanted ? 'gone' : isOpen(slot, view, host.now) ? 'open' : 'closed';
    if (this.#told.get(slot.key) === offer) return;
    this.#told.set(slot.key, offer);
    pool.service.jobs?.offer?.(slot.key, offer);
  }
}
