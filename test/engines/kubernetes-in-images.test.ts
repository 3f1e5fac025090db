/** Jobs of CI services on a real Kubernetes whose agents are part of an image, or wait for jobs: pods call their service themselves. */
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type AzureDevOps, type StandInOptions, startAzureDevOps } from '../standins/azure-devops/standin.ts';
import { writeApptainerImage } from '../support/apptainer.ts';
import { isPlaceholder, troubleOf, untilIdle, writeToken } from '../support/azure.ts';
import { ensureAzureImages, nodeRoot, withLibraries } from '../support/azure-images.ts';
import { startGitea } from '../support/gitea.ts';
import { giteaPrograms } from '../support/gitea-programs.ts';
import { writeRunnerPackage } from '../support/github-image.ts';
import { startGitHub } from '../support/github-server.ts';
import { type Kubernetes, podSecurity, startKubernetes } from '../support/kubernetes.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { defaultImage, lacks } from '../support/require.ts';

const soon = { timeout: 60_000 };
const images = { azure: 'onejob-test/azure-agent:1', bare: 'onejob-test/node-base:1', github: 'onejob-test/github:1' };
/** Its first lines are about GPUs, so that a job shows that it has one, and which. */
const gpu = 'echo "gpu $NVIDIA_VISIBLE_DEVICES as $(id -u) in $PWD"';

describe.skipIf(lacks('kubernetes', 'docker'))('on a Kubernetes', () => {
  let cluster: Kubernetes;
  let dir: string;
  beforeAll(async () => {
    dir = mkdtempSync(join(tmpdir(), 'oj-images-'));
    [cluster] = await Promise.all([startKubernetes(), ensureAzureImages()]);
    const ofDocker = [images.azure, images.bare, ...(lacks('image') ? [] : [defaultImage])];
    await Promise.all([
      cluster.namespace('ci'),
      cluster.namespace('closed', podSecurity('restricted')),
      ...ofDocker.map((name) => cluster.loadDockerImage(name)),
      ...(lacks('github') ? [] : [loadRunner()]),
    ]);
    // Images are large, and both processors may be busy.
  }, 180_000);
  async function loadRunner(): Promise<void> {
    const root = join(dir, 'github');
    await writeApptainerImage(root, [...(await nodeRoot()), ...(await withLibraries('/bin/bash'))]);
    mkdirSync(join(root, 'opt/agent'));
    execFileSync('tar', ['-xzf', await writeRunnerPackage(dir), '-C', join(root, 'opt/agent')]);
    await cluster.loadImage(root, images.github);
  }
  afterAll(async () => {
    await cluster?.[Symbol.asyncDispose]();
    rmSync(dir, { recursive: true, force: true });
  });

  interface Wanted {
    /** Its lines. */
    readonly service: string;
    /** More keys of its pool, `ci`. */
    readonly pool: string;
    readonly image: string;
    readonly namespace?: string;
    readonly env?: Readonly<Record<string, string>>;
  }
  const home = ({ service, pool, image, namespace = 'ci', env = {} }: Wanted): Promise<Home> =>
    onejob({
      config: `
runtimes: { cluster: { type: kubernetes, kubeconfig: "${cluster.kubeconfig}", namespace: ${namespace}, address: ${cluster.address} } }
services: { ${service} }
pools: { ci: { runtime: cluster, agents: 1, devices: 1, image: "${image}", pull: never, ${pool} } }
`,
      env,
    });
  const pods = async (namespace = 'ci'): Promise<string[]> =>
    (await cluster.kubectl('-n', namespace, 'get', 'pods', '-o', 'name')).split('\n').filter((name) => name !== '');
  /** Those that have ended are removed beside the next one. */
  const untilPods = async (count: number, namespace = 'ci'): Promise<void> => {
    await expect.poll(() => pods(namespace), soon).toHaveLength(count);
  };
  const sound = async (here: Home): Promise<void> => {
    const doctor = await here.cli(['doctor']).ended;
    expect([doctor.code, doctor.stdout], doctor.stdout).toEqual([0, expect.not.stringMatching(/^(error|warning) /m)]);
  };

  async function azureDevOps(options: StandInOptions = {}) {
    const azure = await startAzureDevOps({ host: '0.0.0.0', publicHost: cluster.address, pollHoldMs: 2_000, ...options });
    const pool = azure.addPool('gpu', { autoUpdate: false });
    const tokenFile = join(dir, 'pat');
    writeToken(tokenFile, azure.pat);
    const service = `azure: { type: azure-pipelines, url: "${azure.url}", token: { file: ${tokenFile} }, poll: 2s }`;
    const close = async (): Promise<void> => azure[Symbol.asyncDispose]();
    return { azure, pool, service, [Symbol.asyncDispose]: close };
  }
  const registered = (azure: AzureDevOps, pool: number): string[] =>
    azure.agents(pool).flatMap(({ name }) => (isPlaceholder(name) ? [] : [name]));

  test.each([
    ['in a namespace as it is', 'ci', ''],
    ['in one that takes restricted pods only', 'closed', ', user: "1000", kubernetes: { security: restricted }'],
  ])('jobs of Azure Pipelines, %s', async (_, namespace, more) => {
    await using world = await azureDevOps();
    const { azure, pool, service } = world;
    const keys = `service: azure, queue: gpu, standby: true, tags: [cluster]${more}`;
    await using here = await home({ service, pool: keys, image: images.azure, namespace });
    const daemon = await here.up();
    await untilIdle(world);
    const good = await azure.queue(pool, { script: `${gpu}; hostname`, demands: ['cluster'] }).finished;
    expect([good.result, good.log]).toEqual(['succeeded', expect.stringMatching(/gpu GPU-fake-[01] as 1000 in \S*_work\/1/)]);
    const bad = await azure.queue(pool, { script: 'echo well >&2; exit 7' }).finished;
    expect(bad.result).toBe('failed');
    // The next one waits.
    await untilIdle(world);
    await untilPods(1, namespace);
    await sound(here);
    const ended = (await here.api.jobs({ all: true, pool: null })).map(({ agent }) => agent ?? '');
    expect(ended).toHaveLength(2);
    const logs = await here.cli(['logs', '--agent', ended[0] ?? '']).ended;
    expect(logs.stdout, logs.stderr).toMatch(/==> Agent_\S+\.log <==/);
    await daemon.stop();
    expect([await pods(namespace), registered(azure, pool)]).toEqual([[], []]);
    expect(azure.log.filter(({ leaked }) => leaked)).toEqual([]);
  });

  test('a daemon that is killed before it has registered its agent continues with it', async () => {
    await using world = await azureDevOps();
    const { azure, pool, service } = world;
    azure.faults.add({ kind: 'hang' }, { method: 'POST' });
    await using here = await home({ service, pool: 'service: azure, queue: gpu, standby: true', image: images.azure });
    const first = await here.up();
    await expect.poll(() => azure.log.some(({ method, route }) => method === 'POST' && /agents/.test(route)), soon).toBe(true);
    const before = await pods();
    await first.kill();
    azure.faults.clear();
    const second = await here.up();
    await untilIdle(world);
    expect(before).toHaveLength(1);
    expect(await pods()).toEqual(before);
    const { result } = await azure.queue(pool, { script: gpu }).finished;
    expect(result).toBe('succeeded');
    await second.stop();
    expect([await pods(), registered(azure, pool)]).toEqual([[], []]);
  });

  test('what a daemon has registered that is killed before it could hand that over is removed', async () => {
    await using world = await azureDevOps();
    const { azure, pool, service } = world;
    await using here = await home({ service, pool: 'service: azure, queue: gpu, standby: true', image: images.azure });
    // Nothing is handed over without the API server.
    azure.faults.add({ kind: 'delay', ms: 3_000 }, { method: 'POST', route: '*agents*' });
    const first = await here.up();
    await expect.poll(async () => (await cluster.kubectl('-n', 'ci', 'get', 'pods')).includes('Running'), soon).toBe(true);
    await expect.poll(() => azure.log.some(({ method, route }) => method === 'POST' && /agents/.test(route)), soon).toBe(true);
    await cluster.apiserver.kill();
    await expect.poll(() => registered(azure, pool).length, soon).toBe(1);
    const [lost] = registered(azure, pool);
    const id = azure.agents(pool).find(({ name }) => name === lost)?.id;
    await first.kill();
    azure.faults.clear();
    await cluster.apiserver.start();
    const second = await here.up();
    await untilIdle(world);
    expect(azure.agents(pool).map((agent) => agent.id)).not.toContain(id);
    expect((await azure.queue(pool, { script: gpu }).finished).result).toBe('succeeded');
    await second.stop();
    expect([await pods(), registered(azure, pool)]).toEqual([[], []]);
  });

  test('an image that the node has not, and one without an agent, are named', async () => {
    await using world = await azureDevOps();
    for (const [image, why] of [
      ['onejob-test/absent:1', 'onejob-test/absent:1'],
      [images.bare, 'its image has no agent'],
    ] as const) {
      await using here = await home({ service: world.service, pool: 'service: azure, queue: gpu, standby: true', image });
      await here.up();
      await expect.poll(() => troubleOf(here), soon).toContain(why);
    }
  });

  test.skipIf(lacks('github')).each([
    ['a scale set, with agents only while jobs wait', 'mode: scale-set', 'queue: acme, standby: false', 'ci'],
    ['a repository, with agents only while jobs wait', 'mode: jit', 'queue: acme/demo, standby: false', 'ci'],
    [
      'an organisation, with agents that wait, in restricted pods',
      'mode: jit',
      'queue: acme, standby: true, user: "1000", kubernetes: { security: restricted }',
      'closed',
    ],
  ])('jobs of GitHub Actions: %s', async (_, mode, keys, namespace) => {
    const isEarly = keys.includes('standby: true');
    await using github = await startGitHub({ address: cluster.address });
    const key = join(dir, 'app.pem');
    writeFileSync(key, github.app.key.export({ type: 'pkcs8', format: 'pem' }), { mode: 0o600 });
    const service = `hub: { type: github, url: "${github.origin}", app: { id: ${github.app.id}, private_key: { file: ${key} } }, poll: 5s, forks: run, public: run, ${mode} }`;
    await using here = await home({ service, pool: `service: hub, tags: gpu, ${keys}`, image: images.github, namespace });
    const daemon = await here.up();
    if (mode === 'mode: scale-set') await expect.poll(() => github.sets[0]?.session ?? null, soon).not.toBeNull();
    if (!isEarly) expect(await pods(namespace)).toEqual([]);
    // Nobody sees a job that is over between two looks: this runner does not tell of it as GitHub's own does.
    const lasts = mode === 'mode: jit' ? 'sleep 6; ' : '';
    const steps = [gpu, 'echo about to fail; exit 7', 'echo last'].map((step) => `${lasts}${step}`);
    const jobs = steps.map((step) => github.queue({ labels: ['gpu'], steps: [[step]] }));
    for (const job of jobs) await expect.poll(() => job.status, soon).toBe('completed');
    expect(jobs.map(({ conclusion }) => conclusion)).toEqual(['success', 'failure', 'success']);
    expect(jobs[0]?.log).toMatch(isEarly ? /gpu GPU-fake-[01] as 1000 in/ : /gpu GPU-fake-[01] as 0 in/);
    expect(new Set(jobs.map(({ ranOn }) => ranOn?.name)).size).toBe(3);
    const known = async () =>
      (await here.api.jobs({ all: true, pool: null })).map(({ about, verdict }) => [about?.repository, verdict?.kind]);
    if (mode === 'mode: scale-set')
      await expect.poll(known, soon).toEqual([
        ['acme/demo', 'passed'],
        ['acme/demo', 'code'],
        ['acme/demo', 'passed'],
      ]);
    await untilPods(isEarly ? 1 : 0, namespace);
    await sound(here);
    await daemon.stop();
    expect([await pods(namespace), github.runners.size]).toEqual([[], 0]);
  });

  describe.skipIf(lacks('gitea', 'image'))('with a Gitea whose agents wait', () => {
    async function bench(script: string) {
      const gitea = await startGitea({ address: cluster.address });
      await gitea.repository('acme/one', {
        '.gitea/workflows/one.yml': `on: workflow_dispatch\njobs:\n  j:\n    runs-on: ci\n    steps:\n      - run: ${script}\n`,
      });
      const token = await gitea.tokenFor('write:repository');
      const service = `forge: { type: gitea, url: "${gitea.url}", token: { env: GITEA_TOKEN }, poll: 1s, agent: { from: ${giteaPrograms.runner} } }`;
      const pool = 'service: forge, queue: acme/one, standby: true';
      const here = await home({ service, pool, image: defaultImage, env: { GITEA_TOKEN: token } });
      return {
        gitea,
        here,
        async online(): Promise<void> {
          const online = async () => (await gitea.runners('/repos/acme/one')).filter(({ status }) => status === 'online').length;
          await expect.poll(online, soon).toBe(1);
        },
        over: (count: number) =>
          gitea.until(
            (all) => all.length === count && all.every(({ status }) => status === 'completed'),
            60_000,
            '/repos/acme/one',
          ),
        async [Symbol.asyncDispose](): Promise<void> {
          await here.close();
          await gitea[Symbol.asyncDispose]();
        },
      };
    }

    test('jobs run, and nothing is left', async () => {
      await using world = await bench(`'${gpu}; exit 7'`);
      const { gitea, here } = world;
      const daemon = await here.up();
      await world.online();
      await gitea.dispatch('acme/one', 'one.yml');
      const jobs = await world.over(1);
      expect(jobs.map(({ conclusion }) => conclusion)).toEqual(['failure']);
      expect(await gitea.log('acme/one', jobs[0]?.id ?? 0)).toMatch(/gpu GPU-fake-[01]/);
      await world.online();
      await untilPods(1);
      await sound(here);
      await daemon.stop();
      expect([await pods(), await gitea.runners('/repos/acme/one')]).toEqual([[], []]);
    });

    test('a job whose pod is deleted ends at once, with the reason in its log', async () => {
      await using world = await bench('sleep 600');
      const { gitea, here } = world;
      await here.up();
      await world.online();
      await gitea.dispatch('acme/one', 'one.yml');
      await gitea.until(([job]) => job?.status === 'in_progress', 60_000, '/repos/acme/one');
      await expect.poll(async () => (await here.api.jobs({ all: false, pool: null })).length, soon).toBe(1);
      await cluster.kubectl('-n', 'ci', 'delete', '--grace-period=1', ...(await pods()));
      const [job] = await world.over(1);
      expect(job?.conclusion).toBe('failure');
      expect(await gitea.log('acme/one', job?.id ?? 0)).toContain('somebody deleted its pod');
    });
  });
});
