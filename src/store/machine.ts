/**
 * What the ledger knows of one machine: one attempt to create one, from before the call until two complete lists show nothing of it.
 * All times are seconds since the epoch by the clock of its cloud, so that a wrong clock here ends nothing early or late.
 */
import { z } from 'zod';
import { type Thing, thingKinds } from '../ports/cloud.ts';

const offer = z.object({ type: z.string(), spot: z.boolean(), zone: z.string().nullable() }).readonly();
const made = z.object({ id: z.string(), place: z.string(), zone: z.string().nullable() }).readonly();
const item = z.object({ kind: z.enum(thingKinds), id: z.string(), place: z.string() }).readonly();

/** Names of agents and placeholders. */
const registrations = z
  .object({
    removed: z.array(z.string()).readonly(),
    /** Not removed yet. */
    left: z.array(z.string()).readonly(),
    /** Why there may be more, a sentence each. */
    unknown: z.array(z.string()).readonly(),
    /** When nothing was left; null: it is tried again. */
    clearedAt: z.int().nullable(),
  })
  .readonly();
export type LeftRegistrations = z.infer<typeof registrations>;

export const machineSchema = z.object({
  /** Its name in every tag; `onejob-` and 16 hexadecimal digits. */
  run: z.string(),
  owner: z.string(),
  /** Key in `clouds`. */
  cloud: z.string(),
  /** Key in `hosts`. */
  host: z.string(),
  offer,
  /** The create token; used for one call. */
  token: z.string(),
  born: z.int(),
  expires: z.int(),
  /**
   * `intent`: the create call is under way, or nobody knows how it ended. `made`: it exists, and its end is not set. `booting`: its
   * end is set. `ending`: it is being removed. `gone`: two complete lists in a row did not have it.
   */
  state: z.enum(['intent', 'made', 'booting', 'joined', 'draining', 'ending', 'gone']),
  /** When it entered the state. */
  since: z.int(),
  made: made.nullable(),
  /** What holds its end at the cloud, as `Cloud.setEnd` says; null: nothing yet. */
  end: z.string().nullable(),
  /** Why it drains or ends, as a sentence; null: it does not. */
  why: z.string().nullable(),
  /** Whether its end was forced upon it, and its jobs with it: a failure, a spot notice, a removal by the cloud. */
  isFailure: z.boolean(),
  joinedAt: z.int().nullable(),
  /** The newest stage that it reported. */
  stage: z.string().nullable(),
  /** Everything that lists have shown of it. */
  items: z.array(item).readonly(),
  /** When complete lists have shown nothing of it, in a row; two are enough. */
  absent: z.array(z.int()).readonly(),
  /** When it was last in a list; null: never. */
  seenAt: z.int().nullable(),
  /** SHA-256 of the join token, and of the credential that the machine chose; null: none yet. */
  tokenHash: z.string(),
  credentialHash: z.string().nullable(),
  /** The credential that made it, as `Cloud.credential` says. */
  by: z.string(),
  /** USD per hour, with the day of that price; null: unknown. */
  price: z.object({ perHour: z.number(), asOf: z.string() }).readonly().nullable(),
  /** The end of its console, if it ended without joining. */
  console: z.string().nullable(),
  /** What CI services kept of its agents once it was gone; null: nobody has looked. */
  registrations: registrations.nullable().default(null),
});

export type Machine = Readonly<z.infer<typeof machineSchema>>;
export type MachineState = Machine['state'];

/** What people asked for a host. */
export interface Wish {
  /** Machines that have not joined yet; -1: none, whatever waits. */
  readonly machines: number;
  /** When it is over, in ms by this host's clock; null: never. */
  readonly until: number | null;
}

/** Whether a machine may exist at the cloud. */
export const mayLive = ({ state }: Machine): boolean => state !== 'gone';

/** Whether it works, or will: it is neither to be removed nor on the way there. */
export const isWanted = ({ state, why }: Machine): boolean =>
  why === null && (state === 'intent' || state === 'made' || state === 'booting' || state === 'joined');

export const thingKey = ({ kind, place, id }: Pick<Thing, 'kind' | 'place' | 'id'>): string => `${kind} ${place} ${id}`;

/** USD that it has cost until `now`, or in the part of that after `from`, by estimate; null: its price is unknown. */
export function costOf(machine: Machine, now: number, from = 0): number | null {
  const { price, made, joinedAt, items, born, state, since } = machine;
  // A create call may say that it failed, and have made one.
  if (made === null && joinedAt === null && !items.some(({ kind }) => kind === 'machine')) return 0;
  if (price === null) return null;
  const until = state === 'gone' ? since : now;
  return (Math.max(0, until - Math.max(born, from)) / 3600) * price.perHour;
}

/** The agent of a job of the own queue that a machine has: the machine, and the job's id there. */
export const agentOf = (run: string, remote: string): string => `${run}-${remote}`;

/** The reverse; null: an agent of this host. */
export function machinePlace(agent: string): { readonly run: string; readonly remote: string } | null {
  const [, run, remote] = /^(onejob-[0-9a-f]{16})-([0-9a-f]{12})$/.exec(agent) ?? [];
  return run === undefined || remote === undefined ? null : { run, remote };
}
