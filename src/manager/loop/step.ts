/**
 * One step of a slot: what an event changes, and everything that follows at once, so that an end and the next release are one
 * commit. Nothing is written or begun here; the caller commits the whole step. A step never spans two CI services, since each has
 * its own commit.
 */
import { type Decision, decide } from '../../core/decide.ts';
import { type Intent, type PoolView, plan, sameDevices } from '../../core/plan.ts';
import { type AgentId, type Change, isEmpty, type Slot, type SlotEvent } from '../../core/slot.ts';
import type { Pool } from './pool.ts';

/** What applies to every slot of this host. */
export interface HostView {
  readonly stopping: boolean;
  readonly paused: boolean;
  /** Core clock, ms. */
  readonly now: number;
}

/** Returns the same slot if there is nothing to do. `event`: null to plan only. */
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
  for (;;) {
    // The next work belongs to another service, and to another commit.
    if (pool.serviceOf(slot) !== pool.serviceOf(before)) break;
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
  const view = viewOf(slot, pool, host);
  // The pool hears of a failure after the commit; planning in the same step must already hold back.
  const paused = view.paused || changes.some((change) => change.change === 'failed');
  return plan(slot, { ...view, paused }, host.now);
}

/** What its pool asks of a slot. A slot of another runtime or service must only become empty. */
export function viewOf(slot: Slot, pool: Pool, { stopping, paused }: HostView): PoolView {
  const isForeign = slot.runtime !== pool.runtime.name || pool.serviceOf(slot) !== pool.service;
  return pool.view(slot.key, { stopping: stopping || isForeign, paused });
}

/** An empty slot takes over the pool's current runtime, service, grace and devices. */
function rehomed(slot: Slot, { runtime, service, config, devices }: Pool): Slot {
  if (!isEmpty(slot)) return slot;
  const leased = devices.of(slot.key) ?? [];
  const isHome = slot.runtime === runtime.name && slot.service === service.name && slot.grace === config.stopGrace;
  if (isHome && sameDevices(slot.devices, leased)) return slot;
  return { ...slot, runtime: runtime.name, service: service.name, grace: config.stopGrace, devices: leased };
}
