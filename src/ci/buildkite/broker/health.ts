/** What each service is like, from what its answers were. One bad answer among good ones is nothing to tell. */
import type { ServiceHealth } from './protocol.ts';
import type { Called } from './upstream.ts';

export interface Health {
  /** To be told of every answer of the service. */
  heard(service: string, called: Called): void;
  /** Its registration token was accepted (null) or refused. */
  registered(service: string, refusedBecause: string | null): void;
  all(): readonly ServiceHealth[];
  /** The service is none of ours any more. */
  forget(service: string): void;
}

/** Failures in a row from which on a service is away. */
const enough = 2;

interface Known {
  failures: number;
  away: string | null;
  refused: string | null;
}

/** @param changed called with each change, not with the first look at a service that is well */
export function createHealth(changed: (health: ServiceHealth) => void): Health {
  const services = new Map<string, Known>();
  const healthOf = (service: string, { away, refused }: Known): ServiceHealth =>
    away !== null
      ? { service, kind: 'away', why: away }
      : refused !== null
        ? { service, kind: 'refused', why: refused }
        : { service, kind: 'ok', why: null };
  const change = (service: string, fn: (known: Known) => void): void => {
    const known = services.get(service) ?? { failures: 0, away: null, refused: null };
    services.set(service, known);
    const before = healthOf(service, known).kind;
    fn(known);
    const after = healthOf(service, known);
    if (after.kind !== before) changed(after);
  };
  return {
    heard: (service, called) =>
      change(service, (known) => {
        const isAway = !called.ok && called.retry;
        known.failures = isAway ? known.failures + 1 : 0;
        if (!isAway) known.away = null;
        else if (known.failures >= enough) known.away = called.error.message;
      }),
    registered: (service, why) =>
      change(service, (known) => {
        known.refused = why;
      }),
    all: () => [...services].map(([service, known]) => healthOf(service, known)),
    forget: (service) => void services.delete(service),
  };
}
