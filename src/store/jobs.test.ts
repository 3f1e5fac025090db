/** A job's variables may be secret: they are in the store only as long as the job may need them. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { eachScratch } from '../../test/support/each-scratch.ts';
import { newJob } from '../ci/own-queue/job.ts';
import { createOwnQueue, type OwnQueue } from '../ci/own-queue/own-queue.ts';
import type { QueuePool } from '../ci/own-queue/request.ts';
import { jobRequest } from '../contract/job.ts';
import type { Change } from '../core/slot.ts';
import { databaseName } from './directory.ts';
import { openStore, type Store } from './store.ts';

const secret = 'tr0ub4dor-and-3';
const pool = { name: 'p', timeout: null, recipe: { image: null, mounts: [] }, devices: { count: 0 } } as unknown as QueuePool;

const dir = eachScratch();
let store: Store;
let queue: OwnQueue;
beforeEach(() => {
  open();
});
afterEach(async () => {
  await queue.close();
  store.close();
});

function open(): void {
  store = openStore(join(dir.path, 'state'));
  queue = createOwnQueue({ store, pools: [pool] });
}
function commit(...changes: Change[]): void {
  store.transaction({ durable: false }, () => {
    for (const change of changes) queue.jobs.record(change);
  });
  queue.jobs.committed();
}
const submit = (more: object = {}) => {
  // Longer than a page of the database, whose parts beyond the first are kept and given up in another way.
  const env = { TOKEN: secret, LONG: `${'x'.repeat(20_000)}${secret}` };
  return queue.submit(jobRequest.parse({ command: ['echo', 'hi'], env, ...more })).id;
};
const stored = (id: string) => store.jobs.get(id)?.request;
const onDisk = () => {
  store.checkpoint();
  return readFileSync(join(store.dir, databaseName)).includes(secret);
};

it('the values of a job’s variables are deleted when it is done, the rest of its request stays', () => {
  const id = submit({ priority: 3 });
  commit({ change: 'assigned', job: id, agent: 'a' }, { change: 'started', job: id, agent: 'a' });
  commit({ change: 'ended', job: id, agent: 'a', result: { kind: 'code', code: 0 } });
  expect(stored(id)?.env.TOKEN).toBe(secret);
  expect(onDisk()).toBe(true);
  commit({ change: 'settled', job: id, agent: 'a' });
  expect(stored(id)).toMatchObject({ env: { TOKEN: '', LONG: '' }, command: ['echo', 'hi'], priority: 3 });
  expect(onDisk()).toBe(false);
});

it('they are deleted with a cancelled waiting job, and stay with one that returns to its queue', () => {
  const [cancelled, back] = [submit(), submit({ retries: 1 })];
  queue.cancel(cancelled);
  commit({ change: 'assigned', job: back, agent: 'a' }, { change: 'started', job: back, agent: 'a' });
  commit({ change: 'ended', job: back, agent: 'a', result: { kind: 'lost', reason: 'gone' } });
  expect(stored(cancelled)?.env).toEqual({ TOKEN: '', LONG: '' });
  expect(stored(back)?.env.TOKEN).toBe(secret);
});

it('a job without variables has none afterwards', () => {
  const id = submit({ env: {} });
  queue.cancel(id);
  expect(stored(id)?.env).toEqual({});
});

it('a job with a name that only an earlier version accepted is read', () => {
  const request = { ...jobRequest.parse({ command: ['true'] }), pool: 'p', array: null, name: ' ', user: '\t' };
  store.transaction({ durable: false }, () => {
    store.jobs.insert(newJob('0123456789ab', request, false, 0));
  });
  expect(store.jobs.open().map(({ request: { name, user } }) => [name, user])).toEqual([[' ', '\t']]);
});
