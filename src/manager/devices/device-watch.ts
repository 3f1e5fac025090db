/** Looks at the host's GPUs regularly and for waiting proofs. A fault of the whole host pauses only the pools with devices. */

import { toFailure } from '../../base/errors.ts';
import type { AgentId, DeviceId, Slot } from '../../core/slot.ts';
import type { Device, Inventory } from '../../gpu/inventory.ts';
import type { KernelLog, KernelLook } from '../../gpu/kernel-reader.ts';
import type { Probe } from '../../gpu/probe.ts';
import { describeHolder, type Ours, ownersOf, type ProcessOwner, sortHolders } from '../../gpu/processes.ts';
import { hostFault, pidsOn } from '../../gpu/proof.ts';
import type { QuarantineParts } from './quarantine.ts';

interface DeviceWatchParts extends Pick<QuarantineParts, 'clock' | 'log' | 'registry'> {
  readonly probe: Probe;
  readonly kernel: KernelLog;
  readonly owner: string;
  /** Default `/proc`. */
  readonly proc?: string;
  readonly slots: () => readonly Slot[];
  /** Further ids in the control groups of an agent's processes. */
  readonly groupsOf: (slot: Slot, agent: AgentId) => readonly string[];
  readonly listener: {
    /** Called after each look with the devices that no agent uses. */
    idle(look: DeviceLook, devices: readonly Device[]): void;
    /** Called after each look, once the devices have been allocated. */
    looked(inventory: Inventory): void;
    /** Holds the pools with devices back, with the reason; null lets them continue. */
    hold(why: string | null): void;
  };
}

export interface DeviceLook {
  readonly inventory: Inventory;
  readonly owners: ReadonlyMap<number, ProcessOwner>;
  readonly kernel: KernelLook;
}

/** ms between looks; the shorter one while something waits for a look. */
const lookEvery = 15_000;
const lookSoon = 5_000;
/** How old an earlier look may be to count as one of these, ms. */
const shared = 1_000;

export class DeviceWatch {
  readonly #parts: DeviceWatchParts;
  readonly #abort = new AbortController();
  #cancel: (() => void) | null = null;
  #fault: string | null = null;
  #isWaiting = false;

  constructor(parts: DeviceWatchParts) {
    this.#parts = parts;
  }

  /** Why no device of this host can be used; null when they can be. */
  get fault(): string | null {
    return this.#fault;
  }

  /** A look that began at most `maxAge` ms ago; 0: one that begins now. @throws when aborted or closed */
  async look(maxAge: number, signal: AbortSignal): Promise<DeviceLook> {
    const { kernel, probe, proc = '/proc' } = this.#parts;
    const inventory = await probe.look({ maxAge, signal: AbortSignal.any([signal, this.#abort.signal]) });
    const look = { inventory, owners: ownersOf(pidsOn(inventory), { proc }), kernel: await kernel.look() };
    this.#take(look);
    return look;
  }

  /** The ids of our agents, running and ended. */
  ours(): Ours {
    const { groupsOf, owner, registry, slots } = this.#parts;
    const alive = new Set<string>();
    const ended = new Set<string>();
    for (const slot of slots()) {
      for (const { agent, gone } of agentsOf(slot)) {
        const into = gone ? ended : alive;
        into.add(agent);
        for (const group of groupsOf(slot, agent)) into.add(group);
      }
    }
    for (const { baseline } of registry.known.all) {
      if (baseline === null || alive.has(baseline.agent)) continue;
      ended.add(baseline.agent);
      for (const container of baseline.containers) ended.add(container);
    }
    return { owner, alive, ended };
  }

  /** Looks once, then regularly until it is closed. Resolves after the first look. */
  async start(): Promise<void> {
    const { signal } = this.#abort;
    this.#cancel?.();
    try {
      await this.look(shared, signal);
    } catch (error) {
      if (!signal.aborted) this.#parts.log.warn('failed to check GPUs', { reason: toFailure(error).message });
    }
    if (signal.aborted) return;
    this.#cancel = this.#parts.clock.after(this.#isWaiting ? lookSoon : lookEvery, () => void this.start());
  }

  close(): void {
    this.#abort.abort();
    this.#cancel?.();
  }

  #take(look: DeviceLook): void {
    const { listener, log, probe, registry } = this.#parts;
    const { inventory, owners } = look;
    const fault = hostFault(inventory);
    const why = fault === null ? null : `${fault.message}${fault.hint === null ? '' : ` ${fault.hint}`}`;
    if (why !== this.#fault) {
      if (why === null) log.info('GPUs can be used again');
      else log.error('GPUs cannot be used', { reason: why });
      this.#fault = why;
    }
    const occupied = this.#occupied(inventory, owners);
    registry.inventoryChanged(inventory, occupied, probe.near);
    const isBlind = registry.unseen > 0 || (!inventory.complete && inventory.devices.length === 0);
    this.#isWaiting = occupied.size > 0 || why !== null || isBlind;
    listener.idle(look, this.#unused(inventory));
    listener.looked(inventory);
    listener.hold(why);
  }

  /** The devices without an agent of ours, including one whose proof is not over. */
  #unused({ devices }: Inventory): Device[] {
    const used = new Set(this.#parts.slots().flatMap((slot) => (slot.agent.kind === 'free' ? [] : slot.devices)));
    return devices.filter((device) => !used.has(device.uuid));
  }

  /** Who uses devices that no agent of ours uses. */
  #occupied(inventory: Inventory, owners: ReadonlyMap<number, ProcessOwner>): Map<DeviceId, string> {
    const ours = this.ours();
    const occupied = new Map<DeviceId, string>();
    for (const device of this.#unused(inventory)) {
      const holders = sortHolders(device, { owners, ours, shared: false });
      const [first, ...more] = [...(holders?.others ?? []), ...(holders?.unseen ?? []), ...(holders?.leftovers ?? [])];
      if (first === undefined) continue;
      const others = more.length === 0 ? '' : ` and ${more.length} more`;
      occupied.set(device.uuid, `held by ${describeHolder(first, this.#parts.clock.wall())}${others}`);
    }
    return occupied;
  }
}

function agentsOf(slot: Slot): { agent: AgentId; gone: boolean }[] {
  const agents = slot.leaving.map(({ agent }) => ({ agent, gone: true }));
  if (slot.standby.kind !== 'none') agents.push({ agent: slot.standby.agent, gone: false });
  if (slot.agent.kind !== 'free') agents.push({ agent: slot.agent.agent, gone: slot.agent.kind === 'proving' });
  return agents;
}
