import { once } from 'node:events';
import { type AddressInfo, createServer as createPlainServer } from 'node:net';
import { inspect } from 'node:util';
import { describe, expect, it } from 'vitest';
import { failureOf, json, page, patient, type Reply, samplePat, serve } from '../../../test/kit/azure.ts';
import { handClock } from '../../../test/kit/core.ts';
import { systemClock } from '../../system/system-clock.ts';
import { sendOnce } from '../kit/rest.ts';

const authorization = `Basic ${Buffer.from(`:${samplePat}`).toString('base64')}`;

function ask(url: string, more: { clock?: typeof systemClock; timeout?: number; most?: number; signal?: AbortSignal } = {}) {
  const { clock = systemClock, timeout = 20_000, most = 1024 * 1024, signal = patient } = more;
  const request = { method: 'GET', url, headers: { Authorization: authorization }, doing: 'look' } as const;
  return sendOnce(request, { clock, fetch, timeout, most }, signal);
}

/** Asks a server of that kind. */
async function answerOf(reply: Reply, more: Parameters<typeof ask>[1] = {}) {
  await using server = await serve(reply);
  return await ask(`${server.url}/x?key=secret`, more);
}

const portOfNobody = async (): Promise<number> => {
  const server = createPlainServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
};

it('gives what was answered, whatever it is', async () => {
  expect(await answerOf(json({ a: 'ä' }, 418))).toMatchObject({ status: 418, text: '{"a":"ä"}' });
  expect(await answerOf(page(204, ''))).toMatchObject({ status: 204, text: '' });
});

it('follows no redirect: the credential reaches no other host', async () => {
  await using other = await serve(json({}));
  const found = await answerOf((_, response) => response.writeHead(302, { Location: `${other.url}/x` }).end());
  expect(found.status).toBe(302);
  expect(other.seen).toEqual([]);
});

describe('no answer', () => {
  const silent: Reply = () => {};
  const half: Reply = (_, response) => {
    response.writeHead(200, { 'Content-Type': 'application/json' });
    response.write('{"value":[');
  };
  const reset: Reply = (_, response) => response.socket?.resetAndDestroy();

  it('nothing listens', async () => {
    const error = await failureOf(ask(`http://127.0.0.1:${await portOfNobody()}/acme`));
    expect(error).toMatchObject({
      code: 'E_CI_UNREACHABLE',
      retry: true,
      message: expect.stringMatching(
        /^The service cannot be reached at http:\/\/127\.0\.0\.1:\d+\/acme: nothing listens there \(ECONNREFUSED\), so onejob cannot look now\.$/,
      ),
      hint: expect.stringContaining('HTTPS_PROXY'),
    });
  });

  it('its port is one that fetch refuses', async () => {
    const error = await failureOf(ask('http://127.0.0.1:1/acme'));
    expect(error).toMatchObject({
      message: expect.stringContaining(': port 1 is kept for other protocols'),
      hint: expect.stringContaining('port'),
    });
  });

  it('there is no such host', async () => {
    const error = await failureOf(ask('http://onejob.invalid/acme'));
    expect(error).toMatchObject({ code: 'E_CI_UNREACHABLE', message: expect.stringMatching(/ENOTFOUND|EAI_AGAIN/) });
  });

  it('it is cut', async () => {
    const error = await failureOf(answerOf(reset));
    expect(error).toMatchObject({
      code: 'E_CI_UNREACHABLE',
      message: expect.stringMatching(/the connection was cut \((ECONNRESET|UND_ERR_SOCKET)\)/),
    });
  });

  it('it is cut half-way', async () => {
    const error = await failureOf(
      answerOf((request, response, nth) => {
        half(request, response, nth);
        setImmediate(() => response.socket?.destroy());
      }),
    );
    expect(error).toMatchObject({ code: 'E_CI_UNREACHABLE', message: expect.stringContaining('the connection was cut') });
  });

  it('it stays silent', async () => {
    expect(await failureOf(answerOf(silent, { timeout: 50 }))).toMatchObject({
      code: 'E_CI_UNREACHABLE',
      message: expect.stringMatching(/: no answer within 0\.05 s, so/),
    });
  });

  it('it stops half-way', async () => {
    expect(await failureOf(answerOf(half, { timeout: 2_000 }))).toMatchObject({
      code: 'E_CI_UNREACHABLE',
      message: expect.stringContaining('the answer stopped half-way and was given up after 2 s'),
    });
  });

  it('it does not speak TLS', async () => {
    await using server = await serve(json({}));
    const error = await failureOf(ask(server.url.replace('http:', 'https:')));
    expect(error).toMatchObject({ code: 'E_CI_UNREACHABLE', message: expect.stringContaining('it does not speak TLS there') });
  });

  it('a caller that gives up gets its own reason at once', async () => {
    const ended = new AbortController();
    await using server = await serve(() => ended.abort(new Error('enough')));
    expect(await failureOf(ask(server.url, { signal: ended.signal }))).toMatchObject({ message: 'enough' });
    expect(await failureOf(ask(server.url, { signal: ended.signal }))).toMatchObject({ message: 'enough' });
    expect(server.seen.length).toBe(1);
  });
});

it('an answer without end is not kept', async () => {
  const endless: Reply = (_, response) => {
    response.writeHead(200, { 'Content-Type': 'application/json' });
    const more = () => {
      while (response.write('x'.repeat(16_384)) && !response.destroyed);
    };
    response.on('drain', more);
    more();
  };
  expect(await failureOf(answerOf(endless))).toMatchObject({
    code: 'E_CI_ANSWER',
    message: expect.stringContaining('more than 1 MiB'),
  });
});

it.each([
  ['a certificate of one’s own', 'DEPTH_ZERO_SELF_SIGNED_CERT', 'its certificate is not accepted', 'NODE_EXTRA_CA_CERTS'],
  ['an expired one', 'CERT_HAS_EXPIRED', 'its certificate is not accepted', 'clock'],
  ['another host’s', 'ERR_TLS_CERT_ALTNAME_INVALID', 'its certificate is not accepted', 'NODE_EXTRA_CA_CERTS'],
  ['no way there', 'EHOSTUNREACH', 'there is no way to its host', 'HTTPS_PROXY'],
])('%s', async (_, code, why, hint) => {
  const broken = async () => {
    throw new TypeError('fetch failed', { cause: Object.assign(new Error(`about ${authorization}`), { code }) });
  };
  const request = { method: 'GET', url: 'https://x.example/acme', headers: {}, doing: 'look' } as const;
  const error = await failureOf(sendOnce(request, { clock: systemClock, fetch: broken, timeout: 1000, most: 10 }, patient));
  expect(error).toMatchObject({
    code: 'E_CI_UNREACHABLE',
    message: expect.stringContaining(`${why} (${code})`),
    hint: expect.stringContaining(hint),
  });
});

it('a proxy that refuses is told apart', async () => {
  const broken = async () => {
    const refused = new Error('Proxy response (407) !== 200 when HTTP Tunneling');
    throw new TypeError('fetch failed', { cause: Object.assign(refused, { code: 'UND_ERR_ABORTED' }) });
  };
  const request = { method: 'GET', url: 'https://x.example/acme', headers: {}, doing: 'look' } as const;
  const error = await failureOf(sendOnce(request, { clock: systemClock, fetch: broken, timeout: 1000, most: 10 }, patient));
  expect(error).toMatchObject({ message: expect.stringContaining('the proxy in front of it answered 407') });
});

it('no timer is left behind', async () => {
  const clock = handClock();
  await answerOf(json({}), { clock });
  await failureOf(answerOf((_, response) => response.destroy(), { clock }));
  expect(clock.next()).toBeNull();
});

it('no error shows what was sent', async () => {
  const bad = 'Basic über\nhunter2';
  const request = { method: 'GET', url: 'http://127.0.0.1:1/', headers: { Authorization: bad }, doing: 'look' } as const;
  const errors = [
    await failureOf(sendOnce(request, { clock: systemClock, fetch, timeout: 1000, most: 10 }, patient)),
    await failureOf(answerOf((_, response) => response.socket?.resetAndDestroy())),
    await failureOf(answerOf(() => {}, { timeout: 20 })),
  ];
  const text = inspect(errors, { depth: 10 });
  for (const secret of ['hunter2', samplePat, authorization, 'key=secret']) expect(text).not.toContain(secret);
});
