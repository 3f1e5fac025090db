/** For tests: the Stacks API in memory. What it answers is what the service answers, as `stacks.test.ts` holds it against the stand-in. */

import { OnejobError } from '../../src/base/errors.ts';
import type { ScheduledJob, Stacks } from '../../src/ci/buildkite/stacks/stacks.ts';
import type { JobId } from '../../src/core/slot.ts';

export interface FakeJob extends ScheduledJob {
  readonly env: Readonly<Record<string, string>>;
  state: string;
  detail: string | null;
  readonly notes: string[];
}

export interface FakeStacks extends Stacks {
  readonly jobs: Map<JobId, FakeJob>;
  add(id: JobId, env: Readonly<Record<string, string>>, more?: Partial<Pick<FakeJob, 'rules' | 'priority' | 'state'>>): FakeJob;
  readonly known: Set<string>;
  /** One for each call, such as `reserve job-1 120`. */
  readonly calls: string[];
  paused: boolean;
  /** Thrown instead of an answer; null: it answers. */
  failing: OnejobError | null;
  /** It answers a question for waiting jobs with 403. */
  refusesLists: boolean;
  /** The next reservation is made, and its answer lost. */
  losesAnswer: boolean;
}

export function fakeStacks(): FakeStacks {
  const jobs = new Map<JobId, FakeJob>();
  const known = new Set<string>();
  const said = (line: string): void => {
    stacks.calls.push(line);
    if (stacks.failing !== null) throw stacks.failing;
  };
  const stacks: FakeStacks = {
    jobs,
    known,
    calls: [],
    paused: false,
    failing: null,
    refusesLists: false,
    losesAnswer: false,
    add(id, env, more = {}) {
      const job = { id, env, priority: 0, rules: ['queue=default'], state: 'scheduled', detail: null, notes: [], ...more };
      jobs.set(id, job);
      return job;
    },
    async register(stack, queue) {
      said(`register ${queue}`);
      known.add(stack);
      return `id of ${stack}`;
    },
    async deregister(stack) {
      said('deregister');
      known.delete(stack);
    },
    async scheduled(stack, _queue, { limit, after }) {
      said('list');
      if (!known.has(stack)) throw new OnejobError('E_CI_DENIED', 'Cannot list: answered 404.');
      if (stacks.refusesLists) throw new OnejobError('E_CI_DENIED', 'Cannot list: answered 403.');
      const waiting = [...jobs.values()].filter(({ state }) => state === 'scheduled');
      const from = after === null ? 0 : Number(after);
      const next = from + limit < waiting.length ? String(from + limit) : null;
      return { jobs: waiting.slice(from, from + limit), odd: 0, next, paused: stacks.paused, wait: 0 };
    },
    async reserve(_stack, ids, seconds) {
      said(`reserve ${ids.join(' ')} ${seconds}`);
      const ours = ids.filter((id) => ['scheduled', 'reserved'].includes(jobs.get(id)?.state ?? ''));
      for (const id of ours) Object.assign(jobs.get(id) ?? {}, { state: seconds === 1 ? 'scheduled' : 'reserved' });
      if (stacks.losesAnswer) {
        stacks.losesAnswer = false;
        throw new OnejobError('E_CI_UNREACHABLE', 'Cannot reserve jobs: the connection ended.', { retry: true });
      }
      return new Set(ours);
    },
    async show(_stack, id) {
      said(`show ${id}`);
      const job = jobs.get(id);
      return job === undefined ? null : { id, env: job.env };
    },
    async states(_stack, ids) {
      said(`states ${ids.join(' ')}`);
      return new Map(ids.flatMap((id) => (jobs.has(id) ? [[id, jobs.get(id)?.state ?? ''] as const] : [])));
    },
    async token(_stack, id) {
      said(`token ${id}`);
      return jobs.get(id)?.state === 'reserved' ? `bkjat_${id}` : null;
    },
    async finish(_stack, id, detail) {
      said(`finish ${id}`);
      Object.assign(jobs.get(id) ?? {}, { state: 'finished', detail });
      return true;
    },
    async notify(_stack, notes) {
      for (const { job, detail } of notes) jobs.get(job)?.notes.push(detail);
    },
  };
  return stacks;
}
