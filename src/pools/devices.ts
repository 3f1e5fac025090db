/**
 * Who may hold which device of this host, and why one must not be used right now. It deals anew whenever something has
 * changed, and tells the loop of the slots for which that made a difference.
 *
 * A look that is not complete takes nothing away from anybody: what it does not list is unknown, not gone (S6).
 */
import { fits } from '../config/conditions.ts';
import type { PoolConfig } from '../config/config.ts';
import type { AllocatedSlot } from '../core/allocate.ts';
import type { Clock } from '../core/clock.ts';
import { sameDevices } from '../core/plan.ts';
import { type DeviceId, isEmpty, type Slot } from '../core/slot.ts';
import { OnejobError } from '../errors.ts';
import type { Device, Inventory } from '../gpu/inventory.ts';
import type { DeviceLocks } from '../gpu/lock.ts';
import type { Near } from '../gpu/topology.ts';
import type { KnownDevice } from '../store/devices.ts';
import type { KnownDevices } from './known-devices.ts';
import { leaseOf, type Partition, partition } from './partition.ts';
import type { Pool, SlotDevices } from './pool.ts';

export interface DeviceBookParts {
  readonly clock: Clock;
  /** Pools whose agents need devices, in the order of the file. */
  readonly pools: readonly PoolConfig[];
  readonly known: KnownDevices;
  readonly locks: DeviceLocks;
  readonly slots: () => readonly Slot[];
  /** The next job of a pool that leases for each job, with how many devices it needs; null when none waits. */
  readonly waiting: (pool: string) => WaitingForDevices | null;
  /** Told when what these slots may hold, or whether they may use it, has changed. */
  readonly changed: (keys: readonly string[]) => void;
}

/** What a device is to a person. */
export type DeviceState = 'free' | 'leased' | 'occupied' | 'reserved' | 'quarantined' | 'missing' | 'elsewhere';

export class DeviceBook {
  readonly #parts: DeviceBookParts;
  readonly known: KnownDevices;
  #inventory: Inventory | null = null;
  #near: Near = () => 0;
  #partition: Partition = { slots: [], short: [], waiting: new Set() };
  readonly #dealt = new Map<string, Dealt>();
  /** Who holds a device that no agent of ours is on. */
  #occupied: ReadonlyMap<DeviceId, string> = new Map();
  /** Devices that the last look did not list and that may be there all the same. */
  #unseen: ReadonlySet<DeviceId> = new Set();
  /** Devices that another manager of this host has, with who has each, in words: as far as anybody asked. */
  readonly #others = new Map<DeviceId, string>();
  readonly #demands: Demands;

  constructor(parts: DeviceBookParts) {
    this.#parts = parts;
    this.known = parts.known;
    this.#demands = new Demands(parts.clock, parts.waiting);
  }

  get pools(): readonly PoolConfig[] {
    return this.#parts.pools;
  }

  /** What was seen last, with what an incomplete look did not list; null before the first look. */
  get inventory(): Inventory | null {
    return this.#inventory;
  }

  /** How many devices the last look did not list, without their being gone for it. */
  get unseen(): number {
    return this.#unseen.size;
  }

  get partition(): Partition {
    return this.#partition;
  }

  readonly slotDevices: SlotDevices = {
    of: (key) => {
      // Nobody has looked yet: what is in a slot keeps its devices, and nothing new is put in.
      if (this.#inventory === null) {
        return held(this.#parts.slots().find((slot) => slot.key === key && !isEmpty(slot))?.devices);
      }
      const slot = this.#dealt.get(key)?.slot;
      const isGone = (slot?.missing.length ?? 0) > 0 && (this.#inventory.complete || !this.#standsBy(key));
      if (slot === undefined || slot.outdated || isGone || slot.barred.length > 0 || this.#isOver(key)) return null;
      return held(slot.devices.map(({ uuid }) => uuid));
    },
    heldBack: (key) => (this.#dealt.get(key) ?? this.#look(key)).held,
    lost: (key) => {
      if (this.#inventory === null) return false;
      const slot = this.#dealt.get(key)?.slot;
      if (slot === undefined || slot.missing.length > 0) return this.#inventory.complete;
      if (slot.barred.length > 0 || slot.outdated) return true;
      const taken = (uuid: DeviceId): boolean => this.known.whyNot(uuid) !== null || this.#occupied.has(uuid);
      return slot.devices.some(({ uuid, parent }) => taken(uuid) || (parent !== null && this.known.whyNot(parent) !== null));
    },
  };

  /** Keys of the slots a pool has now: as many as it asks for, or as there are devices. */
  slotsOf(pool: PoolConfig): string[] {
    const numbered = (most: number) => Array.from({ length: most }, (_, i) => `${pool.name}/${i + 1}`);
    if (pool.agents !== 'per-device') return numbered(pool.agents);
    if (pool.standby) return this.#partition.slots.filter((slot) => slot.pool === pool.name).map((slot) => slot.key);
    const fitting = this.#inventory?.devices.filter((device) => fits(device, pool.devices)).length ?? 0;
    const { count, share } = pool.devices;
    return numbered((count === 'all' ? Math.min(1, fitting) : Math.floor(fitting / Math.max(1, count))) * share);
  }

  /** A new look at the host, with who holds what of it beside us. */
  saw(inventory: Inventory, occupied: ReadonlyMap<DeviceId, string>, near: Near = () => 0): void {
    this.#near = near;
    const before = this.#inventory;
    const listed = new Set(inventory.devices.map((device) => device.uuid));
    const rest = inventory.complete || before === null ? [] : before.devices.filter((device) => !listed.has(device.uuid));
    this.#inventory = rest.length === 0 ? inventory : { ...inventory, devices: [...inventory.devices, ...rest] };
    this.#unseen = new Set(rest.map(({ uuid }) => uuid));
    this.#occupied = occupied;
    // Asked anew from now on: the other manager may have ended.
    this.#others.clear();
    this.known.saw(inventory.devices);
    this.deal();
  }

  /** After a look, an end, a new waiting job, a person's wish. */
  deal(): void {
    const { slots, changed } = this.#parts;
    const mine = slots().filter((slot) => slot.devices.length > 0 || this.#dealt.has(slot.key));
    const inUse = new Set(mine.filter((slot) => !isEmpty(slot)).map((slot) => slot.key));
    let dealt = this.#partitioned(mine, inUse);
    // What another manager of this host has is none of ours; without it others may do.
    while (this.#lock(dealt, inUse)) dealt = this.#partitioned(mine, inUse);
    this.#parts.locks.keep(new Set(dealt.slots.flatMap((slot) => slot.devices.map(({ uuid }) => uuid))));
    this.known.leased(dealt.slots);
    this.#partition = dealt;
    const different: string[] = [];
    for (const key of new Set([...this.#dealt.keys(), ...dealt.slots.map((slot) => slot.key)])) {
      const before = this.#dealt.get(key);
      const after = this.#look(key);
      if (before !== undefined && isSame(before, after)) continue;
      this.#dealt.set(key, after);
      different.push(key);
    }
    if (different.length > 0) changed(different);
  }

  /** A job waits for a pool: deals anew when that one leases for each job. */
  demanded(pool: string): void {
    if (this.pools.some((one) => !one.standby && one.name === pool)) this.deal();
  }

  /** A slot has changed: deals anew when that frees something for somebody, or lets the next job of its pool ask. */
  slotChanged(slot: Slot): void {
    const passing = this.#isPassing(slot.key);
    const freed = isEmpty(slot) && (passing || this.#dealt.get(slot.key)?.slot?.outdated === true);
    if (freed || (passing && slot.standby.kind === 'preparing')) this.deal();
    // What it was dealt may be what it had, and is its own again only now that it is empty.
    if (freed && passing && this.#dealt.get(slot.key)?.slot !== undefined) this.#parts.changed([slot.key]);
  }

  device(uuid: DeviceId): Device | null {
    return this.#inventory?.devices.find((device) => device.uuid === uuid) ?? null;
  }

  /** As a runtime needs them. @throws OnejobError E_DEVICE_LOST for one that was not there at the last look */
  leased(uuids: readonly DeviceId[]): Device[] {
    return uuids.map((uuid) => {
      const device = this.device(uuid);
      if (device !== null) return device;
      throw new OnejobError('E_DEVICE_LOST', `The device ${uuid} is leased, and was not there at the last look.`, {
        hint: '"onejob gpus" shows what is there.',
        retry: true,
      });
    });
  }

  stateOf(uuid: DeviceId): DeviceState {
    const known = this.known.get(uuid);
    if (known?.quarantine != null) return 'quarantined';
    if (known?.reserved != null) return 'reserved';
    if (this.device(uuid) === null) return 'missing';
    if (this.#others.has(uuid)) return 'elsewhere';
    if (this.#occupied.has(uuid)) return 'occupied';
    return this.slotOf(uuid) === null ? 'free' : 'leased';
  }

  /** Why nobody is let at it, or who is on it; null when nothing speaks against it. */
  whyNot(uuid: DeviceId): string | null {
    const seen = this.#unseen.has(uuid) ? unknownText(uuid) : (this.#occupied.get(uuid) ?? null);
    return this.known.whyNot(uuid) ?? this.#others.get(uuid) ?? seen;
  }

  /** Which slot has it, or is to have it. */
  slotOf(uuid: DeviceId): string | null {
    return this.#partition.slots.find((slot) => slot.devices.some((one) => one.uuid === uuid))?.key ?? null;
  }

  /** @throws OnejobError E_DEVICE_UNKNOWN */
  find(name: string): KnownDevice {
    return this.known.find(name, this.#inventory?.devices ?? []);
  }

  /** Changes what is known of a device, and deals anew. @throws OnejobError E_STATE_FULL */
  change(device: KnownDevice): void {
    this.known.save([device]);
    this.deal();
  }

  /** One that will not come back is missed no longer. @throws OnejobError E_DEVICE_IN_USE for one that is there, or still in a slot */
  forget({ uuid }: KnownDevice): void {
    if (this.device(uuid) !== null) {
      throw new OnejobError('E_DEVICE_IN_USE', `Cannot forget ${uuid}: it is there.`, {
        hint: `To keep jobs from it, type "onejob gpus quarantine ${uuid}".`,
      });
    }
    const busy = this.#parts.slots().find((slot) => !isEmpty(slot) && slot.devices.includes(uuid));
    if (busy !== undefined) {
      throw new OnejobError('E_DEVICE_IN_USE', `Cannot forget ${uuid}: something is still in its slot ${busy.key}.`, {
        hint: 'Wait for the end of its job, or type "onejob cancel" for it; then try again.',
      });
    }
    this.known.remove(uuid);
    this.#others.delete(uuid);
    const slots = this.#partition.slots.filter((slot) => !slot.devices.some((one) => one.uuid === uuid));
    this.#partition = { ...this.#partition, slots };
    this.known.saw(this.#inventory?.devices ?? []);
    this.deal();
  }

  /** Whether its pool leases for each job. */
  #isPassing(key: string): boolean {
    return this.pools.some((pool) => !pool.standby && key.startsWith(`${pool.name}/`));
  }

  /**
   * Whether a lease for one job has had its job. Its slot must become empty before it is filled again: else it would go from
   * job to job, past whoever has waited longer for its devices.
   */
  #isOver(key: string): boolean {
    if (!this.#isPassing(key)) return false;
    const slot = this.#parts.slots().find((one) => one.key === key);
    return slot !== undefined && !isEmpty(slot) && slot.standby.kind === 'none';
  }

  /** Whether something waits in it for a job, which stays while its devices are unknown. */
  #standsBy(key: string): boolean {
    const slot = this.#parts.slots().find((one) => one.key === key);
    return slot !== undefined && slot.standby.kind !== 'none';
  }

  #partitioned(mine: readonly Slot[], inUse: ReadonlySet<string>): Partition {
    const { pools, known } = this.#parts;
    const parentOf = (uuid: DeviceId) => this.device(uuid)?.parent ?? known.get(uuid)?.parent ?? null;
    // What a slot holds counts before what it was to hold, and both before what it held when the last manager ended.
    const holding = mine.filter((slot) => inUse.has(slot.key)).map((slot) => leaseOf(slot, parentOf));
    const leases = [...holding, ...this.#partition.slots, ...(this.#dealt.size === 0 ? known.leases : [])];
    const barred = new Set([...this.#others.keys(), ...known.barred]);
    return partition({
      pools,
      devices: this.#inventory?.devices ?? [],
      leases: leases.filter((lease) => lease.devices.length > 0),
      inUse,
      barred,
      occupied: new Set([...this.#occupied.keys(), ...this.#unseen]),
      demands: this.#demands.of(pools),
      near: this.#near,
    });
  }

  /** Takes the locks of what is newly dealt; true when one of them is another's, which nobody knew. */
  #lock(dealt: Partition, inUse: ReadonlySet<string>): boolean {
    const before = this.#others.size;
    for (const { key, devices } of dealt.slots) {
      for (const { uuid } of devices) {
        const why = this.#parts.locks.take(uuid);
        // What is in use stays so: it is ours, whatever the lock says.
        if (why !== null && !inUse.has(key) && !this.#others.has(uuid)) this.#others.set(uuid, why);
      }
    }
    return this.#others.size > before;
  }

  #look(key: string): Dealt {
    const slot = this.#partition.slots.find((one) => one.key === key);
    return { slot, held: this.#heldBack(slot) };
  }

  #heldBack(slot: AllocatedSlot | undefined): string | null {
    if (slot === undefined) {
      if (this.#inventory === null) return 'the GPUs of this host have not been looked at yet';
      return this.#inventory.complete ? 'no device is free for it' : 'no device is free for it, and not all could be seen';
    }
    const [missing] = slot.missing;
    if (missing !== undefined) {
      const isGone = this.#inventory?.complete ?? false;
      return isGone ? this.known.missingText(missing) : unknownText(missing);
    }
    for (const { uuid, parent } of slot.devices) {
      const why = this.whyNot(uuid) ?? (parent === null ? null : this.known.whyNot(parent));
      if (why !== null) return why;
    }
    return slot.outdated ? 'what it holds is no longer what it is to have' : null;
  }
}

/** None at all would let an agent begin without its devices. */
function held(devices: readonly DeviceId[] | undefined): readonly DeviceId[] | null {
  return devices === undefined || devices.length === 0 ? null : devices;
}

function unknownText(uuid: DeviceId): string {
  return `the state of ${uuid} is unknown: the last look at it failed`;
}

/** What one slot was dealt. */
interface Dealt {
  /** undefined: nothing. */
  readonly slot: AllocatedSlot | undefined;
  /** Why it must not be used right now; null when nothing speaks against it. */
  readonly held: string | null;
}

/** Whether nobody has to be told of the difference. */
function isSame(before: Dealt, after: Dealt): boolean {
  return before.held === after.held && isSameSlot(before.slot, after.slot);
}

function isSameSlot(a: AllocatedSlot | undefined, b: AllocatedSlot | undefined): boolean {
  if (a === undefined || b === undefined) return a === b;
  const of = (slot: AllocatedSlot): DeviceId[] => slot.devices.map(({ uuid }) => uuid);
  return (
    a.outdated === b.outdated && sameDevices(of(a), of(b)) && sameDevices(a.missing, b.missing) && sameDevices(a.barred, b.barred)
  );
}

/** The next job of a pool that leases for each job, with how many devices it needs. */
export interface WaitingForDevices {
  readonly job: string;
  readonly devices: number | 'all';
}

/** The next job of this pool, whatever its devices; null when none waits. */
export function nextDemand({ service, config }: Pool): WaitingForDevices | null {
  const next = service.jobs?.next(config.name, null) ?? null;
  return next === null ? null : { job: next.job, devices: service.jobs?.devicesFor?.(next.job) ?? config.devices.count };
}

/** Which pools' next jobs wait for devices, and which of them has waited longest. */
export class Demands {
  readonly #clock: Clock;
  readonly #waiting: (pool: string) => WaitingForDevices | null;
  /** Since when each pool's next job is that: core clock, ms. */
  readonly #since = new Map<string, { readonly job: string; readonly since: number }>();

  /** `waiting`: null when no job waits for that pool. */
  constructor(clock: Clock, waiting: (pool: string) => WaitingForDevices | null) {
    this.#clock = clock;
    this.#waiting = waiting;
  }

  /** Of those of `pools` that lease for each job, the longest-waiting first. */
  of(pools: readonly PoolConfig[]): { readonly pool: string; readonly count: number | 'all' }[] {
    const counts = new Map<string, number | 'all'>();
    for (const { name } of pools.filter((pool) => !pool.standby)) {
      const next = this.#waiting(name);
      if (next === null) {
        this.#since.delete(name);
        continue;
      }
      counts.set(name, next.devices);
      if (this.#since.get(name)?.job !== next.job) this.#since.set(name, { job: next.job, since: this.#clock.now() });
    }
    const since = (pool: string): number => this.#since.get(pool)?.since ?? 0;
    return [...counts].map(([pool, count]) => ({ pool, count })).sort((a, b) => since(a.pool) - since(b.pool));
  }
}
