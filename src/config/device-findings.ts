/** Compares what pools ask for with the devices of a host, for `up` and `doctor`. Pure. */

import type { Finding } from '../base/finding.ts';
import { type Allocation, allocate } from '../core/allocate.ts';
import type { Want } from '../core/lease.ts';
import type { Device, Inventory } from '../gpu/inventory.ts';
import { isInMigMode } from '../gpu/mig.ts';
import { listed } from '../schema/problem.ts';
import { fits, isMeant, isNamedIn, whyNot } from './conditions.ts';
import type { DeviceRequest, PoolConfig } from './config.ts';

type Asking = Pick<PoolConfig, 'name' | 'agents' | 'devices' | 'standby'>;

/** In the order of the pools; none for a pool that gets all it asks for. */
export function choiceFindings({ pools }: { readonly pools: readonly Asking[] }, inventory: Inventory): Finding[] {
  const asking = pools.filter((pool) => pool.devices.count !== 0 && pool.agents !== 0);
  const shared = allocate(asking.filter((pool) => pool.standby).map(wantOf), { devices: inventory.devices });
  return asking.flatMap((pool) => {
    const found = ambiguous(pool, inventory.devices);
    return inventory.complete ? [...found, ...absent(pool, asking, inventory.devices, shared)] : found;
  });
}

function wantOf({ name, agents, devices }: Asking): Want<Device> {
  const { count, share, uuids } = devices;
  const want = { pool: name, agents, count, share, fits: (device: Device) => fits(device, devices) };
  return uuids.length > 0 ? { ...want, named: uuids } : want;
}

function finding({ name }: Asking, level: 'warning' | 'error', message: string, hint: string | null): Finding {
  return { level, subject: `pool ${name}`, message, hint };
}

function ambiguous(pool: Asking, devices: readonly Device[]): Finding[] {
  const { model } = pool.devices;
  const models = [...new Set(devices.filter((device) => fits(device, pool.devices)).map((device) => device.model))];
  const [first] = models;
  if (model === null || first === undefined || models.length < 2) return [];
  const message = `"model: ${model}" matches different cards, ${listed(models)}, so its agents differ.`;
  return [finding(pool, 'warning', message, `Give more of the name, such as "model: ${first}".`)];
}

function absent(pool: Asking, pools: readonly Asking[], devices: readonly Device[], shared: Allocation): Finding[] {
  const { uuids } = pool.devices;
  const fitting = devices.filter((device) => fits(device, pool.devices));
  if (fitting.length === 0) return [none(pool, devices)];
  const found = tooLittle(pool, pools, fitting, shared);
  const gone = uuids.filter((uuid) => !devices.some((device) => isMeant(device, [uuid])));
  if (gone.length === 0) return found;
  const message = `It names ${listed(gone)}, which ${gone.length === 1 ? 'is' : 'are'} missing.`;
  const level = found.some((one) => one.level === 'error') ? 'error' : 'warning';
  return [finding(pool, level, message, 'Fix "uuid" in "devices"; "onejob gpus" lists the devices of this host.'), ...found];
}

function tooLittle(pool: Asking, pools: readonly Asking[], fitting: readonly Device[], shared: Allocation): Finding[] {
  const { count } = pool.devices;
  if (count !== 'all' && count > fitting.length) {
    const message = `Each of its agents needs ${count} devices, but ${fitting.length} of this host ${fitting.length === 1 ? 'fits' : 'fit'}.`;
    return [finding(pool, 'error', message, 'Ask for fewer devices, or loosen the conditions in "devices".')];
  }
  return pool.standby ? tooFew(pool, pools, fitting, shared) : [];
}

/** Agents that get no devices, because other agents of this or other pools have them. */
function tooFew(pool: Asking, pools: readonly Asking[], fitting: readonly Device[], { slots, short }: Allocation): Finding[] {
  const isFitting = new Set(fitting.map((device) => device.uuid));
  const got = slots.filter((slot) => slot.pool === pool.name).length;
  const missed = short.find((one) => one.pool === pool.name);
  if (missed === undefined && (got > 0 || pool.agents !== 'per-device')) return [];
  const holders = pools.flatMap(({ name }) => {
    const held = slots.filter((slot) => slot.pool === name && name !== pool.name).flatMap((slot) => slot.devices);
    const count = new Set(held.map(({ uuid }) => uuid).filter((uuid) => isFitting.has(uuid))).size;
    return count === 0 ? [] : [`pool ${name} has ${count}`];
  });
  const { count, share } = pool.devices;
  const each = count === 'all' || count > 1 ? `, ${count} each` : '';
  const sharing = share > 1 ? `, ${share} agents to each` : '';
  const agents = missed?.wanted === 1 ? 'one agent' : `${missed?.wanted} agents`;
  const asks = missed === undefined ? 'It asks for one agent per device' : `It asks for devices for ${agents}`;
  const there = `${fitting.length} ${fitting.length === 1 ? 'device' : 'devices'} of this host ${fitting.length === 1 ? 'fits' : 'fit'}`;
  const others = holders.length === 0 ? '' : `, of which ${listed(holders)}`;
  const message = `${asks}${each}${sharing}, but ${got === 0 ? 'gets none' : `gets ${got}`}: ${there}${others}.`;
  let hint = 'Ask for fewer agents, give the pools conditions that differ, or let them take turns with "standby: false".';
  if (holders.length === 0) {
    hint =
      pool.devices.uuids.length > 0
        ? 'Ask for as many agents as there are devices in "uuid", or name more of them.'
        : 'Ask for fewer agents, or write "agents: per-device".';
  }
  return [finding(pool, got === 0 ? 'error' : 'warning', message, hint)];
}

function none(pool: Asking, devices: readonly Device[]): Finding {
  const error = (message: string, hint: string | null) => finding(pool, 'error', message, hint);
  const { uuids, mig } = pool.devices;
  const see = '"onejob gpus" lists the devices of this host.';
  if (devices.length === 0) return error('It asks for devices, but this host has none.', see);
  if (uuids.length > 0 && !devices.some((device) => isMeant(device, uuids))) {
    return error(`None of the devices that it names exists on this host: ${listed(uuids)}.`, see);
  }
  const cards = devices.filter((device) => device.kind === 'gpu');
  const instances = devices.filter((device) => device.kind === 'mig');
  const wantsMig = mig !== null && mig !== false;
  if (wantsMig && instances.length === 0) return withoutInstances(error, cards, mig);
  if (!wantsMig && cards.length > 0 && cards.every(isInMigMode)) {
    const message = 'It asks for whole cards, but every card of this host is in MIG mode.';
    const off = `or switch MIG off while nothing uses the card: "sudo nvidia-smi -i ${cards[0]?.uuid} -mig 0".`;
    return error(message, `Write "mig: true" in "devices" to use MIG instances, ${off}`);
  }
  const [nearest] = devices
    .map((device) => ({ device, misses: missesOf(device, pool.devices) }))
    .sort((a, b) => weigh(a.misses) - weigh(b.misses));
  if (nearest === undefined) return error('No device of this host matches what it asks for.', see);
  const { device, misses } = nearest;
  const whys = misses.map(({ why }) => why).join(' and ');
  return error(`No device of this host matches what it asks for; the nearest, ${device.model} (${device.uuid}), ${whys}.`, see);
}

function withoutInstances(
  error: (message: string, hint: string | null) => Finding,
  cards: readonly Device[],
  profile: boolean | string,
): Finding {
  const wanted = typeof profile === 'string' ? profile : 'PROFILE';
  const make = (card: Device) => `"sudo nvidia-smi mig -i ${card.index ?? card.uuid} -cgi ${wanted} -C"`;
  const on = cards.find(isInMigMode);
  if (on !== undefined) {
    return error('It asks for MIG instances, but the cards in MIG mode have none.', `Create them: ${make(on)}.`);
  }
  const able = cards.find((card) => card.mig !== null);
  const message = 'It asks for MIG instances, but no card of this host is in MIG mode.';
  if (able === undefined) return error(message, 'According to its driver, no card supports it: leave "mig" out.');
  const enable = `Type "sudo nvidia-smi -i ${able.uuid} -mig 1" while nothing uses it`;
  return error(message, `${enable}, then create instances: ${make(able)}.`);
}

/** The hardest to fix first; no number of later ones outweighs it. */
const conditions = ['kind', 'mig', 'vendor', 'uuids', 'model', 'compute', 'memory', 'display'] as const;
type Miss = { readonly condition: (typeof conditions)[number]; readonly why: string };

/** All conditions that a device misses: `whyNot` alone stops at the first. */
function missesOf(device: Device, asked: DeviceRequest): Miss[] {
  const open: DeviceRequest = {
    ...asked,
    mig: null,
    uuids: [],
    vendor: null,
    model: null,
    memory: null,
    compute: null,
    display: 'allow',
  };
  const card: Device = { ...device, kind: 'gpu', mig: null };
  const named = isNamedIn(asked.uuids, device.uuid);
  const isPart = device.kind === 'mig';
  const kind = isPart === (asked.mig !== null && asked.mig !== false) ? 'mig' : 'kind';
  return conditions.flatMap((condition): Miss[] => {
    let why: string | null = null;
    if (condition === kind) why = whyNot(device, { ...open, mig: asked.mig, uuids: named ? [device.uuid] : [] });
    else if (condition !== 'kind' && condition !== 'mig') why = whyNot(card, { ...open, [condition]: asked[condition] });
    return why === null ? [] : [{ condition, why }];
  });
}

function weigh(misses: readonly Miss[]): number {
  return misses.reduce((sum, { condition }) => sum + 2 ** (conditions.length - conditions.indexOf(condition)), 0);
}
