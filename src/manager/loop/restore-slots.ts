/** Merges stored slots with the config when a manager starts: slots that fit are adopted, others are emptied. */

import { OnejobError } from '../../base/errors.ts';
import { networkProblem } from '../../config/check-network.ts';
import { isolationProblem } from '../../config/check-trust.ts';
import type { Config, PoolConfig } from '../../config/config.ts';
import type { Clock } from '../../core/clock.ts';
import { emptySlot, isEmpty, type Slot } from '../../core/slot.ts';
import { absentService, type CiService } from '../../ports/ci-service.ts';
import type { Store } from '../../store/store.ts';
import type { LoopParts } from './parts.ts';
import { Pool, poolOf, type SlotDevices, withoutDevices } from './pool.ts';
import type { Reconciler } from './reconciler.ts';

interface RestoreParts extends Pick<LoopParts, 'store' | 'clock' | 'services' | 'runtimes'> {
  readonly reconciler: Reconciler;
  readonly config: Pick<Config, 'pools' | 'origins'>;
  /** Devices of pools that need some. */
  readonly devices: SlotDevices;
}

export function restoreSlots(parts: RestoreParts): void {
  const { reconciler, runtimes, store, config: together } = parts;
  // A temporary manager makes no agents that wait for jobs, and tells services nothing of its slots.
  const keepStandby = !store.temporary;
  const serviceNamed = (name: string): CiService =>
    [...parts.services.values()].find((one) => one.name === name) ?? absentService(name);
  const left = new Map(storedSlots(store, parts.clock).map((slot) => [slot.key, slot]));
  for (const config of together.pools) {
    const runtime = runtimes.get(config.runtime ?? runtimes.best.name);
    const devices = config.devices.count === 0 ? withoutDevices : parts.devices;
    const service = serviceOf(config, parts);
    const slots = keysOf(config, left).map((key) => {
      const fresh = emptySlot({ key, runtime: runtime.name, service: service.name, grace: config.stopGrace });
      const known = left.get(fresh.key);
      left.delete(fresh.key);
      // Another runtime takes over a slot only once the sandboxes of the first one are gone.
      return known === undefined || isEmpty(known) ? fresh : { ...known, grace: config.stopGrace };
    });
    const pool = new Pool(config, { service, runtime, keepStandby, devices, serviceNamed, tellsOffers: keepStandby });
    if (!keepStandby && (service.capabilities.binds === 'early' || service.capabilities.standsForSlots))
      pool.pause.hold('temporary', `no permanent daemon is running; "onejob up" starts its agents`);
    const unsafe = isolationProblem(config, runtime);
    if (unsafe !== null) pool.pause.hold('isolation', unsafe, { closes: true });
    const shared = networkProblem(config, together, runtime);
    if (shared !== null) pool.pause.hold('network', shared, { closes: true });
    reconciler.add(pool, slots);
  }
  for (const slot of left.values()) {
    if (isEmpty(slot)) {
      store.slots.remove(slot.key);
      continue;
    }
    const [name = slot.key] = slot.key.split('/');
    const base = together.pools.find((pool) => pool.name === name) ?? together.pools[0];
    if (base === undefined) continue;
    const pool = new Pool(
      { ...base, name: `${slot.key} (leaving)` },
      {
        service: slot.service === '' ? serviceOf(base, parts) : serviceNamed(slot.service),
        runtime: runtimes.get(slot.runtime),
        keepStandby: false,
        devices: heldBy(slot),
        serviceNamed,
        tellsOffers: keepStandby,
        leaving: true,
      },
    );
    reconciler.add(pool, [slot]);
  }
}

/** As many slots as config says; with one slot per device the stored ones, until the devices were looked at. */
function keysOf(pool: PoolConfig, stored: ReadonlyMap<string, Slot>): string[] {
  if (pool.agents === 'per-device') return [...stored.keys()].filter((key) => poolOf(key) === pool.name);
  return Array.from({ length: pool.agents }, (_, i) => `${pool.name}/${i + 1}`);
}

/** A slot that has left the config keeps its devices until it is empty. */
function heldBy({ devices }: Slot): SlotDevices {
  return { ...withoutDevices, of: () => devices };
}

/** The slots of the previous manager, on this boot's clock. @throws OnejobError E_STATE_CORRUPT */
export function storedSlots(store: Pick<Store, 'slots'>, clock: Pick<Clock, 'now'>): Slot[] {
  return store.slots.all().map(({ slot, thisBoot }) => (thisBoot ? slot : rebased(slot, clock.now())));
}

/** A slot of another boot, on this boot's clock. Nobody knows any more how long its job may still run. */
function rebased(slot: Slot, now: number): Slot {
  const standby = 'since' in slot.standby ? { ...slot.standby, since: now } : slot.standby;
  const agent = { ...slot.agent, ...('since' in slot.agent ? { since: now } : {}) };
  if (agent.kind === 'busy') return { ...slot, standby, agent: { ...agent, due: null } };
  return { ...slot, standby, agent: 'due' in agent ? { ...agent, due: now } : agent };
}

function serviceOf(pool: PoolConfig, { services }: RestoreParts): CiService {
  const service = services.get(pool.service);
  if (service === undefined)
    throw new OnejobError('E_BUG', `Pool ${pool.name} names the service "${pool.service}", which does not exist.`);
  return service;
}
