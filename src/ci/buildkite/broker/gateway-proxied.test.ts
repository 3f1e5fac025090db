/** What an agent and its job say, on its way through a proxy: only that knows where the service and the store of artifacts are. */
import { createHash, randomBytes } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import { proxyPassword } from '../../../../test/support/proxy.ts';
import { lacks } from '../../../../test/support/require.ts';
import { createUploadAddresses } from './artifacts.ts';
import { gatewayBench, jobId, serviceTokens } from './testing-gateway.ts';
import { type Authorities, authorities, proxiedService } from './testing-proxied.ts';

const running = { shown: { phase: 'running' }, endpoint: 'https://agent.test/v3', base: 'https://agent.test/v3' } as const;
const chunks = `/v3/jobs/${jobId}/chunks?sequence=1&offset=0&size=5`;

interface Got {
  readonly what: string;
  readonly token: string | undefined;
  readonly sha: string;
  readonly bytes: number;
}

async function gotOf(request: IncomingMessage): Promise<Got> {
  const hash = createHash('sha256');
  let bytes = 0;
  for await (const piece of request) {
    hash.update(piece);
    bytes += piece.length;
  }
  const { method, url, headers } = request;
  return { what: `${method} ${headers.host}${url}`, token: headers.authorization, sha: hash.digest('hex'), bytes };
}

describe.skipIf(lacks('openssl'))('behind a proxy', () => {
  let known: Authorities;
  beforeAll(() => {
    known = authorities();
  });
  afterAll(() => known[Symbol.dispose]());

  async function stage(patience = 30_000) {
    const got: Got[] = [];
    const behind = await proxiedService(known.own, async (request, response) => {
      got.push(await gotOf(request));
      const url = 'https://store.test/bucket';
      const created = { id: 'b', upload_instructions: { action: { url, path: '/bucket/key', method: 'POST' } } };
      response.end(JSON.stringify(request.url?.endsWith('/artifacts') ? created : {}));
    });
    const bench = await gatewayBench(() => {}, { idleMs: patience, wholeMs: patience }, behind.proxies);
    onTestFinished(async () => {
      await bench[Symbol.asyncDispose]();
      await behind[Symbol.asyncDispose]();
    });
    bench.held('a', running);
    return { ...bench, proxy: behind.proxy, got, job: bench.token('job', 'a') };
  }

  it('an agent that carries itself registers and takes its job', async () => {
    const { carried, call, token, got, proxy } = await stage();
    carried('b', { base: running.base, endpoint: running.endpoint });
    await call('POST', '/v3/register', token('once', 'b'), { name: 'x', meta_data: [] });
    expect(got.map(({ what, token: with_ }) => [what, with_])).toEqual([
      ['POST agent.test/v3/register', `Token ${serviceTokens.registration}`],
    ]);
    expect(proxy.seen).toEqual(['CONNECT agent.test:443']);
  });

  it('a log, and an artifact with every byte of it, go through tunnels of their own', async () => {
    const { call, job, got, proxy, url } = await stage();
    expect((await call('POST', chunks, job, 'hello')).status).toBe(200);
    const created = await call('POST', `/v3/jobs/${jobId}/artifacts`, job, { artifacts: [] });
    const { action } = (created.json as { upload_instructions: { action: { path: string } } }).upload_instructions;
    const body = randomBytes(24 * 1024 * 1024 + 17);
    const answer = await fetch(`${url}${action.path}`, { method: 'POST', body });
    expect(answer.status).toBe(200);
    expect(got.map(({ what }) => what)).toEqual([
      `POST agent.test${chunks}`,
      `POST agent.test/v3/jobs/${jobId}/artifacts`,
      'POST store.test/bucket/key',
    ]);
    expect(got[2]).toMatchObject({ token: undefined, bytes: body.length, sha: createHash('sha256').update(body).digest('hex') });
    expect(proxy.seen).toEqual(['CONNECT agent.test:443', 'CONNECT store.test:443']);
  });

  it.each([
    [407, 'the proxy before it answered 407'],
    [403, 'the proxy before it answered 403'],
    ['hangs up', 'the proxy before it hung up'],
    ['mute', 'nothing moved'],
  ] as const)('one that does %s costs a try, and tells a job neither its address nor its password', async (mood, why) => {
    const { call, job, got, proxy, log } = await stage(mood === 'mute' ? 1_000 : undefined);
    proxy.mood = mood;
    const lost = await call('POST', chunks, job, 'hello');
    expect(lost).toMatchObject({ status: 502, json: { message: expect.stringContaining(why) } });
    expect((await call('PUT', `/v3/jobs/${jobId}/finish`, job, {})).status).toBe(502);
    for (const text of [lost.text, ...log]) {
      expect(text).not.toContain(proxyPassword);
      expect(text).not.toContain(String(proxy.port));
    }
    expect(got).toEqual([]);
    proxy.mood = 'well';
    expect((await call('POST', chunks, job, 'hello')).status).toBe(200);
  });

  it('without TLS its wish for a password is not taken for the service’s word', async () => {
    const { call, book, job, proxy } = await stage();
    book.update('a', { endpoint: 'http://agent.test/v3' });
    expect((await call('POST', chunks, job, 'hello')).status).toBe(200);
    proxy.mood = 407;
    const refused = { status: 502, json: { message: expect.stringContaining('the proxy before it answered 407') } };
    expect(await call('POST', chunks, job, 'hello')).toMatchObject(refused);
    expect(await call('PUT', `/v3/jobs/${jobId}/finish`, job, {})).toMatchObject(refused);
  });

  it('no address of a host or its network is asked of it, as none is without one', async () => {
    const { call, proxy } = await stage();
    const addresses = createUploadAddresses(Buffer.alloc(32, 7));
    for (const host of ['127.0.0.1', '2130706433', 'localhost', '169.254.169.254', '10.1.2.3', '[::ffff:a9fe:a9fe]', '[fd00::1]'])
      for (const scheme of ['http', 'https']) {
        const { origin } = new URL(`${scheme}://${host}/`);
        const path = `/upload/${addresses.seal({ agent: 'a', origin, path: '/latest/meta-data' })}`;
        expect((await call('PUT', path, null, 'x')).status, origin).toBe(403);
      }
    expect(proxy.seen).toEqual([]);
  });

  it('an agent that goes away in the middle of a tunnel that is not there yet leaves nothing waiting', async () => {
    const { url, job, proxy, gateway } = await stage();
    proxy.mood = 'silent';
    const leave = new AbortController();
    const headers = { authorization: `Token ${job}` };
    const call = fetch(`${url}${chunks}`, { method: 'POST', headers, body: 'x', signal: leave.signal }).catch(() => 'left');
    await expect.poll(() => proxy.seen.length).toBe(1);
    leave.abort();
    expect(await call).toBe('left');
    await expect.poll(() => proxy.open).toBe(0);
    await gateway.close();
  });
});
