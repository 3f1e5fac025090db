/** One call is one call: whatever its body says, the service reads no second one in it, and no other agent's answer moves. */
import { once } from 'node:events';
import type { IncomingMessage } from 'node:http';
import { connect } from 'node:net';
import { describe, expect, it } from 'vitest';
import { bodyOf, gatewayBench, jobId } from './testing-gateway.ts';

const running = { shown: { phase: 'running' } } as const;
const inner = 'PUT /v3/jobs/stolen/accept HTTP/1.1\r\nHost: x\r\nAuthorization: Token theirs\r\nContent-Length: 190\r\n\r\n';
const chunked = `${inner.length.toString(16)}\r\n${inner}\r\n0\r\n\r\n`;

const framings = {
  chunks: `Transfer-Encoding: chunked\r\n\r\n${chunked}`,
  'a length': `Content-Length: ${inner.length}\r\n\r\n${inner}`,
  both: `Content-Length: ${inner.length}\r\nTransfer-Encoding: chunked\r\n\r\n${chunked}`,
  'other chunks': `Transfer-Encoding: gzip, chunked\r\n\r\n${chunked}`,
};

async function service() {
  const seen: { readonly line: string; readonly body: string; readonly port: number | undefined }[] = [];
  const bench = await gatewayBench(async (request: IncomingMessage, response) => {
    const line = `${request.method} ${request.url}`;
    seen.push({ line, body: await bodyOf(request), port: request.socket.remotePort });
    response.end(JSON.stringify({ line }));
  });
  bench.held('a', running);
  bench.held('b', running);
  return { ...bench, seen, [Symbol.asyncDispose]: bench[Symbol.asyncDispose] };
}

/** The status of the first answer to these bytes; 0 for none. */
async function raw(port: number, text: string): Promise<number> {
  const socket = connect({ port, host: '127.0.0.1' }).on('error', () => {});
  socket.write(text);
  const back = await Promise.race([once(socket, 'data').then(([bytes]) => String(bytes)), once(socket, 'close').then(() => '')]);
  socket.destroy();
  return Number(/^HTTP\/1\.1 (\d+)/.exec(back)?.[1] ?? 0);
}

const paths = [`/v3/jobs/${jobId}/annotations/x`, '/v3/builds/b/x', `/v3/jobs/${jobId}`];
const methods = ['GET', 'HEAD', 'DELETE', 'OPTIONS', 'TRACE', 'POST', 'PUT', 'PATCH', 'QUERY', 'PROPFIND'];
const cases = methods.flatMap((method) => Object.keys(framings).map((framing) => [method, framing] as const));

describe.each(paths)('to %s', (path) => {
  it.each(cases)('%s with %s stays one call', async (method, framing) => {
    await using here = await service();
    const head = `${method} ${path} HTTP/1.1\r\nHost: x\r\nAuthorization: Token ${here.token('job', 'a')}\r\n`;
    const status = await raw(here.port, `${head}${framings[framing as keyof typeof framings]}`);
    // Of the next one in the same connection, were there one, this would be the answer.
    const next = await here.call('GET', `/v3/jobs/${jobId}`, here.token('job', 'b'));
    expect(next.json).toEqual({ line: `GET /v3/jobs/${jobId}` });
    const others = here.seen.filter(({ line }) => line !== `GET /v3/jobs/${jobId}`);
    if (['POST', 'PUT', 'PATCH'].includes(method) && (framing === 'chunks' || framing === 'a length')) {
      expect(status).toBe(200);
      expect(others.map(({ line, body }) => [line, body])).toEqual([[`${method} ${path}`, inner]]);
    } else {
      expect(status).toBe(400);
      expect(others).toEqual([]);
    }
  });
});

it.each(['GET', 'DELETE'])('%s without a body goes on, also when it says that it has none', async (method) => {
  await using here = await service();
  const head = `${method} /v3/jobs/${jobId}/annotations/x HTTP/1.1\r\nHost: x\r\nAuthorization: Token ${here.token('job', 'a')}\r\n`;
  expect(await raw(here.port, `${head}\r\n`)).toBe(200);
  expect(await raw(here.port, `${head}Content-Length: 0\r\n\r\n`)).toBe(200);
  expect(here.seen.map(({ body }) => body)).toEqual(['', '']);
});

it('no agent has a connection to the service that another has had', async () => {
  await using here = await service();
  const ask = (id: string) => here.call('POST', `/v3/jobs/${jobId}/data/get`, here.token('job', id), {});
  for (const id of ['a', 'b', 'a', 'b']) await ask(id);
  const [first, second, third, fourth] = here.seen.map(({ port }) => port);
  expect(first).not.toBe(second);
  expect([third, fourth]).toEqual([first, second]);
});

it('an agent’s connections end with it', async () => {
  const closed: string[] = [];
  await using here = await gatewayBench((request, response) => {
    request.socket.once('close', () => closed.push('closed'));
    response.end('{}');
  });
  here.held('a', running);
  await here.call('POST', `/v3/jobs/${jobId}/data/get`, here.token('job', 'a'), {});
  expect(closed).toEqual([]);
  here.book.update('a', { shown: { phase: 'gone' } });
  await expect.poll(() => closed).toEqual(['closed']);
});
