import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { failureOf, patient } from '../../../test/kit/azure.ts';
import { handClock } from '../../../test/kit/core.ts';
import { contextOf, githubService, jitIn, jobLine } from '../../../test/kit/github-service.ts';
import type { Device } from '../../gpu/inventory.ts';
import type { AgentContext, CiEvent } from '../../ports/ci-service.ts';

type Bench = ReturnType<typeof githubService>;
let bench: Bench;
let watching: AbortController;
let seen: CiEvent[];

beforeEach(() => {
  watching = new AbortController();
  seen = [];
});
afterEach(async () => {
  watching.abort();
  await bench.service.close?.();
  bench.close();
});

/** An agent that is online. */
async function start(agent: string, more: Partial<AgentContext> = {}) {
  bench.live.add(agent);
  const { script } = await bench.service.register(contextOf(agent, more), patient);
  return { script, runner: bench.github.connect(jitIn(script)) };
}

const watch = () => bench.service.observe((event) => seen.push(event), watching.signal);
const soon = <T>(what: () => T) => expect.poll(what, { timeout: 30_000, interval: 5 });
/** What the script in front of a job, and the runner, say on standard error. */
const says = (agent: string, ...lines: string[]) => {
  const hear = bench.service.listen(agent);
  for (const line of lines) hear(line);
};
const row = (id: string) => bench.store.serviceJobs.get(id);

describe('an agent', () => {
  it('is a runner for one job with the labels of its pool and devices, and its script holds nothing of the service', async () => {
    bench = githubService({ tags: ['big'] });
    const devices = [{ vendor: 'nvidia', model: 'NVIDIA A100-SXM4-40GB', mig: null }] as unknown as Device[];
    const { script, runner } = await start('a1', { devices, cuda: '12.4' });
    expect(runner.row.labels.toSorted()).toEqual(['big', 'cuda-12', 'gpu', 'gpu-a100']);
    expect(runner.row).toMatchObject({ scope: '/orgs/acme', group: 1, name: expect.stringMatching(/^box-1-.*-a1$/) });
    for (const secret of ['PRIVATE KEY', 'ghs_', 'AREG']) expect(script).not.toContain(secret);
  });

  it('joins the runner group of the config, which must be there', async () => {
    bench = githubService({ config: { group: 'GPU' } });
    const missing = { code: 'E_CI_POOL', message: expect.stringContaining('no such runner group') };
    expect(await failureOf(start('a1'))).toMatchObject(missing);
    bench.github.group('gpu');
    expect((await start('a2')).runner.row.group).toBe(2);
  });

  it.each([
    ['end=yes\n', /no runner \(onejob looked for/],
    ['root=/opt/agent\nwritable=yes\nversion=libicu is missing\nend=yes\n', /does not run: libicu is missing/],
  ])('is not registered when its image cannot run one: %j', async (answer, message) => {
    bench = githubService();
    expect(await failureOf(start('a1', { ask: async () => answer }))).toMatchObject({ code: 'E_AGENT_ABSENT', message });
    expect(bench.github.calls).toEqual([]);
  });
});

describe('the credential', () => {
  it('is a token of an hour for the App, which is made again before it ends', async () => {
    const clock = handClock();
    bench = githubService({ clock });
    await start('a1');
    const made = () => bench.github.calls.filter((call) => call.endsWith('/access_tokens')).length;
    await start('a2');
    expect(made()).toBe(1);
    clock.advance(56 * 60_000);
    await start('a3');
    expect(made()).toBe(2);
  });

  it('is used again while GitHub does not know a new token yet', async () => {
    const clock = handClock();
    bench = githubService({ clock });
    bench.github.faults.unusableFor = 3_000;
    const starting = start('a1');
    await soon(() => {
      clock.advance(500);
      return bench.github.runners.size;
    }).toBe(1);
    await starting;
  });

  it('is made again when GitHub has taken it back', async () => {
    const clock = handClock();
    bench = githubService({ clock });
    await start('a1');
    clock.advance(60_000);
    bench.github.revokeTokens();
    await start('a2');
    expect(bench.github.runners.size).toBe(2);
  });

  it('is signed by the clock of GitHub where that of the host is wrong', async () => {
    const clock = handClock();
    const github = githubService({ clock });
    bench = github;
    const there = Object.assign(Object.create(clock), { wall: () => clock.wall() - 3_600_000 });
    const wrong = githubService({ clock: there, github: github.github });
    wrong.live.add('a1');
    await wrong.service.register(contextOf('a1'), patient);
    expect(github.github.runners.size).toBe(1);
    wrong.close();
  });

  it.each([
    [{ metadata: 'read' } as const, 'E_CI_DENIED', /does not allow it/],
    [null, 'E_CI_DENIED', /no installation/],
  ])('says what it lacks: %j', async (permissions, code, message) => {
    bench = githubService({ queues: [permissions === null ? 'other' : 'acme'] });
    const [installation] = bench.github.installations;
    if (permissions !== null && installation !== undefined) installation.permissions = permissions;
    expect(await failureOf(start('a1'))).toMatchObject({ code, message });
  });

  it('may be a token, also of an enterprise', async () => {
    const clock = handClock();
    const { memoryGitHub } = await import('../../../test/kit/github.ts');
    const github = memoryGitHub({ clock });
    bench = githubService({ clock, github, queues: ['enterprises/big'], token: github.userToken() });
    expect((await start('a1')).runner.row.scope).toBe('/enterprises/big');
  });
});

describe('a job', () => {
  it('is told by the script in front of it and by its runner, and described by GitHub', async () => {
    bench = githubService();
    const { runner } = await start('a1');
    bench.github.queue({ labels: ['ci'], name: 'build' });
    runner.take();
    watch();
    const id = `hub-${runner.row.id}`;
    await soon(() => seen).toContainEqual({ kind: 'jobSeen', agent: 'a1', job: id });
    says('a1', '2026-11-26 10:00:00Z: Running job: build', jobLine(), jobLine({ repository: 'evil/forged' }));
    await soon(() => bench.service.serviceJobs?.()[0]).toMatchObject({
      id,
      repository: 'acme/demo',
      link: expect.stringMatching(/^https/),
      branch: 'main',
      state: 'running',
    });
    runner.finish('failure');
    says('a1', '2026-11-26 10:00:09Z: Job build completed with result: Failed');
    expect(await bench.service.deregister(contextOf('a1'), patient)).toEqual({ ran: id });
    expect(row(id)).toMatchObject({ state: 'done', result: 'failure', outcome: 'failed', pool: 'ci' });
  });

  it('keeps the result of its own runner where the credential may not read jobs', async () => {
    bench = githubService();
    const [installation] = bench.github.installations;
    if (installation !== undefined) installation.permissions = { organization_self_hosted_runners: 'write' };
    const { runner } = await start('a1');
    bench.github.queue({ labels: ['ci'] });
    runner.take();
    says(
      'a1',
      jobLine(),
      '2026-11-26 10:00:00Z: Running job: build',
      '2026-11-26 10:00:09Z: Job build completed with result: Succeeded',
    );
    runner.finish();
    const id = `hub-${runner.row.id}`;
    expect(await bench.service.deregister(contextOf('a1'), patient)).toEqual({ ran: id });
    expect(row(id)).toMatchObject({ title: 'CI #12 build', outcome: 'passed', repository: 'acme/demo' });
  });

  it('is refused before its first step, which its record says', async () => {
    bench = githubService();
    const { runner } = await start('a1');
    bench.github.queue({ labels: ['ci'], fork: 'stranger/demo' });
    runner.take();
    says('a1', jobLine({ refused: 'it comes from stranger/demo, a fork' }));
    runner.finish('failure');
    await bench.service.deregister(contextOf('a1'), patient);
    expect(row(`hub-${runner.row.id}`)).toMatchObject({ result: 'refused', outcome: 'failed' });
  });

  it('was never there for an agent that stayed registered', async () => {
    bench = githubService();
    await start('a1');
    expect(await bench.service.deregister(contextOf('a1'), patient)).toEqual({ ran: null });
  });

  it('waits for the pools that have all its labels, as a repository tells', async () => {
    bench = githubService({ queues: ['acme/demo'], tags: ['gpu', 'big'] });
    for (let n = 0; n < 5; n++) bench.github.queue({ labels: n % 2 === 0 ? ['gpu', 'big'] : ['other'] });
    watch();
    await soon(() => bench.service.waiting('ci')).toBe(3);
  });
});

it('tells doctor of a runner that runs jobs without the script in front of them', async () => {
  bench = githubService();
  const { runner } = await start('a1');
  bench.github.queue({ labels: ['ci'] });
  runner.take();
  runner.finish();
  says('a1', '2026-11-26 10:00:00Z: Running job: build', '2026-11-26 10:00:09Z: Job build completed with result: Succeeded');
  await bench.service.deregister(contextOf('a1'), patient);
  const found = await bench.service.check(patient);
  expect(found).toContainEqual(
    expect.objectContaining({ level: 'error', message: expect.stringContaining('"forks" and "public" refuse nothing there') }),
  );
});

describe('an agent that dies with a job', () => {
  it('stays busy at GitHub for ten minutes, is removed then, and never sooner', async () => {
    const clock = handClock();
    bench = githubService({ clock });
    const { runner } = await start('a1');
    bench.github.queue({ labels: ['ci'] });
    runner.take();
    watch();
    await soon(() => seen).toContainEqual(expect.objectContaining({ kind: 'jobSeen' }));
    runner.die();
    bench.live.delete('a1');
    expect(await bench.service.deregister(contextOf('a1'), patient)).toEqual({ ran: `hub-${runner.row.id}` });
    expect(bench.github.runners.size).toBe(1);
    await soon(() => {
      clock.advance(5_000);
      return bench.github.runners.size;
    }).toBe(0);
    expect(clock.now()).toBeGreaterThan(600_000);
  });
});

describe('an agent that GitHub has dropped', () => {
  it.each([
    ['without a job', false, 60_000],
    ['after its job, and that does not end', true, 120_000],
  ])('is ended: one %s', async (_, hadJob, least) => {
    const clock = handClock();
    bench = githubService({ clock });
    const { runner } = await start('a1');
    watch();
    await soon(() => seen).toContainEqual({ kind: 'online', agent: 'a1' });
    if (hadJob) {
      bench.github.queue({ labels: ['ci'] });
      runner.take();
      await soon(() => {
        clock.advance(100);
        return seen.some(({ kind }) => kind === 'jobSeen');
      }).toBe(true);
      runner.finish();
    } else {
      bench.github.faults.lostAcquire = 'gone';
      bench.github.queue({ labels: ['ci'] });
      runner.take();
    }
    const since = clock.now();
    await soon(() => {
      clock.advance(1_000);
      return seen.some(({ kind }) => kind === 'jobDone');
    }).toBe(true);
    expect(clock.now() - since).toBeGreaterThanOrEqual(least);
  });

  it('is left alone while the list only does not show it yet', async () => {
    const clock = handClock();
    bench = githubService({ clock });
    bench.github.faults.hiddenFor = 200_000;
    await start('a1');
    watch();
    const before = bench.github.calls.length;
    await soon(() => {
      clock.advance(2_000);
      return clock.now();
    }).toBeGreaterThan(150_000);
    await soon(() => bench.github.calls.length).toBeGreaterThan(before + 5);
    expect(seen.filter(({ kind }) => kind === 'jobDone')).toEqual([]);
  });
});

it('takes an agent at work for online, whatever the list says', async () => {
  bench = githubService();
  bench.github.faults.offlineWhileBusy = true;
  const { runner } = await start('a1');
  bench.github.queue({ labels: ['ci'] });
  runner.take();
  watch();
  await soon(() => seen).toContainEqual({ kind: 'online', agent: 'a1' });
  expect(await bench.service.retire('a1', patient)).toBe(`hub-${runner.row.id}`);
});

it('asks for an unchanged list without using the rate limit up', async () => {
  const clock = handClock();
  bench = githubService({ clock, config: { pollEvery: 10_000 } });
  for (const agent of ['a1', 'a2']) await start(agent);
  watch();
  const lists = () => bench.github.calls.filter((call) => call === 'GET /orgs/acme/actions/runners').length;
  await soon(() => {
    clock.advance(10_000);
    return lists();
  }).toBeGreaterThan(360);
  const used = [...bench.github.quota.used.values()].map(({ count }) => count);
  // One call for each agent and minute would be 120.
  expect(Math.max(...used)).toBeLessThan(60);
});

it('waits as long as GitHub asks, and says so', async () => {
  const clock = handClock();
  bench = githubService({ clock });
  await start('a1');
  bench.github.quota.limit = 1;
  watch();
  await soon(() => {
    clock.advance(1_000);
    return seen.findLast(({ kind }) => kind === 'hold');
  }).toMatchObject({ reason: expect.stringMatching(/asked onejob to send no requests until/) });
});
