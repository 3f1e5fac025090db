/** Waiting jobs of a repository, which only people need. */
import { expect, it } from 'vitest';
import { patient } from '../../../test/kit/azure.ts';
import { handClock } from '../../../test/kit/core.ts';
import { contextOf, githubService, jitIn } from '../../../test/kit/github-service.ts';
import { oneDevice } from '../../../test/support/devices.ts';
import type { CiEvent } from '../../ports/ci-service.ts';

const absent = {
  how: 'answer',
  after: false,
  answer: { status: 404, body: { message: 'Not Found', documentation_url: 'x' } },
} as const;
const looksOf = async (bench: ReturnType<typeof githubService>, looks: number) => {
  const events: CiEvent[] = [];
  const on = new AbortController();
  bench.service.observe((event) => events.push(event), on.signal);
  await expect.poll(() => events.filter(({ kind }) => kind === 'hold').length, { timeout: 30_000 }).toBeGreaterThanOrEqual(looks);
  on.abort();
  return events.flatMap((event) => (event.kind === 'hold' && event.reason !== null ? [event.reason] : []));
};

it('a repository pool works with the rights that docs/configuration.md asks for', async () => {
  const bench = githubService({ queues: ['acme/demo'] });
  const [installation] = bench.github.installations;
  if (installation !== undefined) installation.permissions = { administration: 'write', metadata: 'read' };
  const holds = await looksOf(bench, 1);
  bench.close();
  expect(holds).toEqual([]);
});

it('a pool that leases devices says which right it lacks to know of jobs, and knows of them once it has that right', async () => {
  const clock = handClock();
  const bench = githubService({
    clock,
    queues: ['acme/demo'],
    config: { pollEvery: 10_000 },
    pool: { standby: false, devices: oneDevice },
  });
  const [installation] = bench.github.installations;
  if (installation === undefined) throw new Error('no installation');
  const all = installation.permissions;
  installation.permissions = { administration: 'write', metadata: 'read' };
  bench.github.queue({ labels: ['ci', 'gpu-a100'] });
  const on = new AbortController();
  bench.service.observe(() => {}, on.signal);
  const said = async () => (await bench.service.check(patient)).map(({ message }) => message);
  await expect.poll(said).toContainEqual(expect.stringContaining('does not let this credential see which jobs of acme/demo wait'));
  expect(bench.service.waiting('ci')).toBeNull();
  installation.permissions = all;
  const waiting = () => {
    clock.advance(30_000);
    return bench.service.waiting('ci');
  };
  await expect.poll(waiting, { timeout: 30_000, interval: 5 }).toBe(1);
  expect(await said()).not.toContainEqual(expect.stringContaining('does not let this credential see'));
  on.abort();
  bench.close();
});

it('jobs behind running ones are counted, and a busy repository does not cost the rate limit', async () => {
  const clock = handClock();
  const bench = githubService({ clock, queues: ['acme/demo'], config: { pollEvery: 10_000 } });
  for (let n = 0; n < 8; n += 1) {
    const first = bench.github.queue({ labels: ['other'] });
    first.status = 'in_progress';
    if (n < 3) bench.github.queue({ labels: ['ci'], run: first.run, name: 'second' });
  }
  const on = new AbortController();
  bench.service.observe(() => {}, on.signal);
  await expect.poll(() => bench.service.waiting('ci')).toBe(3);
  const count = (what: RegExp) => bench.github.calls.filter((call) => what.test(call)).length;
  const looks = () => {
    clock.advance(10_000);
    return count(/GET .*\/actions\/runners$/);
  };
  const begin = clock.now();
  await expect.poll(looks, { timeout: 30_000, interval: 5 }).toBeGreaterThan(60);
  on.abort();
  // On a slow machine more time is moved for the same looks.
  const minutes = (clock.now() - begin) / 60_000;
  bench.close();
  expect(count(/GET .*\/runs\/\d+\/jobs/)).toBeLessThanOrEqual(8 * (minutes + 2));
});

it('a run that somebody deletes while jobs are counted holds no pool', async () => {
  const bench = githubService({ queues: ['acme/demo'] });
  bench.github.queue({ labels: ['ci'] });
  bench.github.fault(/GET .*\/runs\/\d+\/jobs/, absent);
  const holds = await looksOf(bench, 1);
  bench.close();
  expect(holds).toEqual([]);
});

it('a repository that the token does not see is not asked about with each look', async () => {
  const clock = handClock();
  const bench = githubService({ clock, config: { pollEvery: 10_000 } });
  bench.live.add('a1');
  const { script } = await bench.service.register(contextOf('a1'), patient);
  const runner = bench.github.connect(jitIn(script));
  bench.github.queue({ labels: ['ci'] });
  runner.take();
  bench.service.listen('a1')(
    `onejob: job ${JSON.stringify({ repository: 'acme/demo', run: 7_000, attempt: 1, number: 12, workflow: 'CI', name: 'build', event: 'push', ref: 'refs/heads/main', actor: 'o', refused: null })}`,
  );
  bench.github.fault(/GET \/repos\/acme\/demo\/actions\/runs/, absent, 100_000);
  const on = new AbortController();
  bench.service.observe(() => {}, on.signal);
  const lists = () => bench.github.calls.filter((call) => call === 'GET /orgs/acme/actions/runners').length;
  await expect
    .poll(
      () => {
        clock.advance(10_000);
        return lists();
      },
      { timeout: 60_000, interval: 5 },
    )
    .toBeGreaterThan(360);
  on.abort();
  const asked = bench.github.calls.filter((call) => call.includes('/actions/runs/')).length;
  bench.close();
  expect(asked).toBeLessThan(60);
});

it('jobs are shown that no pool here fits, but not those of other runners and of GitHub itself', async () => {
  const clock = handClock();
  const bench = githubService({ clock, queues: ['acme/demo'], config: { pollEvery: 10_000 } });
  bench.live.add('a1');
  await bench.service.register(contextOf('a1'), patient);
  for (const row of bench.github.runners.values()) Object.assign(row, { name: 'another-host', labels: ['self-hosted', 'theirs'] });
  for (const label of ['typo', 'typo', 'ubuntu-latest', 'Theirs']) bench.github.queue({ labels: [label] });
  const on = new AbortController();
  bench.service.observe(() => {}, on.signal);
  await expect.poll(() => bench.service.waiting('ci')).toBe(0);
  expect(bench.service.unfit()).toEqual([]);
  clock.advance(300_000);
  const found = bench.service.unfit().map(({ jobs, how }) => `${jobs} ${how}`);
  on.abort();
  bench.close();
  expect(found).toEqual(['2 in acme/demo for an agent with typo, which no pool here has']);
});
