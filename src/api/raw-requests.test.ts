/** Raw requests to the API over TCP, as no client sends them: ways around logins, roles, names, origins and files, and smuggling. */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createFakeManager, type FakeManager } from '../../test/support/fake-manager.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { type ApiServer, startApi } from './server.ts';

let dir: Scratch;
let manager: FakeManager;
let server: ApiServer;

beforeAll(async () => {
  dir = scratch();
  mkdirSync(join(dir.path, 'web'));
  writeFileSync(join(dir.path, 'web', 'index.html'), 'the page');
  writeFileSync(join(dir.path, 'secret'), 'the secret');
  manager = createFakeManager();
  server = await startApi({
    manager,
    version: '1.0.0',
    socket: { path: join(dir.path, 'onejob.sock'), access: 'owner' },
    web: {
      config: { listen: { host: '127.0.0.1', port: 0 }, tls: null, behindProxy: false, hosts: [] },
      stateDir: dir.path,
      log: { info: () => {}, error: () => {} },
      files: join(dir.path, 'web'),
    },
  });
});

afterAll(async () => {
  await server.close();
  await manager.end();
  expect(manager.calls).toEqual([]);
  dir[Symbol.dispose]();
});

/** `READ` and `OPERATOR` stand for the headers of these tokens. */
async function answers(request: string): Promise<string> {
  const token = (role: string) =>
    `Authorization: Bearer ${readFileSync(join(dir.path, 'api', `${role}.token`), 'utf8').trim()}\r\n`;
  const socket = connect(server.port ?? 0, '127.0.0.1');
  // Those that wait for more end as a client that has gone. Only our half closes, so a slow answer still comes.
  socket.setTimeout(500, () => socket.end());
  socket.write(request.replaceAll('READ', token('read')).replaceAll('OPERATOR', token('operator')), 'latin1');
  return String(await buffer(socket).catch(() => ''));
}

/** Statuses of all answers. */
const statusesOf = (said: string) => [...said.matchAll(/HTTP\/1\.1 (\d{3})/g)].map(([, status]) => Number(status));
const get = (path: string, more = '', host = '127.0.0.1') =>
  `GET ${path} HTTP/1.1\r\nHost: ${host}\r\n${more}Connection: close\r\n\r\n`;

test.each([
  '/v1/status',
  '/v1/./status',
  '/v1/status/',
  '/v1/status;x',
  '/v1/status%00',
  '/v1/status?token=x&authorization=Bearer%20x',
  '/v1//status',
])('%s needs a login', async (path) => {
  expect(statusesOf(await answers(get(path)))).toEqual([401]);
});

test.each([
  ...['/V1/status', '//v1/status', '/%76%31/status', '/x/../v1/status', '/metrics/', '/v1%2fstatus', '/v1\\status', '/v1'],
  ...['/../secret', '/..%2fsecret', '/%2e%2e/secret', '/....//secret', '/index.html%00', '/.', '/%c0%ae%c0%ae/secret'],
  ...['/..\\secret', '/index.html/../../secret', '/constructor', '/__proto__', '/toString'],
])('%s is only the page', async (path) => {
  const said = await answers(get(path));
  expect([statusesOf(said), said.endsWith('the page')]).toEqual([[200], true]);
});

test.each(['/assets', '/assets/', '/assets/../../secret', 'http://127.0.0.1/v1/status', 'http://evil/v1/status', '*'])(
  '%s has nothing of the state directory',
  async (path) => {
    const said = await answers(get(path, 'READ'));
    expect(said).not.toMatch(/the secret|pools/);
  },
);

test.each([
  ...['evil.example', '127.0.0.1.evil.example', 'localhost.evil', 'localhost@evil', '[::1].evil', '127.1', '0.0.0.0', '2130706433'],
  ...['0x7f.1', '::1', '[::ffff:127.0.0.1]', 'localhost.', '127.0.0.1:17717.', ''],
])('a request for the host %j is refused', async (host) => {
  for (const path of ['/v1/status', '/']) expect(statusesOf(await answers(get(path, 'READ', host)))).toEqual([403]);
});

test.each(['http://evil.example', 'null', 'http://127.0.0.1:1', 'http://localhost', 'file://'])(
  'a page of %s is refused',
  async (origin) => {
    expect(statusesOf(await answers(get('/v1/status', `READOrigin: ${origin}\r\n`)))).toEqual([403]);
  },
);

test.each([
  ['cross-site', 403],
  ['same-site', 403],
  ['bogus', 403],
  ['same-origin', 200],
  ['none', 200],
])('Sec-Fetch-Site %s is answered with %d', async (site, status) => {
  expect(statusesOf(await answers(get('/v1/status', `READSec-Fetch-Site: ${site}\r\n`)))).toEqual([status]);
});

test.each([
  ...[
    '/v1/pause',
    '/v1/drain',
    '/v1/down',
    '/v1/login-links',
    '/v1/jobs',
    '/v1/config/apply',
    '/v1/jobs/prune',
    '/v1/caches/clear',
    '/v1/jobs/x/shell',
  ],
])('a reader may not POST %s', async (path) => {
  const request = `POST ${path} HTTP/1.1\r\nHost: 127.0.0.1\r\nREADContent-Type: application/json\r\nContent-Length: 14\r\nConnection: close\r\n\r\n{"reason":"x"}`;
  expect(statusesOf(await answers(request))).toEqual([403]);
});

const post = (more: string, body = '') => `POST /v1/login HTTP/1.1\r\nHost: 127.0.0.1\r\n${more}\r\n${body}`;
const smuggled = 'GET /v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\nREAD\r\n';

test.each([
  ['length and chunks', post('Content-Length: 4\r\nTransfer-Encoding: chunked\r\n', `0\r\n\r\n${smuggled}`)],
  ['two lengths', post('Content-Length: 4\r\nContent-Length: 5\r\n', 'aaaaa')],
  ['another encoding', post('Transfer-Encoding: xchunked\r\n', '0\r\n\r\n')],
  ['lines without CR', 'GET /v1/status HTTP/1.1\nHost: 127.0.0.1\n\n'],
  ['a request in the body of another', `GET /v1/me HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 60\r\n\r\n${smuggled}`],
  ['a hundred headers too many', get('/', 'X-Y: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n'.repeat(2_000))],
  ['a large body of a stranger', post('Content-Type: application/json\r\nContent-Length: 9000\r\n', 'a'.repeat(9_000))],
  ['a body with a prototype', post('Content-Type: application/json\r\nContent-Length: 21\r\n', '{"__proto__":{"a":1}}')],
  ['no host in HTTP/1.0', 'GET /v1/status HTTP/1.0\r\nREAD\r\n'],
  ['a session that was made up', get('/v1/status', 'Authorization: Bearer ojs_eyJyb2xlIjoib3BlcmF0b3IifQ.AAAA\r\n')],
  ['basic', get('/v1/status', 'Authorization: Basic Og==\r\n')],
  ['an empty token', get('/v1/status', 'Authorization: Bearer \r\n')],
  [
    'a shell over TCP',
    get('/v1/jobs/x/shell', 'OPERATORUpgrade: onejob-shell\r\n').replace('GET', 'POST').replace('close', 'Upgrade'),
  ],
  ['a WebSocket', get('/v1/events', 'Upgrade: websocket\r\nSec-WebSocket-Key: x\r\n').replace('close', 'Upgrade')],
])('%s is refused, once', async (_, request) => {
  const found = statusesOf(await answers(request));
  expect(found.filter((status) => status < 400)).toEqual([]);
  expect(found.length).toBeLessThan(3);
});
