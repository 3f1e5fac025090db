/**
 * Decides which slot gets which devices: a static partition, with pools in the order of the config file. Pure, and the only place
 * that allocates devices, so S1 starts here: a device is in at most one slot unless its pool shares it, and a whole GPU and an
 * instance of it are never both allocated.
 *
 * It runs again whenever devices, config or leases change, and disturbs as little as possible: devices in use stay, a lease that
 * still fits stays, a missing device stays leased to its slot, and only a slot whose device must not be used now moves to a free
 * one.
 */
import { type Allocatable, createLeaseTable, type Lease, type Want } from './lease.ts';
import { type Near, place } from './place.ts';
import type { DeviceId } from './slot.ts';

/** The devices to allocate, and the existing leases. */
export interface Supply<D extends Allocatable> {
  /** Devices that are seen now; earlier ones are preferred. */
  readonly devices: readonly D[];
  /** Existing leases, without those that a person dropped. */
  readonly leases?: readonly Lease[];
  /** Keys of slots that are not empty: their devices cannot be taken away. */
  readonly inUse?: ReadonlySet<string>;
  /** Devices that must not be used now: quarantined, occupied, reserved. A barred GPU bars its instances, too. */
  readonly barred?: ReadonlySet<DeviceId>;
  /** How well two devices work together: NVLink above PCIe root above NUMA node above 0. Symmetric. */
  readonly near?: Near<D>;
}

export interface AllocatedSlot extends Lease {
  /** Its devices that are not seen: it waits for them. */
  readonly missing: readonly DeviceId[];
  /** Its devices that must not be used now and have no free replacement. */
  readonly barred: readonly DeviceId[];
  /** In use, and to be emptied: its pool is gone, smaller or has other wishes, or its devices must not be used. */
  readonly outdated: boolean;
}

export interface Allocation {
  /** Pools in order, slots by number, then slots of removed pools. Slots without devices are not listed. */
  readonly slots: readonly AllocatedSlot[];
  /** Pools that got fewer slots than they asked for. */
  readonly short: readonly { readonly pool: string; readonly wanted: number; readonly got: number }[];
}

/** Allocates devices. The same input always gives the same slots, and its result as leases gives that result again. */
export function allocate<D extends Allocatable>(wants: readonly Want<D>[], supply: Supply<D>): Allocation {
  return new Allocator(supply).allocate(wants);
}

/** Whether a slot got devices, keeps what it had, or there is nothing for it. */
type Filled = 'got' | 'has' | 'none';

class Allocator<D extends Allocatable> {
  readonly #supply: Supply<D>;
  readonly #present: ReadonlyMap<DeviceId, D>;
  /** GPUs with MIG instances. Such a GPU is not a device of its own. */
  readonly #split: ReadonlySet<DeviceId | null>;
  readonly #old: ReadonlyMap<string, Lease>;
  readonly #table = createLeaseTable();

  constructor(supply: Supply<D>) {
    this.#supply = supply;
    this.#present = new Map(supply.devices.map((device) => [device.uuid, device]));
    this.#split = new Set(supply.devices.map((device) => device.parent));
    this.#old = new Map((supply.leases ?? []).map((lease) => [lease.key, lease]));
  }

  allocate(wants: readonly Want<D>[]): Allocation {
    // First the leases in use, then those that can stay, for all pools: only then the rest is free.
    for (const lease of this.#old.values()) if (this.#isInUse(lease.key)) this.#table.take(lease);
    for (const want of wants) {
      for (const lease of this.#leasesOf(want)) {
        const kept = this.#isInUse(lease.key) ? null : this.#keep(want, lease);
        if (kept !== null) this.#table.take(kept);
      }
    }
    let { hasMoved, slots, short } = this.#handOut(wants);
    // A slot of a later pool that moved may have left what a slot of an earlier pool waits for.
    for (let left = this.#old.size; hasMoved && left > 0; left--) ({ hasMoved, slots, short } = this.#handOut(wants));
    const pools = new Set(wants.map((want) => want.pool));
    const others = [...this.#old.values()].filter((lease) => this.#isInUse(lease.key) && !pools.has(lease.pool));
    return { slots: [...slots, ...others.map((lease) => this.#show(lease, null))], short };
  }

  /**
   * One pass through the pools: slots that have nothing, or something barred, take what is free. `hasMoved`: a slot has moved from
   * its devices to others.
   */
  #handOut(wants: readonly Want<D>[]): Allocation & { readonly hasMoved: boolean } {
    const short: { pool: string; wanted: number; got: number }[] = [];
    const slots: AllocatedSlot[] = [];
    let hasMoved = false;
    for (const want of wants) {
      const settle = (key: string): Filled => {
        if (this.#isInUse(key) && this.#old.has(key)) return 'has';
        const held = this.#table.held(key);
        const result = this.#fill(want, key);
        if (result === 'got' && held !== undefined) hasMoved = true;
        return result;
      };
      const keys = new Set<string>();
      const first = this.#keysOf(want);
      // Others may be able to join a slot that moved; each moves once.
      for (let left = first.length; left >= 0; left--) {
        const results = first.map((key) => ({ key, result: settle(key) }));
        for (const { key, result } of results) if (result !== 'none') keys.add(key);
        if (!results.some(({ result }) => result === 'got')) break;
      }
      if (want.agents === 'per-device') addPerDevice(want, keys, settle);
      else if (keys.size < want.agents) short.push({ pool: want.pool, wanted: want.agents, got: keys.size });
      // Surplus slots stay while they are in use.
      for (const lease of this.#old.values()) if (lease.pool === want.pool && this.#isInUse(lease.key)) keys.add(lease.key);
      for (const key of [...keys].toSorted((a, b) => numberOf(a) - numberOf(b))) {
        slots.push(this.#show(this.#table.held(key) ?? { key, pool: want.pool, devices: [] }, want));
      }
    }
    return { slots, short, hasMoved };
  }

  #isInUse(key: string): boolean {
    return this.#supply.inUse?.has(key) === true;
  }

  #isBarred({ uuid, parent }: Allocatable): boolean {
    const { barred } = this.#supply;
    return barred !== undefined && (barred.has(uuid) || (parent !== null && barred.has(parent)));
  }

  /** Whether the pool wants such a device. A missing device is accepted. */
  #suits(want: Want<D>, { uuid }: Allocatable): boolean {
    const device = this.#present.get(uuid);
    return device === undefined || (!this.#split.has(uuid) && want.fits(device));
  }

  #isFreeNow(want: Want<D>, device: Allocatable, share = 1): boolean {
    const isUsable = this.#present.has(device.uuid) && !this.#isBarred(device) && this.#suits(want, device);
    return isUsable && this.#table.isFree(device, want.pool, share);
  }

  /** The lease as it can stay, apart from barred devices; null if it is not complete. */
  #keep(want: Want<D>, lease: Lease): Lease | null {
    const { pool, share, count } = want;
    const good = lease.devices.filter((device) => this.#suits(want, device) && this.#table.isFree(device, pool, share));
    const devices = count === 'all' ? good : good.slice(0, count);
    return devices.length === 0 || devices.length < least(want) ? null : { ...lease, devices };
  }

  #fill(want: Want<D>, key: string): Filled {
    if (want.count === 0) return 'has';
    const held = this.#table.held(key);
    if (held !== undefined && want.count !== 'all' && !held.devices.some((device) => this.#isBarred(device))) return 'has';
    // A lease that is no longer complete keeps the devices that nobody else got.
    const before = held?.devices ?? this.#old.get(key)?.devices.filter((device) => this.#isFreeNow(want, device)) ?? [];
    const good = before.filter((device) => !this.#isBarred(device));
    const devices = this.#choose(want, key, good) ?? (held === undefined && good.length > 0 ? this.#choose(want, key, []) : null);
    if (devices === null) return held === undefined ? 'none' : 'has';
    if (held !== undefined && held.devices.length === devices.length && good.length === devices.length) return 'has';
    this.#table.take({ key, pool: want.pool, devices });
    return 'got';
  }

  #choose(want: Want<D>, key: string, kept: readonly Allocatable[]): readonly Allocatable[] | null {
    const turn = turnOf(want, key);
    const isKept = (device: D) => kept.some(({ uuid }) => uuid === device.uuid);
    const open = [...this.#present.values()].filter((device) => this.#isFreeNow(want, device) && !isKept(device));
    const free = turn.inOrder(open, (other) => this.#table.held(other) !== undefined);
    if (want.count === 'all' && free.length > 0) return [...kept, ...free];
    const company = kept.length > 0 ? undefined : this.#withRoom(want);
    if (company !== undefined) return company;
    if (want.count === 'all') return kept.length > 0 ? kept : null;
    const own = kept.length === 0 ? free.filter(turn.isOwn) : [];
    if (own.length === want.count) return own;
    const seen = kept.flatMap(({ uuid }) => this.#present.get(uuid) ?? []);
    const near = want.named !== undefined && want.count === 1 ? null : (this.#supply.near ?? null);
    const more = place(want.count - kept.length, free, seen, near);
    return more === null ? null : [...kept, ...more];
  }

  /** Devices of a slot that another slot of its sharing pool may join: cards are filled up one by one. */
  #withRoom(want: Want<D>): readonly Allocatable[] | undefined {
    if (want.share === 1) return undefined;
    const isOpen = ({ pool, devices }: Lease): boolean =>
      pool === want.pool &&
      devices.length > 0 &&
      (want.count === 'all' || devices.length === want.count) &&
      devices.every((device) => this.#isFreeNow(want, device, want.share));
    return [...this.#table.leases()].find(isOpen)?.devices;
  }

  #show(lease: Lease, want: Want<D> | null): AllocatedSlot {
    const { key, pool, devices } = lease;
    const barred = devices.filter((device) => this.#isBarred(device));
    const isRight =
      want !== null &&
      isWithin(want, key) &&
      devices.length >= least(want) &&
      (want.count === 'all' || devices.length === want.count) &&
      devices.every((device) => this.#suits(want, device));
    return {
      key,
      pool,
      devices: devices.map(({ uuid, parent }) => ({ uuid, parent })),
      missing: devices.filter(({ uuid }) => !this.#present.has(uuid)).map(({ uuid }) => uuid),
      barred: barred.map(({ uuid }) => uuid),
      outdated: this.#isInUse(key) && (!isRight || barred.length > 0),
    };
  }

  /** Slots that the pool has or should have. Further ones of `per-device` come later. */
  #keysOf(want: Want<D>): string[] {
    if (want.agents !== 'per-device') return Array.from({ length: want.agents }, (_, n) => `${want.pool}/${n + 1}`);
    const keys = this.#leasesOf(want).map(({ key }) => key);
    return keys.filter((key) => want.count !== 0 || this.#isInUse(key));
  }

  #leasesOf(want: Want<D>): Lease[] {
    const all = [...this.#old.values()].filter((lease) => lease.pool === want.pool && isWithin(want, lease.key));
    return all.toSorted((a, b) => numberOf(a.key) - numberOf(b.key));
  }
}

function addPerDevice<D extends Allocatable>(want: Want<D>, keys: Set<string>, settle: (key: string) => Filled): void {
  if (want.count === 0) return;
  for (let n = 1; ; n++) {
    const key = `${want.pool}/${n}`;
    if (keys.has(key)) continue;
    if (settle(key) === 'none') return;
    keys.add(key);
  }
}

function least<D extends Allocatable>({ count }: Want<D>): number {
  return count === 'all' ? 1 : count;
}

function isWithin<D extends Allocatable>({ pool, agents }: Want<D>, key: string): boolean {
  const n = numberOf(key);
  return key === `${pool}/${n}` && n >= 1 && (agents === 'per-device' || n <= agents);
}

function numberOf(key: string): number {
  return Number(/\/(\d{1,9})$/.exec(key)?.[1] ?? 0);
}

/** Which of a pool's named devices belong to a slot: they have the order of its slots. */
interface Turn<D extends Allocatable> {
  /** Whether a device belongs to this slot. */
  isOwn(device: D): boolean;
  /**
   * Free devices in the order in which the slot may take them: by their names, without those that belong to another slot which
   * has none yet. `hasSome`: by the slot's key.
   */
  inOrder(free: readonly D[], hasSome: (key: string) => boolean): readonly D[];
}

/** The named devices of one slot. Case does not matter, as in the config. */
function turnOf<D extends Allocatable>(want: Want<D>, key: string): Turn<D> {
  const { named = [], agents, count, share } = want;
  if (named.length === 0) return { isOwn: () => false, inOrder: (free) => free };
  const ranks = new Map(named.map((name, rank) => [name.toLowerCase(), rank]));
  const rankOf = ({ uuid, parent }: Allocatable) =>
    ranks.get(uuid.toLowerCase()) ?? ranks.get(parent?.toLowerCase() ?? '') ?? ranks.size;
  const byRank = (free: readonly D[]) => free.toSorted((one, other) => rankOf(one) - rankOf(other));
  if (agents === 'per-device' || count === 'all') return { isOwn: () => false, inOrder: byRank };
  /**
   * Number of the set, from 0, that a device is in by its own name. A card's name stands for none of its instances in particular.
   */
  const setOf = ({ uuid }: Allocatable) => {
    const rank = ranks.get(uuid.toLowerCase());
    return rank === undefined ? null : Math.floor(rank / count);
  };
  const sets = Math.ceil(agents / share);
  const mine = Math.floor((Number(key.slice(key.lastIndexOf('/') + 1)) - 1) / share);
  return {
    isOwn: (device) => setOf(device) === mine,
    inOrder(free, hasSome) {
      const waits = (set: number) =>
        Array.from({ length: share }, (_, at) => set * share + at + 1).some((n) => n <= agents && !hasSome(`${want.pool}/${n}`));
      const there = new Map<number, number>();
      for (const device of free) {
        const set = setOf(device);
        if (set !== null) there.set(set, (there.get(set) ?? 0) + 1);
      }
      return byRank(free).filter((device) => {
        const set = setOf(device);
        // The rest of another slot's incomplete set is useless to that slot.
        return set === null || set === mine || set >= sets || there.get(set) !== count || !waits(set);
      });
    },
  };
}
