import { mkdtempSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { handClock } from '../../../test/kit/core.ts';
import { diskUsage } from '../../runtimes/disk-usage.ts';
import { createDiskWatch, type DiskWatchParts } from './disk-watch.ts';

const GiB = 2 ** 30;

/** A watch over one agent, whose files take what `used` says, and the looks take what `takes` says. */
function watched(disk: number | null, used: () => number | null, { lane = 'busy', takes = 0 } = {}) {
  const clock = handClock();
  const said: unknown[] = [];
  const looks: number[] = [];
  const slot = { key: 'lab/1', runtime: 'docker', grace: 9, agent: lane === 'free' ? { kind: lane } : { kind: lane, agent: 'a1' } };
  const usage = async () => {
    looks.push(clock.now());
    clock.advance(takes);
    return used();
  };
  const parts = {
    clock,
    log: { info() {}, warn() {}, error() {} },
    reconciler: {
      slots: [slot],
      poolOf: () => ({ config: { disk } }),
      post: (...event: unknown[]) => said.push(event),
    },
    runtime: () => ({ usage }),
  } as unknown as DiskWatchParts;
  return { watch: createDiskWatch(parts), clock, said, looks };
}

test('a job whose files take more than its pool allows is stopped, with its grace', async () => {
  const { watch, said } = watched(GiB, () => GiB + 1);
  await watch.look();
  expect(said).toEqual([['lab/1', { kind: 'stop', agent: 'a1', why: 'disk', grace: 9 }]]);
});

test.each([
  ['takes as much as it may', GiB, GiB, 'busy'],
  ['cannot be measured', GiB, null, 'busy'],
  ['has no limit', null, 9 * GiB, 'busy'],
  ['is a standby', GiB, 9 * GiB, 'free'],
  ['is ending already', GiB, 9 * GiB, 'ending'],
])('one that %s is left alone', async (_, limit, used, lane) => {
  const { watch, said } = watched(limit, () => used, { lane });
  await watch.look();
  expect(said).toEqual([]);
});

test('looking takes a twentieth of the time at most, however long it takes', async () => {
  const { watch, clock, looks } = watched(GiB, () => 0, { takes: 60_000 });
  for (let n = 0; n < 130; n++) {
    await watch.look();
    clock.advance(10_000);
  }
  expect(looks.length).toBe(2);
});

test('files count by their blocks, not by the size that they claim, and what is gone or closed to us is unknown', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'onejob-du-'));
  const never = new AbortController().signal;
  writeFileSync(join(folder, 'real'), Buffer.alloc(2 ** 20, 1));
  writeFileSync(join(folder, 'sparse'), '');
  truncateSync(join(folder, 'sparse'), 2 ** 40);
  const used = (await diskUsage([folder], never)) ?? 0;
  expect(used).toBeGreaterThanOrEqual(2 ** 20);
  expect(used).toBeLessThan(2 ** 21);
  rmSync(folder, { recursive: true });
  expect(await diskUsage([folder], never)).toBeNull();
  expect(await diskUsage([], never)).toBeNull();
});
