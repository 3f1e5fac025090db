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
import { type DeviceId, isEmpty, type Slot } from '../../core/slot.ts';
import type { Device, Inventory } from '../../gpu/inventory.ts';
import type { DeviceLocks } from '../../gpu/lock.ts';
import type { Near } from '../../gpu/topology.ts';
import type { KnownDevice } from '../../store/devices.ts';
import { poolOf, type SlotDevices } from '../loop/pool.ts';
import { createDemands, type WaitingForDevices } from './demands.ts';
import type { KnownDevices } from './known-devices.ts';
import { type Ending, endingOf, type InLine, waitText } from './latest-start.ts';
import { type Ahead, leaseOf, type Partition, partition } from './partition.ts';

export interface DeviceRegistry {
  /** Pools whose agents need devices, in the order of the file. */
  readonly pools: readonly PoolConfig[];
  readonly known: KnownDevices;
  /** The last look, with the earlier devices that an incomplete look did not list; null before the first look. */
  readonly inventory: Inventory | null;
  /** How many devices the last look did not list although they may exist. */
  readonly unseen: number;
  readonly partition: Partition;
  /** What the loop asks about its slots. */
  readonly slotDevices: SlotDevices;
  /** A new look at the host, with the other users of its devices. `near`: how close they are to each other. */
  inventoryChanged(inventory: Inventory, occupied: ReadonlyMap<DeviceId, string>, near?: Near): void;
  /** What a pool needs may have changed (null: any pool): allocates again if it leases for each job. */
  demandChanged(pool: string | null): void;
  /** A slot has changed: allocates again if that frees devices, or lets the next job of its pool ask. */
  slotChanged(slot: Slot): void;
  /** Allocates again: after a look, an end, a new waiting job, a person's request. */
  allocate(): void;
  /** Keys of a pool's slots: as many as it asks for, or as there are devices. */
  slotsOf(pool: PoolConfig): string[];
  /** The slot that has the device, or will have it. */
  slotOf(uuid: DeviceId): string | null;
  device(uuid: DeviceId): Device | null;
  /** The GPU that a MIG instance is part of, even if the instance is missing. */
  parentOf(uuid: DeviceId): DeviceId | null;
  /** Devices for a runtime. @throws OnejobError E_DEVICE_LOST for one that was missing at the last look */
  leasedDevices(uuids: readonly DeviceId[]): Device[];
  /** A device that an incomplete look did not list is unknown, not gone (S6). */
  stateOf(uuid: DeviceId): DeviceState;
  /** Why it must not be used, or who uses it; null when nothing is against it. */
  whyNot(uuid: DeviceId): string | null;
  /** Since when a pool waits for devices, and after which others, for people; null: it does not wait. */
  waitingText(pool: string): string | null;
  /** @throws OnejobError E_DEVICE_UNKNOWN */
  find(name: string): KnownDevice;
  /** Changes a device's record, and allocates again. @throws OnejobError E_STATE_FULL */
  change(device: KnownDevice): void;
  /** Forgets a missing device. @throws OnejobError E_DEVICE_IN_USE for one that is present, or still in a slot */
  forget(device: KnownDevice): void;
}

interface DeviceRegistryParts {
  readonly clock: Clock;
  readonly pools: readonly PoolConfig[];
  readonly known: KnownDevices;
  readonly locks: DeviceLocks;
  readonly slots: () => readonly Slot[];
  /** The next job of a pool that leases for each job, with the number of devices it needs; null when none waits. */
  readonly waiting: (pool: string) => WaitingForDevices | null;
  /** Its waiting jobs in their order. Default: nobody knows. */
  readonly lineOf?: (pool: string) => Iterable<InLine>;
  /** Called when the devices of these slots, or whether they may use them, have changed. */
  readonly changed: (keys: readonly string[]) => void;
}

/** What was allocated to a slot. */
interface Assignment {
  readonly slot: AllocatedSlot | undefined;
  /** Why it must not be used right now; null when nothing is against it. */
  readonly heldBack: string | null;
}

export function createDeviceRegistry(parts: DeviceRegistryParts): DeviceRegistry {
  return new Registry(parts);
}

class Registry implements DeviceRegistry {
  readonly #parts: DeviceRegistryParts;
  readonly #demands: ReturnType<typeof createDemands>;
  readonly known: KnownDevices;
  inventory: Inventory | null = null;
  #near: Near = () => 0;
  partition: Partition = { slots: [], short: [], waiting: new Set(), waits: [], ahead: null };
  /** By slot: jobs that go before others, until their slots are empty again. */
  readonly #ahead = new Map<string, Ahead>();
  /** By slot. */
  readonly #assignments = new Map<string, Assignment>();
  /** Users of devices that no agent of ours uses. */
  #occupants: ReadonlyMap<DeviceId, string> = new Map();
  /** Devices that the last look did not list but that may exist. */
  #unseen: ReadonlySet<DeviceId> = new Set();
  /** Devices that another manager of this host has, with a message about it: as far as locks were tried. */
  readonly #lockedByOthers = new Map<DeviceId, string>();

  readonly slotDevices: SlotDevices = {
    of: (key) => this.#devicesOf(key),
    heldBack: (key) => this.#lateText(key) ?? (this.#assignments.get(key) ?? this.#assignmentOf(key)).heldBack,
    lost: (key) => this.#isLost(key),
    contested: (pool) => [...this.partition.waiting].some((other) => other !== pool),
    jobOf: (key) => this.#ahead.get(key)?.job ?? null,
    waitText: (pool) => {
      const { complete = false, devices = [] } = this.inventory ?? {};
      const wait = this.partition.waits.find((one) => one.pool === pool && one.count !== 1);
      return complete && devices.length > 0 && wait !== undefined ? waitText(wait, this.#parts.clock) : null;
    },
  };

  constructor(parts: DeviceRegistryParts) {
    this.#parts = parts;
    this.#demands = createDemands(parts.clock, parts.waiting);
    this.known = parts.known;
  }

  get pools(): readonly PoolConfig[] {
    return this.#parts.pools;
  }

  get unseen(): number {
    return this.#unseen.size;
  }

  inventoryChanged(inventory: Inventory, occupied: ReadonlyMap<DeviceId, string>, near: Near = () => 0): void {
    this.#near = near;
    const before = this.inventory;
    const listed = new Set(inventory.devices.map((device) => device.uuid));
    const rest = inventory.complete || before === null ? [] : before.devices.filter((device) => !listed.has(device.uuid));
    this.inventory = rest.length === 0 ? inventory : { ...inventory, devices: [...inventory.devices, ...rest] };
    this.#unseen = new Set(rest.map(({ uuid }) => uuid));
    this.#occupants = occupied;
    // To be tried again from now on: the other manager may have ended.
    this.#lockedByOthers.clear();
    this.known.updateSeen(inventory.devices);
    this.allocate();
  }

  demandChanged(pool: string | null): void {
    const isAsked = this.pools.some(({ name, standby }) => !standby && (pool === null || name === pool));
    if (this.inventory !== null && isAsked) this.allocate();
  }

  slotChanged(slot: Slot): void {
    const perJob = this.#isLeasedPerJob(slot.key);
    const isPreparing = perJob && slot.standby.kind === 'preparing';
    // What comes next waits from now on. What was passed waits still.
    if (isPreparing && this.#ahead.get(slot.key)?.isBehind !== true) this.#demands.served(slot.key, slot.standby.agent);
    const freed = isEmpty(slot) && (perJob || this.#assignments.get(slot.key)?.slot?.outdated === true);
    if (freed || isPreparing) this.allocate();
    // It may have been allocated the devices that it had, which it can use only now that it is empty.
    if (freed && perJob && this.#assignments.get(slot.key)?.slot !== undefined) this.#parts.changed([slot.key]);
  }

  allocate(): void {
    const mine = this.#parts.slots().filter((slot) => slot.devices.length > 0 || this.#assignments.has(slot.key));
    const inUse = new Set(mine.filter((slot) => !isEmpty(slot)).map((slot) => slot.key));
    let allocated = this.#partitioned(mine, inUse);
    // Devices of another manager of this host cannot be used; perhaps others can.
    while (this.#lock(allocated, inUse)) allocated = this.#partitioned(mine, inUse);
    this.#parts.locks.keep(new Set(allocated.slots.flatMap((slot) => slot.devices.map(({ uuid }) => uuid))));
    this.known.updateLeases(allocated.slots);
    const waited = this.partition.waiting;
    this.partition = allocated;
    for (const key of this.#ahead.keys()) if (!inUse.has(key)) this.#ahead.delete(key);
    if (allocated.ahead !== null) this.#ahead.set(allocated.ahead.key, allocated.ahead);
    // What others wait for may be given up.
    const isNews = waited.symmetricDifference(allocated.waiting).size > 0;
    const changed = isNews ? mine.flatMap(({ key }) => (inUse.has(key) && this.#isLeasedPerJob(key) ? key : [])) : [];
    for (const key of new Set([...this.#assignments.keys(), ...allocated.slots.map((slot) => slot.key)])) {
      const before = this.#assignments.get(key);
      const after = this.#assignmentOf(key);
      if (before !== undefined && isSame(before, after)) continue;
      this.#assignments.set(key, after);
      changed.push(key);
    }
    if (changed.length > 0) this.#parts.changed(changed);
  }

  #partitioned(mine: readonly Slot[], inUse: ReadonlySet<string>): Partition {
    // What a slot holds takes precedence over what it was allocated, and both over what it held when the last manager ended.
    const holding = mine.filter((slot) => inUse.has(slot.key)).map((slot) => leaseOf(slot, (uuid) => this.parentOf(uuid)));
    const leases = [...holding, ...this.partition.slots, ...(this.#assignments.size === 0 ? this.known.leases : [])];
    return partition({
      pools: this.pools,
      devices: this.inventory?.devices ?? [],
      leases: leases.filter((lease) => lease.devices.length > 0),
      inUse,
      barred: new Set([...this.#lockedByOthers.keys(), ...this.known.barred]),
      occupied: new Set([...this.#occupants.keys(), ...this.#unseen]),
      demands: this.#demands.of(this.pools),
      near: this.#near,
      endOf: (key) => this.#endOf(key),
      lineOf: this.#parts.lineOf ?? (() => []),
      now: this.#parts.clock.now(),
    });
  }

  #endOf(key: string): Ending {
    const slot = this.#inUse(key);
    if (slot === undefined) return { until: null, job: null, isSure: false };
    const ending = endingOf(slot, this.#parts.clock.now());
    const ahead = this.#ahead.get(key);
    const isBound = ahead !== undefined && ahead.lasts !== null && ahead.beginBy !== Number.POSITIVE_INFINITY;
    return isBound && !ending.isSure ? { until: ahead.beginBy + ahead.lasts, job: ahead.job, isSure: true } : ending;
  }

  /** Why a job that goes before others must not begin any more; null if it may. */
  #lateText(key: string): string | null {
    const by = this.#ahead.get(key)?.beginBy ?? Number.POSITIVE_INFINITY;
    const hasBegun = (this.#inUse(key)?.agent.kind ?? 'free') !== 'free';
    return hasBegun || this.#parts.clock.now() <= by ? null : 'its job might end too late for the one that waits for its devices';
  }

  /** Takes the locks of allocated devices; true when another manager turns out to have one. */
  #lock(allocated: Partition, inUse: ReadonlySet<string>): boolean {
    const before = this.#lockedByOthers.size;
    for (const { key, devices } of allocated.slots) {
      for (const { uuid } of devices) {
        const why = this.#parts.locks.take(uuid);
        // A device in use stays: it is ours, whatever the lock says.
        if (why !== null && !inUse.has(key) && !this.#lockedByOthers.has(uuid)) this.#lockedByOthers.set(uuid, why);
      }
    }
    return this.#lockedByOthers.size > before;
  }

  #assignmentOf(key: string): Assignment {
    const slot = this.partition.slots.find((one) => one.key === key);
    return { slot, heldBack: slot === undefined ? this.#noneText(poolOf(key)) : this.#heldBack(slot) };
  }

  /** Why a slot has no devices. */
  #noneText(pool: string): string {
    const { inventory } = this;
    if (inventory === null) return 'the GPUs of this host have not been checked yet';
    if (inventory.complete && inventory.devices.length === 0) return 'this host has no devices';
    if (!inventory.complete) return 'no device is free for it, but not all could be read';
    const wait = this.partition.waits.find((one) => one.pool === pool);
    return wait === undefined ? 'no device is free for it' : waitText(wait, this.#parts.clock);
  }

  #heldBack(slot: AllocatedSlot): string | null {
    const { inventory } = this;
    const [missing] = slot.missing;
    if (missing !== undefined) return inventory?.complete === true ? this.known.missingText(missing) : unknownText(missing);
    for (const { uuid, parent } of slot.devices) {
      const why = this.whyNot(uuid) ?? (parent === null ? null : this.known.whyNot(parent));
      if (why !== null) return why;
    }
    return slot.outdated ? 'its devices no longer match what it should have' : null;
  }

  /** null instead of an empty list: an agent must not start without its devices. */
  #devicesOf(key: string): readonly DeviceId[] | null {
    if (this.#lateText(key) !== null) return null;
    const orNull = (uuids: readonly DeviceId[]) => (uuids.length === 0 ? null : uuids);
    // Before the first look, slots keep their devices, and empty slots get nothing.
    if (this.inventory === null) return orNull(this.#inUse(key)?.devices ?? []);
    const slot = this.#assignments.get(key)?.slot;
    const isGone = (slot?.missing.length ?? 0) > 0 && (this.inventory.complete || !this.#hasStandby(key));
    if (slot === undefined || slot.outdated || isGone || slot.barred.length > 0 || this.#leaseIsUsed(key)) return null;
    return orNull(slot.devices.map(({ uuid }) => uuid));
  }

  #isLost(key: string): boolean {
    if (this.inventory === null) return false;
    const slot = this.#assignments.get(key)?.slot;
    if (slot === undefined || slot.missing.length > 0) return this.inventory.complete;
    if (slot.barred.length > 0 || slot.outdated) return true;
    const isTaken = (uuid: DeviceId): boolean => this.known.whyNot(uuid) !== null || this.#occupants.has(uuid);
    return slot.devices.some(({ uuid, parent }) => isTaken(uuid) || (parent !== null && this.known.whyNot(parent) !== null));
  }

  /** The slot of this key unless it is empty. */
  #inUse(key: string): Slot | undefined {
    return this.#parts.slots().find((slot) => slot.key === key && !isEmpty(slot));
  }

  /** Whether its pool leases for each job. */
  #isLeasedPerJob(key: string): boolean {
    return this.pools.some((pool) => !pool.standby && key.startsWith(`${pool.name}/`));
  }

  /** Whether a lease for one job has had its job. The slot must become empty, so that jobs that waited longer come first. */
  #leaseIsUsed(key: string): boolean {
    return this.#isLeasedPerJob(key) && this.#inUse(key)?.standby.kind === 'none';
  }

  /** Whether a standby is in it, which stays while its devices are unknown. */
  #hasStandby(key: string): boolean {
    return (this.#inUse(key)?.standby.kind ?? 'none') !== 'none';
  }

  slotsOf(pool: PoolConfig): string[] {
    const numbered = (most: number) => Array.from({ length: most }, (_, i) => `${pool.name}/${i + 1}`);
    if (pool.agents !== 'per-device') return numbered(pool.agents);
    if (pool.standby) return this.partition.slots.filter((slot) => slot.pool === pool.name).map((slot) => slot.key);
    const fitting = this.inventory?.devices.filter((device) => fits(device, pool.devices)).length ?? 0;
    const { count, share } = pool.devices;
    return numbered((count === 'all' ? Math.min(1, fitting) : Math.floor(fitting / Math.max(1, count))) * share);
  }

  slotOf(uuid: DeviceId): string | null {
    return this.partition.slots.find((slot) => slot.devices.some((one) => one.uuid === uuid))?.key ?? null;
  }

  device(uuid: DeviceId): Device | null {
    return this.inventory?.devices.find((device) => device.uuid === uuid) ?? null;
  }

  parentOf(uuid: DeviceId): DeviceId | null {
    return this.device(uuid)?.parent ?? this.known.get(uuid)?.parent ?? null;
  }

  leasedDevices(uuids: readonly DeviceId[]): Device[] {
    return uuids.map((uuid) => {
      const device = this.device(uuid);
      if (device !== null) return device;
      throw new OnejobError('E_DEVICE_LOST', `The device ${uuid} is leased, but was missing at the last check.`, {
        hint: '"onejob gpus" lists the devices of this host.',
        retry: true,
      });
    });
  }

  stateOf(uuid: DeviceId): DeviceState {
    const record = this.known.get(uuid);
    if (record?.quarantine != null) return 'quarantined';
    if (record?.reserved != null) return 'reserved';
    if (this.device(uuid) === null) return this.inventory?.complete === true ? 'missing' : 'unknown';
    if (this.#lockedByOthers.has(uuid)) return 'elsewhere';
    if (this.#occupants.has(uuid)) return 'occupied';
    return this.slotOf(uuid) === null ? 'free' : 'leased';
  }

  whyNot(uuid: DeviceId): string | null {
    const now = this.#unseen.has(uuid) ? unknownText(uuid) : (this.#occupants.get(uuid) ?? null);
    return this.known.whyNot(uuid) ?? this.#lockedByOthers.get(uuid) ?? now;
  }

  waitingText(pool: string): string | null {
    const waited = this.#demands.waited(pool);
    if (waited === null) return null;
    const before = [...this.partition.waiting].filter((other) => other !== pool && (this.#demands.waited(other) ?? 0) > waited);
    const who = before.length === 0 ? 'it is next' : `after ${before.length === 1 ? 'pool' : 'pools'} ${before.join(', ')}`;
    return `it has waited ${Math.round(waited / 1000)} s, and ${who}`;
  }

  find(name: string): KnownDevice {
    return this.known.find(name, this.inventory?.devices ?? []);
  }

  change(device: KnownDevice): void {
    this.known.save([device]);
    this.allocate();
  }

  forget({ uuid }: KnownDevice): void {
    if (this.device(uuid) !== null) {
      throw new OnejobError('E_DEVICE_IN_USE', `Cannot forget ${uuid}: it is present.`, {
        hint: `To keep jobs from it, type "onejob gpus quarantine ${uuid}".`,
      });
    }
    const busy = this.#parts.slots().find((slot) => !isEmpty(slot) && slot.devices.includes(uuid));
    if (busy !== undefined) {
      throw new OnejobError('E_DEVICE_IN_USE', `Cannot forget ${uuid}: its slot ${busy.key} is still in use.`, {
        hint: 'Wait until its job ends, or type "onejob cancel" for it; then try again.',
      });
    }
    this.known.remove(uuid);
    this.#lockedByOthers.delete(uuid);
    const kept = this.partition.slots.filter((slot) => !slot.devices.some((one) => one.uuid === uuid));
    this.partition = { ...this.partition, slots: kept };
    this.known.updateSeen(this.inventory?.devices ?? []);
    this.allocate();
  }
}

export function unknownText(uuid: DeviceId): string {
  return `the state of ${uuid} is unknown: the last check failed`;
}

function isSame(before: Assignment, after: Assignment): boolean {
  const [a, b] = [before.slot, after.slot];
  if (before.heldBack !== after.heldBack || a === undefined || b === undefined)
    return before.heldBack === after.heldBack && a === b;
  const of = ({ devices }: AllocatedSlot): DeviceId[] => devices.map(({ uuid }) => uuid);
  const isSameSet = sameDevices(of(a), of(b)) && sameDevices(a.missing, b.missing) && sameDevices(a.barred, b.barred);
  return isSameSet && a.outdated === b.outdated;
}
