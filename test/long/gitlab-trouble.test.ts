/** What can happen to jobs of GitLab, beyond what every change meets (`gitlab.test.ts`): the real runner in containers of the real Engine, the daemon, and a GitLab that is acted out. */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { type JobRow, type MemoryGitlab, memoryGitlab, runnerToken } from '../kit/gitlab.ts';
import { killFilter } from '../support/buildkite-days.ts';
import { bridgeAddress } from '../support/buildkite-host.ts';
import { gitlabRunner } from '../support/gitlab-programs.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

describe.skipIf(lacks('docker', 'image', 'gitlabRunner'))('with the real gitlab-runner, and trouble', () => {
  let gitlab: MemoryGitlab;
  let server: AsyncDisposable;
  beforeEach(async () => {
    gitlab = memoryGitlab();
    server = await gitlab.serve(bridgeAddress());
  });
  afterEach(() => server[Symbol.asyncDispose]());

  const bench = (more = ''): Promise<Home> =>
    onejob({
      config: `services:
  lab: { type: gitlab, url: "${gitlab.url}", token: { env: GITLAB_TOKEN }, poll: 1s, agent: { from: ${gitlabRunner} } }
pools:
  ci: { service: lab, agents: 1, image: "debian:stable-slim", network: default${more} }
`,
      env: { GITLAB_TOKEN: runnerToken },
    });
  const isOver = ({ state }: JobRow) => ['success', 'failed', 'canceled'].includes(state);
  const log = ({ trace }: JobRow) => trace.toString();

  const listed = async (home: Home) =>
    (await home.api.jobs({ all: true, pool: null })).map(({ about, verdict }) => [about?.title, verdict?.kind]);
  const long = { script: ['echo begin', 'for i in $(seq 600); do sleep 1; done'] };
  const begins = (job: JobRow) => gitlab.until(() => log(job).includes(' begin\n'));

  test.skipIf(lacks('bubblewrap', 'root'))(
    'a job has its sources, from the server itself, also in a process beside that server',
    async () => {
      const dir = mkdtempSync(join(tmpdir(), 'gitlab-sources-'));
      const git = (...args: string[]) =>
        execFileSync('git', ['-c', 'user.name=t', '-c', 'user.email=t@example.org', ...args], {
          cwd: dir,
          encoding: 'utf8',
        }).trim();
      try {
        git('init', '-q', '-b', 'main');
        writeFileSync(join(dir, 'hello'), 'from the repository\n');
        git('add', 'hello');
        git('commit', '-q', '-m', 'one');
        git('update-server-info');
        const withSources = memoryGitlab({ sources: join(dir, '.git') });
        await using _other = await withSources.serve('127.0.0.1');
        await using home = await onejob({
          config: `services:
  lab: { type: gitlab, url: "${withSources.url}", token: { env: GITLAB_TOKEN }, agent: { from: ${gitlabRunner} } }
pools:
  ci: { service: lab, agents: 1, runtime: process, trust: { forks: refuse, others: refuse } }
`,
          env: { GITLAB_TOKEN: runnerToken },
        });
        await home.up();
        const job = withSources.queue({ script: ['cat hello', 'git log --format=%H'], sha: git('rev-parse', 'HEAD') });
        await withSources.until(() => isOver(job));
        expect(job.state, log(job)).toBe('success');
        expect(log(job)).toContain('from the repository');
        expect(log(job)).toContain(git('rev-parse', 'HEAD'));
      } finally {
        rmSync(dir, { recursive: true, force: true });
      }
    },
  );

  test('a job that is cancelled ends its script gracefully, and its sandbox', async () => {
    await using home = await bench();
    await home.up();
    const trap = 'trap "echo trapped; exit 1" TERM; while true; do echo waiting; sleep 0.5; done';
    const job = gitlab.queue({ script: ['echo begin', trap] });
    await begins(job);
    gitlab.cancel(job);
    await gitlab.until(() => isOver(job));
    expect(job.state).toBe('canceled');
    expect(log(job)).toContain('trapped');
    await expect.poll(() => listed(home), { timeout: 30_000 }).toEqual([['demo #7 job 1', 'cancelled']]);
    const next = gitlab.queue({ script: ['true'] });
    await gitlab.until(() => isOver(next));
    expect(next.state).toBe('success');
  });

  test('a job that ends with its daemon, or at its limit, has the reason in its log', async () => {
    await using home = await bench(', timeout: 4s');
    const daemon = await home.up();
    const late = gitlab.queue(long);
    await gitlab.until(() => isOver(late));
    expect([late.state, late.reason]).toEqual(['failed', 'runner_system_failure']);
    expect(log(late)).toContain('\nonejob ended this job: pool ci lets a job run for 4s at most.');
    const job = gitlab.queue(long);
    await begins(job);
    await daemon.stop();
    expect([job.state, job.reason]).toEqual(['failed', 'runner_system_failure']);
    expect(log(job)).toContain('\nonejob ended this job: onejob was told to stop.');
  });

  test('a job continues while the filter is killed, and again', async () => {
    await using home = await bench();
    await home.up();
    const job = gitlab.queue({ script: ['echo begin', 'for i in $(seq 20); do echo line $i; sleep 0.5; done', 'echo the end'] });
    for (const line of ['begin', 'line 10']) {
      await gitlab.until(() => log(job).includes(` ${line}\n`));
      expect(await killFilter(home)).toBe(true);
    }
    await gitlab.until(() => isOver(job));
    expect([job.state, log(job).match(/ line \d+\n/g)?.length]).toEqual(['success', 20]);
  });

  test.each(['release.intent', 'release.effect', 'release.record', 'settle.intent', 'settle.effect', 'settle.record'])(
    'a job whose daemon is killed at %s runs once',
    async (boundary) => {
      await using home = await bench();
      home.env.ONEJOB_CRASH_AT = boundary;
      const first = await home.up();
      const job = gitlab.queue({ script: ['echo begin', 'echo the end'] });
      await first.child.ended;
      delete home.env.ONEJOB_CRASH_AT;
      await home.up();
      await gitlab.until(() => isOver(job));
      expect([job.state, job.given]).toEqual(['success', 1]);
      expect(log(job).match(/ begin\n/g)).toHaveLength(1);
      await expect.poll(() => listed(home), { timeout: 30_000 }).toEqual([['demo #7 job 1', 'passed']]);
    },
  );

  test('what this host does not do is refused in the job’s log, and not as a failure of the system', async () => {
    await using home = await bench(', trust: { forks: refuse, others: refuse, pipelines: [acme/demo], branches: [main] }');
    await home.up();
    const services = gitlab.queue({ script: ['true'], services: ['postgres:16'] });
    const branch = gitlab.queue({ script: ['true'], ref: 'feature/x' });
    const image = gitlab.queue({ script: ['true'], image: 'ruby:3' });
    await gitlab.until(() => [services, branch, image].every(isOver));
    expect([services, branch, image].map(({ state, reason }) => [state, reason])).toEqual([
      ['failed', 'runner_unsupported'],
      ['failed', 'runner_unsupported'],
      ['success', null],
    ]);
    expect(log(services)).toContain('onejob: this job was refused: it asks for "services" (postgres:16)');
    expect(log(branch)).toContain('its branch feature/x does not match "trust.branches"');
    expect(log(image)).toContain('onejob: image ruby:3 is not used: this pool runs its jobs in debian:stable-slim.');
  });

  test('a token that is refused holds the pool with the reason, until there is a better one', async () => {
    await using home = await bench();
    gitlab.renewToken();
    await home.up();
    const reason = async () => (await home.api.status()).pools[0]?.paused.join();
    await expect.poll(reason, { timeout: 30_000 }).toMatch(/refuses the token of the runner \(403/);
    const doctor = await home.cli(['doctor']).ended;
    expect(doctor.stdout + doctor.stderr).toContain('Check that the runner still exists at the server');
  });
});
