/** The terms of device allocation: devices, what pools want, what slots hold, and when a device is free. */
import type { DeviceId } from './slot.ts';

/** What allocation has to know of a GPU or a MIG instance. */
export interface Allocatable {
  readonly uuid: DeviceId;
  /** UUID of the GPU that a MIG instance belongs to; null for a whole GPU. */
  readonly parent: DeviceId | null;
}

export interface Want<D extends Allocatable> {
  readonly pool: string;
  /** Number of slots, or one for each free device (set of `count` devices) that fits. */
  readonly agents: number | 'per-device';
  /** Devices per slot; 0 for a CPU pool; `all`: every free one that fits. */
  readonly count: number | 'all';
  /** How many slots of this pool may hold the same device; 1 for exclusive use. */
  readonly share: number;
  readonly fits: (device: D) => boolean;
  /**
   * The devices that it asks for by name, in the order of its slots. Slot k of a numbered pool gets the k-th one (with `count`,
   * the k-th set) while it is free. If it is not available, the slot takes a named device beyond those sets, never that of
   * another slot.
   */
  readonly named?: readonly DeviceId[];
}

/** The devices of a slot. `parent` is kept so that a missing MIG instance still bars its whole GPU. */
export interface Lease {
  /** Slot key, `<pool>/<n>` with n from 1. */
  readonly key: string;
  readonly pool: string;
  readonly devices: readonly Allocatable[];
}

/** Who holds which device during allocation. */
export function createLeaseTable() {
  const leases = new Map<string, Lease>();
  const holders = new Map<DeviceId, Lease[]>();
  /** Number of held devices by the GPU that they belong to. */
  const parts = new Map<DeviceId, number>();

  const count = (parent: DeviceId | null, by: number): void => {
    if (parent !== null) parts.set(parent, (parts.get(parent) ?? 0) + by);
  };
  const holdersOf = (uuid: DeviceId): readonly Lease[] => holders.get(uuid) ?? [];

  const release = (key: string): void => {
    const lease = leases.get(key);
    if (lease === undefined) return;
    leases.delete(key);
    for (const { uuid, parent } of lease.devices) {
      const others = holdersOf(uuid).filter((one) => one !== lease);
      holders.set(uuid, others);
      count(parent, -1);
    }
  };

  return {
    held: (key: string): Lease | undefined => leases.get(key),
    /** Gives the slot this lease instead of its current one. */
    take(lease: Lease): void {
      release(lease.key);
      leases.set(lease.key, lease);
      for (const { uuid, parent } of lease.devices) {
        holders.set(uuid, [...holdersOf(uuid), lease]);
        count(parent, 1);
      }
    },
    /** Whether fewer than `share` slots hold it, all of this pool, and nobody holds its GPU or an instance of it. */
    isFree({ uuid, parent }: Allocatable, pool: string, share: number): boolean {
      const all = holdersOf(uuid);
      if (all.length >= share || all.some((lease) => lease.pool !== pool)) return false;
      return (parts.get(uuid) ?? 0) === 0 && (parent === null || holdersOf(parent).length === 0);
    },
    leases: (): Iterable<Lease> => leases.values(),
  };
}
