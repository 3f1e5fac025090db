/** What the allocation of devices speaks of: devices, what pools want of them, and what slots hold. */
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
