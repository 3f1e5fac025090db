/** Every body that crosses the API, as zod schemas: the server checks what comes in, the client what comes back. */
import { z } from 'zod';
import { outcomes } from '../core/job-end.ts';
import { parsePipeline } from '../schema/pipelines.ts';
import { arrayPlace, jobResult } from './job.ts';
import { varianceView } from './variance.ts';
import { verdictKinds } from './verdict.ts';

/** The result of a job of a CI service, in the service's word. */
const reported = z.object({ kind: z.literal('reported'), word: z.string() });

/** What a CI service reports about its job. Foreign texts: make them printable before they reach a terminal. */
const aboutView = z.object({
  /** For people, in one line. */
  title: z.string(),
  definition: z.string().nullable(),
  build: z.string().nullable(),
  repository: z.string().nullable(),
  branch: z.string().nullable(),
  /** Why it was started, in the service's word. */
  reason: z.string().nullable(),
  /** Page of the job at the service. */
  link: z.string().nullable(),
  demands: z.array(z.string()),
});
export type AboutView = z.infer<typeof aboutView>;

/** `code`: the job's own. `why`: a sentence without its full stop. `evidence`: what it is based on, a line each. */
const verdictView = z.object({ kind: z.enum(verdictKinds), why: z.string(), evidence: z.array(z.string()).readonly() });

const counts = z.object({ stdout: z.number(), stderr: z.number() });
/** Payload of a frame that says what is missing of an output, as JSON. */
export const gapBody = z.object({
  missing: counts,
  after: counts,
  holes: z.enum(['here', 'before']).optional(),
  asked: z.boolean().optional(),
});

export const jobView = z.object({
  id: z.string(),
  /** Name of the CI service it is a job of. */
  service: z.string(),
  /** Empty while a job of another service may go to several pools. */
  pool: z.string(),
  /** Empty for a job that its CI service keeps. */
  command: z.array(z.string()),
  /** Name and user of a job of the own queue, as its client said. */
  name: z.string().nullable().optional(),
  user: z.string().nullable().optional(),
  /** The uid of the person who handed it in, as the kernel says; `user` is then the name of that user. Left out without `people`. */
  person: z.int().optional(),
  /** null for a job of the own queue. */
  about: aboutView.nullable(),
  /** Its output is at its CI service only, and `logs` has what its agent said; left out if not so, or if no daemon runs that knows. */
  outputElsewhere: z.boolean().optional(),
  /**
   * `reserved`: its sandbox is being made. `settling`: it has its result, and log and artifacts are being completed. `waiting`: its
   * CI service has not given it to an agent yet.
   */
  state: z.enum(['waiting', 'queued', 'reserved', 'assigned', 'running', 'settling', 'done']),
  priority: z.int(),
  /** How often it was started. */
  attempt: z.int(),
  agent: z.string().nullable(),
  /** null also when it is over and its service did not say how. */
  result: z.discriminatedUnion('kind', [...jobResult.options, reported]).nullable(),
  /** What that means, in the same words for all CI services; null until it is over, and if nobody knows. */
  outcome: z.enum(outcomes).nullable().optional(),
  /** Why it waits, or what else is known; a sentence. */
  reason: z.string().nullable(),
  /** Whether it runs in a sandbox made for it alone. */
  cold: z.boolean(),
  artifacts: z.array(z.string()),
  /** The array of the own queue that it is part of, and its place in it. */
  array: arrayPlace.optional(),
  /** Jobs and arrays that must have passed before it starts. */
  needs: z.array(z.string()).optional(),
  /** Wall clock, ms since the epoch; null when its service does not say. */
  submittedAt: z.number().nullable(),
  startedAt: z.number().nullable(),
  endedAt: z.number().nullable(),
  /** When it first printed something; null: nothing yet. Only in the answer about one job. */
  firstOutputAt: z.number().nullable().optional(),
  /**
   * What it may have at most: bytes, CPUs, ms; null: no limit. What is not certain is left out, as where config has changed since it
   * began. Only in the answer about one job.
   */
  limits: z
    .object({
      memory: z.number().nullable().optional(),
      cpus: z.number().nullable().optional(),
      timeout: z.number().nullable().optional(),
    })
    .optional(),
  /** Image of its agent; null if its runtime has none. Only of a job that has ended. */
  image: z.string().nullable().optional(),
  /** UUIDs of the devices of its agent. */
  devices: z.array(z.string()).optional(),
  /** Whose fault its end was; null until it has ended, and for jobs that no agent here had. */
  verdict: verdictView.nullable().optional(),
  /** How its card was meanwhile, of a job of a benchmark slot that has ended; null: nobody knows. */
  variance: varianceView.nullable().optional(),
  /** Jobs of its pool before it; left out unless it is queued in the own queue, in a pool of the config. */
  ahead: z.int().optional(),
  /** Its files are kept until then, wall clock, ms since the epoch; left out if they are not. */
  held: z.object({ until: z.number() }).nullable().optional(),
  /** When it will probably start, ms from now; left out if that cannot be known. */
  startsIn: z.object({ from: z.int(), to: z.int() }).optional(),
});
export type JobView = z.infer<typeof jobView>;

/** Ended jobs with one value of what was asked for: a pool, a device, the start of an hour and so on. */
export const historyView = z.object({
  value: z.string(),
  jobs: z.int(),
  passed: z.int(),
  cancelled: z.int(),
  code: z.int(),
  infrastructure: z.int(),
  configuration: z.int().default(0),
  unknown: z.int(),
  /** Means, ms; null if no times are known. */
  waitMs: z.int().nullable(),
  runMs: z.int().nullable(),
  /** The longest run, ms. */
  longestMs: z.int(),
});
export type HistoryView = z.infer<typeof historyView>;

export const slotView = z.object({
  key: z.string(),
  name: z.string(),
  devices: z.array(z.string()),
  standby: z.object({
    state: z.enum(['none', 'preparing', 'standby']),
    agent: z.string().nullable(),
    since: z.number().nullable(),
  }),
  agent: z.object({
    state: z.enum(['free', 'registering', 'releasing', 'idle', 'retiring', 'busy', 'stopping', 'killing', 'proving']),
    agent: z.string().nullable(),
    job: z.string().nullable(),
    /** What its CI service reports about the job; null if nothing is known. */
    about: aboutView.nullable(),
    /** Whether the CI service could give a job to this idle agent, or to one for a free slot; else null. */
    online: z.boolean().nullable(),
    /** ms since it is in this state */
    since: z.number().nullable(),
  }),
  leaving: z.array(z.string()),
  /** What it is doing right now, such as the progress of a pull. */
  note: z.string().nullable(),
  /** Why its devices must not be used right now; null when they may. */
  held: z.string().nullable(),
});
export type SlotView = z.infer<typeof slotView>;

export const poolView = z.object({
  name: z.string(),
  service: z.string(),
  runtime: z.string(),
  /** The image of its agents, if the config names one. */
  image: z.string().optional(),
  agents: z.int(),
  waiting: z.int().nullable(),
  /** Failed jobs whose files are kept; left out if there are none. */
  held: z.int().optional(),
  /** What keeps it from having agents until a person does something, for after its name, such as `has no agents`. */
  problems: z.array(z.string()).optional(),
  /** The code of each of `problems`, in their order, such as `no-agents`; left out with them. */
  problemCodes: z.array(z.string()).optional(),
  /** What its jobs should know: which runtime was chosen and why, how its isolation is weaker, what it cannot reach. */
  notes: z.array(z.string()).optional(),
  /** Why nothing new starts: `by NAME` for people, else a sentence about what is wrong or not ready. */
  paused: z.array(z.string()),
  /** Nothing starts until something works again, such as its CI service, its runtime or the disk; left out if not so. */
  outage: z.boolean().optional(),
  draining: z.boolean(),
  /** The config no longer has it: it exists until its agents have ended. */
  leaving: z.boolean(),
  backoff: z
    .object({
      failures: z.int(),
      retryIn: z.number(),
      reason: z.string(),
      /** The common cause of all failures, such as `image "x:1" on docker`; null if there is none. */
      waitsFor: z.string().nullable(),
    })
    .nullable(),
  /** A new image, or agent, that one slot tries; missing while nothing is tried. */
  update: z
    .object({
      /** The slot that tries it. */
      slot: z.string(),
      /** Such as `image x:2`. */
      image: z.string(),
      previous: z.string(),
      /** Why it failed last; null: it has not failed. */
      failure: z.string().nullable(),
      /** ms until it is tried again; null: it has not failed. */
      retryIn: z.number().nullable(),
      /** All of this as a sentence without its full stop. */
      text: z.string(),
    })
    .optional(),
  /** Slots whose devices all exist outside of quarantine, and wanted slots; null without devices or before the first inventory. */
  devices: z.object({ ready: z.int(), wanted: z.int() }).nullable(),
  slots: z.array(slotView),
});
export type PoolView = z.infer<typeof poolView>;

/** Who asks. `user`: as said when the login was asked for; null for a token, and on the socket. */
export const meView = z.object({ role: z.enum(['read', 'submit', 'operator']), user: z.string().nullable() });

export const linkRequest = z.strictObject({
  role: z.enum(['read', 'operator']).default('operator'),
  user: z.string().min(1).max(64).nullable().default(null),
});
/**
 * `until`: wall clock, ms since the epoch. The client writes the address into a page of its own host and opens it, so a daemon on
 * another host may not say just anything. `built`: whether the daemon has the page that the address is for.
 */
export const linkView = z.object({
  url: z.string().regex(/^https?:\/\/[^\s"'<>`]+$/),
  until: z.number(),
  built: z.boolean().default(true),
});
export type LinkView = z.infer<typeof linkView>;
const coordinate = z.string().regex(/^[\w-]{43}$/);
/** On P-256, as JWK has it. */
export const publicKey = z.strictObject({ x: coordinate, y: coordinate });
/** `key`: of the browser, which signs its requests with it. */
export const loginRequest = z.strictObject({ code: z.string().min(1).max(100), key: publicKey });
/** `session` gives access together with signatures of the key. `daemon`: its own key, and the port where it knows this login. */
export const loginView = meView.extend({
  session: z.string(),
  daemon: z.object({ key: publicKey, port: z.number() }),
});
/** `challenge` is part of what is signed for this listener, and `at` the daemon's wall clock, ms. */
export const challengeView = z.object({ challenge: z.string(), at: z.number() });

/** A device that was once leased and is missing, until it comes back or is forgotten. */
const missingView = z.object({
  uuid: z.string(),
  /** Slot that had it last. */
  slot: z.string(),
  /** A sentence without its full stop. */
  why: z.string(),
});
export type MissingView = z.infer<typeof missingView>;

/** A device in quarantine that a pool had or would get. */
const quarantinedView = z.object({
  uuid: z.string(),
  pool: z.string(),
  /** A sentence without its full stop. */
  why: z.string(),
});
export type QuarantinedView = z.infer<typeof quarantinedView>;

const offerView = z.object({ type: z.string(), spot: z.boolean(), zone: z.string().nullable() });

/** A machine in a cloud. Times are ms since the epoch, by the clock of the cloud. */
export const machineView = z.object({
  /** Its name in all tags. */
  run: z.string(),
  host: z.string(),
  cloud: z.string(),
  offer: offerView,
  /**
   * `intent`: its create call has no answer yet. `made`: the cloud does not hold its end yet. `booting`: it has not joined. `ending`: it
   * is being removed. `gone`: two complete lists in a row did not have it.
   */
  state: z.enum(['intent', 'made', 'booting', 'joined', 'draining', 'ending', 'gone']),
  since: z.number(),
  /** Its id at the cloud; null while that is unknown. */
  id: z.string().nullable(),
  place: z.string().nullable(),
  bornAt: z.number(),
  expiresAt: z.number(),
  joinedAt: z.number().nullable(),
  stage: z.string().nullable(),
  /** Why it drains, ends or has ended. */
  why: z.string().nullable(),
  isFailure: z.boolean(),
  /** What it reported last; null: nothing to this daemon. `problem`: why it cannot work; null: it can. */
  report: z.object({ busy: z.number(), agents: z.number(), idleFor: z.number(), problem: z.string().nullable() }).nullable(),
  /** What holds its end at the cloud; null: nothing. */
  end: z.string().nullable(),
  /** Everything that lists have shown of it. */
  items: z.array(z.object({ kind: z.string(), id: z.string(), place: z.string() })),
  /** When complete lists have not shown it, in a row. */
  absentAt: z.array(z.number()),
  /** The credential that made it. */
  by: z.string(),
  /** USD, by estimate; null: its price is unknown. */
  cost: z.number().nullable(),
  perHour: z.number().nullable(),
  /** The end of its console, if it ended without joining. */
  console: z.string().nullable(),
  /** What CI services kept of its agents once it was gone; null: nobody has looked. `left`: not removed yet. */
  registrations: z
    .object({
      removed: z.array(z.string()),
      left: z.array(z.string()),
      unknown: z.array(z.string()),
      clearedAt: z.number().nullable(),
    })
    .nullable(),
});
export type MachineView = z.infer<typeof machineView>;

export const errorView = z.object({ code: z.string(), message: z.string(), hint: z.string().nullable(), retry: z.boolean() });
export type ErrorView = z.infer<typeof errorView>;

/** An entry of `hosts` with its machines. */
export const cloudHostView = z.object({
  host: z.string(),
  cloud: z.string(),
  min: z.number(),
  max: z.number(),
  /** Jobs that wait for it. */
  waiting: z.number(),
  /** Machines that people asked for, and that have not joined yet. */
  wanted: z.number(),
  /** Why it has fewer machines than its jobs need. */
  reason: z.string().nullable(),
  /** Why its cloud makes none until a person changes something. */
  refused: errorView.nullable(),
  /** Why CI services tell nothing about its jobs, one sentence for each of its pools that is concerned. */
  held: z.array(z.string()),
  machines: z.array(machineView),
});
export type CloudHostView = z.infer<typeof cloudHostView>;
export const makeMachineRequest = z.strictObject({
  /** ms until nobody waits for the machine any more, so that none is made. */
  wait: z
    .int()
    .min(1)
    .max(24 * 3_600_000)
    .default(45 * 60_000),
});
export const endMachinesRequest = z.strictObject({ now: z.boolean().default(false) });

export const statusView = z.object({
  version: z.string(),
  pid: z.int(),
  owner: z.string(),
  config: z.string().nullable(),
  /** That its files have changed since it was loaded, and what to do; else null. */
  configChanged: z.string().nullable(),
  stateDir: z.string(),
  /** Short name of the host; left out by an earlier version. */
  hostName: z.string().optional(),
  /** Ends by itself when nothing is left to do. */
  temporary: z.boolean(),
  stopping: z.boolean(),
  /** Which runtime was chosen and why, if the config does not say. */
  runtimeReason: z.string().nullable(),
  /** What the runtime's isolation lacks; null if nothing. */
  weaker: z.string().nullable(),
  /** Problems of the whole host, such as an unreachable Engine. */
  problems: z.array(z.string()),
  missing: z.array(missingView),
  quarantined: z.array(quarantinedView),
  pools: z.array(poolView),
  /** Entries of `hosts`; left out if the config has none. */
  hosts: cloudHostView.array().optional(),
});
export type StatusView = z.infer<typeof statusView>;

export const planLine = z.object({ slot: z.string(), intent: z.string(), because: z.string() });
export type PlanLine = z.infer<typeof planLine>;

export const findingView = z.object({
  level: z.enum(['ok', 'warning', 'error']),
  subject: z.string(),
  message: z.string(),
  hint: z.string().nullable(),
  /** One of docs/findings.md, of an error, or of a finding about a GPU; left out by an earlier version. */
  code: z.string().optional(),
});
export type FindingView = z.infer<typeof findingView>;

export const downRequest = z
  .strictObject({
    how: z.enum(['end', 'drain', 'leave']),
    grace: z.int().min(0).nullable().default(null),
    /** Also removes entries that otherwise stay at CI services; `/v1/forgotten` has the result. */
    forget: z.boolean().default(false),
    /** Others than the owner end the host, so that jobs that are ended were lost to the infrastructure. */
    taken: z.boolean().optional(),
  })
  .refine(({ how, forget }) => !(forget && how === 'leave'), 'agents that are left need what "forget" removes');
export type DownRequest = z.infer<typeof downRequest>;

export const applyRequest = z.strictObject({ dryRun: z.boolean().default(false) });
export type ApplyRequest = z.infer<typeof applyRequest>;

/** `changes`: a sentence for each pool and service that another config changes. */
export const configProblem = z.object({
  source: z.string(),
  line: z.int().nullable(),
  column: z.int().nullable(),
  level: z.enum(['error', 'warning']),
  /** Empty for the whole file. */
  key: z.string(),
  message: z.string(),
});

export const applyAnswer = z.object({
  applied: z.boolean(),
  changes: z.array(z.string()),
  /** As `onejob config check` prints them. */
  warnings: z.array(configProblem).default([]),
  /** Jobs that would wait for ever with the config, a line for each pool, with what to type. */
  stranded: z.array(z.string()).default([]),
});
export type ApplyAnswer = z.infer<typeof applyAnswer>;

/** Removed and remaining registrations of one CI service. */
export const forgottenView = z.object({
  service: z.string(),
  /** Names at the service. */
  removed: z.array(z.string()),
  left: z.array(z.string()),
  /** Why some are or may be left; else null. */
  problem: z.string().nullable(),
});
export type ForgottenView = z.infer<typeof forgottenView>;

/** `reason` names the pause; a resume ends only the pause of its reason. */
export const pauseRequest = z.strictObject({ reason: z.string().min(1).default('hand') });

/** What still holds pools after a resume; other pools are left out. */
export const resumeView = z.object({
  /** Whether it has ended a pause or a drain. */
  changed: z.boolean(),
  held: z.array(
    z.object({
      pool: z.string(),
      /** Reasons of other people's pauses. */
      by: z.array(z.string()),
      /** Why onejob itself holds it, one sentence each. */
      because: z.array(z.string()),
    }),
  ),
});
export type ResumeView = z.infer<typeof resumeView>;

export const moveRequest = z.strictObject({ pool: z.string().min(1) });

/** `onlyWaiting`: one that has begun meanwhile keeps running. */
export const cancelRequest = z.strictObject({ onlyWaiting: z.boolean().default(false) });

export const workspaceView = z.object({ id: z.string() });

/** `name`: for `POST /v1/workspaces`. A secret: who has it can give the files to a job. */
export const sentView = z.object({ name: z.string() });

const offset = z.number().int().min(0);

/** Files that were sent before which a workspace can be made of. */
export const mostFiles = 16;

/** Parts of files that were sent before, which are a tar one after the other. */
export const joinRequest = z.strictObject({
  /** Names of them. */
  sent: z.array(z.string()).min(1).max(mostFiles),
  /** Which of `sent`, from which byte and to before which. */
  ranges: z
    .array(z.tuple([offset, offset, offset]))
    .min(1)
    .max(20_000),
});
export type JoinRequest = z.infer<typeof joinRequest>;

export const pruneRequest = z.strictObject({
  /** ms since they ended, at least. */
  olderThan: z.number().int().min(0),
  /** Only counts. */
  dryRun: z.boolean(),
});
export type PruneRequest = z.infer<typeof pruneRequest>;

export const prunedView = z.object({
  /** Jobs of the own queue. */
  jobs: z.number(),
  /** Agents whose logs were removed. */
  agents: z.number(),
  bytes: z.number(),
  dryRun: z.boolean(),
});
export type PrunedView = z.infer<typeof prunedView>;

export const cacheView = z.object({
  /** `named`: a folder of `caches` of a pool. `service`: an archive that jobs of a CI service keep. */
  kind: z.enum(['named', 'service']),
  /** The pool, or the service. */
  of: z.string(),
  /** Its name, or its key at the service. */
  name: z.string(),
  /** Of the slot that has it; null: it belongs to no slot. */
  agent: z.string().nullable(),
  /** Whose jobs alone have it: a project, or hex digits for the repository of untrusted jobs; null: all of the slot. */
  project: z.string().nullable(),
  trusted: z.boolean(),
  /** null: it is nested too deep to be counted, or gone meanwhile. */
  bytes: z.number().nullable(),
  /** Wall clock, ms since the epoch; null: it is empty. */
  usedAt: z.number().nullable(),
  /** Whether a job has it, or writes it. */
  inUse: z.boolean(),
});
export type CacheView = z.infer<typeof cacheView>;

/** Which: all that is given must fit. */
export const clearCachesRequest = z.strictObject({
  /** A pool, or a service. */
  of: z.string().optional(),
  name: z.string().optional(),
  project: z.string().optional(),
  /** Only those of untrusted jobs. */
  untrusted: z.boolean().optional(),
  /** Only counts. */
  dryRun: z.boolean(),
});
export type ClearCachesRequest = z.infer<typeof clearCachesRequest>;

export const cachesClearedView = z.object({
  caches: z.number(),
  bytes: z.number(),
  /** Caches that stay, because a job uses them. */
  inUse: z.number(),
  dryRun: z.boolean(),
});
export type CachesClearedView = z.infer<typeof cachesClearedView>;

/**
 * `occupied`: a person's process uses it. `reserved`: by a person. `missing`: was leased once, and is gone. `unknown`: not in the
 * last inventory, which was incomplete. `elsewhere`: another manager of this host has it.
 */
const deviceState = z.enum(['free', 'leased', 'occupied', 'reserved', 'quarantined', 'missing', 'unknown', 'elsewhere']);
export type DeviceState = z.infer<typeof deviceState>;

/** How much of a device is in use; null: unknown. */
export const useView = z.object({
  memoryUsedMiB: z.number().nullable(),
  /** Percent. */
  utilization: z.number().nullable(),
  /** °C */
  temperature: z.number().nullable(),
  /** W */
  powerW: z.number().nullable(),
  smClockMHz: z.number().nullable().optional(),
  memoryClockMHz: z.number().nullable().optional(),
  /** What slows its clocks down; empty: nothing does. */
  throttled: z.array(z.string()).readonly().nullable().optional(),
  /** Wall clock, ms since the epoch. */
  at: z.number(),
});
export type UseView = z.infer<typeof useView>;

export const deviceView = z.object({
  uuid: z.string(),
  kind: z.enum(['gpu', 'mig']),
  model: z.string(),
  pciId: z.string().nullable(),
  /** As the vendor's tool counts now; null if it is missing. */
  index: z.int().nullable(),
  memoryMiB: z.number().nullable(),
  /** Of a MIG instance. */
  profile: z.string().nullable(),
  /** UUID of the GPU that a MIG instance is part of. */
  parent: z.string().nullable(),
  state: deviceState,
  /** Slot that has it or will have it; the first of those that share it. */
  slot: z.string().nullable(),
  /** Agents that use it now. */
  agents: z.array(z.string()),
  /** Why no job gets it now, as the rest of a sentence or one without its full stop; null when one may. */
  why: z.string().nullable(),
  /** Start of this state; for a missing device when it was last seen. Wall clock, ms since the epoch; null if unknown. */
  since: z.number().nullable(),
  /** When its reservation ends, wall clock, ms; null: when it is returned. */
  until: z.number().nullable(),
  /** When onejob tries it again, wall clock, ms; null: never. */
  retryAt: z.number().nullable(),
  /** What a person can do, as a sentence. */
  hint: z.string().nullable(),
  /** In the last minute; null if unknown. */
  use: useView.nullable().default(null),
});
export type DeviceView = z.infer<typeof deviceView>;

/**
 * Events by name. `reset` comes first on a connection that does not continue an earlier one: `new`, after the daemon `restarted`, or
 * because too much was `missed`. A client that gets it reads everything again.
 */
export const eventViews = {
  reset: z.object({ reason: z.enum(['new', 'restarted', 'missed']) }),
  pool: poolView.omit({ slots: true }),
  /** `slot` null: it no longer exists. */
  slot: z.object({ pool: z.string(), key: z.string(), slot: slotView.nullable() }),
  job: jobView,
  device: deviceView,
  host: statusView.pick({ problems: true, configChanged: true, stopping: true }),
  /** Something that no longer exists: a pool by name, a job by id, a device by UUID. */
  gone: z.object({ what: z.enum(['pool', 'job', 'device']), name: z.string() }),
};
export type EventName = keyof typeof eventViews;
export type EventView<N extends EventName> = z.infer<(typeof eventViews)[N]>;
/** An event with its name. */
export type Event = { [N in EventName]: readonly [name: N, data: EventView<N>] }[EventName];

/** Ten years, ms. */
const longest = 3650 * 86_400_000;

export const reserveRequest = z.strictObject({
  /** ms; null: until it is returned. */
  for: z.int().positive().max(longest).nullable().default(null),
  /** Login name of the person. */
  by: z.string().min(1).max(64).nullable().default(null),
});
export const quarantineRequest = z.strictObject({ reason: z.string().min(1).max(1_000) });
export type DeviceChange =
  | ({ readonly act: 'reserve' } & z.infer<typeof reserveRequest>)
  | ({ readonly act: 'quarantine' } & z.infer<typeof quarantineRequest>)
  | { readonly act: 'return' | 'clear' | 'forget' };

export const deviceAnswer = z.object({
  uuid: z.string(),
  /** False if nothing had to change. */
  changed: z.boolean(),
  /** Its new state; null if it is forgotten. */
  device: deviceView.nullable(),
});
export type DeviceAnswer = z.infer<typeof deviceAnswer>;

/** Proofs in a list by default, and at most. */
export const proofsListed = 100;
export const proofsAtMost = 10_000;

export const proofView = z.object({
  device: z.string(),
  slot: z.string(),
  /** The agent that had the device. */
  agent: z.string(),
  /** `clean`, `wait`, `occupied`, `dirty`, `unknown` or `host`. */
  verdict: z.string(),
  /** The checks and their results. */
  evidence: z.json(),
  /** ms from the agent's end until the verdict. */
  took: z.number(),
  /** Wall clock, ms since the epoch. */
  at: z.number(),
});
export type ProofView = z.infer<typeof proofView>;

export const imageView = z.object({
  /** Name and tag. */
  reference: z.string(),
  id: z.string(),
  /** Pools that use it. */
  pools: z.array(z.string()),
  /** Its base; null if a Dockerfile names it. */
  base: z.string().nullable(),
  /** Version of the CI service's agent in it; null without one. */
  agent: z.string().nullable(),
  /** Bytes, including layers that it shares with other images. */
  size: z.number(),
  /** Wall clock, ms since the epoch. */
  createdAt: z.number(),
  containers: z.int(),
});
export type ImageView = z.infer<typeof imageView>;

/** Names of pools; empty for all whose images are built. */
export const imageRequest = z.strictObject({ pools: z.array(z.string().min(1)).default([]) });

const imageOutcome = z.object({
  pool: z.string(),
  image: z.string().nullable(),
  agent: z.string().nullable(),
  /** `there`: it existed. `newer`: agents use it from now on. */
  what: z.enum(['there', 'built', 'newer', 'failed']),
  problem: errorView.nullable(),
});
export type ImageOutcome = z.infer<typeof imageOutcome>;

/** One line of the answer to a build; `end` or `error` is the last. */
export const imageEvent = z.discriminatedUnion('kind', [
  z.object({ kind: z.literal('progress'), pool: z.string(), line: z.string() }),
  z.object({ kind: z.literal('done'), outcome: imageOutcome }),
  z.object({ kind: z.literal('end') }),
  z.object({ kind: z.literal('error'), error: errorView }),
]);
export type ImageEvent = z.infer<typeof imageEvent>;

export const removedView = z.object({ removed: z.array(z.string()) });

/** A fingerprint or, for a pinned value, its beginning. */
export const fingerprintText = z
  .string()
  .regex(/^[0-9a-f]{8,32}$/, 'a fingerprint is 32 digits and letters a to f; for a listed one, the first 8 are enough');

const pipeline = z.string().refine((text) => parsePipeline(text) !== null, 'a pipeline is ORGANISATION/SLUG, in lower case');

export const allowRequest = z.strictObject({ pipelines: z.array(pipeline).min(1).max(100) });
/** `pipeline` null: all pins of the value. */
export const forgetRequest = z.strictObject({ pipeline: pipeline.nullable().default(null) });

/** A pinned value, the oldest pin first. */
export const pinnedView = z.object({
  fingerprint: z.string(),
  /** Variable of its first use, without `SECRET_`; null before that. */
  name: z.string().nullable(),
  pipelines: z.array(
    z.object({
      /** `ORGANISATION/SLUG`; `*` stands for all. */
      pipeline: z.string(),
      /** `used`: it was the first to use the value. `allowed`: by a person. */
      origin: z.enum(['used', 'allowed']),
      /** Wall clock, ms since the epoch. */
      at: z.number(),
    }),
  ),
});
export type PinnedView = z.infer<typeof pinnedView>;
export const forgetAnswer = z.object({ fingerprint: z.string(), forgotten: z.number() });
export type ForgetAnswer = z.infer<typeof forgetAnswer>;
