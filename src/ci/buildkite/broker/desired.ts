/** What the manager wants of each slot, as long as there is a manager. Held in memory only: it is told anew to every broker. */
import type { Clock } from '../../../core/clock.ts';
import type { Offer, OffersRequest, ServiceDesired } from './protocol.ts';
import type { AgentRecord } from './record.ts';

/**
 * `open`: its agent should take a job. `closed`: not now. `gone`: nothing is wanted of it any more. `unknown`: there is nobody
 * who could say, so no job is taken, and what runs goes on.
 */
export type Want = 'open' | 'closed' | 'gone' | 'unknown';

export interface Desired {
  set(request: OffersRequest): void;
  service(name: string): ServiceDesired | null;
  /** All that are wanted; none while nobody can say. */
  offers(): readonly Offer[];
  /** What is wanted of an agent that has no job yet. */
  wants(record: AgentRecord): Want;
  /** A manager listens; the returned function says that it does no more. Calls off a leave once it has said what it wants. */
  join(): () => void;
  readonly hasManager: boolean;
  /** Since when there has been none (the clock's `now`); null while there is one. */
  readonly lonelySince: number | null;
  /** From now on no job is taken, whatever those managers say that listen already. Who comes later needs a broker that goes on. */
  leave(): void;
  readonly isLeaving: boolean;
  /** Since when it is (the clock's `now`); null while it is not. */
  readonly leavingSince: number | null;
}

export function createDesired(clock: Clock, changed: () => void): Desired {
  const services = new Map<string, ServiceDesired>();
  let offers = new Map<string, Offer>();
  /** Whether `offers` are what the manager that is there now wants, and all of it. */
  let isKnown = false;
  let managers = 0;
  let lonelySince: number | null = clock.now();
  let leavingSince: number | null = null;
  /** How often a leave was asked for, and how many of the managers came after the last. */
  let leaves = 0;
  let newcomers = 0;

  return {
    set(request) {
      if (request.services !== undefined && request.complete) services.clear();
      for (const service of request.services ?? []) services.set(service.name, service);
      if (request.complete) offers = new Map();
      for (const offer of request.offers) offers.set(offer.slot, offer);
      if (request.complete) isKnown = true;
      if (request.complete && newcomers > 0) leavingSince = null;
      changed();
    },
    service: (name) => services.get(name) ?? null,
    offers: () => (isKnown && managers > 0 && leavingSince === null ? [...offers.values()] : []),
    wants({ shown, metaData, priority, base }) {
      if (leavingSince !== null) return 'gone';
      if (!isKnown || managers === 0) return 'unknown';
      const offer = offers.get(shown.slot);
      const isSame =
        offer !== undefined &&
        offer.name === shown.name &&
        offer.pool === shown.pool &&
        offer.service === shown.service &&
        services.get(offer.service)?.endpoint === base &&
        offer.priority === priority &&
        offer.metaData.length === metaData.length &&
        offer.metaData.every((each, index) => each === metaData[index]);
      if (!isSame) return 'gone';
      return offer.open ? 'open' : 'closed';
    },
    join() {
      const at = leaves;
      managers += 1;
      newcomers += 1;
      lonelySince = null;
      changed();
      let isOver = false;
      return () => {
        if (isOver) return;
        isOver = true;
        managers -= 1;
        if (at === leaves) newcomers -= 1;
        if (managers > 0) return;
        // Who comes next says what it wants; until then an old wish could give a job to a slot that is not free.
        isKnown = false;
        lonelySince = clock.now();
        changed();
      };
    },
    get hasManager() {
      return managers > 0;
    },
    get lonelySince() {
      return lonelySince;
    },
    leave() {
      leavingSince ??= clock.now();
      leaves += 1;
      newcomers = 0;
      changed();
    },
    get isLeaving() {
      return leavingSince !== null;
    },
    get leavingSince() {
      return leavingSince;
    },
  };
}
