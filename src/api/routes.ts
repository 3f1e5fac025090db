/** All routes; see `docs/api.md`, and `docs/json.md` for the bodies. */
import { PassThrough, pipeline, Readable, type Transform } from 'node:stream';
import { z } from 'zod';
import { OnejobError } from '../base/errors.ts';
import { frame, pieceFrames } from '../contract/frames.ts';
import type { Counts } from '../contract/gap.ts';
import { reloading, stopping, toErrorView } from '../contract/http-errors.ts';
import { arrayRequest, jobRequest } from '../contract/job.ts';
import { pagePrefix } from '../contract/job-pages.ts';
import { jobsListed, type LogPiece, type LogSource, type Manager, pageLimit } from '../contract/manager.ts';
import * as schemas from '../contract/schema.ts';
import { shellProtocol } from '../contract/shell-frames.ts';
import { historyAxes, verdictKinds } from '../contract/verdict.ts';
import { limited } from '../http/limited.ts';
import { skip } from '../logs/select.ts';
import { media, type Routes, route } from './route.ts';
import { forgetAll } from './web-files.ts';

const byPool = z.object({ pool: z.string().nullable().default(null) });

/** The same for one pool and for all. */
function poolRoutes(path: '/v1' | '/v1/pools/:pool', which: string): Routes {
  return {
    [`POST ${path}/pause`]: route({
      summary: `Starts nothing new in ${which}`,
      role: 'operator',
      params: byPool,
      body: schemas.pauseRequest,
      handle: ({ params, body }, { manager }) => manager.pause(params.pool, body.reason),
    }),
    [`POST ${path}/resume`]: route({
      summary: `Ends the pauses with this reason, and drains, of ${which}`,
      role: 'operator',
      params: byPool,
      body: schemas.pauseRequest,
      answer: schemas.resumeView,
      handle: ({ params, body }, { manager }) => manager.resume(params.pool, body.reason),
    }),
    [`POST ${path}/drain`]: route({
      summary: `Finishes running jobs of ${which}, and starts nothing new until a resume`,
      role: 'operator',
      params: byPool,
      handle: ({ params }, { manager }) => manager.drain(params.pool),
    }),
  };
}

/** The daemon: status, plan, doctor, its config, its end, and keeping a temporary one alive. */
const controlRoutes: Routes = {
  'GET /v1/openapi.json': route({
    summary: 'This description',
    role: 'read',
    answer: z.looseObject({ openapi: z.string() }),
    handle: async () => (await import('./openapi.ts')).openApi(routes),
  }),
  'GET /v1/status': route({
    summary: 'The daemon, its pools and their slots',
    role: 'read',
    answer: schemas.statusView,
    handle: (_, { manager }) => manager.status(),
  }),
  // Where Prometheus looks for it.
  'GET /metrics': route({
    summary: 'Metrics for Prometheus',
    role: 'read',
    answer: media('text/plain; version=0.0.4; charset=utf-8'),
    handle: async (_, { metrics }) => given(metrics).read(),
  }),
  'GET /v1/plan': route({
    summary: 'What each slot does next, and why',
    role: 'read',
    answer: schemas.planLine.array(),
    handle: (_, { manager }) => manager.plan(),
  }),
  'GET /v1/doctor': route({
    summary: 'Checks the host, its devices and its CI services, which can take a minute',
    role: 'read',
    answer: schemas.findingView.array(),
    handle: ({ signal, kind }, { doctor }) => doctor.ask(kind === 'anyone' ? 'read' : kind, signal),
  }),
  ...poolRoutes('/v1', 'all pools'),
  ...poolRoutes('/v1/pools/:pool', 'a pool'),
  'POST /v1/config/apply': route({
    summary: 'Reads the config file again and runs with it; with dryRun only tells what that would change',
    role: 'operator',
    body: schemas.applyRequest,
    answer: schemas.applyAnswer,
    handle: ({ body }, { config }) => given(config).applyConfig(body),
  }),
  'POST /v1/down': route({
    summary: 'Ends the daemon',
    role: 'operator',
    body: schemas.downRequest,
    status: 202,
    handle: ({ body }, { manager }) => manager.down(body),
  }),
  'GET /v1/forgotten': route({
    summary: 'Waits until a daemon that ends with "forget" has done so',
    role: 'operator',
    answer: schemas.forgottenView.array(),
    handle: ({ signal }, { manager }) => manager.forgotten(signal),
  }),
  'GET /v1/hold': route({
    summary: 'Keeps a temporary daemon alive as long as the connection lasts',
    role: 'operator',
    answer: media('application/octet-stream'),
    // The answer begins at once, and ends with the daemon or the client. Its end says whether the daemon will be back at once.
    handle({ signal }, { manager, reloads }) {
      const release = manager.hold();
      const body = new PassThrough();
      body.write('\n');
      const end = () => {
        release();
        body.end(reloads() ? `${reloading}\n` : undefined);
      };
      if (signal.aborted) end();
      else signal.addEventListener('abort', end, { once: true });
      return body;
    },
  }),
};

const accessRoutes: Routes = {
  'GET /healthz': route({
    summary: 'Whether the daemon takes requests: 200, or 503 while it stops',
    role: 'anyone',
    answer: media('text/plain; charset=utf-8'),
    handle(_, { manager }) {
      if (manager.isStopping()) throw stopping();
      return 'ok\n';
    },
  }),
  'GET /v1/me': route({
    summary: 'Who asks, and what that may do',
    role: 'read',
    answer: schemas.meView,
    handle: ({ caller }) => ({ role: caller?.role ?? 'read', user: caller?.user ?? null }),
  }),
  'POST /v1/login-links': route({
    summary: 'A link for one login within a minute',
    role: 'operator',
    body: schemas.linkRequest,
    answer: schemas.linkView,
    status: 201,
    handle: ({ body }, { web }) => given(web).link(body),
  }),
  'POST /v1/login': route({
    summary: 'Uses the code of a link for a session, for the browser that has a key',
    role: 'anyone',
    body: schemas.loginRequest,
    answer: schemas.loginView,
    handle: ({ body, response }, { web }) => {
      const made = given(web).login(body.code, body.key);
      // What another program left in this browser while it had the port: pages, scripts, service workers, and the last login.
      response.setHeader('clear-site-data', forgetAll);
      return made;
    },
  }),
  'GET /v1/challenge': route({
    summary: 'What a browser signs its requests for',
    role: 'anyone',
    answer: schemas.challengeView,
    handle: (_, { web }) => given(web).challenge(),
  }),
};

const eventRoutes: Routes = {
  'GET /v1/events': route({
    summary: 'Everything that changes, as server-sent events',
    role: 'read',
    /** The header `last-event-id`, for clients that cannot set it. */
    query: z.object({ after: z.string().optional() }),
    answer: media('text/event-stream', schemas.eventViews),
    handle({ query, request, response, signal, caller }, { streams }) {
      const from = request.headers['last-event-id']?.toString() ?? query.after ?? null;
      if (request.method !== 'HEAD') streams.serve(response, { from, until: caller?.until ?? null, signal });
      return undefined;
    },
  }),
};

const byId = z.object({ id: z.string() });
const flag = z
  .enum(['true', '1', 'false', '0'])
  .default('false')
  .transform((text) => text === 'true' || text === '1');

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

/** Jobs of every CI service; those of the own queue can be submitted and cancelled, and have artifacts. */
const jobRoutes: Routes = {
  'POST /v1/jobs': route({
    summary: 'Submits a job to the own queue',
    role: 'operator',
    body: jobRequest,
    answer: schemas.jobView,
    status: 201,
    handle: ({ body }, { manager }) => manager.submit(body),
  }),
  // Finds mistakes before the client sends a workspace of gigabytes.
  'POST /v1/jobs/check': route({
    summary: 'Fails as a submission would, except for the workspace',
    role: 'operator',
    body: jobRequest,
    handle: ({ body }, { manager }) => manager.verify(body),
  }),
  'POST /v1/job-arrays': route({
    summary: 'Submits all jobs of an array to the own queue, or none',
    role: 'operator',
    body: arrayRequest,
    answer: schemas.jobView.array(),
    status: 201,
    handle: ({ body }, { manager }) => manager.submitArray(body),
  }),
  'GET /v1/job-arrays/:id': route({
    summary: 'Jobs of an array in the order of its indices, ended or not; empty if there is no such array',
    role: 'read',
    params: byId,
    answer: schemas.jobView.array(),
    atOnce: 16,
    handle: ({ params }, { manager }) => manager.arrayJobs(params.id),
  }),
  'POST /v1/job-arrays/:id/cancel': route({
    summary: 'Asks all jobs of an array to end, in one step; answers with those that had not ended',
    role: 'operator',
    params: byId,
    answer: schemas.jobView.array(),
    handle: ({ params }, { manager }) => manager.cancelArray(params.id),
  }),
  'GET /v1/jobs': route({
    summary:
      'Jobs that are not over, or all, newest last; with a filter jobs that have ended; by page: the header `onejob-next` is the `before` of the next',
    role: 'read',
    query: listQuery,
    answer: schemas.jobView.array(),
    atOnce: 16,
    handle: ({ query: { all, pool, limit, ...ended }, response }, { manager }) => {
      const { before: key, ...filters } = ended;
      const isPlain = Object.values(filters).every((value) => value === undefined || value === false);
      if (isPlain && (key === undefined || key.startsWith(pagePrefix))) {
        const page = manager.jobs({ all, pool, limit, before: key });
        if (page.next !== null) response.setHeader('onejob-next', page.next);
        return page.jobs;
      }
      const { service = null, image = null, device = null, verdict: kind = null, failed } = ended;
      const { since = null, until = null, before = null, text = null } = ended;
      const narrow = { pool, service, image, device, kind, failed, since, until, text };
      const filter = { ...narrow, before, limit: limit ?? jobsListed };
      const { jobs, next } = manager.endedJobs(filter);
      if (next !== null) response.setHeader('onejob-next', next);
      return jobs;
    },
  }),
  'GET /v1/history': route({
    summary: 'How many jobs ended how, by pool, image, device and so on, the worst first; by hour or day, the oldest first',
    role: 'read',
    query: z.strictObject({
      by: z.enum(historyAxes).default('pool'),
      pool: z.string().nullable().default(null),
      // One of these, with the same `by`, or by hour or day.
      service: z.string().nullable().default(null),
      image: z.string().nullable().default(null),
      device: z.string().nullable().default(null),
      since: z.coerce.number().int().nullable().default(null),
      until: z.coerce.number().int().nullable().default(null),
    }),
    answer: schemas.historyView.array(),
    handle: ({ query }, { manager }) => manager.history(query),
  }),
  'POST /v1/jobs/prune': route({
    summary: 'Forgets jobs that ended, with their logs and artifacts',
    role: 'operator',
    body: schemas.pruneRequest,
    answer: schemas.prunedView,
    handle: ({ body }, { manager }) => manager.pruneJobs(body),
  }),
  'GET /v1/jobs/:id': route({
    summary: 'One job',
    role: 'read',
    params: byId,
    answer: schemas.jobView,
    handle: ({ params }, { manager }) => knownJob(manager, params.id),
  }),
  'GET /v1/jobs/:id/settled': route({
    summary: 'Waits for the end of a job',
    role: 'read',
    params: byId,
    answer: schemas.jobView,
    handle: ({ params, signal }, { manager }) => manager.settled(knownJob(manager, params.id).id, signal),
  }),
  'POST /v1/jobs/:id/cancel': route({
    summary: 'Asks a job of the own queue to end',
    role: 'operator',
    params: byId,
    body: schemas.cancelRequest,
    answer: schemas.jobView,
    handle: ({ params, body }, { manager }) => manager.cancel(knownJob(manager, params.id).id, body),
  }),
  'POST /v1/jobs/:id/move': route({
    summary: 'Moves a waiting job of the own queue to another pool',
    role: 'operator',
    params: byId,
    body: schemas.moveRequest,
    answer: schemas.jobView,
    handle: ({ params, body }, { manager }) => manager.move(knownJob(manager, params.id).id, body.pool),
  }),
  'GET /v1/jobs/:id/artifacts': route({
    summary: 'The files that a job of the own queue brought back; no content if there are none',
    role: 'read',
    params: byId,
    answer: { ...media('application/x-tar'), optional: true },
    handle: ({ params }, { manager }) => manager.artifacts(knownJob(manager, params.id).id) ?? undefined,
  }),
  'POST /v1/jobs/:id/shell': route({
    summary:
      'A shell in the files of a held job, or in an attended job that runs, on a connection upgraded to onejob-shell; only on the socket',
    role: 'operator',
    params: byId,
    status: 101,
    upgrade({ params }, { manager }) {
      const { id } = knownJob(manager, params.id);
      manager.checkShell(id);
      return (start, signal) => manager.shell(id, start, signal);
    },
    handle() {
      const hint = `Send it on the daemon's socket, with "Connection: Upgrade" and "Upgrade: ${shellProtocol}".`;
      throw new OnejobError('E_API_REQUEST', 'Cannot open a shell on this connection.', { hint });
    },
  }),
  'POST /v1/jobs/:id/unhold': route({
    summary: 'Removes the files of a held job',
    role: 'operator',
    params: byId,
    answer: schemas.jobView,
    handle: ({ params }, { manager }) => manager.unhold(knownJob(manager, params.id).id),
  }),
  'PUT /v1/workspaces': route({
    summary: 'Stores the files for a job',
    role: 'operator',
    body: media('application/x-tar'),
    answer: schemas.workspaceView,
    async handle({ request, signal }, { manager }) {
      const files = pipeline(request, boundedWorkspace(schemas.workspaceLimit), () => {});
      try {
        return { id: await manager.putWorkspace(files, signal) };
      } catch (error) {
        throw files.errored instanceof OnejobError ? files.errored : error;
      }
    },
  }),
};

function knownJob(manager: Manager, id: string): schemas.JobView {
  const job = manager.job(id);
  if (job !== null) return job;
  throw new OnejobError('E_JOB_UNKNOWN', `There is no job ${id}.`, { hint: 'List jobs with "onejob jobs --all".' });
}

/** Passes on at most `limit` bytes; the stream's error is E_WORKSPACE_TOO_LARGE. */
export function boundedWorkspace(limit: number): Transform {
  const message = `Cannot take the workspace: it is larger than ${Math.round(limit / 2 ** 30)} GiB.`;
  const hint = 'List what the job does not need in .onejobignore, or use --no-workspace and --volume.';
  return limited(limit, () => new OnejobError('E_WORKSPACE_TOO_LARGE', message, { hint }));
}

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

const logRoutes: Routes = {
  'GET /v1/logs': route({
    summary: 'Output of a job, an agent, or the agent in a slot, or the agent’s own logs, in frames',
    role: 'read',
    query: logQuery,
    answer: media('application/octet-stream'),
    // An agent's own logs are in memory while they are sent.
    atOnce: ({ query }) => (query.own ? 4 : undefined),
    handle({ query, signal }, { manager }) {
      const source = sourceOf(query);
      const { own, follow, tail = null } = query;
      const pieces = own ? manager.agentLogs(source, { tail }, signal) : manager.logs(source, { follow, tail }, signal);
      return Readable.from(frames(pieces, query, signal), { objectMode: false });
    },
  }),
};

function sourceOf(asked: z.output<typeof logQuery>): LogSource {
  if (asked.job !== undefined) return { job: asked.job };
  if (asked.agent !== undefined) return { agent: asked.agent };
  return { slot: asked.slot ?? '', previous: asked.previous };
}

async function* frames(pieces: AsyncIterable<LogPiece>, from: Counts, signal: AbortSignal): AsyncGenerator<Buffer> {
  try {
    // The answer begins at once, even if the job waits for hours before its first output.
    yield frame('stdout');
    for await (const piece of skip(pieces, from)) yield* pieceFrames(piece);
    // An aborted source may end like a finished one, so it gets no end frame.
    if (!signal.aborted) yield frame('end');
  } catch (error) {
    if (!signal.aborted) yield frame('error', JSON.stringify(toErrorView(error)));
  }
}

/** A UUID or its beginning, an index or a PCI address. */
const byDevice = z.object({ device: z.string().min(1) });

function deviceRoute<B extends z.ZodType>(summary: string, body: B, change: (body: z.output<B>) => schemas.DeviceChange) {
  return route({
    summary,
    role: 'operator',
    params: byDevice,
    body,
    answer: schemas.deviceAnswer,
    handle: (request, { manager }) => manager.changeDevice(request.params.device, change(request.body as z.output<B>)),
  });
}

const byHost = z.object({ host: z.string().min(1) });

/** Machines in clouds, and people's wishes. */
const machineRoutes: Routes = {
  'GET /v1/machines': route({
    summary: 'Entries of `hosts` with their machines in clouds; none without `hosts`',
    role: 'read',
    answer: schemas.cloudHostView.array(),
    handle: (_, { machines }) => machines?.hosts() ?? [],
  }),
  'GET /v1/receipts': route({
    summary: 'Machines that are gone, newest first',
    role: 'read',
    query: z.strictObject({ limit: z.coerce.number().int().min(1).max(schemas.proofsAtMost).default(schemas.proofsListed) }),
    answer: schemas.machineView.array(),
    handle: ({ query }, { machines }) => machines?.receipts(query.limit) ?? [],
  }),
  'POST /v1/machines/:host/up': route({
    summary: 'Asks for a machine of the host, if none works, after the checks of `onejob cloud check`',
    role: 'operator',
    params: byHost,
    body: schemas.makeMachineRequest,
    answer: schemas.cloudHostView,
    handle: ({ params, body, signal }, { machines }) => given(machines).up(params.host, body.wait, signal),
  }),
  'POST /v1/machines/:host/down': route({
    summary: 'Ends all machines of the host; those that work drain first',
    role: 'operator',
    params: byHost,
    body: schemas.endMachinesRequest,
    answer: schemas.cloudHostView,
    handle: ({ params, body }, { machines }) => given(machines).down(params.host, body.now),
  }),
};

/** Devices of this host, changes by people, and proofs. */
const deviceRoutes: Routes = {
  'GET /v1/devices': route({
    summary: 'Devices of this host',
    role: 'read',
    answer: schemas.deviceView.array(),
    handle: (_, { manager }) => manager.devices(),
  }),
  'GET /v1/devices/:device/use': route({
    summary: 'How much of a device was in use since a time, oldest first, for an hour at most',
    role: 'read',
    params: byDevice,
    query: z.strictObject({ since: z.coerce.number().min(0).default(0) }),
    answer: schemas.useView.array(),
    handle: ({ params, query }, { manager }) => manager.deviceUse(params.device, query.since),
  }),
  'POST /v1/devices/:device/reserve': deviceRoute('Keeps jobs from a device for a person', schemas.reserveRequest, (body) => ({
    act: 'reserve',
    ...body,
  })),
  'POST /v1/devices/:device/quarantine': deviceRoute('Puts a device in quarantine', schemas.quarantineRequest, (body) => ({
    act: 'quarantine',
    ...body,
  })),
  'POST /v1/devices/:device/return': deviceRoute('Ends a reservation', z.object({}), () => ({ act: 'return' })),
  'POST /v1/devices/:device/clear': deviceRoute('Ends a quarantine', z.object({}), () => ({ act: 'clear' })),
  'POST /v1/devices/:device/forget': deviceRoute('Forgets a missing device', z.object({}), () => ({ act: 'forget' })),
  'GET /v1/proofs': route({
    summary: 'Proofs that devices were clean after a job, newest first',
    role: 'read',
    query: z.strictObject({
      device: z.string().min(1).nullable().default(null),
      limit: z.coerce.number().int().min(1).max(schemas.proofsAtMost).default(schemas.proofsListed),
    }),
    answer: schemas.proofView.array(),
    handle: ({ query }, { manager }) => manager.proofs(query),
  }),
};

const byFingerprint = z.object({ fingerprint: schemas.fingerprintText });

/** Which pipelines may use encrypted values that do not contain their pipeline. */
const secretRoutes: Routes = {
  'GET /v1/secret-pins': route({
    summary: 'Encrypted values, and the pipelines that may use them',
    role: 'operator',
    answer: schemas.pinnedView.array(),
    handle: async (_, { secrets }) => given(secrets).pins(),
  }),
  'POST /v1/secret-pins/:fingerprint/allow': route({
    summary: 'Lets more pipelines use a value',
    role: 'operator',
    params: byFingerprint,
    body: schemas.allowRequest,
    answer: schemas.pinnedView,
    handle: async ({ params, body }, { secrets }) => given(secrets).allow(params.fingerprint, body.pipelines),
  }),
  'POST /v1/secret-pins/:fingerprint/forget': route({
    summary: 'Removes a pipeline from a value, or all',
    role: 'operator',
    params: byFingerprint,
    body: schemas.forgetRequest,
    answer: schemas.forgetAnswer,
    handle: async ({ params, body }, { secrets }) => given(secrets).forget(params.fingerprint, body.pipeline),
  }),
};

function imageRoute(what: 'build' | 'refresh', summary: string) {
  return route({
    summary,
    role: 'operator',
    body: schemas.imageRequest,
    answer: media('application/x-ndjson'),
    handle({ body: { pools }, signal }, { images }) {
      const events = new PassThrough();
      const send = (event: schemas.ImageEvent) => void events.write(`${JSON.stringify(event)}\n`);
      given(images)
        .make(what, pools, (pool, line) => send({ kind: 'progress', pool, line }), signal)
        .then(
          (outcomes) => {
            for (const outcome of outcomes) send({ kind: 'done', outcome });
            send({ kind: 'end' });
          },
          (error: unknown) => {
            // An aborted build is not a failure.
            if (!signal.aborted) send({ kind: 'error', error: toErrorView(error) });
          },
        )
        .finally(() => events.end());
      return events;
    },
  });
}

/** Images that onejob builds. */
const imageRoutes: Routes = {
  'GET /v1/images': route({
    summary: 'Images that this onejob built, newest first',
    role: 'read',
    answer: schemas.imageView.array(),
    handle: ({ signal }, { images }) => given(images).list(signal),
  }),
  'POST /v1/images/prune': route({
    summary: 'Removes built images that nothing uses',
    role: 'operator',
    answer: schemas.removedView,
    handle: async ({ signal }, { images }) => ({ removed: await given(images).prune(signal) }),
  }),
  'POST /v1/images/build': imageRoute('build', 'Builds images that are missing, and tells the progress'),
  'POST /v1/images/refresh': imageRoute('refresh', 'Builds images again with the newest agent, and tells the progress'),
};

/** A part of the daemon that tests may leave out. */
function given<T>(part: T | null | undefined): T {
  if (part != null) return part;
  throw new OnejobError('E_API_ROUTE', 'This daemon does not support that.');
}

export const routes: Routes = {
  ...controlRoutes,
  ...accessRoutes,
  ...eventRoutes,
  ...jobRoutes,
  ...logRoutes,
  ...deviceRoutes,
  ...machineRoutes,
  ...secretRoutes,
  ...imageRoutes,
};
