/**
 * Who gets which job. As at the service a job is assigned as soon as an agent that fits is idle, and the agent hears of it
 * with its next ping; until it accepts, the job goes back when the agent leaves.
 */
import { type Agent, isConnected, isOver, type Job, queueOf, type World } from './state.ts';
import { agentView, jobView } from './views.ts';

/** Gives out what can be given out. To be called after whatever may have changed that. */
export function dispatch(world: World): void {
  const free = [...world.present].filter(isFree);
  if (free.length === 0) return;
  const waiting = [...world.open].filter((job) => job.state === 'scheduled' && !queueOf(world, job.queue).paused);
  // Sorting is stable: of one priority the oldest comes first.
  waiting.sort((a, b) => b.priority - a.priority);
  for (const job of waiting) {
    const agent = best(free.filter((each) => isFree(each) && fits(each, job)));
    if (agent !== null) assign(world, job, agent);
  }
}

/** Ties go to the agent whose job passed last, then to the one that came first; no priority comes after every number. */
function best(agents: readonly Agent[]): Agent | null {
  const rank = (agent: Agent): number => agent.priority ?? Number.NEGATIVE_INFINITY;
  const ordered = [...agents].sort((a, b) => Math.sign(rank(b) - rank(a) || 0) || b.lastPassed - a.lastPassed);
  return ordered[0] ?? null;
}

function isFree(agent: Agent): boolean {
  return isConnected(agent) && agent.job === null && !agent.ignored && !agent.stopping && agent.paused === null;
}

/** Every rule must be met by a tag; `key=*` by any value. */
export function fits(agent: Agent, job: Job): boolean {
  if (agent.queue !== job.queue) return false;
  return job.rules.every((rule) => {
    const [key = '', value = ''] = split(rule);
    return agent.tags.some((tag) => {
      const [name, has] = split(tag);
      return name === key && (value === '*' || has === value);
    });
  });
}

/** `key=value`; a tag without a value is true. */
function split(tag: string): [string, string] {
  const at = tag.indexOf('=');
  return at < 0 ? [tag, 'true'] : [tag.slice(0, at), tag.slice(at + 1)];
}

/** The queue that tags name, else `default`. */
export function queueIn(tags: readonly string[]): string {
  return tags.map(split).find(([key]) => key === 'queue')?.[1] ?? 'default';
}

export function assign(world: World, job: Job, agent: Agent): void {
  job.state = 'assigned';
  job.agent = agent;
  job.assignments++;
  job.reservation = null;
  job.times.assigned = world.now();
  agent.job = job;
  world.emit({ kind: 'jobAssigned', job: jobView(job) });
}

/** Ends a job for good. */
export function endJob(
  world: World,
  job: Job,
  how: { readonly exit: number; readonly signal?: string; readonly signalReason?: string; readonly detail?: string },
): void {
  if (isOver(job)) return;
  job.state = job.state === 'canceling' ? 'canceled' : 'finished';
  world.open.delete(job);
  job.exit = how.exit;
  job.signal = how.signal ?? '';
  job.signalReason = how.signalReason ?? '';
  job.detail = how.detail ?? null;
  job.times.finished = world.now();
  if (job.agent?.job === job) {
    job.agent.job = null;
    if (how.exit === 0) job.agent.lastPassed = world.now();
  }
  job.ended.resolve();
  world.emit({ kind: 'jobEnded', job: jobView(job) });
}

/** A person's cancel: what no agent has accepted ends at once, the rest is told to the agent when it asks. */
export function cancelJob(world: World, job: Job): void {
  if (isOver(job) || job.state === 'canceling') return;
  const held = job.state === 'accepted' || job.state === 'running';
  job.state = 'canceling';
  job.times.canceled = world.now();
  if (!held) endJob(world, job, { exit: -1, signalReason: 'cancel' });
  dispatch(world);
}

/** The agent is gone; what it only had been offered goes back, what it had accepted is over. */
export function leave(world: World, agent: Agent, lost: boolean): void {
  if (agent.gone !== null) return;
  agent.gone = world.now();
  agent.lost = lost;
  world.present.delete(agent);
  const { job } = agent;
  agent.job = null;
  if (job?.state === 'assigned') {
    job.state = 'scheduled';
    job.agent = null;
    world.emit({ kind: 'jobReturned', job: jobView(job) });
  } else if (job !== null && !isOver(job)) {
    endJob(world, job, { exit: -1, signalReason: lost ? 'agent_lost' : 'agent_disconnected' });
  }
  world.emit({ kind: lost ? 'agentLost' : 'agentDisconnected', agent: agentView(agent) });
  dispatch(world);
}

/** Lets expire what has: heartbeats, reservations, pauses with an end. */
export function sweep(world: World): void {
  const now = world.now();
  const patience = world.options.lostMs ?? 180_000;
  for (const agent of world.present) {
    if (isConnected(agent) && agent.lastHeartbeat + patience < now) leave(world, agent, true);
    if (agent.paused !== null && agent.paused.until <= now) agent.paused = null;
  }
  for (const job of world.open) {
    if (job.state === 'reserved' && job.reservation !== null && job.reservation.until <= now) {
      job.state = 'scheduled';
      job.reservation = null;
    }
  }
  dispatch(world);
}
