/** What the reservations, runs and queues of a service of Buildkite share. */
import type { PoolConfig } from '../../config/config.ts';
import type { JobId } from '../../core/slot.ts';
import type { Front } from './front.ts';
import type { BuildkiteParts } from './parts.ts';

export interface Shared extends BuildkiteParts, Pick<Front, 'emit' | 'signal'> {
  /** Something may be due now. */
  wake(): void;
  /** Key of the stack. */
  readonly stack: string;
  /** s that a reservation lasts: long enough for an agent that calls at the last moment. */
  readonly expiry: number;
  readonly poolOf: (slot: string) => PoolConfig | undefined;
  /** Whether the slot has the job, in any lane. */
  readonly isTaken: (job: JobId, slot: string) => boolean;
  /** Whether there is a token. */
  readonly isReady: () => boolean;
}

export function share(parts: BuildkiteParts, front: Front, wake: () => void): Shared {
  return {
    ...parts,
    emit: front.emit,
    signal: front.signal,
    wake,
    stack: parts.entry.key,
    expiry: Math.min(Math.ceil(parts.config.bootTimeout / 1000) + 60, 3600),
    poolOf: (slot) => front.pools.get(slot.slice(0, slot.lastIndexOf('/'))),
    isTaken: (job, slot) => parts.slots.jobsOf(slot).includes(job),
    isReady: () => front.token !== null,
  };
}
