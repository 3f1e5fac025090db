/** What tests do to an organisation with one cluster, and see of it, whatever way requests come to it. */
import { randomUUID } from 'node:crypto';
import { afterRealTime } from '../kit/door.ts';
import { createEvents } from '../kit/events.ts';
import type { Entrance } from '../kit/in-process.ts';
import { cancelJob, dispatch, leave, sweep } from './dispatch.ts';
import { createDoor, type Door } from './door.ts';
import { createFaults } from './faults.ts';
import { queueJob } from './queue.ts';
import { type Agent, isOver, type Job, queueOf, type World } from './state.ts';
import { newToken } from './tokens.ts';
import type { BuildkiteOptions, BuildkiteStandin, LoggedRequest, StandinEvent } from './types.ts';
import { agentView, jobView } from './views.ts';

/** What does not depend on how it is reached. */
export type Organisation = Omit<BuildkiteStandin, 'endpoint' | 'port' | 'artifactHost' | typeof Symbol.asyncDispose>;

/** It has a cluster, its default queue and two tokens, and neither agents nor jobs. */
export function createOrganisation(
  options: BuildkiteOptions,
  { log, down, up }: Entrance<LoggedRequest>,
): { readonly buildkite: Organisation; readonly service: Door } {
  const { emit, on, next } = createEvents<StandinEvent>();
  const faults = createFaults(options.now ?? Date.now, { down, up });
  const world = createWorld(options, faults, emit);
  const jobOf = (id: string): Job => {
    const job = world.jobs.get(id);
    if (job === undefined) throw new Error(`The stand-in has no job ${id}.`);
    return job;
  };
  const agentOf = (name: string): Agent => {
    const all = [...world.agents.values()].filter((each) => each.name === name);
    const agent = all.findLast((each) => each.job !== null && each.gone === null) ?? all.at(-1);
    if (agent === undefined) throw new Error(`The stand-in has no agent ${name}.`);
    return agent;
  };
  const addToken: BuildkiteStandin['addToken'] = ({ kind, queue = null }) => {
    const token = newToken('bkct');
    if (queue !== null) queueOf(world, queue);
    world.clusterTokens.set(token, { id: randomUUID(), kind, queue, revoked: false });
    return token;
  };
  const buildkite: Organisation = {
    organisation: world.organisation.slug,
    token: addToken({ kind: 'registration' }),
    metricsToken: addToken({ kind: 'metrics' }),
    addToken,
    revoke(token) {
      const known = world.clusterTokens.get(token);
      if (known === undefined) throw new Error('The stand-in has no such token.');
      known.revoked = true;
    },
    queueJob: (spec = {}) => queueJob(world, spec).id,
    release(id) {
      const job = jobOf(id);
      if (job.state === 'waiting') job.state = 'scheduled';
      dispatch(world);
    },
    cancel: (id) => cancelJob(world, jobOf(id)),
    job: (id) => jobView(jobOf(id)),
    jobs: () => [...world.jobs.values()].map(jobView),
    async jobEnded(id) {
      const job = jobOf(id);
      await job.ended.promise;
      return jobView(job);
    },
    agents: () => [...world.agents.values()].map(agentView),
    stopAgent(name) {
      agentOf(name).stopping = true;
    },
    pauseAgent(name, note = '') {
      agentOf(name).paused = { note, until: Number.POSITIVE_INFINITY };
    },
    resumeAgent(name) {
      agentOf(name).paused = null;
      dispatch(world);
    },
    loseAgent: (name) => leave(world, agentOf(name), true),
    addSecret: (key, value, pipeline) => void world.secrets.push({ key, value, id: randomUUID(), pipeline: pipeline ?? null }),
    pauseQueue(queue, paused) {
      queueOf(world, queue).paused = paused;
      dispatch(world);
    },
    setIntervals: (seconds) => void Object.assign(world.intervals, seconds),
    requests: log,
    onRequest: (listener) => on((event) => void (event.kind === 'answered' && listener(event.request))),
    on,
    next,
    census: () => ({
      agents: [...world.present].map(({ name }) => name),
      jobs: [...world.open].filter((job) => !isOver(job)).map(({ id }) => id),
    }),
    sweep: () => sweep(world),
    faults,
  };
  return { buildkite, service: createDoor(world, log, faults.pick) };
}

function createWorld(options: BuildkiteOptions, faults: World['faults'], emit: World['emit']): World {
  const last = { build: 0, job: 0 };
  const world: World = {
    options,
    origin: 'http://127.0.0.1',
    artifactHost: '',
    organisation: { slug: options.organisation ?? 'acme', id: randomUUID() },
    cluster: { name: 'Lab', id: randomUUID() },
    intervals: {
      ping: options.pingInterval ?? 1,
      jobStatus: options.jobStatusInterval ?? 1,
      heartbeat: options.heartbeatInterval ?? 2,
    },
    faults,
    now: options.now ?? Date.now,
    after: options.after ?? afterRealTime,
    next: (of) => ++last[of],
    emit,
    clusterTokens: new Map(),
    agents: new Map(),
    present: new Set(),
    sessions: new Map(),
    jobTokens: new Map(),
    acquisitionTokens: new Map(),
    jobs: new Map(),
    open: new Set(),
    builds: new Map(),
    queues: new Map(),
    stacks: new Map(),
    secrets: [],
    counted: new Map(),
  };
  queueOf(world, 'default');
  return world;
}
