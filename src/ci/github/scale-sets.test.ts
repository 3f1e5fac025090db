import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { failureOf, patient } from '../../../test/kit/azure.ts';
import { type HandClock, handClock } from '../../../test/kit/core.ts';
import { contextOf, githubService, jitIn } from '../../../test/kit/github-service.ts';
import type { CiEvent } from '../../ports/ci-service.ts';

type Bench = ReturnType<typeof githubService>;
let bench: Bench;
let clock: HandClock;
let watching: AbortController;
let seen: CiEvent[];

beforeEach(() => {
  clock = handClock();
  bench = githubService({ clock, config: { mode: 'scale-set' }, tags: ['gpu'] });
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
const holds = () => seen.findLast(({ kind }) => kind === 'hold');

describe('a pool as a scale set', () => {
  it('takes the jobs of its set for agents that wait, and tells what GitHub said of them', async () => {
    const runner = await start('a1');
    watch();
    await soon(isOpen).not.toBeNull();
    expect(set()).toMatchObject({ name: 'gpu', scope: '/orgs/acme', disableUpdate: true });
    bench.github.queue({ labels: ['gpu'], name: 'train' });
    await soon(() => runner.take()).not.toBeNull();
    const id = `hub-${runner.row.id}`;
    await soon(() => seen).toContainEqual({ kind: 'jobSeen', agent: 'a1', job: id });
    await soon(() => bench.service.serviceJobs?.()[0]).toMatchObject({ id, repository: 'acme/demo', state: 'running' });
    runner.finish('failure');
    await soon(() => set()?.messages.length).toBe(0);
    expect(await bench.service.deregister(contextOf('a1'), patient)).toEqual({ ran: id });
    expect(bench.store.serviceJobs.get(id)).toMatchObject({ state: 'done', outcome: 'failed', repository: 'acme/demo' });
  });

  it('knows how many jobs wait, and what its capacity is', async () => {
    await start('a1');
    watch();
    await soon(isOpen).not.toBeNull();
    expect(bench.service.waiting('ci')).toBe(0);
    for (let n = 0; n < 3; n++) bench.github.queue({ labels: ['gpu'] });
    await soon(() => bench.service.waiting('ci')).toBe(3);
  });

  it('still takes jobs after a silent hour, and after its queue refused its token', async () => {
    await start('a1');
    watch();
    await soon(isOpen).not.toBeNull();
    const polls = () => bench.github.calls.filter((call) => /queue\/1$/.test(call)).length;
    await expect
      .poll(
        () => {
          clock.advance(5_000);
          return clock.now();
        },
        { timeout: 30_000, interval: 1 },
      )
      .toBeGreaterThan(3_600_000);
    await soon(polls).toBeGreaterThan(30);
    const before = set();
    if (before !== undefined) before.queueToken = 'another one';
    const runner = await start('a2');
    clock.advance(60_000);
    bench.github.queue({ labels: ['gpu'] });
    await soon(() => runner.take() ?? bench.github.jobs[0]?.set).toBeTruthy();
  });

  it('closes its session when onejob ends, and keeps the set', async () => {
    watch();
    await soon(isOpen).not.toBeNull();
    await bench.service.close?.();
    expect(isOpen()).toBeNull();
    expect(bench.github.sets).toHaveLength(1);
  });

  it('holds its pool while another program serves the set, and serves it afterwards', async () => {
    await bench.service.register(contextOf('a0'), patient);
    const theirs = set();
    if (theirs !== undefined) theirs.session = { id: 'x', owner: 'arc-controller' };
    watch();
    await soon(() => holds()).toMatchObject({ pool: 'ci', reason: expect.stringMatching(/arc-controller holds a session/) });
    if (theirs !== undefined) theirs.session = null;
    await soon(() => {
      clock.advance(1_000);
      return holds();
    }).toMatchObject({ reason: null });
  });

  it('says where GitHub allows no scale sets', async () => {
    bench.github.faults.noScaleSets = true;
    expect(await failureOf(bench.service.register(contextOf('a1'), patient))).toMatchObject({
      code: 'E_CI_DENIED',
      hint: expect.stringContaining('mode: jit'),
    });
  });

  it('finds an agent whose registration was not answered, and never has two', async () => {
    bench.github.fault(/generatejitconfig/, { how: 'lost', after: true });
    await expect(bench.service.register(contextOf('a1'), patient)).rejects.toMatchObject({ retry: true });
    await start('a1');
    expect(bench.github.runners.size).toBe(1);
  });

  it('removes no runner that works', async () => {
    const runner = await start('a1');
    watch();
    await soon(isOpen).not.toBeNull();
    bench.github.queue({ labels: ['gpu'] });
    await soon(() => runner.take()).not.toBeNull();
    expect(await bench.service.retire('a1', patient)).toBe(`hub-${runner.row.id}`);
    expect(bench.github.runners.size).toBe(1);
  });
});
