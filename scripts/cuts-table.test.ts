import { expect, test } from 'vitest';
import type { CutsRun } from '../test/cuts/results.ts';
import { cutsHead, cutsRows } from './cuts-table.ts';

const run: CutsRun = {
  date: '2026-11-30T04:00:00.000Z',
  tree: 'abc',
  engine: '29.0',
  kernel: '7.2',
  systemd: '257',
  seed: 1,
  cuts: 3,
  reboots: 1,
  pools: { build: { service: 'own queue', jobs: 10, lost: 2 } },
  violations: [],
};

test('runs on one set-up add up', () => {
  const later = {
    ...run,
    date: '2026-12-02T04:00:00.000Z',
    cuts: 4,
    pools: { ...run.pools, gitea: { service: 'Gitea', jobs: 5, lost: 0 } },
  };
  expect(cutsRows([later, run])).toEqual([
    '| 29.0 | 7.2 | 257 | 7 | 2 | build (own queue): 20, 4<br>gitea (Gitea): 5, 0 | none | 2026-12-02 |',
  ]);
});

test('each set-up has a row, with what was wrong there', () => {
  const other = { ...run, engine: '28.5', violations: ['A script ran twice.'] };
  const rows = cutsRows([run, other]);
  expect(rows[1]).toBe('| 28.5 | 7.2 | 257 | 3 | 1 | build (own queue): 10, 2 | 1 | 2026-11-30 |');
  for (const row of rows) expect(row.split('|')).toHaveLength(cutsHead.split('\n')[0]?.split('|').length ?? 0);
});

test('what was found and fixed since is told apart', () => {
  const found = { ...run, violations: ['A volume is left.'], fixed: 'It goes at the next start.' };
  expect(cutsRows([found, run])[0]).toContain('| none; 1 found and fixed |');
});
