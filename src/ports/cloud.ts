/**
 * The cloud axis: makes machines with an end of life, lists them by owner, and removes them. A member is a small adapter over the
 * cloud's REST API. It keeps no state and decides nothing: `ledger.ts` says what was intended, and the controller does the rest.
 *
 * Gone means two complete lists in a row without it. What a cloud answers to a create or destroy call is only a hint.
 */
import { type ErrorCode, type ErrorOptions, OnejobError } from '../base/errors.ts';
import type { Finding } from '../base/finding.ts';

/**
 * Keys of the tags (labels) that everything a cloud makes for us has. Lower case letters, digits, `-` and `_`, at most 63: valid as
 * AWS tag, GCP label and Azure tag. So are the values.
 */
export const tagKeys = {
  /** The id of the installation that owns it. */
  owner: 'onejob-owner',
  /** The machine it belongs to. */
  run: 'onejob-run',
  /** Name of the machine's entry in `hosts`. */
  host: 'onejob-host',
  /** When the machine was asked for; seconds since the epoch by the cloud's clock. */
  born: 'onejob-born',
  /** When the machine must be gone; seconds since the epoch by the cloud's clock. */
  expires: 'onejob-expires',
} as const;

/** A valid owner, and name of a host: what every cloud takes as value of a tag. */
export const tagValue = /^[a-z0-9][a-z0-9_-]{0,62}$/;

/** Names of machines: see `Birth`. */
export const runName = /^onejob-[0-9a-f]{16}$/;

/** What is tagged. */
export interface Birth {
  readonly owner: string;
  /** Unique name of one machine: `onejob-` and 16 hexadecimal digits. Each attempt to create one has its own. */
  readonly run: string;
  readonly host: string;
  /** Seconds since the epoch by the cloud's clock. */
  readonly born: number;
  /** Seconds since the epoch by the cloud's clock. */
  readonly expires: number;
}

/** What to ask for. An offer that had no capacity is remembered by these three. */
export interface Offer {
  /** As the config writes it: `g6.xlarge`, `n1-standard-4/nvidia-tesla-t4`, `Standard_NC4as_T4_v3`. */
  readonly type: string;
  readonly spot: boolean;
  /** null: the cloud chooses. */
  readonly zone: string | null;
}

/** One call that creates one machine. */
export interface Order extends Birth {
  readonly offer: Offer;
  /** A random UUID, stored before the call: the cloud's own protection against a second machine, in this zone only. */
  readonly token: string;
  readonly image: CloudImage;
  /** The text for cloud-init. */
  readonly userData: string;
  /** GiB of the boot disk. */
  readonly disk: number;
}

/** What a machine boots from. */
export interface CloudImage {
  /** In the words of the cloud, see the adapter's page. */
  readonly from: string;
  /** What the image has already, so that cloud-init installs the rest. */
  readonly has: ImageContents;
}

/** `everything`: driver, Docker and NVIDIA's container toolkit. */
export type ImageContents = 'everything' | 'driver' | 'nothing';

/** A machine right after its creation. */
export interface Made {
  /** Its id at the cloud. */
  readonly id: string;
  /** Where the id is valid: an AWS region, a GCP zone, an Azure location. */
  readonly place: string;
  /** The zone that was chosen, if the cloud said so. */
  readonly zone: string | null;
}

/**
 * Something that exists at the cloud and has our tags. Things are removed in the order of this list, except for those that the cloud
 * removes together with their machine.
 */
export const thingKinds = ['machine', 'group', 'schedule', 'spot-request', 'disk', 'interface', 'address'] as const;
export type ThingKind = (typeof thingKinds)[number];

export interface Thing {
  readonly kind: ThingKind;
  readonly id: string;
  /** As in `Made`. */
  readonly place: string;
  /** null: its tags do not say. Such a thing is shown, but never removed. */
  readonly run: string | null;
  readonly host: string | null;
  /** Seconds since the epoch; null: its tags do not say. */
  readonly born: number | null;
  readonly expires: number | null;
  /** `ending`: the cloud is already removing it. `stopped`: it costs less, but is not gone. */
  readonly state: 'starting' | 'running' | 'ending' | 'stopped';
  /** For a machine: what it was made as, when the list says it. */
  readonly offer: Offer | null;
}

/** Everything of one owner. */
export interface Listing {
  readonly things: readonly Thing[];
  /** What could not be listed, each as the end of a sentence: `zone us-central1-b (unreachable)`. Empty: the list is complete. */
  readonly unknown: readonly string[];
  /** Why nothing could be listed, if asking again does not change that, as without a credential. */
  readonly refused?: OnejobError;
}

/** A list in which only what onejob named has a run: a label of somebody else may have any value. */
export function ownThings({ things, ...rest }: Listing): Listing {
  return { things: things.map((thing) => (runName.test(thing.run ?? '') ? thing : { ...thing, run: null })), ...rest };
}

/** Which parts of a cloud are listed. */
export interface ListScope {
  /** Places to look at in addition to the configured one, as in `Made`. */
  readonly places: readonly string[];
  /** Looks everywhere that the credential can see. Costs more calls. */
  readonly everywhere: boolean;
}

/** USD per hour. An estimate: `asOf` says from when. */
export interface Price {
  readonly perHour: number;
  /** A day: `2026-11-01`. */
  readonly asOf: string;
}

/** What a preflight examines: one entry of `hosts`. */
export interface HostPlan {
  readonly host: string;
  readonly types: readonly string[];
  readonly spot: 'never' | 'prefer' | 'only';
  readonly image: CloudImage;
  readonly disk: number;
  /** How many machines at most. */
  readonly max: number;
  /** ms */
  readonly lifetime: number;
  /** USD per day (UTC) for machines of this entry; null: no limit. */
  readonly budget: number | null;
  /** USD per hour by type, instead of the adapter's price. */
  readonly prices: Readonly<Record<string, number>>;
}

export interface CloudCapabilities {
  /** Whether the cloud itself holds the end of a machine; false: `death_date: manager-only`. */
  readonly holdsEnd: boolean;
  /** Whether a shutdown inside the machine ends it for good. */
  readonly guestEnds: boolean;
  /** Whether the cloud's own end removes a machine; otherwise it stays as `stopped`, and its disk costs on. */
  readonly endRemoves: boolean;
}

/**
 * One account or project of one cloud. Every call ends in bounded time.
 * @throws CloudError, and E_SECRET if the credential cannot be read
 */
export interface Cloud {
  /** Key in `clouds`. */
  readonly name: string;
  readonly type: string;
  readonly capabilities: CloudCapabilities;
  /** ms that the cloud's clock is ahead of ours, by its latest answer; null before the first one. */
  skew(): number | null;
  /** How the credential is called in receipts, such as `profile ci` or the account's id. Never a secret. */
  readonly credential: string;
  /** Zones to try for the type, in order. null: let the cloud choose. Never empty. */
  zones(type: string, signal: AbortSignal): Promise<readonly (string | null)[]>;
  /** What `auto` stands for. Pure. */
  readonly usualImage: CloudImage;
  /**
   * Creates one machine with everything that belongs to it, all of it tagged. Its own interfaces and disks end with it.
   * A CloudError with `isAmbiguous` may have created it; any other one may have left things, but no running machine.
   */
  create(order: Order, signal: AbortSignal): Promise<Made>;
  /**
   * Makes the cloud itself end the machine at `expires`, and reads that back. Idempotent. Returns what holds it, for the receipt.
   * @throws CloudError E_CLOUD_END if the cloud does not confirm it
   */
  setEnd(birth: Birth, made: Made, signal: AbortSignal): Promise<string>;
  /** All kinds of things with the owner's tag. A machine that the cloud reports as terminated is left out. Never throws partial lists away: what it could not list is in `unknown`. */
  list(owner: string, scope: ListScope, signal: AbortSignal): Promise<Listing>;
  /** Asks the cloud to remove one thing. Idempotent; a thing that does not exist is fine. The answer proves nothing. */
  destroy(thing: Pick<Thing, 'kind' | 'id' | 'place'>, signal: AbortSignal): Promise<void>;
  /** The end of the machine's console output; empty if the cloud has none yet. */
  console(made: Pick<Made, 'id' | 'place'>, signal: AbortSignal): Promise<string>;
  /**
   * Puts one line of ASCII where the machine reads it at its metadata service (`join/mail.ts`), in place of the earlier one. Anyone who
   * may read the machine's entry in the account can read it. Returns once the cloud has taken it; the machine may see it later.
   */
  deliver(made: Pick<Made, 'id' | 'place'>, text: string, signal: AbortSignal): Promise<void>;
  /** null: unknown. Asks the cloud at most once a day per offer. */
  price(offer: Pick<Offer, 'type' | 'spot'>, signal: AbortSignal): Promise<Price | null>;
  /** Credentials, permissions one by one, quota, image, network and end of life. Creates nothing. Never throws. */
  preflight(plan: HostPlan, signal: AbortSignal): Promise<Finding[]>;
  close?(): void;
}

/** Why a cloud did not do something. */
export type CloudErrorCode = Extract<ErrorCode, `E_CLOUD_${string}`>;

export interface CloudErrorOptions extends ErrorOptions {
  /** The cloud's own code, such as `InsufficientInstanceCapacity`. */
  readonly reason?: string | null;
  /** The call may have been carried out. */
  readonly isAmbiguous?: boolean;
  /** Zones that the cloud named as having capacity. */
  readonly zones?: readonly string[];
}

export class CloudError extends OnejobError {
  declare readonly code: CloudErrorCode;
  readonly reason: string | null;
  readonly isAmbiguous: boolean;
  readonly zones: readonly string[];

  constructor(code: CloudErrorCode, message: string, options: CloudErrorOptions = {}) {
    super(code, message, options);
    this.name = 'CloudError';
    this.reason = options.reason ?? null;
    this.isAmbiguous = options.isAmbiguous ?? false;
    this.zones = options.zones ?? [];
  }
}
