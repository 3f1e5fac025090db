/** What slots could do with a job now, and which of the reserved ones is for which slot. */
import type { PoolConfig } from '../../config/config.ts';
import type { JobId } from '../../core/slot.ts';
import type { SlotOffer } from '../ci-service.ts';
import type { Reservations } from './reservations.ts';

export interface SlotOfferParts {
  readonly reservations: Pick<Reservations, 'all' | 'in' | 'move' | 'giveBack'>;
  readonly poolOf: (slot: string) => PoolConfig | undefined;
  /** Whether the slot has the job, in whatever lane. */
  readonly isTaken: (job: JobId, slot: string) => boolean;
}

export interface SlotOffers {
  /** A job that waited for this slot goes to another one of its pool, or back. */
  set(slot: string, offer: SlotOffer): void;
  isGone(slot: string): boolean;
  /** Slots have been told of. */
  readonly areKnown: boolean;
  /** Slots of a queue that could take a job and have none, not even one that is only reserved. */
  free(queue: string): string[];
  /** For a job of this pool: the one that has it, or one that is open, or any; undefined: the pool has none. */
  slotFor(pool: string, job: JobId): string | undefined;
}

export function createSlotOffers({ reservations, poolOf, isTaken }: SlotOfferParts): SlotOffers {
  const offers = new Map<string, SlotOffer>();
  const isOpen = (slot: string): boolean => offers.get(slot) === 'open';
  const isUnclaimed = (slot: string): boolean => reservations.in(slot).every(({ verdict }) => verdict !== null);
  const free = (queue: string): string[] =>
    [...offers.keys()].filter((slot) => isOpen(slot) && poolOf(slot)?.queue === queue && isUnclaimed(slot));

  return {
    free,
    get areKnown() {
      return offers.size > 0;
    },
    isGone: (slot) => offers.get(slot) === 'gone',
    set(slot, offer) {
      offers.set(slot, offer);
      const pool = poolOf(slot)?.name;
      const untaken = reservations.all().filter((one) => one.pool === pool && one.verdict === null && !isTaken(one.job, one.slot));
      if (offer === 'open') {
        const stuck = isUnclaimed(slot) ? untaken.find((one) => !isOpen(one.slot)) : undefined;
        if (stuck !== undefined) reservations.move(stuck.job, slot);
        return;
      }
      for (const one of untaken.filter((each) => each.slot === slot)) {
        const other = free(one.queue).find((each) => poolOf(each)?.name === one.pool);
        if (other !== undefined) reservations.move(one.job, other);
        else if (offer === 'gone') void reservations.giveBack(one.job, 'its slot is gone');
      }
    },
    slotFor(pool, job) {
      const slots = [...offers.keys()].filter((slot) => poolOf(slot)?.name === pool);
      return slots.find((slot) => isTaken(job, slot)) ?? slots.find(isOpen) ?? slots[0];
    },
  };
}
