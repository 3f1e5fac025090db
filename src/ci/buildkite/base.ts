/**
 * What all ways to take jobs of Buildkite have in common: they hear of their agents from the broker, read what config names, hold
 * their pools while something is wrong with it, and apply what the loop has committed.
 *
 * What the broker says is the truth, and is said again whenever one of both comes back: nothing here is stored but for people.
 */
import type { BuildkiteServiceConfig, PoolConfig } from '../../config/config.ts';
import type { Clock } from '../../core/clock.ts';
import type { Change, JobId } from '../../core/slot.ts';
import { toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import type { Finding } from '../../runtimes/runtime.ts';
import { howToReplace } from '../../secrets/reference.ts';
import type { CiEvent, CiService, JobSource } from '../ci-service.ts';
import type { Trial } from '../trial.ts';
import { type Board, createBoard } from './board.ts';
import type { BrokerAgent, EndRequest, Phase } from './broker/protocol.ts';
import type { BrokerDesk } from './broker-desk.ts';
import { createComingToNothing } from './coming-to-nothing.ts';
import { endOf, whyEnding } from './ends.ts';
import { createExplaining } from './explaining.ts';
import type { JobRows } from './job-rows.ts';
import type { Program } from './mounted-program.ts';
import { createStanding, type Standing } from './standing.ts';
import { createUnheeded } from './unheeded.ts';
import { createWayIn, type WayIn } from './way-in.ts';

export interface BaseParts {
  readonly config: BuildkiteServiceConfig;
  /** Those that take jobs from here. */
  readonly pools: readonly PoolConfig[];
  readonly desk: BrokerDesk;
  readonly rows: JobRows;
  /** The registration token. @throws OnejobError E_SECRET */
  readonly token: () => Promise<string>;
  /** Where the agent's program is, once it was looked at. @throws OnejobError E_AGENT_PACKAGE and the like */
  readonly program: Program;
  /** Number of jobs that wait for a queue; null when nobody knows. */
  readonly counted: (queue: string) => number | null;
  /** Follows the counts until `signal` aborts. */
  readonly count: (signal: AbortSignal) => void;
  readonly check: (signal: AbortSignal, trial: Trial) => Promise<Finding[]>;
  readonly clock: Clock;
  readonly log: Log;
}

/** What one way does beside. */
export interface Way {
  /** An agent is as the broker says; the board has it already. */
  saw(agent: BrokerAgent): void;
  /** Committed by the loop. */
  applied?(change: Change & { readonly job: JobId }): void;
  /** The token was read anew; null: it cannot be. */
  token?(token: string | null): void;
  /** The service is listened to from now on. */
  began?(): void;
  ended(): void;
}

/** Each way is the source of its jobs itself. */
export type BuildkiteService = Required<Omit<CiService, 'jobs'>> &
  Required<Omit<JobSource, 'isStarting'>> &
  Pick<JobSource, 'isStarting'>;

export function asCiService(service: BuildkiteService): CiService {
  return { ...service, jobs: service };
}

/** Methods that are the same whichever way jobs come. */
type Common = Pick<
  BuildkiteService,
  | 'name'
  | 'check'
  | 'equip'
  | 'devicesFor'
  | 'record'
  | 'committed'
  | 'syncing'
  | 'rolledBack'
  | 'waiting'
  | 'trouble'
  | 'ending'
  | 'serviceJobs'
  | 'agentPackage'
>;

export interface Base {
  readonly common: Common;
  readonly pools: ReadonlyMap<string, PoolConfig>;
  readonly board: Board;
  readonly standing: Standing;
  readonly wayIn: WayIn;
  /** Aborted once nobody listens any more. */
  readonly signal: AbortSignal;
  poolOf(slot: string): PoolConfig | undefined;
  emit(event: CiEvent): void;
  tellHolds(): void;
  /** How the job's agent ended, as the service is to be told; undefined while the loop has not said so. */
  endOf(job: JobId): EndRequest | undefined;
  observe(send: (event: CiEvent) => void, signal: AbortSignal, way: Way): void;
}

/** ms between two tries to read what config names. */
const readAgain = 30_000;
/** An agent of these is of no use yet, or no more. */
const unserved: ReadonlySet<Phase> = new Set(['expected', 'registering', 'ending']);

const isOver: ReadonlySet<Phase> = new Set(['ending', 'gone']);

export function createBase(parts: BaseParts): Base {
  const { config, desk, rows, clock } = parts;
  const { name } = config;
  const pools = new Map(parts.pools.map((pool) => [pool.name, pool]));
  const board = createBoard();
  const standing = createStanding();
  const wayIn = createWayIn({ pools, desk, program: parts.program });
  const ends = new Map<JobId, EndRequest>();
  const held = new Map<string, string | null>();
  const nothing = createComingToNothing(clock, () => tellHolds());
  const unheeded = createUnheeded({
    clock,
    graceOf: ({ slot }) => poolOf(slot)?.stopGrace ?? 0,
    end(job, agent) {
      parts.log.warn('cancelled job ended', { job, agent });
      rows.note(job, 'The job was cancelled, and its agent did not end it: onejob did.');
      emit({ kind: 'cancel', job, agent, grace: 0 });
    },
  });
  let changes: Change[] = [];
  let emit: (event: CiEvent) => void = () => {};
  let way: Way | null = null;
  const abort = new AbortController();
  const { signal } = abort;

  const poolOf = (slot: string): PoolConfig | undefined => pools.get(slot.slice(0, slot.lastIndexOf('/')));
  const poolOfJob = (job: JobId): PoolConfig | undefined => poolOf(board.ofJob(job)?.slot ?? '');

  const explaining = createExplaining({
    ...{ desk, signal, clock, log: parts.log },
    agentOf: board.ofJob,
    wordsFor: (job, why) => whyEnding(why, poolOfJob(job)),
    note: rows.note,
  });

  /** The pool as a whole: one agent that works is enough for the others to be offered. */
  function tellHolds(): void {
    for (const pool of pools.keys()) {
      const isServed = board.all().some((agent) => agent.pool === pool && !unserved.has(agent.phase));
      const now = standing.reason(isServed);
      const reason = now?.why ?? nothing.reason(pool);
      if (held.get(pool) === reason) continue;
      held.set(pool, reason);
      emit({ kind: 'hold', pool, reason, ...(now?.beginning === true && { beginning: true }) });
    }
  }

  function saw(agent: BrokerAgent): void {
    const before = board.all().find(({ id }) => id === agent.id);
    board.put(agent);
    if (agent.phase === 'connected' || agent.phase === 'running') nothing.fine(agent.pool);
    else if (before?.phase === 'handed' && isOver.has(agent.phase) && !agent.cancelled)
      nothing.failed(agent.pool, `The agent in the sandbox of its last job (${agent.job?.id}) never called in.`);
    rows.saw(agent);
    unheeded.saw(agent);
    way?.saw(agent);
    if (agent.job !== null) explaining.saw(agent.job.id);
    // Without a record at the broker an agent can neither say nor hear anything.
    const isDone = agent.phase === 'finished' || isOver.has(agent.phase);
    const isTold = agent.phase === 'gone' && before?.phase === 'ending';
    if (isDone && !isTold && agent.agent !== null) emit({ kind: 'jobDone', agent: agent.agent });
    tellHolds();
  }

  function apply(change: Change): void {
    if (!('job' in change)) return;
    if (change.change === 'ended') ends.set(change.job, endOf(change.result, poolOfJob(change.job)));
    if (change.change === 'settled') {
      ends.delete(change.job);
      explaining.forget(change.job);
    }
    way?.applied?.(change);
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
    way?.token?.(token);
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

  return {
    ...{ pools, board, standing, wayIn, signal, tellHolds },
    poolOf,
    emit: (event) => emit(event),
    endOf: (job) => ends.get(job),

    observe(send, outer, how) {
      if (outer.aborted) return;
      emit = send;
      way = how;
      outer.addEventListener(
        'abort',
        () => {
          emit = () => {};
          abort.abort();
          nothing.close();
          unheeded.close();
          how.ended();
        },
        { once: true },
      );
      standing.set('program', 'the agent is being looked for', true);
      desk.listen(name, {
        all(agents) {
          for (const left of board.replace(agents)) saw({ ...left, phase: 'gone' });
          for (const agent of agents) saw(agent);
          tellHolds();
        },
        agent: saw,
        health(health) {
          const { why } = health;
          standing.health(
            health.kind === 'refused'
              ? { ...health, why: `${why ?? 'The token is refused.'} ${howToReplace(config.token)}.` }
              : health,
          );
          tellHolds();
        },
        away(why, beginning) {
          wayIn.forget();
          standing.set('broker', why, beginning);
          tellHolds();
        },
      });
      void readToken();
      void readyProgram();
      parts.count(signal);
      how.began?.();
    },

    common: {
      name,
      check: parts.check,
      equip: wayIn.equip,
      devicesFor: () => null,
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
      waiting(pool) {
        const queue = pools.get(pool)?.queue;
        return queue === undefined ? null : parts.counted(queue);
      },
      trouble(slot) {
        if (held.get(poolOf(slot)?.name ?? '') != null) return null;
        const agents = board.all().filter((agent) => agent.slot === slot);
        const registering = agents.find(({ phase }) => phase === 'registering');
        if (registering === undefined || agents.some(({ phase }) => !unserved.has(phase))) return null;
        // The token is not tried for one agent after the other: most of them have nothing to tell themselves.
        const reason = standing.reason(false);
        return reason === null || reason.beginning ? registering.problem : reason.why;
      },
      ending: explaining.ending,
      serviceJobs: () => rows.list(),
      agentPackage: async () => null,
    },
  };
}
