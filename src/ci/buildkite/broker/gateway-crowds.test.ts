/** Many calls of a job at a time: it may wait for itself, but its agent is heard all the while and none of its log is lost. */
import { once } from 'node:events';
import { type ClientRequest, type ServerResponse, request as send } from 'node:http';
import { describe, expect, it } from 'vitest';
import { createUploadAddresses } from './artifacts.ts';
import { connectionLimits } from './gateway-connections.ts';
import { type GatewayLimits, gatewayLimits } from './gateway-limits.ts';
import { type GatewayBench, gatewayBench, jobId } from './testing-gateway.ts';

const running = { shown: { phase: 'running' } } as const;

/** A service that answers nothing of uploads and meta-data until it is told to, and anything else at once. */
async function crowdBench(limits: Partial<GatewayLimits> = {}) {
  const asked: ServerResponse[] = [];
  const lookers = new Set<() => void>();
  const here = await gatewayBench((request, response) => {
    request.resume();
    if (!/bucket|data/.test(request.url ?? '')) return void response.end('{"state":"running"}');
    asked.push(response);
    for (const look of lookers) look();
  }, limits);
  here.held('a', running);
  return {
    ...here,
    asked,
    /** Resolves once so many calls have come to the service. */
    came: (count: number) =>
      new Promise<void>((resolve) => {
        const look = (): void => {
          if (asked.length >= count) resolve();
        };
        lookers.add(look);
        look();
      }),
  };
}

/** A call whose answer is not waited for. */
function open(here: GatewayBench, method: string, path: string, headers: Record<string, string | number>): ClientRequest {
  const out = send({ port: here.port, host: '127.0.0.1', agent: false, method, path, headers });
  out.on('error', () => {}).write('x');
  return out;
}

function openUpload(here: GatewayBench): ClientRequest {
  const addresses = createUploadAddresses(Buffer.alloc(32, 7));
  const sealed = addresses.seal({ agent: 'a', origin: new URL(here.service).origin, path: '/bucket' });
  return open(here, 'PUT', `/upload/${sealed}`, { 'content-length': 1_000_000 });
}

const openData = (here: GatewayBench): ClientRequest =>
  open(here, 'POST', `/v3/jobs/${jobId}/data/get`, { authorization: `Token ${here.token('job', 'a')}`, 'content-length': 1 });

const statusOf = async (out: ClientRequest): Promise<number> => {
  const [answer] = await once(out, 'response');
  answer.resume();
  return answer.statusCode;
};

/** The statuses of all that an agent says of a running job by itself. */
async function words(here: GatewayBench): Promise<readonly number[]> {
  const calls = [
    ['POST', '/v3/heartbeat', 'session', {}],
    ['GET', '/v3/ping', 'session', undefined],
    ['GET', `/v3/jobs/${jobId}`, 'job', undefined],
    ['POST', `/v3/jobs/${jobId}/chunks?sequence=1&offset=0&size=1`, 'job', 'a'],
    ['PUT', `/v3/jobs/${jobId}/finish`, 'job', { exit_status: '0' }],
  ] as const;
  const statuses: number[] = [];
  for (const [method, path, kind, body] of calls)
    statuses.push((await here.call(method, path, here.token(kind, 'a'), body)).status);
  return statuses;
}

const allHeard = [200, 200, 200, 200, 200];

describe('an agent is heard', () => {
  it('while as many artifacts go up as may', async () => {
    await using here = await crowdBench();
    const sent = Array.from({ length: gatewayLimits.uploads + 10 }, () => openUpload(here));
    await here.came(gatewayLimits.uploads);
    expect(await words(here)).toEqual(allHeard);
    for (const each of sent) each.destroy();
  });

  it('while its job asks for as much as it may', async () => {
    await using here = await crowdBench();
    const sent = Array.from({ length: gatewayLimits.concurrent }, () => openData(here));
    await here.came(gatewayLimits.concurrent);
    expect((await here.call('POST', `/v3/jobs/${jobId}/data/get`, here.token('job', 'a'), {})).status).toBe(429);
    expect(await words(here)).toEqual(allHeard);
    for (const each of sent) each.destroy();
  });

  it('while its job names more artifacts at a time than are read', async () => {
    await using here = await crowdBench();
    const authorization = `Token ${here.token('job', 'a')}`;
    const path = `/v3/jobs/${jobId}/artifacts`;
    const sent = Array.from({ length: gatewayLimits.reading + 1 }, () =>
      open(here, 'POST', path, { authorization, 'content-length': 100 }),
    );
    expect(await Promise.race(sent.map(statusOf))).toBe(429);
    expect(await words(here)).toEqual(allHeard);
    for (const each of sent) each.destroy();
  });

  it('and what is too much of its words is to be said again: a 4xx would lose a piece of the log', async () => {
    await using here = await crowdBench({ words: 0 });
    const path = `/v3/jobs/${jobId}/chunks?sequence=1&offset=0&size=1`;
    expect((await here.call('POST', path, here.token('job', 'a'), 'a')).status).toBe(503);
  });
});

describe('an upload', () => {
  it('beyond those that go up at a time waits for its turn', async () => {
    await using here = await crowdBench({ uploads: 2 });
    const [first, second] = [openUpload(here), openUpload(here)];
    await here.came(2);
    const third = openUpload(here);
    // The next call over another connection was served: so was the third upload, as far as it is.
    await here.call('GET', `/v3/jobs/${jobId}`, here.token('job', 'a'));
    expect(here.asked.length).toBe(2);
    const answered = statusOf(third);
    first?.destroy();
    await here.came(3);
    here.asked[2]?.end();
    expect(await answered).toBe(200);
    second?.destroy();
  });

  it('that waits ends a while after its job', async () => {
    await using here = await crowdBench({ uploads: 1, afterJobMs: 20 });
    const first = openUpload(here);
    await here.came(1);
    const second = openUpload(here);
    const cut = once(second, 'error');
    await here.call('GET', `/v3/jobs/${jobId}`, here.token('job', 'a'));
    here.book.update('a', { shown: { phase: 'finished' } });
    await cut;
    expect(here.asked.length).toBe(1);
    first.destroy();
  });

  it('whose turn comes only after its job does not begin', async () => {
    await using here = await crowdBench({ uploads: 1 });
    const first = openUpload(here);
    await here.came(1);
    const second = openUpload(here);
    const over = Promise.race([once(second, 'error').then(() => 'cut'), here.came(2).then(() => 'begun')]);
    await here.call('GET', `/v3/jobs/${jobId}`, here.token('job', 'a'));
    here.book.update('a', { shown: { phase: 'finished' } });
    first.destroy();
    expect(await over).toBe('cut');
  });

  it('beyond those that may wait is to be tried again', async () => {
    await using here = await crowdBench({ uploads: 1, waiting: 1 });
    const sent = [openUpload(here), openUpload(here), openUpload(here)];
    expect(await Promise.race(sent.map(statusOf))).toBe(503);
    for (const each of sent) each.destroy();
  });
});

it('an agent may have a connection for each call that it may make', () => {
  const { concurrent, words: own, uploads, waiting } = gatewayLimits;
  expect(connectionLimits.ofAgent).toBeGreaterThan(concurrent + own + uploads + waiting);
});
