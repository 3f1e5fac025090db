import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { routeOf } from './gateway-route.ts';

const route = (method: string, url: string) => routeOf(method, url, 12_000);

describe('what a call asks for', () => {
  it.each([
    ['POST', '/v3/register', 'register'],
    ['POST', '/v3/connect', 'connect'],
    ['GET', '/v3/ping', 'ping'],
    ['POST', '/v3/heartbeat', 'heartbeat'],
    ['POST', '/v3/disconnect', 'disconnect'],
    ['GET', '/v3/metrics', 'withheld'],
    ['GET', '/v3/metrics/queue?name=x', 'withheld'],
    ['GET', '/v3/token', 'withheld'],
    ['POST', '/v3/stacks/register', 'withheld'],
    ['POST', '/v3/stop', 'withheld'],
    ['POST', '/v3/builds/1/data/get', 'shared'],
    ['PUT', '/v3/steps/a%2Fb', 'shared'],
    ['GET', '/v3/ping/more', 'absent'],
    ['PUT', '/v3/register', 'absent'],
    ['POST', '/v3/register.json', 'absent'],
    ['POST', '/agentedge.v1.AgentEdgeService/StreamPings', 'absent'],
    ['GET', '/', 'malformed'],
    ['GET', '/v3/', 'malformed'],
    ['GET', '/v2/ping', 'absent'],
    ['GET', '/v3/constructor', 'absent'],
  ])('%s %s', (method, url, kind) => {
    expect(route(method, url).kind).toBe(kind);
  });

  it.each([
    ['PUT', 'accept', 'accept'],
    ['PUT', 'start', 'start'],
    ['PUT', 'finish', 'finish'],
    ['POST', 'chunks?sequence=1', 'chunks'],
    ['GET', 'secrets?key=A', 'secrets'],
    ['POST', 'artifacts', 'artifacts'],
    ['PUT', 'artifacts', 'data'],
    ['POST', 'data/set', 'data'],
    ['DELETE', 'annotations/a%2Fb%2E', 'data'],
    ['POST', 'oidc/tokens', 'own'],
    ['PUT', 'promise_failure', 'own'],
    ['POST', 'something_new', 'own'],
  ])('of a job: %s %s', (method, rest, call) => {
    expect(route(method, `/v3/jobs/a%2Eb/${rest}`)).toMatchObject({ kind: 'job', job: 'a.b', call, path: `/jobs/a%2Eb/${rest}` });
  });

  it.each([
    'POST /v3/jobs/a/finish',
    'PUT /v3/jobs/a/finish/x',
    'PUT /v3/jobs/a/finish.json',
    'PUT /v3/jobs/a/Finish',
    'PUT /v3/jobs/a/finish%20',
    'PUT /v3/jobs/a/finish;x=1',
    'GET /v3/jobs/a/constructor/x',
  ])('what a service might take for a call of the lifecycle: %s', (line) => {
    const [method = '', url = ''] = line.split(' ');
    expect(['absent', 'job']).toContain(route(method, url).kind);
    expect(route(method, url)).not.toMatchObject({ call: 'data' });
    if (!line.includes('constructor')) expect(route(method, url).kind).toBe('absent');
  });
});

it.each([
  'http://127.0.0.1/v3/ping',
  '*',
  '//v3/ping',
  '/v3//ping',
  '/v3/ping/',
  '/v3/jobs/a/../b/finish',
  '/v3/jobs/a/%2e%2e/b/finish',
  '/v3/jobs/a/%252e%252e/b/finish',
  '/v3/jobs/a%2Ffinish',
  '/v3/jobs/a%252Ffinish/data',
  '/v3/jobs/a/data/..%2F..%2Fb%2Ffinish',
  '/v3/jobs/a/data/..%5C..%5Cb',
  '/v3/jobs/a/data/%00',
  '/v3/jobs/a/data\\..\\b',
  '/v3/jobs/a/data/%zz',
  '/v3/jobs/a#b',
  '/v3/jobs/%C3%28/data',
  `/v3/ping?${'x'.repeat(13_000)}`,
])('refused, whoever asks: %s', (url) => {
  expect(route('GET', url).kind).toBe('malformed');
});

it('no path leads a reader that takes the steps elsewhere than to where it seemed to', () => {
  const part = fc.oneof(
    fc.constantFrom('..', '.', '%2e%2E', '%252e.', 'a', 'jobs', 'finish', 'data', '%2F', '\\', ''),
    fc.string(),
  );
  fc.assert(
    fc.property(fc.array(part, { maxLength: 6 }), (parts) => {
      const found = route('PUT', `/v3/jobs/own/${parts.join('/')}`);
      if (found.kind !== 'job') return;
      const { pathname } = new URL(decodeURIComponent(found.path.split('?')[0] ?? ''), 'http://service');
      expect(pathname.startsWith('/jobs/own')).toBe(true);
    }),
  );
});
