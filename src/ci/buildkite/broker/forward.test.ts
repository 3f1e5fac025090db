/** Bytes on the way: what is lost upstream is lost here, and what cannot be read in one way only is not sent on. */
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { connect } from 'node:net';
import { describe, expect, it } from 'vitest';
import { noProxies } from '../../../config/proxies.ts';
import { forwardStream } from './forward.ts';
import { requestHeaders } from './forward-headers.ts';
import { createUpstreams } from './forward-upstreams.ts';
import { bodyOf, gatewayBench, jobId, listening, serviceTokens, stopped } from './testing-gateway.ts';

const path = `/v3/jobs/${jobId}/data/get`;
const running = { shown: { phase: 'running' } } as const;

/** Everything that comes back for these bytes, until the other side closes. */
async function raw(port: number, text: string): Promise<string> {
  const socket = connect({ port, host: '127.0.0.1' });
  let back = '';
  socket
    .on('error', () => {})
    .on('data', (bytes) => {
      back += String(bytes);
    });
  socket.write(text);
  await once(socket, 'close');
  return back;
}

describe('an answer', () => {
  it('that breaks off upstream breaks off here', async () => {
    await using here = await gatewayBench((_, response) => {
      response.writeHead(200, { 'content-length': 100 }).write('half');
      setImmediate(() => response.destroy());
    });
    here.held('a', running);
    await expect(here.call('POST', path, here.token('job', 'a'), {})).rejects.toThrow();
  });

  it('keeps its status, headers and bytes, but for those of the connection and cookies', async () => {
    await using here = await gatewayBench((_, response) => {
      response.writeHead(202, {
        location: '/v3/jobs/x',
        'retry-after': '2',
        'set-cookie': 'a=b',
        connection: 'x-inner',
        'x-inner': '1',
      });
      response.end(Buffer.from([0xff, 0x00, 0x80]));
    });
    here.held('a', running);
    const response = await fetch(`${here.url}${path}`, {
      method: 'POST',
      headers: { authorization: `Token ${here.token('job', 'a')}` },
    });
    expect(response.status).toBe(202);
    expect([...new Uint8Array(await response.arrayBuffer())]).toEqual([0xff, 0x00, 0x80]);
    expect(response.headers.get('location')).toBe('/v3/jobs/x');
    for (const name of ['set-cookie', 'x-inner']) expect(response.headers.get(name)).toBeNull();
  });

  it('that repeats a token does not reach the agent with it', async () => {
    await using here = await gatewayBench((request, response) => {
      response.writeHead(400, { 'x-echo': request.headers.authorization ?? '' });
      response.end(JSON.stringify({ message: `${request.headers.authorization} ${serviceTokens.session} is bad` }));
    });
    here.held('a', running);
    const { json, headers } = await here.call('POST', path, here.token('job', 'a'), {});
    expect(json).toEqual({ message: 'Token [token] [token] is bad' });
    expect(headers.get('x-echo')).toBe('Token [token]');
  });
});

describe('a call', () => {
  it('goes on with its own headers and path, but for whom it comes from and goes to', async () => {
    let got: { url: string | undefined; headers: NodeJS.Dict<string | string[]> } = { url: '', headers: {} };
    await using here = await gatewayBench((request, response) => {
      got = { url: request.url, headers: request.headers };
      response.end('{}');
    });
    here.held('a', { ...running, requestHeaders: { 'Buildkite-Route': 'ours' } });
    await here.call('POST', '/v3/steps/a%2Fb%2E/export?x=%20y', here.token('job', 'a'), '{}', {
      'buildkite-timeout-milliseconds': '5000',
      'buildkite-route': 'theirs',
      'x-forwarded-for': '1.2.3.4',
      'x-http-method-override': 'PUT',
      'user-agent': 'buildkite-agent/3.137.0',
    });
    expect(got.url).toBe('/v3/steps/a%2Fb%2E/export?x=%20y');
    expect(got.headers).toMatchObject({
      host: new URL(here.service).host,
      authorization: `Token ${serviceTokens.job}`,
      'buildkite-timeout-milliseconds': '5000',
      'buildkite-route': 'ours',
      'user-agent': 'buildkite-agent/3.137.0',
    });
    for (const name of ['x-forwarded-for', 'x-http-method-override']) expect(got.headers[name]).toBeUndefined();
  });

  it('to a service that is not there may be tried again', async () => {
    await using here = await gatewayBench(() => {});
    here.held('a', { ...running, endpoint: 'http://127.0.0.1:1/v3' });
    const token = here.token('job', 'a');
    const unreachable = { status: 502, json: { message: expect.stringContaining('ECONNREFUSED') } };
    expect(await here.call('POST', path, token, {})).toMatchObject(unreachable);
    expect(await here.call('GET', `/v3/jobs/${jobId}`, token)).toMatchObject(unreachable);
  });

  it('whose agent has gone away ends upstream too', async () => {
    const { promise: came, resolve: come } = Promise.withResolvers<void>();
    const { promise: ended, resolve: end } = Promise.withResolvers<void>();
    await using here = await gatewayBench((request, response) => {
      come();
      response.once('close', () => end());
      request.resume();
    });
    here.held('a', running);
    const leave = new AbortController();
    const headers = { authorization: `Token ${here.token('job', 'a')}` };
    const call = fetch(`${here.url}${path}`, { method: 'POST', headers, signal: leave.signal }).catch(() => 'left');
    await came;
    leave.abort();
    expect(await call).toBe('left');
    await ended;
  });

  it('without a byte for long is cut, in both directions', async () => {
    await using here = await gatewayBench(() => {}, { idleMs: 50, wholeMs: 50, lateMs: 50 });
    here.held('a', running);
    const token = here.token('job', 'a');
    expect((await here.call('POST', path, token, {})).status).toBe(502);
    const head = `Host: x\r\nAuthorization: Token ${token}\r\nContent-Length: 10\r\n\r\n{`;
    expect(await raw(here.port, `POST ${path} HTTP/1.1\r\n${head}`)).toContain('502');
    expect(await raw(here.port, `PUT /v3/jobs/${jobId}/finish HTTP/1.1\r\n${head}`)).toBe('');
  });

  it('that is read whole may not be large', async () => {
    await using here = await gatewayBench(() => {});
    here.held('a', running);
    const large = await here.call('PUT', `/v3/jobs/${jobId}/finish`, here.token('job', 'a'), 'x'.repeat(70_000));
    expect(large).toMatchObject({ status: 413, json: { message: expect.any(String) } });
  });
});

it.each([
  ['two lengths', 'Content-Length: 3\r\nContent-Length: 30\r\n'],
  ['a length and chunks', 'Content-Length: 3\r\nTransfer-Encoding: chunked\r\n'],
  ['odd chunks', 'Transfer-Encoding: chunked, identity\r\n'],
  ['a folded header', 'X-A: b\r\n\tc\r\nContent-Length : 3\r\n'],
])('nothing that two readers would read differently is forwarded: %s', async (_, headers) => {
  const seen: string[] = [];
  await using here = await gatewayBench(async (request, response) => {
    seen.push(`${request.method} ${request.url} ${await bodyOf(request)}`);
    response.end('{}');
  });
  here.held('a', running);
  const inner = `PUT /v3/jobs/other/finish HTTP/1.1\r\nHost: x\r\n\r\n`;
  const head = `POST ${path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Token ${here.token('job', 'a')}\r\n`;
  const back = await raw(here.port, `${head}${headers}\r\n0\r\n\r\n${inner}`);
  expect(back).toMatch(/^HTTP\/1.1 400/);
  expect(seen).toEqual([]);
});

it.each([
  [
    'another address',
    (token: string) => `GET http://127.0.0.1:1/v3/ping HTTP/1.1\r\nHost: x\r\nAuthorization: Token ${token}\r\n\r\n`,
    /^HTTP\/1.1 400/,
  ],
  ['a tunnel', (token: string) => `CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: x\r\nAuthorization: Token ${token}\r\n\r\n`, /^$/],
  [
    'two tokens',
    (token: string) => `GET /v3/ping HTTP/1.1\r\nHost: x\r\nAuthorization: Token ${token}\r\nAuthorization: Token x\r\n\r\n`,
    /^HTTP\/1.1 401/,
  ],
  ['no host', () => 'GET /v3/ping HTTP/1.1\r\n\r\n', /^HTTP\/1.1 400/],
  ['a head without end', () => `GET /v3/ping HTTP/1.1\r\nHost: x\r\nX-Long: ${'x'.repeat(20_000)}\r\n\r\n`, /^HTTP\/1.1 431/],
])('does not become a way elsewhere: %s', async (_, text, expected) => {
  await using here = await gatewayBench(() => {});
  here.held('a', running);
  const socket = connect({ port: here.port, host: '127.0.0.1' });
  let back = '';
  socket
    .on('error', () => {})
    .on('data', (bytes) => {
      back += String(bytes);
      socket.end();
    });
  socket.write(text(here.token('session', 'a')));
  await once(socket, 'close');
  expect(back).toMatch(expected);
});

it('an upgrade is a call like any other', async () => {
  await using here = await gatewayBench((request, response) => response.end(JSON.stringify(request.headers)));
  here.held('a', running);
  const headers = `Host: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\nAuthorization: Token ${here.token('job', 'a')}\r\nContent-Length: 0\r\n`;
  const socket = connect({ port: here.port, host: '127.0.0.1' });
  socket.write(`POST ${path} HTTP/1.1\r\n${headers}\r\n`);
  const [back] = await once(socket, 'data');
  socket.destroy();
  expect(String(back)).toMatch(/^HTTP\/1.1 200/);
  expect(String(back)).not.toContain('websocket');
});

it('bytes arrive as they were sent, both ways', async () => {
  const hash = createHash('sha256');
  const body = randomBytes(24 * 1024 * 1024 + 17);
  await using here = await gatewayBench(async (request, response) => {
    for await (const piece of request) hash.update(piece);
    response.end(body);
  });
  here.held('a', running);
  const headers = { authorization: `Token ${here.token('job', 'a')}` };
  const response = await fetch(`${here.url}${path}`, { method: 'POST', headers, body });
  const back = Buffer.from(await response.arrayBuffer());
  expect(hash.digest('hex')).toBe(createHash('sha256').update(body).digest('hex'));
  expect(back.equals(body)).toBe(true);
});

it('who asks first whether to send is told to', async () => {
  const seen: string[] = [];
  await using here = await gatewayBench(async (request, response) => {
    seen.push(String(request.headers.expect), await bodyOf(request));
    response.end('{}');
  });
  here.held('a', running);
  const head = `POST ${path} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\nAuthorization: Token ${here.token('job', 'a')}`;
  const socket = connect({ port: here.port, host: '127.0.0.1' });
  socket.write(`${head}\r\n\r\n`);
  const [first] = await once(socket, 'data');
  expect(String(first)).toMatch(/^HTTP\/1.1 100/);
  socket.write('{}');
  const [second] = await once(socket, 'data');
  socket.destroy();
  expect(String(second)).toMatch(/^HTTP\/1.1 200/);
  expect(seen).toEqual(['undefined', '{}']);
});

it('closing cuts what is under way, and waits for it', async () => {
  const { promise: came, resolve: come } = Promise.withResolvers<void>();
  await using here = await gatewayBench(() => come());
  here.held('a', running);
  const call = here.call('POST', path, here.token('job', 'a'), {}).then(
    ({ status }) => status,
    () => 'cut',
  );
  await came;
  await here.gateway.close();
  expect(await call).not.toBe(200);
  await expect(here.call('POST', path, here.token('job', 'a'), {})).rejects.toThrow();
});

it('a body that reaches here is sent on as one, also with a method that usually has none', async () => {
  const seen: string[] = [];
  const service = await listening(async (request, response) => {
    seen.push(`${request.method} ${request.headers['transfer-encoding']} ${await bodyOf(request)}`);
    response.end();
  });
  const upstreams = createUpstreams({ proxies: noProxies, keeping: { timeout: 30_000 } });
  const door = await listening((request, response) => {
    const origin = new URL(`http://127.0.0.1:${service.port}`);
    const target = { method: request.method ?? '', origin, path: '/', headers: requestHeaders(request) };
    const { signal } = new AbortController();
    void forwardStream({ upstreams, target, request, response, idleMs: 30_000, signal, clean: (text) => text });
  });
  for (const method of ['GET', 'DELETE', 'OPTIONS']) {
    const head = `${method} / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n`;
    await raw(door.port, `${head}5\r\nhello\r\n0\r\n\r\n`);
  }
  upstreams.close();
  await stopped(door.server);
  await stopped(service.server);
  expect(seen).toEqual(['GET chunked hello', 'DELETE chunked hello', 'OPTIONS chunked hello']);
});
