/** What clients without a login, or with bad manners, can do to the API over TCP. Real sockets. */
import { once } from 'node:events';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import tls from 'node:tls';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { handClock } from '../../test/kit/core.ts';
import { authorize, logIn } from '../../test/support/browser-login.ts';
import { createFakeManager, type FakeManager } from '../../test/support/fake-manager.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { createAuthority } from '../../test/support/tls-front.ts';
import type { ApiConfig } from '../config/config.ts';
import { jobRequest } from '../contract/job.ts';
import { type Client, createClient } from './client.ts';
import { type ApiServer, startApi } from './server.ts';
import { checkListen } from './web-port.ts';

let dir: Scratch;
let manager: FakeManager;
let server: ApiServer;
let port: number;
let sockets: Socket[];
const clock = handClock();

async function freePort(): Promise<number> {
  const probe = createServer().listen(0, '127.0.0.1');
  await once(probe, 'listening');
  const { port: found } = probe.address() as AddressInfo;
  await new Promise((resolve) => probe.close(resolve));
  return found;
}

async function start(config: Partial<ApiConfig> = {}): Promise<void> {
  port = await freePort();
  const log = { info: () => {}, error: () => {} };
  server = await startApi({
    manager,
    version: '1.0.0',
    clock,
    socket: { path: join(dir.path, 'onejob.sock'), access: 'owner' },
    web: {
      config: { listen: { host: '127.0.0.1', port }, tls: null, behindProxy: false, hosts: [], ...config },
      stateDir: dir.path,
      log,
      files: join(dir.path, 'web'),
    },
  });
}

beforeEach(() => {
  sockets = [];
  dir = scratch();
  mkdirSync(join(dir.path, 'web'));
  writeFileSync(join(dir.path, 'web', 'index.html'), 'x'.repeat(100_000));
  manager = createFakeManager();
});

afterEach(async () => {
  for (const socket of sockets) socket.destroy();
  await server.close();
  await manager.end();
  dir[Symbol.dispose]();
  expect(clock.next()).toBeNull();
});

const bearer = (role: 'read' | 'operator') =>
  `authorization: Bearer ${readFileSync(join(dir.path, 'api', `${role}.token`), 'utf8').trim()}\r\n`;
const head = (method: string, path: string, more = '') => `${method} ${path} HTTP/1.1\r\nhost: localhost\r\n${more}\r\n`;

async function dial(): Promise<Socket> {
  const socket = connect(port, '127.0.0.1').on('error', () => {});
  sockets.push(socket);
  await once(socket, 'connect');
  return socket;
}

async function say(socket: Socket, text: string): Promise<string> {
  socket.write(text);
  const closed = isClosed(socket).then(() => 'closed');
  return await Promise.race([once(socket, 'data').then(([bytes]) => String(bytes)), closed]);
}

/** However it ends. */
const isClosed = (socket: Socket) =>
  new Promise<void>((resolve) => (socket.closed ? resolve() : socket.once('close', () => resolve())));

test('pipelined requests end their connection', async () => {
  await start();
  const socket = await dial();
  socket.write(head('GET', '/').repeat(1_000));
  const text = await buffer(socket).catch(() => '');
  expect(String(text).match(/HTTP\/1\.1 200/g)?.length ?? 0).toBeLessThan(2);
  // One after the other is fine.
  const other = await dial();
  for (let at = 0; at < 3; at++) expect(await say(other, head('GET', '/v1/me', bearer('read')))).toMatch(/^HTTP\/1.1 200/);
});

test('an answer that refuses access is the last of its connection', async () => {
  await start();
  for (const [request, status] of [
    [head('GET', '/v1/status'), 401],
    [head('POST', '/v1/drain', bearer('read')), 403],
    ['GET / HTTP/1.1\r\nhost: evil.example\r\n\r\n', 403],
  ] as const) {
    const socket = await dial();
    expect(await say(socket, request)).toMatch(new RegExp(`^HTTP/1.1 ${status}[^]*connection: close`, 'i'));
    await isClosed(socket);
  }
});

test('connections without a login make room for each other, and keep nobody else away', async () => {
  await start();
  const reader = await dial();
  const me = head('GET', '/v1/me', bearer('read'));
  expect(await say(reader, me)).toMatch(/^HTTP\/1.1 200/);
  const strangers = [];
  for (let at = 0; at < 52; at++) strangers.push(await dial());
  await isClosed(strangers[0] as Socket);
  expect(await say(reader, me)).toMatch(/^HTTP\/1.1 200/);
  expect(await say(await dial(), me)).toMatch(/^HTTP\/1.1 200/);
});

test('strangers who open connections as fast as they can keep nobody away', async () => {
  await start();
  const client = createClient({ socket: join(dir.path, 'onejob.sock'), version: '1.0.0' });
  const me = head('GET', '/v1/me', bearer('operator'));
  const kept = await dial();
  expect(await say(kept, me)).toMatch(/^HTTP\/1.1 200/);
  let [opened, isOver] = [0, false];
  const flood = (async () => {
    const ring: Socket[] = [];
    while (!isOver) {
      for (let at = 0; at < 20; at += 1) {
        const stranger = connect(port, '127.0.0.1').on('error', () => {});
        ring.push(stranger);
        opened += 1;
        if (ring.length > 300) ring.shift()?.destroy();
      }
      // The server has the same thread.
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    for (const stranger of ring) stranger.destroy();
  })();
  try {
    await expect.poll(() => opened).toBeGreaterThan(500);
    for (let at = 0; at < 3; at += 1) {
      expect(await say(kept, me)).toMatch(/^HTTP\/1.1 200/);
      expect((await client.status()).version).toBe('0.0.0');
    }
    // One that has not said yet who it is may have to make room, and is answered when it comes again.
    await expect.poll(async () => say(await dial(), me).catch(() => 'closed')).toMatch(/^HTTP\/1.1 200/);
  } finally {
    isOver = true;
    await flood;
  }
}, 30_000);

test('the rest of a refused request is not read for ever', async () => {
  await start();
  const socket = await dial();
  const first = await say(socket, head('PUT', '/v1/workspaces', 'content-length: 1000000000000\r\n'));
  expect(first).toMatch(/^HTTP\/1.1 401/);
  socket.resume();
  const chunk = Buffer.alloc(64 * 1024);
  const closed = isClosed(socket);
  const more = (): void => {
    while (!socket.destroyed && socket.write(chunk));
    if (!socket.destroyed) socket.once('drain', more);
  };
  more();
  await closed;
});

test('over TLS strangers make room too, and silent connections do not delay the end', async () => {
  const { cert, key } = createAuthority(dir.path).issue('localhost');
  const [certFile, keyFile] = [join(dir.path, 'tls.pem'), join(dir.path, 'tls.key')];
  writeFileSync(certFile, cert);
  writeFileSync(keyFile, key);
  await start({ tls: { cert: certFile, key: keyFile } });
  const secure = tls.connect({ port, host: '127.0.0.1', rejectUnauthorized: false }).on('error', () => {});
  await once(secure, 'secureConnect');
  expect(await say(secure, head('GET', '/v1/me', bearer('read')))).toMatch(/^HTTP\/1.1 200/);
  const stranger = tls.connect({ port, host: '127.0.0.1', rejectUnauthorized: false }).on('error', () => {});
  await once(stranger, 'secureConnect');
  const silent = [];
  for (let at = 0; at < 51; at++) silent.push(await dial());
  await isClosed(stranger);
  expect(await say(secure, head('GET', '/v1/me', bearer('read')))).toMatch(/^HTTP\/1.1 200/);
  await server.close();
  await Promise.all([isClosed(secure), ...silent.map(isClosed)]);
}, 10_000);

async function readerOf(client: Client) {
  const { url } = await client.call('POST /v1/login-links', { body: { role: 'read' } });
  return logIn(url);
}

/** Requests of a login, each signed anew. */
async function asking({ signed, challenge }: Awaited<ReturnType<typeof readerOf>>, path: string): Promise<() => string> {
  const { challenge: of } = await challenge();
  return () => {
    const about = { method: 'GET', path, challenge: of, at: clock.wall() };
    return head('GET', path, `authorization: ${authorize(signed, about)}\r\n`);
  };
}

test('one login has connections of its own, and keeps no other reader and no token away', async () => {
  await start();
  const client = createClient({ socket: join(dir.path, 'onejob.sock'), version: '1.0.0' });
  const [greedy, other] = [await readerOf(client), await readerOf(client)];
  const again = await asking(greedy, '/v1/events');
  const streams: Socket[] = [];
  for (let at = 0; at < 384; at++) {
    const socket = await dial();
    streams.push(socket);
    expect(await say(socket, again())).toMatch(/^HTTP\/1.1 200/);
  }
  expect(await say(await dial(), again())).toBe('closed');
  expect(await say(await dial(), (await asking(other, '/v1/events'))())).toMatch(/^HTTP\/1.1 200/);
  expect(await say(await dial(), head('GET', '/v1/me', bearer('read')))).toMatch(/^HTTP\/1.1 200/);
}, 20_000);

/** Requests whose answers nobody reads, once all have begun. */
async function unread(count: number, request: string): Promise<Socket[]> {
  const readers = await Promise.all(Array.from({ length: count }, () => dial()));
  await Promise.all(
    readers.map((reader) => {
      reader.write(request);
      return once(reader, 'readable');
    }),
  );
  return readers;
}

test('readers that never read a list keep no operator from it, and nobody on the socket', async () => {
  await start();
  const client = createClient({ socket: join(dir.path, 'onejob.sock'), version: '1.0.0' });
  const job = { ...(await client.submit(jobRequest.parse({ pool: null, command: ['true'] }))), command: ['x'.repeat(10_000)] };
  manager.elsewhere = Array.from({ length: 1_000 }, (_, n) => ({ ...job, id: `e${n}`, state: 'running' }));
  await unread(16, head('GET', '/v1/jobs', bearer('read')));
  expect(await say(await dial(), head('GET', '/v1/jobs', bearer('read')))).toMatch(/^HTTP\/1.1 503/);
  expect(await say(await dial(), head('GET', '/v1/jobs', bearer('operator')))).toMatch(/^HTTP\/1.1 200/);
  expect(await client.jobs({ all: false, pool: null })).toHaveLength(1_000);
});

test('one login has a share of the lists that readers may leave unread, and keeps no other reader from them', async () => {
  await start();
  const client = createClient({ socket: join(dir.path, 'onejob.sock'), version: '1.0.0' });
  const job = { ...(await client.submit(jobRequest.parse({ pool: null, command: ['true'] }))), command: ['x'.repeat(10_000)] };
  manager.elsewhere = Array.from({ length: 1_000 }, (_, n) => ({ ...job, id: `e${n}`, state: 'running' }));
  const readers = await Promise.all(Array.from({ length: 5 }, () => readerOf(client)));
  const [greedy, other, ...more] = await Promise.all(readers.map((reader) => asking(reader, '/v1/jobs')));
  if (greedy === undefined || other === undefined) throw new RangeError('there are five');
  for (let at = 0; at < 4; at += 1) await unread(1, greedy());
  expect(await say(await dial(), greedy())).toMatch(/^HTTP\/1.1 503.*4 clients are already reading the same/s);
  expect(await say(await dial(), other())).toMatch(/^HTTP\/1.1 200/);
  // All of them together have what their role has; operators have their own.
  for (const one of more) for (let at = 0; at < 4; at += 1) await unread(1, one());
  await expect.poll(async () => say(await dial(), other())).toMatch(/^HTTP\/1.1 503.*16 clients are already reading the same/s);
  expect(await say(await dial(), head('GET', '/v1/jobs', bearer('operator')))).toMatch(/^HTTP\/1.1 200/);
}, 20_000);

test('those who may only read have a share of the time: an operator does not wait for what they ask for again and again', async () => {
  await start();
  const asked: string[] = [];
  manager.arrayJobs = (id) => {
    asked.push(id);
    // As ten thousand jobs take.
    clock.advance(900);
    return [];
  };
  const array = (id: string, role: 'read' | 'operator') => head('GET', `/v1/job-arrays/${id}`, bearer(role));
  const [first, second, gone] = [await dial(), await dial(), await dial()];
  expect(await say(first, array('first', 'read'))).toMatch(/^HTTP\/1.1 200/);
  gone.write(array('gone', 'read'));
  const later = say(second, array('second', 'read'));
  await vi.waitFor(() => expect(clock.next()).not.toBeNull());
  const alone = await dial();
  expect(await say(alone, array('operator', 'operator'))).toMatch(/^HTTP\/1.1 200/);
  expect(await say(alone, array('again', 'operator'))).toMatch(/^HTTP\/1.1 200/);
  expect(asked).toEqual(['first', 'operator', 'again']);
  gone.destroy();
  await isClosed(gone);
  // Until the server has seen that, too.
  for (let at = 0; at < 5; at += 1) expect(await say(alone, head('GET', '/v1/me', bearer('operator')))).toMatch(/^HTTP\/1.1 200/);
  clock.advance(2_500);
  expect(await later).toMatch(/^HTTP\/1.1 200/);
  expect(asked).toEqual(['first', 'operator', 'again', 'second']);
  await vi.waitFor(() => expect(clock.next()).not.toBeNull());
  clock.advance(2_500);
});

test('what an agent has logged itself is sent to few readers at a time', async () => {
  await start();
  manager.agentLogs = async function* (_source, _how, signal) {
    yield { stream: 'stdout', bytes: Buffer.alloc(1 << 20) };
    await once(signal, 'abort');
  };
  const own = head('GET', '/v1/logs?agent=a&own=1', bearer('read'));
  await unread(4, own);
  expect(await say(await dial(), own)).toMatch(/^HTTP\/1.1 503.*4 clients are already reading the same/s);
  expect(await say(await dial(), head('GET', '/v1/logs?agent=a&own=1', bearer('operator')))).toMatch(/^HTTP\/1.1 200/);
});

test('answers that one token leaves unread have a limit in bytes, whatever they are about', async () => {
  await start();
  manager.history = () => [{ key: 'x'.repeat(20 << 20) }] as unknown as ReturnType<FakeManager['history']>;
  const history = head('GET', '/v1/history', bearer('read'));
  await unread(3, history);
  expect(await say(await dial(), history)).toMatch(/^HTTP\/1.1 503.*are not read yet/s);
  expect(await say(await dial(), head('GET', '/v1/history', bearer('operator')))).toMatch(/^HTTP\/1.1 200/);
});

/** Resolves once so many more bytes have arrived. */
function takes(reader: Socket, bytes: number): Promise<void> {
  return new Promise((resolve) => {
    let left = bytes;
    reader.on('data', function count(piece: Buffer) {
      left -= piece.length;
      if (left > 0) return;
      reader.off('data', count);
      resolve();
    });
  });
}

test('a log that nobody reads is cut off', async () => {
  await start();
  const gone = [Promise.withResolvers<void>(), Promise.withResolvers<void>()] as const;
  let asked = 0;
  manager.logs = async function* (_source, _how, signal) {
    const { resolve } = gone[asked++] ?? gone[0];
    signal.addEventListener('abort', () => resolve());
    while (!signal.aborted) yield { stream: 'stdout', bytes: Buffer.alloc(1 << 20) };
  };
  const [stuck] = await unread(1, head('GET', '/v1/logs?agent=a', bearer('read')));
  const reader = await dial();
  reader.write(head('GET', '/v1/logs?agent=a', bearer('read')));
  await takes(reader, 1);
  clock.advance(30_000);
  // More than lies in buffers on its way, so that the server has seen it read since.
  await takes(reader, 32 << 20);
  clock.advance(30_000);
  await gone[0].promise;
  stuck?.resume();
  await isClosed(stuck as Socket);
  expect(reader.destroyed).toBe(false);
  reader.destroy();
  await gone[1].promise;
});

test('a certificate that cannot be used is a problem to see, and is tried again', async () => {
  const { cert, key } = createAuthority(dir.path).issue('localhost');
  const [certFile, keyFile] = [join(dir.path, 'tls.pem'), join(dir.path, 'tls.key')];
  writeFileSync(certFile, 'half a cert');
  writeFileSync(keyFile, key);
  await start({ tls: { cert: certFile, key: keyFile } });
  expect(server.problem).toMatch(
    /^Cannot use the certificate of the dashboard, \S+tls\.pem: .*"api\.tls_cert".* again every 10 s\.$/,
  );
  writeFileSync(certFile, cert);
  clock.advance(10_000);
  await vi.waitFor(() => expect(server.problem).toBeNull());
});

test('another address on its own port is not taken by itself, and one that this host lacks is told', async () => {
  await start();
  expect(server.port).toBe(port);
  await expect(checkListen({ host: '127.0.0.1', port }, null)).rejects.toThrow('another program already does');
  await checkListen({ host: '127.0.0.1', port }, server.port);
  await checkListen({ host: '0.0.0.0', port }, server.port);
  await expect(checkListen({ host: '192.0.2.1', port }, server.port)).rejects.toThrow(
    `192.0.2.1:${port} for the dashboard: this host`,
  );
});
