/** Every body that crosses the API, as zod schemas: the server checks what comes in, the client what comes back. */
import { z } from 'zod';
import { jobResult } from '../job.ts';
import { parsePipeline } from '../secrets/pipelines.ts';

/** Of a job that its CI service keeps: what that says of it, in its own word. */
const reported = z.object({ kind: z.literal('reported'), word: z.string() });

/** What a CI service tells of a job that it keeps itself. Texts are from elsewhere: a terminal must be kept from them. */
const aboutView = z.object({
  /** For people, in one line. */
  title: z.string(),
  definition: z.string().nullable(),
  build: z.string().nullable(),
  repository: z.string().nullable(),
  branch: z.string().nullable(),
  /** Why it was started, in the service's word. */
  reason: z.string().nullable(),
  /** Where the job can be looked at, and cancelled. */
  link: z.string().nullable(),
  demands: z.array(z.string()),
});
export type AboutView = z.infer<typeof aboutView>;

export const jobView = z.object({
  id: z.string(),
  /** Name of the CI service it is a job of. */
  service: z.string(),
  /** Empty while a job of another service may go to several. */
  pool: z.string(),
  /** Empty for a job that its CI service keeps. */
  command: z.array(z.string()),
  /** Of a job of the own queue, as its client said: what it is called, and who handed it in. */
  name: z.string().nullable().optional(),
  user: z.string().nullable().optional(),
  /** null for a job of the own queue. */
  about: aboutView.nullable(),
  /**
   * `reserved`: a sandbox is being made for it. `settling`: has its result, log and artifacts are being completed. `waiting`:
   * its CI service keeps it, and gave it to no agent yet.
   */
  state: z.enum(['waiting', 'queued', 'reserved', 'assigned', 'running', 'settling', 'done']),
  priority: z.int(),
  /** How often it was begun or tried. */
  attempt: z.int(),
  agent: z.string().nullable(),
  /** null also when it is over and its service never said how. */
  result: z.discriminatedUnion('kind', [...jobResult.options, reported]).nullable(),
  /** Why it waits, when it does, or what was made of it; a sentence. */
  reason: z.string().nullable(),
  /** Whether it runs in a sandbox made for it alone. */
  cold: z.boolean(),
  artifacts: z.array(z.string()),
  /** Wall clock, ms since the epoch; null when its service does not say. */
  submittedAt: z.number().nullable(),
  startedAt: z.number().nullable(),
  endedAt: z.number().nullable(),
  /** How many jobs of its pool go before it. Only with one job that was asked for, while it is queued. */
  ahead: z.int().optional(),
});
export type JobView = z.infer<typeof jobView>;

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
    /** What its CI service tells of the job; null when it keeps none, or nothing is known yet. */
    about: aboutView.nullable(),
    /** Of an idle agent, or of one that stands for a free slot: whether its CI service could give it a job. Else null. */
    online: z.boolean().nullable(),
    /** ms since it is in this state */
    since: z.number().nullable(),
  }),
  leaving: z.array(z.string()),
  /** What it is doing right now, e.g. a pull's progress; null for nothing worth a line. */
  note: z.string().nullable(),
  /** Why its devices must not be used right now; null when nothing speaks against it. */
  held: z.string().nullable(),
});
export type SlotView = z.infer<typeof slotView>;

export const poolView = z.object({
  name: z.string(),
  service: z.string(),
  runtime: z.string(),
  /** What its agents are made from, where the config names it and the runtime has images. */
  image: z.string().optional(),
  agents: z.int(),
  waiting: z.int().nullable(),
  paused: z.array(z.string()),
  draining: z.boolean(),
  /** The config does not ask for it any more: it is there until what is in it has ended. */
  leaving: z.boolean(),
  backoff: z
    .object({
      failures: z.int(),
      retryIn: z.number(),
      reason: z.string(),
      /** What cannot be had and all failures come from, such as `image "x:1" on docker`; null when nothing can be named. */
      waitsFor: z.string().nullable(),
    })
    .nullable(),
  /**
   * Slots whose devices are all there and none of them in quarantine, of those there should be; null for a pool without devices of its own, and until the
   * host was looked at.
   */
  devices: z.object({ ready: z.int(), wanted: z.int() }).nullable(),
  slots: z.array(slotView),
});
export type PoolView = z.infer<typeof poolView>;

/** A device that was leased once and is not there any more, until it comes back or is forgotten. */
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

export const statusView = z.object({
  version: z.string(),
  pid: z.int(),
  owner: z.string(),
  config: z.string().nullable(),
  /** That its files are not what was loaded, and what to do; null when they are. */
  configChanged: z.string().nullable(),
  stateDir: z.string(),
  /** Ends by itself when nothing is left to do. */
  temporary: z.boolean(),
  stopping: z.boolean(),
  /** Which runtime was chosen and why, when config did not say. */
  runtimeReason: z.string().nullable(),
  /** What the runtime's isolation lacks; null when nothing. */
  weaker: z.string().nullable(),
  /** Things that keep the whole host from working, e.g. Engine unreachable. */
  problems: z.array(z.string()),
  missing: z.array(missingView),
  quarantined: z.array(quarantinedView),
  pools: z.array(poolView),
});
export type StatusView = z.infer<typeof statusView>;

export const planLine = z.object({ slot: z.string(), intent: z.string(), because: z.string() });
export type PlanLine = z.infer<typeof planLine>;

export const findingView = z.object({
  level: z.enum(['ok', 'warning', 'error']),
  subject: z.string(),
  message: z.string(),
  hint: z.string().nullable(),
});
export type FindingView = z.infer<typeof findingView>;

export const downRequest = z
  .strictObject({
    how: z.enum(['end', 'drain', 'leave']),
    grace: z.int().min(0).nullable().default(null),
    /** Also removes what stays at CI services otherwise; what came of it is told at `/v1/forgotten`. */
    forget: z.boolean().default(false),
  })
  .refine(({ how, forget }) => !(forget && how === 'leave'), 'agents that are left need what "forget" removes');
export type DownRequest = z.infer<typeof downRequest>;

/** What became of one CI service's registrations when they were to be forgotten. */
export const forgottenView = z.object({
  service: z.string(),
  /** Names at the service. */
  removed: z.array(z.string()),
  left: z.array(z.string()),
  /** Why some are left, or may be; null when none is. */
  problem: z.string().nullable(),
});
export type ForgottenView = z.infer<typeof forgottenView>;

/** `reason` names who holds the pause; resuming releases that holder only. */
export const pauseRequest = z.strictObject({ reason: z.string().min(1).default('hand') });

/** What still keeps pools from starting anything after a resume; a pool that nothing holds is left out. */
export const resumeView = z.object({
  held: z.array(
    z.object({
      pool: z.string(),
      /** Reasons of other people's pauses. */
      by: z.array(z.string()),
      /** What onejob itself holds it for, one sentence each. */
      because: z.array(z.string()),
    }),
  ),
});
export type ResumeView = z.infer<typeof resumeView>;

export const workspaceView = z.object({ id: z.string() });

/** What `jobs prune` is to forget. */
export const pruneRequest = z.strictObject({
  /** ms since they ended, at least. */
  olderThan: z.number().int().min(0),
  /** Only says what it would be. */
  dryRun: z.boolean(),
});
export type PruneRequest = z.infer<typeof pruneRequest>;

export const prunedView = z.object({
  /** Of the own queue. */
  jobs: z.number(),
  /** Whose logs are gone. */
  agents: z.number(),
  /** What that was on the disk. */
  bytes: z.number(),
  dryRun: z.boolean(),
});
export type PrunedView = z.infer<typeof prunedView>;

/** How many jobs a list of all holds when nobody says otherwise: the newest. */
export const jobsListed = 1_000;

/** Bytes of tar a workspace may have. */
export const workspaceLimit = 2 * 2 ** 30;

export const errorView = z.object({ code: z.string(), message: z.string(), hint: z.string().nullable(), retry: z.boolean() });
export type ErrorView = z.infer<typeof errorView>;

// Devices

const deviceState = z.enum([
  'free',
  'leased',
  /** A person's process is on it. */
  'occupied',
  /** A person took it. */
  'reserved',
  'quarantined',
  /** Was leased once, and is not there any more. */
  'missing',
  /** Not listed by the last look, which did not see all. */
  'unknown',
  /** Another manager of this host has it. */
  'elsewhere',
]);
export type DeviceState = z.infer<typeof deviceState>;

export const deviceView = z.object({
  uuid: z.string(),
  kind: z.enum(['gpu', 'mig']),
  model: z.string(),
  pciId: z.string().nullable(),
  /** Where the vendor's tool counts it now; null when it is not there. */
  index: z.int().nullable(),
  memoryMiB: z.number().nullable(),
  /** Of a MIG instance. */
  profile: z.string().nullable(),
  /** UUID of the GPU that a MIG instance is part of. */
  parent: z.string().nullable(),
  state: deviceState,
  /** Slot that has it, or is to have it; of a pool that shares it the first. */
  slot: z.string().nullable(),
  /** Agents that are on it now, whatever its state. */
  agents: z.array(z.string()),
  /** Why no job gets it now, as the rest of a sentence or one without its full stop; null when nothing speaks against it. */
  why: z.string().nullable(),
  /** Since when it is in this state: wall clock, ms since the epoch; null where nobody knows. Of one that is gone, when it was seen last. */
  since: z.number().nullable(),
  /** When its reservation ends, wall clock, ms; null: when it is returned. */
  until: z.number().nullable(),
  /** When it is tried again, wall clock, ms; null: not by itself. */
  retryAt: z.number().nullable(),
  /** What a person can do, as a sentence; null when there is nothing to do. */
  hint: z.string().nullable(),
});
export type DeviceView = z.infer<typeof deviceView>;
export const deviceList = z.array(deviceView);

/** Ten years, ms. */
const longest = 3650 * 86_400_000;

export const reserveRequest = z.strictObject({
  /** ms; null: until it is returned. */
  for: z.int().positive().max(longest).nullable().default(null),
  /** Login name of the person. */
  by: z.string().min(1).max(64).nullable().default(null),
});

export const quarantineRequest = z.strictObject({ reason: z.string().min(1).max(1_000) });

/** What a person wants done with a device. */
export type DeviceChange =
  | ({ readonly act: 'reserve' } & z.infer<typeof reserveRequest>)
  | ({ readonly act: 'quarantine' } & z.infer<typeof quarantineRequest>)
  | { readonly act: 'return' | 'clear' | 'forget' };

export const deviceAnswer = z.object({
  uuid: z.string(),
  /** False when it was so already. */
  changed: z.boolean(),
  /** As it is afterwards; null when nothing is known of it any more. */
  device: deviceView.nullable(),
});
export type DeviceAnswer = z.infer<typeof deviceAnswer>;

/** How many proofs a list holds when nobody says otherwise, and at most. */
export const proofsListed = 100;
export const proofsAtMost = 10_000;

const proofView = z.object({
  device: z.string(),
  slot: z.string(),
  /** The agent that had the device before. */
  agent: z.string(),
  /** `clean`, `wait`, `occupied`, `dirty`, `unknown` or `host`. */
  verdict: z.string(),
  /** What was looked at and what it said. */
  evidence: z.json(),
  /** ms from the agent's end until the verdict. */
  took: z.number(),
  /** Wall clock, ms since the epoch. */
  at: z.number(),
});
export type ProofView = z.infer<typeof proofView>;
export const proofList = z.array(proofView);

// Images that onejob builds

const imageView = z.object({
  /** Name and tag. */
  reference: z.string(),
  id: z.string(),
  /** Pools whose sandboxes are made from it. */
  pools: z.array(z.string()),
  /** What it was built on; null when a Dockerfile says it. */
  base: z.string().nullable(),
  /** Version of the CI service's agent in it; null when it has none. */
  agent: z.string().nullable(),
  /** bytes, with what it shares with other images */
  size: z.number(),
  /** Wall clock, ms since the epoch. */
  createdAt: z.number(),
  /** Containers that were made from it. */
  containers: z.int(),
});
export type ImageView = z.infer<typeof imageView>;
export const imageList = z.array(imageView);

/** Names of pools; none: all whose images are built. */
export const imageRequest = z.strictObject({ pools: z.array(z.string().min(1)).default([]) });

const imageOutcome = z.object({
  pool: z.string(),
  /** null when there is none. */
  image: z.string().nullable(),
  agent: z.string().nullable(),
  /** `there`: nothing had to be done. `newer`: agents are made from it from now on. */
  what: z.enum(['there', 'built', 'newer', 'failed']),
  problem: errorView.nullable(),
});
export type ImageOutcome = z.infer<typeof imageOutcome>;

/** One line of the answer to a build: it is sent as it happens. */
export const imageEvent = z.discriminatedUnion('kind', [
  z.object({ kind: z.literal('progress'), pool: z.string(), line: z.string() }),
  z.object({ kind: z.literal('done'), outcome: imageOutcome }),
  /** The last line when all was done. */
  z.object({ kind: z.literal('end') }),
  /** The last line when it was not. */
  z.object({ kind: z.literal('error'), error: errorView }),
]);
export type ImageEvent = z.infer<typeof imageEvent>;

export const removedView = z.object({ removed: z.array(z.string()) });

// Pins of encrypted values

/** A fingerprint or, of a value that is pinned, its beginning. */
export const fingerprintText = z
  .string()
  .regex(/^[0-9a-f]{8,32}$/, 'a fingerprint is 32 digits and letters a to f; for a listed one, the first 8 are enough');

const pipeline = z.string().refine((text) => parsePipeline(text) !== null, 'a pipeline is ORGANISATION/SLUG, in lower case');

export const allowRequest = z.strictObject({ pipelines: z.array(pipeline).min(1).max(100) });
/** `pipeline` null: all pins of the value. */
export const forgetRequest = z.strictObject({ pipeline: pipeline.nullable().default(null) });

/** An encrypted value that is pinned, oldest pin first. */
export const pinnedView = z.object({
  fingerprint: z.string(),
  /** Variable it was used as first, without `SECRET_`; null when it was allowed before any job used it. */
  name: z.string().nullable(),
  pipelines: z.array(
    z.object({
      /** `ORGANISATION/SLUG`; `*` stands for all. */
      pipeline: z.string(),
      /** `used`: it was the first to use the value. `allowed`: a person said so. */
      origin: z.enum(['used', 'allowed']),
      /** Wall clock, ms since the epoch. */
      at: z.number(),
    }),
  ),
});
export type PinnedView = z.infer<typeof pinnedView>;
export const pinnedList = z.array(pinnedView);
export const forgetAnswer = z.object({ fingerprint: z.string(), forgotten: z.number() });
export type ForgetAnswer = z.infer<typeof forgetAnswer>;
