import { readdirSync, readFileSync } from 'node:fs';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { patient } from '../../../test/kit/azure.ts';
import { handClock } from '../../../test/kit/core.ts';
import { giteaService } from '../../../test/kit/gitea-service.ts';
import { OnejobError } from '../../base/errors.ts';
import type { AgentContext, CiEvent } from '../../ports/ci-service.ts';
import { createPlaces } from './registry.ts';

type Bench = ReturnType<typeof giteaService>;
let bench: Bench;
let watching: AbortController;
let seen: CiEvent[];

beforeEach(() => {
  watching = new AbortController();
  seen = [];
});
afterEach(() => {
  watching.abort();
  bench.close();
});

const contextOf = (agent: string): AgentContext => ({
  agent,
  pool: 'ci',
  slot: 'ci/1',
  name: 'box-1',
  workspace: '/workspace',
  job: null,
  devices: [],
  cuda: null,
  ask: async () => '',
  isRemote: false,
  hostAddress: async () => '127.0.0.1',
});

/** An agent that is online. */
async function start(agent: string) {
  bench.live.add(agent);
  const { script } = await bench.service.register(contextOf(agent), patient);
  const runner = bench.runnerOf(script);
  bench.gitea.fetchTask(runner);
  return { runner, script };
}

/** The agent gets a job. */
function work(runner: Awaited<ReturnType<typeof start>>['runner'], labels = ['ci']) {
  const job = bench.gitea.queue(labels);
  bench.gitea.fetchTask(runner);
  return job;
}

const watch = () => bench.service.observe((event) => seen.push(event), watching.signal);
const soon = <T>(what: () => T) => expect.poll(what, { timeout: 10_000, interval: 5 });
const keyFiles = () => readdirSync(bench.keyDir);

describe('an agent', () => {
  it('is an ephemeral runner with the labels of its pool, and its script holds nothing of the service', async () => {
    bench = giteaService({ tags: ['gpu', 'a100'] });
    const { runner, script } = await start('a1');
    expect(runner).toMatchObject({ labels: ['gpu', 'a100'], name: expect.stringMatching(/^box-1-.*-a1$/) });
    expect(script).not.toContain('secret-token');
    expect(script).not.toContain('registration-');
    expect(script).toContain('"timeout":"3660s"');
    expect(script).toContain('"labels":["gpu:host","a100:host"]');
    expect(script).toContain('"ephemeral":true');
  });

  it('registers although somebody has reset the registration token', async () => {
    bench = giteaService();
    await start('a1');
    bench.gitea.resetRegistration();
    await start('a2');
    expect(bench.gitea.runners).toHaveLength(2);
  });

  it('keeps its key in a file that only its user reads, until it is removed', async () => {
    bench = giteaService();
    const { runner } = await start('a1');
    expect(keyFiles()).toEqual(['a1.json']);
    expect(readFileSync(`${bench.keyDir}/a1.json`, 'utf8')).toContain(runner.token);
    expect(JSON.stringify(bench.store.registrations.open('forge'))).not.toContain(runner.token);
    await bench.service.deregister(contextOf('a1'), patient);
    expect(keyFiles()).toEqual([]);
    expect(bench.gitea.runners).toEqual([]);
  });
});

it('keeps what is known of an agent whose service is away when it ends', async () => {
  bench = giteaService();
  const { runner } = await start('a1');
  const job = work(runner);
  watch();
  await soon(() => seen).toContainEqual({ kind: 'jobSeen', agent: 'a1', job: 'forge-1' });
  const back = bench.gitea.goAway();
  expect(await bench.service.deregister(contextOf('a1'), patient)).toEqual({ ran: undefined });
  bench.live.delete('a1');
  bench.gitea.end(job, 'success');
  back();
  await soon(() => bench.store.serviceJobs.get('forge-1')).toMatchObject({ state: 'done', result: 'success' });
});

it.each([
  ['a step of its workflow', 'failure', 'script', 'code'],
  // As where `container:` wants an Engine.
  ['no step, because none began', 'cancelled', 'runner', 'unknown'],
] as const)('a job that failed in %s is blamed for it only then', async (_, step, where, kind) => {
  bench = giteaService();
  const { runner } = await start('a1');
  const job = work(runner);
  watch();
  await soon(() => seen).toContainEqual({ kind: 'jobSeen', agent: 'a1', job: 'forge-1' });
  bench.gitea.end(job, 'failure', step);
  bench.live.delete('a1');
  await bench.service.deregister(contextOf('a1'), patient);
  expect(bench.store.serviceJobs.get('forge-1')).toMatchObject({ state: 'done', result: 'failure', failedIn: where });
  expect(bench.store.outcomes.get('forge-1')?.verdict.kind).toBe(kind);
  const note = bench.store.serviceJobs.get('forge-1')?.note ?? '';
  expect(/"container:" in its workflow wants an Engine.*name the image in the pool/.test(note)).toBe(where === 'runner');
});

it('a job that onejob ended at its time limit is to blame, one that it ended for a stop is not', async () => {
  for (const [why, kind] of [
    ['timeout', 'code'],
    ['shutdown', 'unknown'],
  ] as const) {
    bench = giteaService();
    const { runner } = await start('a1');
    work(runner);
    const on = new AbortController();
    bench.service.observe((event) => seen.push(event), on.signal);
    await soon(() => seen).toContainEqual({ kind: 'jobSeen', agent: 'a1', job: 'forge-1' });
    bench.service.listen?.('a1')('time="x" level=info msg="task 101 repo is acme/demo http://forge"');
    await bench.service.ending?.({ agent: 'a1', job: 'forge-1', why, released: true }, patient);
    bench.live.delete('a1');
    await bench.service.deregister(contextOf('a1'), patient);
    on.abort();
    expect(bench.store.outcomes.get('forge-1')?.verdict).toMatchObject({
      kind,
      evidence: expect.arrayContaining([expect.stringMatching(/^onejob ended this job: /)]),
    });
    if (why === 'timeout') bench.close();
    seen = [];
  }
});

it('watches the agents of two pools that write one place differently', async () => {
  bench = giteaService({ queues: ['acme', 'Acme'] });
  bench.live.add('b1');
  const { script } = await bench.service.register({ ...contextOf('b1'), pool: 'ci-1' }, patient);
  const runner = bench.runnerOf(script);
  bench.gitea.fetchTask(runner);
  const job = work(runner, ['ci-1']);
  watch();
  await soon(() => seen).toContainEqual({ kind: 'jobSeen', agent: 'b1', job: 'forge-1' });
  bench.gitea.end(job, 'cancelled');
  await soon(() => seen).toContainEqual({ kind: 'cancel', agent: 'b1', job: 'forge-1', grace: 1_000 });
});

it('tells a token that may not look at organisations from a name that does not exist', async () => {
  bench = giteaService();
  const denied = new OnejobError('E_CI_DENIED', 'required=[read:organization]');
  const client = { hasRepository: async () => false, hasOrganisation: () => Promise.reject(denied), user: async () => 'ada' };
  const places = createPlaces(client, 'http://forge');
  expect(await places.find('Ada', patient)).toBe('user');
  await expect(places.find('acme', patient)).rejects.toBe(denied);
});

describe('jobs that wait', () => {
  it('count for a pool of machines in a cloud by its name there, without the runner that only machines need', async () => {
    const program = { ready: () => Promise.reject(new OnejobError('E_AGENT_PACKAGE', 'There is no runner here.')) };
    bench = giteaService({ pool: { name: 'burst.gpu', agents: 0, elsewhere: { host: 'burst', pool: 'gpu' } }, program });
    for (const label of ['gpu', 'gpu', 'burst.gpu']) bench.gitea.queue([label]);
    watch();
    await soon(() => bench.service.waiting('burst.gpu')).toBe(2);
    await soon(() => seen).toContainEqual({ kind: 'waiting', pool: 'burst.gpu' });
    bench.gitea.add('burst-3fa9c1-gpu-1-0123abcd-a1', ['gpu']);
    expect((await bench.service.check(patient)).filter(({ message }) => message.includes('same labels'))).toEqual([]);
  });

  it('count for the pools whose labels they name, also those behind the fiftieth', async () => {
    bench = giteaService({ tags: ['gpu', 'big'] });
    for (let n = 0; n < 120; n++) bench.gitea.queue(n % 2 === 0 ? ['gpu'] : ['other']);
    watch();
    await soon(() => bench.service.waiting('ci')).toBe(60);
    await soon(() => seen).toContainEqual({ kind: 'waiting', pool: 'ci' });
  });

  it('are shown if no pool here has their labels, and no other runner', async () => {
    const clock = handClock();
    bench = giteaService({ tags: ['gpu'], clock });
    for (const label of ['gpu', 'typo', 'typo', 'theirs']) bench.gitea.queue([label]);
    bench.gitea.add('another-host', ['theirs', 'more']);
    watch();
    await soon(() => bench.service.waiting('ci')).toBe(1);
    expect(bench.service.unfit()).toEqual([]);
    clock.advance(300_000);
    expect(bench.service.unfit()).toMatchObject([{ jobs: 2, how: expect.stringMatching(/^in .+ for an agent with typo, which/) }]);
  });

  it('count no more once an agent has had one between two looks', async () => {
    bench = giteaService();
    const job = bench.gitea.queue(['ci']);
    watch();
    await soon(() => bench.service.waiting('ci')).toBe(1);
    watching.abort();
    await start('a1');
    bench.service.listen?.('a1')(`level=info msg="task ${job.task} repo is acme/demo https://github.com http://forge"`);
    bench.gitea.end(job, 'success');
    expect(await bench.service.deregister(contextOf('a1'), patient)).toEqual({ ran: 'forge-1' });
    expect(bench.service.waiting('ci')).toBe(0);
  });
});

describe('a job that was cancelled', () => {
  it('ends its agent, which the server does not tell', async () => {
    bench = giteaService();
    const { runner } = await start('a1');
    const job = work(runner);
    watch();
    await soon(() => seen).toContainEqual({ kind: 'jobSeen', agent: 'a1', job: 'forge-1' });
    bench.gitea.end(job, 'cancelled');
    await soon(() => seen).toContainEqual({ kind: 'cancel', agent: 'a1', job: 'forge-1', grace: 1_000 });
  });

  it('ends its agent also where somebody runs it again at once, which is another job here', async () => {
    bench = giteaService();
    const { runner } = await start('a1');
    const job = work(runner);
    watch();
    await soon(() => seen).toContainEqual({ kind: 'jobSeen', agent: 'a1', job: 'forge-1' });
    bench.gitea.end(job, 'cancelled');
    bench.gitea.rerun(job);
    bench.gitea.fetchTask((await start('a2')).runner);
    await soon(() => seen).toContainEqual({ kind: 'cancel', agent: 'a1', job: 'forge-1', grace: 1_000 });
    await soon(() => seen).toContainEqual({ kind: 'jobSeen', agent: 'a2', job: 'forge-1-2' });
    expect(await bench.service.deregister(contextOf('a1'), patient)).toEqual({ ran: 'forge-1' });
    expect(job.status).toBe('in_progress');
  });

  it.each([
    ['continues while only the job is hidden from the token', false],
    ['is one whose repository was removed, with its runner', true],
  ])('%s', async (_, isGone) => {
    bench = giteaService();
    const { runner } = await start('a1');
    work(runner);
    watch();
    await soon(() => seen).toContainEqual({ kind: 'jobSeen', agent: 'a1', job: 'forge-1' });
    bench.gitea.jobs.length = 0;
    if (isGone) bench.gitea.runners.length = 0;
    const before = bench.gitea.calls.length;
    await soon(() => bench.gitea.calls.length).toBeGreaterThan(before + 30);
    expect(seen.some(({ kind }) => kind === 'cancel')).toBe(isGone);
  });

  it('is not one that ended by itself', async () => {
    bench = giteaService();
    const { runner } = await start('a1');
    const job = work(runner);
    watch();
    await soon(() => seen).toContainEqual({ kind: 'jobSeen', agent: 'a1', job: 'forge-1' });
    bench.gitea.end(job, 'success');
    const before = bench.gitea.calls.length;
    await soon(() => bench.gitea.calls.length).toBeGreaterThan(before + 20);
    expect(seen.some(({ kind }) => kind === 'cancel')).toBe(false);
  });
});

describe('an agent that can get no job any more', () => {
  it('is ended, once it is certain that its runner was removed', async () => {
    const clock = handClock();
    bench = giteaService({ clock });
    const { runner } = await start('a1');
    watch();
    await soon(() => seen).toContainEqual({ kind: 'online', agent: 'a1' });
    bench.gitea.runners.splice(bench.gitea.runners.indexOf(runner), 1);
    const advanced = () => {
      clock.advance(1_000);
      return seen;
    };
    await soon(advanced).toContainEqual({ kind: 'jobDone', agent: 'a1' });
  });
});

describe('the job of an agent that died', () => {
  it.each([
    [{ kind: 'oom' } as const, 'onejob: the sandbox was killed: out of memory.'],
    [{ kind: 'code', code: 3 } as const, 'onejob: the runner ended with exit code 3 before it reported a result.'],
    [{ kind: 'lost', reason: 'its sandbox was removed by someone else' } as const, 'was removed by someone else'],
  ])('is ended with the reason in its log: %j', async (exit, words) => {
    bench = giteaService();
    const { runner } = await start('a1');
    work(await start('a2').then((other) => other.runner));
    const job = work(runner);
    job.log.push('its own line');
    bench.exits.set('a1', exit);
    expect(await bench.service.deregister(contextOf('a1'), patient)).toEqual({ ran: 'forge-2' });
    expect(job).toMatchObject({ status: 'completed', conclusion: 'failure', isSealed: true });
    expect(job.log).toEqual(['its own line', expect.stringContaining(words)]);
    expect(bench.gitea.jobs[0]).toMatchObject({ status: 'in_progress', log: [] });
    expect(bench.gitea.runners.map(({ id }) => id)).toEqual([2]);
  });

  it('is ended by the next manager, which finds the key in its file', async () => {
    bench = giteaService();
    const { runner } = await start('a1');
    const job = work(runner);
    bench.live.delete('a1');
    watch();
    await soon(() => job.conclusion).toBe('failure');
    await soon(() => bench.gitea.runners).toEqual([]);
    await soon(keyFiles).toEqual([]);
  });

  it('is never cut off from its runner where nobody can speak for it', async () => {
    bench = giteaService();
    const { runner } = await start('a1');
    const job = work(runner);
    bench.live.delete('a1');
    const { rmSync } = await import('node:fs');
    rmSync(`${bench.keyDir}/a1.json`);
    watch();
    await soon(() => runner.disabled).toBe(true);
    expect(job.status).toBe('in_progress');
    expect(bench.gitea.runners).toContain(runner);
  });

  it('names the task that the runner itself has named, and no other that a job wrote into its log', async () => {
    bench = giteaService();
    const { runner } = await start('a1');
    const job = work(runner);
    const hear = bench.service.listen?.('a1');
    hear?.('time="…" level=info msg="task 999 repo is acme/demo https://github.com http://forge"');
    await bench.service.deregister(contextOf('a1'), patient);
    expect(job.conclusion).toBe('failure');
  });
});

describe('an agent that ended with its job', () => {
  it('ran it, also when no look saw it', async () => {
    bench = giteaService();
    const { runner } = await start('a1');
    const job = work(runner);
    bench.service.listen?.('a1')(`level=info msg="task ${job.task} repo is acme/demo https://github.com http://forge"`);
    bench.gitea.end(job, 'success');
    expect(await bench.service.deregister(contextOf('a1'), patient)).toEqual({ ran: 'forge-1' });
  });

  it('had none, if its runner never began one', async () => {
    bench = giteaService();
    await start('a1');
    expect(await bench.service.deregister(contextOf('a1'), patient)).toEqual({ ran: null });
  });
});

it('loses no job to an agent that is retired, in a thousand orders', async () => {
  bench = giteaService();
  const { gitea, service } = bench;
  let given = 0;
  for (let n = 0; n < 1_000; n++) {
    const agent = `r${n}`;
    const { runner } = await start(agent);
    const job = gitea.queue(['ci']);
    // The runner asks at some point of what happens at the server meanwhile.
    const turns = n % 12;
    const asks = (async () => {
      for (let turn = 0; turn < turns; turn++) await Promise.resolve();
      return gitea.fetchTask(runner);
    })();
    const [answer, got] = await Promise.all([service.retire(agent, patient), asks]);
    if (got !== null) given += 1;
    expect(answer).toBe(got === null ? null : `forge-${job.id}`);
    gitea.end(job, 'success');
    bench.live.delete(agent);
    await service.deregister(contextOf(agent), patient);
  }
  expect(given).toBeGreaterThan(50);
  expect(given).toBeLessThan(950);
}, 60_000);
