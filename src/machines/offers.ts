/** Which offer is asked for next, and which had no capacity lately. */
import { errorCodes, hasCode, messageOf, OnejobError } from '../base/errors.ts';
import { spotsOf } from '../clouds/offer.ts';
import { CloudError, type CloudErrorCode, type Offer } from '../ports/cloud.ts';
import type { HostConfig } from '../schema/host-config.ts';

/** An offer that the cloud did not have. */
export interface Unavailable {
  readonly cloud: string;
  readonly offer: Offer;
  /** Seconds by the cloud's clock: since when without a success in between, and when to ask again. */
  readonly since: number;
  readonly until: number;
  readonly code: CloudErrorCode;
  /** The cloud's words. */
  readonly why: string;
  /** The error, if no other try changes it; else null. */
  readonly lasting: OnejobError | null;
}

/** Seconds until an offer is asked for again; peers remember quota for an hour, and capacity for minutes to a day. */
const again: Readonly<Partial<Record<CloudErrorCode, number>>> = {
  E_CLOUD_CAPACITY: 900,
  E_CLOUD_QUOTA: 3600,
  E_CLOUD_REQUEST: 3600,
  E_CLOUD_ACCOUNT: 600,
  E_CLOUD_DENIED: 600,
  E_CLOUD_CREDENTIAL: 300,
  E_CLOUD_END: 600,
  E_CLOUD_THROTTLED: 60,
  // Longer than a lost machine is looked for, so that another zone comes next.
  E_CLOUD_UNREACHABLE: 180,
};

/** For a whole host: the same error would come for every offer. */
const ofEveryOffer: ReadonlySet<CloudErrorCode> = new Set([
  'E_CLOUD_ACCOUNT',
  'E_CLOUD_DENIED',
  'E_CLOUD_CREDENTIAL',
  'E_CLOUD_END',
  'E_CLOUD_THROTTLED',
]);

const isSame = (a: Offer, b: Offer): boolean => a.type === b.type && a.spot === b.spot && a.zone === b.zone;

export type Next =
  | { readonly offer: Offer }
  | { readonly offer: null; readonly until: number; readonly because: readonly Unavailable[] };

const nameOf = (cloud: string, { type, spot }: Pick<Offer, 'type' | 'spot'>): string => `${cloud} ${type} ${spot}`;

/** `now` is in seconds by the cloud's clock. */
export class Offers {
  #known: readonly Unavailable[] = [];
  /** Zones that the cloud named for an offer, so that they come first. */
  readonly #named = new Map<string, readonly string[]>();

  /** What to ask for now, or why nothing, with the time to look again. */
  next(host: HostConfig, types: ReadonlyMap<string, { readonly zones: readonly (string | null)[] }>, now: number): Next {
    const because: Unavailable[] = [];
    for (const spot of spotsOf(host))
      for (const type of host.types) {
        const quota = this.#withoutQuota(host.cloud, { type, spot }, now);
        if (quota !== undefined) {
          because.push(quota);
          continue;
        }
        for (const zone of order(types.get(type)?.zones ?? [null], this.#named.get(nameOf(host.cloud, { type, spot })) ?? [])) {
          const offer = { type, spot, zone };
          const why = this.#missing(host.cloud, offer, now);
          if (why === undefined) return { offer };
          because.push(why);
        }
      }
    return { offer: null, until: Math.min(...because.map(({ until }) => until)), because: [...new Set(because)] };
  }

  #missing(cloud: string, offer: Offer, now: number): Unavailable | undefined {
    return this.#known.find(
      (one) => one.cloud === cloud && now < one.until && (ofEveryOffer.has(one.code) || isSame(one.offer, offer)),
    );
  }

  /** In no zone. */
  #withoutQuota(cloud: string, { type, spot }: Pick<Offer, 'type' | 'spot'>, now: number): Unavailable | undefined {
    const isQuota = ({ code }: Unavailable): boolean => code === 'E_CLOUD_QUOTA' || code === 'E_CLOUD_REQUEST';
    return this.#known.find(
      (one) => one.cloud === cloud && isQuota(one) && one.offer.type === type && one.offer.spot === spot && now < one.until,
    );
  }

  /** The create call for it failed. */
  failed(cloud: string, offer: Offer, error: unknown, now: number): void {
    const before = this.#known.find((one) => one.cloud === cloud && isSame(one.offer, offer));
    // Without its secret, or what machines boot with, nothing can be asked.
    const isOurs = hasCode(error, 'E_SECRET', 'E_CONFIG');
    const code = error instanceof CloudError ? error.code : isOurs ? 'E_CLOUD_CREDENTIAL' : 'E_CLOUD_ANSWER';
    const one = {
      cloud,
      offer,
      since: before?.since ?? now,
      until: now + (again[code] ?? 60),
      code,
      why: messageOf(error),
      lasting: lastingOf(error),
    };
    this.#known = [...this.#known.filter((other) => other !== before), one];
    if (error instanceof CloudError && error.zones.length > 0) this.#named.set(nameOf(cloud, offer), error.zones);
  }

  /** The cloud does not say where it has the type. */
  unknown(cloud: string, type: string, error: unknown, now: number): void {
    for (const spot of [false, true]) this.failed(cloud, { type, spot, zone: null }, error, now);
  }

  /** The create call for it succeeded. */
  succeeded(cloud: string, offer: Offer): void {
    this.#known = this.#known.filter((one) => one.cloud !== cloud || !isSame(one.offer, offer));
  }

  /** Somebody asks for a machine of the host now, whatever was unavailable: everything is asked for again that may be. */
  forget(host: Pick<HostConfig, 'cloud' | 'types'>): void {
    const isKept = ({ cloud, offer, code }: Unavailable): boolean =>
      cloud !== host.cloud || !host.types.includes(offer.type) || code === 'E_CLOUD_THROTTLED' || code === 'E_CLOUD_UNREACHABLE';
    this.#known = this.#known.filter(isKept);
  }

  /** Those that are unavailable at `now`. */
  unavailable(now: number): readonly Unavailable[] {
    return this.#known.filter(({ until }) => now < until);
  }
}

/** An answer that says nothing, or a lack of capacity, may be another one next time. */
function lastingOf(error: unknown): OnejobError | null {
  return error instanceof OnejobError && !error.retry && errorCodes[error.code] === 'user' ? error : null;
}

/**
 * The zones in which to try. After a try without a zone, which was one everywhere, only those that the cloud named are worth another;
 * else those that it named come first.
 */
function order(zones: readonly (string | null)[], named: readonly string[]): readonly (string | null)[] {
  const given = named.filter((zone) => zones.includes(zone));
  if (zones[0] === null) return [null, ...given];
  return [...given, ...zones.filter((zone) => zone === null || !given.includes(zone))];
}
