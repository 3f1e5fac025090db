/** What ends a job on a real Slurm, and what onejob says of it; the cards that Slurm grants; and onejob as an ordinary user. */
import { chmodSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Child } from '../support/child.ts';
import { mainJob } from '../support/main-job.ts';
import { type Home, type HomeOptions, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';
import { lacksSlurm, type Slurm, startSlurm } from '../support/slurm.ts';

const places = ['a shared folder', 'nothing shared'] as const;
type Place = (typeof places)[number];

/** A runtime, as YAML. `more`: other keys of it. */
const slurmOf = ({ folder, env }: Slurm, place: Place, more = ''): string =>
  `{ type: slurm, ${place === 'nothing shared' ? 'node_folder' : 'folder'}: "${folder}", conf: "${env.SLURM_CONF}", poll: 1s${more} }`;

const runtimeOf = (...parts: Parameters<typeof slurmOf>): string => `runtimes: { cluster: ${slurmOf(...parts)} }\n`;

function run(home: Home, pool: string, script: string): Child {
  return home.run('--pool', pool, '--no-workspace', '--', 'sh', '-c', script);
}

/** Says on which node it has begun, and does not end by itself, nor when it is asked to. */
const stays = 'trap "" TERM; echo "begun on $SLURMD_NODENAME"; sleep 600';

/** The node on which such a job has begun. */
async function nodeOf(job: Child): Promise<string> {
  return (await job.says(/begun on (n\d)/))[1] ?? '';
}

/** The id that Slurm has given to the only job on the node. */
async function idOn(cluster: Slurm, node: string): Promise<string> {
  return (await cluster.run('squeue', '-h', '-w', node, '-o', '%i')).trim();
}

const endsLost = (reason: string) => ({
  code: 125,
  stderr: expect.stringMatching(new RegExp(`^onejob: job \\w+ was lost: ${reason}$`, 'm')),
});

const noCard = 'Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error';

/** Keys of a runtime whose jobs find a `nvidia-smi` that fails on n1: Slurm hands on the PATH of sbatch. */
function badCard({ folder }: Slurm): string {
  const programs = join(folder, 'programs');
  mkdirSync(programs);
  for (const name of ['sbatch', 'scancel', 'scontrol', 'squeue', 'srun']) symlinkSync(`/usr/bin/${name}`, join(programs, name));
  const tool = `[ "$SLURMD_NODENAME" != n1 ] || { echo "${noCard}"; exit 15; }\n[ "$1" != -L ] || echo "GPU 0: A100"`;
  writeFileSync(join(programs, 'nvidia-smi'), `#!/bin/sh\n${tool}\n`, { mode: 0o755 });
  return `, path: "${programs}"`;
}

test.skipIf(lacks('slurm'))('onejob says that the time limit of Slurm was over, and that a node has failed', async () => {
  await using cluster = await startSlurm({ nodes: 4, conf: ['SlurmdTimeout=5'] });
  const [shared, separate] = places.map((place) => slurmOf(cluster, place));
  const pool = 'agents: 2, devices: 2, slurm: { time: 1m }';
  await using home = await onejob({
    config: `
runtimes: { one: ${shared}, two: ${separate} }
pools: { shared: { runtime: one, ${pool} }, separate: { runtime: two, ${pool} } }
`,
  });
  await home.up();
  const begin = () => ['shared', 'separate'].map((name) => run(home, name, stays));
  const [late, failed] = [begin(), begin()];
  // Slurm looks at limits and at nodes twice a minute, so all end together.
  const [lateOn, failedOn] = await Promise.all([late, failed].map((jobs) => Promise.all(jobs.map(nodeOf))));
  for (const node of lateOn ?? [])
    await cluster.administer('scontrol', 'update', `jobid=${await idOn(cluster, node)}`, 'EndTime=now+1');
  for (const node of failedOn ?? []) await cluster.node(node).kill();
  for (const [at, { ended }] of late.entries())
    expect(await ended).toMatchObject(endsLost(`Slurm ended it on node ${lateOn?.[at]}: its time limit was over`));
  for (const [at, { ended }] of failed.entries())
    expect(await ended).toMatchObject(endsLost(`Slurm ended it on node ${failedOn?.[at]}: the node failed`));
  // What is left of the cluster is enough to continue.
  for (const name of ['shared', 'separate'])
    expect(lateOn).toContain((await run(home, name, 'echo "$SLURMD_NODENAME"').ended).stdout.trim());
});

test.skipIf(lacks('slurm', 'slurmAccounting'))('accounting tells how agents ended that the queue has forgotten', async () => {
  await using cluster = await startSlurm({ accounting: true, conf: ['MinJobAge=2'] });
  await using home = await onejob({
    config: `${runtimeOf(cluster, 'nothing shared')}pools: { gpu: { runtime: cluster, agents: 1, devices: 1 } }\n`,
  });
  const daemon = await home.up();
  expect((await home.cli(['doctor']).ended).stdout).toMatch(/The cluster has accounting: sacct says/);
  const job = run(home, 'gpu', stays);
  const node = await nodeOf(job);
  await daemon.kill();
  await cluster.administer('scancel', await idOn(cluster, node));
  await expect.poll(() => cluster.run('squeue', '-h', '-t', 'all'), { timeout: 120_000 }).toBe('');
  await home.up();
  expect(await job.ended).toMatchObject(endsLost(`Slurm ended it on node ${node}: somebody cancelled it with scancel`));
});

describe.skipIf(lacks('slurm')).each(places)('with %s, onejob says', (place) => {
  test('that a job with a higher priority took its place', async () => {
    const urgent = 'PartitionName=urgent Nodes=n1 PriorityTier=10 MaxTime=INFINITE DefMemPerCPU=500';
    await using cluster = await startSlurm({
      nodes: 1,
      conf: ['PreemptType=preempt/partition_prio', 'PreemptMode=CANCEL', urgent],
    });
    await using home = await onejob({
      config: `${runtimeOf(cluster, place)}pools: { gpu: { runtime: cluster, agents: 1, devices: 2 } }\n`,
    });
    await home.up();
    const job = run(home, 'gpu', stays);
    await nodeOf(job);
    await cluster.administer('sbatch', '--partition=urgent', '--gres=gpu:2', '--output=/dev/null', '--wrap', 'true');
    expect(await job.ended).toMatchObject(endsLost('Slurm ended it on node n1: another job took its place'));
    expect(await run(home, 'gpu', 'echo again').ended).toMatchObject({ code: 0, stdout: 'again\n' });
  });

  test('nothing of a node that is drained: its job ends well, and the next one is elsewhere', async () => {
    await using cluster = await startSlurm();
    const flags = join(cluster.folder, 'flags');
    mkdirSync(flags);
    await using home = await onejob({
      config: `${runtimeOf(cluster, place)}pools: { gpu: { runtime: cluster, agents: 2, devices: 1, volumes: ["${flags}:/flags:rw"] } }\n`,
    });
    await home.up();
    const job = run(home, 'gpu', 'echo "begun on $SLURMD_NODENAME"; until [ -e /flags/go ]; do sleep 0.1; done; echo done; exit 3');
    const node = await nodeOf(job);
    await cluster.administer('scontrol', 'update', `nodename=${node}`, 'state=drain', 'reason=fan');
    const next = await run(home, 'gpu', 'echo "$SLURMD_NODENAME"').ended;
    expect(next).toMatchObject({ code: 0, stdout: node === 'n1' ? 'n2\n' : 'n1\n' });
    writeFileSync(join(flags, 'go'), '');
    expect(await job.ended).toMatchObject({ code: 3, stdout: `begun on ${node}\ndone\n` });
  });

  test('which node has a bad card, and keeps away from it', async () => {
    await using cluster = await startSlurm({ gpus: 1 });
    await using home = await onejob({
      config: `${runtimeOf(cluster, place, badCard(cluster))}pools: { gpu: { runtime: cluster, agents: 1, devices: 1 } }\n`,
    });
    await home.up();
    const other = (
      await cluster.run('sbatch', '--parsable', '--nodelist=n2', '--gres=gpu:1', '--output=/dev/null', '--wrap', 'sleep 600')
    ).trim();
    await expect.poll(() => cluster.run('squeue', '-h', '-t', 'R', '-o', '%i')).toBe(`${other}\n`);
    const job = run(home, 'gpu', 'echo "$SLURMD_NODENAME"');
    // It was on n1, and is not to go there again.
    await expect.poll(() => cluster.run('squeue', '-h', '-t', 'PD', '-o', '%j %x')).toMatch(/^oj-\w+ n1\n$/);
    const status = async (): Promise<string> => (await home.cli(['status']).ended).stdout;
    await expect.poll(status).toContain(`; avoids node n1 (nvidia-smi fails: ${noCard})\n`);
    await cluster.run('scancel', other);
    expect(await job.ended).toMatchObject({ code: 0, stdout: 'n2\n' });
    const { stdout } = await home.cli(['doctor']).ended;
    expect(stdout.replaceAll(/\s+/g, ' ')).toContain(`Node n1 is avoided for 15 more minutes: nvidia-smi fails: ${noCard}. `);
  });
});

// Nothing here depends on where the files of agents are.
describe.skipIf(lacks('slurm'))('onejob says', () => {
  test('that the only node has a bad card', async () => {
    await using cluster = await startSlurm({ nodes: 1, gpus: 1 });
    await using home = await onejob({
      config: `${runtimeOf(cluster, 'a shared folder', badCard(cluster))}pools: { gpu: { runtime: cluster, agents: 1, devices: 1 } }\n`,
    });
    await home.up();
    const job = run(home, 'gpu', 'true');
    await job.says(new RegExp(`does not take the agent: .*; onejob avoids node n1 \\(nvidia-smi fails: ${noCard}\\)\\.`));
  });

  test('what each job of an array has ended with, and runs each once', async () => {
    await using cluster = await startSlurm();
    const log = join(cluster.folder, 'log');
    mkdirSync(log);
    await using home = await onejob({
      config: `${runtimeOf(cluster, 'a shared folder')}pools: { gpu: { runtime: cluster, agents: 8, devices: 1, volumes: ["${log}:/log:rw"] } }\n`,
    });
    await home.up();
    const script = 'i=$ONEJOB_ARRAY_INDEX; echo "$SLURMD_NODENAME $SLURM_JOB_GPUS" >>/log/$i; [ "$i" != 7 ] || exit 2';
    const array = await home.run('--pool', 'gpu', '--no-workspace', '--array', '0-9', '--', 'sh', '-c', script).ended;
    expect(array.code).toBe(1);
    const jobs = await home.api.jobs({ all: true, pool: null });
    expect(jobs.map(({ result }) => (result?.kind === 'code' ? result.code : result)).toSorted()).toEqual([...Array(9).fill(0), 2]);
    expect(readdirSync(log).toSorted()).toEqual(Array.from({ length: 10 }, (_, index) => String(index)));
    for (const index of readdirSync(log)) expect(readFileSync(join(log, index), 'utf8')).toMatch(/^n[12] [01]\n$/);
    await expect.poll(() => cluster.run('squeue', '-h')).toBe('');
  });
});

const user = 'nobody';
/** onejob of an ordinary user, as on a login node. */
const ordinary = (options?: HomeOptions): Promise<Home> => onejob({ ...options, user: { uid: 65_534, gid: 65_534 } });

const needs = lacks('slurm') || lacksSlurm({ proctrack: 'cgroup' }) !== null;

describe.skipIf(needs)('as an ordinary user of a Slurm that confines jobs', () => {
  let cluster: Slurm;
  beforeAll(async () => {
    if (!needs) cluster = await startSlurm({ proctrack: 'cgroup', user, nodes: 1 });
  });
  afterAll(() => cluster?.[Symbol.asyncDispose]());

  mainJob('Slurm', needs, 'runtime: cluster, devices: 1', () => runtimeOf(cluster, 'a shared folder'), { make: ordinary });

  test.each(places)('a job that takes more memory than it may is told so, with %s', async (place) => {
    await using home = await ordinary({
      config: `${runtimeOf(cluster, place)}pools: { small: { runtime: cluster, agents: 1, memory: 128MiB } }\n`,
    });
    await home.up();
    const greedy = await run(home, 'small', 'echo begun; exec tail /dev/zero').ended;
    expect(greedy).toMatchObject({
      code: 137,
      stdout: 'begun\n',
      stderr: expect.stringMatching(/more memory than its limit of 128 ?MiB/),
    });
    // It has dealt with that itself.
    expect(await run(home, 'small', 'tail /dev/zero; exit 4').ended).toMatchObject({ code: 4 });
    // Somebody else killed it.
    const killed = await run(home, 'small', 'kill -KILL $$').ended;
    expect(killed).toMatchObject({ code: 137, stderr: expect.not.stringContaining('memory') });
  });

  test.each(places)('a job that an administrator ends is told so, also if it ends at once, with %s', async (place) => {
    await using home = await ordinary({
      config: `${runtimeOf(cluster, place)}pools: { gpu: { runtime: cluster, agents: 1, devices: 1 } }\n`,
    });
    await home.up();
    const job = run(home, 'gpu', 'echo "begun on $SLURMD_NODENAME"; sleep 600');
    await nodeOf(job);
    await cluster.administer('scancel', await idOn(cluster, 'n1'));
    expect(await job.ended).toMatchObject(endsLost('Slurm ended it on node n1: somebody cancelled it with scancel'));
    const dutiful = run(home, 'gpu', 'trap "echo bye; exit 5" TERM; echo "begun on $SLURMD_NODENAME"; while :; do sleep 0.1; done');
    await nodeOf(dutiful);
    await cluster.administer('scancel', await idOn(cluster, 'n1'));
    expect(await dutiful.ended).toMatchObject({ code: 5, stdout: 'begun on n1\nbye\n' });
  });

  test('two jobs at a time can open one card each, their own', async () => {
    const flags = join(cluster.folder, 'flags');
    mkdirSync(flags);
    chmodSync(flags, 0o777);
    await using home = await ordinary({
      config: `${runtimeOf(cluster, 'a shared folder')}pools: { plain: { runtime: cluster, agents: 2, devices: 1, slurm: { sandbox: none } } }\n`,
    });
    await home.up();
    const cards = join(cluster.folder, '..', 'dev');
    // There is nothing behind the cards, which is another error than not to be allowed.
    const open = `LC_ALL=C cat "${cards}/gpu$gpu" 2>&1 | grep -q "No such device" && echo "has $gpu of $SLURM_JOB_GPUS"`;
    const script = `: >"${flags}/$SLURM_JOB_GPUS"; until [ -e "${flags}/0" ] && [ -e "${flags}/1" ]; do sleep 0.1; done
id -un; for gpu in 0 1; do ${open}; done; true`;
    const jobs = [run(home, 'plain', script), run(home, 'plain', script)];
    const said = await Promise.all(jobs.map(async ({ ended }) => (await ended).stdout));
    expect(said.toSorted()).toEqual([`${user}\nhas 0 of 0\n`, `${user}\nhas 1 of 1\n`]);
  });
});
