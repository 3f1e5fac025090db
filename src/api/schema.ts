/** Every body that crosses the API, as zod schemas: the server checks what comes in, the client what comes back. */
import { z } from 'zod';
import { jobResult } from '../job.ts';

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
