/** The Stacks API: jobs are listed, reserved, acquired by token or ended without an agent (page `apis/agent_api/stacks`). */
import { randomUUID } from 'node:crypto';
import { z } from 'zod';
import { dispatch, endJob } from './dispatch.ts';
import { bodyOf, type Exchange, ok, type Reply, type Route, ServiceFailure } from './http.ts';
import { type Job, queueOf, type Stack, type World } from './state.ts';
import { newToken } from './tokens.ts';
import type { StackOperation } from './types.ts';

/** Requests per stack and second, as documented; `register` and `tokens` are guesses. */
const LIMITS: Readonly<Record<StackOperation, number>> = {
  list: 10,
  reserve: 10,
  show: 1000,
  states: 20,
  finish: 100,
  notifications: 200,
  deregister: 10,
  register: 10,
  tokens: 10,
};

const Ids = z.array(z.string()).min(1).max(1000);

const Register = z.object({
  key: z.string().regex(/^[A-Za-z0-9_-]{1,80}$/),
  type: z.enum(['kubernetes', 'elastic', 'custom']),
  queue_key: z.string().min(1),
  metadata: z.record(z.string().max(64), z.string().max(256)),
});

function register(x: Exchange): Reply {
  const { world } = x;
  const said = bodyOf(x, Register);
  const known = world.stacks.get(said.key);
  const queue = queueNamed(said.queue_key);
  queueOf(world, queue);
  const stack: Stack = {
    id: known?.id ?? randomUUID(),
    key: said.key,
    type: said.type,
    queue,
    metadata: said.metadata,
    lastConnected: world.now(),
  };
  world.stacks.set(stack.key, stack);
  const json = {
    id: stack.id,
    organization_uuid: world.organisation.id,
    cluster_queue_key: queue,
    key: stack.key,
    type: stack.type,
    metadata: stack.metadata,
    last_connected_on: new Date(stack.lastConnected).toISOString(),
    state: 'connected',
  };
  return { status: known === undefined ? 201 : 200, json };
}

/** Pages and clients differ in how they call the default queue. */
const queueNamed = (key: string): string => (key === '__default__' || key === '_default' ? 'default' : key);

function list(x: Exchange, stack: Stack): Reply {
  const { world, query } = x;
  const queue = queueNamed(query.get('queue_key') ?? stack.queue);
  const limit = Number(query.get('limit') ?? 100);
  if (!Number.isInteger(limit) || limit < 1 || limit > 1000) throw new ServiceFailure(422, 'limit must be 1 to 1000');
  const after = query.get('after');
  // A cursor outlives the job that it names: it says where that stood in the order of all.
  const from = after === null ? -1 : Number(Buffer.from(after, 'base64').toString('utf8'));
  const rest = [...world.open].filter((job) => job.state === 'scheduled' && job.queue === queue && job.order > from);
  const page = rest.slice(0, limit);
  const last = page.at(-1);
  const { id, paused } = queueOf(world, queue);
  return ok({
    jobs: page.map(listed),
    page_info: {
      has_next_page: rest.length > page.length,
      end_cursor: last === undefined ? null : Buffer.from(String(last.order)).toString('base64'),
    },
    cluster_queue: { id, dispatch_paused: paused },
  });
}

function listed(job: Job): Record<string, unknown> {
  return {
    id: job.id,
    priority: job.priority,
    agent_query_rules: [`queue=${job.queue}`, ...job.rules],
    scheduled_at: new Date(job.times.queued).toISOString(),
    pipeline: { slug: job.pipeline, uuid: `pipeline-${job.pipeline}` },
    build: { uuid: job.build.id, number: job.build.number, branch: job.branch },
    step: { key: null },
  };
}

const Reserve = z.object({ job_uuids: Ids, reservation_expiry_seconds: z.number().int().min(1).max(3600).default(900) });

/** Repeating it by the same stack extends. */
function reserve(x: Exchange, stack: Stack): Reply {
  const { job_uuids, reservation_expiry_seconds } = bodyOf(x, Reserve);
  const reserved: string[] = [];
  const not: string[] = [];
  for (const id of job_uuids) {
    const job = x.world.jobs.get(id);
    const free = job?.state === 'scheduled' || (job?.state === 'reserved' && job.reservation?.stack === stack.key);
    if (job === undefined || !free) {
      not.push(id);
      continue;
    }
    job.state = 'reserved';
    job.reservation = { stack: stack.key, until: x.world.now() + reservation_expiry_seconds * 1000 };
    reserved.push(id);
  }
  return ok({ reserved, not_reserved: not });
}

const Tokens = z.object({ job_uuids: Ids, token_lifetime_seconds: z.number().int().min(1).max(3600).default(900) });

function tokens(x: Exchange, stack: Stack): Reply {
  const { world } = x;
  const { job_uuids, token_lifetime_seconds } = bodyOf(x, Tokens);
  const mine = (id: string): Job | null => {
    const job = world.jobs.get(id);
    return job?.state === 'reserved' && job.reservation?.stack === stack.key ? job : null;
  };
  const made = job_uuids.flatMap((id) => {
    const job = mine(id);
    if (job === null) return [];
    // Shorter with the reservation.
    const until = Math.min(world.now() + token_lifetime_seconds * 1000, job.reservation?.until ?? 0);
    const token = newToken('bkjat');
    world.acquisitionTokens.set(token, { job: id, until });
    return [{ job_uuid: id, job_acquisition_token: token, expires_at: new Date(until).toISOString() }];
  });
  const issued = new Set(made.map(({ job_uuid }) => job_uuid));
  return { status: 201, json: { job_acquisition_tokens: made, not_issued: job_uuids.filter((id) => !issued.has(id)) } };
}

const Finish = z.object({ exit_status: z.number().int().default(-1), detail: z.string().max(4096).default('') });

function finish(x: Exchange, stack: Stack): Reply {
  const job = known(x.world, x.params.id);
  const { exit_status, detail } = bodyOf(x, Finish);
  const own = job.state === 'scheduled' || (job.state === 'reserved' && job.reservation?.stack === stack.key);
  if (!own) throw new ServiceFailure(422, `The job cannot be finished by this stack: it is ${job.state}`);
  endJob(x.world, job, { exit: exit_status, signalReason: exit_status === 0 ? '' : 'stack_error', detail });
  return ok();
}

const Notifications = z.object({
  notifications: z.array(z.object({ job_uuid: z.string(), detail: z.string(), timestamp: z.string().nullish() })).max(1000),
});

function notify(x: Exchange): Reply {
  const errors: { error: string; indexes: number[] }[] = [];
  for (const [index, { job_uuid, detail }] of bodyOf(x, Notifications).notifications.entries()) {
    const job = x.world.jobs.get(job_uuid);
    const error =
      job === undefined
        ? 'The job does not exist'
        : detail.length > 256
          ? 'The detail is too long'
          : job.notifications.length >= 100
            ? 'The job has too many notifications'
            : null;
    if (error === null) job?.notifications.push(detail);
    else errors.push({ error, indexes: [index] });
  }
  return ok({ errors });
}

function known(world: World, id: string | undefined): Job {
  const job = world.jobs.get(id ?? '');
  if (job === undefined) throw new ServiceFailure(404, 'No job found');
  return job;
}

function states(x: Exchange): Reply {
  const { job_uuids } = bodyOf(x, z.object({ job_uuids: Ids }));
  const found = job_uuids.flatMap((id) => {
    const job = x.world.jobs.get(id);
    return job === undefined ? [] : [[id, job.state] as const];
  });
  return ok({ states: Object.fromEntries(found) });
}

/** What it had reserved is free again, which is a guess. */
function deregister({ world }: Exchange, stack: Stack): Reply {
  world.stacks.delete(stack.key);
  for (const job of world.open) {
    if (job.reservation?.stack !== stack.key || job.state !== 'reserved') continue;
    job.state = 'scheduled';
    job.reservation = null;
  }
  dispatch(world);
  return { status: 204 };
}

/** Counts the request, and finds the stack. @throws ServiceFailure 429 above the limit, 404 for a key nobody registered. */
function limited(operation: StackOperation, answer: (x: Exchange, stack: Stack) => Reply): Route['answer'] {
  return (x) => {
    const { world } = x;
    const key = x.params.key ?? '';
    const stack = world.stacks.get(key);
    if (stack === undefined) throw new ServiceFailure(404, 'No stack found');
    stack.lastConnected = world.now();
    const limit = world.options.stackLimits?.[operation] ?? LIMITS[operation];
    const second = Math.floor(world.now() / 1000);
    const scope = `${key} ${operation}`;
    const before = world.counted.get(scope);
    const count = before?.second === second ? before.count + 1 : 1;
    world.counted.set(scope, { second, count });
    const headers = {
      'ratelimit-scope': operation,
      'ratelimit-limit': String(limit),
      'ratelimit-remaining': String(Math.max(0, limit - count)),
      'ratelimit-reset': '1',
    };
    if (count > limit) {
      return { status: 429, json: { message: 'Too many requests', scope: operation, limit, current: count, reset: 1 }, headers };
    }
    const reply = answer(x, stack);
    return { ...reply, headers: { ...headers, ...reply.headers } };
  };
}

const show = (x: Exchange): Reply => {
  const { id, env, command } = known(x.world, x.params.id);
  return ok({ id, env, command });
};

const route = (method: string, path: string, answer: Route['answer']): Route => ({ method, path, allow: ['registration'], answer });

export const stackRoutes: readonly Route[] = [
  route('POST', 'stacks/register', register),
  route('POST', 'stacks/:key/deregister', limited('deregister', deregister)),
  route('GET', 'stacks/:key/scheduled-jobs', limited('list', list)),
  route('PUT', 'stacks/:key/scheduled-jobs/batch-reserve', limited('reserve', reserve)),
  route('GET', 'stacks/:key/jobs/:id', limited('show', show)),
  route('POST', 'stacks/:key/jobs/get-states', limited('states', states)),
  route('POST', 'stacks/:key/job-acquisition-tokens', limited('tokens', tokens)),
  route('POST', 'stacks/:key/jobs/:id/finish', limited('finish', finish)),
  route('POST', 'stacks/:key/notifications', limited('notifications', notify)),
];
