/** Jobs of CI services on a real Slurm, with their real agents: the filter is on this host, and speaks TLS to the nodes. */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { memoryGitlab, runnerToken } from '../kit/gitlab.ts';
import { buildkiteBench } from '../support/buildkite.ts';
import { fork, theAgent } from '../support/buildkite-days.ts';
import { freePort } from '../support/free-port.ts';
import { startGitea } from '../support/gitea.ts';
import { giteaPrograms } from '../support/gitea-programs.ts';
import { gitlabRunner } from '../support/gitlab-programs.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';
import { type Slurm, startSlurm } from '../support/slurm.ts';

const trust = 'trust: { network: default, forks: refuse, others: refuse }';

describe.each([
  ['a shared folder', true],
  ['nothing shared', false],
])('on a Slurm with %s', (_, isShared) => {
  let cluster: Slurm;
  beforeAll(async () => {
    if (!lacks('slurm')) cluster = await startSlurm();
  });
  afterAll(() => cluster?.[Symbol.asyncDispose]());

  /** `service`: its lines; `pool`: more keys of its pool, `ci`; `port`: behind the address. */
  async function home(service: string, pool: string, env: Readonly<Record<string, string>> = {}, port = ''): Promise<Home> {
    const nodes = join(cluster.folder, 'nodes');
    mkdirSync(nodes, { recursive: true });
    const place = isShared ? `folder: "${cluster.folder}/onejob"` : `node_folder: "${nodes}"`;
    return onejob({
      config: `
runtimes: { cluster: { type: slurm, ${place}, ${cluster.keys}, address: "127.0.0.1${port}", poll: 1s } }
services: { ${service} }
pools: { ci: { runtime: cluster, agents: 2, devices: 1, ${pool} } }
`,
      env,
    });
  }
  const queued = async (): Promise<string> => cluster.run('squeue', '-h', '-o', '%j');

  test.skipIf(lacks('slurm', 'buildkiteAgent'))('jobs of Buildkite, trusted and not', async () => {
    await using bench = await buildkiteBench(theAgent(), { lostMs: 15_000 });
    const { buildkite, tokenFile } = bench;
    const service = `bk: { type: buildkite, endpoint: "${buildkite.endpoint}", token: { file: ${tokenFile} }, poll: 2s, agent: { from: ${theAgent()} } }`;
    const port = `:${await freePort()}`;
    await using here = await home(service, 'service: bk, queue: default, trust: { network: default }', {}, port);
    await here.up();
    expect(await queued()).toBe('');
    const says = 'echo "gpu $SLURM_JOB_GPUS in $PWD"; exit 3';
    const job = await bench.job(says);
    expect(job.log).toMatch(/gpu [01] in \/workspace\/builds/);
    expect(job.exit).toBe(3);
    const stranger = await bench.job('echo stranger; env | grep -c SSL_CERT_FILE', fork);
    expect([stranger.exit, stranger.log]).toEqual([0, expect.stringContaining('stranger')]);
    const doctor = await here.cli(['doctor']).ended;
    expect([doctor.code, doctor.stdout]).toEqual([0, expect.not.stringContaining('pool ci')]);
    expect(doctor.stdout).toContain(`The filter answers at 127.0.0.1${port}`);
    await expect.poll(queued).toBe('');
  });

  test.skipIf(lacks('slurm', 'gitlabRunner'))('jobs of GitLab', async () => {
    const gitlab = memoryGitlab();
    await using _ = await gitlab.serve('127.0.0.1');
    const service = `lab: { type: gitlab, url: "${gitlab.url}", token: { env: GITLAB_TOKEN }, poll: 1s, agent: { from: ${gitlabRunner} } }`;
    await using here = await home(service, `service: lab, ${trust}`, { GITLAB_TOKEN: runnerToken });
    await here.up();
    const first = gitlab.queue({
      script: ['echo "gpu $SLURM_JOB_GPUS on $SLURMD_NODENAME"; echo built >made'],
      artifacts: ['made'],
    });
    const bad = gitlab.queue({ script: ['exit 7'] });
    const last = gitlab.queue({ script: ['cat made'], needs: [first.id] });
    await gitlab.until(() => [first, bad, last].every(({ state }) => ['success', 'failed', 'canceled'].includes(state)));
    expect([first, bad, last].map(({ state }) => state)).toEqual(['success', 'failed', 'success']);
    expect([bad.reason, bad.exitCode]).toEqual(['script_failure', 7]);
    expect(String(first.trace)).toMatch(/gpu [01] on n[12]/);
    expect(String(last.trace)).toMatch(/^.* built$/m);
    await expect.poll(queued).toBe('');
  });

  test.skipIf(lacks('slurm', 'gitea'))('jobs of Gitea', async () => {
    await using gitea = await startGitea();
    const workflow = 'on: workflow_dispatch\njobs:\n  j:\n    runs-on: ci\n    steps:\n      - run: echo "gpu $SLURM_JOB_GPUS"\n';
    await gitea.repository('acme/one', { '.gitea/workflows/one.yml': workflow });
    const token = await gitea.tokenFor('write:repository');
    const service = `forge: { type: gitea, url: "${gitea.url}", token: { env: GITEA_TOKEN }, poll: 1s, binding: late, agent: { from: ${giteaPrograms.runner} } }`;
    await using here = await home(service, `service: forge, queue: acme/one, ${trust}`, { GITEA_TOKEN: token });
    await here.up();
    await gitea.dispatch('acme/one', 'one.yml');
    const jobs = await gitea.until(
      (all) => all.length === 1 && all.every(({ status }) => status === 'completed'),
      60_000,
      '/repos/acme/one',
    );
    expect(jobs.map(({ conclusion }) => conclusion)).toEqual(['success']);
    expect(await gitea.log('acme/one', jobs[0]?.id ?? 0)).toMatch(/gpu [01]/);
    await expect.poll(queued).toBe('');
  });
});
