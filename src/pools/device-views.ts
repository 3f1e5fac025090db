/** What people see of devices: each as a view, those that are missed, and how many slots of a pool have theirs. Changes nothing. */
import type { DeviceState, DeviceView } from '../api/device-schema.ts';
import type { MissingView, PoolView, QuarantinedView } from '../api/schema.ts';
import { fits } from '../config/conditions.ts';
import type { PoolConfig } from '../config/config.ts';
import type { DeviceId, Slot } from '../core/slot.ts';
import type { Device } from '../gpu/inventory.ts';
import type { KnownDevice } from '../store/devices.ts';
import type { DeviceBook } from './devices.ts';

export interface DeviceViewParts {
  readonly book: DeviceBook;
  readonly slots: readonly Slot[];
}

/** Those that are there, then those that are missed or that a person did something about. */
export function deviceViews(parts: DeviceViewParts): DeviceView[] {
  const { book } = parts;
  const here = (book.inventory?.devices ?? []).map(({ uuid }) => uuid);
  const gone = book.known.all.filter(
    (known) => book.device(known.uuid) === null && (known.slot !== null || known.quarantine !== null || known.reserved !== null),
  );
  return [...here, ...gone.map(({ uuid }) => uuid)].flatMap((uuid) => deviceView(uuid, parts) ?? []);
}

/** null for a device that nothing is known of. */
export function deviceView(uuid: DeviceId, parts: DeviceViewParts): DeviceView | null {
  const { book, slots } = parts;
  const device = book.device(uuid);
  const known = book.known.get(uuid);
  if (device === null && known === undefined) return null;
  const parent = device?.parent ?? known?.parent ?? null;
  const { of, ...judged } = judge(uuid, parent, book);
  const record = book.known.get(of);
  const mig = device?.mig ?? null;
  const isOn = (slot: Slot): boolean =>
    slot.agent.kind !== 'free' && slot.devices.some((one) => one === uuid || partOf(one, book) === uuid);
  return {
    uuid,
    kind: device?.kind ?? (parent === null ? 'gpu' : 'mig'),
    model: device?.model ?? known?.model ?? '',
    pciId: device?.pciId ?? known?.pciId ?? null,
    index: device?.index ?? null,
    memoryMiB: device?.memoryMiB ?? null,
    profile: mig !== null && 'profile' in mig ? mig.profile : (known?.profile ?? null),
    parent,
    slot: book.slotOf(uuid),
    agents: slots.filter(isOn).flatMap(({ agent }) => (agent.kind === 'free' ? [] : [agent.agent])),
    ...judged,
    ...timesOf(judged.state, record, known),
    hint: hintFor(judged.state, record, parent),
  };
}

/** State and reason of a device; `of` is the device whose record they come from, itself or the GPU that it is part of. */
function judge(uuid: DeviceId, parent: DeviceId | null, book: DeviceBook) {
  const state = stateOf(uuid, book);
  if (parent !== null && (state === 'free' || state === 'leased' || state === 'occupied')) {
    const whole = stateOf(parent, book);
    if (whole === 'quarantined' || whole === 'reserved') return { state: whole, why: book.whyNot(parent), of: parent };
  }
  if (state === 'missing') return { state, why: book.known.missingText(uuid), of: uuid };
  if (state === 'unknown') return { state, why: `the state of ${uuid} is unknown: the last look at it failed`, of: uuid };
  if (state === 'free' && isSplit(book.device(uuid))) {
    const parts = book.inventory?.devices.filter((one) => one.parent === uuid && book.slotOf(one.uuid) !== null) ?? [];
    const split: DeviceState = parts.length > 0 ? 'leased' : 'free';
    return { state: split, why: 'it is in MIG mode, so that jobs get its instances', of: uuid };
  }
  return { state, why: book.whyNot(uuid), of: uuid };
}

/** What was not listed by a look that did not see all is unknown, not gone (S6). */
function stateOf(uuid: DeviceId, book: DeviceBook): DeviceState {
  const state = book.stateOf(uuid);
  return state === 'missing' && book.inventory?.complete !== true ? 'unknown' : state;
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

/** Devices that were leased once and are certainly not there now. */
export function missingDevices(book: DeviceBook): MissingView[] {
  if (book.inventory?.complete !== true) return [];
  return book.known.all
    .filter(({ uuid }) => book.device(uuid) === null)
    .flatMap(({ uuid, slot }) => (slot === null ? [] : [{ uuid, slot, why: book.known.missingText(uuid) }]));
}

/** Devices in quarantine that a pool had or would get, also those that no slot has: what is out of use must not be out of sight. */
export function quarantinedDevices(book: DeviceBook): QuarantinedView[] {
  return book.known.all.flatMap(({ uuid, slot }) => {
    const why = book.known.quarantineText(uuid);
    const pool = why === null ? null : poolFor(uuid, slot, book);
    return why === null || pool === null ? [] : [{ uuid, pool, why }];
  });
}

/** The pool that has it or an instance of it, else the first that asks for such a device, else the one that had it last. */
function poolFor(uuid: DeviceId, last: string | null, book: DeviceBook): string | null {
  const holds = book.partition.slots.find((slot) => slot.devices.some((one) => one.uuid === uuid || one.parent === uuid));
  if (holds !== undefined) return holds.pool;
  const parts = (book.inventory?.devices ?? []).filter((one) => one.uuid === uuid || one.parent === uuid);
  const asks = book.pools.find(({ devices }) => parts.some((one) => !isSplit(one) && fits(one, devices)));
  if (asks !== undefined) return asks.name;
  return book.pools.find(({ name }) => last !== null && name === last.slice(0, last.lastIndexOf('/')))?.name ?? null;
}

/** null for pools that lease for each job, and while nobody knows what there is. */
export function poolDevices(book: DeviceBook, pool: PoolConfig): PoolView['devices'] {
  if (!pool.standby || book.inventory?.complete !== true || !book.pools.some(({ name }) => name === pool.name)) return null;
  const slots = book.partition.slots.filter((slot) => slot.pool === pool.name && slot.devices.length > 0);
  const isWell = (slot: (typeof slots)[number]): boolean =>
    slot.missing.length === 0 && !slot.devices.some((one) => isQuarantined(one, book));
  return {
    ready: slots.filter(isWell).length,
    wanted: pool.agents === 'per-device' ? slots.length + slotsWithout(book, pool, slots.length) : pool.agents,
  };
}

/** How many slots more a pool with one for each device would have, were nothing of what it asks for in quarantine. */
function slotsWithout(book: DeviceBook, { name, devices }: PoolConfig, slots: number): number {
  const here = (book.inventory?.devices ?? []).filter(
    (one) => book.slotOf(one.uuid) === null && !isSplit(one) && fits(one, devices) && isQuarantined(one, book),
  );
  const gone = quarantinedDevices(book).filter(
    ({ uuid, pool }) => pool === name && book.device(uuid) === null && book.slotOf(uuid) === null,
  );
  const count = here.length + gone.length;
  if (devices.count === 'all') return slots === 0 && count > 0 ? 1 : 0;
  return Math.floor(count / Math.max(1, devices.count)) * devices.share;
}

function isQuarantined({ uuid, parent }: { readonly uuid: DeviceId; readonly parent: DeviceId | null }, book: DeviceBook): boolean {
  return [uuid, parent].some((one) => one !== null && (book.known.get(one)?.quarantine ?? null) !== null);
}

function isSplit(device: Device | null): boolean {
  return device?.kind === 'gpu' && device.mig !== null && 'mode' in device.mig && device.mig.mode === 'enabled';
}

function partOf(uuid: DeviceId, book: DeviceBook): DeviceId | null {
  return book.device(uuid)?.parent ?? book.known.get(uuid)?.parent ?? null;
}
