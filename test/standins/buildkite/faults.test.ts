/** Everything that can be made to go wrong, as a client sees it. */
import { afterEach, beforeEach, expect, test } from 'vitest';
import { type HandAgent, handAgent } from './hand-agent.ts';
import { type BuildkiteStandin, type Fault, NAMED_FAULTS, startBuildkite } from './standin.ts';

let now = 1_800_000_000_000;
let bk: BuildkiteStandin;
let agent: HandAgent;
beforeEach(async () => {
  bk = await startBuildkite({ now: () => now });
  agent = await handAgent(bk, 'one');
});
afterEach(() => bk[Symbol.asyncDispose]());

const ping = () => agent.ask('GET', 'ping');

test('an error comes as often as said, where and for whom it was said', async () => {
  const other = await handAgent(bk, 'two');
  bk.faults.add({ kind: 'error', status: 429, retryAfter: 7 }, { route: 'ping', agent: 'one', times: 2, after: 1 });
  expect((await ping()).status).toBe(200);
  const refused = await ping();
  expect(refused).toMatchObject({ status: 429, json: { message: 'The stand-in says 429' } });
  expect(refused.headers.get('retry-after')).toBe('7');
  expect((await other.ask('GET', 'ping')).status).toBe(200);
  expect((await agent.heartbeat()).status).toBe(200);
  expect((await ping()).status).toBe(429);
  expect((await ping()).status).toBe(200);
});

test('a fault can last for a time, and be taken away before', async () => {
  const undo = bk.faults.add({ kind: 'error', status: 500 }, { route: 'jobs/*', forMs: 60_000 });
  expect((await agent.ask('GET', 'jobs/x')).status).toBe(500);
  expect((await ping()).status).toBe(200);
  now += 60_000;
  expect((await agent.ask('GET', 'jobs/x')).status).toBe(401);
  undo();
  bk.faults.add({ kind: 'error', status: 503 }, { token: 'session' })();
  expect((await ping()).status).toBe(200);
  const dice = [0.9, 0.1];
  bk.faults.add({ kind: 'error', status: 503 }, { chance: 0.5, random: () => dice.shift() ?? 1 });
  expect([(await ping()).status, (await ping()).status, (await ping()).status]).toEqual([200, 503, 200]);
});

test('a connection is cut before or after the deed', async () => {
  const id = bk.queueJob();
  bk.faults.add({ kind: 'reset' }, { route: 'jobs/:id/accept', times: 1 });
  await expect(agent.accept(id)).rejects.toThrow();
  expect(bk.job(id).state).toBe('assigned');
  bk.faults.add({ kind: 'lost' }, { route: 'jobs/:id/accept', times: 1 });
  await expect(agent.accept(id)).rejects.toThrow();
  expect(bk.job(id).state).toBe('accepted');
  bk.faults.add({ kind: 'half' }, { route: 'ping', times: 1 });
  await expect(ping()).rejects.toThrow();
  expect(bk.requests.slice(-3).map(({ status }) => status)).toEqual([0, 0, 200]);
});

test('silence is silence, and ends with anyone who listens', async () => {
  bk.faults.add({ kind: 'hang' }, { route: 'ping' });
  const cut = new AbortController();
  const waiting = fetch(`${bk.endpoint}/ping`, { signal: cut.signal, headers: { authorization: `Token ${agent.session}` } });
  await expect.poll(() => bk.requests.at(-1)?.route).toBe('ping');
  cut.abort();
  await expect(waiting).rejects.toThrow();
});

test('a chunk gets lost without anybody knowing, or comes twice', async () => {
  const job = await agent.accept(bk.queueJob());
  bk.faults.add({ kind: 'dropped' }, { route: 'jobs/:id/chunks', times: 1 });
  bk.faults.add({ kind: 'doubled' }, { route: 'jobs/:id/chunks', times: 1 });
  expect((await job.log('one\n', { sequence: 1, offset: 0 })).status).toBe(200);
  await job.log('two\n', { sequence: 2, offset: 4 });
  expect(bk.job(job.id)).toMatchObject({ logMissing: 4, chunks: { received: 2, repeated: 1 } });
});

test('a page that is not JSON, and a service behind a delay', async () => {
  bk.faults.add({ kind: 'garbage' }, { times: 1 });
  expect(await ping()).toMatchObject({ status: 200, json: {} });
  bk.faults.add({ kind: 'delay', ms: 30 }, { times: 1 });
  const from = performance.now();
  await ping();
  expect(performance.now() - from).toBeGreaterThan(25);
});

test('the clock is wrong where the service tells a time', async () => {
  bk.faults.skew = -3_600_000;
  const { headers } = await ping();
  expect(Date.parse(headers.get('date') ?? '')).toBe(Math.floor((now - 3_600_000) / 1000) * 1000);
  expect((await agent.heartbeat()).json.received_at).toBe(new Date(now - 3_600_000).toISOString());
});

test('pings say what they were told to, instead of a job', async () => {
  bk.queueJob();
  bk.faults.pingAction = 'disconnect';
  expect((await ping()).json).toMatchObject({ action: 'disconnect' });
  bk.faults.clear();
  expect((await ping()).json).toHaveProperty('job');
});

test('nobody answers, and then somebody does, with everything as it was', async () => {
  const id = bk.queueJob();
  await bk.faults.down();
  await expect(ping()).rejects.toThrow();
  await bk.faults.up();
  expect(await agent.ping()).toBe(id);
});

test('each named fault hits, and is gone when cleared', async () => {
  const kinds = new Set<Fault['kind']>();
  for (const { fault, where } of Object.values(NAMED_FAULTS)) {
    kinds.add(fault.kind);
    bk.faults.add(fault, where);
  }
  expect(kinds.size).toBe(9);
  expect((await ping()).status).toBe(429);
  bk.faults.clear();
  expect((await ping()).status).toBe(200);
});
