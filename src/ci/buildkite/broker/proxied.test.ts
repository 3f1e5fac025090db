/** Calls through a proxy that alone knows where the service is, over TLS with an authority of one's own. */
import type { IncomingMessage } from 'node:http';
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import { lacks } from '../../../../test/support/require.ts';
import { type Authority, tlsFront } from '../../../../test/support/tls-front.ts';
import { systemClock } from '../../../clock.ts';
import { readProxies } from '../../../config/proxies.ts';
import { callWhole } from './forward-call.ts';
import { createUpstreams, type Upstreams } from './forward-upstreams.ts';
import { type Authorities, authorities, type Proxied, proxiedService } from './testing-proxied.ts';
import { createUpstream, type Upstream } from './upstream.ts';

const never = new AbortController().signal;

interface Stage extends Pick<Proxied, 'proxy' | 'proxies'> {
  readonly seen: IncomingMessage[];
  readonly upstreams: Upstreams;
  call(address?: string, signal?: AbortSignal): ReturnType<Upstream['call']>;
}

async function stage(authority: Authority, patience = 30_000): Promise<Stage> {
  const seen: IncomingMessage[] = [];
  const behind = await proxiedService(authority, (request, response) => {
    seen.push(request);
    response.end('{"ok":1}');
  });
  const { proxy, proxies } = behind;
  const upstream = createUpstream({ version: '1', clock: systemClock, proxies });
  const upstreams = createUpstreams({ proxies, keeping: { timeout: 60_000 }, patience });
  onTestFinished(async () => {
    upstream.close();
    upstreams.close();
    await behind[Symbol.asyncDispose]();
  });
  const call = (endpoint = 'https://agent.test/v3', signal = never) =>
    upstream.call({ endpoint, method: 'GET', path: 'ping', token: 'canary', doing: 'ask' }, signal);
  return { proxy, proxies, seen, upstreams, call };
}

const told = (called: Awaited<ReturnType<Upstream['call']>>): string =>
  called.ok ? 'ok' : `${called.error.message} ${called.error.hint}`;

describe.skipIf(lacks('openssl'))('through a proxy', () => {
  let known: Authorities;
  beforeAll(() => {
    known = authorities();
  });
  afterAll(() => known[Symbol.dispose]());

  it('calls reach the service by a tunnel, several by one, and the proxy sees nothing of them', async () => {
    const { call, proxy, seen } = await stage(known.own);
    expect(await call()).toMatchObject({ ok: true, body: { ok: 1 } });
    expect(await call()).toMatchObject({ ok: true });
    expect(proxy.seen).toEqual(['CONNECT agent.test:443']);
    expect(seen.map(({ url, headers }) => [url, headers.host, headers.authorization])).toEqual(
      Array(2).fill(['/v3/ping', 'agent.test', 'Token canary']),
    );
    for (const { headers } of seen) expect(JSON.stringify(headers)).not.toContain('proxy');
  });

  it('the certificate must be the service’s own, of an authority that is known', async () => {
    const { call } = await stage(known.own);
    expect(told(await call('https://other.test/v3'))).toContain('its certificate is not accepted: ERR_TLS_CERT_ALTNAME_INVALID');
    expect(await call('https://192.0.2.1/v3')).toMatchObject({ ok: true });
    expect(told(await call('https://192.0.2.2/v3'))).toContain('ERR_TLS_CERT_ALTNAME_INVALID');
    const { call: unknown } = await stage(known.stranger);
    expect(told(await unknown())).toMatch(/not accepted: .*NODE_EXTRA_CA_CERTS/);
  });

  it('a call without TLS is asked of the proxy, byte for byte', async () => {
    const { upstreams, proxy, seen } = await stage(known.own);
    const target = { method: 'PUT', origin: new URL('http://agent.test'), path: '/a/%2E%2e/b%2Fc?x=%20', headers: {} };
    const whole = { upstreams, target, body: Buffer.from('body'), limit: 100, timeoutMs: 10_000, signal: never, again: true };
    expect(await callWhole(whole)).toMatchObject({ status: 200 });
    expect(proxy.seen).toEqual(['PUT http://agent.test/a/%2E%2e/b%2Fc?x=%20']);
    expect(seen[0]).toMatchObject({ url: '/a/%2E%2e/b%2Fc?x=%20', headers: { host: 'agent.test' } });
  });

  describe.each(['https://agent.test/v3', 'http://agent.test/v3'])('to %s', (endpoint) => {
    it.each([
      [407, /the proxy before it answered 407.*HTTPS_PROXY, with user and password/],
      ['hangs up', endpoint.startsWith('https') ? /the proxy before it hung up/ : /the connection was cut/],
    ] as const)('one that does %s is no refusal of the service, and names neither password nor token', async (mood, expected) => {
      const { call, proxy, seen } = await stage(known.own);
      proxy.mood = mood;
      const called = await call(endpoint);
      expect(called).toMatchObject({ ok: false, status: null, retry: true, error: { code: 'E_CI_UNREACHABLE' } });
      expect(told(called)).toMatch(expected);
      expect(told(called)).not.toMatch(/canary|alice|YWxpY2/);
      expect(seen).toEqual([]);
      proxy.mood = 'well';
      expect(await call(endpoint)).toMatchObject({ ok: true });
    });

    it('one that dies is told, and one that comes back is used again', async () => {
      const { call, proxy } = await stage(known.own);
      expect(await call(endpoint)).toMatchObject({ ok: true });
      // What was kept is dead; another connection is made for the same call.
      proxy.cut();
      expect(await call(endpoint)).toMatchObject({ ok: true });
      await proxy.die();
      expect(told(await call(endpoint))).toContain('the proxy before it cannot be reached (ECONNREFUSED)');
    });
  });

  it.each([
    ['loud', 'says more than it was asked'],
    ['endless', 'something else than HTTP'],
    ['gibberish', 'something else than HTTP'],
    [403, 'answered 403'],
  ] as const)('one that is %s leads nowhere', async (mood, expected) => {
    const { call, proxy, seen } = await stage(known.own);
    proxy.mood = mood;
    expect(told(await call())).toContain(expected);
    expect(seen).toEqual([]);
  });

  it.each(['silent', 'mute'] as const)('a call through a %s one ends at once when it is given up', async (mood) => {
    const { call, proxy, upstreams } = await stage(known.own, 100);
    proxy.mood = mood;
    const abort = new AbortController();
    const called = call(undefined, abort.signal);
    await expect.poll(() => proxy.seen.length).toBe(1);
    abort.abort(new Error('enough'));
    await expect(called).rejects.toThrow('enough');
    const target = { method: 'GET', origin: new URL('https://agent.test'), path: '/', headers: {} };
    const whole = { upstreams, target, body: Buffer.alloc(0), limit: 100, signal: never, again: true };
    await expect(callWhole({ ...whole, timeoutMs: 50 })).rejects.toThrow('no answer in time');
    if (mood === 'silent')
      await expect(callWhole({ ...whole, timeoutMs: 60_000 })).rejects.toThrow('has not led there within 0.1 s');
  });

  it('nothing is sent past what is written as a proxy and is none', async () => {
    const proxies = readProxies({ NODE_USE_ENV_PROXY: '1', HTTPS_PROXY: 'socks5://alice:canary@127.0.0.1:1' });
    const upstream = createUpstream({ version: '1', clock: systemClock, proxies });
    const call = { endpoint: 'https://agent.test/v3', method: 'GET', path: 'ping', token: 'x', doing: 'ask' } as const;
    const said = told(await upstream.call(call, never));
    expect(said).toContain('no http:// or https:// address');
    expect(said).not.toContain('canary');
    upstream.close();
  });

  it('a proxy may be spoken to by TLS itself', async () => {
    const { proxy, proxies, seen } = await stage(known.own);
    const secure = await tlsFront(known.own.issue('localhost'), proxy.port);
    onTestFinished(() => secure[Symbol.asyncDispose]());
    const https = (proxies.https ?? '').replace(/^http:/, 'https:').replace(`127.0.0.1:${proxy.port}`, `localhost:${secure.port}`);
    const upstream = createUpstream({ version: '1', clock: systemClock, proxies: { ...proxies, http: https, https } });
    for (const endpoint of ['https://agent.test/v3', 'http://agent.test/v3'])
      expect(await upstream.call({ endpoint, method: 'GET', path: 'ping', token: 'x', doing: 'ask' }, never)).toMatchObject({
        ok: true,
      });
    expect(proxy.seen).toEqual(['CONNECT agent.test:443', 'GET http://agent.test/v3/ping']);
    expect(seen).toHaveLength(2);
    upstream.close();
  });

  it('once closed, each call has a connection for itself, by the proxy too', async () => {
    const { upstreams, proxy } = await stage(known.own);
    upstreams.close();
    const target = { method: 'GET', origin: new URL('https://agent.test'), path: '/', headers: {} };
    const whole = { upstreams, target, body: Buffer.alloc(0), limit: 100, timeoutMs: 10_000, signal: never, again: true };
    await callWhole(whole);
    await callWhole(whole);
    expect(proxy.seen).toEqual(['CONNECT agent.test:443', 'CONNECT agent.test:443']);
  });
});
