/** The API over TCP, with real sockets: who gets in, and what a browser gets. */
import { once } from 'node:events';
import { mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import { type AddressInfo, connect, createServer } from 'node:net';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { handClock } from '../../test/kit/core.ts';
import { checkAnswer } from '../../test/support/answers.ts';
import { authorize, browserKey, isProof, newNonce, parseLink } from '../../test/support/browser-login.ts';
import { createFakeManager, type FakeManager } from '../../test/support/fake-manager.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { createAuthority } from '../../test/support/tls-front.ts';
import type { ApiConfig } from '../config/config.ts';
import { jobRequest } from '../contract/job.ts';
import { type Client, createClient } from './client.ts';
import { routes } from './routes.ts';
import { type ApiServer, startApi } from './server.ts';

let dir: Scratch;
let manager: FakeManager;
let server: ApiServer;
let client: Client;
let calls: string[];
let log: string[];
const clock = handClock();

async function start(config: Partial<ApiConfig> | null = { listen: { host: '127.0.0.1', port: 0 } }): Promise<void> {
  const write = (event: string, about?: object) => void log.push(`${event} ${JSON.stringify(about)}`);
  server = await startApi({
    manager,
    version: '1.0.0',
    clock,
    onAnswer: checkAnswer,
    socket: { path: join(dir.path, 'onejob.sock'), access: 'owner' },
    onCall: (request, { role, user }) => void calls.push(`${request} ${role} ${user}`),
    web: {
      config: config && { listen: { host: '127.0.0.1', port: 0 }, tls: null, behindProxy: false, hosts: [], ...config },
      stateDir: dir.path,
      log: { info: write, error: write },
      files: join(dir.path, 'web'),
    },
  });
}

beforeEach(() => {
  [calls, log] = [[], []];
  dir = scratch();
  manager = createFakeManager();
  client = createClient({ socket: join(dir.path, 'onejob.sock'), version: '1.0.0' });
});

afterEach(async () => {
  await server.close();
  await manager.end();
  dir[Symbol.dispose]();
  expect(clock.next()).toBeNull();
});

const tokenFile = (role: string) => join(dir.path, 'api', `${role}.token`);
const bearer = (role: 'read' | 'operator') => ({ authorization: `Bearer ${readFileSync(tokenFile(role), 'utf8').trim()}` });
const link = async (role: 'read' | 'operator' = 'operator') => {
  const { url } = await client.call('POST /v1/login-links', { body: { role, user: 'eve' } });
  const { base, code } = parseLink(url);
  return { base, code, url, port: Number(new URL(base).port) };
};

interface Answer {
  readonly status: number;
  readonly headers: http.IncomingHttpHeaders;
  readonly text: string;
  /** The code of an error. */
  readonly code: string | undefined;
}

/** Headers, or what makes those of one request. */
type Sent = http.OutgoingHttpHeaders | ((method: string, path: string, body?: string) => Promise<http.OutgoingHttpHeaders>);

async function ask(base: string, method: string, path: string, sent: Sent = {}, body?: unknown): Promise<Answer> {
  const { hostname, port, protocol } = new URL(base);
  const json = body === undefined ? {} : { 'content-type': 'application/json' };
  const content = body === undefined ? undefined : JSON.stringify(body);
  const headers = { ...json, ...(typeof sent === 'function' ? await sent(method, path, content) : sent) };
  const options = { hostname, port, method, path, headers, agent: false, rejectUnauthorized: false };
  const request = protocol === 'https:' ? https.request(options) : http.request(options);
  request.end(content);
  const [response] = (await once(request, 'response')) as [http.IncomingMessage];
  const text = (await buffer(response)).toString();
  const isJson = response.headers['content-type']?.startsWith('application/json') === true;
  return { status: response.statusCode ?? 0, headers: response.headers, text, code: isJson ? JSON.parse(text).code : undefined };
}

/** A browser in which somebody has logged in. `headers`: of its page. */
async function login(role: 'read' | 'operator' = 'operator') {
  const { base, code, port } = await link(role);
  const page = { origin: base, 'sec-fetch-site': 'same-origin' };
  const { key, sign } = browserKey();
  const answer = await ask(base, 'POST', '/v1/login', page, { code, key });
  const { session, daemon } = JSON.parse(answer.text);
  const headers = async (method: string, path: string, body?: string): Promise<http.OutgoingHttpHeaders> => {
    const { challenge, at } = JSON.parse((await ask(base, 'GET', '/v1/challenge', page)).text);
    return { ...page, authorization: authorize({ session, sign }, { method, path, challenge, at, ...(body && { body }) }) };
  };
  return { base, code, port, answer, session: session as string, daemon, key, headers };
}

/** Each route, with something for the parts of its path. */
const each = Object.entries(routes).map(([name, route]) => {
  const [method = '', path = ''] = name.replaceAll(/:[a-z]+/g, 'abcdef01').split(' ');
  return { method, path, role: route.role };
});

describe('who gets in', () => {
  beforeEach(() => start());

  test('a link gives one login', async () => {
    const { base, code, answer, session, key, daemon, headers } = await login('read');
    expect(JSON.parse(answer.text)).toEqual({ role: 'read', user: 'eve', session, daemon });
    // What another program has left there while it had the port.
    expect(answer.headers['clear-site-data']).toBe('"cache", "storage"');
    expect(JSON.parse((await ask(base, 'GET', '/v1/me', headers)).text)).toEqual({ role: 'read', user: 'eve' });
    expect(await ask(base, 'POST', '/v1/login', {}, { code, key })).toMatchObject({ status: 401, code: 'E_API_LOGIN' });
    expect(log.join('\n')).not.toContain(session);
  });

  test('what a page sends is worth nothing in other hands', async () => {
    const { base, session, headers } = await login();
    const { authorization = '' } = await headers('GET', '/v1/me');
    // An impostor on another port has it, and a tab sent it there.
    for (const sent of [`Bearer ${session}`, `Onejob session=${session}`])
      expect((await ask(base, 'GET', '/v1/me', { authorization: sent })).status).toBe(401);
    expect((await ask(base, 'GET', '/v1/status', { authorization })).status).toBe(401);
    expect((await ask(base, 'POST', '/v1/me', { authorization })).status).toBe(401);
    expect((await ask(base, 'GET', '/v1/me', { authorization })).status).toBe(200);
    clock.advance(60_001);
    expect((await ask(base, 'GET', '/v1/me', { authorization })).status).toBe(401);
  });

  test('another body than the one that was signed does nothing', async () => {
    const { base, headers } = await login();
    const signed = await headers('POST', '/v1/pause', '{"reason":"eve"}');
    expect(await ask(base, 'POST', '/v1/pause', signed, { reason: 'adam' })).toMatchObject({ status: 400, code: 'E_API_REQUEST' });
    expect(manager.calls).toEqual([]);
    expect((await ask(base, 'POST', '/v1/pause', signed, { reason: 'eve' })).status).toBe(204);
  });

  test('the daemon proves who it is to a page that asks, also when it refuses', async () => {
    const { base, daemon, port } = await login();
    for (const path of ['/v1/challenge', '/v1/status', '/v1/nothing', '/']) {
      const nonce = newNonce();
      const { headers } = await ask(base, 'GET', path, { 'onejob-nonce': nonce });
      const proof = String(headers['onejob-proof']);
      expect([daemon.port, isProof(proof, { nonce, ...daemon })]).toEqual([port, true]);
      expect(isProof(proof, { nonce: newNonce(), ...daemon })).toBe(false);
      expect(isProof(proof, { nonce, ...daemon, port: 1 })).toBe(false);
      expect(isProof(proof, { nonce, ...daemon, key: browserKey().key })).toBe(false);
    }
    expect((await ask(base, 'GET', '/v1/challenge', { 'onejob-nonce': 'x' })).headers['onejob-proof']).toBeUndefined();
  });

  test('no cookie is set, and none gives access', async () => {
    const { base, answer, session } = await login();
    expect(answer.headers['set-cookie']).toBeUndefined();
    for (const cookie of [`onejob-abc=${session}`, `onejob-abc=${session.replace('ojs_', '')}`])
      expect((await ask(base, 'GET', '/v1/me', { cookie })).status).toBe(401);
  });

  test('without a login nothing but a login is answered', async () => {
    const { base } = await link();
    for (const { method, path, role } of each.filter((one) => one.role !== 'anyone')) {
      for (const headers of [{}, { authorization: 'Bearer wrong' }, { authorization: 'Bearer ojs_e30.wrong' }]) {
        const { status, code } = await ask(base, method, path, { ...headers, origin: base });
        expect([method, path, role, status, code]).toEqual([method, path, role, 401, 'E_API_LOGIN']);
      }
    }
    expect(manager.calls).toEqual([]);
  });

  test('whether it is healthy is answered without a login, and nothing else with it', async () => {
    const { base } = await link();
    const { status, text, headers } = await ask(base, 'GET', '/healthz');
    expect({ status, text }).toEqual({ status: 200, text: 'ok\n' });
    expect(headers['onejob-version']).toBeUndefined();
    expect(await ask(base, 'GET', '/healthz', { host: 'evil.example' })).toMatchObject({ status: 403 });
    expect(await ask(base, 'HEAD', '/healthz')).toMatchObject({ status: 200, text: '' });
  });

  test('a login that may read changes nothing', async () => {
    const { base, headers } = await login('read');
    const changing = each.filter(({ role, method }) => role === 'operator' || method !== 'GET');
    expect(changing.length).toBeGreaterThan(20);
    for (const { method, path } of changing.filter((one) => one.role !== 'anyone')) {
      for (const sent of [headers, bearer('read')]) {
        const { status, code } = await ask(base, method, path, sent);
        expect([method, path, status, code]).toEqual([method, path, 403, 'E_API_ROLE']);
      }
    }
    expect(await ask(base, 'GET', '/v1/status', headers)).toMatchObject({ status: 200, headers: { 'cache-control': 'no-store' } });
    expect([manager.calls, calls]).toEqual([[], []]);
  });

  test('an operator changes things, and that is logged', async () => {
    const { base, headers } = await login();
    expect((await ask(base, 'POST', '/v1/pools/lab/drain', headers)).status).toBe(204);
    expect((await ask(base, 'POST', '/v1/pause', bearer('operator'), { reason: 'eve' })).status).toBe(204);
    expect(manager.calls).toEqual(['drain lab', 'pause null eve']);
    expect(calls).toEqual(['POST /v1/pools/lab/drain operator eve', 'POST /v1/pause operator null']);
  });

  test('a page of another site changes and learns nothing, even with a login', async () => {
    const { base, headers } = await login();
    const sites = [
      { origin: 'https://evil.example', 'sec-fetch-site': 'cross-site' },
      { origin: 'http://127.0.0.1:8080', 'sec-fetch-site': 'same-site' },
      { origin: 'null' },
    ];
    for (const { method, path, role } of each) {
      for (const site of sites) {
        const { status, code } = await ask(base, method, path, { ...(await headers(method, path)), ...site });
        expect([method, path, role, site, status, code]).toEqual([method, path, role, site, 403, 'E_API_ORIGIN']);
      }
    }
    expect(manager.calls).toEqual([]);
  });

  test('a name that was pointed here gets nothing, not even a page', async () => {
    const { base, headers } = await login();
    for (const path of ['/', '/v1/status', '/assets/x.js'])
      expect(await ask(base, 'GET', path, { ...(await headers('GET', path)), host: 'evil.example' })).toMatchObject({
        status: 403,
        code: 'E_API_ORIGIN',
      });
    const forwarded = { host: '127.0.0.1:9999', origin: 'http://127.0.0.1:9999' };
    expect((await ask(base, 'GET', '/v1/status', { ...(await headers('GET', '/v1/status')), ...forwarded })).status).toBe(200);
  });

  test('a stolen login ends with its token, and so does what it reads', async () => {
    const { base, headers } = await login('read');
    const old = bearer('read');
    const request = http.get(`${base}/v1/events`, { headers: await headers('GET', '/v1/events') });
    const [events] = (await once(request, 'response')) as [http.IncomingMessage];
    events.on('error', () => {});
    const closed = new Promise((resolve) => events.resume().once('close', resolve));
    rmSync(tokenFile('read'));
    server.refresh();
    await closed;
    for (const sent of [headers, old]) expect((await ask(base, 'GET', '/v1/me', sent)).status).toBe(401);
    expect((await ask(base, 'GET', '/v1/me', bearer('read'))).status).toBe(200);
  });

  test('a stream of events ends with its login', async () => {
    const { base, headers } = await login('read');
    const request = http.get(`${base}/v1/events`, { headers: await headers('GET', '/v1/events') });
    const [events] = (await once(request, 'response')) as [http.IncomingMessage];
    const ended = once(events.resume(), 'end');
    clock.advance(7 * 86_400_000);
    await ended;
  });

  test('what waits for a job ends with the login that asked for it', async () => {
    const { id } = await client.submit(jobRequest.parse({ pool: null, command: ['sleep', '100'] }));
    const { base, headers } = await login('read');
    const settled = ask(base, 'GET', `/v1/jobs/${id}/settled`, headers);
    const follow = `/v1/logs?job=${id}&follow=1`;
    const request = http.get(`${base}${follow}`, { headers: await headers('GET', follow) });
    const [logs] = (await once(request, 'response')) as [http.IncomingMessage];
    await once(logs, 'readable');
    const ended = new Promise((resolve) => logs.resume().once('close', resolve));
    await client.status();
    clock.advance(7 * 86_400_000);
    expect(await settled).toMatchObject({ status: 401, code: 'E_API_LOGIN' });
    await ended;
    await client.cancel(id);
  });

  test('strangers cannot send much', async () => {
    const { base } = await link();
    expect(await ask(base, 'POST', '/v1/login', {}, { code: 'x'.repeat(5_000) })).toMatchObject({
      status: 400,
      code: 'E_API_REQUEST',
    });
    expect(await ask(base, 'POST', '/v1/jobs', {}, { command: ['x'.repeat(5_000)] })).toMatchObject({ status: 401 });
  });

  test('a browser does not get in by a socket that somebody forwards', async () => {
    const request = http.request({
      socketPath: join(dir.path, 'onejob.sock'),
      method: 'POST',
      path: '/v1/drain',
      headers: { host: 'localhost:8080', origin: 'http://evil.example' },
    });
    request.end();
    const [response] = (await once(request, 'response')) as [http.IncomingMessage];
    response.resume();
    expect([response.statusCode, manager.calls]).toEqual([403, []]);
  });
});

describe('where it listens', () => {
  test('without config a port opens with the first login, is found again after a restart, and closes when no login is left', async () => {
    await start(null);
    const first = await login();
    expect(first.base).toMatch(/^http:\/\/127\.0\.0\.1:\d+$/);
    await server.close();
    await start(null);
    expect((await ask(first.base, 'GET', '/v1/me', first.headers)).status).toBe(200);
    clock.advance(7 * 86_400_000);
    await expect(ask(first.base, 'GET', '/v1/me')).rejects.toMatchObject({ code: 'ECONNREFUSED' });
    expect((await login()).answer.status).toBe(200);
  });

  test('nothing is opened before', async () => {
    await start(null);
    expect(clock.next()).toBeNull();
    await client.status();
    expect(() => readFileSync(tokenFile('read'))).toThrow();
  });

  test('a port that is taken is a problem to see, and is used once it is free', async () => {
    const other = createServer();
    await once(other.listen(0, '127.0.0.1'), 'listening');
    const { port } = other.address() as AddressInfo;
    await start({ listen: { host: '127.0.0.1', port } });
    expect(server.problem).toMatch(
      new RegExp(`^Cannot listen on 127\\.0\\.0\\.1:${port} .*: another program already does\\..*"ss -ltnp`),
    );
    await client.status();
    await expect(client.call('POST /v1/login-links', { body: {} })).rejects.toMatchObject({ code: 'E_API_LISTEN', retry: true });
    clock.advance(10_000);
    await vi.waitFor(() => expect(clock.next()).toBe(10_000));
    await new Promise((resolve) => other.close(resolve));
    clock.advance(10_000);
    await vi.waitFor(() => expect(server.problem).toBeNull());
    expect((await login()).answer.status).toBe(200);
    // Once, however often it was tried.
    expect(log.map((line) => line.split(' {')[0])).toEqual(['failed to listen', 'listening after all', 'logged in over TCP']);
  });

  test('a token that cannot be used keeps only the dashboard away', async () => {
    mkdirSync(join(dir.path, 'api'));
    writeFileSync(tokenFile('read'), 'x'.repeat(40), { mode: 0o644 });
    await start();
    expect(server.problem).toContain('others can read it (mode 0644)');
    await client.status();
    rmSync(tokenFile('read'));
    clock.advance(10_000);
    await vi.waitFor(() => expect(server.problem).toBeNull());
  });

  test('with a certificate it speaks TLS, and reads a new one', async () => {
    const authority = createAuthority(dir.path);
    const [cert, key] = [join(dir.path, 'tls.pem'), join(dir.path, 'tls.key')];
    const issue = (host: string) => {
      const identity = authority.issue(host);
      writeFileSync(cert, identity.cert);
      writeFileSync(key, identity.key);
    };
    issue('localhost');
    await start({ tls: { cert, key }, hosts: ['localhost'] });
    const { base, headers } = await login();
    expect(base).toMatch(/^https:\/\/localhost:\d+$/);
    expect((await ask(base, 'GET', '/v1/me', headers)).status).toBe(200);
    await expect(ask(base.replace('https', 'http'), 'GET', '/v1/me')).rejects.toThrow();
    issue('renewed.example');
    server.refresh();
    const request = https.request(`${base}/`, { rejectUnauthorized: false, agent: false }).end();
    const [response] = (await once(request, 'response')) as [http.IncomingMessage];
    response.resume();
    const socket = response.socket as import('node:tls').TLSSocket;
    expect(socket.getPeerCertificate().subject.CN).toBe('renewed.example');
  });

  test('behind a proxy the link is that of the proxy', async () => {
    await start({ behindProxy: true, hosts: ['ci.example.org'] });
    const { url } = await client.call('POST /v1/login-links', { body: {} });
    const { base, code } = parseLink(url);
    expect(base).toBe('https://ci.example.org');
    expect(code).toHaveLength(22);
  });
});

describe('the dashboard’s files', () => {
  let base: string;
  const web = () => join(dir.path, 'web');

  beforeEach(async () => {
    mkdirSync(join(web(), 'assets'), { recursive: true });
    writeFileSync(join(web(), 'index.html'), '<title>onejob</title>');
    writeFileSync(join(web(), 'assets', 'app-1a2b.js'), 'start();');
    writeFileSync(join(dir.path, 'secret.html'), 'secret');
    symlinkSync(join(dir.path, 'secret.html'), join(web(), 'link.html'));
    await start();
    ({ base } = await link());
  });

  test('pages and assets', async () => {
    const page = await ask(base, 'GET', '/');
    expect(page).toMatchObject({ status: 200, text: '<title>onejob</title>' });
    expect(page.headers).toMatchObject({
      'content-type': 'text/html; charset=utf-8',
      'cache-control': 'no-cache',
      'x-content-type-options': 'nosniff',
      'content-security-policy': expect.stringMatching(/^default-src 'self';.*frame-ancestors 'none'$/),
    });
    expect(page.headers['content-security-policy']).not.toContain('unsafe');
    expect((await ask(base, 'GET', '/jobs/abc?x=1')).text).toBe('<title>onejob</title>');
    const script = await ask(base, 'GET', '/assets/app-1a2b.js');
    expect(script).toMatchObject({ text: 'start();', headers: { 'content-type': 'text/javascript; charset=utf-8' } });
    expect(script.headers['cache-control']).toContain('immutable');
    expect((await ask(base, 'GET', '/assets/app-0000.js')).status).toBe(404);
    expect((await ask(base, 'HEAD', '/')).text).toBe('');
    expect(await ask(base, 'POST', '/')).toMatchObject({ status: 401, code: 'E_API_LOGIN' });
    expect(await ask(base, 'POST', '/', bearer('read'))).toMatchObject({ status: 404, code: 'E_API_ROUTE' });
  });

  test('a browser forgets what it has of the page of an unused link, and of no other', async () => {
    const { url, code } = await link();
    const { pathname } = new URL(url);
    const cleared = async (path: string) => (await ask(base, 'GET', path)).headers['clear-site-data'];
    expect(await cleared(pathname)).toBe('"cache", "storage"');
    // A page of another site may lead there.
    expect([await cleared('/login'), await cleared(`/login/${'A'.repeat(22)}`), await cleared('/')]).toEqual([
      undefined,
      undefined,
      undefined,
    ]);
    await ask(base, 'POST', '/v1/login', {}, { code, key: browserKey().key });
    expect(await cleared(pathname)).toBeUndefined();
  });

  test.each([
    '/../secret.html',
    '/..%2fsecret.html',
    '/%2e%2e/secret.html',
    '/assets/../../secret.html',
    '/assets/..%5c..%5csecret.html',
    '//etc/passwd',
    '/link.html',
    '/index.html%00.js',
    '/.',
    '/assets',
  ])('%s leads nowhere else', async (path) => {
    const { port } = new URL(base);
    const socket = connect(Number(port), '127.0.0.1');
    socket.write(`GET ${path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n`);
    const text = (await buffer(socket)).toString();
    expect(text).toMatch(/^HTTP\/1\.1 (200 OK|404 Not Found)\r\n/);
    expect(text).toMatch(/(<title>onejob<\/title>|Not found\.\n)(\r\n0\r\n\r\n)?$/);
  });

  test('a whole address as the path is refused', async () => {
    const { authorization } = bearer('operator');
    const socket = connect(Number(new URL(base).port), '127.0.0.1');
    socket.write(
      `GET http://localhost/v1/status HTTP/1.1\r\nhost: localhost\r\nauthorization: ${authorization}\r\nconnection: close\r\n\r\n`,
    );
    expect((await buffer(socket)).toString()).toMatch(/^HTTP\/1\.1 404 /);
  });

  test('the documentation is below /docs/, under the same policy', async () => {
    const docs = join(dir.path, 'docs');
    expect(await ask(base, 'GET', '/docs/')).toMatchObject({ status: 404, text: expect.stringContaining('npm run docs:site') });
    mkdirSync(join(docs, 'ci'), { recursive: true });
    writeFileSync(join(docs, 'index.html'), '<title>docs</title>');
    writeFileSync(join(docs, 'ci', 'own-queue.html'), 'own queue');
    const start = await ask(base, 'GET', '/docs/');
    expect(start).toMatchObject({ status: 200, text: '<title>docs</title>' });
    expect(start.headers['content-security-policy']).toBe((await ask(base, 'GET', '/')).headers['content-security-policy']);
    expect((await ask(base, 'GET', '/docs/ci/own-queue.html?x=1')).text).toBe('own queue');
    expect(await ask(base, 'GET', '/docs')).toMatchObject({ status: 308, headers: { location: '/docs/' } });
    for (const path of ['/docs/no.html', '/docs/assets/no.js', '/docs/../secret.html', '/docs/%2e%2e/secret.html'])
      expect(await ask(base, 'GET', path), path).toMatchObject({
        status: expect.any(Number),
        text: expect.not.stringContaining('secret'),
      });
    expect(await ask(base, 'GET', '/docs/no.html')).toMatchObject({ status: 404, text: 'Not found.\n' });
  });

  test('a dashboard that was not built says how to', async () => {
    rmSync(web(), { recursive: true });
    const { status, text, headers } = await ask(base, 'GET', '/');
    expect([status, headers['content-type']]).toEqual([404, 'text/plain; charset=utf-8']);
    expect(text).toContain('npm run build:web');
  });
});
