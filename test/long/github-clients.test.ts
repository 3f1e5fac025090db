/** The GitHub stand-in and programs that others wrote against the real one: what they accept is how it has to behave. */
import { afterAll, describe, expect, test } from 'vitest';
import { type Child, startChild } from '../support/child.ts';
import { githubPrograms } from '../support/github-programs.ts';
import { startGitHub } from '../support/github-server.ts';
import { lacks } from '../support/require.ts';
import { scratch } from '../support/scratch.ts';

type GitHub = Awaited<ReturnType<typeof startGitHub>>;

describe.skipIf(lacks('github'))('with real clients of GitHub', () => {
  const folders: Disposable[] = [];
  const children: Child[] = [];
  afterAll(async () => {
    for (const child of children) if (child.running) await child.kill();
    for (const folder of folders) folder[Symbol.dispose]();
  });

  /** The runner as a plain process, with nothing but its JIT configuration. */
  function runner(config: string): Child {
    const folder = scratch();
    folders.push(folder);
    const env = { PATH: process.env.PATH, HOME: folder.path, ACTIONS_RUNNER_INPUT_JITCONFIG: config };
    const child = startChild(githubPrograms.runner, ['run'], { cwd: folder.path, env });
    children.push(child);
    return child;
  }

  async function register(github: GitHub, name: string): Promise<string> {
    const answer = await fetch(`${github.api}/orgs/acme/actions/runners/generate-jitconfig`, {
      method: 'POST',
      headers: { authorization: `Bearer ${github.userToken()}` },
      body: JSON.stringify({ name, runner_group_id: 1, labels: ['gpu'] }),
    });
    return ((await answer.json()) as { encoded_jit_config: string }).encoded_jit_config;
  }

  test('a runner takes its configuration and does one job, to success, to failure, or until it is cancelled', async () => {
    await using github = await startGitHub();
    const good = github.queue({ steps: [['echo first of $GITHUB_REPOSITORY', 'touch made'], ['test -e made && echo second']] });
    const first = await runner(await register(github, 'one')).ended;
    expect([good.conclusion, first.code, github.runners.size]).toEqual(['success', 0, 0]);
    expect(good.log).toMatch(/first of acme\/demo[\s\S]*second/);
    const bad = github.queue({ steps: [['echo about to fail; exit 7'], ['echo never']] });
    await runner(await register(github, 'two')).ended;
    expect([bad.conclusion, bad.ranOn?.name]).toEqual(['failure', 'two']);
    expect(bad.log).toContain('about to fail');
    expect(bad.log).not.toContain('\nnever');
    const long = github.queue({ steps: [['echo begun; sleep 600']] });
    const last = runner(await register(github, 'three'));
    await expect.poll(() => long.status).toBe('in_progress');
    await expect.poll(() => last.stdout + last.stderr + long.log).toContain('Running Job');
    github.cancel(long);
    await last.ended;
    expect(long.conclusion).toBe('cancelled');
  });

  test("GitHub's own scale-set client runs three jobs through a session, and takes the set away", async () => {
    await using github = await startGitHub();
    const [installation] = github.installations;
    const app = [github.app.clientId, String(installation?.id)];
    const probe = startChild(githubPrograms.scaleSetProbe, [`${github.origin}/acme`, ...app, '3'], { cwd: '/', env: {} });
    children.push(probe);
    probe.type(github.app.pem);
    await probe.says(/"ready"/);
    const jobs = [1, 2, 3].map((n) => github.queue({ name: `job-${n}`, steps: [[`echo this is ${n}`]] }));
    for (const n of [1, 2, 3]) {
      const pattern = new RegExp(`"runner","name":"probe-${n}","config":"([^"]+)"`);
      runner((await probe.says(pattern))[1] ?? '');
    }
    const { code, stdout, stderr } = await probe.ended;
    expect([code, stderr]).toEqual([0, '']);
    expect(stdout.match(/"event":"(?:completed|deleted)".*/g)).toEqual([
      ...Array.from({ length: 3 }, () => expect.stringContaining('"result":"succeeded"')),
      expect.stringContaining('deleted'),
    ]);
    expect(jobs.map(({ conclusion }) => conclusion)).toEqual(['success', 'success', 'success']);
    expect(jobs[2]?.log).toContain('this is 3');
    expect([github.sets, github.runners.size]).toEqual([[], 0]);
  });
});
