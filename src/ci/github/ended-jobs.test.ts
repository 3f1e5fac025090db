/** How jobs ended and when, as GitHub says it, or this host where GitHub does not. */
import { afterEach, expect, it } from 'vitest';
import { patient } from '../../../test/kit/azure.ts';
import { handClock } from '../../../test/kit/core.ts';
import { memoryGitHub } from '../../../test/kit/github.ts';
import { contextOf, githubService, jitIn, jobLine } from '../../../test/kit/github-service.ts';
import { createGithub } from './service.ts';

type Options = Parameters<typeof githubService>[0];
const endings: (() => void)[] = [];
afterEach(() => {
  for (const end of endings.splice(0)) end();
});

/** An agent with a job, at a GitHub that answers about jobs as `how` says. */
async function working(options: Options = {}) {
  const clock = handClock();
  const made = memoryGitHub({ clock });
  const answers = { how: 'well' as 'well' | 'refused' | 'silent' | 'dead', asked: 0 };
  const fetch: typeof made.fetch = async (input, init) => {
    if (!/\/actions\/(jobs|runs)\//.test(String(input))) return made.fetch(input, init);
    answers.asked += 1;
    if (answers.how === 'refused') return Response.json({ message: 'Resource not accessible by integration' }, { status: 403 });
    if (answers.how === 'dead')
      throw new TypeError('fetch failed', { cause: Object.assign(new Error('x'), { code: 'ECONNRESET' }) });
    if (answers.how === 'silent')
      return new Promise((_, reject) => init?.signal?.addEventListener('abort', () => reject(init.signal?.reason)));
    return made.fetch(input, init);
  };
  const bench = githubService({ clock, ...options, github: { ...made, fetch } as typeof made });
  endings.push(bench.close);
  bench.live.add('a1');
  const { script } = await bench.service.register(contextOf('a1'), patient);
  const runner = made.connect(jitIn(script));
  const queued = made.queue({ labels: ['ci'], name: 'build', steps: [['make'], ['make test']] });
  clock.advance(7_000);
  runner.take();
  const begun = clock.wall();
  const hear = bench.service.listen('a1');
  const id = `hub-${runner.row.id}`;
  const until = <T>(what: () => T) =>
    expect.poll(
      () => {
        clock.advance(1_000);
        return what();
      },
      { timeout: 30_000, interval: 2 },
    );
  return {
    ...bench,
    clock,
    runner,
    queued,
    begun,
    id,
    answers,
    until,
    hear,
    row: () => bench.store.serviceJobs.get(id),
    verdict: () => bench.store.outcomes.get(id)?.verdict,
    /** Its agent has ended. */
    async leave(result: string) {
      hear(`2026-11-26 10:00:09Z: Job build completed with result: ${result}`);
      bench.live.delete('a1');
      const leaving = bench.service.deregister(contextOf('a1'), patient);
      let isOver = false;
      leaving.finally(() => {
        isOver = true;
      });
      await until(() => isOver).toBe(true);
      return leaving;
    },
  };
}

const runs = '2026-11-26 10:00:00Z: Running job: build';

it('a job that passed has the conclusion of GitHub, and its times', async () => {
  const one = await working();
  one.hear(runs);
  one.hear(jobLine());
  one.clock.advance(60_000);
  one.runner.finish();
  const ended = one.clock.wall();
  await one.leave('Succeeded');
  expect(one.row()).toMatchObject({
    state: 'done',
    result: 'success',
    outcome: 'passed',
    note: null,
    queuedAt: one.queued.queuedAt,
    startedAt: one.begun,
    endedAt: ended,
  });
  expect(one.verdict()).toMatchObject({ kind: 'passed' });
});

it('GitHub may learn of the end later than this host: it is asked again, a few times', async () => {
  const one = await working();
  one.hear(runs);
  one.hear(jobLine());
  await one.leave('Succeeded');
  expect(one.row()).toMatchObject({ state: 'done', result: 'succeeded', outcome: 'passed', endedAt: expect.any(Number) });
  one.runner.finish();
  const ended = one.clock.wall();
  await one.until(() => one.row()?.result).toBe('success');
  expect(one.row()).toMatchObject({ startedAt: one.begun, endedAt: ended });
  expect(one.answers.asked).toBeLessThanOrEqual(4);
});

it('a manager that ends does not wait for what GitHub may still say', async () => {
  const one = await working();
  one.hear(jobLine());
  await one.leave('Succeeded');
  const { asked } = one.answers;
  await one.service.close();
  for (let n = 0; n < 100; n++) {
    one.clock.advance(5_000);
    await new Promise((resolve) => setImmediate(resolve));
  }
  expect(one.answers.asked).toBe(asked);
});

it.each(['a minute', 'an hour'])(
  'an end that GitHub did not know when the manager ended is asked for by the next, %s later',
  async (later) => {
    const one = await working();
    one.hear(runs);
    one.hear(jobLine());
    await one.leave('Failed');
    expect(one.row()).toMatchObject({ result: 'failed', failedIn: null, note: expect.stringContaining('GitHub shows no steps') });
    await one.service.close();
    one.runner.finish('failure');
    const ended = one.clock.wall();
    one.clock.advance(later === 'a minute' ? 60_000 : 3_600_000);
    const next = createGithub(one.parts);
    const on = new AbortController();
    next.observe(() => {}, on.signal);
    await one.until(() => one.row()?.result).toBe('failure');
    on.abort();
    await next.close();
    expect(one.row()).toMatchObject({
      failedIn: 'script',
      note: null,
      startedAt: one.begun,
      endedAt: ended,
      title: 'ci #12 build',
    });
    expect(one.verdict()).toMatchObject({ kind: 'code' });
  },
);

it('the next manager asks for no end that is known, or that was long ago', async () => {
  const known = await working();
  known.hear(jobLine());
  known.runner.finish();
  await known.leave('Succeeded');
  const old = await working();
  old.hear(jobLine());
  old.answers.how = 'dead';
  old.runner.finish();
  await old.leave('Succeeded');
  await old.service.close();
  old.answers.how = 'well';
  old.clock.advance(2 * 86_400_000);
  for (const one of [known, old]) {
    await one.service.close();
    const { asked } = one.answers;
    const next = createGithub(one.parts);
    const on = new AbortController();
    next.observe(() => {}, on.signal);
    for (let n = 0; n < 100; n++) {
      one.clock.advance(5_000);
      await new Promise((resolve) => setImmediate(resolve));
    }
    on.abort();
    await next.close();
    expect(one.answers.asked).toBe(asked);
  }
});

it.each(['refused', 'silent', 'dead'] as const)(
  'a GitHub that is %s leaves the words of the runner and the times of this host',
  async (how) => {
    const one = await working();
    one.answers.how = how;
    one.clock.advance(5_000);
    one.hear(runs);
    one.hear(jobLine());
    one.clock.advance(60_000);
    const before = one.clock.wall();
    await one.leave('Succeeded');
    expect(one.row()).toMatchObject({ state: 'done', result: 'succeeded', outcome: 'passed', startedAt: one.begun + 5_000 });
    expect(one.row()?.endedAt).toBeGreaterThanOrEqual(before);
    expect(one.verdict()).toMatchObject({ kind: 'passed' });
    for (let n = 0; n < 300; n++) {
      one.clock.advance(5_000);
      await new Promise((resolve) => setImmediate(resolve));
    }
    // It is not asked for ever, and a refusal is not repeated.
    expect(one.answers.asked).toBeLessThanOrEqual(how === 'refused' ? 1 : 16);
    expect(one.row()).toMatchObject({ result: 'succeeded' });
  },
);

it.each(['silent', 'dead'] as const)('a GitHub that was %s when the job ended is believed once it is back', async (how) => {
  const one = await working();
  one.hear(runs);
  one.hear(jobLine());
  one.answers.how = how;
  one.runner.finish('failure');
  await one.leave('Failed');
  expect(one.row()).toMatchObject({ result: 'failed', failedIn: null });
  expect(one.verdict()).toMatchObject({ kind: 'unknown', why: expect.stringContaining('nobody says whether its script failed') });
  one.answers.how = 'well';
  await one.until(() => one.row()?.result).toBe('failure');
  expect(one.verdict()).toMatchObject({ kind: 'code' });
});

it('a job that failed in a step of its own is to blame, one whose containers could not start is not', async () => {
  const own = await working();
  own.hear(jobLine());
  own.runner.finish('failure');
  await own.leave('Failed');
  expect([own.row()?.failedIn, own.verdict()?.kind]).toEqual(['script', 'code']);

  const containers = await working();
  containers.hear(jobLine());
  containers.runner.finish('failure', '', 'Initialize containers');
  await containers.leave('Failed');
  const advice = expect.stringMatching(/it wants an Engine, for "container:" or "services:".*name the image in the pool/);
  expect(containers.row()).toMatchObject({ outcome: 'failed', failedIn: 'runner', note: advice });
  expect(containers.verdict()).toMatchObject({ kind: 'unknown', evidence: expect.arrayContaining([advice]) });
});

it('a job that onejob refuses is not to blame, and neither is one of which nobody may see the steps', async () => {
  const refused = await working();
  refused.hear(jobLine({ refused: 'it comes from stranger/demo, a fork' }));
  refused.runner.finish('failure');
  await refused.leave('Failed');
  const note = 'onejob refused this job: it comes from stranger/demo, a fork.';
  expect(refused.row()).toMatchObject({ result: 'refused', note });
  expect(refused.verdict()?.kind).toBe('unknown');

  const hidden = await working();
  hidden.answers.how = 'refused';
  hidden.hear(jobLine());
  hidden.runner.finish('failure');
  await hidden.leave('Failed');
  expect(hidden.row()).toMatchObject({ outcome: 'failed', note: expect.stringContaining('the right to read Actions') });
  expect(hidden.verdict()?.kind).toBe('unknown');
});

it('a repository shows the jobs of runners that say nothing themselves', async () => {
  const one = await working({ queues: ['acme/demo'] });
  const on = new AbortController();
  one.service.observe(() => {}, on.signal);
  await one.until(() => one.row()?.link ?? null).not.toBeNull();
  const looks = () => one.github.calls.filter((call) => call.endsWith('/actions/runners')).length;
  const before = looks();
  await one.until(looks).toBeGreaterThan(before + 20);
  one.runner.finish();
  await one.leave('unheard');
  on.abort();
  expect(one.row()).toMatchObject({ result: 'success', outcome: 'passed', repository: 'acme/demo', startedAt: one.begun });
});
