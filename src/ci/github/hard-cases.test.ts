/** What looks must not cost, and lines must not do. */
import { generateKeyPairSync } from 'node:crypto';
import { expect, it } from 'vitest';
import { patient } from '../../../test/kit/azure.ts';
import { handClock } from '../../../test/kit/core.ts';
import { memoryGitHub } from '../../../test/kit/github.ts';
import { contextOf, githubService, jitIn } from '../../../test/kit/github-service.ts';
import type { CiEvent } from '../../ports/ci-service.ts';
import { GithubClient } from './client.ts';

it('a key that GitHub refuses is not sent with each look', async () => {
  const clock = handClock();
  const github = memoryGitHub({ clock });
  const key = generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey.export({ type: 'pkcs8', format: 'pem' }).toString();
  const privateKey = { kind: 'memory', name: 'the test', expires: null, read: () => key } as const;
  const credential = { kind: 'app', id: github.app.id, privateKey, installation: null } as const;
  const client = new GithubClient({
    base: github.api,
    credential,
    secret: async () => key,
    clock,
    fetch: github.fetch,
    version: '0',
  });
  for (let look = 0; look < 60; look++) {
    await client.runners('orgs/acme', patient).catch(() => {});
    clock.advance(10_000);
  }
  // As "refusedFor" in rest.ts promises, and "A refused credential is not sent again" in early/engine.ts.
  expect(github.calls.length).toBeLessThan(10);
});

it('a line cannot lead a call to another address', async () => {
  const bench = githubService();
  bench.live.add('a1');
  const { script } = await bench.service.register(contextOf('a1'), patient);
  const runner = bench.github.connect(jitIn(script));
  bench.github.queue({ labels: ['ci'] });
  runner.take();
  const urls: string[] = [];
  const next = bench.github.fetch;
  const line = {
    repository: '../..',
    run: 7_000,
    attempt: 1,
    number: 1,
    workflow: 'x',
    name: 'x',
    event: 'push',
    ref: 'x',
    actor: 'x',
    refused: null,
  };
  const client = new GithubClient({
    base: bench.github.api,
    credential: bench.parts.config.credential,
    secret: async () => bench.key,
    clock: bench.parts.clock,
    version: '0',
    fetch: async (input, init) => {
      urls.push(new URL(String(input)).pathname);
      return String(input).includes('..') ? Response.json({ message: 'Not Found' }, { status: 404 }) : next(input, init);
    },
  });
  const { createGithub } = await import('./service.ts');
  const service = createGithub({ ...bench.parts, client });
  service.listen('a1')(`onejob: job ${JSON.stringify(line)}`);
  await service.deregister(contextOf('a1'), patient);
  bench.close();
  expect(urls.filter((path) => path.startsWith('/actions/'))).toEqual([]);
});

it('a runner that lists do not show is asked for only now and then', async () => {
  const clock = handClock();
  const bench = githubService({ clock, config: { pollEvery: 10_000 } });
  bench.github.faults.hiddenFor = 100_000_000;
  for (let n = 0; n < 8; n++) {
    bench.live.add(`a${n}`);
    await bench.service.register(contextOf(`a${n}`), patient);
  }
  const on = new AbortController();
  bench.service.observe(() => {}, on.signal);
  const lists = () => bench.github.calls.filter((call) => call === 'GET /orgs/acme/actions/runners').length;
  await expect
    .poll(
      () => {
        clock.advance(10_000);
        return lists();
      },
      { timeout: 30_000, interval: 5 },
    )
    .toBeGreaterThan(360);
  on.abort();
  const looked = bench.github.calls.filter((call) => /GET \/orgs\/acme\/actions\/runners\/\d+/.test(call)).length;
  bench.close();
  // An hour: 5,000 calls are all that GitHub allows.
  expect(looked).toBeLessThan(500);
});

it('an agent whose runner ended with an error before any job is not one that worked', async () => {
  const clock = handClock();
  const bench = githubService({ clock });
  bench.live.add('a1');
  const { script } = await bench.service.register(contextOf('a1'), patient);
  const runner = bench.github.connect(jitIn(script));
  const on = new AbortController();
  const events: CiEvent[] = [];
  bench.service.observe((event) => events.push(event), on.signal);
  await expect.poll(() => events).toContainEqual({ kind: 'online', agent: 'a1' });
  // GitHub drops it, and the runner notices by itself, with exit 1, before a minute is over.
  bench.github.faults.lostAcquire = 'gone';
  bench.github.queue({ labels: ['ci'] });
  runner.take();
  const { ran } = await bench.service.deregister(contextOf('a1'), patient);
  on.abort();
  bench.close();
  expect(ran).toBeNull();
});
