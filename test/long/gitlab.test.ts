import { mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { runnerTokenOf } from '../../src/ci/gitlab/filter-rules.ts';
import { gitlabScript } from '../../src/ci/gitlab/script.ts';
import { type JobRow, type MemoryGitlab, memoryGitlab, runnerToken } from '../kit/gitlab.ts';
import { engineTells, filesIn, found, needlesOf, outputs, prying } from '../support/azure-secrets.ts';
import { bridgeAddress } from '../support/buildkite-host.ts';
import { startChild } from '../support/child.ts';
import { engineAt } from '../support/engine-http.ts';
import { freePort } from '../support/free-port.ts';
import { gitlabRunner } from '../support/gitlab-programs.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';
import { scratch } from '../support/scratch.ts';

describe.skipIf(lacks('docker', 'image', 'gitlabRunner'))('with the real gitlab-runner', () => {
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

  const agentOf = async (home: Home) => (await home.api.status()).pools[0]?.slots[0]?.agent.agent ?? 'none';
  /** Kills the sandbox of the agent that runs. */
  async function killSandbox(home: Home): Promise<void> {
    const agent = await agentOf(home);
    using engine = engineAt();
    const list = (await engine.ok('GET', '/containers/json')) as { readonly Id: string; readonly Names: string[] }[];
    const id = list.find(({ Names: names }) => names.some((one) => one.includes(agent)))?.Id;
    await engine.ok('POST', `/containers/${id}/kill`);
  }
  const listed = async (home: Home) =>
    (await home.api.jobs({ all: true, pool: null })).map(({ about, verdict }) => [about?.title, verdict?.kind]);
  const long = { script: ['echo begin', 'for i in $(seq 600); do sleep 1; done'] };
  const begins = (job: JobRow) => gitlab.until(() => log(job).includes(' begin\n'));

  test('jobs run one after the other, each in a sandbox of its own, and hand files on', async () => {
    await using home = await bench();
    const again = 'echo hello from $CI_PROJECT_PATH; test ! -e /tmp/before; touch /tmp/before';
    const first = gitlab.queue({ script: [again, 'echo built >made'], artifacts: ['made'] });
    const bad = gitlab.queue({ script: ['echo about to fail', 'exit 7'] });
    const last = gitlab.queue({ script: [again, 'cat made'], needs: [first.id] });
    const daemon = await home.up();
    await gitlab.until(() => [first, bad, last].every(isOver));
    expect([first, bad, last].map(({ state }) => state)).toEqual(['success', 'failed', 'success']);
    expect([bad.reason, bad.exitCode]).toEqual(['script_failure', 7]);
    expect(log(first)).toContain('hello from acme/demo');
    expect(log(last)).toMatch(/^.* built$/m);
    const title = (id: number) => `demo #7 job ${id}`;
    const rows = [
      [title(1), 'passed'],
      [title(2), 'code'],
      [title(3), 'passed'],
    ];
    await expect.poll(() => listed(home), { timeout: 30_000 }).toEqual(rows);
    const doctor = await home.cli(['doctor']).ended;
    expect(doctor.stdout).toContain('accepts the token, which is that of runner #12');
    expect((await home.cli(['jobs', `lab-${bad.id}`]).ended).stdout).toMatch(/failed \(exit 7\)[\s\S]*\noutput: http/);
    const said = await Promise.all([first, bad].map(({ id }) => home.cli(['logs', `lab-${id}`]).ended));
    expect(said.map(({ stdout, stderr }) => stdout + stderr).join('')).not.toContain('ojf_');
    expect(said[1]?.stderr).toContain('Job failed: exit status 7');
    await daemon.stop();
    // It asks once for each job, and then as often as config says.
    expect(gitlab.calls.filter((line) => line.endsWith('jobs/request 201'))).toHaveLength(3);
  });

  test('a job whose sandbox is killed has failed by the system, with the reason in its log', async () => {
    await using home = await bench();
    await home.up();
    const job = gitlab.queue(long);
    await begins(job);
    await killSandbox(home);
    await gitlab.until(() => isOver(job));
    expect([job.state, job.reason]).toEqual(['failed', 'runner_system_failure']);
    expect(log(job)).toMatch(/onejob: This job was lost: .*\n$/);
    await expect.poll(() => listed(home), { timeout: 30_000 }).toEqual([['demo #7 job 1', 'unknown']]);
  });

  test('a job continues while the daemon is dead, and the next one ends what died with it', async () => {
    await using home = await bench();
    const first = await home.up();
    const job = gitlab.queue({ script: ['echo begin', 'sleep 6', 'echo the end'] });
    await begins(job);
    await first.kill();
    await gitlab.until(() => isOver(job));
    expect(job.state).toBe('success');
    expect(log(job)).toContain(' the end\n');
    const second = await home.up();
    await expect.poll(() => listed(home), { timeout: 30_000 }).toEqual([['demo #7 job 1', 'passed']]);
    const lost = gitlab.queue(long);
    await begins(lost);
    const agent = await agentOf(home);
    await second.kill();
    using engine = engineAt();
    const list = (await engine.ok('GET', '/containers/json')) as { readonly Id: string; readonly Names: string[] }[];
    await engine.ok('POST', `/containers/${list.find(({ Names: names }) => names.some((one) => one.includes(agent)))?.Id}/kill`);
    await home.up();
    await gitlab.until(() => isOver(lost));
    expect([lost.state, lost.reason]).toEqual(['failed', 'runner_system_failure']);
    expect(log(lost)).toContain('onejob: This job was lost');
  });

  test('what a runner says that does not reach the filter gives nobody its job', async () => {
    using dir = scratch();
    symlinkSync(gitlabRunner, join(dir.path, 'gitlab-runner'));
    const [key, url] = ['key-of-the-job-0123456789', `http://127.0.0.1:${await freePort()}/gitlab/ojf_sealed`];
    const how = { name: 'one', url, ca: null, workspace: dir.path, before: [], notes: [], container: null, kept: null };
    const script = gitlabScript({ ...how, token: runnerTokenOf(key) });
    const env = { PATH: `${dir.path}:${process.env.PATH}`, HOME: dir.path };
    const child = startChild('sh', ['-c', script], { cwd: dir.path, env });
    try {
      // It names the address, which it does not know to be a secret.
      await child.says(/couldn't execute POST against .*ojf_sealed/);
    } finally {
      child.signal('SIGTERM');
      await child.ended;
    }
    expect(child.stdout + child.stderr).not.toContain(key);
  });

  test('the token of the runner, and what a job keeps secret, are where they must be only', async () => {
    const out = mkdtempSync(join(tmpdir(), 'gitlab-out-'));
    try {
      await using home = await bench(`, volumes: ["${out}:/out:rw"]`);
      const daemon = await home.up();
      const job = gitlab.queue({ script: ['set +e +o pipefail', prying, 'until [ -e /out/go ]; do sleep 0.1; done'] });
      await gitlab.until(() => /pried \d+/.test(log(job)));
      const { owner } = await home.api.status();
      const pried = [...filesIn(out), ['log', log(job)] as const];
      const during = [...(await engineTells(owner, 'debian:stable-slim')), ...filesIn(home.stateDir), ...(await outputs(home))];
      writeFileSync(join(out, 'go'), '');
      await gitlab.until(() => isOver(job));
      expect(job.state, log(job)).toBe('success');
      const runner = needlesOf('the token of the runner', runnerToken);
      const ofJob = [...needlesOf('the token of the job', job.token), ...needlesOf('a masked variable', 's3cret-value-of-the-job')];
      // The search sees what a job has.
      expect(found(ofJob, pried).some((line) => line.includes('a masked variable'))).toBe(true);
      expect(found(runner, pried)).toEqual([]);
      expect(found([...runner, ...ofJob], during)).toEqual([expect.stringMatching(/jobs-lab\/1\.json: the token of the job/)]);
      await daemon.stop();
      expect(found([...runner, ...ofJob], [...filesIn(home.stateDir), ['said', JSON.stringify(await daemon.child.ended)]])).toEqual(
        [],
      );
    } finally {
      rmSync(out, { recursive: true, force: true });
    }
  });
});
