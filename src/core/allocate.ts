/**
 * Which slot gets which devices: a static partition, pools in the order of the config file. Pure, and the only place that
 * hands out devices, so S1 starts here: a device is in one slot at most unless its pool shares it, and a whole GPU and an
 * instance of it are never both handed out.
 */
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
  /** Devices per slot; 0 for a CPU pool. */
  readonly count: number;
  /** How many slots of this pool may hold the same device; 1 for exclusive. */
  readonly share: number;
  readonly fits: (device: D) => boolean;
}

export interface Allocation {
  /** Slot key, `<pool>/<n>` with n from 1, and its devices; slots that got none they need are not here. */
  readonly slots: readonly { readonly key: string; readonly pool: string; readonly devices: readonly DeviceId[] }[];
  /** Pools that got fewer slots than they asked for. */
  readonly short: readonly { readonly pool: string; readonly wanted: number; readonly got: number }[];
}

/** Hands out devices. The same input always gives the same slots. */
export function allocate<D extends Allocatable>(wants: readonly Want<D>[], devices: readonly D[]): Allocation {
  const taken = new Set<DeviceId>();
  const split = new Set(devices.map((device) => device.parent).filter((parent) => parent !== null));
  const slots: { key: string; pool: string; devices: DeviceId[] }[] = [];
  const short: { pool: string; wanted: number; got: number }[] = [];
  for (const want of wants) {
    const free = devices.filter((device) => isFree(device, taken, split) && want.fits(device)).map((device) => device.uuid);
    const most = want.count === 0 ? Number.POSITIVE_INFINITY : Math.floor(free.length / want.count) * want.share;
    const wanted = want.agents === 'per-device' ? (want.count === 0 ? 0 : most) : want.agents;
    const got = Math.min(wanted, most);
    for (let n = 0; n < got; n++) {
      const first = Math.floor(n / want.share) * want.count;
      const mine = free.slice(first, first + want.count);
      slots.push({ key: `${want.pool}/${n + 1}`, pool: want.pool, devices: mine });
      for (const uuid of mine) taken.add(uuid);
    }
    if (got < wanted) short.push({ pool: want.pool, wanted, got });
  }
  return { slots, short };
}

function isFree(device: Allocatable, taken: ReadonlySet<DeviceId>, split: ReadonlySet<DeviceId>): boolean {
  // A GPU with MIG instances is no device of its own, and a GPU handed out whole has no instances to hand out.
  return !taken.has(device.uuid) && !split.has(device.uuid) && (device.parent === null || !taken.has(device.parent));
}
