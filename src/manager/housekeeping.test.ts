import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setImmediate as turn } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { handClock } from '../../test/kit/core.ts';
import { scratch } from '../../test/support/scratch.ts';
import { openStore } from '../store/store.ts';
import { keepHouse } from './housekeeping.ts';

test('reports a secret that expires soon, or is gone, while the daemon runs', async () => {
  using dir = scratch();
  const file = join(dir.path, 'pat');
  writeFileSync(file, 'secret', { mode: 0o600 });
  const store = openStore(join(dir.path, 'state'));
  const clock = handClock(Date.UTC(2030, 0, 1));
  const token = { kind: 'file', path: file, expires: Date.UTC(2030, 0, 31) } as const;
  const house = await keepHouse({
    clock,
    log: { info() {}, warn() {}, error() {} },
    store,
    queue: { prune: async () => {} },
    config: { keepJobs: 1_000, origins: new Set(), secrets: [['services.azure.token', token]] },
  });
  expect(house.problems).toEqual([]);
  clock.advance(20 * 86_400_000);
  await expect.poll(() => house.problems.join()).toMatch(/services\.azure\.token: It expires on 2030-01-31, in 10 days\./);
  rmSync(file);
  expect((await house.findings()).map(({ message }) => message).join()).toContain('does not exist');
  house.close();
  store.close();
});

test('tidies caches once an hour until it is closed, also after a failure', async () => {
  using dir = scratch();
  const store = openStore(join(dir.path, 'state'));
  const clock = handClock();
  const warned: unknown[] = [];
  let times = 0;
  const house = await keepHouse({
    clock,
    log: { info() {}, warn: (event) => void warned.push(event), error() {} },
    store,
    queue: { prune: async () => {} },
    config: { keepJobs: 1_000, origins: new Set(), secrets: [] },
    caches: {
      tidy: async () => {
        times += 1;
        if (times === 1) throw new Error('the disk is away');
      },
    },
  });
  for (const expected of [1, 2]) {
    clock.advance(3_600_000);
    await turn();
    expect(times).toBe(expected);
  }
  expect(warned).toEqual(['housekeeping failed']);
  house.close();
  expect(clock.next()).toBeNull();
  store.close();
});
