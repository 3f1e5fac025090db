/** What the reservations, runs and queues of a service of Buildkite share. */
import type { JobId } from '../../core/slot.ts';
import type { createFront } from './front.ts';
import type { BuildkiteParts } from './parts.ts';

export type Shared = Readonly<ReturnType<typeof share>>;

/** What reservations, runs and queues share. `wake`: something may be due now. */
export function share(parts: BuildkiteParts, front: ReturnType<typeof createFront>, wake: () => void) {
  const { pools, emit, signal } = front;
  return {
    ...parts,
    emit,
    signal,
    wake,
    stack: parts.entry.key,
    /** s that a reservation lasts: long enough for an agent that calls at the last moment. */
    expiry: Math.min(Math.ceil(parts.config.bootTimeout / 1000) + 60, 3600),
    poolOf: (slot: string) => pools.get(slot.slice(0, slot.lastIndexOf('/'))),
    /** Whether the slot has the job, in any lane. */
    isTaken: (job: JobId, slot: string) => parts.slots.jobsOf(slot).includes(job),
    /** Whether there is a token. */
    isReady: () => front.token !== null,
  };
}
