import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { handClock } from '../../test/kit/core.ts';
import { eachScratch } from '../../test/support/each-scratch.ts';
import { createOwnQueue } from '../ci/own-queue/own-queue.ts';
import { emptySlot } from '../core/slot.ts';
import { createLogFolder } from '../logs/log-file.ts';
import { filesOf } from '../logs/parts.ts';
import { openStore, type Store } from '../store/store.ts';
import { createPruneJobs } from './housekeeping.ts';

const dir = eachScratch();
let store: Store;
beforeEach(() => {
  store = openStore(join(dir.path, 'state'));
  for (const folder of ['logs', 'artifacts']) mkdirSync(join(store.dir, folder), { recursive: true });
});
afterEach(() => store.close());

const hour = 3_600_000;

test('keeps the log of an agent that has ended and is still in a slot, however short the time', async () => {
  const clock = handClock(Date.now() + hour);
  const queue = createOwnQueue({ store, pools: [] });
  const logDir = join(store.dir, 'logs');
  const files = (agent: string) => [...filesOf(join(logDir, `${agent}.log`)), join(store.dir, 'diag', `${agent}.tar`)];
  mkdirSync(join(store.dir, 'diag'));
  const leaving = Array.from({ length: 150 }, (_, at) => `leaving${at}`);
  store.transaction({ durable: false }, () => {
    for (const agent of [...leaving, 'over']) {
      store.history.made({ agent, pool: 'p', slot: 'p/1', name: 'p.1', madeAt: 1 });
      store.history.ended(agent, { kind: 'code', code: 0 }, agent === 'over' ? 3 : 2);
    }
    const place = emptySlot({ key: 'p/1', runtime: 'process', grace: 1 });
    store.slots.save({ ...place, leaving: leaving.map((agent) => ({ agent, job: null, exit: null })) });
  });
  for (const file of [...files('leaving0'), ...files('over')]) writeFileSync(file, 'x');
  const prune = createPruneJobs({ store, queue, clock, logs: createLogFolder(logDir) });
  expect(await prune({ olderThan: 0, dryRun: true })).toMatchObject({ agents: 1, bytes: files('').length * 4_096 });
  expect(await prune({ olderThan: 0, dryRun: false })).toMatchObject({ agents: 1 });
  expect(files('over').filter((file) => existsSync(file))).toEqual([]);
  expect(files('leaving0').filter((file) => !existsSync(file))).toEqual([]);
  expect(store.history.get('leaving0')).not.toBeNull();
  store.slots.remove('p/1');
  expect(await prune({ olderThan: 0, dryRun: false })).toMatchObject({ agents: 150 });
  expect(files('leaving0').filter((file) => existsSync(file))).toEqual([]);
  await queue.close();
});

test('removes what ended long enough ago with every file of its log, says first what that would be, and nothing else', async () => {
  const clock = handClock(Date.now());
  const queue = createOwnQueue({ store, pools: [] });
  const logDir = join(store.dir, 'logs');
  const log = (agent: string) => join(logDir, `${agent}.log`);
  for (const [agent, age] of [
    ['old', 3],
    ['young', 1],
  ] as const) {
    const at = clock.wall() - age * hour;
    store.history.made({ agent, pool: 'p', slot: 'p/1', name: 'p.1', madeAt: at });
    store.history.ended(agent, { kind: 'code', code: 0 }, at);
    for (const file of filesOf(log(agent))) writeFileSync(file, 'x'.repeat(5_000));
  }
  store.history.made({ agent: 'busy', pool: 'p', slot: 'p/2', name: 'p.2', madeAt: 0 });
  writeFileSync(log('busy'), 'x');
  const prune = createPruneJobs({ store, queue, clock, logs: createLogFolder(logDir) });
  const found = await prune({ olderThan: 2 * hour, dryRun: true });
  expect(found).toEqual({ jobs: 0, agents: 1, bytes: filesOf('').length * 8_192, dryRun: true });
  expect(existsSync(log('old'))).toBe(true);
  expect(await prune({ olderThan: 2 * hour, dryRun: false })).toEqual({ ...found, dryRun: false });
  expect(filesOf(log('old')).filter((file) => existsSync(file))).toEqual([]);
  expect(filesOf(log('young')).every((file) => existsSync(file))).toBe(true);
  expect(existsSync(log('busy'))).toBe(true);
  expect(await prune({ olderThan: 2 * hour, dryRun: false })).toMatchObject({ agents: 0, bytes: 0 });
  await queue.close();
});
