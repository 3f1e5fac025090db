/**
 * Every call of the API, declared once: the server checks requests by it (`api/routes.ts` has what answers them), the client is
 * typed by it, and `docs/openapi.json` is printed from it.
 */
import { z } from 'zod';
import { arrayRequest, jobRequest } from './job.ts';
import { pageLimit } from './manager.ts';
import * as schemas from './schema.ts';
import { historyAxes, verdictKinds } from './verdict.ts';

/** `anyone` needs no login; each may do all that those before it may. Only people of the host have `submit`. */
export const callRoles = ['anyone', 'read', 'submit', 'operator'] as const;
export type Role = (typeof callRoles)[number];

/**
 * Whose things a call is about, if those who may not do everything may ask only for their own: a job or an array, by the `id` of the
 * path, the job whose output the query names, or files that are brought back.
 */
export type Concern = 'job' | 'array' | 'output';

/** A body that is not JSON. */
export interface Media {
  readonly media: string;
  /** Whether there may be nothing to answer with (204). */
  readonly optional?: boolean;
  /** Of a stream of events: their data by name. */
  readonly events?: Readonly<Record<string, z.ZodType>>;
}

interface Bodies {
  /** Checks of the path's parts; omitted: each is any text. */
  readonly params?: z.ZodType | undefined;
  readonly query?: z.ZodType | undefined;
  /** Omitted: it is ignored. */
  readonly body?: z.ZodType | Media | undefined;
  /** Omitted: none (204). */
  readonly answer?: z.ZodType | Media | undefined;
  /** Of an answer; default 200. */
  readonly status?: 101 | 200 | 201 | 202;
}

export interface Call extends Bodies {
  /** A sentence without its full stop. */
  readonly summary: string;
  readonly role: Role;
  /** For people below `operator`: only of their own jobs. */
  readonly own?: Concern;
  /** The role that a person needs on the socket of that user, if another. */
  readonly onSocket?: Role;
}

type Declared<B> = Pick<Call, 'summary' | 'role' | 'own' | 'onSocket'> & B;

function anyone<const B extends Bodies>(summary: string, bodies: B): Declared<B> {
  return { summary, role: 'anyone', ...bodies };
}

function read<const A extends Bodies['answer'], const B extends Bodies = object>(
  summary: string,
  answer: A,
  bodies?: B & { readonly own?: Concern },
): Declared<B & { readonly answer: A }> {
  return { summary, role: 'read', answer, ...(bodies as B) };
}

function operator<
  const B extends Bodies['body'],
  const A extends Bodies['answer'] = undefined,
  const M extends Bodies & Pick<Call, 'onSocket'> = object,
>(summary: string, body: B, answer?: A, more?: M): Declared<M & { readonly body: B; readonly answer: A }> {
  return { summary, role: 'operator', body, answer: answer as A, ...(more as M) };
}

/** What people may ask who may hand in jobs. */
function submit<const B extends Bodies['body'], const A extends Bodies['answer'] = undefined, const M extends Bodies = object>(
  summary: string,
  body: B,
  answer?: A,
  { own, ...more }: M & { readonly own?: Concern } = {} as M,
): Declared<Omit<M, 'own'> & { readonly body: B; readonly answer: A }> {
  return { summary, role: 'submit', body, answer: answer as A, ...(own !== undefined && { own }), ...more };
}

/** No body. */
const none = undefined;

/** A UUID or its beginning, an index or a PCI address. */
const byDevice = z.object({ device: z.string().min(1) });
const byHost = z.object({ host: z.string().min(1) });
const byFingerprint = z.object({ fingerprint: schemas.fingerprintText });

const flag = z
  .enum(['true', '1', 'false', '0'])
  .default('false')
  .transform((text) => text === 'true' || text === '1');
/** Items of a list of proofs or receipts. */
const listed = z.coerce.number().int().min(1).max(schemas.proofsAtMost).default(schemas.proofsListed);

/** The daemon: status, plan, doctor, its config, its end, and keeping a temporary one alive. */
const controlCalls = {
  'GET /v1/openapi.json': read('This description', z.looseObject({ openapi: z.string() })),
  'GET /v1/status': read('The daemon, its pools and their slots', schemas.statusView),
  // Where Prometheus looks for it.
  'GET /metrics': read('Metrics for Prometheus', { media: 'text/plain; version=0.0.4; charset=utf-8' }),
  'GET /v1/plan': read('What each slot does next, and why', schemas.planLine.array()),
  'GET /v1/doctor': read('Checks the host, its devices and its CI services, which can take a minute', schemas.findingView.array()),
  'POST /v1/pause': pause('all pools'),
  'POST /v1/resume': resume('all pools'),
  'POST /v1/drain': drain('all pools'),
  'POST /v1/pools/:pool/pause': pause('a pool'),
  'POST /v1/pools/:pool/resume': resume('a pool'),
  'POST /v1/pools/:pool/drain': drain('a pool'),
  'POST /v1/config/apply': operator(
    'Reads the config file again and runs with it; with dryRun only tells what that would change',
    schemas.applyRequest,
    schemas.applyAnswer,
  ),
  'POST /v1/down': operator('Ends the daemon', schemas.downRequest, none, { status: 202 }),
  'GET /v1/forgotten': operator('Waits until a daemon that ends with "forget" has done so', none, schemas.forgottenView.array()),
  'GET /v1/hold': operator(
    'Keeps a temporary daemon alive as long as the connection lasts',
    none,
    { media: 'application/octet-stream' },
    { onSocket: 'read' },
  ),
};

function pause(which: string) {
  return operator(`Starts nothing new in ${which}`, schemas.pauseRequest);
}

function resume(which: string) {
  const summary = `Ends the pauses with this reason, and drains, of ${which}`;
  return operator(summary, schemas.pauseRequest, schemas.resumeView);
}

function drain(which: string) {
  return operator(`Finishes running jobs of ${which}, and starts nothing new until a resume`, none);
}

const accessCalls = {
  'GET /healthz': anyone('Whether the daemon takes requests: 200, or 503 while it stops', {
    answer: { media: 'text/plain; charset=utf-8' },
  }),
  'GET /v1/me': read('Who asks, and what that may do', schemas.meView),
  'POST /v1/login-links': operator(
    'A link for one login within a minute, for at most what the caller may do',
    schemas.linkRequest,
    schemas.linkView,
    { onSocket: 'read', status: 201 },
  ),
  'POST /v1/login': anyone('Uses the code of a link for a session, for the browser that has a key', {
    body: schemas.loginRequest,
    answer: schemas.loginView,
  }),
  'GET /v1/challenge': anyone('What a browser signs its requests for', { answer: schemas.challengeView }),
};

const eventCalls = {
  'GET /v1/events': read(
    'Everything that changes, as server-sent events',
    { media: 'text/event-stream', events: schemas.eventViews },
    {
      /** The header `last-event-id`, for clients that cannot set it. */
      query: z.object({ after: z.string().optional() }),
    },
  ),
};

const listQuery = z.strictObject({
  all: flag,
  pool: z.string().nullable().default(null),
  limit: z.coerce.number().int().min(1).max(pageLimit).optional(),
  // Each of these asks for jobs that have ended.
  service: z.string().optional(),
  since: z.coerce.number().int().optional(),
  until: z.coerce.number().int().optional(),
  failed: flag,
  verdict: z.enum(verdictKinds).optional(),
  image: z.string().optional(),
  device: z.string().optional(),
  text: z.string().min(1).max(200).optional(),
  before: z.string().optional(),
});

const historyQuery = z.strictObject({
  by: z.enum(historyAxes).default('pool'),
  pool: z.string().nullable().default(null),
  // One of these, with the same `by`, or by hour or day.
  service: z.string().nullable().default(null),
  image: z.string().nullable().default(null),
  device: z.string().nullable().default(null),
  since: z.coerce.number().int().nullable().default(null),
  until: z.coerce.number().int().nullable().default(null),
});

/** Jobs of every CI service; those of the own queue can be submitted and cancelled, and have artifacts. */
const jobCalls = {
  'POST /v1/jobs': submit('Submits a job to the own queue', jobRequest, schemas.jobView, { status: 201 }),
  // Finds mistakes before the client sends a workspace of gigabytes.
  'POST /v1/jobs/check': submit('Fails as a submission would, except for the workspace', jobRequest),
  'POST /v1/job-arrays': submit('Submits all jobs of an array to the own queue, or none', arrayRequest, schemas.jobView.array(), {
    status: 201,
  }),
  'GET /v1/job-arrays/:id': read(
    'Jobs of an array in the order of its indices, ended or not; empty if there is no such array',
    schemas.jobView.array(),
  ),
  'POST /v1/job-arrays/:id/cancel': submit(
    'Asks all jobs of an array to end, in one step; answers with those that had not ended',
    none,
    schemas.jobView.array(),
    { own: 'array' },
  ),
  'GET /v1/jobs': read(
    'Jobs that are not over, or all, newest last; with a filter jobs that have ended; by page: the header `onejob-next` is the `before` of the next',
    schemas.jobView.array(),
    { query: listQuery },
  ),
  'GET /v1/history': read(
    'How many jobs ended how, by pool, image, device and so on, the worst first; by hour or day, the oldest first',
    schemas.historyView.array(),
    { query: historyQuery },
  ),
  'POST /v1/jobs/prune': operator(
    'Forgets jobs that ended, with their logs and artifacts',
    schemas.pruneRequest,
    schemas.prunedView,
  ),
  'GET /v1/caches': read('Caches that outlive agents: of pools, and of CI services', schemas.cacheView.array()),
  'POST /v1/caches/clear': operator('Empties caches that no job uses', schemas.clearCachesRequest, schemas.cachesClearedView),
  'GET /v1/jobs/:id': read('One job', schemas.jobView),
  'GET /v1/jobs/:id/settled': read('Waits for the end of a job', schemas.jobView),
  'POST /v1/jobs/:id/cancel': submit('Asks a job of the own queue to end', schemas.cancelRequest, schemas.jobView, { own: 'job' }),
  'POST /v1/jobs/:id/move': submit('Moves a waiting job of the own queue to another pool', schemas.moveRequest, schemas.jobView, {
    own: 'job',
  }),
  'GET /v1/jobs/:id/artifacts': read(
    'The files that a job of the own queue brought back; no content if there are none',
    {
      media: 'application/x-tar',
      optional: true,
    },
    { own: 'job' },
  ),
  'POST /v1/jobs/:id/shell': submit(
    'A shell in the files of a held job, or in an attended job that runs, on a connection upgraded to onejob-shell; only on the socket',
    none,
    none,
    { own: 'job', status: 101 },
  ),
  'POST /v1/jobs/:id/unhold': submit('Removes the files of a held job', none, schemas.jobView, { own: 'job' }),
  'PUT /v1/workspaces': submit('Stores the files for a job', { media: 'application/x-tar' }, schemas.workspaceView),
  'PUT /v1/sent-files': submit(
    'Keeps files for workspaces that are made of them',
    { media: 'application/x-tar' },
    schemas.sentView,
  ),
  'POST /v1/workspaces': submit('Makes a workspace of files that are kept', schemas.joinRequest, schemas.workspaceView),
};

const logQuery = z
  .strictObject({
    job: z.string().optional(),
    agent: z.string().optional(),
    slot: z.string().optional(),
    previous: flag,
    follow: flag,
    own: flag,
    /** Bytes of each stream that the client has, or knows to be missing. */
    stdout: z.coerce.number().int().min(0).default(0),
    stderr: z.coerce.number().int().min(0).default(0),
    tail: z.coerce.number().int().min(0).max(1_000_000).optional(),
  })
  .refine(
    (each) => [each.job, each.agent, each.slot].filter((id) => id !== undefined).length === 1,
    'name one of job, agent and slot',
  );

const logCalls = {
  'GET /v1/logs': read(
    'Output of a job, an agent, or the agent in a slot, or the agent’s own logs, in frames',
    { media: 'application/octet-stream' },
    { own: 'output', query: logQuery },
  ),
};

/** Devices of this host, changes by people, and proofs. */
const deviceCalls = {
  'GET /v1/devices': read('Devices of this host', schemas.deviceView.array()),
  'GET /v1/devices/:device/use': read(
    'How much of a device was in use since a time, oldest first, for an hour at most',
    schemas.useView.array(),
    { params: byDevice, query: z.strictObject({ since: z.coerce.number().min(0).default(0) }) },
  ),
  'POST /v1/devices/:device/reserve': deviceCall('Keeps jobs from a device for a person', schemas.reserveRequest),
  'POST /v1/devices/:device/quarantine': deviceCall('Puts a device in quarantine', schemas.quarantineRequest),
  'POST /v1/devices/:device/return': deviceCall('Ends a reservation', z.object({})),
  'POST /v1/devices/:device/clear': deviceCall('Ends a quarantine', z.object({})),
  'POST /v1/devices/:device/forget': deviceCall('Forgets a missing device', z.object({})),
  'GET /v1/proofs': read('Proofs that devices were clean after a job, newest first', schemas.proofView.array(), {
    query: z.strictObject({ device: z.string().min(1).nullable().default(null), limit: listed }),
  }),
};

function deviceCall<B extends z.ZodType>(summary: string, body: B) {
  return operator(summary, body, schemas.deviceAnswer, { params: byDevice });
}

/** Machines in clouds, and people's wishes. */
const machineCalls = {
  'GET /v1/machines': read('Entries of `hosts` with their machines in clouds; none without `hosts`', schemas.cloudHostView.array()),
  'GET /v1/receipts': read('Machines that are gone, newest first', schemas.machineView.array(), {
    query: z.strictObject({ limit: listed }),
  }),
  'POST /v1/machines/:host/up': operator(
    'Asks for a machine of the host, unless one is ready, after the checks of `onejob cloud check`',
    schemas.makeMachineRequest,
    schemas.cloudHostView,
    { params: byHost },
  ),
  'POST /v1/machines/:host/down': operator(
    'Ends all machines of the host; those that work drain first',
    schemas.endMachinesRequest,
    schemas.cloudHostView,
    { params: byHost },
  ),
};

/** Which pipelines may use encrypted values that do not contain their pipeline. */
const secretCalls = {
  'GET /v1/secret-pins': operator('Encrypted values, and the pipelines that may use them', none, schemas.pinnedView.array()),
  'POST /v1/secret-pins/:fingerprint/allow': operator('Lets more pipelines use a value', schemas.allowRequest, schemas.pinnedView, {
    params: byFingerprint,
  }),
  'POST /v1/secret-pins/:fingerprint/forget': operator(
    'Removes a pipeline from a value, or all',
    schemas.forgetRequest,
    schemas.forgetAnswer,
    { params: byFingerprint },
  ),
};

/** Images that onejob builds. */
const imageCalls = {
  'GET /v1/images': read('Images that this onejob built, newest first', schemas.imageView.array()),
  'POST /v1/images/prune': operator('Removes built images that nothing uses', none, schemas.removedView),
  'POST /v1/images/build': imageCall('Builds images that are missing, and tells the progress'),
  'POST /v1/images/refresh': imageCall('Builds images again with the newest agent, and tells the progress'),
};

function imageCall(summary: string) {
  return operator(summary, schemas.imageRequest, { media: 'application/x-ndjson' });
}

/** By method and path, such as `GET /v1/jobs/:id`. */
export const calls = {
  ...controlCalls,
  ...accessCalls,
  ...eventCalls,
  ...jobCalls,
  ...logCalls,
  ...deviceCalls,
  ...machineCalls,
  ...secretCalls,
  ...imageCalls,
} satisfies Readonly<Record<string, Call>>;

type Calls = typeof calls;
export type CallName = keyof Calls;

type Part<N extends CallName, P extends keyof Bodies> = Calls[N] extends Readonly<Record<P, infer T>> ? T : undefined;

/** A part of a request as the server gets it, checked. */
export type Checked<N extends CallName, P extends 'params' | 'query' | 'body'> =
  Part<N, P> extends z.ZodType ? z.output<Part<N, P>> : P extends 'params' ? Path<N> : undefined;

/** What the server answers with, JSON only. */
export type Answer<N extends CallName> = Part<N, 'answer'> extends z.ZodType ? z.input<Part<N, 'answer'>> : undefined;

/** What the client reads: JSON, or nothing. */
export type Answered<N extends CallName> = Part<N, 'answer'> extends z.ZodType ? z.output<Part<N, 'answer'>> : undefined;

/** Those whose answer is not JSON. */
export type MediaCall = { [N in CallName]: Part<N, 'answer'> extends Media ? N : never }[CallName];

/** Names of a path's parts. */
type InPath<N extends string> = N extends `${infer Start}/${infer Rest}`
  ? InPath<Start> | InPath<Rest>
  : N extends `:${infer Name}`
    ? Name
    : never;

type Path<N extends string> = Readonly<Record<InPath<N>, string>>;

type Sent<P extends 'params' | 'query' | 'body', T> = T extends undefined
  ? unknown
  : object extends T
    ? { readonly [K in P]?: T | undefined }
    : { readonly [K in P]: T };

/** What the client sends. Values of a query become text; null and undefined are left out. */
export type Request<N extends CallName> = Sent<'params', [InPath<N>] extends [never] ? undefined : Path<N>> &
  Sent<'query', Part<N, 'query'> extends z.ZodType ? Nullable<z.output<Part<N, 'query'>>> : undefined> &
  Sent<'body', Part<N, 'body'> extends z.ZodType ? z.input<Part<N, 'body'>> : undefined>;

type Nullable<T> = { readonly [K in keyof T]?: T[K] | null | undefined };
