/**
 * Which slots there are and which devices each may hold, from the config, the host's devices, and the leases so far. Pure. Pools
 * with standbys keep their devices; the others get what is left when a job waits, the longest-waiting demand first: what it could
 * use is reserved for it, so that many small jobs cannot starve a large one.
 */
import { fits } from '../../config/conditions.ts';
import type { PoolConfig } from '../../config/config.ts';
import { type AllocatedSlot, allocate } from '../../core/allocate.ts';
import type { Allocatable, Lease, Want } from '../../core/lease.ts';
import type { DeviceId, Slot } from '../../core/slot.ts';
import type { Device } from '../../gpu/inventory.ts';
import { poolOf } from '../loop/pool.ts';

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
}

export interface Partition {
  readonly slots: readonly AllocatedSlot[];
  /** Pools that got fewer slots than their number of agents; not those that lease for each job. */
  readonly short: readonly { readonly pool: string; readonly wanted: number; readonly got: number }[];
  /** Pools whose waiting job cannot have its devices now. */
  readonly waiting: ReadonlySet<string>;
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
  const granted: Want<Device>[] = [];
  for (const demand of input.demands) {
    const pool = passing.find((one) => one.name === demand.pool);
    if (pool === undefined) continue;
    const place = firstFree(pool.name, inUse);
    // It waits for one of its pool's agents to end, not for devices.
    if (pool.agents !== 'per-device' && place > pool.agents) continue;
    const want = wantOf(pool, demand.count, place, input.occupied);
    // Behind all others and in their own order, so that the next one cannot take from this one.
    const last = [...granted, want];
    const before = wants.filter((one) => !last.some((other) => other.pool === one.pool));
    const next = allocate([...before, ...last], { devices, leases, inUse, barred, near });
    const slot = next.slots.find((one) => one.pool === pool.name && !inUse.has(one.key) && one.devices.length > 0);
    if (slot !== undefined && slot.missing.length === 0 && slot.barred.length === 0) {
      granted.push(want);
      result = next;
      continue;
    }
    waiting.add(pool.name);
    // Nothing is reserved for a job that would not have enough if all other jobs had ended.
    const fixedSlots = result.slots.filter((one) => fixed.some(({ pool }) => pool === one.pool));
    const most = usable(want, devices, fixedSlots, input.barred).length;
    if (want.count !== 'all' && most < want.count) continue;
    for (const { uuid } of usable(want, devices, result.slots, barred).slice(0, want.count === 'all' ? most : want.count))
      barred.add(uuid);
  }
  // A job's lease stays as it is until that job ends, whatever the next one wants.
  const isPassing = (pool: string) => passing.some((one) => one.name === pool);
  const slots = result.slots.map((slot) =>
    isPassing(slot.pool) && inUse.has(slot.key) ? { ...slot, outdated: slot.barred.length > 0 } : slot,
  );
  return { slots, short: result.short.filter(({ pool }) => fixed.some((want) => want.pool === pool)), waiting };
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
