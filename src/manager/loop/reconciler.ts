/**
 * The loop. One event at a time: its slot is decided and planned, the result is committed, then acted upon.
 *
 * Nothing acts before its commit. A failed commit changes nothing and is tried again; until then nothing new starts, and running
 * jobs continue. The work per event concerns one slot, whatever the number of slots.
 */

import type { Log } from '../../base/log.ts';
import { type Clock, Timers } from '../../core/clock.ts';
import { type Decision, decide } from '../../core/decide.ts';
import { type Intent, isOpen, type PoolView, plan, sameDevices } from '../../core/plan.ts';
import { dueAt, pursueAll } from '../../core/pursue.ts';
import { type Action, type AgentId, agentsOf, type Change, isEmpty, type Slot, type SlotEvent } from '../../core/slot.ts';
import type { SlotOffer } from '../../ports/ci-service.ts';
import { Committer, type SlotStore } from './commit.ts';
import type { RolloutLoop } from './image-rollout.ts';
import { Pause } from './pause.ts';
import type { Pool } from './pool.ts';

export interface ReconcilerOptions extends Pick<RolloutLoop, 'evidenceOf' | 'saveProved'> {
  readonly clock: Clock;
  readonly log: Log;
  readonly store: SlotStore;
  readonly act: (key: string, action: Action) => void;
  readonly newAgent: (pool: Pool) => AgentId;
  /** [0, 1): spreads back-offs. */
  readonly random: () => number;
  /** Called after each commit. */
  readonly changed: (before: Slot, after: Slot) => void;
  /** Called before all slots of a pool are planned, or of all (null): what it may start may have changed. */
  readonly replanning?: (pool: Pool | null) => void;
}

export class Reconciler {
  readonly #options: ReconcilerOptions;
  readonly #pools = new Map<string, Pool>();
  readonly #slots = new Map<string, Slot>();
  readonly #places = new Map<AgentId, string>();
  readonly #owners = new Map<string, Pool>();
  readonly #offers = new Offers();
  readonly #timers: Timers;
  /** Runtimes that were away, and have not said since what still runs. */
  readonly #unseen = new Set<string>();
  readonly #committer: Committer;
  readonly #inbox: { readonly key: string; readonly event: SlotEvent }[] = [];
  /** Slots to plan once the inbox is empty: each once, however often that was requested. */
  readonly #unplanned = new Set<string>();
  /** Pause of all pools: disk, state, people. */
  readonly pause = new Pause();
  #draining = false;
  /** A commit is being retried: no offers are sent meanwhile. */
  #isTrying = false;
  #stopping = false;
  #closed = false;

  constructor(options: ReconcilerOptions) {
    this.#options = options;
    this.#timers = new Timers(options.clock);
    this.#committer = new Committer({
      clock: options.clock,
      log: options.log,
      store: options.store,
      refused: (message) => {
        this.pause.hold('state', message);
        for (const key of this.#slots.keys()) this.#tellOffer(key);
      },
      // Released for a moment, so that the failed step is planned as before.
      retry: () => {
        this.pause.release('state');
        this.#isTrying = true;
        try {
          this.#drain();
        } finally {
          this.#isTrying = false;
        }
      },
      recovered: () => this.replanAll(),
    });
  }

  /** Adds a pool with its slots, stored or empty. Nothing happens before `start`. */
  add(pool: Pool, slots: readonly Slot[]): void {
    this.#pools.set(pool.config.name, pool);
    pool.rollout.attach({
      ...this.#options,
      timers: this.#timers,
      slots: () => this.slots.filter(({ key }) => this.#owners.get(key) === pool),
      replan: () => this.replanAll(pool),
      isStopping: () => this.#stopping,
    });
    for (const slot of slots) {
      this.#owners.set(slot.key, pool);
      this.#put(slot);
    }
  }

  /** Starts, or restarts after a crash: every state is pursued again, then every slot is planned. */
  start(): void {
    for (const slot of this.slots) if (isUnknown(slot, this.poolOf(slot.key))) this.post(slot.key, { kind: 'discard' });
    for (const slot of this.#slots.values()) {
      this.#armDeadline(slot);
      const isQueued = waitsAtEngine(slot, this.poolOf(slot.key));
      // Any other preparation has only just begun, or waits for the commit of its removal.
      for (const action of pursueAll(slot)) if (action.act !== 'prepare' || isQueued) this.#options.act(slot.key, action);
    }
    this.replanAll();
  }

  get pools(): readonly Pool[] {
    return [...this.#pools.values()];
  }

  get slots(): readonly Slot[] {
    return [...this.#slots.values()];
  }

  slot(key: string): Slot | undefined {
    return this.#slots.get(key);
  }

  poolOf(key: string): Pool {
    const pool = this.#owners.get(key);
    if (pool === undefined) throw new RangeError(`no such slot: ${key}`);
    return pool;
  }

  /** Key of the slot that an agent is in, in any lane. */
  placeOf(agent: AgentId): string | undefined {
    return this.#places.get(agent);
  }

  /** The slot that an agent is in, in any lane. */
  slotOf(agent: AgentId): Slot | undefined {
    return this.#slots.get(this.#places.get(agent) ?? '');
  }

  get isEmpty(): boolean {
    return this.slots.every(isEmpty);
  }

  get stopping(): boolean {
    return this.#stopping;
  }

  /** From now on nothing is wanted: slots empty themselves as their agents end. */
  beginStop(): void {
    this.#stopping = true;
    this.replanAll();
  }

  /** Posts an event to a slot. */
  post(key: string, event: SlotEvent): void {
    if (this.#closed) return;
    this.#inbox.push({ key, event });
    this.#drain();
  }

  /** A waiting job may have appeared: offers it to slots that could take it, longest free first. */
  offer(poolName: string): void {
    const pool = this.#pools.get(poolName);
    if (pool === undefined) return;
    for (const key of [...pool.able]) {
      if (pool.service.jobs?.next(poolName, null) == null) return;
      this.replan(key);
    }
  }

  /** Fewer jobs wait: sandboxes that an engine was asked for are taken back. */
  withdraw(poolName: string): void {
    const pool = this.#pools.get(poolName);
    if (pool?.pilots === 'surplus') this.replanAll(pool);
  }

  replan(key: string): void {
    this.#unplanned.add(key);
    this.#drain();
  }

  /** Plans every slot of a pool, or of all: after a pause, a drain, a new fingerprint, and on every resync. */
  replanAll(pool?: Pool): void {
    this.#options.replanning?.(pool ?? null);
    for (const [key, owner] of this.#owners) if (pool === undefined || owner === pool) this.#unplanned.add(key);
    this.#drain();
  }

  /** A runtime cannot be reached: nothing begins there until it is back, so jobs wait and no attempts pile up (S6). */
  away(runtime: string, why: string): void {
    this.#unseen.add(runtime);
    for (const pool of this.#pools.values()) if (pool.runtime.name === runtime) pool.away = why;
  }

  /** A runtime is back: its pools try again at once, whatever their back-off. */
  back(runtime: string): void {
    for (const pool of this.#pools.values()) {
      if (pool.runtime.name !== runtime) continue;
      pool.away = null;
      pool.backoff = null;
      pool.rollout.forgive();
      this.#recovered(pool);
    }
  }

  /** Time limits that passed while a runtime was away apply to what still runs. */
  catchUp(runtime: string): void {
    this.#unseen.delete(runtime);
    for (const slot of this.#slots.values()) if (slot.runtime === runtime) this.#armDeadline(slot);
  }

  /** The next intent for a slot, for people. */
  intentOf(key: string): Intent | null {
    const slot = this.#slots.get(key);
    return slot === undefined ? null : intentOf(slot, this.poolOf(key), this.#host());
  }

  /** Syncs, and notifies those who wait for that. */
  flush(): void {
    this.#committer.flush();
  }

  close(): void {
    this.#closed = true;
    this.#timers.clear();
    this.#committer.close();
    this.#inbox.length = 0;
    this.#unplanned.clear();
  }

  #drain(): void {
    if (this.#draining) return;
    this.#draining = true;
    try {
      for (;;) {
        const next = this.#inbox[0];
        if (next !== undefined) {
          if (!this.#step(next.key, next.event)) return;
          this.#inbox.shift();
          this.#tellOffer(next.key);
          continue;
        }
        const [key] = this.#unplanned;
        if (key === undefined || !this.#step(key, null)) return;
        this.#unplanned.delete(key);
        this.#tellOffer(key);
      }
    } finally {
      this.#draining = false;
    }
  }

  /** One event, one commit. False if the commit failed: nothing has changed then. */
  #step(key: string, event: SlotEvent | null): boolean {
    if (this.#committer.blocked) return false;
    const before = this.#slots.get(key);
    if (before === undefined) return true;
    const pool = this.poolOf(key);
    const outcome = step(before, event, pool, { ...this.#host(), newAgent: this.#options.newAgent });
    if (outcome.slot === before) return true;
    if (!this.#committer.commit(before, outcome.slot, outcome.changes, pool.serviceOf(before))) return false;
    this.#put(outcome.slot);
    this.#armDeadline(outcome.slot);
    for (const action of outcome.actions) this.#options.act(key, action);
    this.#options.changed(before, outcome.slot);
    this.#poolChanges(pool, before, event, outcome.changes);
    pool.rollout.stepped(before, outcome);
    if (pool.serviceOf(before) !== pool.serviceOf(outcome.slot)) this.#unplanned.add(key);
    return true;
  }

  #tellOffer(key: string): void {
    const slot = this.#slots.get(key);
    if (slot !== undefined && !this.#isTrying) this.#offers.tell(slot, this.poolOf(key), this.#host());
  }

  #host(): HostView {
    return { stopping: this.#stopping, paused: this.pause.any, now: this.#options.clock.now() };
  }

  #poolChanges(pool: Pool, before: Slot, event: SlotEvent | null, changes: readonly Change[]): void {
    // Planning makes nothing fail.
    const agent = event !== null && 'agent' in event ? event.agent : '';
    for (const change of changes) {
      if (change.change === 'failed') {
        if (!pool.rollout.failed(before, agent, change)) this.#backOff(pool, change);
      } else if (change.change === 'worked' && pool.worked(change.stage)) this.#recovered(pool);
      else if (change.change === 'returned') this.offer(pool.config.name);
    }
  }

  #backOff(pool: Pool, change: Extract<Change, { change: 'failed' }>): void {
    const now = this.#options.clock.now();
    const before = pool.backoff;
    const { until, failures, last } = pool.failed(change.failure, change.stage, now, this.#options.random());
    // The same failure often affects all slots of a pool at once.
    const isSaid = before !== null && before.until > now && before.last.message === last.message;
    if (!isSaid) {
      const seconds = Math.round((until - now) / 1000);
      this.#options.log.warn('pool backs off', { pool: pool.config.name, failures, seconds, reason: last.message });
    }
    this.#timers.arm(`pool ${pool.config.name}`, until, () => this.replanAll(pool));
  }

  #recovered(pool: Pool): void {
    this.#timers.cancel(`pool ${pool.config.name}`);
    this.replanAll(pool);
  }

  #put(slot: Slot): void {
    const before = this.#slots.get(slot.key);
    if (before !== undefined) for (const agent of agentsOf(before)) this.#places.delete(agent);
    for (const agent of agentsOf(slot)) this.#places.set(agent, slot.key);
    this.#slots.set(slot.key, slot);
    this.poolOf(slot.key).index(slot);
  }

  #armDeadline(slot: Slot): void {
    this.#timers.arm(`due ${slot.key}`, dueAt(slot), () => {
      // It may have ended in time, and nobody can end it now: `catchUp` decides once its runtime has said.
      if (this.#unseen.has(slot.runtime) && this.#slots.get(slot.key)?.agent.kind === 'busy') return;
      this.post(slot.key, { kind: 'due' });
      const current = this.#slots.get(slot.key);
      // A timer may fire a moment too early, and is limited to 24 days, so a remaining deadline is armed again. While commits
      // fail the event waits in the inbox instead.
      if (current !== undefined && !this.#committer.blocked) this.#armDeadline(current);
    });
  }
}

/**
 * Whether it is unknown what the standby of a loaded slot is made from: config and rules may have changed since. Continuing would
 * give an outdated sandbox a new fingerprint, or under another name a second sandbox that nobody removes.
 */
function isUnknown(slot: Slot, pool: Pool): boolean {
  const { standby } = slot;
  if (standby.kind === 'preparing') return !waitsAtEngine(slot, pool);
  return standby.kind === 'standby' && standby.reserved !== null;
}

/** A place in the queue of an engine is worth keeping. The runtime knows what it has asked for there. */
function waitsAtEngine({ standby, runtime }: Slot, pool: Pool): boolean {
  return standby.kind === 'preparing' && runtime === pool.runtime.name && pool.runtime.capabilities.grants === 'engine';
}

/**
 * Tells CI services about slots for which one of their agents stands: whether the slot would take a job now, takes none, or is
 * gone. Each change is told once.
 */
export class Offers {
  /** Last offers by slot. */
  readonly #told = new Map<string, SlotOffer>();

  tell(slot: Slot, pool: Pool, host: HostView): void {
    if (!pool.tellsOffers || !pool.service.capabilities.standsForSlots) return;
    const view = slotView(slot, pool, host);
    const offer: SlotOffer = !view.wanted ? 'gone' : isOpen(slot, view, host.now) ? 'open' : 'closed';
    if (this.#told.get(slot.key) === offer) return;
    this.#told.set(slot.key, offer);
    pool.service.jobs?.offer?.(slot.key, offer);
  }
}

/** What applies to every slot of this host. */
export interface HostView {
  readonly stopping: boolean;
  readonly paused: boolean;
  /** Core clock, ms. */
  readonly now: number;
}

/**
 * One step of a slot: what an event changes, and everything that follows at once, so that an end and the next release are one
 * commit. It never spans two CI services, since each has its own commit. Returns the same slot if there is nothing to do. `event`:
 * null to plan only.
 */
export function step(
  before: Slot,
  event: SlotEvent | null,
  pool: Pool,
  host: HostView & { readonly newAgent: (pool: Pool) => AgentId },
): Decision {
  const first: Decision = event === null ? { slot: before, changes: [], actions: [] } : decide(before, event, host.now);
  let slot = rehomed(first.slot, pool);
  const changes = [...first.changes];
  const actions = [...first.actions];
  // If the next work belongs to another service, it belongs to another commit.
  while (pool.serviceOf(slot) === pool.serviceOf(before)) {
    const intent = intentOf(slot, pool, host, changes);
    if (intent === null) break;
    const asked: SlotEvent = intent.kind === 'fill' ? { ...intent, agent: host.newAgent(pool) } : intent;
    const next = decide(slot, asked, host.now);
    if (next.slot === slot) break;
    slot = rehomed(next.slot, pool);
    changes.push(...next.changes);
    actions.push(...next.actions);
  }
  return { slot, changes, actions };
}

/** The next intent for a slot. `changes`: what this step has changed already. */
export function intentOf(slot: Slot, pool: Pool, host: HostView, changes: readonly Change[] = []): Intent | null {
  const view = slotView(slot, pool, host);
  // The pool hears of a failure after the commit, and so it does of a job that a new image has lost; planning in the same step must
  // already hold back.
  const hasLost = pool.rollout.losesJob(slot.key, changes);
  const paused = view.paused || hasLost || changes.some((change) => change.change === 'failed');
  return plan(slot, { ...view, paused }, host.now);
}

/** What its pool asks of a slot. A slot of another runtime or service must only become empty. */
export function slotView(slot: Slot, pool: Pool, { stopping, paused, now }: HostView): PoolView {
  const isForeign = slot.runtime !== pool.runtime.name || pool.serviceOf(slot) !== pool.service;
  return pool.view(slot.key, { stopping: stopping || isForeign, paused, now });
}

/** An empty slot takes over the pool's current runtime, service, grace and devices. */
function rehomed(slot: Slot, { runtime, service, config, devices }: Pool): Slot {
  if (!isEmpty(slot)) return slot;
  const leased = devices.of(slot.key) ?? [];
  const isHome = slot.runtime === runtime.name && slot.service === service.name && slot.grace === config.stopGrace;
  if (isHome && sameDevices(slot.devices, leased)) return slot;
  return { ...slot, runtime: runtime.name, service: service.name, grace: config.stopGrace, devices: leased };
}
