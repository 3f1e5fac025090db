/** The life of a request: queued, or failed at once; assigned; received; finished, or abandoned with its lock (layer F). */
import { randomBytes, randomUUID } from 'node:crypto';
import { jobMessage } from './job-message.ts';
import { endSession, post } from './messages.ts';
import { matching } from './request-body.ts';
import { type Agent, type Build, type Plan, type Pool, PROJECT, type Request, requestOf, type World } from './state.ts';
import type { JobSpec, RequestView } from './types.ts';

/** Queues a job as a pipeline would. It fails at once when nobody registered, online or offline, meets its demands. */
export function queueJob(world: World, pool: Pool, job: JobSpec): Request {
  const now = world.now();
  const build: Build = {
    id: world.next(),
    number: `${new Date(now).toISOString().slice(0, 10).replaceAll('-', '')}.${world.builds.size + 1}`,
    definition: { id: 7, name: job.definition ?? 'demo pipeline' },
    repository: job.repository ?? 'acme/demo',
    branch: job.branch ?? 'refs/heads/main',
    reason: job.reason ?? 'manual',
  };
  const plan: Plan = {
    id: randomUUID(),
    scope: PROJECT.id,
    timeline: randomUUID(),
    changeId: 1,
    records: new Map(),
    feed: [],
    logs: [],
    token: `job.${randomBytes(32).toString('base64url')}`,
  };
  const request: Request = {
    id: world.next(),
    pool,
    jobId: randomUUID(),
    name: job.name ?? 'Job',
    demands: job.demands ?? [],
    script: job.script ?? 'echo hello',
    build,
    plan,
    queueTime: now,
    assignTime: null,
    receiveTime: null,
    finishTime: null,
    lockedUntil: null,
    result: null,
    statusMessage: null,
    failedAtQueue: false,
    agent: null,
    cancelled: false,
    done: Promise.withResolvers(),
  };
  world.builds.set(build.id, build);
  world.plans.set(plan.id, plan);
  world.requests.set(request.id, request);
  world.open.add(request);
  world.emit({ kind: 'requestQueued', pool: pool.id, request: viewOf(request) });
  if (matching(pool.agents.values(), request.demands).length === 0) {
    request.failedAtQueue = true;
    request.statusMessage =
      pool.agents.size === 0
        ? `No agents were found in pool ${pool.name}. Configure an agent for the pool and try again.`
        : `No agent found in pool ${pool.name} which satisfies the following demands: ${request.demands.join(', ')}.`;
    finish(world, request, 'failed');
  } else {
    assignWaiting(world);
  }
  return request;
}

/** Gives waiting requests, oldest first, to idle agents that are online, enabled, staying, and able. */
export function assignWaiting(world: World): void {
  const free = new Set<Agent>();
  for (const { agent } of world.sessions.values()) if (agent.enabled && mayGet(world, agent)) free.add(agent);
  for (const request of world.open) {
    if (free.size === 0) return;
    if (request.agent !== null) continue;
    const [agent] = matching(free, request.demands).filter((each) => each.pool === request.pool);
    if (agent === undefined) continue;
    assign(world, request, agent);
    free.delete(agent);
  }
}

/** The switch for a second job breaks the rule that an agent has one at a time. */
function mayGet(world: World, agent: Agent): boolean {
  const current = requestOf(world, agent);
  if (current === null) return !agent.leaving;
  const held = [...world.open].filter((request) => request.agent?.id === agent.id).length;
  return world.faults.givesSecondJob && current.receiveTime !== null && held === 1;
}

function assign(world: World, request: Request, agent: Agent): void {
  const { id, name, version, osDescription, session } = agent;
  if (session === null) return;
  request.agent = { id, name, version, osDescription };
  request.assignTime = world.now();
  request.lockedUntil = world.now() + world.lockMs;
  post(world, session, 'PipelineAgentJobRequest', jobMessage(world, request), request.id);
  world.emit({ kind: 'requestAssigned', pool: request.pool.id, request: viewOf(request) });
}

/** The agent has taken it: by its first renewal, or by deleting the message. */
export function received(world: World, request: Request): void {
  if (request.receiveTime !== null || request.result !== null) return;
  request.receiveTime = world.now();
  assignWaiting(world);
}

export function finish(world: World, request: Request, result: string): void {
  if (request.result !== null) return;
  request.result = result;
  request.finishTime = world.now();
  world.open.delete(request);
  const { logs, feed } = request.plan;
  const log = logs.length > 0 ? logs.map((each) => each.text).join('') : feed.map((line) => `${line}\n`).join('');
  world.emit({ kind: 'requestFinished', pool: request.pool.id, request: viewOf(request) });
  request.done.resolve({ result, log });
  forgetOld(world);
  assignWaiting(world);
}

/** As the service, it does not keep what is over for ever. */
function forgetOld(world: World): void {
  if (world.requests.size <= world.remembered) return;
  const over = [...world.requests.values()].filter(({ result }) => result !== null);
  for (const old of over.slice(0, Math.max(0, over.length - world.remembered))) {
    world.requests.delete(old.id);
    world.plans.delete(old.plan.id);
    world.builds.delete(old.build.id);
  }
}

/** A person's Cancel. */
export function cancelRequest(world: World, request: Request): void {
  if (request.result !== null || request.cancelled) return;
  request.cancelled = true;
  const session = request.agent === null ? null : (request.pool.agents.get(request.agent.id)?.session ?? null);
  if (request.agent === null) finish(world, request, 'canceled');
  else if (session !== null) post(world, session, 'JobCancellation', { jobId: request.jobId, timeout: '00:05:00' });
}

/** Locks and sessions that have run out. */
export function sweep(world: World): void {
  const now = world.now();
  for (const session of [...world.sessions.values()])
    if (session.polls.size === 0 && session.lastSeen + world.sessionMs <= now) endSession(world, session, 'expired');
  for (const request of world.open) {
    if (request.agent === null) continue;
    if (request.lockedUntil !== null && request.lockedUntil <= now) {
      request.statusMessage = `We stopped hearing from agent ${request.agent.name}. Verify the agent machine is running and has a healthy network connection.`;
      finish(world, request, 'abandoned');
    } else if (
      world.requeueUnreceived &&
      request.receiveTime === null &&
      request.pool.agents.get(request.agent.id)?.session == null
    ) {
      Object.assign(request, { agent: null, assignTime: null, lockedUntil: null });
    }
  }
  assignWaiting(world);
}

export function viewOf(request: Request): RequestView {
  const { id, pool, build, name, demands, result, statusMessage, failedAtQueue, agent, receiveTime } = request;
  const state = result !== null ? 'done' : receiveTime !== null ? 'running' : agent !== null ? 'assigned' : 'waiting';
  return {
    requestId: id,
    pool: pool.id,
    buildId: build.id,
    name,
    demands,
    state,
    result,
    statusMessage,
    failedAtQueue,
    agent: agent === null ? null : { id: agent.id, name: agent.name },
    receiveTime,
  };
}
