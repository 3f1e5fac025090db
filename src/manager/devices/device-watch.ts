/**
 * Looks at the host's GPUs beside the loop: every few seconds, and whenever somebody waits for a proof; all who wait share one
 * look. What concerns the whole host pauses the pools with devices and nothing else; what runs goes on.
 */
import type { AgentId, DeviceId, Slot } from '../../core/slot.ts';
import { toFailure } from '../../errors.ts';
import type { Device, Inventory } from '../../gpu/inventory.ts';
import type { KernelLog, KernelLook } from '../../gpu/kernel-reader.ts';
import type { Probe } from '../../gpu/probe.ts';
import { describeHolder, type Ours, ownersOf, type ProcessOwner, sortHolders } from '../../gpu/processes.ts';
import { hostFault, pidsOn } from '../../gpu/proof.ts';
import type { QuarantineParts } from './quarantine.ts';

interface DeviceWatchParts extends Pick<QuarantineParts, 'clock' | 'log' | 'book'> {
  readonly probe: Probe;
  readonly kernel: KernelLog;
  readonly owner: string;
  /** Default `/proc`. */
  readonly proc?: string;
  readonly slots: () => readonly Slot[];
  /** Ids, beside its own, that the control groups of an agent's processes show. */
  readonly groupsOf: (slot: Slot, agent: AgentId) => readonly string[];
  /** Told of devices that no agent is on, after each look. */
  readonly idle: (look: Look, devices: readonly Device[]) => void;
  /** Told of each look once the devices have been dealt. */
  readonly looked?: (inventory: Inventory) => void;
  /** Holds the pools with devices back, with the reason; null lets them go. */
  readonly hold: (why: string | null) => void;
}

/** One look with everything a judgement needs. */
export interface Look {
  readonly inventory: Inventory;
  readonly owners: ReadonlyMap<number, ProcessOwner>;
  readonly kernel: KernelLook;
}

/** ms between looks; while somebody is waited for, sooner. */
const lookEvery = 15_000;
const lookSoon = 5_000;
/** How old a look of somebody else's may be that stands for one of these. */
const shared = 1_000;

export type DeviceWatch = ReturnType<typeof createDeviceWatch>;

export function createDeviceWatch(parts: DeviceWatchParts) {
  const { probe, kernel, book, hold, log, clock, proc = '/proc', slots, groupsOf, owner, idle, looked } = parts;
  const abort = new AbortController();
  let cancel: (() => void) | null = null;
  let trouble: string | null = null;
  let isWaiting = false;

  /** A look that began at most `maxAge` ms ago; 0: one that begins now. @throws when aborted or closed */
  async function look(maxAge: number, signal: AbortSignal): Promise<Look> {
    const inventory = await probe.look({ maxAge, signal: AbortSignal.any([signal, abort.signal]) });
    const seen = {
      inventory,
      owners: ownersOf(pidsOn(inventory), { proc }),
      kernel: await kernel.look(),
    };
    take(seen);
    return seen;
  }

  /** Whose processes are ours, and whether they still have a right to be there. */
  function oursNow(): Ours {
    const alive = new Set<string>();
    const ended = new Set<string>();
    for (const slot of slots()) {
      for (const { agent, gone } of agentsOf(slot)) {
        const into = gone ? ended : alive;
        into.add(agent);
        for (const group of groupsOf(slot, agent)) into.add(group);
      }
    }
    for (const { baseline } of book.known.all) {
      if (baseline === null || alive.has(baseline.agent)) continue;
      ended.add(baseline.agent);
      for (const container of baseline.containers) ended.add(container);
    }
    return { owner, alive, ended };
  }

  function close(): void {
    abort.abort();
    cancel?.();
  }

  /** Looks once, then again and again until it is closed. Resolves after the first look. */
  async function start(): Promise<void> {
    cancel?.();
    try {
      await look(shared, abort.signal);
    } catch (error) {
      if (!abort.signal.aborted) log.warn('failed to check GPUs', { reason: toFailure(error).message });
    }
    if (abort.signal.aborted) return;
    cancel = clock.after(isWaiting ? lookSoon : lookEvery, () => void start());
  }

  function take(look: Look): void {
    const { inventory, owners } = look;
    const fault = hostFault(inventory);
    const why = fault === null ? null : `${fault.message}${fault.hint === null ? '' : ` ${fault.hint}`}`;
    if (why !== trouble) {
      if (why === null) log.info('GPUs can be used again');
      else log.error('GPUs cannot be used', { reason: why });
      trouble = why;
    }
    const occupied = occupiedNow(inventory, owners);
    book.saw(inventory, occupied, probe.near);
    const isBlind = book.unseen > 0 || (!inventory.complete && inventory.devices.length === 0);
    isWaiting = occupied.size > 0 || why !== null || isBlind;
    const busy = busyNow();
    idle(
      look,
      inventory.devices.filter((device) => !busy.has(device.uuid)),
    );
    looked?.(inventory);
    hold(why);
  }

  /** Devices that an agent of ours is on, or was until its proof is over. */
  function busyNow(): Set<DeviceId> {
    return new Set(slots().flatMap((slot) => (slot.agent.kind === 'free' ? [] : slot.devices)));
  }

  /** Who is on devices that no agent of ours is on. */
  function occupiedNow(inventory: Inventory, owners: ReadonlyMap<number, ProcessOwner>): Map<DeviceId, string> {
    const ours = oursNow();
    const busy = busyNow();
    const occupied = new Map<DeviceId, string>();
    for (const device of inventory.devices) {
      if (busy.has(device.uuid)) continue;
      const holders = sortHolders(device, { owners, ours, shared: false });
      const [first, ...more] = [...(holders?.others ?? []), ...(holders?.unseen ?? []), ...(holders?.leftovers ?? [])];
      if (first === undefined) continue;
      const others = more.length === 0 ? '' : ` and ${more.length} more`;
      occupied.set(device.uuid, `held by ${describeHolder(first, clock.wall())}${others}`);
    }
    return occupied;
  }

  return {
    /** What is wrong with the whole host; null when nothing is. */
    get fault(): string | null {
      return trouble;
    },
    ...{ start, look, ours: oursNow, close },
  };
}

function agentsOf(slot: Slot): { agent: AgentId; gone: boolean }[] {
  const found = slot.leaving.map(({ agent }) => ({ agent, gone: true }));
  if (slot.standby.kind !== 'none') found.push({ agent: slot.standby.agent, gone: false });
  if (slot.agent.kind !== 'free') found.push({ agent: slot.agent.agent, gone: slot.agent.kind === 'proving' });
  return found;
}
