/** The service's jobs that this host has or had, for people. */
import type { AgentId, JobId } from '../../../core/slot.ts';
import type { ServiceJob } from '../../../store/service-jobs.ts';
import { shownRepository } from '../../kit/repository.ts';
import { createRowWriter, type RowWriterParts } from '../../kit/row-writer.ts';
import { type GivenJob, jobFacts } from './job-facts.ts';
import type { JobEnd } from './outcome.ts';

export type JobRows = ReturnType<typeof createJobRows>;

/** `service`: its name in the config. */
export function createJobRows(service: string, parts: RowWriterParts) {
  const { store, clock } = parts;
  const writer = createRowWriter(service, parts);
  const { get: find, save } = writer;

  return {
    /** An agent has it, or had it. `since`: wall clock, ms. */
    runs(id: JobId, agent: AgentId, since = clock.wall()): void {
      const before = find(id);
      if (before === null || (before.state === 'done' && before.result !== null)) return;
      save({
        ...before,
        agent,
        state: 'running',
        result: null,
        outcome: null,
        startedAt: before.startedAt ?? since,
        endedAt: null,
      });
    },
    /** Writes a sentence about a job of this host. */
    note(job: JobId, text: string): void {
      const before = find(job);
      if (before !== null) save({ ...before, note: text.slice(0, longestNote) });
    },
    /** Reserved for a pool, and no agent has it yet. */
    reserved(job: GivenJob, pool: string): void {
      save(rowOf(service, job, pool, find(job.id), clock.wall()));
    },
    /** This host has it no more. `end`: how it ended; null: it went back to its queue. */
    left(id: JobId, end: JobEnd | null): void {
      const before = find(id);
      if (before === null || before.state === 'done') return;
      const agent = before.startedAt === null ? null : before.agent;
      save({ ...before, agent, state: 'done', result: end?.word ?? null, outcome: end?.outcome ?? null, endedAt: clock.wall() });
    },
    /** Those that are not over, also those of earlier managers. */
    unended(): readonly ServiceJob[] {
      const written = store.serviceJobs.list(mostUnended).filter((row) => row.service === service && !writer.unwritten.has(row.id));
      return [...written, ...writer.unwritten.values()].filter(({ state }) => state !== 'done');
    },
    list: (): readonly ServiceJob[] => [...writer.open.values()],
  };
}

/** Characters of a note that are kept. */
const longestNote = 500;

/** Rows that are searched for unfinished ones, newest first. */
const mostUnended = 1_000;

function rowOf(service: string, job: GivenJob, pool: string, before: ServiceJob | null, now: number): ServiceJob {
  const facts = jobFacts(job);
  const { pipeline, build, repository } = facts;
  return {
    ...{ id: job.id, service, pool, agent: null },
    title: [pipeline, build === null ? null : `#${build}`, facts.title].filter((part) => part !== null).join(' '),
    ...{ definition: pipeline, build, repository: repository === null ? null : shownRepository(repository) },
    ...{
      branch: facts.branch,
      reason: facts.source,
      link: facts.buildUrl,
      demands: [],
      state: 'assigned',
      result: null,
      outcome: null,
    },
    ...{ note: before?.note ?? null, queuedAt: before?.queuedAt ?? now, startedAt: before?.startedAt ?? null, endedAt: null },
  };
}
