/** What the allocation of devices speaks of: devices, what pools want of them, what slots hold, and what makes a device free. */
import type { DeviceId } from './slot.ts';

/** What allocation needs to know of a GPU or a MIG instance. */
export interface Allocatable {
  readonly uuid: DeviceId;
  /** UUID of the GPU that a MIG instance is part of; null for a whole GPU. */
  readonly parent: DeviceId | null;
}

export interface Want<D extends Allocatable> {
  readonly pool: string;
  /** How many slots, or one for each device (set of `count` devices) that fits and is free. */
  readonly agents: number | 'per-device';
  /** Devices per slot; 0 for a CPU pool; `all`: each that fits and is free. */
  readonly count: number | 'all';
  /** How many slots of this pool may hold the same device; 1 for exclusive. */
  readonly share: number;
  readonly fits: (device: D) => boolean;
  /**
   * The devices it asks for by name, in the order of its slots: of a numbered pool slot k gets the k-th (of `count` each: the k-th
   * set) while nobody has it. A slot whose own is not to be had takes what is named beyond, never that of another.
   */
  readonly named?: readonly DeviceId[];
}

/** The devices a slot holds. `parent` is kept so that a MIG instance that is missing still bars its whole GPU. */
export interface Lease {
  /** Slot key, `<pool>/<n>` with n from 1. */
  readonly key: string;
  readonly pool: string;
  readonly devices: readonly Allocatable[];
}

export type LeaseBook = ReturnType<typeof createLeaseBook>;

/** Who holds which device while devices are handed out. */
export function createLeaseBook() {
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
    /** The slot's lease now. */
    held: (key: string): Lease | undefined => leases.get(key),
    /** Gives the slot this lease in place of the one it had. */
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
    /** In the order in which they were taken. */
    leases: (): Iterable<Lease> => leases.values(),
  };
}
