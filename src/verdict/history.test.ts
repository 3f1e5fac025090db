import { expect, test } from 'vitest';
import type { OutcomeSums, SumsFilter } from '../store/outcomes.ts';
import { type HistoryQuery, jobHistory } from './history.ts';

const everything: HistoryQuery = { by: 'pool', pool: null, service: null, image: null, device: null, since: null, until: null };

function sums(value: string, jobs: number, more: Partial<OutcomeSums> = {}): OutcomeSums {
  const none = { passed: jobs, cancelled: 0, code: 0, infrastructure: 0, unknown: 0 };
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
