/** Brings slots and config together when a manager starts: adopted where they fit, emptied where config has moved on. */
import type { CiService } from '../ci/ci-service.ts';
import type { PoolConfig } from '../config/config.ts';
import { emptySlot, isEmpty, type Slot } from '../core/slot.ts';
import { OnejobError } from '../errors.ts';
import type { Runtimes } from '../runtimes/choose.ts';
import { Pool } from './pool.ts';
import type { Reconciler } from './reconciler.ts';

export interface PopulateParts {
  readonly reconciler: Reconciler;
  readonly pools: readonly PoolConfig[];
  readonly stored: readonly Slot[];
  /** What pools name in `service`. */
  readonly services: ReadonlyMap<string, CiService>;
  readonly runtimes: Runtimes;
  readonly keepStandby: boolean;
  /** Deletes a slot that nothing is in and config does not name. */
  readonly forget: (key: string) => void;
}

export function populate(parts: PopulateParts): void {
  const { reconciler, runtimes, keepStandby } = parts;
  const left = new Map(parts.stored.map((slot) => [slot.key, slot]));
  for (const config of parts.pools) {
    const runtime = runtimes.get(config.runtime ?? runtimes.best.name);
    const agents = config.agents === 'per-device' ? 0 : config.agents;
    const slots = Array.from({ length: agents }, (_, i) => {
      const fresh = emptySlot({ key: `${config.name}/${i + 1}`, runtime: runtime.name, grace: config.stopGrace });
      const known = left.get(fresh.key);
      left.delete(fresh.key);
      // Another runtime takes the slot over only once what the first one made is gone.
      return known === undefined || isEmpty(known) ? fresh : { ...known, grace: config.stopGrace };
    });
    reconciler.add(new Pool(config, { service: serviceOf(config, parts), runtime, keepStandby }), slots);
  }
  for (const slot of left.values()) {
    if (isEmpty(slot)) {
      parts.forget(slot.key);
      continue;
    }
    const [name = slot.key] = slot.key.split('/');
    const base = parts.pools.find((pool) => pool.name === name) ?? parts.pools[0];
    if (base === undefined) continue;
    const pool = new Pool(
      { ...base, name: `${slot.key} (leaving)` },
      { service: serviceOf(base, parts), runtime: runtimes.get(slot.runtime), keepStandby: false },
    );
    pool.draining = true;
    reconciler.add(pool, [slot]);
  }
}

/** A slot stored in another boot, on this boot's clock. How long its job may still run nobody knows any more. */
export function rebased(slot: Slot, now: number): Slot {
  const standby = 'since' in slot.standby ? { ...slot.standby, since: now } : slot.standby;
  const agent = { ...slot.agent, ...('since' in slot.agent ? { since: now } : {}) };
  if (agent.kind === 'busy') return { ...slot, standby, agent: { ...agent, due: null } };
  return { ...slot, standby, agent: 'due' in agent ? { ...agent, due: now } : agent };
}

function serviceOf(pool: PoolConfig, { services }: PopulateParts): CiService {
  const service = services.get(pool.service);
  if (service === undefined)
    throw new OnejobError('E_BUG', `Pool ${pool.name} names the service "${pool.service}", which is not there.`);
  return service;
}
