/** What people ask about devices, and want done with one. No running job is touched by any of it. */
import type { DeviceAnswer, DeviceChange, DeviceView, ProofView } from '../api/device-schema.ts';
import type { Clock } from '../core/clock.ts';
import type { Slot } from '../core/slot.ts';
import { OnejobError } from '../errors.ts';
import type { KnownDevice } from '../store/devices.ts';
import { deviceView, deviceViews } from './device-views.ts';
import type { DeviceBook } from './devices.ts';
import type { Fleet } from './fleet.ts';

/** What of a fleet people can reach. */
export type FleetParts = Pick<Fleet, 'book' | 'quarantine' | 'reservations' | 'proofs'> & {
  readonly watch: { readonly fault: string | null };
};

export interface DeviceRequests {
  devices(): DeviceView[];
  change(name: string, change: DeviceChange): DeviceAnswer;
  proofs(filter: { readonly device: string | null; readonly limit: number }): ProofView[];
}

export interface DeviceRequestParts {
  /** null where no pool asks for devices: then every request is refused with a sentence that says so. */
  readonly fleet: FleetParts | null;
  readonly clock: Clock;
  readonly slots: () => readonly Slot[];
}

export function createDeviceRequests({ fleet, clock, slots }: DeviceRequestParts): DeviceRequests {
  const known = (): FleetParts => {
    if (fleet !== null) return fleet;
    throw new OnejobError('E_DEVICE_UNKNOWN', 'No pool of this daemon has devices, so it looks after none.', {
      hint: 'Write "devices" in a pool of the config and start the daemon anew. "onejob gpus" shows what this host has.',
    });
  };
  return {
    devices: () => deviceViews({ book: known().book, slots: slots() }),
    change(name, change) {
      const { book } = known();
      const before = book.find(name);
      if (change.act === 'reserve') assertFor(before, change.by, book, clock.wall());
      const changed = apply(before, change, known());
      return { uuid: before.uuid, changed, device: deviceView(before.uuid, { book, slots: slots() }) };
    },
    proofs({ device, limit }) {
      const { book, proofs } = known();
      return proofs.of(device === null ? null : book.find(device).uuid, limit);
    },
  };
}

/** False when it was so already. */
function apply(device: KnownDevice, change: DeviceChange, fleet: FleetParts): boolean {
  const { book, quarantine, reservations } = fleet;
  switch (change.act) {
    case 'reserve':
      reservations.reserve(device, change);
      return true;
    case 'return':
      reservations.giveBack(device);
      return device.reserved !== null;
    case 'quarantine':
      quarantine.putByHand(device, change.reason);
      return true;
    case 'clear':
      if (device.quarantine === null) return false;
      quarantine.clearByHand(device);
      return true;
    case 'forget':
      book.forget(device);
      return true;
  }
}

/** @throws OnejobError for a device that nobody can have now */
function assertFor({ uuid, parent }: KnownDevice, by: string | null, book: DeviceBook, wall: number): void {
  const refuse = (code: 'E_DEVICE_UNKNOWN' | 'E_DEVICE_IN_USE', why: string, hint: string): never => {
    throw new OnejobError(code, `Cannot reserve ${uuid}: ${why}.`, { hint });
  };
  for (const one of [uuid, ...(parent === null ? [] : [parent])]) {
    const reserved = book.known.get(one)?.reserved ?? null;
    if (reserved === null || reserved.by === by || (reserved.until !== null && reserved.until <= wall)) continue;
    refuse('E_DEVICE_IN_USE', book.known.whyNot(one) ?? 'it is reserved', `Ask them, or type "onejob gpus return ${one}".`);
  }
  if (book.device(uuid) === null) refuse('E_DEVICE_UNKNOWN', 'it is not there', '"onejob gpus" shows what is there.');
  if (book.stateOf(uuid) === 'elsewhere') {
    refuse('E_DEVICE_IN_USE', book.whyNot(uuid) ?? 'another onejob has it', 'Reserve it there, with --state-dir.');
  }
}
