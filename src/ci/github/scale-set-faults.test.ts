/** What can go wrong with a scale set and its session. */
import { afterEach, beforeEach, expect, it } from 'vitest';
import { patient } from '../../../test/kit/azure.ts';
import { type HandClock, handClock } from '../../../test/kit/core.ts';
import { type MemoryGitHub, memoryGitHub } from '../../../test/kit/github.ts';
import { contextOf, githubService, jitIn } from '../../../test/kit/github-service.ts';
import type { CiEvent } from '../../ports/ci-service.ts';
import { ScaleSets } from './scale-sets.ts';
import { createGithub } from './service.ts';

type Bench = ReturnType<typeof githubService>;
let bench: Bench;
let clock: HandClock;
let watching: AbortController;
let seen: CiEvent[];
let headers: { url: string; capacity: string | null }[];
let wrap: ((url: string, init: RequestInit | undefined, next: typeof fetch) => Promise<Response>) | null;

function create(more: Parameters<typeof githubService>[0] = {}) {
  const inner = memoryGitHub({ clock });
  const github: MemoryGitHub = {
    ...inner,
    fetch: async (input, init) => {
      const url = String(input);
      if (/queue\/\d+\?/.test(url) && init?.method === 'GET')
        headers.push({ url, capacity: new Headers(init.headers).get('X-ScaleSetMaxCapacity') });
      return wrap === null ? inner.fetch(input, init) : wrap(url, init, inner.fetch);
    },
  };
  bench = githubService({ clock, github, config: { mode: 'scale-set' }, tags: ['gpu'], ...more });
}

beforeEach(() => {
  clock = handClock();
  headers = [];
  wrap = null;
  watching = new AbortController();
  seen = [];
});
afterEach(async () => {
  watching.abort();
  await bench.service.close?.();
  bench.close();
});

async function start(agent: string) {
  bench.live.add(agent);
  const { script } = await bench.service.register(contextOf(agent), patient);
  return bench.github.connect(jitIn(script));
}
const watch = () => bench.service.observe((event) => seen.push(event), watching.signal);
const soon = <T>(what: () => T) =>
  expect.poll(
    () => {
      clock.advance(10);
      return what();
    },
    { timeout: 30_000, interval: 5 },
  );
const set = () => bench.github.sets[0];
const isOpen = () => set()?.session ?? null;

it('GitHub hears how many agents the pool has', async () => {
  create();
  watch();
  await soon(() => headers.at(-1)?.capacity).toBe('2');
});

it('agents that register at the same time find or make one set', async () => {
  create();
  await Promise.all([start('a1'), start('a2'), start('a3')]);
  expect(bench.github.runners.size).toBe(3);
});

it('the address of the service is that of the newest registration', async () => {
  create();
  let isMoved = false;
  wrap = async (url, init, next) => {
    if (url.includes('moved.test')) return next(url.replace('https://moved.test', bench.github.origin), init);
    if (isMoved && url.includes('/tenant/'))
      return new Response('<html>gone</html>', { status: 404, headers: { 'content-type': 'text/html' } });
    const answer = await next(url, init);
    if (!isMoved || !url.endsWith('/actions/runner-registration')) return answer;
    const body = (await answer.json()) as { url: string; token: string };
    return Response.json({ ...body, url: body.url.replace(bench.github.origin, 'https://moved.test') });
  };
  await start('a1');
  isMoved = true;
  clock.advance(3_600_000);
  await expect(start('a2')).rejects.toMatchObject({ message: expect.stringContaining('they have moved'), retry: true });
  await start('a2');
  expect(bench.github.runners.size).toBe(2);
});

it('a refused job is recorded as refused', async () => {
  create();
  const runner = await start('a1');
  watch();
  await soon(isOpen).not.toBeNull();
  bench.github.queue({ labels: ['gpu'], fork: 'stranger/demo' });
  await soon(() => runner.take()).not.toBeNull();
  const id = `hub-${runner.row.id}`;
  await soon(() => set()?.messages.length).toBe(0);
  await soon(() => bench.store.serviceJobs.get(id)?.repository).toBe('acme/demo');
  const line = {
    repository: 'acme/demo',
    run: 7_000,
    attempt: 1,
    number: 12,
    workflow: 'CI',
    name: 'build',
    event: 'pull_request',
    ref: 'refs/pull/1/merge',
    actor: 'stranger',
    refused: 'it comes from stranger/demo, a fork',
  };
  bench.service.listen('a1')(`onejob: job ${JSON.stringify(line)}`);
  runner.finish('failure');
  await bench.service.deregister(contextOf('a1'), patient);
  expect(bench.store.serviceJobs.get(id)).toMatchObject({ result: 'refused' });
});

it('a queue token that ends while a poll waits does not cost the session', async () => {
  create();
  const runner = await start('a1');
  watch();
  await soon(() => headers.length).toBeGreaterThan(0);
  const session = isOpen();
  bench.github.fault(/acquirejobs/, { how: 'answer', after: false, answer: { status: 401, body: { message: 'expired' } } });
  bench.github.queue({ labels: ['gpu'] });
  await soon(() => runner.take()).not.toBeNull();
  expect(seen.filter((event) => event.kind === 'hold' && event.reason !== null)).toEqual([]);
  expect(isOpen()?.id).toBe(session?.id);
});

it('a host whose clock is an hour ahead signs in once, not with every call', async () => {
  create();
  const { parts } = bench;
  const there: typeof clock = Object.assign(Object.create(clock), { wall: () => clock.wall() + 3_600_000 });
  const common = { base: bench.github.api, clock: there, fetch: bench.github.fetch, version: '0.0.0' };
  const sets = new ScaleSets({ ...common, url: parts.config.url, client: parts.client, owner: 'x', log: parts.log });
  const again = createGithub({ ...parts, sets });
  for (const agent of ['a1', 'a2', 'a3', 'a4']) await again.register(contextOf(agent), patient);
  expect(bench.github.calls.filter((call) => call.endsWith('/registration-token')).length).toBeLessThan(3);
});

it('a message that GitHub does not let onejob acquire does not block those behind it', async () => {
  create();
  const runner = await start('a1');
  watch();
  await soon(() => headers.length).toBeGreaterThan(0);
  const mine = set();
  if (mine === undefined) throw new Error('no set');
  // A job that is over when it is asked for.
  wrap = async (url, init, next) =>
    url.includes('acquirejobs') && String(init?.body).includes('4711')
      ? Response.json({ typeName: 'InvalidRequest', message: 'no such job' }, { status: 422 })
      : next(url, init);
  (mine.messages as { id: number; body: unknown[] }[]).push({
    id: mine.nextMessage,
    body: [{ messageType: 'JobAvailable', runnerRequestId: 4711 }],
  });
  mine.nextMessage += 1;
  bench.github.queue({ labels: ['gpu'] });
  await expect
    .poll(
      () => {
        clock.advance(1_000);
        return runner.take();
      },
      { timeout: 30_000, interval: 5 },
    )
    .not.toBeNull();
});

it('a registration token that the service does not know yet is tried again', async () => {
  create();
  bench.github.fault(/runner-registration/, { how: 'answer', after: false, answer: { status: 401, body: { message: 'unknown' } } });
  const starting = start('a1');
  await soon(() => bench.github.runners.size).toBe(1);
  await starting;
  expect(bench.github.runners.size).toBe(1);
});
