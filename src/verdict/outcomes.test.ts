/** What the ends of agents and jobs say together, over a real store. */
import { expect, it } from 'vitest';
import { scratch } from '../../test/support/scratch.ts';
import { serviceJob } from '../../test/support/service-job.ts';
import type { Exit } from '../core/slot.ts';
import type { ServiceJob } from '../ports/service-job.ts';
import { openStore } from '../store/store.ts';
import { evidenceOf, serviceJobEnded } from './outcomes.ts';

/** An agent that had this job, and ended so. */
function bench(job: string | null, exit: Exit | null) {
  const dir = scratch();
  const store = openStore(dir.path);
  const write = (fn: () => void): void => store.transaction({ durable: false }, fn);
  write(() => {
    store.history.made({ agent: 'a', pool: 'p', slot: 'p/1', name: 'p-1', madeAt: 1 });
    store.history.released('a', job, 2);
    store.history.ended('a', exit, 3);
  });
  return {
    works: () => evidenceOf(store, 'a')?.works ?? null,
    reports: (outcome: ServiceJob['outcome']) =>
      write(() => {
        const about = {
          id: 'j',
          service: 'azure',
          pool: 'p',
          agent: 'a',
          state: 'done',
          result: 'word',
          outcome,
          failedIn: 'script',
          note: null,
        };
        serviceJobEnded(store, { ...about, queuedAt: 1, startedAt: 2, endedAt: 3 } as unknown as ServiceJob, 4);
      }),
    [Symbol.dispose]: () => {
      store.close();
      dir[Symbol.dispose]();
    },
  };
}

const lost: Exit = { kind: 'lost', reason: 'gone' };
const killed: Exit = { kind: 'code', code: 137 };

it('an agent that was lost speaks against its image although its job starts again, and has no outcome', () => {
  using one = bench('j', lost);
  expect(one.works()).toBe(false);
});

it('so does one that was killed, until its service says how its job ended', () => {
  using one = bench('j', killed);
  expect(one.works()).toBe(false);
  one.reports('passed');
  expect(one.works()).toBe(true);
});

it('one that had no job says nothing, nor does one that was stopped', () => {
  using idle = bench(null, killed);
  using stopped = bench('j', null);
  expect([idle.works(), stopped.works()]).toEqual([null, null]);
});

it('a failure that an earlier version wrote down stays the blame of its script', () => {
  using dir = scratch();
  const store = openStore(dir.path);
  const { failedIn: _, ...older } = serviceJob('j', { agent: 'a', state: 'done', result: 'failed', outcome: 'failed' });
  store.serviceJobs.save(older as ServiceJob, 1);
  const read = store.serviceJobs.get('j');
  if (read !== null) store.transaction({ durable: false }, () => serviceJobEnded(store, read, 4));
  expect([read?.failedIn, store.outcomes.get('j')?.verdict.kind]).toEqual(['script', 'code']);
  store.close();
});
