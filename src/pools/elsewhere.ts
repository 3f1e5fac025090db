/** Which devices are ours and not another manager's of this host: the locks, as dealing needs them. */
import type { DeviceId } from '../core/slot.ts';
import type { DeviceLocks } from '../gpu/lock.ts';
import type { Partition } from './partition.ts';

export class Elsewhere {
  readonly #locks: DeviceLocks;
  /** Who has a device instead, in words. */
  readonly #others = new Map<DeviceId, string>();

  constructor(locks: DeviceLocks) {
    this.#locks = locks;
  }

  /** Who has it; null where nobody else does, as far as anybody asked. */
  whoHas(uuid: DeviceId): string | null {
    return this.#others.get(uuid) ?? null;
  }

  get devices(): DeviceId[] {
    return [...this.#others.keys()];
  }

  /** Asks anew from now on: the other manager may have ended. */
  forget(uuid?: DeviceId): void {
    if (uuid === undefined) this.#others.clear();
    else this.#others.delete(uuid);
  }

  /** Takes the locks of what is newly dealt; true when one of them is another's, which nobody knew. */
  lock(dealt: Partition, inUse: ReadonlySet<string>): boolean {
    let refused = false;
    for (const slot of dealt.slots) {
      for (const { uuid } of slot.devices) {
        const why = this.#locks.take(uuid);
        // What is in use stays so: it is ours, whatever the lock says.
        if (why === null || inUse.has(slot.key) || this.#others.has(uuid)) continue;
        this.#others.set(uuid, why);
        refused = true;
      }
    }
    return refused;
  }

  /** Gives up the locks of all that is not dealt. */
  keep(dealt: Partition): void {
    this.#locks.keep(new Set(dealt.slots.flatMap((slot) => slot.devices.map(({ uuid }) => uuid))));
  }
}
