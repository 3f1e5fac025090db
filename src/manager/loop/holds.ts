/** What people hold: pauses with reasons, and drains. */

import { OnejobError } from '../../base/errors.ts';
import type { ResumeView } from '../../contract/schema.ts';
import type { Clock } from '../../core/clock.ts';
import type { Hold } from '../../store/holds.ts';
import type { Store } from '../../store/store.ts';
import { person } from './pause.ts';
import type { Pool } from './pool.ts';
import type { Reconciler } from './reconciler.ts';

export interface HoldsParts {
  readonly clock: Pick<Clock, 'wall'>;
  readonly store: Pick<Store, 'holds' | 'transaction'>;
  readonly reconciler: Pick<Reconciler, 'pools' | 'pause' | 'replanAll'>;
}

/**
 * Pauses, with reasons, and drains by people. They are recorded before they take effect, and held again by the next manager. A
 * hold on all pools includes those that a later config adds. A pool that is leaving the config cannot be held or resumed.
 */
export class Holds {
  readonly #parts: HoldsParts;

  constructor(parts: HoldsParts) {
    this.#parts = parts;
  }

  /** Restores the previous manager's holds. To be called once all pools exist, before anything begins. */
  restore(): void {
    for (const hold of this.#parts.store.holds.all())
      for (const pool of this.#current) if (hold.pool === null || hold.pool === pool.config.name) take(pool, hold);
  }

  /** `name`: null for all pools. @throws OnejobError E_POOL_UNKNOWN, E_STATE_FULL: nothing has changed then */
  pause(name: string | null, reason: string): void {
    this.#hold(name, { kind: 'pause', reason });
  }

  /** Finishes what runs, and starts nothing new. @throws as `pause` */
  drain(name: string | null): void {
    this.#hold(name, { kind: 'drain', reason: '' });
  }

  /** Ends the pauses with this reason, and drains. Returns whether there were any, and the pools that are still held. @throws as `pause` */
  resume(name: string | null, reason: string): ResumeView {
    const { store, reconciler } = this.#parts;
    const chosen = this.#choose(name);
    let changed = false;
    const ended = [{ kind: 'pause', reason } as const, { kind: 'drain', reason: '' } as const];
    store.transaction({ durable: true }, () => {
      for (const hold of store.holds.all()) {
        if (!ended.some(({ kind, reason }) => kind === hold.kind && reason === hold.reason)) continue;
        if (name !== null && hold.pool !== null && hold.pool !== name) continue;
        store.holds.remove(hold);
        changed = true;
        // The hold on all pools becomes holds on the others.
        if (name === null || hold.pool !== null) continue;
        for (const { config } of this.#current) if (config.name !== name) store.holds.add({ ...hold, pool: config.name });
      }
    });
    for (const pool of chosen) {
      pool.pause.release(person + reason);
      pool.draining = false;
    }
    reconciler.replanAll();
    const held = chosen.flatMap((pool) => {
      const { people = [], own = [] } = Object.groupBy(pool.pause.held, ([reason]) =>
        reason.startsWith(person) ? 'people' : 'own',
      );
      const by = people.map(([reason]) => reason.slice(person.length));
      const because = [...reconciler.pause.details, ...own.map(([, detail]) => detail)];
      return by.length + because.length === 0 ? [] : [{ pool: pool.config.name, by, because }];
    });
    return { changed, held };
  }

  #hold(name: string | null, what: Pick<Hold, 'kind' | 'reason'>): void {
    const { store, clock, reconciler } = this.#parts;
    const chosen = this.#choose(name);
    store.transaction({ durable: true }, () => store.holds.add({ pool: name, ...what, since: clock.wall() }));
    for (const pool of chosen) take(pool, what);
    reconciler.replanAll();
  }

  get #current(): Pool[] {
    return this.#parts.reconciler.pools.filter(({ leaving }) => !leaving);
  }

  #choose(name: string | null): Pool[] {
    const pools = this.#current.filter(({ config }) => name === null || config.name === name);
    if (pools.length > 0) return pools;
    const known = this.#current.map(({ config }) => config.name).join(', ');
    throw new OnejobError('E_POOL_UNKNOWN', `There is no pool "${name}".`, { hint: `The pools are: ${known}.` });
  }
}

export function take(pool: Pool, { kind, reason }: Pick<Hold, 'kind' | 'reason'>): void {
  if (kind === 'drain') pool.draining = true;
  else pool.pause.hold(person + reason, `by ${reason}`, { closes: true });
}
