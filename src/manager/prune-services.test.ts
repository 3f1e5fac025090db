import { mkdirSync, readdirSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { serviceJob } from '../../test/support/service-job.ts';
import { openStore, type Store } from '../store/store.ts';
import { createPruneServices } from './housekeeping.ts';

const [day, now] = [86_400_000, 1_800_000_000_000];
let dir: Scratch;
let store: Store;
let logs: string;
beforeEach(() => {
  dir = scratch();
  store = openStore(dir.path);
  logs = join(store.dir, 'diag');
});
afterEach(() => {
  store.close();
  dir[Symbol.dispose]();
});

function write(name: string, at: number): void {
  mkdirSync(logs, { recursive: true });
  writeFileSync(join(logs, name), 'x');
  utimesSync(join(logs, name), at / 1000, at / 1000);
}

test('jobs last seen, and logs written, before the kept time are deleted', async () => {
  store.transaction({ durable: false }, () => {
    store.serviceJobs.save(serviceJob('azure-1'), now - 8 * day);
    store.serviceJobs.save(serviceJob('azure-2'), now - 6 * day);
  });
  write('old.tar', now - 8 * day);
  write('torn.tar.part', now - 8 * day);
  write('new.tar', now - 6 * day);
  const prune = createPruneServices(store);
  await prune(now, 7 * day);
  expect(store.serviceJobs.list(10).map(({ id }) => id)).toEqual(['azure-2']);
  expect(readdirSync(logs)).toEqual(['new.tar']);
});

test('the folder is scanned once an hour, even if the clock is set back', async () => {
  const prune = createPruneServices(store);
  await prune(now, day);
  write('late.tar', now - 2 * day);
  await prune(now + 60_000, day);
  expect(readdirSync(logs)).toEqual(['late.tar']);
  await prune(now - 2 * 60 * 60_000, day);
  expect(readdirSync(logs)).toEqual([]);
});
