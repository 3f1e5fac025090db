/** Devices as people see them, and people's requests about them. None of it affects a running job. */

import { abortable } from '../../base/abortable.ts';
import { OnejobError } from '../../base/errors.ts';
import { fits } from '../../config/conditions.ts';
import type { PoolConfig } from '../../config/config.ts';
import type { Manager } from '../../contract/manager.ts';
import type { DeviceChange, DeviceState, DeviceView, MissingView, PoolView, QuarantinedView } from '../../contract/schema.ts';
import { type Clock, deadline } from '../../core/clock.ts';
import type { Allocatable } from '../../core/lease.ts';
import type { DeviceId, Slot } from '../../core/slot.ts';
import type { Device } from '../../gpu/inventory.ts';
import { isInMigMode, profileOf } from '../../gpu/mig.ts';
import type { KnownDevice } from '../../store/devices.ts';
import type { Store } from '../../store/store.ts';
import { poolOf } from '../loop/pool.ts';
import type { Reservations } from './device-reservations.ts';
import type { DeviceUses } from './device-use.ts';
import type { DeviceWatch } from './device-watch.ts';
import type { Quarantine } from './quarantine.ts';
import { type DeviceRegistry, unknownText } from './registry.ts';

type Shown = Pick<DeviceAccess, 'registry'> & { readonly use: Pick<DeviceUses, 'of'> };

/** What people see of devices. Part of the device manager, so that hosts without devices do not load it. */
export interface DeviceViews {
  /** Present devices, then missing ones and those that a person reserved or put in quarantine. */
  all(): DeviceView[];
  /** null for an unknown device. */
  of(uuid: DeviceId): DeviceView | null;
  /** Devices that were leased once and are certainly gone. */
  missing(): MissingView[];
  /** Devices in quarantine that a pool had or would get, even without a slot: people must see what is out of use. */
  quarantined(): QuarantinedView[];
  /** null for pools that lease for each job, and while the host's devices are unknown. */
  ofPool(pool: PoolConfig): PoolView['devices'];
}

export function createDeviceViews(shown: Shown, slots: () => readonly Slot[]): DeviceViews {
  const { registry } = shown;
  return {
    all: () => deviceViews(shown, slots()),
    of: (uuid) => deviceView(uuid, shown, slots()),
    missing: () => missingDevices(registry),
    quarantined: () => quarantinedDevices(registry),
    ofPool: (pool) => poolDevices(registry, pool),
  };
}

function deviceViews(devices: Shown, slots: readonly Slot[]): DeviceView[] {
  const { registry } = devices;
  const here = (registry.inventory?.devices ?? []).map(({ uuid }) => uuid);
  const isMissed = ({ slot, quarantine, reserved }: KnownDevice) => slot !== null || quarantine !== null || reserved !== null;
  const gone = registry.known.all.filter((known) => registry.device(known.uuid) === null && isMissed(known));
  return [...here, ...gone.map(({ uuid }) => uuid)].flatMap((uuid) => deviceView(uuid, devices, slots) ?? []);
}

function deviceView(uuid: DeviceId, { registry, use }: Shown, slots: readonly Slot[]): DeviceView | null {
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
    hint: hintFor(judged.state, record, parent, device),
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
  // Between "gpus clear" and the next look.
  const isBad = (state === 'free' || state === 'leased') && device?.health.state === 'failed';
  const bad = isBad ? `it ${device.health.reasons.join(', and ')}: the next look puts it back into quarantine` : null;
  if (state === 'free' && device !== null && isInMigMode(device)) {
    const parts = registry.inventory?.devices.filter((one) => one.parent === uuid && registry.slotOf(one.uuid) !== null) ?? [];
    const split: DeviceState = parts.length > 0 ? 'leased' : 'free';
    return { state: split, why: bad ?? 'it is in MIG mode, so jobs get its instances', of: uuid };
  }
  return { state, why: registry.whyNot(uuid) ?? bad, of: uuid };
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

function hintFor(state: DeviceState, of: KnownDevice | undefined, parent: DeviceId | null, now: Device | null): string | null {
  if (of === undefined) return null;
  if (state === 'quarantined') {
    const { hint = null, remedy } = of.quarantine ?? {};
    if (hint === null) return `Type "onejob gpus clear ${of.uuid}" when it may be used again.`;
    // No look can tell a reset from errors that are silent for a while, so a person says it.
    return remedy === 'reset' && now?.health.state === 'ok'
      ? `Its driver reports no fault now. If it has been reset since, type "onejob gpus clear ${of.uuid}". If not, ${hint.slice(0, 1).toLowerCase()}${hint.slice(1)}`
      : hint;
  }
  if (state === 'reserved') return `Type "onejob gpus return ${of.uuid}" to give it back.`;
  if (state !== 'missing') return null;
  const forget = `If it will not come back, type "onejob gpus forget ${of.uuid}".`;
  if (parent !== null) return `Create the MIG instances again as they were. ${forget}`;
  const log =
    of.pciId === null ? '' : `Type "dmesg | grep ${of.pciId.replace(/\.\d$/, '')}" as root to see what the kernel says of it. `;
  return `${log}Reboot the host; if that does not help, reseat the card. ${forget}`;
}

export function missingDevices(registry: DeviceRegistry): MissingView[] {
  if (registry.inventory?.complete !== true) return [];
  return registry.known.all
    .filter(({ uuid }) => registry.device(uuid) === null)
    .flatMap(({ uuid, slot }) => (slot === null ? [] : [{ uuid, slot, why: registry.known.missingText(uuid) }]));
}

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
export interface DeviceAccess {
  readonly registry: DeviceRegistry;
  readonly quarantine: Quarantine;
  readonly reservations: Reservations;
  readonly proofs: Store['proofs'];
  readonly use: DeviceUses;
  readonly views: DeviceViews;
  readonly watch: Pick<DeviceWatch, 'fault' | 'look'>;
}

export type DeviceRequests = Pick<Manager, 'devices' | 'deviceUse' | 'changeDevice' | 'clearDevice' | 'proofs'>;

/** ms for which a person waits for a look. */
const patience = 10_000;

export function createDeviceRequests(manager: DeviceAccess, clock: Clock): DeviceRequests {
  const { proofs, registry, use, views, watch } = manager;
  const changeDevice: DeviceRequests['changeDevice'] = (name, change) => {
    const before = registry.find(name);
    if (change.act === 'reserve') assertFor(before, change.by, registry, clock.wall());
    const changed = apply(before, change, manager);
    return { uuid: before.uuid, changed, device: views.of(before.uuid) };
  };
  return {
    devices() {
      use.asked();
      return views.all();
    },
    deviceUse(name, since) {
      use.asked();
      return use.recent(registry.find(name).uuid, since);
    },
    changeDevice,
    async clearDevice(name) {
      const { uuid, quarantine } = registry.find(name);
      using limit = deadline(clock, patience);
      // What was reset since the last look is healthy. A tool that hangs keeps nobody from clearing it.
      if (quarantine !== null) await abortable(watch.look(0, limit.signal), limit.signal).catch(() => undefined);
      return changeDevice(uuid, { act: 'clear' });
    },
    proofs: ({ device, limit }) => proofs.of(device === null ? null : registry.find(device).uuid, limit),
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
