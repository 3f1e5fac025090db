/**
 * The service's jobs that this host has or had, for people. A store that takes nothing holds up nobody who tells of them: what it
 * has missed is kept here, and written with the next one that it takes.
 */
import type { JobId } from '../../core/slot.ts';
import { toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import type { Store } from '../../store/store.ts';
import type { ServiceJob } from '../ci-service.ts';
import type { BrokerAgent, Finished, GivenJob } from './broker/protocol.ts';
import { jobFacts } from './job-facts.ts';
import { shownRepository } from './repository.ts';

export interface JobRowsParts {
  /** Name of the service in the config. */
  readonly service: string;
  readonly store: Pick<Store, 'serviceJobs' | 'transaction'>;
  /** Wall clock, ms since the epoch. */
  readonly wall: () => number;
  readonly log: Pick<Log, 'info' | 'warn'>;
}

export interface JobRows {
  saw(agent: BrokerAgent): void;
  /** Says of a job that this host has what was made of it, as a sentence. */
  note(job: JobId, text: string): void;
  /** Reserved for a pool, and no agent's yet. */
  reserved(job: GivenJob, pool: string): void;
  /** It never got an agent. `word`: what became of it; null: it went back to its queue. */
  left(id: JobId, word: string | null): void;
  /** Those that are not over, of managers before this one too. */
  unended(): readonly ServiceJob[];
  /** Those that are not over. */
  list(): readonly ServiceJob[];
}

export function createJobRows({ service, store, wall, log }: JobRowsParts): JobRows {
  const open = new Map<string, ServiceJob>();
  /** The store has not taken these, or an older state of them. */
  const unwritten = new Map<string, ServiceJob>();

  let isRefused = false;

  const write = (): void => {
    const rows = [...unwritten.values()];
    const wasRefused = isRefused;
    try {
      store.transaction({ durable: false }, () => {
        for (const row of rows) store.serviceJobs.save(row, wall());
      });
    } catch (error) {
      isRefused = true;
      if (!wasRefused) log.warn('jobs are not written down', { service, reason: toFailure(error).message });
      return;
    }
    unwritten.clear();
    isRefused = false;
    if (wasRefused) log.info('jobs are written down again', { service });
  };
  const save = (row: ServiceJob, before: ServiceJob | null): void => {
    if (row.state === 'done') open.delete(row.id);
    else open.set(row.id, row);
    if (JSON.stringify(row) === JSON.stringify(before) && unwritten.size === 0) return;
    unwritten.set(row.id, row);
    write();
  };
  const find = (id: JobId): ServiceJob | null => open.get(id) ?? unwritten.get(id) ?? store.serviceJobs.get(id);

  return {
    saw(agent) {
      const { job } = agent;
      // Until the service has answered its agent it may be another's.
      if (job === null || (agent.kind === 'carried' && (agent.phase === 'idle' || agent.phase === 'accepting'))) return;
      const before = find(job.id);
      // One that was over without a result may come back: the service took it away before it began.
      const isLeft = agent.phase === 'ending' || agent.phase === 'gone';
      if (before?.state === 'done' && (before.result !== null || isLeft)) return;
      save(rowOf(agent, before, { service, now: wall() }), before);
    },
    note(job, text) {
      const before = find(job);
      if (before !== null) save({ ...before, note: text.slice(0, longestNote) }, before);
    },
    reserved(job, pool) {
      const before = find(job.id);
      const now = wall();
      const about = { job, pool, phase: 'accepted', agent: null, finished: null, since: now } as const;
      save(rowOf(about, before, { service, now }), before);
    },
    left(id, word) {
      const before = find(id);
      if (before === null || before.state === 'done') return;
      save({ ...before, agent: null, state: 'done', result: word, endedAt: wall() }, before);
    },
    unended() {
      const written = store.serviceJobs.list(mostUnended).filter((row) => row.service === service && !unwritten.has(row.id));
      return [...written, ...unwritten.values()].filter(({ state }) => state !== 'done');
    },
    list: () => [...open.values()],
  };
}

/** Characters of a note that are kept. */
const longestNote = 500;

/** Rows that are looked through for those that are not over; the newest come first. */
const mostUnended = 1_000;

type RowOf = Pick<BrokerAgent, 'job' | 'pool' | 'agent' | 'phase' | 'finished' | 'since'>;

function rowOf(agent: RowOf, before: ServiceJob | null, { service, now }: { service: string; now: number }): ServiceJob {
  const { job, phase, finished } = agent;
  const facts = jobFacts(job ?? { id: '', env: {} });
  const isOver = phase === 'finished' || phase === 'gone';
  const hasRun = phase === 'running' || phase === 'finished';
  return {
    id: job?.id ?? '',
    service,
    pool: agent.pool,
    agent: agent.agent,
    title: [facts.pipeline, facts.build === null ? null : `#${facts.build}`, facts.title].filter((part) => part !== null).join(' '),
    definition: facts.pipeline,
    build: facts.build,
    repository: facts.repository === null ? null : shownRepository(facts.repository),
    branch: facts.branch,
    reason: facts.source,
    link: facts.buildUrl,
    demands: [],
    state: isOver ? 'done' : hasRun ? 'running' : 'assigned',
    result: isOver ? (finished === null ? null : wordOf(finished)) : null,
    note: before?.note ?? null,
    queuedAt: before?.queuedAt ?? agent.since,
    startedAt: before?.startedAt ?? (hasRun ? now : null),
    endedAt: isOver ? now : null,
  };
}

/** How it ended, in a word or two. */
export function wordOf({ exitStatus, signal, signalReason }: Finished): string {
  if (signalReason === 'agent_refused') return 'refused';
  if (signalReason === 'cancel') return 'cancelled';
  if (signalReason === 'agent_stop') return 'stopped';
  if (signalReason !== null) return `failed (${signalReason})`;
  if (signal !== null) return `failed (${signal})`;
  return exitStatus === '0' ? 'passed' : `failed (exit ${exitStatus})`;
}
