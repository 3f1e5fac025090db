/** Devices as people see them, and people's requests about them. None of it affects a running job. */

import { OnejobError } from '../../base/errors.ts';
import { fits } from '../../config/conditions.ts';
import type { PoolConfig } from '../../config/config.ts';
import type {
  DeviceAnswer,
  DeviceChange,
  DeviceState,
  DeviceView,
  MissingView,
  PoolView,
  ProofView,
  QuarantinedView,
  UseView,
} from '../../contract/schema.ts';
import type { Clock } from '../../core/clock.ts';
import type { Allocatable } from '../../core/lease.ts';
import type { DeviceId, Slot } from '../../core/slot.ts';
import type { Device } from '../../gpu/inventory.ts';
import { isInMigMode, profileOf } from '../../gpu/mig.ts';
import type { KnownDevice } from '../../store/devices.ts';
import { poolOf } from '../loop/pool.ts';
import type { DeviceManager } from './device-manager.ts';
import type { DeviceUses } from './device-use.ts';
import { type DeviceRegistry, unknownText } from './registry.ts';

type Shown = Pick<DeviceAccess, 'registry'> & { readonly use: Pick<DeviceUses, 'of'> };

/** Present devices, then missing ones and those that a person reserved or put in quarantine. */
export function deviceViews(devices: Shown, slots: readonly Slot[]): DeviceView[] {
  const { registry } = devices;
  const here = (registry.inventory?.devices ?? []).map(({ uuid }) => uuid);
  const isMissed = ({ slot, quarantine, reserved }: KnownDevice) => slot !== null || quarantine !== null || reserved !== null;
  const gone = registry.known.all.filter((known) => registry.device(known.uuid) === null && isMissed(known));
  return [...here, ...gone.map(({ uuid }) => uuid)].flatMap((uuid) => deviceView(uuid, devices, slots) ?? []);
}

/** null for an unknown device. */
export function deviceView(uuid: DeviceId, { registry, use }: Shown, slots: readonly Slot[]): DeviceView | null {
  const device = registry.device(uuid);
  const known = registry.known.get(uuid);
  if (device === null && known === undefined) return null;
  const parent = registry.parentOf(uuid);
  const { of, ...judged } = judge(uuid, parent, registry);
  const record = registry.known.get(of);
  const isOn = (slot: Slot): boolean =>
    slot.agent.kind !== 'free' && slot.devices.some((one) => one === uuid || registry.parentOf(one) === uuid);
  return {
    uuid,
    kind: device?.kind ?? (parent === null ? 'gpu' : 'mig'),
    model: device?.model ?? known?.model ?? '',
    pciId: device?.pciId ?? known?.pciId ?? null,
    index: device?.index ?? null,
    memoryMiB: device?.memoryMiB ?? null,
    profile: (device === null ? null : profileOf(device)) ?? known?.profile ?? null,
    parent,
    slot: registry.slotOf(uuid),
    agents: slots.filter(isOn).flatMap(({ agent }) => (agent.kind === 'free' ? [] : [agent.agent])),
    ...judged,
    ...timesOf(judged.state, record, known),
    hint: hintFor(judged.state, record, parent),
    use: device === null ? null : use.of(uuid),
  };
}

/** State and reason of a device; `of` is the device whose record they come from: itself or its GPU. */
function judge(uuid: DeviceId, parent: DeviceId | null, registry: DeviceRegistry) {
  const state = registry.stateOf(uuid);
  if (parent !== null && (state === 'free' || state === 'leased' || state === 'occupied')) {
    const whole = registry.stateOf(parent);
    if (whole === 'quarantined' || whole === 'reserved') return { state: whole, why: registry.whyNot(parent), of: parent };
  }
  if (state === 'missing') return { state, why: registry.known.missingText(uuid), of: uuid };
  if (state === 'unknown') return { state, why: unknownText(uuid), of: uuid };
  const device = registry.device(uuid);
  if (state === 'free' && device !== null && isInMigMode(device)) {
    const parts = registry.inventory?.devices.filter((one) => one.parent === uuid && registry.slotOf(one.uuid) !== null) ?? [];
    const split: DeviceState = parts.length > 0 ? 'leased' : 'free';
    return { state: split, why: 'it is in MIG mode, so jobs get its instances', of: uuid };
  }
  return { state, why: registry.whyNot(uuid), of: uuid };
}

function timesOf(state: DeviceState, of: KnownDevice | undefined, known: KnownDevice | undefined) {
  const { quarantine = null, reserved = null } = of ?? {};
  const since: Partial<Record<DeviceState, number | undefined>> = {
    quarantined: quarantine?.since,
    reserved: reserved?.since,
    missing: known?.lastSeen,
    unknown: known?.lastSeen,
  };
  return { since: since[state] ?? null, until: reserved?.until ?? null, retryAt: quarantine?.retryAt ?? null };
}

function hintFor(state: DeviceState, of: KnownDevice | undefined, parent: DeviceId | null): string | null {
  if (of === undefined) return null;
  if (state === 'quarantined') return of.quarantine?.hint ?? `Type "onejob gpus clear ${of.uuid}" when it may be used again.`;
  if (state === 'reserved') return `Type "onejob gpus return ${of.uuid}" to give it back.`;
  if (state !== 'missing') return null;
  const forget = `If it will not come back, type "onejob gpus forget ${of.uuid}".`;
  return parent === null ? forget : `Create the MIG instances again as they were. ${forget}`;
}

/** Devices that were leased once and are certainly gone. */
export function missingDevices(registry: DeviceRegistry): MissingView[] {
  if (registry.inventory?.complete !== true) return [];
  return registry.known.all
    .filter(({ uuid }) => registry.device(uuid) === null)
    .flatMap(({ uuid, slot }) => (slot === null ? [] : [{ uuid, slot, why: registry.known.missingText(uuid) }]));
}

/** Devices in quarantine that a pool had or would get, even without a slot: people must see what is out of use. */
export function quarantinedDevices(registry: DeviceRegistry): QuarantinedView[] {
  return registry.known.all.flatMap(({ uuid, slot }) => {
    const why = registry.known.quarantineText(uuid);
    const pool = why === null ? null : poolFor(uuid, slot, registry);
    return why === null || pool === null ? [] : [{ uuid, pool, why }];
  });
}

/** The pool that has it or an instance of it, else the first that asks for such a device, else the last that had it. */
function poolFor(uuid: DeviceId, last: string | null, registry: DeviceRegistry): string | null {
  const holds = registry.partition.slots.find((slot) => slot.devices.some((one) => one.uuid === uuid || one.parent === uuid));
  if (holds !== undefined) return holds.pool;
  const parts = (registry.inventory?.devices ?? []).filter((one) => one.uuid === uuid || one.parent === uuid);
  const asks = registry.pools.find(({ devices }) => parts.some((one) => !isInMigMode(one) && fits(one, devices)));
  if (asks !== undefined) return asks.name;
  return registry.pools.find(({ name }) => last !== null && name === poolOf(last))?.name ?? null;
}

/** null for pools that lease for each job, and while the host's devices are unknown. */
export function poolDevices(registry: DeviceRegistry, pool: PoolConfig): PoolView['devices'] {
  if (!pool.standby || registry.inventory?.complete !== true || !registry.pools.some(({ name }) => name === pool.name)) return null;
  const slots = registry.partition.slots.filter((slot) => slot.pool === pool.name && slot.devices.length > 0);
  const ready = slots.filter(
    (slot) => slot.missing.length === 0 && !slot.devices.some((one) => isQuarantined(one, registry)),
  ).length;
  return { ready, wanted: pool.agents === 'per-device' ? slots.length + slotsWithout(registry, pool, slots.length) : pool.agents };
}

/** How many more slots a pool with one for each device would have without quarantine. */
function slotsWithout(registry: DeviceRegistry, { name, devices }: PoolConfig, slots: number): number {
  const isFit = (one: Device) => !isInMigMode(one) && fits(one, devices) && isQuarantined(one, registry);
  const here = (registry.inventory?.devices ?? []).filter((one) => registry.slotOf(one.uuid) === null && isFit(one));
  const isGone = (uuid: DeviceId) => registry.device(uuid) === null && registry.slotOf(uuid) === null;
  const gone = quarantinedDevices(registry).filter(({ uuid, pool }) => pool === name && isGone(uuid));
  const count = here.length + gone.length;
  if (devices.count === 'all') return slots === 0 && count > 0 ? 1 : 0;
  return Math.floor(count / Math.max(1, devices.count)) * devices.share;
}

function isQuarantined({ uuid, parent }: Allocatable, registry: DeviceRegistry): boolean {
  return [uuid, parent].some((one) => one !== null && (registry.known.get(one)?.quarantine ?? null) !== null);
}

/** The parts of the device manager that people can reach. */
export type DeviceAccess = Pick<DeviceManager, 'registry' | 'quarantine' | 'reservations' | 'proofs' | 'use'> & {
  readonly watch: { readonly fault: string | null };
};

/** `manager`: null where no pool asks for devices; then lists are empty, and requests about one device are refused. */
export function createDeviceRequests(manager: DeviceAccess | null, clock: Pick<Clock, 'wall'>, slots: () => readonly Slot[]) {
  const known = (): DeviceAccess => {
    if (manager !== null) return manager;
    throw new OnejobError('E_DEVICE_UNKNOWN', 'No pool of this daemon has devices, so it manages none.', {
      hint: 'Set "devices" in a pool of the config and restart the daemon. "onejob gpus" lists the devices of this host.',
    });
  };
  return {
    devices(): DeviceView[] {
      if (manager === null) return [];
      manager.use.asked();
      return deviceViews(manager, slots());
    },
    deviceUse(name: string, since: number): UseView[] {
      const { registry, use } = known();
      use.asked();
      return use.recent(registry.find(name).uuid, since);
    },
    changeDevice(name: string, change: DeviceChange): DeviceAnswer {
      const { registry } = known();
      const before = registry.find(name);
      if (change.act === 'reserve') assertFor(before, change.by, registry, clock.wall());
      const changed = apply(before, change, known());
      return { uuid: before.uuid, changed, device: deviceView(before.uuid, known(), slots()) };
    },
    proofs({ device, limit }: { readonly device: string | null; readonly limit: number }): ProofView[] {
      if (manager === null && device === null) return [];
      const { registry, proofs } = known();
      return proofs.of(device === null ? null : registry.find(device).uuid, limit);
    },
  };
}

/** False when nothing changed. */
function apply(device: KnownDevice, change: DeviceChange, { registry, quarantine, reservations }: DeviceAccess): boolean {
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
      registry.forget(device);
      return true;
  }
}

/** @throws OnejobError for a device that cannot be reserved now */
function assertFor({ uuid, parent }: KnownDevice, by: string | null, registry: DeviceRegistry, wall: number): void {
  const refuse = (code: 'E_DEVICE_UNKNOWN' | 'E_DEVICE_IN_USE', why: string, hint: string): never => {
    throw new OnejobError(code, `Cannot reserve ${uuid}: ${why}.`, { hint });
  };
  for (const one of [uuid, ...(parent === null ? [] : [parent])]) {
    const reserved = registry.known.get(one)?.reserved ?? null;
    if (reserved === null || reserved.by === by || (reserved.until !== null && reserved.until <= wall)) continue;
    refuse(
      'E_DEVICE_IN_USE',
      registry.known.whyNot(one) ?? 'it is reserved',
      `Ask the holder, or type "onejob gpus return ${one}".`,
    );
  }
  if (registry.device(uuid) === null) refuse('E_DEVICE_UNKNOWN', 'it is missing', '"onejob gpus" lists the devices of this host.');
  if (registry.stateOf(uuid) === 'elsewhere')
    refuse('E_DEVICE_IN_USE', registry.whyNot(uuid) ?? 'another onejob has it', 'Reserve it there, with --state-dir.');
}
