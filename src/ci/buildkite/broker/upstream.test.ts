import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { describe, expect, it } from 'vitest';
import { systemClock } from '../../../clock.ts';
import { noProxies } from '../../../config/proxies.ts';
import { handClock } from '../../../core/testing.ts';
import { type Call, createUpstream, escapeId } from './upstream.ts';

async function serving(answer: (request: IncomingMessage, response: ServerResponse, nth: number) => void) {
  const seen: IncomingMessage[] = [];
  const server = createServer((request, response) => {
    seen.push(request);
    request.resume();
    request.on('end', () => answer(request, response, seen.length));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const endpoint = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v3`;
  const upstream = createUpstream({ version: '1.2.3', clock: systemClock, proxies: noProxies });
  const never = new AbortController().signal;
  return {
    endpoint,
    seen,
    server,
    upstream,
    call: (call: Partial<Call> = {}) =>
      upstream.call({ endpoint, method: 'GET', path: 'ping', token: 'canary', doing: 'ask', ...call }, never),
    async [Symbol.asyncDispose]() {
      upstream.close();
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}

const json = (response: ServerResponse, status: number, body: unknown, headers: Record<string, string> = {}) =>
  response.writeHead(status, headers).end(typeof body === 'string' ? body : JSON.stringify(body));

describe('a call', () => {
  it('goes out as the service knows it, over one connection', async () => {
    await using there = await serving((_, response) => json(response, 200, { ok: 1 }));
    const headers = { 'Buildkite-Shard': '7' };
    expect(await there.call({ headers })).toMatchObject({ ok: true, status: 200, body: { ok: 1 } });
    await there.call({ method: 'POST', path: 'heartbeat', body: { sent_at: 'x' } });
    await there.call({ method: 'POST', path: 'connect' });
    const [ping, beat, connect] = there.seen;
    expect(ping).toMatchObject({
      url: '/v3/ping',
      headers: { authorization: 'Token canary', 'user-agent': 'onejob/1.2.3', 'buildkite-shard': '7' },
    });
    expect(ping?.headers).not.toHaveProperty('content-type');
    expect(beat?.headers['content-type']).toBe('application/json');
    expect(connect?.headers['content-length']).toBe('0');
    expect(new Set(there.seen.map(({ socket }) => socket.remotePort)).size).toBe(1);
  });

  it('that is answered with another protocol is not answered', async () => {
    await using there = await serving((_, { socket }) => {
      socket?.end('HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n');
    });
    expect(await there.call()).toMatchObject({ ok: false, status: null, retry: true, error: { code: 'E_CI_UNREACHABLE' } });
  });

  it('escapes ids as the service wants them', () => {
    expect(escapeId('a.b/c d')).toBe('a%2Eb%2Fc%20d');
  });

  it.each([
    [401, 'E_CI_CREDENTIAL', false],
    [403, 'E_CI_DENIED', false],
    [422, 'E_CI_DENIED', false],
    [429, 'E_CI_THROTTLED', true],
    [500, 'E_CI_UNREACHABLE', true],
    [302, 'E_CI_DENIED', false],
  ] as const)('that is answered %i says so in one line, without a token', async (status, code, retry) => {
    await using there = await serving((_, response) =>
      json(
        response,
        status,
        { message: `no\n\u001b[31mcanary${'x'.repeat(500)}` },
        { Location: 'http://127.0.0.1:1/', 'Retry-After': '7' },
      ),
    );
    const called = await there.call();
    expect(called).toMatchObject({ ok: false, status, retry, retryAfter: retry ? 7_000 : null, error: { code, retry } });
    const { message } = (called as { error: Error }).error;
    expect(message).toContain(`answered ${status} (no [31m[token]xxx`);
    expect(message.length).toBeLessThan(420);
    expect(message).not.toContain('canary');
    expect(there.seen).toHaveLength(1);
  });

  it('that is answered with a page was not heard by the service', async () => {
    await using there = await serving((_, response, nth) => json(response, 200, nth === 1 ? '<html>' : ''));
    expect(await there.call()).toMatchObject({ ok: false, status: null, retry: true });
    expect(await there.call()).toMatchObject({ ok: true, status: 200, body: null });
  });

  it('that gets too much is given up', async () => {
    await using there = await serving((_, response) => json(response, 200, `"${'x'.repeat(2 << 20)}"`));
    expect(await there.call()).toMatchObject({ ok: false, status: null, error: { message: expect.stringContaining('1 MiB') } });
    expect(await there.call({ method: 'PUT', path: 'jobs/1/accept' })).toMatchObject({ ok: true });
  });

  it('on a connection that the service had closed is sent again, but not when twice is not once', async () => {
    await using there = await serving((_, response, nth) => {
      if (nth === 2 || nth === 5) response.socket?.destroy();
      else json(response, 200, {});
    });
    await there.call();
    expect(await there.call()).toMatchObject({ ok: true });
    await there.call();
    expect(await there.call({ once: true })).toMatchObject({ ok: false, status: null, retry: true });
  });

  it('to where nobody listens says so', async () => {
    await using there = await serving((_, response) => json(response, 200, {}));
    there.server.close();
    expect(await there.call()).toMatchObject({
      ok: false,
      status: null,
      retry: true,
      error: { code: 'E_CI_UNREACHABLE', message: expect.stringContaining('nothing listens there') },
    });
  });

  it('that gets no answer is given up in time', async () => {
    await using there = await serving(() => {});
    const clock = handClock();
    const upstream = createUpstream({ version: '1', clock, proxies: noProxies, timeout: 30_000 });
    const call = { endpoint: there.endpoint, method: 'GET', path: 'ping', token: 'x', doing: 'ask' } as const;
    const pending = upstream.call(call, new AbortController().signal);
    await once(there.server, 'request');
    clock.advance(30_000);
    expect(await pending).toMatchObject({ ok: false, error: { message: expect.stringContaining('no answer within 30 s') } });
    upstream.close();
  });

  it('is broken off when nobody wants it any more', async () => {
    await using there = await serving(() => {});
    const abort = new AbortController();
    const call = { endpoint: there.endpoint, method: 'GET', path: 'ping', token: 'x', doing: 'ask' } as const;
    const pending = there.upstream.call(call, abort.signal);
    await once(there.server, 'request');
    abort.abort(new Error('enough'));
    await expect(pending).rejects.toThrow('enough');
  });
});
