/** A job's result, said by its agent: written down before the service hears it, so that no moment in between can lose it. */
import { expect, it } from 'vitest';
import { bodyOf, gatewayBench, jobId } from './testing-gateway.ts';

const passed = { exitStatus: '0', signal: null, signalReason: null };

it('a result that the service took as the broker was killed counts, once it is said again', async () => {
  const { promise: came, resolve: come } = Promise.withResolvers<void>();
  let calls = 0;
  await using here = await gatewayBench(async (request, response) => {
    await bodyOf(request);
    calls += 1;
    if (calls === 1) come();
    else response.writeHead(401).end('{"message":"the job is over"}');
  });
  here.held('a', { shown: { phase: 'running' } });
  const finish = () => here.call('PUT', `/v3/jobs/${jobId}/finish`, here.token('job', 'a'), { exit_status: '0' });
  const cut = expect(finish()).rejects.toThrow();
  await came;
  await here.restart();
  await cut;
  expect(here.book.get('a')).toMatchObject({ shown: { phase: 'running', finished: null }, finishing: passed });
  expect((await finish()).status).toBe(200);
  expect(here.book.get('a')?.shown).toMatchObject({ phase: 'finished', finished: passed });
});

it('a result that the service refuses from the first is none', async () => {
  await using here = await gatewayBench(async (request, response) => {
    await bodyOf(request);
    response.writeHead(422).end('{}');
  });
  here.held('a', { shown: { phase: 'running' } });
  for (let at = 0; at < 2; at++) {
    const told = await here.call('PUT', `/v3/jobs/${jobId}/finish`, here.token('job', 'a'), { exit_status: '0' });
    expect(told.status).toBe(422);
  }
  expect(here.book.get('a')).toMatchObject({ shown: { phase: 'running' }, finishing: null });
});

it('a result goes on although it cannot be written down', async () => {
  await using here = await gatewayBench((_, response) => response.end('{}'));
  here.held('a', { shown: { phase: 'running' } });
  const { update } = here.book;
  here.book.update = (id, patch, lazily) => {
    if (patch.finishing != null) throw new Error('the disk is full');
    return update(id, patch, lazily);
  };
  const told = await here.call('PUT', `/v3/jobs/${jobId}/finish`, here.token('job', 'a'), { exit_status: '0' });
  expect(told.status).toBe(200);
  expect(here.book.get('a')?.shown).toMatchObject({ phase: 'finished', finished: passed });
});
