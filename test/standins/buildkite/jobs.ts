/**
 * A job's way through an agent: accept or acquire, start, log, state, finish (facts: agent `api/jobs.go`, `core/client.go`).
 * Guesses: start and accept of a job that the same agent has started answer 200 and 422; an unfitting state is a 422.
 */
import { gunzipSync } from 'node:zlib';
import { z } from 'zod';
import { assign, dispatch, endJob } from './dispatch.ts';
import { bodyOf, type Exchange, ok, type Reply, type Route, ServiceFailure, sessionOf } from './http.ts';
import { type Agent, isConnected, isOver, type Job, type World } from './state.ts';
import { newToken } from './tokens.ts';
import { jobView, readable } from './views.ts';

const CHUNK_BYTES = 102_400;

/** The job that the path names. */
export function jobIn(x: Exchange): Job {
  const job = x.world.jobs.get(x.params.id ?? '');
  if (job === undefined) throw new ServiceFailure(404, 'No job found');
  return job;
}

/** The same, and the token must be its own. */
function ownJob(x: Exchange): Job {
  const job = jobIn(x);
  const own = x.caller.kind === 'session' ? x.caller.agent?.job : x.caller.job;
  if (own !== job) throw new ServiceFailure(403, 'This token is for another job');
  return job;
}

function accept(x: Exchange): Reply {
  const agent = sessionOf(x);
  const job = jobIn(x);
  if (job.state !== 'assigned' || job.agent !== agent)
    throw new ServiceFailure(422, `The job cannot be accepted: it is ${job.state}`);
  return taken(x.world, job);
}

function acquire(x: Exchange): Reply {
  const { world } = x;
  const agent = sessionOf(x);
  const job = jobIn(x);
  if (!isConnected(agent)) throw new ServiceFailure(422, 'The agent is not connected');
  if (agent.only !== null && agent.only !== job.id) throw new ServiceFailure(403, 'The token of this agent is for another job');
  if (job.state === 'waiting') throw new ServiceFailure(423, 'The job is waiting on a dependency', { 'retry-after': '1' });
  if (job.state === 'reserved' && agent.only !== job.id && world.options.reservedNeedsToken === true)
    throw new ServiceFailure(423, 'The job is reserved by a stack', { 'retry-after': '1' });
  if (job.state !== 'scheduled' && job.state !== 'reserved')
    throw new ServiceFailure(422, `Jobs that are ${job.state} cannot be acquired`);
  if (agent.job !== null) throw new ServiceFailure(422, 'The agent has a job already');
  assign(world, job, agent);
  return taken(world, job);
}

function taken(world: World, job: Job): Reply {
  job.state = 'accepted';
  job.times.accepted = world.now();
  job.token = world.options.jobTokens === false ? null : newToken('bkaj');
  if (job.token !== null) world.jobTokens.set(job.token, job);
  world.emit({ kind: 'jobAccepted', job: jobView(job) });
  const secrets = job.spec.stepSecrets?.map(({ key, variable }) => ({
    key,
    ...(variable === undefined ? {} : { environment_variable: variable }),
  }));
  return ok({
    id: job.id,
    state: job.state,
    endpoint: '',
    env: { ...job.env, ...agentEnv(job.agent) },
    step: { command: job.command, ...(secrets === undefined ? {} : { secrets }) },
    chunks_max_size_bytes: CHUNK_BYTES,
    chunks_interval_seconds: job.spec.chunksIntervalS ?? 1,
    log_max_size_bytes: 1024 ** 3,
    ...(job.token === null ? {} : { token: job.token }),
    priority: job.priority,
    runnable_at: new Date(job.times.queued).toISOString(),
  });
}

/** What the service knows of the agent it gives the job to. */
function agentEnv(agent: Agent | null): Record<string, string> {
  if (agent === null) return {};
  const tags = agent.tags.map((tag) => tag.split('=')).map(([key = '', ...value]) => [tagVariable(key), value.join('=')] as const);
  return { BUILDKITE_AGENT_ID: agent.id, BUILDKITE_AGENT_NAME: agent.name, ...Object.fromEntries(tags) };
}

const tagVariable = (key: string): string => `BUILDKITE_AGENT_META_DATA_${key.toUpperCase().replace(/[^A-Z0-9]+/g, '_')}`;

function start(x: Exchange): Reply {
  const job = ownJob(x);
  if (job.state === 'accepted') {
    job.state = 'running';
    job.times.started = x.world.now();
    x.world.emit({ kind: 'jobStarted', job: jobView(job) });
  } else if (job.state !== 'running' && job.state !== 'canceling') {
    throw new ServiceFailure(422, `The job cannot be started: it is ${job.state}`);
  }
  return ok();
}

const Finish = z.object({
  exit_status: z.string().default('0'),
  signal: z.string().nullish(),
  signal_reason: z.string().nullish(),
  chunks_failed_count: z.number().default(0),
  ignore_agent_in_dispatches: z.boolean().nullish(),
});

function finish(x: Exchange): Reply {
  const { world } = x;
  const said = bodyOf(x, Finish);
  const job = ownJob(x);
  if (isOver(job)) throw new ServiceFailure(422, 'The job is finished already');
  const exit = Number.parseInt(said.exit_status, 10);
  if (Number.isNaN(exit)) throw new ServiceFailure(422, `exit_status: "${said.exit_status}" is not a number`);
  if (job.agent !== null && said.ignore_agent_in_dispatches === true) job.agent.ignored = true;
  job.chunksFailed = said.chunks_failed_count;
  endJob(world, job, { exit, signal: said.signal ?? '', signalReason: said.signal_reason ?? '' });
  dispatch(world);
  return ok();
}

/** Stored by offset: chunks come in any order and more than once. */
function chunk(x: Exchange): Reply {
  const job = ownJob(x);
  const [offset, size] = ['offset', 'size'].map((name) => Number(x.query.get(name) ?? Number.NaN));
  let data: Buffer;
  try {
    data = x.headers['content-encoding'] === 'gzip' ? gunzipSync(x.body) : x.body;
  } catch {
    throw new ServiceFailure(400, 'The chunk is not gzip');
  }
  if (offset === undefined || !Number.isSafeInteger(offset) || offset < 0 || size !== data.length)
    throw new ServiceFailure(400, `The chunk has ${data.length} bytes and says offset=${offset} size=${size}`);
  if (data.length > CHUNK_BYTES) throw new ServiceFailure(413, `A chunk has at most ${CHUNK_BYTES} bytes`);
  job.times.firstChunk ??= x.world.now();
  job.received++;
  if (job.chunks.has(offset)) job.repeated++;
  else x.world.emit({ kind: 'log', job: job.id, text: readable(data.toString('utf8')) });
  job.chunks.set(offset, data);
  return { status: 201, json: {} };
}

const HeaderTimes = z.object({ header_times: z.record(z.string(), z.string()) });

function headerTimes(x: Exchange): Reply {
  const job = ownJob(x);
  for (const [line, time] of Object.entries(bodyOf(x, HeaderTimes).header_times)) job.headerTimes.set(line, time);
  return ok();
}

function promiseFailure(x: Exchange): Reply {
  ownJob(x);
  return { status: 204 };
}

export const jobRoutes: readonly Route[] = [
  { method: 'PUT', path: 'jobs/:id/accept', allow: ['session'], answer: accept },
  { method: 'PUT', path: 'jobs/:id/acquire', allow: ['session'], answer: acquire },
  { method: 'PUT', path: 'jobs/:id/start', allow: ['job'], answer: start },
  { method: 'PUT', path: 'jobs/:id/finish', allow: ['job'], answer: finish },
  { method: 'GET', path: 'jobs/:id', allow: ['job'], answer: (x) => ok({ state: ownJob(x).state }) },
  { method: 'PUT', path: 'jobs/:id', allow: ['job'], answer: (x) => ok({ id: ownJob(x).id }) },
  { method: 'POST', path: 'jobs/:id/chunks', allow: ['job'], answer: chunk },
  { method: 'POST', path: 'jobs/:id/header_times', allow: ['job'], answer: headerTimes },
  { method: 'PUT', path: 'jobs/:id/promise_failure', allow: ['job'], answer: promiseFailure },
];
