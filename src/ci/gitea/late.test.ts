/** Jobs that the manager takes before there is a runner for them: what the loop, the server and the disk see, in time moved by hand. */
import { statSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { patient, testPool } from '../../../test/kit/buildkite-manager.ts';
import { type LateBench, lateGitea } from '../../../test/kit/gitea-late.ts';
import { forkPull, type TaskSpec } from '../../../test/kit/gitea-task.ts';
import { ageKey } from '../../../test/kit/secrets.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { parseKeys } from '../../secrets/keys.ts';
import { seal } from '../../secrets/sealed-format.ts';
import { taskIn } from './task.ts';

type Options = Parameters<typeof lateGitea>[0];

/** Ready to take a job in `ci/1`. */
async function ready(options: Options = {}): Promise<LateBench> {
  const one = lateGitea(options);
  one.jobs.offer('ci/1', 'open');
  await one.watch();
  return one;
}

/** A job that waits for its slot. */
async function waiting(spec: TaskSpec = {}, options: Options = {}) {
  const one = await ready(options);
  const row = one.gitea.queue(['ci'], spec);
  await one.pass(3_000);
  return { one, row, job: `forge-task-${row.task}` };
}

/** A job whose script has begun. */
async function begun(options: Options = {}) {
  const found = await waiting({}, options);
  await found.one.take(found.job);
  await found.one.begin(found.job);
  return found;
}

const count = ({ gitea }: LateBench, call: string): number => gitea.calls.filter((line) => line.endsWith(call)).length;

describe('a question for a task', () => {
  it('is asked while a slot is open, by one runner until that has a task', async () => {
    await using one = lateGitea();
    one.jobs.offer('ci/1', 'closed');
    await one.watch();
    await one.pass(60_000);
    expect([count(one, '/FetchTask'), one.gitea.runners]).toEqual([0, []]);
    one.jobs.offer('ci/1', 'open');
    await one.pass(10_000);
    expect(count(one, '/FetchTask')).toBeGreaterThanOrEqual(8);
    expect(one.gitea.runners).toMatchObject([{ name: 'box-ci-01234567-late', labels: ['ci'] }]);
    expect([one.files(), one.waitingRunners()]).toEqual([[], [1]]);
  });

  it('is not asked while a job waits for a slot, and with another runner after that', async () => {
    const { one, job } = await waiting();
    await using _ = one;
    const row = one.gitea.queue(['ci']);
    const before = count(one, '/FetchTask');
    await one.pass(60_000);
    expect(count(one, '/FetchTask')).toBe(before);
    await one.take(job);
    one.jobs.offer('ci/2', 'open');
    await one.pass(2_000);
    expect(one.jobs.next('ci', 'ci/2')?.job).toBe(`forge-task-${row.task}`);
    expect(new Set(one.gitea.jobs.map(({ runner }) => runner)).size).toBe(2);
  });

  it('that finds the server away is asked less and less, and says why', async () => {
    await using one = await ready();
    const back = one.gitea.goAway();
    await one.pass(5_000);
    expect(one.holds().at(-1)).toMatch(/cannot be reached/);
    const before = one.gitea.calls.length;
    await one.pass(600_000);
    expect(one.gitea.calls.length - before).toBeLessThan(20);
    back();
    one.gitea.queue(['ci']);
    await one.pass(70_000);
    expect(one.holds().at(-1)).toBeNull();
    expect(one.jobs.next('ci', 'ci/1')).not.toBeNull();
    expect(one.gitea.runners).toHaveLength(1);
  });

  it('whose answer is lost ends the job with the reason, because the server gives it only once', async () => {
    await using one = await ready();
    await one.pass(2_000);
    const lost = one.gitea.queue(['ci']);
    one.gitea.loseAnswer('lostTask');
    await one.pass(10_000);
    expect(lost).toMatchObject({ status: 'completed', conclusion: 'failure', isSealed: true });
    expect(lost.log).toEqual([expect.stringMatching(/^onejob: this job was lost: its host lost the answer/)]);
    const next = one.gitea.queue(['ci']);
    await one.pass(5_000);
    expect(one.jobs.next('ci', 'ci/1')?.job).toBe(`forge-task-${next.task}`);
    expect(one.gitea.runners).toHaveLength(1);
  });

  it('is asked by a new runner if the server has forgotten the old one', async () => {
    await using one = await ready();
    await one.pass(2_000);
    one.gitea.runners.length = 0;
    const row = one.gitea.queue(['ci']);
    await one.pass(10_000);
    expect(one.jobs.next('ci', 'ci/1')?.job).toBe(`forge-task-${row.task}`);
  });

  it('has the runner named as the pool names its agents', async () => {
    await using one = await ready({ pool: { agentName: 'burst-3fa9c1-{pool}-{n}' } });
    await one.pass(2_000);
    expect(one.gitea.runners).toMatchObject([{ name: 'burst-3fa9c1-ci-01234567-late' }]);
  });

  it('has runners removed that a machine has left behind, but none with a job and none of its own', async () => {
    await using one = await ready();
    await one.pass(2_000);
    const [gone, busy] = ['burst-3fa9c1-gpu-89abcdef-late', 'burst-3fa9c1-big-89abcdef-late'];
    one.gitea.add(gone, ['other']);
    const row = one.gitea.add(busy, ['big']);
    one.gitea.queue(['big']);
    one.gitea.fetchTask(row);
    row.isOnline = false;
    const removal = one.service.removeNamed?.(() => true, patient);
    await one.pass(2_000);
    expect(await removal).toEqual({ removed: [gone], left: [busy], unknown: [] });
    expect(one.gitea.runners.map(({ name }) => name)).toEqual(['box-ci-01234567-late', busy]);
  });

  it('leaves no runner whose key nobody has', async () => {
    await using one = await ready();
    one.gitea.add('box-other-01234567-late', ['ci']);
    one.gitea.loseAnswer();
    await one.pass(10_000);
    expect(one.gitea.runners.map(({ name }) => name).sort()).toEqual(['box-ci-01234567-late', 'box-other-01234567-late']);
  });
});

describe('a job that was taken', () => {
  it('is on disk for its user only, and shrinks to its runner’s key once it has begun', async () => {
    const { one, row, job } = await waiting({ secrets: { DEPLOY: 'geheim' } });
    await using _ = one;
    expect(one.files()).toEqual([`task-${row.task} whole`]);
    const dir = join(one.store.dir, 'jobs-forge');
    expect([statSync(dir).mode & 0o777, statSync(join(dir, `task-${row.task}.json`)).mode & 0o777]).toEqual([0o700, 0o600]);
    await one.take(job);
    await one.begin(job);
    expect(one.files()).toEqual([`task-${row.task} begun`]);
    one.gitea.end(row, 'success');
    await one.settle(job, { kind: 'code', code: 0 });
    expect(one.files()).toEqual([]);
    expect(one.row(job)).toMatchObject({
      state: 'done',
      result: 'success',
      outcome: 'passed',
      title: 'a.yml #7 j',
      branch: 'main',
    });
    expect(JSON.stringify([one.store.serviceJobs.list(10), one.log.lines])).not.toMatch(/geheim|key-\d|token-of/);
  });

  it('is given to its runner once, and the script has neither key nor token', async () => {
    const { one, row, job } = await waiting();
    await using _ = one;
    const script = await one.take(job);
    expect(script).not.toMatch(/key-\d|uuid-\d|secret-token|token-of/);
    expect(script).toContain('"address":"http://172.18.0.1:7070/gitea"');
    const given = await one.givenBy(script);
    expect(given?.sealed).toMatchObject({
      rules: 'gitea',
      endpoint: 'http://forge',
      job: `task-${row.task}`,
      use: 'job',
      signs: { 'x-runner-uuid': `uuid-${row.runner}`, 'x-runner-token': `key-${row.runner}` },
    });
    expect(taskIn(given?.answer ?? Buffer.alloc(0))?.id).toBe(row.task);
    expect(await one.givenBy(script)).toBeNull();
  });

  it('is kept alive at the server while it waits, and forgotten once it was cancelled there', async () => {
    const { one, row, job } = await waiting();
    await using _ = one;
    one.jobs.offer('ci/1', 'closed');
    await one.pass(20_000);
    expect(row.touches).toBeGreaterThan(2);
    one.gitea.end(row, 'cancelled');
    await one.pass(6_000);
    expect([one.jobs.next('ci', 'ci/1'), one.files(), one.row(job)?.outcome]).toEqual([null, [], 'cancelled']);
  });

  it('is ended with what went wrong, if no sandbox can be made for it', async () => {
    const { one, row, job } = await waiting();
    await using _ = one;
    const failure = { code: 'E_IMAGE_NOT_FOUND', message: 'Image "x" was not found.', retry: false } as const;
    one.commit({ change: 'assigned', job, agent: 'a1' }, { change: 'returned', job, agent: 'a1', failure });
    await one.pass(500);
    expect(row.conclusion).toBe('failure');
    expect(row.log.at(-1)).toContain('this job could not run: Image "x" was not found.');
  });

  it('is ended when the manager ends, and no runner stays', async () => {
    const { one, row } = await waiting();
    await using _ = one;
    one.jobs.offer('ci/2', 'closed');
    await one.end();
    expect(row.log.at(-1)).toBe('onejob: this job could not run: its host stopped onejob. Run it again.');
    expect([one.gitea.runners, one.files(), one.waitingRunners()]).toEqual([[], [], []]);
  });
});

describe('a job that runs', () => {
  it.each([
    ['failure', 'script'],
    ['cancelled', 'runner'],
  ] as const)('is blamed for its failure only if a step of it failed: %s', async (step, where) => {
    const { one, row, job } = await begun();
    await using _ = one;
    one.gitea.end(row, 'failure', step);
    await one.settle(job, { kind: 'code', code: 0 });
    expect(one.row(job)).toMatchObject({ result: 'failure', outcome: 'failed', failedIn: where });
    expect(one.store.outcomes.get(job)?.verdict.kind).toBe(where === 'script' ? 'code' : 'unknown');
  });

  it('is ended when it was cancelled, of which its runner never hears', async () => {
    const { one, row, job } = await begun();
    await using _ = one;
    await one.pass(6_000);
    one.gitea.end(row, 'cancelled');
    await one.pass(6_000);
    expect(one.events).toContainEqual({ kind: 'cancel', job, agent: 'a1', grace: 0 });
    await one.settle(job, { kind: 'code', code: 143 });
    expect(one.row(job)).toMatchObject({ result: 'cancelled', outcome: 'cancelled' });
  });

  it('is ended if its runner does not leave after its end', async () => {
    const { one, row, job } = await begun();
    await using _ = one;
    await one.pass(6_000);
    one.gitea.end(row, 'success');
    await one.pass(50_000);
    expect(one.events.some(({ kind }) => kind === 'cancel')).toBe(false);
    await one.pass(20_000);
    expect(one.events).toContainEqual({ kind: 'cancel', job, agent: 'a1', grace: 0 });
  });

  it.each([
    [{ kind: 'code', code: 137 }, 'its agent ended with exit code 137, and did not report', 'lost'],
    [{ kind: 'oom' }, 'its sandbox ran out of memory', 'failed'],
    [{ kind: 'timeout' }, 'onejob ended this job: it took longer than its pool allowed', 'failed'],
  ] as const)('is ended with the reason if its runner told nothing: %j', async (exit, words, outcome) => {
    const { one, row, job } = await begun();
    await using _ = one;
    row.log.push('what it printed');
    await one.settle(job, exit);
    expect(row).toMatchObject({ conclusion: 'failure', isSealed: true });
    expect(row.log).toEqual(['what it printed', expect.stringContaining(words)]);
    expect(row.log.at(-1)).toMatch(/^onejob:? /);
    expect(one.row(job)).toMatchObject({ state: 'done', outcome });
  });

  it('is ended later if the server is away', async () => {
    const { one, row, job } = await begun();
    await using _ = one;
    const back = one.gitea.goAway();
    await expect(one.settle(job, { kind: 'oom' })).rejects.toMatchObject({ retry: true });
    back();
    await one.settle(job, { kind: 'oom' });
    expect(row.conclusion).toBe('failure');
  });
});

describe('the next manager', () => {
  it('continues with a job that waited', async () => {
    const dir = scratch();
    const { one, row, job } = await waiting({}, { dir });
    one.stop();
    await using two = await ready({ dir, gitea: one.gitea });
    await two.pass(500);
    expect(two.jobs.next('ci', 'ci/1')?.job).toBe(job);
    expect(taskIn((await two.givenBy(await two.take(job)))?.answer ?? Buffer.alloc(0))?.id).toBe(row.task);
  });

  it('offers no job that a slot has, and settles it', async () => {
    const dir = scratch();
    const { one, row, job } = await waiting({}, { dir });
    await one.take(job);
    one.stop();
    await using two = await ready({ dir, gitea: one.gitea, lanes: { 'ci/1': [job] } });
    await two.pass(500);
    expect(two.jobs.next('ci', 'ci/2')).toBeNull();
    two.gitea.end(row, 'success');
    await two.settle(job, { kind: 'code', code: 0 });
    expect(two.row(job)).toMatchObject({ result: 'success', outcome: 'passed' });
  });

  it('ends a job that was given while nobody wrote it down, and removes a runner without one', async () => {
    const dir = scratch();
    const one = await ready({ dir });
    await one.pass(2_000);
    one.stop();
    const [runner] = one.gitea.runners;
    const row = one.gitea.queue(['ci']);
    // As if the manager had been killed with the answer in its hands.
    if (runner !== undefined) one.gitea.fetchTask(runner);
    await using two = await ready({ dir, gitea: one.gitea });
    await two.pass(10_000);
    expect(row.conclusion).toBe('failure');
    expect(row.log).toEqual([expect.stringContaining('this job was lost')]);
    two.stop();
    await using three = await ready({ dir, gitea: one.gitea });
    await three.pass(5_000);
    expect(three.gitea.runners).toHaveLength(1);
    expect([three.files(), three.waitingRunners().length]).toEqual([[], 1]);
  });

  it('ends a job that had begun, whose sandbox nobody knows any more', async () => {
    const dir = scratch();
    const { one, row } = await begun({ dir });
    one.stop();
    await using two = await ready({ dir, gitea: one.gitea });
    await two.pass(10_000);
    expect(row.log.at(-1)).toBe('onejob: its sandbox is gone, and nobody knows why.');
    expect(two.files()).not.toContain(`task-${row.task} begun`);
  });

  it('forgets a job that is over', async () => {
    const dir = scratch();
    const { one, row, job } = await waiting({}, { dir });
    one.stop();
    one.gitea.end(row, 'cancelled');
    await using two = await ready({ dir, gitea: one.gitea });
    await two.pass(500);
    expect([two.jobs.next('ci', 'ci/1'), two.row(job)?.result]).toEqual([null, 'cancelled']);
  });
});

describe('what a job may have', () => {
  const trust = { ...testPool().trust, forks: 'run-without-secrets' } as const;

  it('is nothing, if a fork sent it and config refuses that: no sandbox ever has it', async () => {
    const { one, row, job } = await waiting({ context: forkPull() });
    await using _ = one;
    expect([row.conclusion, one.jobs.next('ci', 'ci/1'), one.files()]).toEqual(['failure', null, []]);
    expect(row.log).toEqual([
      expect.stringMatching(/^onejob: this job was refused: it is pull request 12 from http:\/\/forge\/mallory\/demo, not from /),
    ]);
    expect(one.row(job)).toMatchObject({ result: 'refused', outcome: null });
    expect(one.row(job)?.note).toContain('it is pull request 12');
  });

  it('is another sandbox without the server’s secrets, if it is untrusted, and its log begins with the reason', async () => {
    const pool = { recipe: { ...testPool().recipe, capAdd: ['SYS_PTRACE'] }, trust };
    const { one, row, job } = await waiting({ context: forkPull(), secrets: { DEPLOY: 'geheim' } }, { pool });
    await using _ = one;
    expect(one.jobs.next('ci', 'ci/1')).toMatchObject({ job, cold: true });
    expect(one.jobs.recipeFor(job, { ...testPool().recipe, capAdd: ['SYS_PTRACE'] })?.capAdd).toEqual([]);
    const given = await one.givenBy(await one.take(job));
    expect(given?.answer.includes('geheim')).toBe(false);
    expect(row.log).toEqual([expect.stringMatching(/^onejob: The job runs without secrets/)]);
  });

  it('are the encrypted variables of its repository, if it is trusted', async () => {
    const { key, text } = await ageKey();
    const keys = await parseKeys(text);
    const vars = { SECRET_DEPLOY: await seal(key, { name: 'DEPLOY', pipelines: ['acme/demo'], value: 'of the host' }) };
    const { one, job } = await waiting({ vars }, { keys, pool: { trust } });
    await using _ = one;
    // Decrypting takes real time.
    await expect.poll(() => one.jobs.next('ci', 'ci/1')?.job).toBe(job);
    expect((await one.givenBy(await one.take(job)))?.answer.includes('of the host')).toBe(true);
    const fork = one.gitea.queue(['ci'], { vars, context: forkPull() });
    one.jobs.offer('ci/2', 'open');
    await one.pass(3_000);
    expect((await one.givenBy(await one.take(`forge-task-${fork.task}`, 'a2')))?.answer.includes('of the host')).toBe(false);
  });
});
