/** Jobs of CI services on a real Kubernetes, with their real agents: the filter is on this host, and speaks TLS to the pods. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { memoryGitlab, runnerToken } from '../kit/gitlab.ts';
import { buildkiteBench } from '../support/buildkite.ts';
import { fork, theAgent } from '../support/buildkite-days.ts';
import { startGitea } from '../support/gitea.ts';
import { giteaPrograms } from '../support/gitea-programs.ts';
import { gitlabRunner } from '../support/gitlab-programs.ts';
import { type Kubernetes, startKubernetes } from '../support/kubernetes.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { defaultImage, lacks } from '../support/require.ts';

describe.skipIf(lacks('kubernetes', 'docker', 'image'))('on a Kubernetes', () => {
  let cluster: Kubernetes;
  beforeAll(async () => {
    cluster = await startKubernetes();
    await cluster.namespace('ci');
    await cluster.loadDockerImage(defaultImage);
  });
  afterAll(() => cluster?.[Symbol.asyncDispose]());

  /** `service`: its lines; `pool`: more keys of its pool, `ci`. */
  const home = (service: string, pool: string, env: Readonly<Record<string, string>> = {}): Promise<Home> =>
    onejob({
      config: `
runtimes: { cluster: { type: kubernetes, kubeconfig: "${cluster.kubeconfig}", namespace: ci, address: ${cluster.address} } }
services: { ${service} }
pools: { ci: { runtime: cluster, agents: 2, devices: 1, image: "${defaultImage}", pull: never, ${pool} } }
`,
      env,
    });
  const pods = async (): Promise<string> => cluster.kubectl('-n', 'ci', 'get', 'pods', '-o', 'name');
  const refuses = 'trust: { forks: refuse, others: refuse }';

  test.skipIf(lacks('buildkiteAgent'))('jobs of Buildkite, trusted and not', async () => {
    await using bench = await buildkiteBench(theAgent(), { lostMs: 15_000, publicHost: cluster.address });
    const { buildkite, tokenFile } = bench;
    const service = `bk: { type: buildkite, endpoint: "${buildkite.endpoint}", token: { file: ${tokenFile} }, poll: 2s, agent: { from: ${theAgent()} } }`;
    const restricted = 'user: "1000", kubernetes: { security: restricted }';
    await using here = await home(service, `service: bk, queue: default, trust: { network: default }, ${restricted}`);
    await here.up();
    expect(await pods()).toBe('');
    const job = await bench.job('echo "gpu $NVIDIA_VISIBLE_DEVICES in $PWD as $(id -u)"; exit 3');
    expect(job.log).toMatch(/gpu GPU-fake-[01] in \/workspace\/builds.* as 1000/);
    expect(job.exit).toBe(3);
    const stranger = await bench.job('echo stranger; env | grep -c SSL_CERT_FILE', fork);
    expect([stranger.exit, stranger.log]).toEqual([0, expect.stringContaining('stranger')]);
    const doctor = await here.cli(['doctor']).ended;
    expect([doctor.code, doctor.stdout]).toEqual([0, expect.not.stringContaining('pool ci')]);
    await expect.poll(pods).toBe('');
  });

  test.skipIf(lacks('gitlabRunner'))('jobs of GitLab', async () => {
    const gitlab = memoryGitlab();
    await using _ = await gitlab.serve(cluster.address);
    const service = `lab: { type: gitlab, url: "${gitlab.url}", token: { env: GITLAB_TOKEN }, poll: 1s, agent: { from: ${gitlabRunner} } }`;
    await using here = await home(service, `service: lab, ${refuses}`, { GITLAB_TOKEN: runnerToken });
    await here.up();
    const first = gitlab.queue({ script: ['echo "gpu $NVIDIA_VISIBLE_DEVICES"; echo built >made'], artifacts: ['made'] });
    const bad = gitlab.queue({ script: ['exit 7'] });
    const last = gitlab.queue({ script: ['cat made'], needs: [first.id] });
    await gitlab.until(() => [first, bad, last].every(({ state }) => ['success', 'failed', 'canceled'].includes(state)));
    expect([first, bad, last].map(({ state }) => state)).toEqual(['success', 'failed', 'success']);
    expect([bad.reason, bad.exitCode]).toEqual(['script_failure', 7]);
    expect(String(first.trace)).toMatch(/gpu GPU-fake-[01]/);
    expect(String(last.trace)).toMatch(/^.* built$/m);
    await expect.poll(pods).toBe('');
  });

  test.skipIf(lacks('gitea'))('jobs of Gitea', async () => {
    await using gitea = await startGitea({ address: cluster.address });
    const workflow =
      'on: workflow_dispatch\njobs:\n  j:\n    runs-on: ci\n    steps:\n      - run: echo "gpu $NVIDIA_VISIBLE_DEVICES"\n';
    await gitea.repository('acme/one', { '.gitea/workflows/one.yml': workflow });
    const token = await gitea.tokenFor('write:repository');
    const service = `forge: { type: gitea, url: "${gitea.url}", token: { env: GITEA_TOKEN }, poll: 1s, binding: late, agent: { from: ${giteaPrograms.runner} } }`;
    await using here = await home(service, `service: forge, queue: acme/one, ${refuses}`, { GITEA_TOKEN: token });
    await here.up();
    await gitea.dispatch('acme/one', 'one.yml');
    const jobs = await gitea.until(
      (all) => all.length === 1 && all.every(({ status }) => status === 'completed'),
      60_000,
      '/repos/acme/one',
    );
    expect(jobs.map(({ conclusion }) => conclusion)).toEqual(['success']);
    expect(await gitea.log('acme/one', jobs[0]?.id ?? 0)).toMatch(/gpu GPU-fake-[01]/);
    await expect.poll(pods).toBe('');
  });
});
