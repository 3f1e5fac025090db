/** The pool's requests: listed with the quirks of each variant, renewed and finished by agents (layer F, over the wire). */
import { ownAgent } from './auth.ts';
import { type Exchange, flag, list, nothing, objectBody, ok, type Reply, type Route, ServiceFailure } from './http.ts';
import { poolOf } from './pools.ts';
import { finish, received } from './queue.ts';
import { requestBody } from './request-body.ts';
import type { Request } from './state.ts';

const PATH = '_apis/distributedtask/pools/{poolId}/jobrequests';

export const requestRoutes: readonly Route[] = [
  { method: 'GET', name: 'jobrequests', path: PATH, allow: ['pat', 'principal'], right: 'read', answer: find },
  {
    method: 'GET',
    name: 'jobrequests/{requestId}',
    path: `${PATH}/{requestId}`,
    allow: ['pat', 'principal', 'agent'],
    right: 'read',
    answer: one,
  },
  { method: 'PATCH', name: 'jobrequests/{requestId}', path: `${PATH}/{requestId}`, allow: ['agent'], answer: update },
  {
    method: 'DELETE',
    name: 'jobrequests/{requestId}',
    path: `${PATH}/{requestId}`,
    allow: ['pat', 'principal', 'agent'],
    right: 'manage',
    answer: end,
  },
];

/** Whatever `$top` says, not more. */
const CAP = 200;
const RECENT = 25;
const RESULTS = ['succeeded', 'succeededWithIssues', 'failed', 'canceled', 'skipped', 'abandoned'] as const;

/** The node client writes enums as numbers. */
export function resultName(value: unknown): string | null {
  if (typeof value === 'number' || (typeof value === 'string' && /^\d$/.test(value))) return RESULTS[Number(value)] ?? null;
  return RESULTS.find((name) => name.toLowerCase() === String(value).toLowerCase()) ?? null;
}

/**
 * Unfinished ones are always there. `$top`: newest first, no `matchedAgents`, 200 at most; `completedRequestCount`: so many
 * finished ones; `agentId`: of one agent; nothing of it: recent ones.
 */
function find(x: Exchange): Reply {
  const pool = poolOf(x);
  const agents = (x.query.get('agentids') ?? x.query.get('agentid'))?.split(',').map(Number);
  const all = [...x.world.requests.values()].filter(
    (request) => request.pool === pool && (agents?.includes(request.agent?.id ?? -1) ?? true),
  );
  const top = x.query.get('$top');
  if (top !== undefined)
    return list(
      all
        .toReversed()
        .slice(0, Math.min(Number(top), CAP))
        .map((request) => requestBody(x.world, request)),
    );
  const count = Number(x.query.get('completedrequestcount') ?? RECENT);
  const done = all.filter((request) => request.result !== null);
  const shown = new Set(done.slice(Math.max(0, done.length - count)));
  return list(
    all
      .filter((request) => request.result === null || shown.has(request))
      .map((request) => requestBody(x.world, request, { matched: true })),
  );
}

function requestOfPath(x: Exchange): Request {
  const request = x.world.requests.get(Number(x.params.requestId));
  if (request === undefined || request.pool !== poolOf(x))
    throw new ServiceFailure(
      x.caller.identity === 'agent' ? x.world.codes.jobNotFound : 404,
      'TaskAgentJobNotFoundException',
      `The job ${x.params.requestId} does not exist.`,
    );
  return request;
}

function one(x: Exchange): Reply {
  const request = requestOfPath(x);
  if (request.agent !== null) ownAgent(x, request.agent.id);
  const status = flag(x, 'includeStatus');
  return ok(requestBody(x.world, request, { matched: status, status }));
}

/** An agent renews its lock, or says how the job ended (plans below version 8). */
function update(x: Exchange): Reply {
  const request = requestOfPath(x);
  if (request.agent === null || request.result !== null || x.caller.agent?.id !== request.agent.id)
    throw new ServiceFailure(
      x.world.codes.jobNotFound,
      'TaskAgentJobTokenExpiredException',
      `The job ${request.id} is not this agent's, or has ended.`,
    );
  const body = objectBody(x);
  const result = resultName(body.result);
  received(x.world, request);
  request.lockedUntil = x.world.now() + x.world.lockMs;
  if (result !== null && body.finishTime != null) finish(x.world, request, result);
  return ok({ ...requestBody(x.world, request), lockedUntil: new Date(request.lockedUntil).toISOString() });
}

function end(x: Exchange): Reply {
  const request = requestOfPath(x);
  if (request.agent !== null) ownAgent(x, request.agent.id);
  if (x.query.get('agentshuttingdown') === 'true' && x.caller.agent !== null) x.caller.agent.leaving = true;
  finish(x.world, request, resultName(x.query.get('result')) ?? 'failed');
  return nothing;
}
