/** Server-sent events over a real socket; their order is set by hand. */
import { once } from 'node:events';
import http from 'node:http';
import { connect } from 'node:net';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { handClock } from '../../test/kit/core.ts';
import { createFakeManager, type FakeManager } from '../../test/support/fake-manager.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { createChanges } from '../contract/changes.ts';
import { type EventName, eventViews } from '../contract/schema.ts';
import { type ApiServer, startApi } from './server.ts';

let dir: Scratch;
let manager: FakeManager;
let server: ApiServer;
let path: string;
let bugs: string[];
const clock = handClock();

const start = async () => {
  bugs = [];
  const onBug = (error: Error, route: string) => void bugs.push(`${route}: ${error.message}`);
  server = await startApi({ manager, socket: { path, access: 'owner' }, version: '1.0.0', clock, onBug });
};

beforeEach(async () => {
  dir = scratch();
  path = join(dir.path, 'onejob.sock');
  manager = createFakeManager();
  await start();
});

afterEach(async () => {
  await server.close();
  await manager.end();
  dir[Symbol.dispose]();
  expect(clock.next()).toBeNull();
});

interface Told {
  readonly id: string;
  readonly name: string;
  readonly data: unknown;
}

/** A client; `next` waits for so many events. */
async function listen(last: string | null = null) {
  const headers = last === null ? {} : { 'last-event-id': last };
  const request = http.get({ socketPath: path, path: '/v1/events', headers });
  const [response] = (await once(request, 'response')) as [http.IncomingMessage];
  response.on('error', () => {});
  const lines = createInterface({ input: response })[Symbol.asyncIterator]();
  const next = async (): Promise<Told> => {
    const fields: Record<string, string> = {};
    for (;;) {
      const { value, done } = await lines.next();
      if (done) throw new Error('the stream has ended');
      const [, field = '', text = ''] = /^(\w+): (.*)$/.exec(value) ?? [];
      if (field !== '') fields[field] = text;
      else if (fields.event !== undefined) break;
    }
    const data = eventViews[fields.event as EventName].parse(JSON.parse(fields.data ?? ''));
    return { id: fields.id ?? '', name: fields.event ?? '', data };
  };
  return { response, next, leave: () => request.destroy() };
}

const slot = (n: number) => ({ name: 'slot', data: { pool: `s/${n}`, key: `s/${n}`, slot: null } });
const mark = (...numbers: number[]) => numbers.forEach((n) => void manager.changes.mark(`slot s/${n}`));

test('a client begins with a reset, and hears of what changes', async () => {
  const client = await listen();
  expect(client.response.headers).toMatchObject({ 'content-type': 'text/event-stream', 'cache-control': 'no-store' });
  expect(await client.next()).toMatchObject({ name: 'reset', data: { reason: 'new' } });
  mark(1, 2, 1);
  expect([await client.next(), await client.next()]).toMatchObject([slot(1), slot(2)]);
  const job = manager.submit({ command: ['true'], pool: null, env: {}, priority: 0 } as never);
  expect(await client.next()).toMatchObject({ name: 'job', data: { id: job.id } });
  client.leave();
});

test('a client that comes back gets what it has missed, and nothing else', async () => {
  const first = await listen();
  await first.next();
  mark(1, 2);
  const { id } = await first.next();
  first.leave();
  mark(3, 3);
  const again = await listen(id);
  expect([await again.next(), await again.next()]).toMatchObject([slot(2), slot(3)]);
  again.leave();
});

test('a client of another daemon, one that has missed too much, and one that makes up an id begin anew', async () => {
  manager.changes = Object.assign(createChanges({ size: 4 }), { view: manager.changes.view });
  await server.close();
  await start();
  const first = await listen();
  const { id } = await first.next();
  first.leave();
  mark(1, 2, 3, 4, 5);
  const [epoch] = id.split('-');
  const reasons = [];
  for (const last of [id, 'aaaa-1', `${epoch}-99`, `${epoch}-x`, `${epoch}--1`, 'nonsense']) {
    const client = await listen(last);
    reasons.push((await client.next()).data);
    client.leave();
  }
  const [missed, restarted] = [{ reason: 'missed' }, { reason: 'restarted' }];
  expect(reasons).toEqual([missed, restarted, missed, restarted, restarted, restarted]);
});

test('a client that never reads is cut off, and nobody else waits for it', async () => {
  const mute = connect(path);
  mute.pause();
  mute.write('GET /v1/events HTTP/1.1\r\nhost: x\r\n\r\n');
  const client = await listen();
  await client.next();
  // Many more bytes than its connection holds.
  for (let round = 0; round < 400; round += 1) {
    for (let n = 0; n < 20; n += 1) mark(n);
    for (let n = 0; n < 20; n += 1) await client.next();
  }
  const closed = once(mute, 'close');
  clock.advance(15_000);
  clock.advance(15_000);
  mute.resume();
  await closed;
  mark(7);
  expect(await client.next()).toMatchObject(slot(7));
  client.leave();
});

test('fifty clients hear the same, from one view each time', async () => {
  let views = 0;
  const { view } = manager.changes;
  manager.changes.view = (subject) => {
    views += 1;
    return view(subject);
  };
  const clients = await Promise.all(Array.from({ length: 50 }, () => listen()));
  await Promise.all(clients.map((client) => client.next()));
  mark(1, 2);
  const heard = await Promise.all(clients.map(async (client) => [await client.next(), await client.next()]));
  for (const one of heard) expect(one).toMatchObject([slot(1), slot(2)]);
  expect(views).toBe(2);
  for (const client of clients) client.leave();
});

test('what cannot be shown makes clients read again, and is a bug that is told once', async () => {
  const { view } = manager.changes;
  manager.changes.view = (subject) => {
    if (subject === 'slot s/2') throw new Error('a bad row');
    return view(subject);
  };
  const clients = [await listen(), await listen()];
  for (const client of clients) await client.next();
  mark(1, 2, 3);
  for (const client of clients) {
    expect(await client.next()).toMatchObject(slot(1));
    expect(await client.next()).toMatchObject({ name: 'reset', data: { reason: 'missed' } });
  }
  mark(2);
  for (const client of clients) expect(await client.next()).toMatchObject({ name: 'reset' });
  mark(4);
  for (const client of clients) expect(await client.next()).toMatchObject(slot(4));
  expect(bugs).toEqual(['GET /v1/events: a bad row']);
  for (const client of clients) client.leave();
});

test('a stream ends with its server, and its timers with its last client', async () => {
  const client = await listen();
  await client.next();
  expect(clock.next()).not.toBeNull();
  const ended = once(client.response, 'end');
  await server.close();
  await ended;
  expect(clock.next()).toBeNull();
});
