/**
 * Jobs of CI services whose agents are part of an image, on a real Slurm: batch jobs are containers of an image that contains the agent.
 * The program that makes them is a stand-in for Apptainer.
 */
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { agentEntries } from '../standins/azure-devops/agent/pack.ts';
import { startAzureDevOps } from '../standins/azure-devops/standin.ts';
import { writeApptainer, writeApptainerImage } from '../support/apptainer.ts';
import { troubleOf, untilIdle, writeToken } from '../support/azure.ts';
import { nodeRoot, withLibraries } from '../support/azure-images.ts';
import { writeRunnerPackage } from '../support/github-image.ts';
import { startGitHub } from '../support/github-server.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';
import { type Slurm, startSlurm } from '../support/slurm.ts';

const soon = { timeout: 40_000 };

describe.skipIf(lacks('slurm', 'busybox', 'bubblewrap'))('on a Slurm whose nodes have Apptainer', () => {
  let cluster: Slurm;
  let dir: string;
  beforeAll(async () => {
    dir = mkdtempSync(join(tmpdir(), 'oj-images-'));
    // Slurm hands on the PATH of sbatch, which begins with the folder of the commands.
    writeApptainer(join(dir, 'bin'));
    for (const name of ['sbatch', 'scancel', 'scontrol', 'squeue', 'srun']) symlinkSync(`/usr/bin/${name}`, join(dir, 'bin', name));
    const root = [...(await nodeRoot()), ...(await withLibraries('/bin/bash'))];
    const agent = (await agentEntries()).map((file) => ({ ...file, path: `opt/agent/${file.path}`, owner: 1000 }));
    await writeApptainerImage(join(dir, 'azure'), [...root, ...agent]);
    if (!lacks('github')) {
      await writeApptainerImage(join(dir, 'github'), root);
      mkdirSync(join(dir, 'github/opt/agent'));
      execFileSync('tar', ['-xzf', await writeRunnerPackage(dir), '-C', join(dir, 'github/opt/agent')]);
    }
    cluster = await startSlurm();
  });
  afterAll(async () => {
    await cluster?.[Symbol.asyncDispose]();
    rmSync(dir, { recursive: true, force: true });
  });

  /** `service`: its lines; `pool`: more keys of its pool, `ci`; `image`: a name in `dir`. */
  const home = (service: string, pool: string, image: string, isShared: boolean): Promise<Home> => {
    const nodes = join(cluster.folder, 'nodes');
    mkdirSync(nodes, { recursive: true });
    const place = isShared ? `folder: "${cluster.folder}/onejob"` : `node_folder: "${nodes}"`;
    return onejob({
      config: `
runtimes: { cluster: { type: slurm, ${place}, ${cluster.keys}, path: "${join(dir, 'bin')}", poll: 1s } }
services: { ${service} }
pools: { ci: { runtime: cluster, agents: 1, devices: 1, slurm: { sandbox: apptainer, image: "${join(dir, image)}" }, ${pool} } }
`,
    });
  };
  const queued = async (): Promise<string> => cluster.run('squeue', '-h', '-o', '%j');
  const names = async (): Promise<string[]> => (await queued()).split('\n').filter((name) => name !== '');

  test.each([
    ['a shared folder', true],
    ['nothing shared', false],
  ])('jobs of Azure Pipelines, with %s', async (_, isShared) => {
    await using azure = await startAzureDevOps({ pollHoldMs: 2_000 });
    const pool = azure.addPool('gpu', { autoUpdate: false });
    const tokenFile = join(dir, 'pat');
    writeToken(tokenFile, azure.pat);
    const service = `azure: { type: azure-pipelines, url: "${azure.url}", token: { file: ${tokenFile} }, poll: 2s }`;
    await using here = await home(service, 'service: azure, queue: gpu, standby: true, tags: [cluster]', 'azure', isShared);
    const daemon = await here.up();
    await untilIdle({ azure, pool });
    const says = 'echo "gpu $SLURM_JOB_GPUS of $(hostname)"; test ! -e /usr/sbin/slurmctld && pwd';
    const good = await azure.queue(pool, { script: says, demands: ['cluster'] }).finished;
    expect([good.result, good.log]).toEqual([
      'succeeded',
      expect.stringMatching(/gpu [0-3] of .*\n[\s\S]*\/workspace\/.*_work\/1/),
    ]);
    const bad = await azure.queue(pool, { script: 'echo well >&2; exit 7' }).finished;
    expect(bad.result).toBe('failed');
    // The next one waits.
    await untilIdle({ azure, pool });
    expect(await names()).not.toEqual([]);
    const doctor = await here.cli(['doctor']).ended;
    expect([doctor.code, doctor.stdout]).toEqual([0, expect.not.stringContaining('pool ci')]);
    await daemon.stop();
    expect(await queued()).toBe('');
    expect(azure.agents(pool).map(({ name }) => name)).toEqual([expect.stringMatching(/^onejob-placeholder-/)]);
    expect(azure.log.filter(({ leaked }) => leaked)).toEqual([]);
  });

  test('a daemon that is killed before it has registered its agent continues with it', async () => {
    await using azure = await startAzureDevOps({ pollHoldMs: 2_000 });
    const pool = azure.addPool('gpu', { autoUpdate: false });
    const tokenFile = join(dir, 'pat');
    writeToken(tokenFile, azure.pat);
    azure.faults.add({ kind: 'hang' }, { method: 'POST' });
    const service = `azure: { type: azure-pipelines, url: "${azure.url}", token: { file: ${tokenFile} }, poll: 2s }`;
    await using here = await home(service, 'service: azure, queue: gpu, standby: true', 'azure', true);
    const first = await here.up();
    await expect.poll(() => azure.log.some(({ method, route }) => method === 'POST' && /agents/.test(route)), soon).toBe(true);
    const before = await names();
    await first.kill();
    azure.faults.clear();
    await here.up();
    await untilIdle({ azure, pool });
    expect(before.length).toBeGreaterThan(0);
    expect(await names()).toEqual(expect.arrayContaining(before));
  });

  test('an image that the nodes have not, and one without an agent, are named', async () => {
    await using azure = await startAzureDevOps({ pollHoldMs: 2_000 });
    azure.addPool('gpu', { autoUpdate: false });
    const tokenFile = join(dir, 'pat');
    writeToken(tokenFile, azure.pat);
    const service = `azure: { type: azure-pipelines, url: "${azure.url}", token: { file: ${tokenFile} }, poll: 2s }`;
    await writeApptainerImage(join(dir, 'bare'), await nodeRoot());
    for (const [image, why] of [
      ['absent', `${join(dir, 'absent')} does not exist there`],
      ['bare', 'its image has no agent'],
    ] as const) {
      await using here = await home(service, 'service: azure, queue: gpu, standby: true', image, true);
      await here.up();
      await expect.poll(() => troubleOf(here), soon).toContain(why);
    }
  });

  test.skipIf(lacks('github')).each([
    ['a scale set, with agents only while jobs wait', 'mode: scale-set', 'standby: false'],
    ['an organisation, with agents that wait', 'mode: jit', 'standby: true'],
  ])('jobs of GitHub Actions: %s', async (_, mode, standby) => {
    await using github = await startGitHub();
    const key = join(dir, 'app.pem');
    writeFileSync(key, github.app.key.export({ type: 'pkcs8', format: 'pem' }), { mode: 0o600 });
    const service = `hub: { type: github, url: "${github.origin}", app: { id: ${github.app.id}, private_key: { file: ${key} } }, poll: 5s, ${mode} }`;
    await using here = await home(service, `service: hub, queue: acme, tags: gpu, ${standby}`, 'github', true);
    const daemon = await here.up();
    if (mode === 'mode: scale-set') {
      await expect.poll(() => github.sets[0]?.session ?? null, soon).not.toBeNull();
      expect(await queued()).toBe('');
    }
    const steps = ['echo "gpu $SLURM_JOB_GPUS in $PWD"; test ! -e /usr/sbin/slurmctld', 'echo about to fail; exit 7', 'echo last'];
    const jobs = steps.map((step) => github.queue({ labels: ['gpu'], steps: [[step]] }));
    for (const job of jobs) await expect.poll(() => job.status, soon).toBe('completed');
    expect(jobs.map(({ conclusion }) => conclusion)).toEqual(['success', 'failure', 'success']);
    expect(jobs[0]?.log).toMatch(/gpu [0-3] in \/home\/job\//);
    expect(new Set(jobs.map(({ ranOn }) => ranOn?.name)).size).toBe(3);
    if (mode === 'mode: jit') await expect.poll(queued, soon).toMatch(/^oj-/);
    else await expect.poll(queued, soon).toBe('');
    await daemon.stop();
    expect(await queued()).toBe('');
    expect(github.runners.size).toBe(0);
  });
});
