/**
 * A stand-in for Buildkite: what a broker, an agent and the job in it talk to. The Agent API is on one port, the host that
 * artifacts go to on another.
 *
 * It is a small program at the network, not a mock: the real agent is its client in tests. What no source says is a guess,
 * and is called one beside its route.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { closed, inUrl, listening, portOf, publicOf } from '../listener.ts';
import { createArtifactHost } from './artifact-host.ts';
import { cancelJob, dispatch, leave, sweep } from './dispatch.ts';
import { createFaults } from './faults.ts';
import { queueJob } from './queue.ts';
import { createDoor, enter, passed } from './server.ts';
import { type Agent, isOver, type Job, queueOf, type World } from './state.ts';
import { callerOf, newToken } from './tokens.ts';
import type { BuildkiteOptions, BuildkiteStandin, EventOf, LoggedRequest, StandinEvent } from './types.ts';
import { agentView, jobView } from './views.ts';

export type { Fault, Faults, FaultWhere } from './faults.ts';
export { NAMED_FAULTS } from './faults.ts';
export type * from './types.ts';

/** How often what has run out is looked for, ms. */
const SWEEP_MS = 100;

/** Starts one, with a cluster, its default queue and two tokens, and neither agents nor jobs. */
export async function startBuildkite(options: BuildkiteOptions = {}): Promise<BuildkiteStandin> {
  const host = options.host ?? '127.0.0.1';
  const publicHost = options.publicHost ?? publicOf(host);
  const log: LoggedRequest[] = [];
  const listeners = new Set<(event: StandinEvent) => void>();
  // Opening and closing one after the other, and nothing opens after the end.
  let turn: Promise<void> = Promise.resolve();
  let ended = false;
  const inTurn = (act: () => Promise<void>): Promise<void> => {
    turn = turn.then(act);
    return turn;
  };
  const ports = { api: options.port ?? 0, artifacts: 0 };
  const close = (): Promise<void> => inTurn(async () => void (await Promise.all([closed(server), closed(artifacts)])));
  const faults = createFaults(options.now ?? Date.now, {
    down: close,
    up: () =>
      inTurn(async () => {
        if (!ended) await Promise.all([listening(server, host, ports.api), listening(artifacts, host, ports.artifacts)]);
      }),
  });
  const world = createWorld(options, faults, (event) => {
    for (const listener of [...listeners]) listener(event);
  });
  const door = { world, log, pick: faults.pick };
  const server = createDoor(door);
  const artifacts = createArtifactHost(() => world, beforeArtifact);
  // As long as the service's own: a client that thinks a connection is good must not be surprised.
  for (const one of [server, artifacts]) one.keepAliveTimeout = 75_000;
  await listening(server, host, ports.api);
  await listening(artifacts, host, 0);
  ports.api = portOf(server);
  ports.artifacts = portOf(artifacts);
  const at = (port: number): string => `http://${inUrl(publicHost)}:${port}`;
  world.origin = at(ports.api);
  world.artifactHost = at(ports.artifacts);
  const sweeping = options.now === undefined ? setInterval(() => sweep(world), SWEEP_MS) : null;
  sweeping?.unref();

  /** The log and the faults are those of the API; `half`, `doubled` and `garbage` change nothing here. */
  async function beforeArtifact(message: IncomingMessage, response: ServerResponse, route: string): Promise<boolean> {
    const entry = enter(door, message, callerOf(world, message.headers.authorization), route, {}, '');
    const fault = faults.pick(entry);
    response.once('finish', () => {
      entry.status = response.statusCode;
      entry.bytes = Number(message.headers['content-length'] ?? 0);
      world.emit({ kind: 'answered', request: entry });
    });
    switch (fault?.kind) {
      case 'reset':
        message.socket.destroy();
        return true;
      case 'lost':
        // All of it has come, and will be kept; only the answer finds nobody.
        message.once('end', () => message.socket.destroy());
        return false;
      case 'hang':
        return true;
      case 'error':
      case 'dropped':
        message.resume();
        response.writeHead(fault.kind === 'error' ? fault.status : 201).end();
        return true;
      case 'delay': {
        const gone = new AbortController();
        response.on('close', () => gone.abort());
        return !(await passed(fault.ms, gone.signal));
      }
      default:
        return false;
    }
  }
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
    world.clusterTokens.set(token, { id: crypto.randomUUID(), kind, queue, revoked: false });
    return token;
  };
  const on = (listener: (event: StandinEvent) => void): (() => void) => {
    listeners.add(listener);
    return () => void listeners.delete(listener);
  };
  return {
    endpoint: `${world.origin}/v3`,
    port: ports.api,
    artifactHost: world.artifactHost,
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
    addSecret: (key, value, pipeline) =>
      void world.secrets.push({ key, value, id: crypto.randomUUID(), pipeline: pipeline ?? null }),
    pauseQueue(queue, paused) {
      queueOf(world, queue).paused = paused;
      dispatch(world);
    },
    setIntervals: (seconds) => void Object.assign(world.intervals, seconds),
    requests: log,
    onRequest: (listener) => on((event) => void (event.kind === 'answered' && listener(event.request))),
    on,
    next(kind, fits) {
      return new Promise((resolve) => {
        const off = on((event) => {
          if (event.kind !== kind) return;
          const fitting = event as EventOf<typeof kind>;
          if (fits !== undefined && !fits(fitting)) return;
          off();
          resolve(fitting);
        });
      });
    },
    census: () => ({
      agents: [...world.agents.values()].filter(({ gone }) => gone === null).map(({ name }) => name),
      jobs: [...world.jobs.values()].filter((job) => !isOver(job)).map(({ id }) => id),
    }),
    sweep: () => sweep(world),
    faults,
    async [Symbol.asyncDispose]() {
      if (sweeping !== null) clearInterval(sweeping);
      ended = true;
      await close();
    },
  };
}

function createWorld(options: BuildkiteOptions, faults: World['faults'], emit: World['emit']): World {
  let last = 0;
  const world: World = {
    options,
    origin: 'http://127.0.0.1',
    artifactHost: '',
    organisation: { slug: options.organisation ?? 'acme', id: crypto.randomUUID() },
    cluster: { name: 'Lab', id: crypto.randomUUID() },
    intervals: {
      ping: options.pingInterval ?? 1,
      jobStatus: options.jobStatusInterval ?? 1,
      heartbeat: options.heartbeatInterval ?? 2,
    },
    faults,
    now: options.now ?? Date.now,
    next: () => ++last,
    emit,
    clusterTokens: new Map(),
    agents: new Map(),
    sessions: new Map(),
    jobTokens: new Map(),
    acquisitionTokens: new Map(),
    jobs: new Map(),
    builds: new Map(),
    queues: new Map(),
    stacks: new Map(),
    secrets: [],
    counted: new Map(),
  };
  queueOf(world, 'default');
  return world;
}
