import { describe, expect, test } from 'vitest';
import type { EndedFilter, HistoryQuery } from '../contract/history.ts';
import type { JobView } from '../contract/schema.ts';
import type { OutcomeSums, SumsFilter } from '../store/outcome-sums.ts';
import type { StoredOutcome } from '../store/outcomes.ts';
import { endedJobs, jobHistory, searchedAtOnce } from './history.ts';

const everything: HistoryQuery = { by: 'pool', pool: null, service: null, image: null, device: null, since: null, until: null };

function sums(value: string, jobs: number, more: Partial<OutcomeSums> = {}): OutcomeSums {
  const none = { passed: jobs, cancelled: 0, code: 0, infrastructure: 0, configuration: 0, unknown: 0 };
  return { value, jobs, ...none, waits: 0, wait: 0, runs: 0, run: 0, longest: 0, ...more };
}

function asked(query: Partial<HistoryQuery>, found: OutcomeSums[] = []) {
  const filters: SumsFilter[] = [];
  const sums = (filter: SumsFilter) => {
    filters.push(filter);
    return found;
  };
  return { rows: jobHistory({ sums }, { ...everything, ...query }), only: filters[0]?.only };
}

test('the largest share of infrastructure failures comes first, times in their order', () => {
  const found = [
    sums('20', 100, { code: 60, passed: 40 }),
    sums('9', 10, { infrastructure: 1, passed: 9, waits: 4, wait: 10, runs: 0, longest: 7 }),
    sums('10', 10),
  ];
  expect(asked({ by: 'image' }, found).rows.map(({ value }) => value)).toEqual(['9', '20', '10']);
  expect(asked({ by: 'day' }, found).rows.map(({ value }) => value)).toEqual(['9', '10', '20']);
  expect(asked({}, found).rows[0]).toMatchObject({ waitMs: 3, runMs: null, longestMs: 7 });
});

test('one image, device or service is counted by time, and by itself', () => {
  expect(asked({ by: 'day', image: 'cuda:12', pool: 'gpu' }).only).toEqual({ axis: 'image', value: 'cuda:12' });
  expect(asked({ by: 'hour', device: 'GPU-1' }).only).toEqual({ axis: 'device', value: 'GPU-1' });
  expect(asked({ by: 'service', service: 'own' }).only).toEqual({ axis: 'service', value: 'own' });
  expect(asked({ by: 'image' }).only).toBe(null);
});

test('what sums are not kept by is refused, not answered with other sums', () => {
  expect(() => asked({ by: 'device', image: 'cuda:12' })).toThrow('Cannot count jobs by device for one image');
  expect(() => asked({ by: 'day', image: 'cuda:12', device: 'GPU-1' })).toThrow('by day for one image and device');
});

describe('a search', () => {
  const count = searchedAtOnce + 500;
  const rows = Array.from({ length: count }, (_, n) => ({ job: `j${n}`, endedAt: n, seq: n }) as StoredOutcome);
  const jobOf = (id: string) =>
    rows.some(({ job }) => job === id)
      ? ({
          id,
          state: 'done',
          name: `build ${id.slice(1)}`,
          user: 'Ada',
          pool: 'gpu',
          command: ['make'],
          about: null,
        } as unknown as JobView)
      : null;
  const none = { pool: null, service: null, image: null, device: null, kind: null, failed: false, since: null, until: null };
  const search = (text: string, more: Partial<EndedFilter> = {}) => {
    const list = ({ before, limit }: { before: { seq: number } | null; limit: number }) =>
      rows
        .filter(({ seq }) => before === null || seq < before.seq)
        .reverse()
        .slice(0, limit);
    const { jobs, next } = endedJobs({ list }, jobOf, { ...none, before: null, limit: 50, text, ...more });
    return { ids: jobs.map(({ id }) => id), next };
  };

  test('finds ended jobs by what people remember of them', () => {
    expect(search('BUILD 1499')).toEqual({ ids: ['j1499'], next: '500.500' });
    expect(search('ada', { limit: 2 })).toEqual({ ids: ['j1498', 'j1499'], next: '1498.1498' });
    expect(search('no such')).toEqual({ ids: [], next: '500.500' });
  });

  test('looks at a bounded number of jobs at once, and continues where it stopped', () => {
    expect(search('build 477').ids).toEqual([]);
    expect(search('build 477', { before: '500.500' })).toEqual({ ids: ['j477'], next: null });
  });

  test('finds a job of any age by its whole id, once', () => {
    expect(search('j3').ids).toEqual(['j3']);
    expect(search('j1499').ids).toEqual(['j1499']);
  });
});
