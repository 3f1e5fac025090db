/** Which daemon a command speaks to. */
import { chmodSync, chownSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { createFakeManager } from '../../test/support/fake-manager.ts';
import { asNobody } from '../../test/support/nobody.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import type { Client } from '../api/client.ts';
import { type ApiServer, startApi } from '../api/server.ts';
import { OnejobError } from '../base/errors.ts';
import { createOwnQueue } from '../ci/own-queue/own-queue.ts';
import type { QueuePool } from '../ci/own-queue/request.ts';
import { jobRequest } from '../contract/job.ts';
import { openStore } from '../store/store.ts';
import { connect, daemonSocket, reconnect, unreachableLeader } from './connect.ts';
import { createOutput } from './output.ts';
import type { DaemonPlace, Session } from './session.ts';

const pool = { name: 'p', timeout: null, recipe: { image: null, mounts: [] }, devices: { count: 0 } } as unknown as QueuePool;

let dir: Scratch;
let servers: ApiServer[];

beforeEach(() => {
  dir = scratch();
  servers = [];
});

afterEach(async () => {
  for (const server of servers) await server.close();
  dir[Symbol.dispose]();
});

const own = () => join(dir.path, 'own.sock');
const system = () => join(dir.path, 'system.sock');

async function serve(path: string, manager = createFakeManager()): Promise<ApiServer> {
  const server = await startApi({ manager, socket: { path, access: 'owner' }, version: '0' });
  servers.push(server);
  return server;
}

/** A daemon that takes nothing more, and still listens; `refused` is called for each that comes. */
function serveEnding(refused: () => void): Promise<ApiServer> {
  const manager = createFakeManager({ temporary: true });
  manager.hold = () => {
    refused();
    throw new OnejobError('E_DAEMON_STOPPING', 'This onejob is stopping.');
  };
  return serve(own(), manager);
}

function session(place: Partial<DaemonPlace> = {}): Session {
  const { context } = testContext([], dir.path);
  return {
    context,
    output: createOutput(context, false),
    version: '0',
    flags: {},
    remote: null,
    place: async () => ({ stateDir: dir.path, socket: own(), isSocketNamed: false, systemSocket: system(), ...place }),
  };
}

async function chosen(): Promise<string> {
  const connection = await connect(session(), { start: false });
  connection.close();
  return connection.client.socket;
}

test('the user’s own daemon is preferred to the system’s', async () => {
  await serve(own());
  await serve(system());
  expect(await chosen()).toBe(own());
});

test.each([
  ['own', own, system],
  ['the system’s', system, own],
])('a command waits for the daemon that it has lost, %s, and takes no other', async (_, lost, other) => {
  await serve(other());
  const { promise: looked, resolve } = Promise.withResolvers<void>();
  const about = session();
  let looks = 0;
  const place = async () => {
    looks += 1;
    if (looks === 2) resolve();
    return about.place();
  };
  const waiting = reconnect({ ...about, place }, { socket: lost() } as Client, {
    temporary: false,
    patience: 60_000,
    signal: new AbortController().signal,
  });
  // Once without anybody at the place.
  await Promise.race([looked, waiting]);
  await serve(lost());
  const connection = await waiting;
  connection.close();
  expect(connection.client.socket).toBe(lost());
});

test('the system’s daemon is used if the user has none', async () => {
  await serve(system());
  expect(await chosen()).toBe(system());
});

test('a system daemon that refuses the user is not replaced', async () => {
  await serve(system());
  const asked = session();
  await asNobody(async () => {
    await expect(connect(asked, { start: true })).rejects.toMatchObject({ code: 'E_SOCKET_DENIED' });
  });
});

test('a system socket without a listener is ignored', async () => {
  // The kernel answers for an ordinary file as for a socket that a killed daemon left.
  writeFileSync(system(), '');
  await expect(chosen()).rejects.toMatchObject({ code: 'E_DAEMON_ABSENT', message: expect.stringContaining(own()) });
});

test('a daemon that ends before it listens is reported, not waited for', async () => {
  const started = performance.now();
  await expect(connect(session(), { start: true })).rejects.toMatchObject({
    code: 'E_DAEMON_START',
    message: expect.stringContaining('exit code 1'),
  });
  expect(performance.now() - started).toBeLessThan(20_000);
});

test('waits for a closing daemon, which is then absent', async () => {
  const server = await serveEnding(() => setTimeout(() => void server.close(), 50));
  await expect(chosen()).rejects.toMatchObject({ code: 'E_DAEMON_ABSENT' });
});

test('asks a daemon that keeps stopping once more, and then reports it', async () => {
  let asked = 0;
  await serveEnding(() => {
    asked += 1;
  });
  const ended = connect(session(), { start: false, patience: 100 });
  await expect(ended).rejects.toMatchObject({ code: 'E_DAEMON_STOPPING' });
  expect(asked).toBe(2);
});

test('finds a daemon where it says that it listens, whatever the environment says', async () => {
  const store = openStore(dir.path);
  const elsewhere = join(dir.path, 'elsewhere.sock');
  await serve(elsewhere);
  store.listens(elsewhere);
  expect(await chosen()).toBe(elsewhere);
  store.close();
});

test('reports a leading daemon that cannot be reached at once, and starts no second one', async () => {
  const store = openStore(dir.path);
  store.listens(join(dir.path, 'gone.sock'));
  for (const start of [true, false]) {
    await expect(connect(session(), { start })).rejects.toMatchObject({
      code: 'E_DAEMON_ELSEWHERE',
      message: expect.stringContaining(`pid ${process.pid}`),
      hint: expect.stringContaining('its jobs continue'),
    });
  }
  store.close();
});

test('a daemon that has just started or closes is not reported as unreachable', async () => {
  const store = openStore(dir.path);
  const place = await session().place();
  await serve(own());
  store.listens(own());
  expect(await unreachableLeader(place)).toBeNull();
  store.listens(join(dir.path, 'gone.sock'));
  const looked = unreachableLeader(place);
  store.listens(null);
  expect(await looked).toBeNull();
  store.close();
});

test('names the socket of a daemon that listens elsewhere than requested', async () => {
  const store = openStore(dir.path);
  const elsewhere = join(dir.path, 'elsewhere.sock');
  await serve(elsewhere);
  store.listens(elsewhere);
  const asked = session({ isSocketNamed: true });
  await expect(connect(asked, { start: true })).rejects.toMatchObject({ hint: expect.stringContaining(`--socket ${elsewhere}`) });
  store.close();
});

test('the file of a killed daemon does not hide the usual socket', async () => {
  writeFileSync(join(dir.path, 'lead.json'), JSON.stringify({ pid: 1, started: '1', socket: join(dir.path, 'old.sock') }));
  await serve(own());
  expect(await chosen()).toBe(own());
});

test('sends nothing to a socket of another user', async () => {
  const seen: string[] = [];
  const fake = createServer((socket) => socket.on('data', (bytes) => seen.push(String(bytes))));
  await new Promise<void>((resolve) => fake.listen(own(), resolve));
  const asked = session();
  chownSync(own(), 65_534, 65_534);
  await expect(connect(asked, { start: true })).rejects.toMatchObject({
    code: 'E_SOCKET_FOREIGN',
    hint: expect.stringContaining('Nothing was sent'),
  });
  chownSync(own(), 0, 0);
  chownSync(dir.path, 65_534, 65_534);
  await expect(connect(asked, { start: true })).rejects.toMatchObject({ code: 'E_SOCKET_FOREIGN' });
  chownSync(dir.path, 0, 0);
  chmodSync(dir.path, 0o777);
  await expect(connect(asked, { start: true })).rejects.toMatchObject({
    code: 'E_SOCKET_FOREIGN',
    message: expect.stringContaining('every user'),
  });
  await new Promise((resolve) => fake.close(resolve));
  expect(seen).toEqual([]);
});

test('says how many jobs wait for a daemon', async () => {
  const store = openStore(dir.path);
  const queue = createOwnQueue({ store, pools: [pool] });
  for (const id of ['aaaaaaaaaaaa', 'bbbbbbbbbbbb']) queue.submit(jobRequest.parse({ id, command: ['true'] }));
  await queue.close();
  store.close();
  await expect(connect(session(), { start: false })).rejects.toMatchObject({
    code: 'E_DAEMON_ABSENT',
    message: expect.stringContaining('2 jobs are waiting'),
  });
});

test('a relay offers no socket that another user made', async () => {
  await serve(own());
  chmodSync(dir.path, 0o777);
  await expect(daemonSocket(session())).rejects.toMatchObject({ code: 'E_SOCKET_FOREIGN' });
  chmodSync(dir.path, 0o700);
  expect(await daemonSocket(session())).toBe(own());
});
