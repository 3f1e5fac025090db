import { existsSync, mkdirSync, readdirSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { eachScratch } from '../../../test/support/each-scratch.ts';
import { serviceJob } from '../../../test/support/service-job.ts';
import { openStore, type Store } from '../../store/store.ts';
import { createOwnQueue, type OwnQueue } from './own-queue.ts';

const dir = eachScratch();
let store: Store;
let queue: OwnQueue;
/** Turns of the event loop in which a commit was made. */
let turns: number[];
let turn: number;
let ticking: NodeJS.Immediate;

beforeEach(() => {
  store = openStore(join(dir.path, 'state'));
  mkdirSync(join(store.dir, 'logs'), { recursive: true });
  [turns, turn] = [[], 0];
  const tick = () => {
    turn += 1;
    ticking = setImmediate(tick);
  };
  ticking = setImmediate(tick);
  const watched: Store = {
    ...store,
    transaction(options, fn) {
      turns.push(turn);
      return store.transaction(options, fn);
    },
  };
  queue = createOwnQueue({ store: watched, pools: [] });
});
afterEach(async () => {
  clearImmediate(ticking);
  await queue.close();
  store.close();
});

const logOf = (agent: string) => join(store.dir, 'logs', `${agent}.log`);
function oldLog(agent: string, at: number): string {
  const path = logOf(agent);
  writeFileSync(path, '');
  utimesSync(path, at / 1000, at / 1000);
  return path;
}

it('lets other work run between small pieces of what it deletes', async () => {
  const agents = Array.from({ length: 950 }, (_, at) => `a${at}`);
  store.transaction({ durable: false }, () => {
    for (const agent of agents) {
      store.history.made({ agent, pool: 'p', slot: 'p/1', name: 'x', madeAt: 1 });
      store.history.ended(agent, null, 2);
    }
  });
  writeFileSync(logOf('a7'), '');
  await queue.prune(1_000_000, 1);
  expect(store.history.endedBefore(1_000_000, 1)).toEqual([]);
  expect(existsSync(logOf('a7'))).toBe(false);
  expect(turns.length).toBeGreaterThanOrEqual(9);
  expect(new Set(turns.slice(0, 9)).size).toBe(9);
});

it('deletes the rest when an agent’s own log cannot be deleted', async () => {
  store.transaction({ durable: false }, () => {
    for (const agent of ['a1', 'a2']) {
      store.history.made({ agent, pool: 'p', slot: 'p/1', name: 'x', madeAt: 1 });
      store.history.ended(agent, null, 2);
    }
    store.serviceJobs.save(serviceJob('gone'), 1);
  });
  // A folder is not deleted as a file.
  mkdirSync(join(store.dir, 'diag', 'a1.tar'), { recursive: true });
  await queue.prune(1_000_000, 1).catch(() => {});
  expect([store.history.get('a1'), store.history.get('a2'), store.serviceJobs.get('gone')]).toEqual([null, null, null]);
});

it('looks through the folder of logs at the start, and then once an hour', async () => {
  const start = Date.now();
  const first = oldLog('lost-1', start - 10_000);
  await queue.prune(start, 5_000);
  expect(existsSync(first)).toBe(false);
  const second = oldLog('lost-2', start - 10_000);
  await queue.prune(start + 60_000, 5_000);
  expect(existsSync(second)).toBe(true);
  await queue.prune(start + 61 * 60_000, 5_000);
  expect(existsSync(second)).toBe(false);
});

const [day, now] = [86_400_000, 1_800_000_000_000];
const diag = () => join(store.dir, 'diag');
function writeDiag(name: string, at: number): void {
  mkdirSync(diag(), { recursive: true });
  writeFileSync(join(diag(), name), 'x');
  utimesSync(join(diag(), name), at / 1000, at / 1000);
}

it("deletes jobs of services last seen, and agents' own logs written, before the kept time", async () => {
  store.transaction({ durable: false }, () => {
    store.serviceJobs.save(serviceJob('azure-1'), now - 8 * day);
    store.serviceJobs.save(serviceJob('azure-2'), now - 6 * day);
  });
  writeDiag('old.tar', now - 8 * day);
  writeDiag('torn.tar.part', now - 8 * day);
  writeDiag('new.tar', now - 6 * day);
  await queue.prune(now, 7 * day);
  expect(store.serviceJobs.list(10).map(({ id }) => id)).toEqual(['azure-2']);
  expect(readdirSync(diag())).toEqual(['new.tar']);
});

it("scans the folder of agents' own logs once an hour, even if the clock is set back", async () => {
  await queue.prune(now, day);
  writeDiag('late.tar', now - 2 * day);
  await queue.prune(now + 60_000, day);
  expect(readdirSync(diag())).toEqual(['late.tar']);
  await queue.prune(now - 2 * 60 * 60_000, day);
  expect(readdirSync(diag())).toEqual([]);
});
