import { once } from 'node:events';
import { request } from 'node:http';
import { expect, it } from 'vitest';
import { createUploadAddresses } from './artifacts.ts';
import { gatewayBench } from './testing-gateway.ts';

const running = { shown: { phase: 'running' } } as const;
const sealed = (origin: string): string =>
  `/upload/${createUploadAddresses(Buffer.alloc(32, 7)).seal({ agent: 'a', origin, path: '/bucket' })}`;

it('an upload goes to no address of this host, unless the service itself is at one', async () => {
  const seen: string[] = [];
  await using here = await gatewayBench((request, response) => {
    seen.push(request.url ?? '');
    response.end();
  });
  const near = new URL(here.service).origin;
  here.held('a', { ...running, endpoint: 'https://agent.example/v3' });
  for (const origin of [near, near.replace('127.0.0.1', '2130706433'), near.replace('127.0.0.1', '[::ffff:127.0.0.1]')]) {
    const refused = await here.call('PUT', sealed(new URL(origin).origin), null, 'x');
    expect(refused).toMatchObject({ status: 403, json: { message: expect.any(String) } });
  }
  expect(seen).toEqual([]);
  here.held('a', running);
  expect((await here.call('PUT', sealed(near), null, 'x')).status).toBe(200);
  expect(seen).toEqual(['/bucket']);
});

it('an upload that began while its job ran is cut a while after the end of that', async () => {
  const { promise: came, resolve: come } = Promise.withResolvers<void>();
  const { promise: ended, resolve: end } = Promise.withResolvers<void>();
  await using here = await gatewayBench(
    (request) => {
      request.on('error', () => {}).once('close', () => end());
      request.once('data', () => come()).resume();
    },
    { afterJobMs: 20 },
  );
  here.held('a', running);
  const out = request({ port: here.port, host: '127.0.0.1', method: 'PUT', path: sealed(new URL(here.service).origin) });
  const cut = once(out, 'error');
  out.write('x');
  await came;
  here.book.update('a', { shown: { phase: 'finished' } });
  await Promise.all([ended, cut]);
});
