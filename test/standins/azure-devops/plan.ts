/** Where a job's timeline, console feed, logs and end go (layer G). Only the job's own token gets here. */
import { type Exchange, isRecord, list, nothing, objectBody, ok, type Reply, type Route, ServiceFailure, text } from './http.ts';
import { finish } from './queue.ts';
import { resultName } from './requests.ts';
import type { Plan, Request } from './state.ts';

const PATH = '{scopeIdentifier}/_apis/distributedtask/hubs/{hubName}/plans/{planId}';
const JOB = ['job'] as const;

export const planRoutes: readonly Route[] = [
  {
    method: 'GET',
    name: 'timelines/{timelineId}',
    path: `${PATH}/timelines/{timelineId}`,
    allow: JOB,
    answer: (x) => ok(timelineBody(planOf(x))),
  },
  { method: 'PATCH', name: 'records', path: `${PATH}/timelines/{timelineId}/records`, allow: JOB, answer: records },
  { method: 'POST', name: 'feed', path: `${PATH}/timelines/{timelineId}/records/{recordId}/feed`, allow: JOB, answer: feed },
  { method: 'POST', name: 'logs', path: `${PATH}/logs`, allow: JOB, answer: createLog },
  { method: 'POST', name: 'logs/{logId}', path: `${PATH}/logs/{logId}`, allow: JOB, answer: appendLog },
  { method: 'POST', name: 'events', path: `${PATH}/events`, allow: JOB, answer: event },
];

function planOf(x: Exchange): Plan {
  const plan = x.world.plans.get(x.params.planId ?? '');
  if (plan === undefined)
    throw new ServiceFailure(404, 'TaskOrchestrationPlanNotFoundException', `No plan found for identifier ${x.params.planId}.`);
  if (plan !== x.caller.plan)
    throw new ServiceFailure(403, 'TaskOrchestrationPlanSecurityException', 'This token is for another plan.');
  const timeline = x.params.timelineId;
  if (timeline !== undefined && timeline !== plan.timeline)
    throw new ServiceFailure(404, 'TimelineNotFoundException', `No timeline found for identifier ${timeline}.`);
  return plan;
}

const timelineBody = (plan: Plan): Record<string, unknown> => ({
  id: plan.timeline,
  changeId: plan.changeId,
  location: null,
  records: [...plan.records.values()],
});

/** Records are merged by id: an update names what has changed. */
function records(x: Exchange): Reply {
  const plan = planOf(x);
  const { value } = objectBody(x);
  const changed = (Array.isArray(value) ? value : []).filter(isRecord).map((record) => {
    const id = text(record.id);
    if (id === '') throw new ServiceFailure(400, 'VssPropertyValidationException', 'A timeline record needs an id.');
    plan.changeId++;
    const merged = { ...plan.records.get(id), ...record, changeId: plan.changeId };
    plan.records.set(id, merged);
    return merged;
  });
  return list(changed);
}

function feed(x: Exchange): Reply {
  const plan = planOf(x);
  const { value } = objectBody(x);
  const request = requestOfPlan(x, plan);
  for (const line of Array.isArray(value) ? value : []) {
    plan.feed.push(String(line));
    x.world.emit({ kind: 'line', requestId: request.id, text: String(line) });
  }
  return nothing;
}

const logBody = (log: Plan['logs'][number]): Record<string, unknown> => ({
  id: log.id,
  path: log.path,
  lineCount: log.text.split('\n').length - 1,
});

function createLog(x: Exchange): Reply {
  const plan = planOf(x);
  const log = { id: plan.logs.length + 1, path: text(objectBody(x).path), text: '' };
  plan.logs.push(log);
  return ok(logBody(log));
}

function appendLog(x: Exchange): Reply {
  const log = planOf(x).logs.find((each) => each.id === Number(x.params.logId));
  if (log === undefined)
    throw new ServiceFailure(404, 'TaskLogNotFoundException', `No log found for identifier ${x.params.logId}.`);
  log.text += x.body.toString('utf8');
  return ok(logBody(log));
}

/** This is how a job ends, and how an agent says that it leaves with it. */
function event(x: Exchange): Reply {
  const plan = planOf(x);
  const body = objectBody(x);
  if (body.name !== 'JobCompleted') return nothing;
  const request = requestOfPlan(x, plan);
  const result = resultName(body.result);
  if (result === null || body.jobId !== request.jobId || body.requestId !== request.id)
    throw new ServiceFailure(400, 'VssPropertyValidationException', 'JobCompleted needs the requestId, the jobId and a result.');
  const agent = request.agent === null ? undefined : request.pool.agents.get(request.agent.id);
  if (agent !== undefined && body.agentShuttingDown === true) agent.leaving = true;
  finish(x.world, request, result);
  return nothing;
}

function requestOfPlan(x: Exchange, plan: Plan): Request {
  for (const request of x.world.requests.values()) if (request.plan === plan) return request;
  throw new ServiceFailure(404, 'TaskOrchestrationJobNotFoundException', `No job found for plan ${plan.id}.`);
}
