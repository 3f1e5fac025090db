/** Checks of what pools ask of devices, as far as they can be seen without a host. */
import type { Checking } from './checking.ts';
import type { PoolConfig } from './config.ts';
import { namesCardsForInstances, overSubscriptions } from './partition-check.ts';

export function checkDevices(pool: PoolConfig, { sound, own, inPool }: Checking): void {
  if (!sound(pool, 'devices', 'agents')) return;
  const { count, uuids, share, mig } = pool.devices;
  if (pool.agents === 'per-device' && count === 0) {
    inPool(
      pool,
      ['agents'],
      'is per-device, but "devices" is 0: there would be no agent; write the devices, or a number of agents',
    );
  }
  if (count === 'all' && pool.agents !== 1 && pool.agents !== 0) {
    inPool(pool, ['agents'], `is ${pool.agents}, but "devices" is all: the first agent would leave none for the others`);
  }
  if (own(pool, 'grant') && count === 0) inPool(pool, ['grant'], 'is not used: "devices" is 0', 'warning');
  else if (own(pool, 'grant') && pool.runtime === 'process') {
    inPool(pool, ['grant'], 'is not used: "runtime" is process, which asks no Engine for devices', 'warning');
  }
  if (typeof count === 'number' && count > 1 && mig !== null && mig !== false) {
    inPool(pool, ['devices', 'count'], `is ${count}, but "mig" is ${mig}: a process can use one MIG instance only`, 'warning');
  }
  if (uuids.length === 0 || typeof count !== 'number' || typeof pool.agents !== 'number' || namesCardsForInstances(pool.devices))
    return;
  const needed = count * pool.agents;
  if (needed > uuids.length * share) {
    inPool(
      pool,
      ['devices', 'uuid'],
      `names ${uuids.length === 1 ? 'one device' : `${uuids.length} devices`}, but "agents" and "count" ask for ${needed}`,
    );
  }
}

/** Pools that keep standbys share the devices out for good: what they name must be enough for all of them. */
export function checkPartition({ config, sound, inPool }: Checking): void {
  const pools = config.pools.filter((pool) => sound(pool, 'devices', 'agents', 'standby'));
  for (const { pool: name, others, wanted, named } of overSubscriptions(pools)) {
    const pool = pools.find((one) => one.name === name);
    if (pool === undefined) continue;
    const all = [...others, name].map((one) => `pools.${one}`);
    const who = `${all.slice(0, -1).join(', ')} and ${all.at(-1)}`;
    const help = 'name other devices, ask for fewer agents, or let pools share in turn with "standby: false"';
    inPool(pool, ['devices', 'uuid'], `names devices that others keep: ${who} together want ${wanted} and name ${named}; ${help}`);
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
