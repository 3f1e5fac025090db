/** Who holds which device while devices are handed out: what makes a device free, in one place. */
import type { Allocatable, Lease } from './lease.ts';
import type { DeviceId } from './slot.ts';

export interface LeaseBook {
  /** The slot's lease now. */
  held(key: string): Lease | undefined;
  /** Gives the slot this lease in place of the one it had. */
  take(lease: Lease): void;
  /** Whether fewer than `share` slots hold it, all of this pool, and nobody holds its GPU or an instance of it. */
  isFree(device: Allocatable, pool: string, share: number): boolean;
  /** In the order in which they were taken. */
  leases(): Iterable<Lease>;
}

export function createLeaseBook(): LeaseBook {
  const leases = new Map<string, Lease>();
  const holders = new Map<DeviceId, Lease[]>();
  /** Devices that are held, by the GPU they are part of. */
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
      holders.set(
        uuid,
        holdersOf(uuid).filter((one) => one !== lease),
      );
      count(parent, -1);
    }
  };

  return {
    held: (key) => leases.get(key),
    take(lease) {
      release(lease.key);
      leases.set(lease.key, lease);
      for (const { uuid, parent } of lease.devices) {
        holders.set(uuid, [...holdersOf(uuid), lease]);
        count(parent, 1);
      }
    },
    isFree({ uuid, parent }, pool, share) {
      const all = holdersOf(uuid);
      if (all.length >= share || all.some((lease) => lease.pool !== pool)) return false;
      return (parts.get(uuid) ?? 0) === 0 && (parent === null || holdersOf(parent).length === 0);
    },
    leases: () => leases.values(),
  };
}
