/**
 * The service's jobs that this host has or had, for people. A store that takes nothing holds up nobody who tells of them: what it
 * has missed is kept here, and written with the next one that it takes.
 */
import type { Clock } from '../../../core/clock.ts';
import type { AgentId, JobId } from '../../../core/slot.ts';
import { toFailure } from '../../../errors.ts';
import type { Log } from '../../../log.ts';
import type { Store } from '../../../store/store.ts';
import type { ServiceJob } from '../../ci-service.ts';
import { shownRepository } from '../../kit/repository.ts';
import { type GivenJob, jobFacts } from './job-facts.ts';

export interface JobRows {
  /** An agent has acquired it. */
  runs(id: JobId, agent: AgentId): void;
  /** Says of a job that this host has what was made of it, as a sentence. */
  note(job: JobId, text: string): void;
  /** Reserved for a pool, and no agent's yet. */
  reserved(job: GivenJob, pool: string): void;
  /** This host has it no more. `word`: what became of it; null: it went back to its queue. */
  left(id: JobId, word: string | null): void;
  /** Those that are not over, of managers before this one too. */
  unended(): readonly ServiceJob[];
  /** Those that are not over. */
  list(): readonly ServiceJob[];
}

/** `service`: its name in the config. */
export function createJobRows(
  service: string,
  {
    store,
    clock,
    log,
  }: {
    readonly store: Pick<Store, 'serviceJobs' | 'transaction'>;
    readonly clock: Pick<Clock, 'wall'>;
    readonly log: Pick<Log, 'info' | 'warn'>;
  },
): JobRows {
  const wall = () => clock.wall();
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
      if (!wasRefused) log.warn('failed to write job records', { service, reason: toFailure(error).message });
      return;
    }
    unwritten.clear();
    isRefused = false;
    if (wasRefused) log.info('job records can be written again', { service });
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
    runs(id, agent) {
      const before = find(id);
      if (before === null || (before.state === 'done' && before.result !== null)) return;
      save({ ...before, agent, state: 'running', result: null, startedAt: before.startedAt ?? wall(), endedAt: null }, before);
    },
    note(job, text) {
      const before = find(job);
      if (before !== null) save({ ...before, note: text.slice(0, longestNote) }, before);
    },
    reserved(job, pool) {
      const before = find(job.id);
      save(rowOf(job, pool, before, { service, now: wall() }), before);
    },
    left(id, word) {
      const before = find(id);
      if (before === null || before.state === 'done') return;
      save(
        { ...before, agent: before.startedAt === null ? null : before.agent, state: 'done', result: word, endedAt: wall() },
        before,
      );
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

function rowOf(
  job: GivenJob,
  pool: string,
  before: ServiceJob | null,
  { service, now }: { readonly service: string; readonly now: number },
): ServiceJob {
  const facts = jobFacts(job);
  return {
    id: job.id,
    service,
    pool,
    agent: null,
    title: [facts.pipeline, facts.build === null ? null : `#${facts.build}`, facts.title].filter((part) => part !== null).join(' '),
    definition: facts.pipeline,
    build: facts.build,
    repository: facts.repository === null ? null : shownRepository(facts.repository),
    branch: facts.branch,
    reason: facts.source,
    link: facts.buildUrl,
    demands: [],
    state: 'assigned',
    result: null,
    note: before?.note ?? null,
    queuedAt: before?.queuedAt ?? now,
    startedAt: before?.startedAt ?? null,
    endedAt: null,
  };
}
