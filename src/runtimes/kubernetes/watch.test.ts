/** Watches on bad days, with an API server that does what a test says, in virtual time. */
import { expect, test } from 'vitest';
import { type FakeKubernetes, fakeKubernetes, podOf, token, toldClock } from '../../../test/kit/fake-kubernetes.ts';
import { KubeClient } from './client.ts';
import { PodWatch } from './watch.ts';

const never = new AbortController().signal;

async function watching(prepare: (api: FakeKubernetes) => void = () => {}) {
  const api = await fakeKubernetes();
  prepare(api);
  const clock = toldClock();
  const client = new KubeClient(api.access, clock);
  const watch = new PodWatch({ client, clock, owner: 'me' });
  const news = watch.follow();
  const next = async (): Promise<void> => {
    await news.next(never);
    news.take();
  };
  const agents = (): string[] => [...watch.known.keys()].toSorted();
  return {
    api,
    clock,
    watch,
    agents,
    /** Resolves once these are known. */
    async knows(...wanted: string[]) {
      while (watch.failure !== null || agents().join() !== wanted.join()) await next();
    },
    /** Resolves once the pods are not known. */
    async loses() {
      while (watch.failure === null) await next();
      return watch.failure;
    },
    async [Symbol.asyncDispose]() {
      watch.close();
      client.close();
      await api[Symbol.asyncDispose]();
    },
  };
}

test('pods that come, change and go', async () => {
  await using here = await watching((api) => api.put(podOf('a')));
  expect([...(await here.watch.all()).keys()]).toEqual(['a']);
  await here.api.called('watch');
  here.api.put(podOf('b'));
  here.api.put(podOf('c', 'running', { owner: 'other' }));
  await here.knows('a', 'b', 'c');
  here.api.remove('oj-a');
  await here.knows('b', 'c');
});

test('a list in several pages', async () => {
  await using here = await watching((api) => {
    api.it.pageSize = 2;
    for (const agent of ['a', 'b', 'c', 'd', 'e']) api.put(podOf(agent));
    api.put(podOf('x', 'running', { owner: 'other' }));
  });
  expect([...(await here.watch.all()).keys()]).toEqual(['a', 'b', 'c', 'd', 'e']);
  expect(here.api.count('list')).toBe(3);
});

test.each([410, 500])('a list whose second page answers %d begins anew, and forgets nothing', async (status) => {
  await using here = await watching((api) => {
    api.it.pageSize = 2;
    for (const agent of ['a', 'b', 'c']) api.put(podOf(agent));
  });
  here.api.answer('list', ({ reply }) => {
    here.api.answer('list', { status, reason: 'Expired', message: 'the continue token is too old' });
    reply.end(JSON.stringify({ metadata: { resourceVersion: '1', continue: '2' }, items: [] }));
  });
  await expect(here.watch.all()).rejects.toThrow(`answered ${status}: the continue token is too old`);
  await here.clock.pass(200);
  await here.knows('a', 'b', 'c');
});

test('one that ends without a word continues where it was', async () => {
  await using here = await watching((api) => api.put(podOf('a')));
  await here.watch.all();
  await here.api.called('watch');
  here.api.endWatches();
  here.api.put(podOf('b'));
  await here.clock.pass(200);
  await here.knows('a', 'b');
  expect(here.api.count('list')).toBe(1);
});

test('one that ends at once again and again is asked less and less often', async () => {
  await using here = await watching((api) => api.always('watch', ({ reply }) => void reply.end()));
  await here.watch.all();
  for (const pause of [200, 400, 800, 1600, 3200, 6400, 12_800, 15_000, 15_000]) await here.clock.pass(pause);
  expect(here.api.count('watch')).toBeLessThan(11);
});

test('one that is too old begins with a list', async () => {
  await using here = await watching((api) => {
    api.put(podOf('a'));
    api.put(podOf('b'));
  });
  await here.watch.all();
  await here.api.called('watch');
  here.api.endWatches();
  here.api.remove('oj-a');
  here.api.put(podOf('c'));
  here.api.compact();
  await here.clock.pass(200);
  expect((await here.loses()).message).toContain('410: too old resource version');
  await here.clock.pass(400);
  await here.knows('b', 'c');
  expect(here.api.count('list')).toBe(2);
});

test('one that is cut in the middle of a line loses nothing', async () => {
  await using here = await watching((api) => api.put(podOf('a')));
  await here.watch.all();
  await here.api.called('watch');
  here.api.endWatches(JSON.stringify({ type: 'ADDED', object: podOf('b') }).slice(0, 90));
  here.api.put(podOf('b'));
  expect((await here.loses()).message).toMatch(/^The watch of the pods of onejob was cut: .+\.$/);
  await here.clock.pass(200);
  await here.knows('a', 'b');
});

test('one that is silent for ever is opened anew', async () => {
  await using here = await watching((api) => {
    api.put(podOf('a'));
    api.answer('watch', ({ reply }) => reply.writeHead(200).flushHeaders());
  });
  await here.watch.all();
  await here.api.called('watch');
  here.api.put(podOf('b'));
  await here.clock.pass(150_000);
  await here.clock.pass(200);
  await here.knows('a', 'b');
});

test('one that does not even begin is given up after 30 s, with words', async () => {
  await using here = await watching((api) => api.always('watch', 'silent'));
  const all = here.watch.all();
  await here.api.called('watch');
  await here.clock.pass(30_000);
  await expect(all).rejects.toThrow(
    `Cannot watch the pods of onejob with the Kubernetes API at ${here.api.access.server.origin} (from test): it did not answer within 30 s.`,
  );
});

test('a server that is away for an hour', async () => {
  await using here = await watching((api) => {
    api.put(podOf('a'));
    api.put(podOf('b'));
  });
  await here.watch.all();
  await here.api.called('watch');
  here.api.away(true);
  const begun = here.clock.now();
  let states = 0;
  for (let pause = 200; here.clock.now() - begun < 3_600_000; pause = Math.min(15_000, pause * 2)) {
    await here.clock.pass(pause);
    if (here.watch.failure === null) states += 1;
  }
  await here.clock.waits(15_000);
  // It never seems to be back, not even for a moment.
  expect(states).toBe(0);
  expect(here.api.it.refused).toBeLessThan(260);
  await expect(here.watch.all()).rejects.toMatchObject({ code: 'E_ENGINE_UNREACHABLE', retry: true });
  const lists = here.api.count('list');
  here.api.remove('oj-a');
  here.api.put(podOf('c'));
  here.api.away(false);
  await here.clock.pass(15_000);
  await here.knows('b', 'c');
  expect(here.api.count('list') - lists).toBe(1);
  expect(here.watch.failure?.message ?? '').not.toContain(token);
});

test('a watch that is refused although lists are not', async () => {
  await using here = await watching((api) => api.always('watch', { status: 403, message: 'pods is forbidden: no watch' }));
  await expect(here.watch.all()).rejects.toMatchObject({ code: 'E_ENGINE_PERMISSION' });
  await here.clock.pass(200);
  await here.api.called('watch', 2);
  await expect(here.watch.all()).rejects.toThrow('Cannot watch the pods of onejob');
});
