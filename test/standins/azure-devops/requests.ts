/** The pool's requests: listed for managers, renewed and finished by agents (layer F, over the wire). */
import { type Exchange, list, objectBody, ok, type Reply, type Route, ServiceFailure } from './http.ts';
import { poolOf } from './pools.ts';
import { finish, received } from './queue.ts';
import { requestBody } from './request-body.ts';
import type { Request } from './state.ts';

const PATH = '_apis/distributedtask/pools/{poolId}/jobrequests';

export const requestRoutes: readonly Route[] = [
  { method: 'GET', name: 'jobrequests', path: PATH, allow: ['pat', 'principal'], right: 'read', answer: find },
  { method: 'PATCH', name: 'jobrequests/{requestId}', path: `${PATH}/{requestId}`, allow: ['agent'], answer: update },
];

const RECENT = 25;
const RESULTS = ['succeeded', 'succeededWithIssues', 'failed', 'canceled', 'skipped', 'abandoned'] as const;

/** The node client writes enums as numbers. */
export function resultName(value: unknown): string | null {
  if (typeof value === 'number' || (typeof value === 'string' && /^\d$/.test(value))) return RESULTS[Number(value)] ?? null;
  return RESULTS.find((name) => name.toLowerCase() === String(value).toLowerCase()) ?? null;
}

/**
 * Unfinished ones are always there. `completedRequestCount`: so many finished ones; `agentId`: of one agent; nothing of it: recent
 * ones.
 */
function find(x: Exchange): Reply {
  const pool = poolOf(x);
  const agent = x.query.get('agentid');
  const all = [...x.world.requests.values()].filter(
    (request) => request.pool === pool && (agent === undefined || request.agent?.id === Number(agent)),
  );
  const count = Number(x.query.get('completedrequestcount') ?? RECENT);
  const done = all.filter((request) => request.result !== null);
  const shown = new Set(done.slice(Math.max(0, done.length - count)));
  return list(
    all.filter((request) => request.result === null || shown.has(request)).map((request) => requestBody(x.world, request, true)),
  );
}

function requestOfPath(x: Exchange): Request {
  const request = x.world.requests.get(Number(x.params.requestId));
  if (request === undefined || request.pool !== poolOf(x))
    throw new ServiceFailure(400, 'TaskAgentJobNotFoundException', `The job ${x.params.requestId} does not exist.`);
  return request;
}

/** An agent renews its lock, or says how the job ended, as one of an old plan. */
function update(x: Exchange): Reply {
  const request = requestOfPath(x);
  if (request.agent === null || request.result !== null || x.caller.agent?.id !== request.agent.id)
    throw new ServiceFailure(400, 'TaskAgentJobTokenExpiredException', `The job ${request.id} is not this agent's, or has ended.`);
  const body = objectBody(x);
  const result = resultName(body.result);
  received(x.world, request);
  request.lockedUntil = x.world.now() + x.world.lockMs;
  if (result !== null && body.finishTime != null) finish(x.world, request, result);
  return ok({ ...requestBody(x.world, request), lockedUntil: new Date(request.lockedUntil).toISOString() });
}
