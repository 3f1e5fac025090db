/**
 * Plans the next step of one slot, given what its pool asks for. Pure, and about one slot only, so that the work after an event
 * does not grow with the number of slots.
 */
import type { Backoff } from './backoff.ts';
import type { DeviceId, Reserved, Slot, SlotEvent } from './slot.ts';

/** What a pool asks of its slots now. */
export interface PoolView {
  readonly binds: 'late' | 'early';
  /** False while draining or stopping, or if the config no longer has the pool. */
  readonly wanted: boolean;
  /** Keep a sandbox at the gate even if no job waits for it. */
  readonly standby: boolean;
  /** Paused for any reason: nothing new is prepared or released. */
  readonly paused: boolean;
  readonly backoff: Backoff | null;
  /** The fingerprint that a standby needs to be released (S11); null if it is unknown, and then none may be. */
  readonly fingerprint: string | null;
  /** ms after which a standby is replaced. */
  readonly standbyMaxAge: number;
  /** The next job that the pool could start (late binding). `cold`: its recipe differs from the pool's, so no standby fits. */
  readonly waiting: Reserved | null;
  /** The devices for the slot; null while there are none for it. Empty for CPU pools. */
  readonly devices: readonly DeviceId[] | null;
  /** Its devices are known to be faulty, gone, or another slot's, so an idle agent must go. */
  readonly lost: boolean;
  /** A person has closed the pool: idle agents of an early binding may take no jobs either. */
  readonly closed: boolean;
  /** Whether an outdated idle agent may be renewed now: one slot of a pool after the other. */
  readonly mayRenew: boolean;
  /** The pool tries a new image, and this slot can have no sandbox of the pool's image for now: only jobs with their own start, so `waiting` is one. */
  readonly ownImageOnly: boolean;
  /** Its devices must not be used now, although they are its own: a person's process, an unknown state. */
  readonly held: boolean;
  /** Early binding, with devices leased for each job: for a while now, none has waited. */
  readonly unneeded: boolean;
  /** It leases devices for each job, and another pool waits for some. */
  readonly contested: boolean;
  /**
   * Its runtime places sandboxes, so one is asked for while more jobs wait than sandboxes are under way, and any of them takes any
   * job: `more`: another one is wanted; `surplus`: there are more than jobs. null: no such runtime, or the pool keeps standbys.
   */
  readonly pilots: 'more' | 'enough' | 'surplus' | null;
  /** Its runtime grants devices to each sandbox. A standby next to an agent would hold some that nobody uses, so none is made. */
  readonly alone: boolean;
}

/** ms after which an idle agent that gets no job gives its leased devices to another pool that waits. */
export const contestedLimit = 60_000;

/** Number of uncleared agents at which a slot takes no more work, so that stuck removals cannot pile up. */
export const leavingLimit = 3;

/** The loop turns it into an event, and chooses the agent id of a `fill`. */
export type Intent =
  | Extract<SlotEvent, { kind: 'discard' | 'assign' | 'engage' | 'retire' }>
  | { readonly kind: 'fill'; readonly reserved: Reserved | null };

/** The next intent for this slot, or null if there is nothing to do before another event. */
export function plan(slot: Slot, pool: PoolView, now: number): Intent | null {
  const lane = slot.standby;
  if (slot.agent.kind === 'idle' && isOver(slot.agent, slot, pool, now)) return { kind: 'retire', agent: slot.agent.agent };
  const mayStart = !pool.paused && (pool.backoff === null || now >= pool.backoff.until) && slot.leaving.length < leavingLimit;
  const hasDevices = pool.devices !== null && sameDevices(slot.devices, pool.devices);
  const waiting = pool.ownImageOnly && pool.waiting?.cold !== true ? null : pool.waiting;
  switch (lane.kind) {
    case 'preparing':
      return pool.wanted && hasDevices && !pool.unneeded && !isSurplus(lane, pool) ? null : { kind: 'discard' };
    case 'standby': {
      // The slot may no longer use the devices that it was granted.
      if (!pool.wanted || !hasDevices || pool.unneeded || isSurplus(lane, pool)) return { kind: 'discard' };
      // While paused nothing would replace it, and its fingerprint may not have been checked yet.
      if (!pool.paused && !pool.ownImageOnly && isStale(lane, pool, now)) return { kind: 'discard' };
      // It cannot say when it will use its devices.
      if (!mayStart || pool.held) return pool.contested ? { kind: 'discard' } : null;
      if (slot.agent.kind !== 'free') return null;
      if (pool.binds === 'early') return pool.ownImageOnly ? null : { kind: 'engage' };
      if (lane.reserved !== null) return { kind: 'assign', job: lane.reserved.job, limit: lane.reserved.limit };
      // Made for no job: its pool kept standbys when it was made.
      if (waiting === null) return pool.contested ? { kind: 'discard' } : null;
      return waiting.cold ? { kind: 'discard' } : { kind: 'assign', job: waiting.job, limit: waiting.limit };
    }
    case 'none': {
      if (!pool.wanted || !mayStart || !hasDevices) return null;
      const isOwn = waiting !== null && (waiting.cold || (!pool.standby && pool.pilots === null));
      if (isOwn && pool.binds === 'late' && slot.agent.kind === 'free') return { kind: 'fill', reserved: waiting };
      if (pool.pilots !== null)
        return pool.pilots === 'more' && slot.agent.kind === 'free' ? { kind: 'fill', reserved: null } : null;
      // An agent that must be online to get a job is made before there is one, even without standby.
      const isKept = pool.standby && (!pool.alone || slot.agent.kind === 'free');
      const isNeeded = isKept || (pool.binds === 'early' && slot.agent.kind === 'free' && !pool.unneeded);
      return isNeeded && !pool.ownImageOnly ? { kind: 'fill', reserved: null } : null;
    }
  }
}

/** Whether a job could enter the slot at once, or get its own sandbox if the pool keeps no standby. */
export function isOpen(slot: Slot, pool: PoolView, now: number): boolean {
  if (slot.agent.kind !== 'free') return false;
  const intent = plan(slot, { ...pool, waiting: { job: '', limit: null, cold: false } }, now);
  return intent?.kind === 'assign' || (intent?.kind === 'fill' && intent.reserved !== null);
}

/** The order of a slot's devices does not matter. */
export function sameDevices(some: readonly DeviceId[], others: readonly DeviceId[]): boolean {
  return some.length === others.length && some.every((device) => others.includes(device));
}

/** Whether an idle agent should go: it may take no more jobs, or it is outdated and the next one is ready. */
function isOver(agent: Extract<Slot['agent'], { kind: 'idle' }>, slot: Slot, pool: PoolView, now: number): boolean {
  if (!pool.wanted || pool.closed || pool.lost) return true;
  if (pool.devices !== null && !sameDevices(slot.devices, pool.devices)) return true;
  if (pool.unneeded || (pool.contested && now - agent.since >= contestedLimit)) return true;
  if (pool.paused || pool.ownImageOnly || !pool.mayRenew) return false;
  const isCurrent = now - agent.since <= pool.standbyMaxAge && (pool.fingerprint ?? agent.fingerprint) === agent.fingerprint;
  if (isCurrent) return false;
  return !pool.standby || pool.alone || (slot.standby.kind === 'standby' && !isStale(slot.standby, pool, now));
}

/** A sandbox for any job, while fewer jobs wait than there are such sandboxes. */
function isSurplus(lane: Exclude<Slot['standby'], { kind: 'none' }>, pool: PoolView): boolean {
  return pool.pilots === 'surplus' && lane.reserved === null;
}

function isStale(lane: Extract<Slot['standby'], { kind: 'standby' }>, pool: PoolView, now: number): boolean {
  if (now - lane.since > pool.standbyMaxAge) return true;
  return lane.reserved === null && pool.fingerprint !== lane.fingerprint;
}
