/** All routes; see `docs/json.md` for the bodies. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { PassThrough, pipeline, Readable, type Transform } from 'node:stream';
import { z } from 'zod';
import { OnejobError } from '../errors.ts';
import { limited } from '../http/limited.ts';
import { arrayRequest, jobRequest } from '../job.ts';
import type { Counts } from '../logs/gap.ts';
import { lastLines, skip } from '../logs/select.ts';
import { historyAxes, verdictKinds } from '../verdict/verdict.ts';
import { frame, pieceFrames } from './frames.ts';
import { toErrorView } from './http-errors.ts';
import type { ConfigService, ImageService, LogPiece, LogSource, Manager, SecretPins } from './manager.ts';
import * as schemas from './schema.ts';

export interface ApiRequest {
  /** Parts of the path for each `:name` of the route. */
  readonly params: unknown;
  readonly query: unknown;
  /** JSON of a POST; undefined if it is empty. */
  readonly body: unknown;
  /** Aborts when the client has gone or the server closes. */
  readonly signal: AbortSignal;
  /** For bodies that are not JSON. */
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
}

/**
 * By method and path, such as `GET /v1/jobs/:id`. The result of a route is sent as JSON, a stream as its bytes, and undefined as no
 * content. A route may set headers and a status.
 */
export type Routes = Readonly<Record<string, (request: ApiRequest) => unknown>>;

export interface Served {
  readonly manager: Manager;
  /** Omitted if no images are built. */
  readonly images?: ImageService;
  /** Omitted if no job has encrypted values. */
  readonly secrets?: SecretPins;
  /** Omitted if there is no config to apply. */
  readonly config?: ConfigService;
}

export function allRoutes({ manager, images, secrets, config }: Served): Routes {
  return {
    ...controlRoutes(manager),
    ...jobRoutes(manager),
    ...workspaceRoutes(manager),
    ...logRoutes(manager),
    ...deviceRoutes(manager),
    ...(images === undefined ? {} : imageRoutes(images)),
    ...(secrets === undefined ? {} : secretRoutes(secrets)),
    ...(config && { 'POST /v1/config/apply': ({ body }) => config.applyConfig(checked(schemas.applyRequest, body, 'request')) }),
  };
}

/** @throws OnejobError E_API_REQUEST naming every problem with its path. */
export function checked<T extends z.ZodType>(schema: T, input: unknown, what: string): z.output<T> {
  const result = schema.safeParse(input ?? {});
  if (result.success) return result.data;
  const problems = result.error.issues.map((issue) => {
    const path = issue.path.map(String).join('.');
    return path === '' ? issue.message : `${path}: ${issue.message}`;
  });
  throw new OnejobError('E_API_REQUEST', `Cannot read the ${what}: ${problems.join('; ')}.`);
}

const byPool = z.object({ pool: z.string().nullable().default(null) });

/** The daemon: status, plan, doctor, pauses, its end, and keeping a temporary one alive. */
function controlRoutes(manager: Manager): Routes {
  const poolOf = ({ params }: ApiRequest) => checked(byPool, params, 'path').pool;
  const reasonOf = ({ body }: ApiRequest) => checked(schemas.pauseRequest, body, 'request').reason;
  const pause = (request: ApiRequest) => manager.pause(poolOf(request), reasonOf(request));
  const resume = (request: ApiRequest) => manager.resume(poolOf(request), reasonOf(request));
  const drain = (request: ApiRequest) => manager.drain(poolOf(request));
  return {
    'GET /v1/status': () => manager.status(),
    'GET /v1/plan': () => manager.plan(),
    'GET /v1/doctor': ({ signal }) => manager.doctor(signal),

    'POST /v1/pause': pause,
    'POST /v1/resume': resume,
    'POST /v1/drain': drain,
    'POST /v1/pools/:pool/pause': pause,
    'POST /v1/pools/:pool/resume': resume,
    'POST /v1/pools/:pool/drain': drain,

    'POST /v1/down'({ body, response }) {
      manager.down(checked(schemas.downRequest, body, 'request'));
      response.statusCode = 202;
    },
    'GET /v1/forgotten': ({ signal }) => manager.forgotten(signal),

    // The answer begins at once, and ends with the daemon or the client.
    'GET /v1/hold'({ signal }) {
      const release = manager.hold();
      const body = new PassThrough();
      body.write('\n');
      const end = () => {
        release();
        body.end();
      };
      if (signal.aborted) end();
      else signal.addEventListener('abort', end, { once: true });
      return body;
    },
  };
}

const flag = z
  .enum(['true', '1', 'false', '0'])
  .default('false')
  .transform((text) => text === 'true' || text === '1');

const byId = z.object({ id: z.string() });
const listQuery = z.strictObject({
  all: z.enum(['true', 'false']).default('false'),
  pool: z.string().nullable().default(null),
  limit: z.coerce.number().int().min(1).max(1_000_000).optional(),
  // Each of these asks for jobs that have ended.
  service: z.string().optional(),
  since: z.coerce.number().int().optional(),
  until: z.coerce.number().int().optional(),
  failed: flag.optional(),
  verdict: z.enum(verdictKinds).optional(),
  device: z.string().optional(),
  before: z.string().optional(),
});

const historyQuery = z.strictObject({
  by: z.enum(historyAxes).default('pool'),
  pool: z.string().nullable().default(null),
  since: z.coerce.number().int().nullable().default(null),
  until: z.coerce.number().int().nullable().default(null),
});

/** A long list takes megabytes of memory until it is read: so many lists at a time, each for so many ms. */
const listsAtOnce = 16;
const listPatience = 60_000;

/** Jobs of every CI service; those of the own queue can be submitted and cancelled, and have artifacts. */
function jobRoutes(manager: Manager): Routes {
  const knownJob = (params: unknown): schemas.JobView => {
    const { id } = checked(byId, params, 'path');
    const job = manager.job(id);
    if (job !== null) return job;
    throw new OnejobError('E_JOB_UNKNOWN', `There is no job ${id}.`, { hint: 'List jobs with "onejob jobs --all".' });
  };
  let unread = 0;
  return {
    'POST /v1/jobs'({ body, response }) {
      const job = manager.submit(checked(jobRequest, body, 'job'));
      response.statusCode = 201;
      return job;
    },

    'POST /v1/job-arrays'({ body, response }) {
      const jobs = manager.submitArray(checked(arrayRequest, body, 'array'));
      response.statusCode = 201;
      return jobs;
    },
    'GET /v1/job-arrays/:id': ({ params }) => manager.arrayJobs(checked(byId, params, 'path').id),

    // Finds mistakes before the client sends a workspace of gigabytes.
    'POST /v1/jobs/check': ({ body }) => manager.verify(checked(jobRequest, body, 'job')),

    'GET /v1/jobs'({ query, response, signal }) {
      const { all, pool, limit, ...ended } = checked(listQuery, query, 'query');
      if (unread >= listsAtOnce) throw busy();
      if (!signal.aborted) {
        unread += 1;
        const late = setTimeout(() => response.destroy(), listPatience).unref();
        response.once('close', () => {
          unread -= 1;
          clearTimeout(late);
        });
      }
      if (Object.values(ended).every((value) => value === undefined || value === false))
        return manager.jobs({ all: all === 'true', pool, limit });
      const {
        service = null,
        since = null,
        until = null,
        failed = false,
        verdict: kind = null,
        device = null,
        before = null,
      } = ended;
      const filter = { pool, service, since, until, failed, kind, device, before, limit: limit ?? schemas.jobsListed };
      const { jobs, next } = manager.endedJobs(filter);
      if (next !== null) response.setHeader('onejob-next', next);
      return jobs;
    },

    'GET /v1/history': ({ query }) => manager.history(checked(historyQuery, query, 'query')),

    'POST /v1/jobs/prune': ({ body }) => manager.pruneJobs(checked(schemas.pruneRequest, body, 'body')),
    'GET /v1/jobs/:id': ({ params }) => knownJob(params),
    'GET /v1/jobs/:id/settled': ({ params, signal }) => manager.settled(knownJob(params).id, signal),
    'POST /v1/jobs/:id/cancel': ({ params }) => manager.cancel(knownJob(params).id),

    'GET /v1/jobs/:id/artifacts'({ params, response }) {
      const files = manager.artifacts(knownJob(params).id);
      if (files === null) return undefined;
      response.setHeader('content-type', 'application/x-tar');
      return files;
    },
  };
}

function busy(): OnejobError {
  return new OnejobError('E_API_BUSY', `Cannot list jobs: ${listsAtOnce} job lists are already being read.`, {
    hint: 'Try again in a minute.',
    retry: true,
  });
}

/** Workspaces: a tar stream of limited size. */
function workspaceRoutes(manager: Manager): Routes {
  return {
    async 'PUT /v1/workspaces'({ request, signal }) {
      const files = pipeline(request, boundedWorkspace(schemas.workspaceLimit), () => {});
      try {
        return { id: await manager.putWorkspace(files, signal) };
      } catch (error) {
        throw files.errored instanceof OnejobError ? files.errored : error;
      }
    },
  };
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

/** Output of a job, an agent, or the agent in a slot, or the agent's own logs, as frames (see `frames.ts`). */
function logRoutes(manager: Manager): Routes {
  return {
    'GET /v1/logs'({ query, signal, response }) {
      const asked = checked(logQuery, query, 'query');
      const source = sourceOf(asked);
      const read = (follow: boolean) => (asked.own ? manager.agentLogs(source, signal) : manager.logs(source, { follow }, signal));
      const pieces = asked.tail === undefined ? read(asked.follow) : lastLines(read, asked.tail, asked.follow);
      response.setHeader('content-type', 'application/octet-stream');
      return Readable.from(frames(pieces, asked, signal), { objectMode: false });
    },
  };
}

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
const byName = z.object({ device: z.string().min(1) });
const proofQuery = z.strictObject({
  device: z.string().min(1).nullable().default(null),
  limit: z.coerce.number().int().min(1).max(schemas.proofsAtMost).default(schemas.proofsListed),
});

/** Devices of this host, changes by people, and proofs. */
function deviceRoutes(manager: Manager): Routes {
  const nameOf = (params: unknown) => checked(byName, params, 'path').device;
  const changes = (['reserve', 'quarantine', 'return', 'clear', 'forget'] as const).map((act): [string, Routes[string]] => [
    `POST /v1/devices/:device/${act}`,
    ({ params, body }) => {
      const given = checked(z.looseObject({}), body, 'request');
      return manager.changeDevice(nameOf(params), checked(schemas.deviceChange, { ...given, act }, 'request'));
    },
  ]);
  return {
    'GET /v1/devices': () => manager.devices(),
    ...Object.fromEntries(changes),
    'GET /v1/proofs': ({ query }) => manager.proofs(checked(proofQuery, query, 'query')),
  };
}

const byFingerprint = z.object({ fingerprint: schemas.fingerprintText });

/** Which pipelines may use encrypted values that do not contain their pipeline. */
function secretRoutes(secrets: SecretPins): Routes {
  const named = (params: unknown) => checked(byFingerprint, params, 'path').fingerprint;
  return {
    'GET /v1/secret-pins': () => secrets.pins(),
    'POST /v1/secret-pins/:fingerprint/allow': ({ params, body }) =>
      secrets.allow(named(params), checked(schemas.allowRequest, body, 'request').pipelines),
    'POST /v1/secret-pins/:fingerprint/forget': ({ params, body }) =>
      secrets.forget(named(params), checked(schemas.forgetRequest, body, 'request').pipeline),
  };
}

/** Images that onejob builds. */
function imageRoutes(images: ImageService): Routes {
  const make =
    (what: 'build' | 'refresh') =>
    ({ body, signal, response }: ApiRequest): PassThrough => {
      const { pools } = checked(schemas.imageRequest, body, 'request');
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
      response.setHeader('content-type', 'application/x-ndjson');
      return events;
    };
  return {
    'GET /v1/images': ({ signal }) => images.list(signal),
    'POST /v1/images/prune': async ({ signal }) => ({ removed: await images.prune(signal) }),
    'POST /v1/images/build': make('build'),
    'POST /v1/images/refresh': make('refresh'),
  };
}
