/** What GitHub, networks and people do to runners. */
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { failureOf, patient } from '../../../test/kit/azure.ts';
import { handClock } from '../../../test/kit/core.ts';
import { contextOf, githubService, jitIn, jobLine } from '../../../test/kit/github-service.ts';
import type { OnejobError } from '../../base/errors.ts';
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

async function start(agent: string, more: Partial<AgentContext> = {}) {
  bench.live.add(agent);
  const { script } = await bench.service.register(contextOf(agent, more), patient);
  return { script, runner: bench.github.connect(jitIn(script)) };
}
const watch = () => bench.service.observe((event) => seen.push(event), watching.signal);
const soon = <T>(what: () => T) => expect.poll(what, { timeout: 30_000, interval: 5 });
const says = (agent: string, ...lines: string[]) => {
  const hear = bench.service.listen(agent);
  for (const line of lines) hear(line);
};
const row = (id: string) => bench.store.serviceJobs.get(id);

describe('no phantom job', () => {
  it('of an idle agent that onejob retired itself (renewal, down)', async () => {
    bench = githubService();
    const { runner } = await start('a1');
    expect(await bench.service.retire('a1', patient)).toBeNull();
    expect(await bench.service.deregister(contextOf('a1'), patient)).toEqual({ ran: null });
    expect(row(`hub-${runner.row.id}`)).toBeNull();
  });

  it('of an agent that never came online', async () => {
    const clock = handClock();
    bench = githubService({ clock, slots: { silentFor: () => 100_000 } });
    bench.live.add('a1');
    await bench.service.register(contextOf('a1'), patient);
    watch();
    await soon(() => {
      clock.advance(5_000);
      return seen.some(({ kind }) => kind === 'silent');
    }).toBe(true);
    expect(await bench.service.deregister(contextOf('a1'), patient)).toEqual({ ran: null });
  });

  it('of an idle agent whose runner somebody removed at the website just before it ended', async () => {
    bench = githubService();
    const { runner } = await start('a1');
    bench.github.runners.delete(runner.row.id);
    expect(await bench.service.deregister(contextOf('a1'), patient)).toEqual({ ran: null });
  });
});

it('the record of a job that was lost keeps what was known of it after GitHub has released the runner', async () => {
  const clock = handClock();
  bench = githubService({ clock });
  const { runner } = await start('a1');
  bench.github.queue({ labels: ['ci'], name: 'build' });
  runner.take();
  says('a1', jobLine());
  const id = `hub-${runner.row.id}`;
  watch();
  await soon(() => row(id)?.repository).toBe('acme/demo');
  runner.die();
  bench.live.delete('a1');
  expect(await bench.service.deregister(contextOf('a1'), patient)).toEqual({ ran: id });
  expect(row(id)).toMatchObject({ repository: 'acme/demo' });
  await soon(() => {
    clock.advance(5_000);
    return bench.github.runners.size;
  }).toBe(0);
  expect(row(id)).toMatchObject({ title: expect.stringContaining('build'), repository: 'acme/demo' });
});

it('a refusal of one repository does not end the description of the jobs of all others', async () => {
  bench = githubService();
  bench.github.repository('acme/other');
  bench.github.fault(/GET \/repos\/acme\/demo\/actions\/runs/, {
    how: 'answer',
    after: false,
    answer: { status: 403, body: { message: 'Resource protected by organization SAML enforcement.', documentation_url: 'x' } },
  });
  const one = await start('a1');
  bench.github.queue({ labels: ['ci'] });
  one.runner.take();
  says('a1', jobLine());
  one.runner.finish();
  await bench.service.deregister(contextOf('a1'), patient);
  const two = await start('a2');
  bench.github.queue({ labels: ['ci'], repository: 'acme/other' });
  two.runner.take();
  says('a2', jobLine({ repository: 'acme/other', run: 7_001 }));
  two.runner.finish('failure');
  await bench.service.deregister(contextOf('a2'), patient);
  expect(row(`hub-${two.runner.row.id}`)).toMatchObject({ outcome: 'failed', link: expect.stringMatching(/^https/) });
});

it('the secondary limit without Retry-After is a limit, not a lack of rights', async () => {
  bench = githubService();
  bench.github.fault(/generate-jitconfig/, {
    how: 'answer',
    after: false,
    answer: {
      status: 403,
      body: {
        message: 'You have exceeded a secondary rate limit. Please wait a few minutes before you try again.',
        documentation_url: 'x',
      },
    },
  });
  const failure = (await failureOf(start('a1'))) as OnejobError;
  expect(failure).toMatchObject({ retry: true });
  expect(failure.code).not.toBe('E_CI_DENIED');
});

it('a queue that the token does not see is said so', async () => {
  const clock = handClock();
  const { memoryGitHub } = await import('../../../test/kit/github.ts');
  const github = memoryGitHub({ clock });
  bench = githubService({ clock, github, queues: ['nosuch/repo'], token: github.userToken() });
  const failure = (await failureOf(start('a1'))) as OnejobError;
  expect(`${failure.message} ${failure.hint}`).toMatch(/queue|token/);
  expect(failure.hint).not.toMatch(/Check "url"/);
});

it('a runner group that was made anew at the website is found again', async () => {
  bench = githubService({ config: { group: 'gpu' } });
  bench.github.group('gpu');
  await start('a1');
  // Deleted, and made again with another id.
  bench.github.fault(/generate-jitconfig/, {
    how: 'answer',
    after: false,
    answer: { status: 404, body: { message: 'Not Found', documentation_url: 'x' } },
  });
  await failureOf(start('a2'));
  const asked = () => bench.github.calls.filter((call) => call.endsWith('/runner-groups')).length;
  const before = asked();
  await start('a3');
  expect(asked()).toBeGreaterThan(before);
});

it('a job cannot say that it passed before it is over', async () => {
  bench = githubService();
  const { runner } = await start('a1');
  bench.github.queue({ labels: ['ci'] });
  runner.take();
  says('a1', '2026-11-26 10:00:00Z: Running job: build', jobLine());
  // Written by the job to /proc/<listener>/fd/2.
  says('a1', '2026-11-26 10:00:01Z: Job build completed with result: Succeeded');
  watch();
  await soon(() => seen).toContainEqual(expect.objectContaining({ kind: 'jobSeen' }));
  const lists = () => bench.github.calls.filter((call) => call === 'GET /orgs/acme/actions/runners').length;
  const before = lists();
  await soon(lists).toBeGreaterThan(before + 2);
  expect(row(`hub-${runner.row.id}`)).toMatchObject({ state: 'running' });
});

it('two places with one token wait together when GitHub asks them to', async () => {
  const clock = handClock();
  const { memoryGitHub } = await import('../../../test/kit/github.ts');
  const { slowDown } = await import('../../../test/kit/github.ts');
  const github = memoryGitHub({ clock });
  github.repository('acme/two');
  bench = githubService({ clock, github, queues: ['acme/demo', 'acme/two'], token: github.userToken() });
  github.fault(/demo\/actions\/runners$/, slowDown(300));
  watch();
  await soon(() => seen.some((event) => event.kind === 'hold' && event.reason !== null)).toBe(true);
  const before = github.calls.filter((call) => call.includes('/two/')).length;
  for (let n = 0; n < 50; n++) {
    clock.advance(1_000);
    await new Promise((resolve) => setImmediate(resolve));
  }
  expect(github.calls.filter((call) => call.includes('/two/')).length - before).toBeLessThan(5);
});
