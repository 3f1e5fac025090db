/** Jobs that the manager takes before there is a runner: what the loop, the server and the disk see of them, in time moved by hand. */
import { rmSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { fakeFilter, testPool } from '../../../test/kit/buildkite-manager.ts';
import type { JobSpec } from '../../../test/kit/gitlab.ts';
import { type GitlabBench, gitlabService, patient } from '../../../test/kit/gitlab-service.ts';
import { ageKey } from '../../../test/kit/secrets.ts';
import { oneDevice } from '../../../test/support/devices.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { OnejobError } from '../../base/errors.ts';
import type { PoolConfig } from '../../config/config.ts';
import { parseKeys } from '../../secrets/keys.ts';
import { seal } from '../../secrets/sealed-format.ts';
import type { Filter } from '../filter/filter.ts';
import { Seal, type Sealed } from '../filter/seal.ts';
import { gitlabRules } from './filter-rules.ts';

type Options = Parameters<typeof gitlabService>[0];
const script = ['true'];

/** Ready to take a job in `ci/1`. */
async function ready(options: Options = {}): Promise<GitlabBench> {
  const one = gitlabService(options);
  one.jobs.offer('ci/1', 'open');
  await one.watch();
  return one;
}

/** A job that waits for its slot. */
async function waiting(spec: Partial<JobSpec> = {}, options: Options = {}) {
  const one = await ready(options);
  const job = one.gitlab.queue({ script, ...spec });
  await one.pass(4_000);
  return { one, job };
}

it('takes no job while another program has an address of the filter, and says so', async () => {
  let say: (trouble: OnejobError | null) => void = () => {};
  const filter: Filter = {
    ...fakeFilter,
    start(_signal, heard = () => {}) {
      say = heard;
    },
  };
  await using one = await ready({ filter });
  await one.pass(100);
  say(new OnejobError('E_FILTER_TAKEN', 'Another program answers.', { hint: 'End it.', retry: true }));
  await one.pass(4_000);
  const before = asked(one).length;
  one.gitlab.queue({ script });
  await one.pass(60_000);
  expect([asked(one).length, one.holds().at(-1)]).toEqual([before, 'Another program answers. End it.']);
  say(null);
  await one.pass(4_000);
  expect(one.holds().at(-1)).toBeNull();
  expect(one.jobs.next('ci', 'ci/1')?.job).toBe('lab-1');
});

const asked = ({ gitlab }: GitlabBench) => gitlab.calls.filter((line) => line.includes('jobs/request'));

/** What the runner in the sandbox gets. */
async function givenBy(one: GitlabBench, text: string) {
  const token = /\/gitlab\/(ojf_[\w-]+)/.exec(text)?.[1] ?? '';
  const sealed = new Seal(new Uint8Array(32)).open(token);
  const file = sealed?.file ?? '';
  // The address alone is in the runner's log when it cannot reach the filter: who reads it gets nothing, and takes nothing away.
  expect(await one.left.take(file, sealed?.token ?? '')).toBeNull();
  const own = /^token = "([^"]+)"$/m.exec(text)?.[1] ?? '';
  const verdict = gitlabRules.judge(sealed as Sealed, { method: 'POST', segments: ['api', 'v4', 'jobs', 'request'], query: '' });
  const key = verdict.kind === 'left' ? verdict.keyIn?.({ token: own }) : null;
  const bytes = await one.left.take(file, key ?? '');
  return bytes === null ? null : { sealed, job: JSON.parse(bytes.toString()) };
}

describe('a pool that leases devices for each job', () => {
  const pool = { standby: false, devices: oneDevice };
  const turn = ({ service }: GitlabBench) => service.turn?.('ci');

  it('waits in line for devices before it asks, and an answer without a job is the end of its turn', async () => {
    await using one = gitlabService({ pool, holds: 50_000 });
    one.jobs.offer('ci/1', 'closed');
    await one.watch();
    const first = turn(one);
    expect(first).toEqual(expect.any(String));
    expect(one.events).toContainEqual({ kind: 'waiting', pool: 'ci' });
    await one.pass(60_000);
    expect([asked(one), turn(one)]).toEqual([[], first]);
    one.jobs.offer('ci/1', 'open');
    await one.pass(500);
    expect([asked(one).length, turn(one)]).toEqual([1, null]);
    one.jobs.offer('ci/1', 'closed');
    await one.pass(3_000);
    expect([asked(one).length, turn(one)]).toEqual([1, expect.any(String)]);
    expect(turn(one)).not.toBe(first);
    one.jobs.offer('ci/1', 'open');
    await one.pass(500);
    // The server would hold the second one, and the devices with it.
    expect(one.gitlab.requests[1]).not.toHaveProperty('last_update');
    expect([asked(one).length, turn(one)]).toEqual([2, null]);
  });

  it('keeps its place for the job that the answer gives, and is in line again once it has a slot', async () => {
    await using one = gitlabService({ pool });
    one.gitlab.queue({ script });
    one.jobs.offer('ci/1', 'closed');
    await one.watch();
    const first = turn(one);
    one.jobs.offer('ci/1', 'open');
    await one.pass(500);
    expect([one.jobs.next('ci', null)?.job, turn(one)]).toEqual(['lab-1', first]);
    one.jobs.offer('ci/2', 'closed');
    await one.take('lab-1');
    await one.pass(500);
    expect([asked(one).length, turn(one)]).toEqual([1, first]);
  });

  it('is in line as soon as its runner is there', async () => {
    const found = Promise.withResolvers<string>();
    const program = { ready: () => found.promise, state: { kind: 'preparing' } as { kind: 'preparing' | 'unknown' } };
    await using one = gitlabService({ pool, program });
    one.jobs.offer('ci/1', 'closed');
    await one.watch();
    await one.pass(1_000);
    expect(turn(one)).toBeNull();
    program.state = { kind: 'unknown' };
    found.resolve('/tools/at-1/gitlab-runner');
    await one.pass(500);
    expect(turn(one)).toEqual(expect.any(String));
  });

  it('loses its turn to a server that does not answer', async () => {
    await using one = gitlabService({ pool });
    one.gitlab.fail('silent');
    one.jobs.offer('ci/1', 'closed');
    await one.watch();
    one.jobs.offer('ci/1', 'open');
    expect(turn(one)).toEqual(expect.any(String));
    await one.pass(6_000);
    expect([asked(one).length, turn(one)]).toEqual([1, null]);
  });

  it('is not in line while its server cannot be asked, and asks without devices until it can', async () => {
    await using one = await ready({ pool });
    const back = one.gitlab.fail('away');
    await one.pass(5_000);
    expect(one.holds().at(-1)).toMatch(/cannot be reached/);
    expect(turn(one)).toBeNull();
    one.jobs.offer('ci/1', 'closed');
    back();
    await one.pass(61_000);
    expect(one.holds().at(-1)).toBeNull();
    expect(turn(one)).toEqual(expect.any(String));
  });
});

describe('a question for a job', () => {
  it('is asked while a slot is free, as often as config says, and tells who asks', async () => {
    await using one = gitlabService();
    one.jobs.offer('ci/1', 'closed');
    await one.watch();
    await one.pass(60_000);
    expect(asked(one)).toEqual([]);
    one.jobs.offer('ci/1', 'open');
    await one.pass(30_000);
    expect(asked(one).length).toBeGreaterThanOrEqual(9);
    expect(asked(one).length).toBeLessThanOrEqual(11);
    expect(one.gitlab.requests[0]).toMatchObject({ system_id: 's_0123456789ab', info: { executor: 'shell', shell: 'bash' } });
    expect(one.gitlab.requests[0]).not.toHaveProperty('last_update');
    expect(one.gitlab.requests[1]).toMatchObject({ last_update: 'update-0' });
  });

  it('is not asked again while a job waits for a slot', async () => {
    const { one } = await waiting();
    await using _ = one;
    one.gitlab.queue({ script });
    const before = asked(one).length;
    await one.pass(60_000);
    expect(asked(one).length).toBe(before);
    await one.take('lab-1');
    one.jobs.offer('ci/2', 'open');
    await one.pass(500);
    expect(asked(one).length).toBe(before + 1);
    expect(one.jobs.next('ci', 'ci/2')?.job).toBe('lab-2');
  });

  it('may be held by the server until there is news, and is asked again at once then', async () => {
    await using one = await ready({ holds: 50_000 });
    await one.pass(40_000);
    expect(one.gitlab.requests.length).toBe(2);
    one.gitlab.queue({ script });
    await one.pass(1_000);
    expect(one.jobs.next('ci', 'ci/1')?.job).toBe('lab-1');
    expect(one.gitlab.requests.length).toBe(3);
  });

  it('whose answer is lost loses nothing: the server gives the job again', async () => {
    await using one = await ready();
    const job = one.gitlab.queue({ script });
    one.gitlab.fail('lost');
    await one.pass(4_000);
    expect([job.state, one.jobs.next('ci', 'ci/1')]).toEqual(['waiting', null]);
    one.gitlab.requeue(job);
    await one.pass(4_000);
    expect(one.jobs.next('ci', 'ci/1')?.job).toBe('lab-1');
    expect(one.holds()).not.toContainEqual(expect.stringContaining('cannot be reached'));
  });

  it.each(['away', 'busy'] as const)('that finds the server %s is asked less and less, and says why', async (how) => {
    await using one = await ready();
    const back = one.gitlab.fail(how);
    await one.pass(5_000);
    const reason = how === 'away' ? /cannot be reached/ : /answered 503/;
    expect(one.holds().at(-1)).toMatch(reason);
    const before = one.gitlab.calls.length;
    await one.pass(600_000);
    expect(one.gitlab.calls.length - before).toBeLessThan(16);
    back();
    one.gitlab.queue({ script });
    await one.pass(61_000);
    expect(one.holds().at(-1)).toBeNull();
    expect(one.jobs.next('ci', 'ci/1')?.job).toBe('lab-1');
  });

  it('with a token that the server refuses says so at once, and is asked once a minute', async () => {
    await using one = await ready();
    one.gitlab.renewToken();
    await one.pass(4_000);
    expect(one.holds().at(-1)).toMatch(/refuses the token of the runner \(403: 403 Forbidden\)/);
    expect(JSON.stringify([one.events, one.log.lines])).not.toContain('glrt-');
    const before = asked(one).length;
    await one.pass(600_000);
    expect(asked(one).length - before).toBeLessThanOrEqual(10);
  });
});

describe('a job that was taken', () => {
  it('is on disk for its user only, and shrinks to its token once it has begun', async () => {
    const { one } = await waiting();
    await using _ = one;
    expect(one.files()).toEqual(['1 whole']);
    const dir = join(one.store.dir, 'jobs-lab');
    expect([statSync(dir).mode & 0o777, statSync(join(dir, '1.json')).mode & 0o777]).toEqual([0o700, 0o600]);
    await one.take('lab-1');
    expect(one.files()).toEqual(['1 whole']);
    await one.begin('lab-1');
    expect(one.files()).toEqual(['1 begun']);
    one.gitlab.end(one.gitlab.jobs[0] as never, 'success');
    await one.settle('lab-1', { kind: 'code', code: 0 });
    expect(one.files()).toEqual([]);
    expect(JSON.stringify(one.store.serviceJobs.list(10))).not.toMatch(/s3cret|glcbt-/);
    expect(JSON.stringify(one.log.lines)).not.toMatch(/s3cret|glcbt-/);
  });

  it('is given to its runner once, whole, and the script has nothing of it', async () => {
    const { one } = await waiting({ variables: { NO_PROXY: 'internal' } });
    await using _ = one;
    const text = await one.take('lab-1');
    expect(text).not.toMatch(/glrt-|glcbt-|s3cret/);
    const given = await givenBy(one, text);
    expect(given?.sealed).toMatchObject({ rules: 'gitlab', endpoint: 'http://lab', job: '1', use: 'job' });
    expect(given?.job).toMatchObject({ id: 1, token: 'glcbt-token-of-job-1', steps: [{ script }], allow_git_fetch: true });
    expect(given?.job.variables.at(-1)).toMatchObject({ key: 'NO_PROXY', value: 'internal,172.18.0.1' });
    expect(await givenBy(one, text)).toBeNull();
  });

  it('shows as what it is', async () => {
    const { one } = await waiting({ name: 'unit tests' });
    await using _ = one;
    expect(one.service.serviceJobs?.()).toMatchObject([
      {
        id: 'lab-1',
        title: 'demo #7 unit tests',
        definition: 'demo',
        branch: 'main',
        reason: 'push',
        state: 'assigned',
        repository: 'http://lab/acme/demo.git',
        link: 'http://lab/acme/demo/-/jobs/1',
      },
    ]);
  });

  it('is kept alive at the server while it waits long, and forgotten once it was cancelled there', async () => {
    const { one, job } = await waiting();
    await using _ = one;
    one.jobs.offer('ci/1', 'closed');
    await one.pass(31_000);
    expect(one.gitlab.calls).toContain('PUT /api/v4/jobs/1 200');
    one.gitlab.cancel(job);
    await one.pass(31_000);
    expect([one.jobs.next('ci', 'ci/1'), one.files(), one.row('lab-1')?.result]).toEqual([null, [], 'cancelled']);
  });

  it('is offered no more if it was cancelled while its sandbox was made', async () => {
    const { one, job } = await waiting();
    await using _ = one;
    await one.take('lab-1');
    one.gitlab.cancel(job);
    await one.pass(31_000);
    expect(one.events).toContainEqual({ kind: 'cancel', job: 'lab-1', agent: 'a1', grace: 0 });
    one.lanes.delete('ci/1');
    one.commit({ change: 'returned', job: 'lab-1', agent: 'a1', failure: null });
    await one.pass(500);
    expect([one.jobs.next('ci', 'ci/1'), one.files(), one.row('lab-1')?.result]).toEqual([null, [], 'cancelled']);
  });

  it('is tried in three sandboxes, and then ends with the reason', async () => {
    const { one, job } = await waiting();
    await using _ = one;
    const failure = { code: 'E_RUNTIME', message: 'There is no room.', retry: true };
    for (let tries = 0; tries < 3; tries += 1) {
      await one.take('lab-1', `a${tries}`);
      one.lanes.delete('ci/1');
      one.commit({ change: 'returned', job: 'lab-1', agent: `a${tries}`, failure });
      await one.pass(500);
      expect(job.state).toBe(tries < 2 ? 'waiting' : 'failed');
    }
    expect([job.reason, job.trace.toString()]).toEqual([
      'runner_system_failure',
      '\nonejob: this job could not run: There is no room.\n',
    ]);
    expect(one.row('lab-1')).toMatchObject({ state: 'done', outcome: 'lost' });
  });

  it.each([
    [true, 'waiting', ['1 whole']],
    [false, 'failed', []],
  ] as const)('stays, or ends, with its manager (agents stay: %s)', async (leaving, state, files) => {
    const { one, job } = await waiting();
    await using _ = one;
    await one.service.close?.(leaving);
    expect([job.state, one.files()]).toEqual([state, files]);
    if (!leaving) expect(job.trace.toString()).toContain('its host stopped onejob. Run it again.');
  });
});

describe('a job whose sandbox is over', () => {
  it.each([
    ['success', 'passed', 'passed'],
    ['failed', 'failed', 'failed'],
    ['canceled', 'cancelled', 'cancelled'],
  ] as const)('has the result that its runner has told: %s', async (state, result, outcome) => {
    const { one, job } = await waiting();
    await using _ = one;
    await one.take('lab-1');
    await one.begin('lab-1');
    one.gitlab.end(job, state);
    one.gitlab.calls.length = 0;
    await one.settle('lab-1', { kind: 'code', code: 0 });
    expect(one.row('lab-1')).toMatchObject({ state: 'done', result, outcome, agent: 'a1' });
    // One question, and nothing is written.
    expect(one.gitlab.calls.filter((line) => line.includes('jobs/1'))).toEqual(['PUT /api/v4/jobs/1 403']);
    expect(job.trace.toString()).toBe('');
  });

  it.each([
    [{ kind: 'code', code: 137 }, 'its agent ended with exit code 137, and did not report', 'lost'],
    [{ kind: 'oom' }, 'its sandbox ran out of memory', 'failed'],
    [{ kind: 'lost', reason: 'its sandbox was removed by someone else' }, 'was removed by someone else', 'lost'],
    [{ kind: 'timeout' }, 'it took longer than its pool allowed', 'failed'],
  ] as const)('is ended with the reason if its runner told nothing: %j', async (exit, words, outcome) => {
    const { one, job } = await waiting();
    await using _ = one;
    await one.take('lab-1');
    await one.begin('lab-1');
    job.trace = Buffer.from('what it printed\n');
    one.gitlab.slowly(2);
    const settled = one.settle('lab-1', exit);
    await one.pass(5_000);
    await settled;
    expect([job.state, job.reason]).toEqual(['failed', 'runner_system_failure']);
    expect(job.trace.toString()).toMatch(/^what it printed\n\nonejob/);
    expect(job.trace.toString()).toContain(words);
    expect(one.row('lab-1')).toMatchObject({ state: 'done', outcome });
  });

  it.each([
    ['WARNING: Job failed: exit status 7  duration_s=0.3 job=1', 'script', 'code', 'failed (exit 7)'],
    ['WARNING: Job failed: exit code 2  duration_s=0.3 job=1', 'script', 'code', 'failed (exit 2)'],
    ['WARNING: Job failed: canceled', 'script', 'code', 'failed'],
    ['ERROR: Job failed (system failure): prepare environment: exit status 1  job=1', 'runner', 'unknown', 'failed'],
  ])('is not blamed for a failure of its runner, and has the exit code that this tells: %s', async (line, where, kind, result) => {
    const { one, job } = await waiting();
    await using _ = one;
    await one.take('lab-1');
    await one.begin('lab-1');
    one.service.listen?.('a1')(line);
    one.gitlab.end(job, 'failed');
    await one.settle('lab-1', { kind: 'code', code: 0 });
    expect(one.row('lab-1')).toMatchObject({ outcome: 'failed', failedIn: where, result });
    expect(one.store.outcomes.get('lab-1')?.verdict.kind).toBe(kind);
  });

  it('is ended later if the server is away', async () => {
    const { one, job } = await waiting();
    await using _ = one;
    await one.take('lab-1');
    await one.begin('lab-1');
    const back = one.gitlab.fail('away');
    await expect(one.settle('lab-1', { kind: 'oom' })).rejects.toMatchObject({ retry: true });
    expect(one.files()).toEqual(['1 begun']);
    back();
    await one.settle('lab-1', { kind: 'oom' });
    expect(job.state).toBe('failed');
  });

  it('has the reason for which onejob ended it', async () => {
    const { one, job } = await waiting();
    await using _ = one;
    await one.take('lab-1');
    await one.begin('lab-1');
    await one.service.ending?.({ agent: 'a1', job: 'lab-1', why: 'shutdown', released: true }, patient);
    await one.settle('lab-1', { kind: 'code', code: 143 });
    expect(job.trace.toString()).toBe('\nonejob ended this job: onejob was told to stop.\n');
  });
});

describe('the next manager', () => {
  it('continues with a job that waited', async () => {
    const dir = scratch();
    const { one, job } = await waiting({}, { dir });
    one.stop();
    await using two = await ready({ dir, gitlab: one.gitlab });
    // People see it as it was, also while the server is not asked yet.
    expect(two.service.serviceJobs?.()).toMatchObject([{ id: 'lab-1', state: 'assigned' }]);
    await two.pass(500);
    expect(two.jobs.next('ci', 'ci/1')?.job).toBe('lab-1');
    expect((await givenBy(two, await two.take('lab-1')))?.job.token).toBe(job.token);
  });

  it('offers no job that a slot has, whatever the slot is doing', async () => {
    const dir = scratch();
    const { one } = await waiting({}, { dir });
    await one.take('lab-1');
    one.stop();
    await using two = await ready({ dir, gitlab: one.gitlab, lanes: { 'ci/1': ['lab-1'] } });
    await two.pass(500);
    expect(two.jobs.next('ci', 'ci/2')).toBeNull();
    one.gitlab.end(one.gitlab.jobs[0] as never, 'success');
    await two.settle('lab-1', { kind: 'code', code: 0 });
    expect(two.row('lab-1')).toMatchObject({ result: 'passed', outcome: 'passed' });
  });

  it('forgets a job that is over, or that the server has given to somebody else', async () => {
    const dir = scratch();
    const { one, job } = await waiting({}, { dir });
    one.stop();
    one.gitlab.requeue(job);
    one.gitlab.end(job, 'success');
    await using two = await ready({ dir, gitlab: one.gitlab });
    await two.pass(500);
    expect([two.files(), two.jobs.next('ci', 'ci/1'), two.service.serviceJobs?.()]).toEqual([[], null, []]);
  });

  it('keeps no job in its list whose file is gone: nobody can run it, or end it', async () => {
    const dir = scratch();
    const { one } = await waiting({}, { dir });
    const file = join(one.store.dir, 'jobs-lab', '1.json');
    one.stop();
    rmSync(file);
    await using two = await ready({ dir, gitlab: one.gitlab });
    await two.pass(500);
    expect([two.service.serviceJobs?.(), two.row('lab-1')?.state]).toEqual([[], 'done']);
  });

  it('ends a job that had begun, whose sandbox nobody knows any more', async () => {
    const dir = scratch();
    const { one, job } = await waiting({}, { dir });
    await one.take('lab-1');
    await one.begin('lab-1');
    one.stop();
    await using two = await ready({ dir, gitlab: one.gitlab });
    await two.pass(31_000);
    expect([job.state, job.reason]).toEqual(['failed', 'runner_system_failure']);
    expect(two.files()).toEqual([]);
  });
});

describe('a job that does not end', () => {
  it('is ended if its runner does not cancel it in time', async () => {
    const { one, job } = await waiting();
    await using _ = one;
    await one.take('lab-1');
    await one.begin('lab-1');
    one.gitlab.cancel(job);
    await one.pass(350_000);
    expect(one.events.some(({ kind }) => kind === 'cancel')).toBe(false);
    await one.pass(60_000);
    expect(one.events).toContainEqual({ kind: 'cancel', job: 'lab-1', agent: 'a1', grace: 0 });
    await one.settle('lab-1', { kind: 'code', code: 143 });
    expect([job.state, one.row('lab-1')?.outcome]).toEqual(['canceled', 'cancelled']);
  });

  it('continues where the server lets no job ask about itself', async () => {
    const { one, job } = await waiting();
    await using _ = one;
    await one.take('lab-1');
    await one.begin('lab-1');
    one.gitlab.shut();
    await one.pass(1_000_000);
    expect([job.state, one.events.some(({ kind }) => kind === 'cancel')]).toEqual(['running', false]);
  });

  it('is ended if the server has ended it, once its runner had time to leave', async () => {
    const { one, job } = await waiting();
    await using _ = one;
    await one.take('lab-1');
    await one.begin('lab-1');
    one.gitlab.end(job, 'failed');
    await one.pass(420_000);
    expect(one.events).toContainEqual({ kind: 'cancel', job: 'lab-1', agent: 'a1', grace: 0 });
  });
});

describe('what a job may have', () => {
  it('does not include services: it is refused, and the system has not failed', async () => {
    const { one, job } = await waiting({ services: ['postgres:16', 'redis'] });
    await using _ = one;
    expect([job.state, job.reason, one.jobs.next('ci', 'ci/1'), one.files()]).toEqual(['failed', 'runner_unsupported', null, []]);
    expect(job.trace.toString()).toMatch(/^\nonejob: this job was refused: it asks for "services" \(postgres:16, redis\), which/);
    expect(one.row('lab-1')).toMatchObject({ result: 'refused', outcome: null });
  });

  const fork = {
    CI_MERGE_REQUEST_IID: '12',
    CI_MERGE_REQUEST_SOURCE_BRANCH_NAME: 'main',
    CI_MERGE_REQUEST_SOURCE_PROJECT_URL: 'http://lab/mallory/demo',
  };
  const ref = 'refs/merge-requests/12/head';

  const withContainers = { pool: { recipe: { ...testPool().recipe, containers: { image: null } } } };
  const untrusted = { forks: 'run-without-secrets', others: 'run-without-secrets' } as const;

  it('includes services and any image, in the engine of a pool with containers', async () => {
    const { one, job } = await waiting({ image: 'ruby:3', services: ['redis'] }, withContainers);
    await using _ = one;
    expect([job.state, one.jobs.next('ci', 'ci/1')]).toEqual(['waiting', { job: 'lab-1', limit: null, cold: false }]);
    expect(await one.take('lab-1')).toContain('executor = "docker"');
  });

  it("includes services of a stranger's job only where its pool lets strangers have an engine", async () => {
    const trust = { ...testPool().trust, ...untrusted, containers: 'allow' } as const;
    const spec = { image: 'ruby:3', services: ['redis'], ref, variables: fork };
    const { one, job } = await waiting(spec, { pool: { ...withContainers.pool, trust } });
    await using _ = one;
    expect(job.state).toBe('waiting');
    expect(await one.take('lab-1')).toContain('executor = "docker"');
  });

  it.each([
    [
      'names no image, which the engine cannot pull',
      { imageRecipe: {} as PoolConfig['imageRecipe'] },
      undefined,
      /names no "image"/,
    ],
    ['is untrusted', { trust: { ...testPool().trust, ...untrusted } }, 'ruby:3', /an untrusted job has none/],
  ])('does not include services if it %s', async (_, pool, image, words) => {
    const spec = { services: ['redis'], ref, variables: fork, ...(image !== undefined && { image }) };
    const { one, job } = await waiting(image === undefined ? { services: ['redis'] } : spec, {
      pool: { ...withContainers.pool, ...pool },
    });
    await using __ = one;
    expect([job.state, job.reason]).toEqual(['failed', 'runner_unsupported']);
    expect(job.trace.toString()).toMatch(words);
  });

  it('is its own image where config allows that', async () => {
    const images = ['debian:*', 'lab/acme/**'];
    const { one } = await waiting({ image: '$REGISTRY/acme/ci:1', variables: { REGISTRY: 'lab' } }, { config: { images } });
    await using _ = one;
    expect(one.jobs.next('ci', 'ci/1')).toEqual({ job: 'lab-1', limit: null, cold: true });
    expect(one.jobs.next('ci', 'ci/1', 'ownImage')?.job).toBe('lab-1');
    expect(one.jobs.recipeFor('lab-1', testPool().recipe)?.image).toBe('lab/acme/ci:1');
  });

  it.each([
    ['lab/acme/**', {}],
    ['lab/**', {}],
    ['**', { publicOnly: true }],
    ['*/acme/ci:1', { publicOnly: true }],
  ])('is an image that needs a password only if its registry is named: %s', async (pattern, rights) => {
    const { one } = await waiting({ image: 'lab/acme/ci:1' }, { config: { images: [pattern] } });
    await using _ = one;
    const { image, publicOnly } = one.jobs.recipeFor('lab-1', testPool().recipe) ?? {};
    expect({ image, publicOnly }).toEqual({ image: 'lab/acme/ci:1', publicOnly: undefined, ...rights });
  });

  it.each(['onejob-held:2dacd40417', 'onejob/own-queue:aaaaaaaaaaaa', '$ID'])(
    'is never an image of somebody else’s on this host, whatever config allows: %s',
    async (image) => {
      const { one } = await waiting({ image, variables: { ID: `sha256:${'a'.repeat(64)}` } }, { config: { images: ['**'] } });
      await using _ = one;
      expect(one.jobs.recipeFor('lab-1', testPool().recipe)).toBeNull();
      expect(await one.take('lab-1')).toMatch(/onejob: image \S+ is not used: (only images that onejob makes|it is the id)/);
    },
  );

  it('is the pool’s image otherwise, and its log says so', async () => {
    const { one } = await waiting({ image: 'ruby:3' });
    await using _ = one;
    expect(one.jobs.next('ci', 'ci/1')).toEqual({ job: 'lab-1', limit: null, cold: false });
    expect(one.jobs.next('ci', 'ci/1', 'ownImage')).toBeNull();
    expect(one.jobs.recipeFor('lab-1', testPool().recipe)).toBeNull();
    expect(await one.take('lab-1')).toContain('onejob: image ruby:3 is not used: this pool runs its jobs in debian.');
  });

  it('is nothing, if a fork sent it and config refuses that', async () => {
    const { one, job } = await waiting({ ref, variables: fork });
    await using _ = one;
    expect([job.state, job.reason]).toEqual(['failed', 'runner_unsupported']);
    expect(job.trace.toString()).toContain('it is pull request 12 from http://lab/mallory/demo, not from http://lab/acme/demo');
  });

  it('does not include secrets, if it is untrusted; a trusted job gets its own, masked', async () => {
    const { key, text } = await ageKey();
    const keys = await parseKeys(text);
    const secret = await seal(key, { name: 'TOKEN', pipelines: ['acme/demo'], value: 'the value' });
    const trust = { ...testPool().trust, forks: 'run-without-secrets' } as const;
    const { one } = await waiting({ variables: { SECRET_TOKEN: secret } }, { keys, pool: { trust } });
    await using _ = one;
    await expect.poll(() => one.jobs.next('ci', 'ci/1')?.job).toBe('lab-1');
    const given = await givenBy(one, await one.take('lab-1'));
    expect(given?.job.variables.at(-1)).toEqual({ key: 'TOKEN', value: 'the value', masked: true, public: false, raw: true });
    expect(one.files()).toEqual(['1 whole']);
    one.gitlab.queue({ script, ref, variables: { ...fork, SECRET_TOKEN: secret } });
    one.jobs.offer('ci/2', 'open');
    await one.pass(4_000);
    const text2 = await one.take('lab-2', 'a2');
    expect(JSON.stringify((await givenBy(one, text2))?.job)).not.toContain('the value');
    expect(text2).toContain('The job runs without secrets');
  });

  it('waits with its job, if the file with the private keys cannot be read now', async () => {
    const { key, text } = await ageKey();
    const found = await parseKeys(text);
    const secret = await seal(key, { name: 'TOKEN', pipelines: ['acme/demo'], value: 'the value' });
    let isAway = true;
    const keys = async () => {
      if (isAway)
        throw new OnejobError('E_SECRET', 'The key file cannot be read: its file server does not answer.', { retry: true });
      return found;
    };
    const { one, job } = await waiting({ variables: { SECRET_TOKEN: secret } }, { keys });
    await using _ = one;
    await one.pass(60_000);
    expect(one.jobs.next('ci', 'ci/1')).toBeNull();
    expect(job.state).not.toBe('failed');
    isAway = false;
    await one.pass(60_000);
    await expect.poll(() => one.jobs.next('ci', 'ci/1')?.job).toBe('lab-1');
  });
});
