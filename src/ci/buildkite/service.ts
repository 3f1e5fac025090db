/**
 * Buildkite, bound late: the broker is the idle agent of every slot, so a job is known before anything of it runs. Here it is
 * decided what becomes of it, and the sandbox that waits at the gate is let in with a token that is good for one registration.
 *
 * What the broker says is the truth, and is said again whenever one of both comes back: nothing here is stored but for people.
 */
import type { BuildkiteServiceConfig, PoolConfig } from '../../config/config.ts';
import type { Clock } from '../../core/clock.ts';
import type { Change, JobId, JobResult } from '../../core/slot.ts';
import { OnejobError, toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import type { Finding, Recipe } from '../../runtimes/runtime.ts';
import type { AgentContext, CiEvent, CiService, SlotOffer } from '../ci-service.ts';
import type { Trial } from '../trial.ts';
import { createBoard, needsSandbox } from './board.ts';
import type { BrokerAgent, EndRequest } from './broker/protocol.ts';
import type { BrokerDesk } from './broker-desk.ts';
import { createDecisions } from './decisions.ts';
import type { JobRows } from './job-rows.ts';
import type { Program } from './mounted-program.ts';
import { untrustedRecipe } from './recipe-class.ts';
import type { Ruling } from './ruling.ts';
import { agentScript } from './script.ts';
import { createStanding } from './standing.ts';
import { sourceRepository } from './trust.ts';

export interface BuildkiteParts {
  readonly config: BuildkiteServiceConfig;
  /** Those that take jobs from here. */
  readonly pools: readonly PoolConfig[];
  readonly stateDir: string;
  readonly desk: BrokerDesk;
  readonly rows: JobRows;
  /** The registration token. @throws OnejobError E_SECRET */
  readonly token: () => Promise<string>;
  readonly rule: (agent: BrokerAgent, pool: PoolConfig) => Promise<Ruling>;
  /** Where the agent's program is, once it was looked at. @throws OnejobError E_AGENT_PACKAGE and the like */
  readonly program: Program;
  readonly nameOf: (slot: string) => string;
  /** Jobs that a slot has, in whatever lane. */
  readonly jobsOf: (slot: string) => readonly JobId[];
  /** Number of jobs that wait for a queue; null when nobody knows. */
  readonly counted: (queue: string) => number | null;
  /** Follows the counts until `signal` aborts. */
  readonly count: (signal: AbortSignal) => void;
  readonly check: (signal: AbortSignal, trial: Trial) => Promise<Finding[]>;
  readonly clock: Clock;
  readonly log: Log;
}

/** Where the agent's program and the owner's hooks are in a sandbox. */
export const inside = {
  program: '/usr/local/bin/buildkite-agent',
  hooks: '/etc/buildkite-agent/hooks',
  plugins: '/etc/buildkite-agent/plugins',
} as const;
/** ms between two tries to read what config names. */
const readAgain = 30_000;

export function createBuildkite(parts: BuildkiteParts): CiService {
  const { config, desk, rows, log, clock } = parts;
  const { name } = config;
  const pools = new Map(parts.pools.map((pool) => [pool.name, pool]));
  const board = createBoard();
  const standing = createStanding();
  const ends = new Map<JobId, EndRequest>();
  const held = new Map<string, string | null>();
  /** Addresses that the broker that is there is known to listen at. */
  const doors = new Set<string>();
  let changes: Change[] = [];
  let emit: (event: CiEvent) => void = () => {};
  const abort = new AbortController();
  const { signal } = abort;

  const poolOf = (slot: string): PoolConfig | undefined => pools.get(slot.slice(0, slot.lastIndexOf('/')));
  const decisions = createDecisions({
    ...{ desk, board, log, clock, poolOf, signal },
    rule: parts.rule,
    jobsOf: parts.jobsOf,
    holdTimeout: config.holdTimeout,
    bootTimeout: config.bootTimeout,
    emit: (event) => emit(event),
  });

  /** The pool as a whole: one agent that works is enough for the others to be offered. */
  function tellHolds(): void {
    for (const pool of pools.keys()) {
      const isServed = board
        .all()
        .some((agent) => agent.pool === pool && agent.phase !== 'registering' && agent.phase !== 'ending');
      const reason = standing.reason(isServed);
      if (held.get(pool) === reason) continue;
      held.set(pool, reason);
      emit({ kind: 'hold', pool, reason });
    }
  }

  function saw(agent: BrokerAgent): void {
    board.put(agent);
    rows.saw(agent);
    decisions.saw(agent);
    if (agent.phase === 'finished' && agent.agent !== null) emit({ kind: 'jobDone', agent: agent.agent });
    tellHolds();
  }

  function apply(change: Change): void {
    if (!('job' in change)) return;
    const agent = board.ofJob(change.job);
    if (change.change === 'ended') ends.set(change.job, endOf(change.result));
    if (change.change === 'settled') ends.delete(change.job);
    if (change.change === 'returned' && agent !== null) decisions.returned(agent, change.failure);
  }

  function readLater(read: () => Promise<void>): void {
    const callOff = clock.after(readAgain, () => {
      signal.removeEventListener('abort', callOff);
      void read();
    });
    signal.addEventListener('abort', callOff, { once: true });
  }

  async function readToken(): Promise<void> {
    let token: string | null = null;
    try {
      token = (await parts.token()).trim();
      standing.set('token', null);
    } catch (error) {
      standing.set('token', toFailure(error).message);
    }
    if (signal.aborted) return;
    desk.serve({ name, endpoint: config.endpoint, token });
    tellHolds();
    readLater(readToken);
  }

  async function readyProgram(): Promise<void> {
    try {
      await parts.program.ready(signal);
      standing.set('program', null);
    } catch (error) {
      if (signal.aborted) return;
      standing.set('program', toFailure(error).message);
      readLater(readyProgram);
    }
    tellHolds();
  }

  /** Whether an untrusted job needs another sandbox than the one that waits. */
  function isOther(slot: string, repository: string | null): boolean {
    const pool = poolOf(slot);
    if (pool === undefined) return true;
    return JSON.stringify(untrustedRecipe(pool.recipe, pool, repository, parts.stateDir)) !== JSON.stringify(pool.recipe);
  }

  async function endpointFor(context: AgentContext, inner: AbortSignal): Promise<string> {
    const { port } = desk;
    if (port === null) throw brokerAway();
    const address = await context.door(port, inner);
    if (!doors.has(address)) {
      await desk.door(address, inner);
      doors.add(address);
    }
    return `http://${address}:${port}/v3`;
  }

  return {
    name,
    capabilities: { binds: 'late', canCountQueue: true, standsForSlots: true, terms: 2 },

    check: parts.check,

    observe(send, outer) {
      if (outer.aborted) return;
      emit = send;
      outer.addEventListener(
        'abort',
        () => {
          emit = () => {};
          abort.abort();
          decisions.close();
        },
        { once: true },
      );
      standing.set('program', 'the agent is being looked for');
      desk.listen(name, {
        all(agents) {
          for (const left of board.replace(agents)) saw({ ...left, phase: 'gone' });
          for (const agent of agents) saw(agent);
          tellHolds();
        },
        agent: saw,
        health(health) {
          standing.health(health);
          tellHolds();
        },
        away(why) {
          doors.clear();
          standing.set('broker', why);
          tellHolds();
        },
      });
      void readToken();
      void readyProgram();
      parts.count(signal);
    },

    next(_pool, slot) {
      if (slot === null) return null;
      const taken = parts.jobsOf(slot);
      for (const agent of board.acceptedIn(slot)) {
        const ruling = decisions.of(agent.id);
        const job = agent.job?.id;
        if (job === undefined || agent.cancelled || ruling?.kind !== 'run' || taken.includes(job)) continue;
        return { job, limit: poolOf(slot)?.timeout ?? null, cold: !ruling.trusted && isOther(slot, repositoryOf(ruling)) };
      }
      return null;
    },

    offer(slot, offer: SlotOffer) {
      const pool = poolOf(slot);
      if (offer === 'gone' || pool === undefined) {
        desk.withdraw(slot);
        const taken = parts.jobsOf(slot);
        for (const agent of board.acceptedIn(slot))
          if (agent.job !== null && !taken.includes(agent.job.id))
            void decisions.refuse(agent, 'onejob was told to stop before this job had begun.', 'agent_stop');
        return;
      }
      const metaData = [`queue=${pool.queue}`, ...pool.tags];
      desk.offer({
        slot,
        pool: pool.name,
        service: name,
        name: parts.nameOf(slot),
        metaData,
        priority: pool.priority,
        open: offer === 'open',
      });
    },

    equip(recipe, pool) {
      const { folder } = parts.program;
      const config = pools.get(pool);
      const mount = (host: string, container: string): Recipe['mounts'][number] => ({
        host,
        container,
        readOnly: true,
        variable: null,
        cache: null,
      });
      const mounts = [
        ...(folder === null ? [] : [mount(`${folder}/buildkite-agent`, inside.program)]),
        ...(config?.hooks == null ? [] : [mount(config.hooks, inside.hooks)]),
        ...(config?.plugins == null ? [] : [mount(config.plugins, inside.plugins)]),
      ];
      return mounts.length === 0 ? recipe : { ...recipe, mounts: [...recipe.mounts, ...mounts] };
    },

    devicesFor: () => null,

    recipeFor(job, base) {
      const agent = board.ofJob(job);
      const pool = agent === null ? undefined : poolOf(agent.slot);
      const ruling = agent === null ? undefined : decisions.of(agent.id);
      // Nobody knows any more whether it may be trusted: then it is not.
      if (pool === undefined || (ruling?.kind === 'run' && ruling.trusted)) return null;
      return untrustedRecipe(base, pool, repositoryOf(ruling), parts.stateDir);
    },

    record: (change) => void changes.push(change),
    committed() {
      const now = changes;
      changes = [];
      for (const change of now) apply(change);
    },
    syncing: () => () => {},
    rolledBack() {
      changes = [];
    },

    async register(context, inner) {
      const agent = context.job === null ? null : board.ofJob(context.job);
      const ruling = agent === null ? undefined : decisions.of(agent.id);
      if (agent === null || ruling?.kind !== 'run' || !needsSandbox(agent)) {
        throw new OnejobError('E_JOB_GONE', `Cannot start job ${context.job}: it was cancelled, or given up, before it began.`);
      }
      const endpoint = await endpointFor(context, inner);
      const { token, job } = await desk.hand(agent.id, context.agent, ruling.secrets, inner);
      const pool = poolOf(context.slot);
      const script = agentScript({
        ...{ token, endpoint, job, name: context.name, workspace: context.workspace },
        hooks: pool?.hooks == null ? null : inside.hooks,
        plugins: pool?.plugins == null ? null : inside.plugins,
        cancelGrace: Math.max(1_000, (pool?.stopGrace ?? 35_000) - 5_000),
      });
      return { id: agent.id, script, redact: [token, ...ruling.secrets.map(({ value }) => value)], files: null };
    },

    async settle(context, _files, inner) {
      if (context.job === null) return;
      if (desk.port === null) throw brokerAway();
      const agent = board.ofJob(context.job);
      if (agent === null) return;
      await desk.end(agent.id, ends.get(context.job) ?? lost('its agent ended while onejob was not there'), inner);
    },

    deregister: async () => ({ ran: null }),
    retire: async () => null,
    blame: () => ({ code: 'E_BUG', message: 'An agent of Buildkite ended without its job.', retry: true }),
    waiting: (pool) => {
      const queue = pools.get(pool)?.queue;
      return queue === undefined ? null : parts.counted(queue);
    },
    serviceJobs: () => rows.list(),
    agentPackage: async () => null,
    forget: async () => {},
    close: (leaving) => desk.close(leaving),
  };
}

function brokerAway(): OnejobError {
  return new OnejobError('E_BROKER', 'The broker, which carries what Buildkite agents say, is not there.', {
    hint: 'It is started again by itself.',
    retry: true,
  });
}

/** What the service is told of a job whose agent did not say itself how it ended. */
function endOf(result: JobResult): EndRequest {
  switch (result.kind) {
    case 'timeout':
      return { reason: "The job took longer than the pool's `timeout`, and was ended.", signalReason: 'agent_stop' };
    case 'cancelled':
      return { reason: 'The job was cancelled.', signalReason: 'agent_stop' };
    case 'oom':
      return lost('its sandbox ran out of memory');
    case 'lost':
      return lost(result.reason);
    case 'unstartable':
      return lost(result.failure.message);
    case 'code':
      return lost(`its agent ended with exit code ${result.code} without a result`);
    case 'signal':
      return lost(`its agent was ended by ${result.signal} without a result`);
  }
}

function lost(why: string): EndRequest {
  return { reason: `This job was lost: ${why}.`, signalReason: 'process_run_error' };
}

/** Where an untrusted job is from; null while nothing is decided about it. */
function repositoryOf(ruling: Ruling | undefined): string | null {
  return ruling === undefined ? null : sourceRepository(ruling.facts);
}
