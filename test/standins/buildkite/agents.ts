/** An agent's life: register, connect, ping, heartbeat, disconnect, and what a person asks of it (facts: agent `api/agents.go`). */
import { randomUUID } from 'node:crypto';
import { z } from 'zod';
import { dispatch, leave, queueIn } from './dispatch.ts';
import { bodyOf, type Exchange, ok, type Reply, type Route, ServiceFailure, sessionOf } from './http.ts';
import type { Agent } from './state.ts';
import { newToken } from './tokens.ts';
import { agentView } from './views.ts';

const Register = z.object({
  name: z.string().min(1),
  hostname: z.string().default(''),
  ignore_in_dispatches: z.boolean().nullish(),
  priority: z.string().nullish(),
  version: z.string().default(''),
  meta_data: z.array(z.string()).nullish(),
  pid: z.number().nullish(),
  features: z.array(z.string()).nullish(),
});

function register(x: Exchange): Reply {
  const { world, caller } = x;
  const said = bodyOf(x, Register);
  const tags = said.meta_data ?? [];
  const queue = queueIn(tags);
  const bound = caller.token?.queue ?? null;
  if (bound !== null && bound !== queue) throw new ServiceFailure(403, `This token cannot register agents in the queue "${queue}"`);
  const priority = Number.parseInt(said.priority ?? '', 10);
  const agent: Agent = {
    id: randomUUID(),
    name: filled(said.name, said.hostname, said.pid ?? 0),
    tags,
    queue,
    priority: Number.isNaN(priority) ? null : priority,
    version: said.version,
    hostname: said.hostname,
    features: said.features ?? [],
    from: x.from,
    token: caller.kind,
    session: newToken('bkaa'),
    only: caller.only,
    registered: world.now(),
    connected: null,
    gone: null,
    lost: false,
    lastHeartbeat: world.now(),
    ignored: said.ignore_in_dispatches === true || caller.only !== null,
    paused: null,
    stopping: false,
    job: null,
    lastPassed: 0,
  };
  world.agents.set(agent.id, agent);
  world.present.add(agent);
  world.sessions.set(agent.session, agent);
  world.emit({ kind: 'agentRegistered', agent: agentView(agent) });
  return ok({
    id: agent.id,
    name: agent.name,
    access_token: agent.session,
    endpoint: world.options.endpoint ?? '',
    request_headers: world.options.requestHeaders ?? {},
    ping_interval: world.intervals.ping,
    job_status_interval: world.intervals.jobStatus,
    heartbeat_interval: world.intervals.heartbeat,
    meta_data: tags,
  });
}

/** What the service fills into a name; `%spawn` the agent has filled by itself. */
function filled(name: string, hostname: string, pid: number): string {
  return name
    .replaceAll('%hostname', hostname)
    .replaceAll('%pid', String(pid))
    .replace(/%random/g, () => randomUUID().slice(0, 8));
}

function connect(x: Exchange): Reply {
  const agent = sessionOf(x);
  if (agent.connected === null) {
    agent.connected = x.world.now();
    agent.lastHeartbeat = x.world.now();
    x.world.emit({ kind: 'agentConnected', agent: agentView(agent) });
    dispatch(x.world);
  }
  return ok();
}

function ping(x: Exchange): Reply {
  const agent = sessionOf(x);
  const { pingAction } = x.world.faults;
  if (agent.connected === null) throw new ServiceFailure(422, 'The agent is not connected');
  if (pingAction !== null) return ok({ action: pingAction, message: `The stand-in says ${pingAction}` });
  if (agent.job?.state === 'assigned') return ok({ action: '', job: { id: agent.job.id } });
  if (agent.stopping) return ok({ action: 'disconnect', message: 'Stopped by a person' });
  if (agent.paused !== null) return ok({ action: 'pause', message: agent.paused.note });
  return ok();
}

const Heartbeat = z.object({ sent_at: z.string().nullish() });

function heartbeat(x: Exchange): Reply {
  const { world } = x;
  sessionOf(x).lastHeartbeat = world.now();
  const received = new Date(world.now() + world.faults.skew).toISOString();
  return ok({ sent_at: bodyOf(x, Heartbeat).sent_at ?? received, received_at: received });
}

const Stop = z.object({ force: z.boolean().nullish() });

function stop(x: Exchange): Reply {
  const agent = sessionOf(x);
  agent.stopping = true;
  if (bodyOf(x, Stop).force === true && agent.job !== null && agent.job.state !== 'assigned') agent.job.state = 'canceling';
  return ok();
}

const Pause = z.object({ note: z.string().nullish(), timeout_in_minutes: z.number().nullish() });

function pause(x: Exchange): Reply {
  const { note, timeout_in_minutes } = bodyOf(x, Pause);
  sessionOf(x).paused = { note: note ?? '', until: x.world.now() + (timeout_in_minutes ?? 5) * 60_000 };
  return ok();
}

function resume(x: Exchange): Reply {
  sessionOf(x).paused = null;
  dispatch(x.world);
  return ok();
}

function tokenIdentity({ world, caller }: Exchange): Reply {
  const queue = caller.token?.queue ?? null;
  return ok({
    uuid: caller.token?.id ?? '',
    description: caller.kind,
    token_type: queue === null ? 'cluster' : 'queue',
    organization_slug: world.organisation.slug,
    organization_uuid: world.organisation.id,
    cluster_uuid: world.cluster.id,
    cluster_name: world.cluster.name,
    organization_queue_uuid: queue === null ? '' : world.queues.get(queue)?.id,
    organization_queue_key: queue ?? '',
  });
}

export const agentRoutes: readonly Route[] = [
  { method: 'POST', path: 'register', allow: ['registration', 'acquisition'], answer: register },
  { method: 'POST', path: 'connect', allow: ['session'], answer: connect },
  { method: 'GET', path: 'ping', allow: ['session'], answer: ping },
  { method: 'POST', path: 'heartbeat', allow: ['session'], answer: heartbeat },
  {
    method: 'POST',
    path: 'disconnect',
    allow: ['session'],
    answer: (x) => {
      leave(x.world, sessionOf(x), false);
      return ok();
    },
  },
  { method: 'POST', path: 'stop', allow: ['session'], answer: stop },
  { method: 'POST', path: 'pause', allow: ['session'], answer: pause },
  { method: 'POST', path: 'resume', allow: ['session'], answer: resume },
  { method: 'GET', path: 'token', allow: ['registration', 'metrics'], answer: tokenIdentity },
];
