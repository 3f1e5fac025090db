/** What answers each call; see `docs/api.md`, and `docs/json.md` for the bodies. */
import { PassThrough, pipeline, Readable, type Transform } from 'node:stream';
import { OnejobError } from '../base/errors.ts';
import type { Person } from '../config/people.ts';
import { type Checked, calls } from '../contract/calls.ts';
import { frame, pieceFrames } from '../contract/frames.ts';
import type { Counts } from '../contract/gap.ts';
import { reloading, stopping, toErrorView } from '../contract/http-errors.ts';
import { pagePrefix } from '../contract/job-pages.ts';
import { type ImageService, type JobPage, jobsListed, type LogPiece, type LogSource, type Manager } from '../contract/manager.ts';
import type * as schemas from '../contract/schema.ts';
import { shellProtocol } from '../contract/shell-frames.ts';
import { workspaceLimit } from '../contract/workspace-limit.ts';
import { limited } from '../http/limited.ts';
import { skip } from '../logs/select.ts';
import type { LoginFor } from './access.ts';
import { type Answering, type ApiRequest, type Handlers, routesOf } from './route.ts';
import { forgetAll } from './web-files.ts';

const handlers: Handlers = {
  'GET /v1/openapi.json': async () => (await import('./openapi.ts')).openApi(calls),
  'GET /v1/status': (_, { manager }) => manager.status(),
  'GET /metrics': async (_, { metrics }) => given(metrics).read(),
  'GET /v1/plan': (_, { manager }) => manager.plan(),
  'GET /v1/doctor': ({ signal, kind }, { doctor }) => doctor.ask(kind === 'socket' || kind === 'operator' ? kind : 'read', signal),
  'POST /v1/pause': ({ body }, { manager }) => manager.pause(null, body.reason),
  'POST /v1/resume': ({ body }, { manager }) => manager.resume(null, body.reason),
  'POST /v1/drain': (_, { manager }) => manager.drain(null),
  'POST /v1/pools/:pool/pause': ({ params, body }, { manager }) => manager.pause(params.pool, body.reason),
  'POST /v1/pools/:pool/resume': ({ params, body }, { manager }) => manager.resume(params.pool, body.reason),
  'POST /v1/pools/:pool/drain': ({ params }, { manager }) => manager.drain(params.pool),
  'POST /v1/config/apply': ({ body }, { config }) => given(config).applyConfig(body),
  'POST /v1/down': ({ body }, { manager }) => manager.down(body),
  'GET /v1/forgotten': ({ signal }, { manager }) => manager.forgotten(signal),
  'GET /v1/hold': holdOpen,

  'GET /healthz'(_, { manager }) {
    if (manager.isStopping()) throw stopping();
    return 'ok\n';
  },
  'GET /v1/me': ({ caller }) => ({ role: caller?.role ?? 'read', user: caller?.user ?? null }),
  'POST /v1/login-links': ({ body, caller }, { web }) => given(web).link(loginFor(body, caller?.person)),
  'POST /v1/login'({ body, response }, { web }) {
    const made = given(web).login(body.code, body.key);
    // What another program left in this browser while it had the port: pages, scripts, service workers, and the last login.
    response.setHeader('clear-site-data', forgetAll);
    return made;
  },
  'GET /v1/challenge': (_, { web }) => given(web).challenge(),

  'GET /v1/events'({ query, request, response, signal, caller }, { streams }) {
    const from = request.headers['last-event-id']?.toString() ?? query.after ?? null;
    if (request.method !== 'HEAD') streams.serve(response, { from, until: caller?.until ?? null, signal });
    return undefined;
  },

  'POST /v1/jobs': ({ body, caller }, { manager }) => manager.submit(body, caller?.person),
  'POST /v1/jobs/check': ({ body, caller }, { manager }) => manager.verify(body, caller?.person),
  'POST /v1/job-arrays': ({ body, caller }, { manager }) => manager.submitArray(body, caller?.person),
  'GET /v1/job-arrays/:id': { atOnce: 16, handle: ({ params }, { manager }) => manager.arrayJobs(params.id) },
  'POST /v1/job-arrays/:id/cancel': ({ params }, { manager }) => manager.cancelArray(params.id),
  'GET /v1/jobs': {
    atOnce: 16,
    handle({ query, response }, { manager }) {
      const { jobs, next } = jobsAsked(query, manager);
      if (next !== null) response.setHeader('onejob-next', next);
      return jobs;
    },
  },
  'GET /v1/history': ({ query }, { manager }) => manager.history(query),
  'POST /v1/jobs/prune': ({ body }, { manager }) => manager.pruneJobs(body),
  'GET /v1/caches': {
    // An operator's may take longer than others have to read theirs.
    atOnce: ({ kind }) => (kind === 'socket' || kind === 'operator' ? undefined : 16),
    handle: ({ signal }, { manager }) => manager.caches(signal),
  },
  'POST /v1/caches/clear': ({ body, signal }, { manager }) => manager.clearCaches(body, signal),
  'GET /v1/jobs/:id': ({ params }, { manager }) => knownJob(manager, params.id),
  'GET /v1/jobs/:id/settled': ({ params, signal }, { manager }) => manager.settled(knownJob(manager, params.id).id, signal),
  'POST /v1/jobs/:id/cancel': ({ params, body }, { manager }) => manager.cancel(knownJob(manager, params.id).id, body),
  'POST /v1/jobs/:id/move': ({ params, body }, { manager }) => manager.move(knownJob(manager, params.id).id, body.pool),
  'GET /v1/jobs/:id/artifacts': ({ params }, { manager }) => manager.artifacts(knownJob(manager, params.id).id) ?? undefined,
  'POST /v1/jobs/:id/shell': {
    upgrade({ params }, { manager }) {
      const { id } = knownJob(manager, params.id);
      manager.checkShell(id);
      return (start, signal) => manager.shell(id, start, signal);
    },
    handle() {
      const hint = `Send it on the daemon's socket, with "Connection: Upgrade" and "Upgrade: ${shellProtocol}".`;
      throw new OnejobError('E_API_REQUEST', 'Cannot open a shell on this connection.', { hint });
    },
  },
  'POST /v1/jobs/:id/unhold': ({ params }, { manager }) => manager.unhold(knownJob(manager, params.id).id),
  'PUT /v1/workspaces': async (asked, { manager }) => ({
    id: await taken(asked, (files) => manager.putWorkspace(files, asked.signal, asked.caller?.person)),
  }),
  'PUT /v1/sent-files': async (asked, { manager }) => ({
    name: await taken(asked, (files) => manager.keepFiles(files, asked.signal)),
  }),
  'POST /v1/workspaces': async ({ body, signal, caller }, { manager }) => ({
    id: await manager.joinWorkspace(body, signal, caller?.person),
  }),

  'GET /v1/logs': {
    // An agent's own logs are in memory while they are sent.
    atOnce: ({ query }) => (query.own ? 4 : undefined),
    handle({ query, signal }, { manager }) {
      const source = sourceOf(query);
      const { own, follow, tail = null } = query;
      const pieces = own ? manager.agentLogs(source, { tail }, signal) : manager.logs(source, { follow, tail }, signal);
      return Readable.from(frames(pieces, query, signal), { objectMode: false });
    },
  },

  'GET /v1/devices': (_, { manager }) => manager.devices(),
  'GET /v1/devices/:device/use': ({ params, query }, { manager }) => manager.deviceUse(params.device, query.since),
  'POST /v1/devices/:device/reserve': ({ params, body }, { manager }) =>
    manager.changeDevice(params.device, { act: 'reserve', ...body }),
  'POST /v1/devices/:device/quarantine': ({ params, body }, { manager }) =>
    manager.changeDevice(params.device, { act: 'quarantine', ...body }),
  'POST /v1/devices/:device/return': ({ params }, { manager }) => manager.changeDevice(params.device, { act: 'return' }),
  'POST /v1/devices/:device/clear': ({ params }, { manager }) => manager.clearDevice(params.device),
  'POST /v1/devices/:device/forget': ({ params }, { manager }) => manager.changeDevice(params.device, { act: 'forget' }),
  'GET /v1/proofs': ({ query }, { manager }) => manager.proofs(query),

  'GET /v1/machines': (_, { machines }) => machines?.hosts() ?? [],
  'GET /v1/receipts': ({ query }, { machines }) => machines?.receipts(query.limit) ?? [],
  'POST /v1/machines/:host/up': ({ params, body, signal }, { machines }) => given(machines).up(params.host, body.wait, signal),
  'POST /v1/machines/:host/down': ({ params, body }, { machines }) => given(machines).down(params.host, body.now),

  'GET /v1/secret-pins': async (_, { secrets }) => given(secrets).pins(),
  'POST /v1/secret-pins/:fingerprint/allow': async ({ params, body }, { secrets }) =>
    given(secrets).allow(params.fingerprint, body.pipelines),
  'POST /v1/secret-pins/:fingerprint/forget': async ({ params, body }, { secrets }) =>
    given(secrets).forget(params.fingerprint, body.pipeline),

  'GET /v1/images': ({ signal }, { images }) => given(images).list(signal),
  'POST /v1/images/prune': async ({ signal }, { images }) => ({ removed: await given(images).prune(signal) }),
  'POST /v1/images/build': (request, { images }) => makeImages('build', request, given(images)),
  'POST /v1/images/refresh': (request, { images }) => makeImages('refresh', request, given(images)),
};

export const routes = routesOf(calls, handlers);

/** A person's login is for that person, whatever the client says. */
function loginFor({ role, user }: Checked<'POST /v1/login-links', 'body'>, person: Person | null = null): LoginFor {
  return person === null ? { role, user, person } : { role, user: person.name, person: person.uid };
}

/** The answer begins at once, and ends with the daemon or the client. Its end says whether the daemon will be back at once. */
function holdOpen({ signal }: ApiRequest, { manager, reloads }: Answering): Readable {
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
}

/** Those that are not over, or all; with a filter those that have ended, which have pages of their own. */
function jobsAsked({ all, pool, limit, ...ended }: Checked<'GET /v1/jobs', 'query'>, manager: Manager): JobPage {
  const { before: key, ...filters } = ended;
  const isPlain = Object.values(filters).every((value) => value === undefined || value === false);
  if (isPlain && (key === undefined || key.startsWith(pagePrefix))) return manager.jobs({ all, pool, limit, before: key });
  const { service = null, image = null, device = null, verdict: kind = null, failed } = ended;
  const { since = null, until = null, before = null, text = null } = ended;
  const narrow = { pool, service, image, device, kind, failed, since, until, text };
  return manager.endedJobs({ ...narrow, before, limit: limit ?? jobsListed });
}

function knownJob(manager: Manager, id: string): schemas.JobView {
  const job = manager.job(id);
  if (job !== null) return job;
  throw new OnejobError('E_JOB_UNKNOWN', `There is no job ${id}.`, { hint: 'List jobs with "onejob jobs --all".' });
}

/** Lets `take` have the files of a request. @throws OnejobError E_WORKSPACE_TOO_LARGE */
async function taken({ request }: Pick<ApiRequest, 'request'>, take: (files: Readable) => Promise<string>): Promise<string> {
  const files = pipeline(request, boundedWorkspace(workspaceLimit), () => {});
  try {
    return await take(files);
  } catch (error) {
    throw files.errored instanceof OnejobError ? files.errored : error;
  }
}

/** Passes on at most `limit` bytes; the stream's error is E_WORKSPACE_TOO_LARGE. */
export function boundedWorkspace(limit: number): Transform {
  const message = `Cannot take the workspace: it is larger than ${Math.round(limit / 2 ** 30)} GiB.`;
  const hint = 'List what the job does not need in .onejobignore, or use --no-workspace and --volume.';
  return limited(limit, () => new OnejobError('E_WORKSPACE_TOO_LARGE', message, { hint }));
}

function sourceOf(asked: Checked<'GET /v1/logs', 'query'>): LogSource {
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

type Making = ApiRequest<unknown, unknown, { readonly pools: readonly string[] }>;

/** Lines of JSON: progress, then outcomes, then the end or an error. */
function makeImages(what: 'build' | 'refresh', { body: { pools }, signal }: Making, images: ImageService): Readable {
  const events = new PassThrough();
  const send = (event: schemas.ImageEvent) => void events.write(`${JSON.stringify(event)}\n`);
  images
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
}

/** A part of the daemon that tests may leave out. */
function given<T>(part: T | null | undefined): T {
  if (part != null) return part;
  throw new OnejobError('E_API_ROUTE', 'This daemon does not support that.');
}
