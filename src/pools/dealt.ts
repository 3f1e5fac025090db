/** What one slot was dealt. */
import type { AllocatedSlot } from '../core/allocate.ts';
import { sameDevices } from '../core/plan.ts';
import type { DeviceId } from '../core/slot.ts';

export interface Dealt {
  /** undefined: nothing. */
  readonly slot: AllocatedSlot | undefined;
  /** Why it must not be used right now; null when nothing speaks against it. */
  readonly held: string | null;
}

/** Whether nobody has to be told of the difference. */
export function isSame(before: Dealt, after: Dealt): boolean {
  return before.held === after.held && isSameSlot(before.slot, after.slot);
}

function isSameSlot(a: AllocatedSlot | undefined, b: AllocatedSlot | undefined): boolean {
  if (a === undefined || b === undefined) return a === b;
  const of = (slot: AllocatedSlot): DeviceId[] => slot.devices.map(({ uuid }) => uuid);
  return (
    a.outdated === b.outdated && sameDevices(of(a), of(b)) && sameDevices(a.missing, b.missing) && sameDevices(a.barred, b.barred)
  );
}
