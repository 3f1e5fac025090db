/** Stored facts about devices, beyond a look and a restart: which slot leased them, quarantine, reservation, baseline. */

import { OnejobError } from '../../base/errors.ts';
import { formatTime } from '../../base/units.ts';
import type { Clock } from '../../core/clock.ts';
import type { Lease } from '../../core/lease.ts';
import type { DeviceId } from '../../core/slot.ts';
import type { Device } from '../../gpu/inventory.ts';
import { profileOf } from '../../gpu/mig.ts';
import { normalPci } from '../../gpu/pci.ts';
import type { KnownDevice } from '../../store/devices.ts';
import type { Store } from '../../store/store.ts';
import { leaseOf } from './partition.ts';

interface KnownDevicesParts {
  readonly clock: Clock;
  readonly store: Pick<Store, 'devices' | 'transaction'>;
}

/** When a device was last seen matters in minutes; a commit at each look would wear out disks. */
const seenEvery = 60_000;

export class KnownDevices {
  readonly #parts: KnownDevicesParts;
  readonly #known = new Map<DeviceId, KnownDevice>();

  constructor(parts: KnownDevicesParts) {
    this.#parts = parts;
    for (const device of parts.store.devices.all()) this.#known.set(device.uuid, device);
  }

  get all(): readonly KnownDevice[] {
    return [...this.#known.values()];
  }

  get(uuid: DeviceId): KnownDevice | undefined {
    return this.#known.get(uuid);
  }

  /** By UUID or its unambiguous beginning, or by index or PCI address of a GPU in `here`. @throws OnejobError E_DEVICE_UNKNOWN */
  find(name: string, here: readonly Device[]): KnownDevice {
    const exact = this.#known.get(name);
    if (exact !== undefined) return exact;
    const lower = name.toLowerCase();
    const address = normalPci(name) ?? lower;
    const placed = here.filter(({ kind, index, pciId }) => kind === 'gpu' && (String(index) === name || pciId === address));
    const begin = [...this.#known.keys()].filter((uuid) => lower.length >= 4 && uuid.toLowerCase().startsWith(lower));
    const uuids = placed.length > 0 ? placed.map((device) => device.uuid) : begin;
    const found = uuids.length === 1 ? this.#known.get(uuids[0] ?? '') : undefined;
    if (found !== undefined) return found;
    const what = uuids.length > 1 ? `"${name}" could be ${uuids.join(' or ')}` : `There is no device "${name}"`;
    throw new OnejobError('E_DEVICE_UNKNOWN', `${what}.`, { hint: '"onejob gpus" lists all with their UUIDs.' });
  }

  /** What a look lists. */
  updateSeen(devices: readonly Device[]): void {
    const wall = this.#parts.clock.wall();
    const fresh = devices.flatMap((device): KnownDevice[] => {
      const before = this.#known.get(device.uuid);
      const now = { model: device.model, pciId: device.pciId, parent: device.parent, profile: profileOf(device) };
      const unused = { slot: null, isLeased: false, quarantine: null, reserved: null, baseline: null };
      if (before === undefined) return [{ uuid: device.uuid, ...now, lastSeen: wall, ...unused }];
      const same = before.model === now.model && before.pciId === now.pciId && before.profile === now.profile;
      return same && wall - before.lastSeen < seenEvery ? [] : [{ ...before, ...now, lastSeen: wall }];
    });
    this.#saveIfPossible(fresh);
  }

  updateLeases(leases: readonly Lease[]): void {
    const keys = new Map<DeviceId, string[]>();
    for (const { key, devices } of leases) for (const { uuid } of devices) keys.set(uuid, [...(keys.get(uuid) ?? []), key]);
    const changes = this.all.flatMap((known): KnownDevice[] => {
      const [first = null, ...more] = keys.get(known.uuid) ?? [];
      if (first === null) return known.isLeased ? [{ ...known, isLeased: false }] : [];
      // If several slots share it, the stored one stays.
      const slot = known.slot !== null && more.includes(known.slot) ? known.slot : first;
      return known.isLeased && known.slot === slot ? [] : [{ ...known, slot, isLeased: true }];
    });
    this.#saveIfPossible(changes);
  }

  /** What slots held last, also before a restart. */
  get leases(): Lease[] {
    const bySlot = new Map<string, DeviceId[]>();
    for (const { uuid, slot, isLeased } of this.#known.values())
      if (slot !== null && isLeased) bySlot.set(slot, [...(bySlot.get(slot) ?? []), uuid]);
    return [...bySlot].map(([key, devices]) => leaseOf({ key, devices }, (uuid) => this.#known.get(uuid)?.parent ?? null));
  }

  /** A disk that cannot be written must not stop looks and allocation: slots report the problem, and the next look tries again. */
  #saveIfPossible(devices: readonly KnownDevice[]): void {
    try {
      this.save(devices);
    } catch (error) {
      if (!(error instanceof OnejobError)) throw error;
    }
  }

  /** @throws OnejobError E_STATE_FULL */
  save(devices: readonly KnownDevice[]): void {
    if (devices.length === 0) return;
    const { store } = this.#parts;
    // What people are told of, or have asked for: a power cut must not give a bad card to the next job. Nor one with locked clocks.
    const durable = devices.some(({ uuid, quarantine, reserved, locked = null }) => {
      const before = this.#known.get(uuid);
      const isLocking = (before?.locked ?? null) !== locked;
      return isLocking || (before?.quarantine ?? null) !== quarantine || (before?.reserved ?? null) !== reserved;
    });
    store.transaction({ durable }, () => devices.forEach(store.devices.save));
    for (const device of devices) this.#known.set(device.uuid, device);
  }

  remove(uuid: DeviceId): void {
    const { store } = this.#parts;
    store.transaction({ durable: false }, () => store.devices.remove(uuid));
    this.#known.delete(uuid);
  }

  /** Devices in quarantine or reserved. */
  get barred(): DeviceId[] {
    return this.all.filter(({ quarantine, reserved }) => quarantine !== null || reserved !== null).map(({ uuid }) => uuid);
  }

  /** Why no job may get it, according to its record; null when nothing is against it. */
  whyNot(uuid: DeviceId): string | null {
    const known = this.#known.get(uuid);
    if (known?.quarantine != null) return `${uuid} is in quarantine: ${reasonOf(uuid, known.quarantine)}`;
    if (known?.reserved == null) return null;
    const { by, until } = known.reserved;
    const wall = this.#parts.clock.wall();
    if (until !== null && until <= wall) return `${uuid} was given back, and is checked before a job gets it`;
    const end = until === null ? '' : ` until ${formatTime(until, wall)}`;
    return `${uuid} is reserved${by === null ? '' : ` by ${by}`}${end}`;
  }

  /** For `status`: `GPU-… in quarantine since 12:04: 2 errors.`; null for a device that is not in quarantine. */
  quarantineText(uuid: DeviceId): string | null {
    const quarantine = this.#known.get(uuid)?.quarantine ?? null;
    if (quarantine === null) return null;
    return `${uuid} in quarantine since ${formatTime(quarantine.since, this.#parts.clock.wall())}: ${reasonOf(uuid, quarantine)}`;
  }

  /** For `status`: `MIG-… absent since boot; layout not restored?`, `GPU-… absent since 12:04; it was at PCI 0000:1a:00.0`. */
  missingText(uuid: DeviceId): string {
    const { clock } = this.#parts;
    const known = this.#known.get(uuid);
    const place = known?.pciId == null || known.parent !== null ? '' : `; it was at PCI ${known.pciId}`;
    const layout = known?.profile == null ? place : '; layout not restored?';
    const booted = clock.wall() - clock.now();
    const since = known === undefined || known.lastSeen < booted ? 'boot' : formatTime(known.lastSeen, clock.wall());
    return `${uuid} absent since ${since}${layout}`;
  }
}

/** Its sentence begins with the UUID, which the reason needs not repeat. */
function reasonOf(uuid: DeviceId, { reason }: NonNullable<KnownDevice['quarantine']>): string {
  return reason.replaceAll(uuid, 'this device');
}
