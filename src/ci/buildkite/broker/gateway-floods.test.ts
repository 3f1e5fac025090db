/** A job that asks without end costs the broker little, and the others nothing. */
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { describe, expect, it } from 'vitest';
import { createUploadAddresses } from './artifacts.ts';
import { type GatewayBench, gatewayBench, jobId } from './testing-gateway.ts';

const running = { shown: { phase: 'running' } } as const;

/** A body that is announced, begun and never ended. */
function unfinished(here: GatewayBench, id: string, bytes: number): { readonly socket: Socket; readonly answer: Promise<string> } {
  const socket = connect({ port: here.port, host: '127.0.0.1' }).on('error', () => {});
  const head = `POST /v3/jobs/${jobId}/artifacts HTTP/1.1\r\nHost: x\r\nAuthorization: Token ${here.token('job', id)}\r\n`;
  socket.write(`${head}Content-Length: ${bytes + 1}\r\n\r\n${'x'.repeat(bytes)}`);
  const answer = Promise.race([once(socket, 'data').then(([data]) => String(data)), once(socket, 'close').then(() => 'cut')]);
  return { socket, answer };
}

const create = (here: GatewayBench, id: string) => here.call('POST', `/v3/jobs/${jobId}/artifacts`, here.token('job', id), {});

describe('bodies that do not end', () => {
  it('are few at a time for one agent, and none of another’s concern', async () => {
    await using here = await gatewayBench((_, response) => response.end('{}'), { reading: 2 });
    for (const id of ['a', 'b']) here.held(id, running);
    const held = [unfinished(here, 'a', 10), unfinished(here, 'a', 10), unfinished(here, 'a', 10)];
    expect(await Promise.race(held.map(({ answer }) => answer))).toMatch(/^HTTP\/1.1 429/);
    expect((await create(here, 'a')).status).toBe(429);
    expect((await create(here, 'b')).status).toBe(200);
    for (const { socket } of held) socket.destroy();
    await expect.poll(async () => (await create(here, 'a')).status).toBe(200);
  });

  it('make room for others when there are too many in all: the largest first', async () => {
    await using here = await gatewayBench((_, response) => response.end('{}'), { readBytes: 100_000 });
    for (const id of ['a', 'b']) here.held(id, running);
    const large = unfinished(here, 'a', 60_000);
    const larger = unfinished(here, 'a', 90_000);
    expect(await Promise.race([large.answer, larger.answer])).toMatch(/^HTTP\/1.1 429/);
    const small = unfinished(here, 'b', 39_000);
    expect((await create(here, 'b')).status).toBe(200);
    const smaller = unfinished(here, 'b', 39_000);
    expect(await large.answer).toBe('cut');
    expect((await create(here, 'b')).status).toBe(200);
    for (const { socket } of [large, larger, small, smaller]) socket.destroy();
  });

  it('are not even begun when they say that they are too large', async () => {
    await using here = await gatewayBench((_, response) => response.end('{}'), { batchBytes: 100 });
    here.held('a', running);
    const { socket, answer } = unfinished(here, 'a', 100);
    expect(await answer).toMatch(/^HTTP\/1.1 413/);
    socket.destroy();
  });
});

describe('calls that do not wait for their answers', () => {
  const pipelined = (token: string, calls: number) =>
    `GET /v3/jobs/${jobId} HTTP/1.1\r\nHost: x\r\nAuthorization: Token ${token}\r\n\r\n`.repeat(calls);

  it.each(['of a job', 'of a stranger'])('%s close their connection, and at most the first one is answered', async (whose) => {
    let served = 0;
    await using here = await gatewayBench((_, response) => {
      served += 1;
      response.end('{}');
    });
    here.held('a', running);
    const token = whose === 'of a job' ? here.token('job', 'a') : 'nobody';
    const socket = connect({ port: here.port, host: '127.0.0.1' }).on('error', () => {});
    const closed = once(socket, 'close');
    let answers = '';
    socket.on('data', (data) => {
      answers += data;
    });
    socket.end(pipelined(token, 400));
    await closed;
    expect(answers.split('HTTP/1.1').length).toBeLessThanOrEqual(2);
    expect((await here.call('GET', `/v3/jobs/${jobId}`, here.token('job', 'a'))).status).toBe(200);
    expect(served).toBeLessThanOrEqual(2);
  });
});

describe('calls that come one after the other', () => {
  it('wait beyond a burst until their turn comes by the rate, and are all served', async () => {
    await using here = await gatewayBench((_, response) => response.end('{}'), { perSecond: 20, burst: 2 });
    here.held('a', running);
    here.held('b', running);
    const begun = performance.now();
    for (let at = 0; at < 6; at++) {
      expect((await here.call('GET', `/v3/jobs/${jobId}`, here.token('job', 'a'))).status).toBe(200);
    }
    // Two or three without a wait, the others 50 ms apart.
    expect(performance.now() - begun).toBeGreaterThan(140);
  });

  it('keep their connection, unless nobody knows whose they are', async () => {
    await using here = await gatewayBench((_, response) => response.end('{}'));
    here.held('a', running);
    const path = `/v3/jobs/${jobId}`;
    expect((await here.call('GET', path, here.token('job', 'a'))).headers.get('connection')).toBe('keep-alive');
    expect((await here.call('GET', path, 'nobody')).headers.get('connection')).toBe('close');
    // Read to its end, so that the answer is, too.
    expect((await here.call('POST', `${path}/chunks`, 'nobody', 'x'.repeat(2_000_000))).status).toBe(401);
  });
});

describe('what is said again and again', () => {
  it('to leave in the middle of a job is written down only where something changes', async () => {
    await using here = await gatewayBench((_, response) => response.end('{}'));
    here.held('a', { ...running, livesAlone: true });
    const writes: unknown[] = [];
    const { update } = here.book;
    here.book.update = (id, patch, lazily) => {
      writes.push([patch, lazily]);
      return update(id, patch, lazily);
    };
    const session = here.token('session', 'a');
    for (let at = 0; at < 5; at++) expect((await here.call('POST', '/v3/disconnect', session)).status).toBe(200);
    expect(writes).toEqual([[{ livesAlone: false }, true]]);
    for (let at = 0; at < 5; at++) {
      await here.call('POST', '/v3/heartbeat', session, {});
      await here.call('POST', '/v3/disconnect', session);
    }
    expect(writes.length).toBeLessThanOrEqual(3);
  });

  it('to start, although the service does not let it, is written down once', async () => {
    await using here = await gatewayBench((_, response) => response.writeHead(422).end('{}'));
    here.held('a', { shown: { phase: 'connected' } });
    let writes = 0;
    const { update } = here.book;
    here.book.update = (...change) => {
      writes += 1;
      return update(...change);
    };
    for (let at = 0; at < 5; at++) await here.call('PUT', `/v3/jobs/${jobId}/start`, here.token('job', 'a'), {});
    expect(writes).toBe(1);
  });
});

describe('the broker’s own log', () => {
  const build = 'b0000000-0000-4000-8000-000000000001';
  const deep = `${'['.repeat(30_000)}${']'.repeat(30_000)}`;
  const wide = '[{"a":"[[[[\\"{{{{"},'.repeat(100);

  it.each([
    ['a result', 'PUT', `/v3/jobs/${jobId}/finish`, '"exit_status":"0"', 422],
    ['the name of a build', 'POST', '/v3/steps/s/export', `"build_id":"${build}"`, 403],
  ])('is not filled by %s that is nested deeper than anybody reads', async (_, method, path, known, status) => {
    await using here = await gatewayBench((_, response) => response.end('{}'));
    here.held('a', { shown: { phase: 'running', job: { id: jobId, env: { BUILDKITE_BUILD_ID: build } } }, trusted: false });
    const token = here.token('job', 'a');
    for (let at = 0; at < 5; at++) expect((await here.call(method, path, token, `{${known},"x":${deep}}`)).status).toBe(status);
    expect(here.log.length).toBe(1);
    const flat = `{${known},"x":${JSON.stringify(wide)},"y":[[[1]]]}`;
    expect((await here.call(method, path, token, flat)).status).toBe(200);
  });

  it('is not filled by an agent that registers itself so', async () => {
    await using here = await gatewayBench((_, response) => response.end('{}'));
    here.carried('a');
    for (let at = 0; at < 5; at++) {
      expect((await here.call('POST', '/v3/register', here.token('once', 'a'), `{"x":${deep}}`)).status).toBe(422);
    }
    expect(here.log.length).toBeLessThan(2);
  });

  it('says once of an agent that a call of it could not be served', async () => {
    await using here = await gatewayBench((_, response) => response.end('{}'));
    here.held('a');
    here.book.update = () => {
      throw new Error('nobody foresaw this');
    };
    for (let at = 0; at < 5; at++) expect((await here.call('POST', '/v3/connect', here.token('session', 'a'))).status).toBe(500);
    expect(here.log).toEqual([expect.stringContaining('nobody foresaw this')]);
  });

  it('says once of an agent where its uploads may not go', async () => {
    await using here = await gatewayBench((_, response) => response.end('{}'));
    here.held('a', { ...running, endpoint: 'https://agent.example/v3' });
    const addresses = createUploadAddresses(Buffer.alloc(32, 7));
    for (let at = 0; at < 5; at++) {
      const sealed = addresses.seal({ agent: 'a', origin: 'http://127.0.0.1:1', path: `/${at}` });
      expect((await here.call('PUT', `/upload/${sealed}`, null, 'x')).status).toBe(403);
    }
    expect(here.log).toEqual([expect.stringContaining('upload')]);
  });
});
