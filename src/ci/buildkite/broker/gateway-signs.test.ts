/** What an agent's calls say of it: which of them show that it lives, and that it knows what became of its job. */
import { describe, expect, it } from 'vitest';
import { gatewayBench, jobId } from './testing-gateway.ts';

const states = { 200: '{"state":"running"}' } as Readonly<Record<number, string>>;

async function answering(status: number) {
  const here = await gatewayBench((_, response) => {
    response.statusCode = status;
    response.end(states[status] ?? (status === 304 ? undefined : '{}'));
  });
  here.held('a', { shown: { phase: 'running' }, trusted: false });
  return here;
}

describe('a heartbeat', () => {
  it.each([200, 500, 503, 429])('that the service answers with %i is a sign of life', async (status) => {
    await using here = await answering(status);
    await here.call('POST', '/v3/heartbeat', here.token('session', 'a'), {});
    expect(here.signs).toEqual(['a life']);
  });

  it('that finds no service is one', async () => {
    await using here = await answering(200);
    here.book.update('a', { endpoint: 'http://127.0.0.1:9/v3' });
    await here.call('POST', '/v3/heartbeat', here.token('session', 'a'), {});
    expect(here.signs).toEqual(['a life']);
  });

  it.each([401, 404, 422])('that the service refuses with %i is none', async (status) => {
    await using here = await answering(status);
    await here.call('POST', '/v3/heartbeat', here.token('session', 'a'), {});
    expect(here.signs).toEqual([]);
  });
});

describe('the question for the state of a job', () => {
  it.each([200, 500, 503, 429])("that the service answers with %i is the agent's own", async (status) => {
    await using here = await answering(status);
    await here.call('GET', `/v3/jobs/${jobId}`, here.token('job', 'a'));
    expect(here.signs).toEqual(['a state']);
  });

  it.each([304, 401, 404, 204])('that the service answers with %i has told it nothing', async (status) => {
    await using here = await answering(status);
    await here.call('GET', `/v3/jobs/${jobId}`, here.token('job', 'a'));
    expect(here.signs).toEqual([]);
  });

  it('that is cut before its answer has told it nothing', async () => {
    const abort = new AbortController();
    const over = Promise.withResolvers<void>();
    await using here = await gatewayBench((request) => {
      request.once('close', () => over.resolve());
      abort.abort();
    });
    here.held('a', { shown: { phase: 'running' } });
    const headers = { authorization: `Token ${here.token('job', 'a')}` };
    await fetch(`${here.url}/v3/jobs/${jobId}`, { headers, signal: abort.signal }).catch(() => {});
    await over.promise;
    await here.restart();
    expect(here.signs).toEqual([]);
  });
});

it('a result that is on its way is one that the service may know', async () => {
  await using here = await answering(503);
  await here.call('PUT', `/v3/jobs/${jobId}/finish`, here.token('job', 'a'), { exit_status: '0' });
  expect(here.signs).toEqual(['a result']);
});

it.each([
  ['GET', '/v3/nothing', 'job'],
  ['GET', '/v3/ping', 'job'],
  ['POST', '/v3/heartbeat', 'job'],
  ['POST', '/v3/heartbeat', 'once'],
  ['GET', '/v3/jobs/another', 'job'],
  ['GET', '/v3/token', 'session'],
  ['POST', `/v3/jobs/${jobId}/data/get`, 'job'],
] as const)('%s %s with the token of a %s says nothing of an agent', async (method, path, kind) => {
  await using here = await answering(200);
  await here.call(method, path, here.token(kind, 'a'), method === 'POST' ? {} : undefined);
  expect(here.signs).toEqual([]);
});
