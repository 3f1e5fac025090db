/**
 * Which slot may hold which device of this host, and why a device must not be used right now. It allocates again whenever
 * something has changed, and tells the loop the affected slots. An incomplete look takes nothing away: a device that it does not
 * list is unknown, not gone (S6).
 */

import { OnejobError } from '../../base/errors.ts';
import { fits } from '../../config/conditions.ts';
import type { PoolConfig } from '../../config/config.ts';
import type { DeviceState } from '../../contract/schema.ts';
import type { AllocatedSlot } from '../../core/allocate.ts';
import type { Clock } from '../../core/clock.ts';
import { sameDevices } from '../../core/plan.ts';
import { type AgentId, type DeviceId, isEmpty, type Slot } from '../../core/slot.ts';
import type { Device, Inventory } from '../../gpu/inventory.ts';
import type { DeviceLocks } from '../../gpu/lock.ts';
import type { Near } from '../../gpu/topology.ts';
import type { KnownDevice } from '../../store/devices.ts';
import { type Pool, poolOf, type SlotDevices } from '../loop/pool.ts';
import type { KnownDevices } from './known-devices.ts';
import { leaseOf, type Partition, partition } from './partition.ts';

interface DeviceRegistryParts {
  readonly clock: Clock;
  /** Pools whose agents need devices, in the order of the file. */
  readonly pools: readonly PoolConfig[];
  readonly known: KnownDevices;
  readonly locks: DeviceLocks;
  readonly slots: () => readonly Slot[];
  /** The next job of a pool that leases for each job, with the number of devices it needs; null when none waits. */
  readonly waiting: (pool: string) => WaitingForDevices | null;
  /** Called when the devices of these slots, or whether they may use them, have changed. */
  readonly changed: (keys: readonly string[]) => void;
}

export type DeviceRegistry = ReturnType<typeof createDeviceRegistry>;

export function createDeviceRegistry({ slots, changed, pools, known, locks, clock, waiting }: DeviceRegistryParts) {
  let inventoryNow: Inventory | null = null;
  let nearNow: Near = () => 0;
  let partitionNow: Partition = { slots: [], short: [], waiting: new Set() };
  const dealtTo = new Map<string, Dealt>();
  /** Users of devices that no agent of ours uses. */
  let occupants: ReadonlyMap<DeviceId, string> = new Map();
  /** Devices that the last look did not list but that may exist. */
  let unseen: ReadonlySet<DeviceId> = new Set();
  /** Devices that another manager of this host has, with a message about it: as far as locks were tried. */
  const others = new Map<DeviceId, string>();
  const demands = createDemands(clock, waiting);

  /** The slot of this key unless it is empty. */
  const inUseNow = (key: string): Slot | undefined => slots().find((slot) => slot.key === key && !isEmpty(slot));

  const slotDevices: SlotDevices = {
    of: (key) => {
      // Before the first look, slots keep their devices, and empty slots get nothing.
      if (inventoryNow === null) return held(inUseNow(key)?.devices);
      const slot = dealtTo.get(key)?.slot;
      const isGone = (slot?.missing.length ?? 0) > 0 && (inventoryNow.complete || !standsBy(key));
      if (slot === undefined || slot.outdated || isGone || slot.barred.length > 0 || isOver(key)) return null;
      return held(slot.devices.map(({ uuid }) => uuid));
    },
    heldBack: (key) => (dealtTo.get(key) ?? lookAt(key)).held,
    lost: (key) => {
      if (inventoryNow === null) return false;
      const slot = dealtTo.get(key)?.slot;
      if (slot === undefined || slot.missing.length > 0) return inventoryNow.complete;
      if (slot.barred.length > 0 || slot.outdated) return true;
      const taken = (uuid: DeviceId): boolean => known.whyNot(uuid) !== null || occupants.has(uuid);
      return slot.devices.some(({ uuid, parent }) => taken(uuid) || (parent !== null && known.whyNot(parent) !== null));
    },
    contested: (pool) => [...partitionNow.waiting].some((one) => one !== pool),
  };

  /** Keys of a pool's slots: as many as it asks for, or as there are devices. */
  function slotsOf(pool: PoolConfig): string[] {
    const numbered = (most: number) => Array.from({ length: most }, (_, i) => `${pool.name}/${i + 1}`);
    if (pool.agents !== 'per-device') return numbered(pool.agents);
    if (pool.standby) return partitionNow.slots.filter((slot) => slot.pool === pool.name).map((slot) => slot.key);
    const fitting = inventoryNow?.devices.filter((device) => fits(device, pool.devices)).length ?? 0;
    const { count, share } = pool.devices;
    return numbered((count === 'all' ? Math.min(1, fitting) : Math.floor(fitting / Math.max(1, count))) * share);
  }

  /** A new look at the host, with the other users of its devices. */
  function saw(inventory: Inventory, occupied: ReadonlyMap<DeviceId, string>, near: Near = () => 0): void {
    nearNow = near;
    const before = inventoryNow;
    const listed = new Set(inventory.devices.map((device) => device.uuid));
    const rest = inventory.complete || before === null ? [] : before.devices.filter((device) => !listed.has(device.uuid));
    inventoryNow = rest.length === 0 ? inventory : { ...inventory, devices: [...inventory.devices, ...rest] };
    unseen = new Set(rest.map(({ uuid }) => uuid));
    occupants = occupied;
    // To be tried again from now on: the other manager may have ended.
    others.clear();
    known.saw(inventory.devices);
    deal();
  }

  /** Allocates again: after a look, an end, a new waiting job, a person's request. */
  function deal(): void {
    const mine = slots().filter((slot) => slot.devices.length > 0 || dealtTo.has(slot.key));
    const inUse = new Set(mine.filter((slot) => !isEmpty(slot)).map((slot) => slot.key));
    let allocated = partitioned(mine, inUse);
    // Devices of another manager of this host cannot be used; perhaps others can.
    while (lock(allocated, inUse)) allocated = partitioned(mine, inUse);
    locks.keep(new Set(allocated.slots.flatMap((slot) => slot.devices.map(({ uuid }) => uuid))));
    known.leased(allocated.slots);
    const waited = partitionNow.waiting;
    partitionNow = allocated;
    // What others wait for may be given up.
    const isNews = waited.symmetricDifference(allocated.waiting).size > 0;
    const different: string[] = isNews
      ? mine.filter((slot) => inUse.has(slot.key) && isPassing(slot.key)).map(({ key }) => key)
      : [];
    for (const key of new Set([...dealtTo.keys(), ...allocated.slots.map((slot) => slot.key)])) {
      const before = dealtTo.get(key);
      const after = lookAt(key);
      if (before !== undefined && isSame(before, after)) continue;
      dealtTo.set(key, after);
      different.push(key);
    }
    if (different.length > 0) changed(different);
  }

  /** What a pool needs may have changed (null: any pool): allocates again if it leases for each job. */
  function demanded(pool: string | null): void {
    if (inventoryNow !== null && pools.some((one) => !one.standby && (pool === null || one.name === pool))) deal();
  }

  /** A slot has changed: allocates again if that frees devices, or lets the next job of its pool ask. */
  function slotChanged(slot: Slot): void {
    const passing = isPassing(slot.key);
    // What comes next waits from now on.
    if (passing && slot.standby.kind === 'preparing') demands.served(slot.key, slot.standby.agent);
    const freed = isEmpty(slot) && (passing || dealtTo.get(slot.key)?.slot?.outdated === true);
    if (freed || (passing && slot.standby.kind === 'preparing')) deal();
    // It may have been allocated the devices that it had, which it can use only now that it is empty.
    if (freed && passing && dealtTo.get(slot.key)?.slot !== undefined) changed([slot.key]);
  }

  function device(uuid: DeviceId): Device | null {
    return inventoryNow?.devices.find((device) => device.uuid === uuid) ?? null;
  }

  /** Devices for a runtime. @throws OnejobError E_DEVICE_LOST for one that was missing at the last look */
  function leased(uuids: readonly DeviceId[]): Device[] {
    return uuids.map((uuid) => {
      const found = device(uuid);
      if (found !== null) return found;
      throw new OnejobError('E_DEVICE_LOST', `The device ${uuid} is leased, but was missing at the last check.`, {
        hint: '"onejob gpus" lists the devices of this host.',
        retry: true,
      });
    });
  }

  /** A device that an incomplete look did not list is unknown, not gone (S6). */
  function stateOf(uuid: DeviceId): DeviceState {
    const record = known.get(uuid);
    if (record?.quarantine != null) return 'quarantined';
    if (record?.reserved != null) return 'reserved';
    if (device(uuid) === null) return inventoryNow?.complete === true ? 'missing' : 'unknown';
    if (others.has(uuid)) return 'elsewhere';
    if (occupants.has(uuid)) return 'occupied';
    return slotOf(uuid) === null ? 'free' : 'leased';
  }

  /** Why it must not be used, or who uses it; null when nothing is against it. */
  function whyNot(uuid: DeviceId): string | null {
    const now = unseen.has(uuid) ? unknownText(uuid) : (occupants.get(uuid) ?? null);
    return known.whyNot(uuid) ?? others.get(uuid) ?? now;
  }

  /** Since when a pool waits for devices, and after which others, for people; null: it does not wait. */
  function inLine(pool: string): string | null {
    const waited = demands.waited(pool);
    if (waited === null) return null;
    const before = [...partitionNow.waiting].filter((other) => other !== pool && (demands.waited(other) ?? 0) > waited);
    const who = before.length === 0 ? 'it is next' : `after ${before.length === 1 ? 'pool' : 'pools'} ${before.join(', ')}`;
    return `it has waited ${Math.round(waited / 1000)} s, and ${who}`;
  }

  /** The slot that has it, or will have it. */
  function slotOf(uuid: DeviceId): string | null {
    return partitionNow.slots.find((slot) => slot.devices.some((one) => one.uuid === uuid))?.key ?? null;
  }

  /** @throws OnejobError E_DEVICE_UNKNOWN */
  function find(name: string): KnownDevice {
    return known.find(name, inventoryNow?.devices ?? []);
  }

  /** Changes a device's record, and allocates again. @throws OnejobError E_STATE_FULL */
  function change(device: KnownDevice): void {
    known.save([device]);
    deal();
  }

  /** Forgets a missing device. @throws OnejobError E_DEVICE_IN_USE for one that is present, or still in a slot */
  function forget({ uuid }: KnownDevice): void {
    if (device(uuid) !== null) {
      throw new OnejobError('E_DEVICE_IN_USE', `Cannot forget ${uuid}: it is present.`, {
        hint: `To keep jobs from it, type "onejob gpus quarantine ${uuid}".`,
      });
    }
    const busy = slots().find((slot) => !isEmpty(slot) && slot.devices.includes(uuid));
    if (busy !== undefined) {
      throw new OnejobError('E_DEVICE_IN_USE', `Cannot forget ${uuid}: its slot ${busy.key} is still in use.`, {
        hint: 'Wait until its job ends, or type "onejob cancel" for it; then try again.',
      });
    }
    known.remove(uuid);
    others.delete(uuid);
    const kept = partitionNow.slots.filter((slot) => !slot.devices.some((one) => one.uuid === uuid));
    partitionNow = { ...partitionNow, slots: kept };
    known.saw(inventoryNow?.devices ?? []);
    deal();
  }

  /** Whether its pool leases for each job. */
  function isPassing(key: string): boolean {
    return pools.some((pool) => !pool.standby && key.startsWith(`${pool.name}/`));
  }

  /** Whether a lease for one job has had its job. The slot must become empty, so that jobs that waited longer come first. */
  function isOver(key: string): boolean {
    return isPassing(key) && inUseNow(key)?.standby.kind === 'none';
  }

  /** Whether a standby is in it, which stays while its devices are unknown. */
  function standsBy(key: string): boolean {
    return (inUseNow(key)?.standby.kind ?? 'none') !== 'none';
  }

  /** The GPU that a MIG instance is part of, even if the instance is missing. */
  function parentOf(uuid: DeviceId): DeviceId | null {
    return device(uuid)?.parent ?? known.get(uuid)?.parent ?? null;
  }

  function partitioned(mine: readonly Slot[], inUse: ReadonlySet<string>): Partition {
    // What a slot holds takes precedence over what it was allocated, and both over what it held when the last manager ended.
    const holding = mine.filter((slot) => inUse.has(slot.key)).map((slot) => leaseOf(slot, parentOf));
    const leases = [...holding, ...partitionNow.slots, ...(dealtTo.size === 0 ? known.leases : [])];
    const barred = new Set([...others.keys(), ...known.barred]);
    return partition({
      pools,
      devices: inventoryNow?.devices ?? [],
      leases: leases.filter((lease) => lease.devices.length > 0),
      inUse,
      barred,
      occupied: new Set([...occupants.keys(), ...unseen]),
      demands: demands.of(pools),
      near: nearNow,
    });
  }

  /** Takes the locks of allocated devices; true when another manager turns out to have one. */
  function lock(allocated: Partition, inUse: ReadonlySet<string>): boolean {
    const before = others.size;
    for (const { key, devices } of allocated.slots) {
      for (const { uuid } of devices) {
        const why = locks.take(uuid);
        // A device in use stays: it is ours, whatever the lock says.
        if (why !== null && !inUse.has(key) && !others.has(uuid)) others.set(uuid, why);
      }
    }
    return others.size > before;
  }

  function lookAt(key: string): Dealt {
    const slot = partitionNow.slots.find((one) => one.key === key);
    return { slot, held: heldBack(slot) };
  }

  function heldBack(slot: AllocatedSlot | undefined): string | null {
    if (slot === undefined) {
      if (inventoryNow === null) return 'the GPUs of this host have not been checked yet';
      if (inventoryNow.complete && inventoryNow.devices.length === 0) return 'this host has no devices';
      return inventoryNow.complete ? 'no device is free for it' : 'no device is free for it, but not all could be read';
    }
    const [missing] = slot.missing;
    if (missing !== undefined) {
      const isGone = inventoryNow?.complete ?? false;
      return isGone ? known.missingText(missing) : unknownText(missing);
    }
    for (const { uuid, parent } of slot.devices) {
      const why = whyNot(uuid) ?? (parent === null ? null : known.whyNot(parent));
      if (why !== null) return why;
    }
    return slot.outdated ? 'its devices no longer match what it should have' : null;
  }

  return {
    /** The last look, with the earlier devices that an incomplete look did not list; null before the first look. */
    get inventory(): Inventory | null {
      return inventoryNow;
    },
    /** How many devices the last look did not list although they may exist. */
    get unseen(): number {
      return unseen.size;
    },
    get partition(): Partition {
      return partitionNow;
    },
    pools,
    known,
    slotDevices,
    slotsOf,
    saw,
    deal,
    demanded,
    slotChanged,
    device,
    leased,
    stateOf,
    whyNot,
    slotOf,
    inLine,
    find,
    change,
    forget,
    parentOf,
  };
}

/** null for an empty list: an agent must not start without its devices. */
function held(devices: readonly DeviceId[] | undefined): readonly DeviceId[] | null {
  return devices === undefined || devices.length === 0 ? null : devices;
}

export function unknownText(uuid: DeviceId): string {
  return `the state of ${uuid} is unknown: the last check failed`;
}

interface Dealt {
  readonly slot: AllocatedSlot | undefined;
  /** Why it must not be used right now; null when nothing is against it. */
  readonly held: string | null;
}

function isSame(before: Dealt, after: Dealt): boolean {
  const [a, b] = [before.slot, after.slot];
  if (before.held !== after.held || a === undefined || b === undefined) return before.held === after.held && a === b;
  const of = ({ devices }: AllocatedSlot): DeviceId[] => devices.map(({ uuid }) => uuid);
  const isSameSet = sameDevices(of(a), of(b)) && sameDevices(a.missing, b.missing) && sameDevices(a.barred, b.barred);
  return isSameSet && a.outdated === b.outdated;
}

export interface WaitingForDevices {
  /** Keeps its pool's place in the line. */
  readonly turn: string;
  readonly devices: number | 'all';
}

/** The next that a pool needs devices for; null: nothing. `unused`: how many of its sandboxes and agents have no job yet. */
export function nextDemand({ service, config }: Pool, unused: number): WaitingForDevices | null {
  const { name, devices } = config;
  const { jobs } = service;
  if (jobs === null) return (service.waiting?.(name) ?? 0) > unused ? { turn: '', devices: devices.count } : null;
  const job = jobs.next(name, null)?.job ?? null;
  const turn = service.turn === undefined ? job : service.turn(name);
  return turn === null ? null : { turn, devices: (job === null ? null : jobs.devicesFor?.(job)) ?? devices.count };
}

/** Whether a slot has, or gets, an agent that no job has been seen of. */
export function isUnused({ standby, agent }: Slot): boolean {
  if (standby.kind !== 'none' || agent.kind === 'registering' || agent.kind === 'idle') return true;
  return agent.kind === 'releasing' && agent.job === null;
}

/** Which pools that lease for each job wait for devices. `waiting`: null when a pool needs none. */
export function createDemands(clock: Pick<Clock, 'now'>, waiting: (pool: string) => WaitingForDevices | null) {
  /** What each pool waits for, and since when: core clock, ms. */
  const since = new Map<string, { readonly turn: string; readonly since: number }>();
  /** The newest agent of each slot that has got its devices. */
  const newest = new Map<string, AgentId>();
  return {
    /** Those that wait, the longest-waiting first. */
    of(pools: readonly PoolConfig[]): { readonly pool: string; readonly count: number | 'all' }[] {
      const counts = new Map<string, number | 'all'>();
      for (const { name } of pools.filter((pool) => !pool.standby)) {
        const next = waiting(name);
        if (next === null) {
          since.delete(name);
          continue;
        }
        counts.set(name, next.devices);
        if (since.get(name)?.turn !== next.turn) since.set(name, { turn: next.turn, since: clock.now() });
      }
      const sinceOf = (pool: string): number => since.get(pool)?.since ?? 0;
      return [...counts].map(([pool, count]) => ({ pool, count })).sort((a, b) => sinceOf(a.pool) - sinceOf(b.pool));
    },
    /** An agent is made for what the slot's pool waited for. */
    served(slot: string, agent: AgentId): void {
      if (newest.get(slot) !== agent) since.delete(poolOf(slot));
      newest.set(slot, agent);
    },
    /** ms for which a pool has waited; null: it does not. */
    waited(pool: string): number | null {
      const found = since.get(pool);
      return found === undefined ? null : clock.now() - found.since;
    },
  };
}
