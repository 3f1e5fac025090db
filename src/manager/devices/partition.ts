/**
 * Which slots there are and which devices each may hold, from the config, the host's devices, and the leases so far. Pure. Pools
 * with standbys keep their devices; the others get what is left when a job waits, the longest-waiting demand first: what it could
 * use is reserved for it, so that many small jobs cannot starve a large one. A job may go before it only if that makes it start no
 * later than it would at the latest.
 */
import { fits } from '../../config/conditions.ts';
import type { PoolConfig } from '../../config/config.ts';
import { type AllocatedSlot, allocate } from '../../core/allocate.ts';
import type { Allocatable, Lease, Want } from '../../core/lease.ts';
import type { DeviceId, JobId, Slot } from '../../core/slot.ts';
import type { Device } from '../../gpu/inventory.ts';
import { poolOf } from '../loop/pool.ts';
import { beginBy, type Ending, type InLine, latestStart, type Wait } from './latest-start.ts';

export type PartitionPool = Pick<PoolConfig, 'name' | 'agents' | 'devices' | 'standby'>;

export interface PartitionInput {
  /** Pools whose agents need devices, in the order of the file. */
  readonly pools: readonly PartitionPool[];
  readonly devices: readonly Device[];
  /** Leases so far, of slots that hold or held something. */
  readonly leases: readonly Lease[];
  readonly inUse: ReadonlySet<string>;
  /** Devices that must not be allocated now. */
  readonly barred: ReadonlySet<DeviceId>;
  /** Used by a person, or not seen: a pool that keeps them waits for them, a job may take others. */
  readonly occupied: ReadonlySet<DeviceId>;
  /** Pools without standbys for which a job waits, the longest-waiting first, with the number of devices it needs. */
  readonly demands: readonly { readonly pool: string; readonly count: number | 'all' }[];
  readonly near: (a: Device, b: Device) => number;
  /** When a slot in use gives its devices back. */
  readonly endOf: (key: string) => Ending;
  /** Waiting jobs of a pool in their order, the next one first. */
  readonly lineOf: (pool: string) => Iterable<InLine>;
  /** Core clock, ms. */
  readonly now: number;
}

/** A job that goes before one that waits longer, and the slot that has devices for it. */
export interface Ahead {
  readonly key: string;
  readonly job: JobId;
  /** It passes others of its own pool. */
  readonly isBehind: boolean;
  /** Core clock, ms: later it must not begin. */
  readonly beginBy: number;
  readonly lasts: number | null;
}

export interface Partition {
  readonly slots: readonly AllocatedSlot[];
  /** Pools that got fewer slots than their number of agents; not those that lease for each job. */
  readonly short: readonly { readonly pool: string; readonly wanted: number; readonly got: number }[];
  /** Pools whose waiting job cannot have its devices now. */
  readonly waiting: ReadonlySet<string>;
  /** These jobs, the longest-waiting first. */
  readonly waits: readonly Wait[];
  /** One at a time; the next once its slot is in use. */
  readonly ahead: Ahead | null;
}

export function partition(input: PartitionInput): Partition {
  const { pools, devices, inUse, near } = input;
  const fixed = pools.filter((pool) => pool.standby).map((pool) => wantOf(pool, pool.devices.count, pool.agents));
  const passing = pools.filter((pool) => !pool.standby);
  // For a pool that leases for each job only leases in use count; the next job may want something else.
  const leases = input.leases.filter((lease) => inUse.has(lease.key) || !passing.some((pool) => pool.name === lease.pool));
  const standing = passing.map((pool) => wantOf(pool, pool.devices.count, 0));
  const barred = new Set(input.barred);
  const wants = [...fixed, ...standing];
  let result = allocate(wants, { devices, leases, inUse, barred, near });
  const waiting = new Set<string>();
  const waits: Wait[] = [];
  /** Devices that those who wait could have, now or later. */
  const wanted = new Set<DeviceId>();
  const granted: Want<Device>[] = [];
  let ahead: Ahead | null = null;
  const allocated = (more: readonly Want<Device>[], bars: ReadonlySet<DeviceId>) => {
    // Behind all others and in their own order, so that the next one cannot take from this one.
    const before = wants.filter((one) => !more.some((other) => other.pool === one.pool));
    const result = allocate([...before, ...more], { devices, leases, inUse, barred: bars, near });
    const isNew = ({ key, pool, devices }: AllocatedSlot) => pool === more.at(-1)?.pool && !inUse.has(key) && devices.length > 0;
    const slot = result.slots.find(isNew);
    return slot !== undefined && slot.missing.length === 0 && slot.barred.length === 0 ? { result, slot } : null;
  };
  for (const demand of input.demands) {
    const pool = passing.find((one) => one.name === demand.pool);
    if (pool === undefined) continue;
    const place = firstFree(pool.name, inUse);
    // It waits for one of its pool's agents to end, not for devices.
    if (pool.agents !== 'per-device' && place > pool.agents) continue;
    for (const { job, count, isBehind } of inOrder(demand, input.lineOf(pool.name))) {
      const want = wantOf(pool, count, place, input.occupied);
      const next: ReturnType<typeof allocated> = isBehind && ahead !== null ? null : allocated([...granted, want], barred);
      if (next !== null) {
        granted.push(want);
        result = next.result;
        if (isBehind) ahead = { key: next.slot.key, job, isBehind, beginBy: Number.POSITIVE_INFINITY, lasts: null };
        break;
      }
      waiting.add(pool.name);
      const fixedSlots = result.slots.filter((one) => fixed.some(({ pool }) => pool === one.pool));
      const all = usable(want, devices, fixedSlots, input.barred);
      const needs = want.count === 'all' ? all.length : want.count;
      const isShort = all.length < needs;
      // Nothing is reserved for a job that would not have enough if all other jobs had ended. Then those behind it have their turn.
      const free = isShort ? [] : usable(want, devices, result.slots, barred).slice(0, needs);
      const later = all.filter((one) => !free.includes(one));
      const isNext = !isShort && !all.some(({ uuid }) => wanted.has(uuid));
      const endings = later.map(({ uuid }) => lastEnding(uuid, result.slots, input));
      waits.push({
        pool: pool.name,
        job: job === '' ? null : job,
        count: want.count,
        most: all.length,
        held: free.map(({ uuid }) => uuid),
        latest: isNext ? latestStart(needs, free.length, endings, input.now) : null,
        endless: isNext ? (endings.find((one) => one.until === null && one.job !== null)?.job ?? null) : null,
      });
      if (isShort) continue;
      for (const { uuid } of all) wanted.add(uuid);
      for (const { uuid } of free) barred.add(uuid);
      break;
    }
  }
  // Those that were granted something come first: what is left is not certain before their slots are in use.
  const next =
    granted.length > 0 ? null : goAhead(input, waits, (want, isHeld) => allocated([want], isHeld ? input.barred : barred));
  if (next !== null) {
    result = next.result;
    if (!next.ahead.isBehind) waiting.delete(poolOf(next.ahead.key));
  }
  // A job's lease stays as it is until that job ends, whatever the next one wants.
  const isPassing = (pool: string) => passing.some((one) => one.name === pool);
  const slots = result.slots.map((slot) =>
    isPassing(slot.pool) && inUse.has(slot.key) ? { ...slot, outdated: slot.barred.length > 0 } : slot,
  );
  const short = result.short.filter(({ pool }) => fixed.some((want) => want.pool === pool));
  return { slots, short, waiting, waits: waits.filter(({ pool }) => waiting.has(pool)), ahead: next?.ahead ?? ahead };
}

/** How many waiting jobs of a pool are looked at. */
const looksBehind = 100;

/** The first job that may go before those that wait. `allocated`: what a want gets, with `isHeld` also of what is kept for others. */
function goAhead<R extends { readonly slot: AllocatedSlot }>(
  { pools, inUse, occupied, lineOf, now }: PartitionInput,
  waits: readonly Wait[],
  allocated: (want: Want<Device>, isHeld: boolean) => R | null,
): (R & { readonly ahead: Ahead }) | null {
  for (const { pool: name } of waits) {
    const pool = pools.find((one) => one.name === name);
    if (pool === undefined) continue;
    const key = firstFree(name, inUse);
    // The last free slot is for the one that waits.
    const isLast = pool.agents !== 'per-device' && freeSlots(pool, inUse) < 2;
    const known = new Map<number, readonly (R | null)[]>();
    let at = 0;
    for (const { job, count, lasts } of lineOf(name)) {
      const isBehind = at > 0;
      if (at++ >= looksBehind || (isBehind && isLast)) break;
      if (count === 'all' || count === 0) continue;
      const want = wantOf(pool, count, key, occupied);
      // Rather what is kept for nobody.
      const found = known.get(count) ?? [allocated(want, false), allocated(want, true)];
      known.set(count, found);
      for (const one of found) {
        if (one === null) continue;
        const by = beginBy(new Set(one.slot.devices.map(({ uuid }) => uuid)), lasts, waits, now);
        if (by !== null) return { ...one, ahead: { key: one.slot.key, job, isBehind, beginBy: by, lasts } };
      }
    }
  }
  return null;
}

function freeSlots({ name, agents }: PartitionPool, inUse: ReadonlySet<string>): number {
  const keys = agents === 'per-device' ? [] : Array.from({ length: agents }, (_, at) => `${name}/${at + 1}`);
  return keys.filter((key) => !inUse.has(key)).length;
}

/** What a pool waits for, then what waits behind it. Of jobs that need more than one that cannot have enough, none can. */
function* inOrder({ count }: PartitionInput['demands'][number], line: Iterable<InLine>) {
  let most = Number.POSITIVE_INFINITY;
  let at = 0;
  for (const one of line) {
    const needs = at === 0 ? count : one.count;
    if (at === looksBehind) return;
    if (needs === 'all' || needs < most) yield { job: one.job, count: needs, isBehind: at > 0 };
    if (needs !== 'all') most = Math.min(most, needs);
    at += 1;
  }
  // Its service does not tell.
  if (at === 0) yield { job: '', count, isBehind: false };
}

/** When the last of the slots that have a device gives it back; of those that do not have it yet nobody knows. */
function lastEnding(uuid: DeviceId, slots: readonly AllocatedSlot[], { inUse, endOf }: PartitionInput): Ending {
  const unknown: Ending = { until: null, job: null, isSure: false };
  const holders = slots.filter((slot) => slot.devices.some((one) => one.uuid === uuid || one.parent === uuid));
  const endings = holders.map(({ key }) => (inUse.has(key) ? endOf(key) : unknown));
  const late = ({ until }: Ending) => until ?? Number.POSITIVE_INFINITY;
  return endings.toSorted((a, b) => late(b) - late(a))[0] ?? unknown;
}

/** Whether a slot of the pool may get several devices, so that it matters which. Without standbys a job says how many. */
export function mayLeaseSeveral({ devices: { count }, standby }: Pick<PartitionPool, 'devices' | 'standby'>): boolean {
  return count !== 0 && (count !== 1 || !standby);
}

/** Number of the first empty slot: those before it are all in use, so a pool of as many agents gets this one. */
function firstFree(pool: string, inUse: ReadonlySet<string>): number {
  for (let n = 1; ; n++) if (!inUse.has(`${pool}/${n}`)) return n;
}

/** What a demand could use if only these slots existed. */
function usable(want: Want<Device>, devices: readonly Device[], slots: readonly AllocatedSlot[], barred: ReadonlySet<DeviceId>) {
  const taken = new Set(slots.flatMap((slot) => slot.devices.flatMap(({ uuid, parent }) => [uuid, parent])));
  const parents = new Set(slots.flatMap((slot) => slot.devices.map(({ parent }) => parent)));
  const isTaken = ({ uuid, parent }: Device) => taken.has(uuid) || (parent !== null && taken.has(parent)) || parents.has(uuid);
  return devices.filter((one) => want.fits(one) && !isTaken(one) && !barred.has(one.uuid));
}

function wantOf(
  { name, devices }: PartitionPool,
  count: number | 'all',
  agents: number | 'per-device',
  without: ReadonlySet<DeviceId> = new Set(),
): Want<Device> {
  const isFit = (device: Device): boolean => !without.has(device.uuid) && fits(device, devices);
  const named = count === devices.count && devices.uuids.length > 0 ? { named: devices.uuids } : {};
  return { pool: name, agents, count, share: devices.share, fits: isFit, ...named };
}

/** A lease for allocation: with the GPU of each MIG instance, even of a missing one. */
export function leaseOf(slot: Pick<Slot, 'key' | 'devices'>, parentOf: (uuid: DeviceId) => DeviceId | null): Lease {
  const devices: Allocatable[] = slot.devices.map((uuid) => ({ uuid, parent: parentOf(uuid) }));
  return { key: slot.key, pool: poolOf(slot.key), devices };
}
