import { afterEach, describe, expect, it } from 'vitest';
import { json, page, type Reply, type Server, serve } from '../../../test/kit/azure.ts';
import { startBuildkite } from '../../../test/standins/buildkite/standin.ts';
import { createOutbound } from '../../http/outbound.ts';
import { noProxies } from '../../http/proxies.ts';
import { systemClock } from '../../system/system-clock.ts';
import { createServiceApi, LaterError, type ServiceApi } from './api.ts';

const patient = new AbortController().signal;
const open: AsyncDisposable[] = [];
afterEach(async () => {
  for (const one of open.splice(0)) await one[Symbol.asyncDispose]();
});

function apiAt(endpoint: string): ServiceApi {
  const outbound = createOutbound(noProxies);
  const api = createServiceApi({ endpoint, version: '1.2.3', clock: systemClock, fetch: outbound.fetch, timeout: 20_000 });
  open.unshift({ [Symbol.asyncDispose]: async () => outbound.close() });
  return api;
}

async function answering(reply: Reply): Promise<{ api: ServiceApi; server: Server }> {
  const server = await serve(reply);
  open.push(server);
  return { api: apiAt(`${server.url}/v3`), server };
}

describe('against the stand-in', () => {
  it('says what a token is for, and counts what waits', async () => {
    const buildkite = await startBuildkite();
    open.push(buildkite);
    buildkite.queueJob({ queue: 'gpu' });
    const api = apiAt(buildkite.endpoint);
    const bound = buildkite.addToken({ kind: 'registration', queue: 'gpu' });
    expect(await api.identity(buildkite.token, patient)).toMatchObject({
      value: { organisation: 'acme', cluster: 'Lab', queue: null },
    });
    expect(await api.identity(bound, patient)).toMatchObject({ value: { queue: 'gpu' } });
    const { value } = await api.counts(buildkite.metricsToken, patient);
    expect([value.scheduled.get('gpu'), value.known.has('default'), value.pollAfter]).toEqual([1, true, 10_000]);
    buildkite.revoke(bound);
    await expect(api.identity(bound, patient)).rejects.toMatchObject({ code: 'E_CI_CREDENTIAL' });
  });
});

it('sends the token as agents do, and says how far apart the clocks are', async () => {
  const date = new Date(Date.now() - 120_000).toUTCString();
  const { api, server } = await answering(
    json({ organization_slug: 'acme', expires_at: '2030-01-31T00:00:00Z' }, 200, { Date: date }),
  );
  const told = await api.identity('bkct_secret', patient);
  expect(server.seen[0]).toMatchObject({
    url: '/v3/token',
    headers: { authorization: 'Token bkct_secret', 'user-agent': 'onejob/1.2.3' },
  });
  expect(told?.value).toMatchObject({ organisation: 'acme', cluster: null, expires: Date.UTC(2030, 0, 31) });
  expect(told?.skew).toBeGreaterThan(-130_000);
  expect(told?.skew).toBeLessThan(-110_000);
});

it('a service that does not know the question is not an error', async () => {
  const { api } = await answering(json({ message: 'Not Found' }, 404));
  expect(await api.identity('bkct_secret', patient)).toBeNull();
});

it.each<[string, Reply, string]>([
  ['a page', page(200), 'E_CI_UNREACHABLE'],
  ['no JSON', page(200, 'OK'), 'E_CI_ANSWER'],
  ['invalid counts', json({ jobs: { queues: { gpu: 7 } } }), 'E_CI_ANSWER'],
  ['a refusal', json({ message: 'No permission: read_metrics' }, 403), 'E_CI_DENIED'],
  ['a refusal that repeats the token', json({ message: 'Unknown token bkct_secret' }, 403), 'E_CI_DENIED'],
  ['a failure', json({ message: 'oops' }, 500), 'E_CI_UNREACHABLE'],
  ['an answer without end', (_, response) => void response.end(Buffer.alloc(9 << 20, 32)), 'E_CI_UNREACHABLE'],
])('%s is told as what it is, without the token', async (_, reply, code) => {
  const { api } = await answering(reply);
  const error: unknown = await api.counts('bkct_secret', patient).catch((found: unknown) => found);
  expect(error).toMatchObject({ code });
  expect(String(error)).not.toContain('bkct_secret');
});

it('a wish to be left alone is passed on', async () => {
  const { api } = await answering(json({ message: 'slow down' }, 429, { 'Retry-After': '40' }));
  const error: unknown = await api.counts('bkct_secret', patient).catch((found: unknown) => found);
  expect(error).toBeInstanceOf(LaterError);
  expect(error).toMatchObject({ code: 'E_CI_THROTTLED', retryAfter: 40_000, retry: true });
});

it('what could not stand in a header is not sent', async () => {
  const { api, server } = await answering(json({}));
  await expect(api.identity('two\nlines', patient)).rejects.toMatchObject({ code: 'E_CI_CREDENTIAL' });
  expect(server.seen).toEqual([]);
});

it('numbers that are odd cost the numbers, not the rest', async () => {
  const { api } = await answering(
    json({ jobs: { queues: { gpu: { scheduled: -1 }, cpu: { scheduled: 2 } } }, agents: { queues: { idle: {} } } }, 200, {
      'Buildkite-Agent-Metrics-Poll-Duration': '999999',
    }),
  );
  const { value } = await api.counts('bkct_secret', patient);
  expect([...value.scheduled]).toEqual([
    ['gpu', 0],
    ['cpu', 2],
  ]);
  expect([value.known.has('idle'), value.pollAfter]).toEqual([true, 3_600_000]);
});
