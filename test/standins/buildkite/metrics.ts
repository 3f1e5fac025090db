/** Counts per queue (facts: the public metrics collector; page `apis/agent_api/metrics`). */
import { type Exchange, ok, type Reply, type Route } from './http.ts';
import { isConnected, type World } from './state.ts';

interface Counts {
  readonly agents: { idle: number; busy: number; total: number };
  readonly jobs: { scheduled: number; running: number; waiting: number; total: number };
}

const none = (): Counts => ({
  agents: { idle: 0, busy: 0, total: 0 },
  jobs: { scheduled: 0, running: 0, waiting: 0, total: 0 },
});

/** Of one queue, or of all when there is no name. A reserved job still counts as scheduled, which is a guess. */
function count(world: World, queue: string | null): Counts {
  const counts = none();
  for (const agent of world.present) {
    if (!isConnected(agent) || (queue !== null && agent.queue !== queue)) continue;
    counts.agents.total++;
    counts.agents[agent.job === null ? 'idle' : 'busy']++;
  }
  for (const job of world.open) {
    if (queue !== null && job.queue !== queue) continue;
    counts.jobs.total++;
    const waits = job.state === 'scheduled' || job.state === 'reserved';
    counts.jobs[job.state === 'waiting' ? 'waiting' : waits ? 'scheduled' : 'running']++;
  }
  return counts;
}

function about(x: Exchange): { headers: Record<string, string>; organization: { slug: string }; cluster: { name: string } } {
  const { world } = x;
  return {
    headers: { 'buildkite-agent-metrics-poll-duration': String(world.options.metricsPollSeconds ?? 10) },
    organization: { slug: world.organisation.slug },
    cluster: { name: world.cluster.name },
  };
}

function metrics(x: Exchange): Reply {
  const { headers, ...rest } = about(x);
  const only = x.caller.token?.queue ?? null;
  const names = only === null ? [...x.world.queues.keys()] : [only];
  const queues = names.map((name) => [name, count(x.world, name)] as const);
  const all = count(x.world, only);
  return {
    ...ok({
      agents: { ...all.agents, queues: Object.fromEntries(queues.map(([name, { agents }]) => [name, agents])) },
      jobs: { ...all.jobs, queues: Object.fromEntries(queues.map(([name, { jobs }]) => [name, jobs])) },
      ...rest,
    }),
    headers,
  };
}

function queueMetrics(x: Exchange): Reply {
  const { headers, ...rest } = about(x);
  return { ...ok({ ...count(x.world, x.query.get('name') ?? 'default'), ...rest }), headers };
}

export const metricsRoutes: readonly Route[] = [
  { method: 'GET', path: 'metrics', allow: ['registration', 'metrics'], answer: metrics },
  { method: 'GET', path: 'metrics/queue', allow: ['registration', 'metrics'], answer: queueMetrics },
];
