/**
 * What manager and broker say to each other, over a Unix socket that only the installation's user can open.
 *
 * The broker is a process of its own: it is the idle agent at the service, and carries what a running job says. It knows
 * nothing of pools, sandboxes or trust. The manager tells it which slots could take a job, hears of accepted jobs, and decides.
 * Everything is a state, so that either side can be away: who comes back is sent the whole of it first.
 */
import { z } from 'zod';

/** Changes whenever an older side would misunderstand a newer one. */
export const protocolVersion = 1;

const id = z.string().regex(/^[a-z0-9][a-z0-9-]{0,63}$/);
const text = z.string().max(4096);
/** Of what stands in a job's log instead of its output, in characters. */
export const longestReason = 8192;

/** A service, with what is needed to speak to it. Tokens are held in memory only. */
const serviceDesired = z.strictObject({
  name: text,
  /** Without a slash at its end, such as `https://agent.buildkite.com/v3`. */
  endpoint: z.string(),
  /** Registers agents; null while it cannot be read, then nothing new is registered. */
  token: z.string().nullable(),
});
export type ServiceDesired = z.infer<typeof serviceDesired>;

/** What a slot is to the service: one agent, always of the same name. */
export const offer = z.strictObject({
  slot: text,
  pool: text,
  service: text,
  /** The agent's name. */
  name: text,
  /** `key=value` each, `queue=…` among them. A key may repeat, a value may be missing. */
  metaData: z.array(text),
  priority: z.int(),
  /** Whether the slot could take a job now. While it cannot its agent asks for none. */
  open: z.boolean(),
});
export type Offer = z.infer<typeof offer>;

export const offersRequest = z.strictObject({
  services: z.array(serviceDesired).optional(),
  offers: z.array(offer),
  /** `offers` are all there are: slots that are not named have no agent any more. */
  complete: z.boolean(),
});
export type OffersRequest = z.infer<typeof offersRequest>;

/**
 * How far an agent is. `held` ones are registered by the broker and go through all of it; `carried` ones register themselves
 * from within their sandbox, and begin as `expected`.
 */
export const phases = [
  /** Its one-time token is made; nothing has called in. */
  'expected',
  /** About to be made known: an agent may be there that nobody knows of. */
  'registering',
  /** Known to the service, and not connected: it is given no job. */
  'registered',
  'idle',
  /** The service named a job, and was or is about to be told that it is taken. */
  'accepting',
  /** The job is ours, and waits for the manager's decision and for a sandbox. */
  'accepted',
  /** A sandbox has its one-time token. */
  'handed',
  /** The agent in the sandbox has called in. */
  'connected',
  /** The service was told that the job has started. */
  'running',
  /** The service has the job's result. */
  'finished',
  /** Nothing is wanted of it any more; the service is being told. */
  'ending',
  /** Over and forgotten; said once. */
  'gone',
] as const;
export type Phase = (typeof phases)[number];

/** How a job ended, as the service was told. */
export interface Finished {
  /** As the agent sends it: a number as text, `-1` when it did not end by itself. */
  readonly exitStatus: string;
  readonly signal: string | null;
  /** `agent_refused`, `agent_stop`, `cancel`, `process_run_error`, …; null for a job that ended by itself. */
  readonly signalReason: string | null;
}

/** A job as the service gave it. Foreign: only `id` is sure. */
export type GivenJob = { readonly id: string; readonly env: Readonly<Record<string, string>> } & Readonly<Record<string, unknown>>;

/** One agent, as the broker knows it: what no log may not show. */
export interface BrokerAgent {
  /** The broker's own id of it. */
  readonly id: string;
  readonly kind: 'held' | 'carried';
  readonly service: string;
  readonly slot: string;
  readonly pool: string;
  readonly name: string;
  readonly phase: Phase;
  /** onejob's id of the agent whose sandbox has, or had, its token. */
  readonly agent: string | null;
  /** From `accepting` on. Its `token` is left out, whatever else stands in it. */
  readonly job: GivenJob | null;
  /** The service asks for the end of its job. */
  readonly cancelled: boolean;
  readonly finished: Finished | null;
  /** What went wrong with it last, for people; null when all is well. */
  readonly problem: string | null;
  /** When its phase began, ms since the epoch. */
  readonly since: number;
}

/** What a service is like right now. */
export interface ServiceHealth {
  readonly service: string;
  /** `refused`: its token is; `away`: it does not answer, or says that it cannot. */
  readonly kind: 'ok' | 'refused' | 'away';
  /** For people, as a sentence; null when all is well. */
  readonly why: string | null;
}

export interface BrokerState {
  readonly protocol: number;
  /** Of onejob. */
  readonly version: string;
  readonly pid: number;
  /** Where agents call in, the same on every address. */
  readonly port: number;
  /** Through which it reaches services, `host:port`; null: directly. */
  readonly proxy: string | null;
  readonly agents: readonly BrokerAgent[];
  readonly services: readonly ServiceHealth[];
}

/** A line of the stream `GET /v1/events`. While a manager reads it, it is there; else no job is taken. */
export type BrokerEvent =
  | ({ readonly kind: 'state' } & BrokerState)
  | { readonly kind: 'agent'; readonly agent: BrokerAgent }
  | { readonly kind: 'service'; readonly health: ServiceHealth }
  | { readonly kind: 'alive' };

/** `POST /v1/agents`: an agent that will register itself, through the broker (`binding: early`, `mode: acquire`). */
export const carryRequest = z.strictObject({
  /** onejob's id of the agent; asked twice for one, the same answer is given. */
  agent: id,
  service: text,
  slot: text,
  pool: text,
  name: text,
  metaData: z.array(text),
  priority: z.int(),
  /** Stands for the registration token, and only for `job`; null: the service's own token is used. */
  acquisition: z.strictObject({ job: text, token: text }).nullable(),
  /** As in `handRequest`, which says it anew where `secrets` are null. */
  trusted: z.boolean(),
  /** Known before its job: nobody is asked when it accepts one. */
  secrets: z.array(z.strictObject({ name: text, value: z.string() })).nullable(),
});
export type CarryRequest = z.infer<typeof carryRequest>;

/** `POST /v1/agents/:id/hand`: the job may run, in the sandbox of `agent`. Idempotent for one agent. */
export const handRequest = z.strictObject({
  agent: id,
  /** Whether it may do more at the service than run: ask for its secrets, its tokens, other jobs. */
  trusted: z.boolean(),
  /** What the job may know, by the names of variables; fetched by the agent inside, which keeps them out of its log. */
  secrets: z.array(z.strictObject({ name: text, value: z.string() })),
});
export type HandRequest = z.infer<typeof handRequest>;

/** The one-time token, as good as nothing once an agent has connected with it. */
export const handAnswer = z.object({ token: z.string(), job: z.string().nullable() });
export type HandAnswer = z.infer<typeof handAnswer>;

/** `POST /v1/agents/:id/refuse`: the job never runs; the service is told why in the job's log. Idempotent. */
export const refuseRequest = z.strictObject({
  /** For people, one or more lines: becomes the job's log. */
  reason: z.string().max(longestReason),
  /** `agent_refused`: a rule forbids it. `process_run_error`: no sandbox could be made. `agent_stop`: onejob is being stopped. */
  signalReason: z.enum(['agent_refused', 'process_run_error', 'agent_stop']),
});
export type RefuseRequest = z.infer<typeof refuseRequest>;

/**
 * `POST /v1/agents/:id/explain`: its job is about to be ended, and why. Its log says so once its own agent reports that it was.
 * Idempotent; means nothing to an agent whose job is over.
 */
export const explainRequest = z.strictObject({ reason: z.string().max(longestReason) });
export type ExplainRequest = z.infer<typeof explainRequest>;

/** `POST /v1/agents/:id/end`: its sandbox is gone, or will never be. A job without a result is given one. Idempotent. */
export const endRequest = z.strictObject({
  /** Why the job has no result of its own, for its log. */
  reason: z.string().max(longestReason),
  signalReason: z.enum(['process_run_error', 'agent_stop']),
});
export type EndRequest = z.infer<typeof endRequest>;

/**
 * `POST /v1/agents/:id/retire`: a carried agent is to leave without a job. From then on none can come to it; answers the one that
 * has come already. Refused with `retry` while nobody can say. Idempotent; one that is not there has none.
 */
export const retireAnswer = z.object({ job: z.string().nullable() });
export type RetireAnswer = z.infer<typeof retireAnswer>;

/** `POST /v1/listen`: agents call in at this address too. */
export const listenRequest = z.strictObject({ address: z.string().max(64) });
export const listenAnswer = z.object({ port: z.int() });

/**
 * `POST /v1/leave`: ends the broker once its last job is over; idle agents leave the service at once. Called off by a manager that
 * began to read the events after this, once it has made its complete offers.
 */
export const leaveAnswer = z.object({ unfinished: z.int() });
