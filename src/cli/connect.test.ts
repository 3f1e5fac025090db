/** Which daemon a command speaks to. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { createFakeManager } from '../../test/support/fake-manager.ts';
import { asNobody } from '../../test/support/nobody.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { type ApiServer, startApi } from '../api/server.ts';
import { OnejobError } from '../errors.ts';
import { connect } from './connect.ts';
import { createOutput } from './output.ts';
import type { Session } from './session.ts';

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

function session(): Session {
  const { context } = testContext([], dir.path);
  return {
    context,
    output: createOutput(context, false),
    version: '0',
    flags: { config: null, stateDir: null, socket: null },
    place: async () => ({ stateDir: dir.path, socket: own(), systemSocket: system() }),
  };
}

async function chosen(): Promise<string> {
  const connection = await connect(session(), { start: false });
  connection.close();
  return connection.client.socket;
}

test('one’s own daemon goes before the system’s', async () => {
  await serve(own());
  await serve(system());
  expect(await chosen()).toBe(own());
});

test('without one’s own the system’s is used', async () => {
  await serve(system());
  expect(await chosen()).toBe(system());
});

test('a system daemon that refuses is not passed by', async () => {
  await serve(system());
  const asked = session();
  await asNobody(async () => {
    await expect(connect(asked, { start: true })).rejects.toMatchObject({ code: 'E_SOCKET_DENIED' });
  });
});

test('a system socket that nobody listens at is passed by', async () => {
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

test('a daemon that is about to close is waited for, and then is not there', async () => {
  const server = await serveEnding(() => setTimeout(() => void server.close(), 50));
  await expect(chosen()).rejects.toMatchObject({ code: 'E_DAEMON_ABSENT' });
});

test('one that goes on stopping is asked once more, and then says so', async () => {
  let asked = 0;
  await serveEnding(() => {
    asked += 1;
  });
  const ended = connect(session(), { start: false, patience: 100 });
  await expect(ended).rejects.toMatchObject({ code: 'E_DAEMON_STOPPING' });
  expect(asked).toBe(2);
});
