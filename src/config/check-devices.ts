/** Checks of the devices that pools ask for, as far as possible without a host. */

import { listed } from '../schema/problem.ts';
import type { Checking } from './checking.ts';
import type { DeviceRequest, PoolConfig } from './config.ts';

export function checkDevices(pool: PoolConfig, { sound, own, inPool }: Checking): void {
  if (!sound(pool, 'devices', 'agents')) return;
  if (own(pool, 'agents') && pool.agents === 0)
    inPool(pool, ['agents'], 'is 0: jobs of this pool wait until it is larger', 'warning');
  const { count, uuids, share, mig } = pool.devices;
  if (pool.agents === 'per-device' && count === 0) {
    const why = '"devices" is 0, so there would be no agents; set "devices", or set "agents" to a number';
    inPool(pool, ['agents'], `is per-device, but ${why}`);
  }
  if (count === 'all' && pool.agents !== 1 && pool.agents !== 0) {
    inPool(pool, ['agents'], `is ${pool.agents}, but "devices" is all: the first agent would leave none for the others`);
  }
  if (own(pool, 'grant') && count === 0) inPool(pool, ['grant'], 'is not used: "devices" is 0', 'warning');
  else if (own(pool, 'grant') && pool.runtime === 'process') {
    inPool(pool, ['grant'], 'is not used: "runtime" is process, which does not ask an Engine for devices', 'warning');
  } else if (own(pool, 'grant') && pool.recipe.containers !== undefined) {
    inPool(pool, ['grant'], 'is not used: with "containers", devices are those that a CDI specification lists', 'warning');
  }
  if (typeof count === 'number' && count > 1 && mig !== null && mig !== false) {
    inPool(pool, ['devices', 'count'], `is ${count}, but "mig" is ${mig}: a process can use one MIG instance only`, 'warning');
  }
  if (uuids.length === 0 || typeof count !== 'number' || typeof pool.agents !== 'number' || namesCardsForInstances(pool.devices))
    return;
  const needed = count * pool.agents;
  if (needed > uuids.length * share) {
    const named = uuids.length === 1 ? 'one device' : `${uuids.length} devices`;
    inPool(pool, ['devices', 'uuid'], `names ${named}, but "agents" and "count" ask for ${needed}`);
  }
}

/** Pools with standbys keep their devices: the devices that they name must be enough for all of them. */
export function checkPartition({ config, sound, inPool }: Checking): void {
  const pools = config.pools.filter((pool) => sound(pool, 'devices', 'agents', 'standby'));
  for (const { pool: name, others, wanted, named } of overSubscriptions(pools)) {
    const pool = pools.find((one) => one.name === name);
    if (pool === undefined) continue;
    const who = listed([...others, name].map((one) => `pools.${one}`));
    const help = 'name other devices, ask for fewer agents, or let pools share in turn with "standby: false"';
    const why = `names devices that other pools keep: ${who} together want ${wanted} but name only ${named}; ${help}`;
    inPool(pool, ['devices', 'uuid'], why);
  }
}

export function checkRepair({ config, written, at }: Checking): void {
  const { on_quarantine: command, on_quarantine_timeout: timeout } = written.top;
  if (timeout !== undefined && command === undefined && ![...written.broken].some((key) => /^on_quarantine(\[|$)/.test(key))) {
    at(['on_quarantine_timeout'], 'is not used: there is no "on_quarantine"', 'warning');
  }
  if (command !== undefined && config.pools.every((pool) => pool.devices.count === 0)) {
    at(['on_quarantine'], 'is not used: no pool asks for "devices"', 'warning');
  }
}

type Asking = Pick<PoolConfig, 'name' | 'agents' | 'devices' | 'standby'>;

interface Claim {
  readonly pool: string;
  /** In lower case. */
  readonly names: ReadonlySet<string>;
  /** Number of devices that it needs. */
  readonly least: number;
  /** Whether it takes all that are left, as `all` and `per-device` do. */
  readonly greedy: boolean;
}

/**
 * Pools with standbys that name the same devices and cannot all have them, on any host. Pure. Ignores what depends on the host:
 * conditions, the number of a card's MIG instances, and pools that name no UUIDs. In the order of the file, without pools that ask
 * for more than they name themselves.
 *
 * `others`: earlier pools that name the same devices, at least one. `wanted`: devices that all of them want together, of those
 * `named`.
 */
export function overSubscriptions(pools: readonly Asking[]) {
  const before: Claim[] = [];
  /** The claim that has each device; it may get another one in exchange. */
  const holders = new Map<string, Claim>();
  const found = [];
  for (const claim of pools.flatMap(claimOf)) {
    if (claim.least > claim.names.size) continue;
    let got = 0;
    let reached = new Set<Claim>();
    while (got < (claim.greedy ? claim.names.size : claim.least)) {
      reached = new Set([claim]);
      if (!take(claim, holders, reached, new Set())) break;
      got++;
    }
    if (got < claim.least) {
      const group = [claim, ...before.filter((other) => reached.has(other))];
      const named = new Set(group.flatMap((one) => [...one.names])).size;
      const held = [...holders.values()].filter((holder) => holder !== claim && reached.has(holder)).length;
      found.push({ pool: claim.pool, others: group.slice(1).map((one) => one.pool), wanted: held + claim.least, named });
    }
    before.push(claim);
  }
  return found;
}

/** Gives a claim one more device, perhaps one that its holder can exchange. `reached` collects holders of what it could use. */
function take(claim: Claim, holders: Map<string, Claim>, reached: Set<Claim>, tried: Set<string>): boolean {
  for (const name of claim.names) {
    if (tried.has(name)) continue;
    const holder = holders.get(name);
    if (holder === claim) continue;
    tried.add(name);
    if (holder !== undefined && !take(holder, holders, reached.add(holder), tried)) continue;
    holders.set(name, claim);
    return true;
  }
  return false;
}

function claimOf({ name, agents, devices, standby }: Asking): Claim[] {
  const { count, uuids, share } = devices;
  if (!standby || uuids.length === 0 || agents === 0 || count === 0 || namesCardsForInstances(devices)) return [];
  const greedy = agents === 'per-device' || count === 'all';
  if (greedy && hasConditions(devices)) return [];
  const perSlot = count === 'all' ? 1 : count;
  const slots = greedy || typeof agents !== 'number' ? 1 : agents;
  const least = Math.ceil(slots / share) * perSlot;
  // If devices are taken two at a time, one may be left over, and which one is unknown.
  return [{ pool: name, names: new Set(uuids.map((uuid) => uuid.toLowerCase())), least, greedy: greedy && perSlot === 1 }];
}

/** With MIG, a card's UUID stands for all of its instances, and only the host knows how many there are. */
function namesCardsForInstances({ mig, uuids }: Pick<DeviceRequest, 'mig' | 'uuids'>): boolean {
  return mig !== null && mig !== false && uuids.some((uuid) => !/^MIG-/i.test(uuid));
}

function hasConditions({ model, vendor, memory, compute, display }: DeviceRequest): boolean {
  return model !== null || vendor !== null || memory !== null || compute !== null || display !== 'allow';
}
