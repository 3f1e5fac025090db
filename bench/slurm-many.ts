/**
 * What onejob takes of one core beside a long queue of a large Slurm, real and on this machine: the daemon and the commands that it
 * starts, while nothing happens. Nodes are slurmd's that share one host, so nothing here is a latency.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { type Home, onejob } from '../test/support/onejob.ts';
import { lacksSlurm, type Slurm, startSlurm } from '../test/support/slurm.ts';
import { cpuSeconds, rss } from './daemon.ts';
import { rounded } from './stats.ts';

/** % of one core. */
export interface Share {
  readonly daemon: number;
  readonly commands: number;
  readonly both: number;
  /** MB RSS */
  readonly rss: number;
}

export interface SlurmMany {
  /** Waiting jobs of another user, agents at their gates. */
  readonly beside: Share;
  /** Waiting jobs of the same user, agents at their gates. */
  readonly own: Share;
  /** The same, and many agents that wait in Slurm's queue. */
  readonly pending: Share;
  /** ms until one `squeue` has ended, for the same two queues. */
  readonly squeue: { readonly others: number; readonly own: number };
}

export interface ManyOptions {
  readonly nodes: number;
  /** That wait in Slurm's queue. */
  readonly jobs: number;
  /** Of onejob, that wait there too. */
  readonly agents: number;
  readonly seconds: number;
}

/** Whose the jobs of others are. */
const other = 'daemon';
/** Agents that wait at their gates. */
const standby = 16;

export async function slurmMany({ nodes, jobs, agents, seconds }: ManyOptions): Promise<SlurmMany> {
  if (lacksSlurm() !== null) throw new Error(`${lacksSlurm()}`);
  const conf = ['SlurmdTimeout=300', `PartitionName=shut Nodes=n1 State=DOWN`];
  await using cluster = await startSlurm({ nodes, gpus: 0, user: other, conf });
  await fill(cluster, other, jobs);
  const others = await squeueTakes(cluster);
  const beside = await share(cluster, 0, seconds);
  await cluster.administer('scancel', `--user=${other}`);
  await fill(cluster, 'root', jobs);
  return {
    beside,
    own: await share(cluster, 0, seconds),
    pending: await share(cluster, agents, seconds),
    squeue: { others, own: await squeueTakes(cluster) },
  };
}

/** As many jobs of that user, held. */
async function fill(cluster: Slurm, user: string, jobs: number): Promise<void> {
  const script = `for n in $(seq ${jobs}); do sbatch --hold --output=/dev/null --job-name="other-$n" --wrap true || exit; done`;
  const ended = await (user === 'root' ? cluster.startAsRoot : cluster.start)('sh', '-c', script).ended;
  if (ended.code !== 0) throw new Error(`the queue is not filled: ${ended.stderr}`);
}

/** Median of some. */
async function squeueTakes(cluster: Slurm): Promise<number> {
  const times: number[] = [];
  for (let n = 0; n < 21; n++) {
    const began = performance.now();
    await cluster.administer('squeue', '--me', '-h', '-t', 'all', '-o', '%i|%T|%r|%N|%j|%k');
    times.push(performance.now() - began);
  }
  return rounded(times.sort((a, b) => a - b)[10] ?? Number.NaN);
}

/** With that many agents in Slurm's queue, beside those that wait at their gates. */
async function share(cluster: Slurm, agents: number, seconds: number): Promise<Share> {
  const config = `
runtimes: { cluster: { type: slurm, folder: "${cluster.folder}/onejob", ${cluster.keys} } }
pools:
  default: { runtime: cluster, agents: ${standby}, standby: true, cpus: 1, memory: 100MiB }
  shut: { runtime: cluster, agents: ${Math.max(1, agents)}, standby: false, cpus: 1, slurm: { partition: shut } }
`;
  await using home = await onejob({ config });
  const { pid } = await home.up();
  for (let n = 0; n < agents; n++) await home.api.submit({ pool: 'shut', command: ['true'] });
  await until(home, async (slots) => slots('default', 'standby') === standby);
  await until(home, async () => (await pendingAgents(cluster)) === agents);
  // Until the last change is over.
  await sleep(10_000);
  const before = cpuSeconds(pid);
  await sleep(seconds * 1000);
  const after = cpuSeconds(pid);
  const of = (which: 'own' | 'children'): number => rounded(((after[which] - before[which]) / seconds) * 100);
  const measured = { daemon: of('own'), commands: of('children'), rss: rss(pid) };
  if ((await pendingAgents(cluster)) !== agents) throw new Error('agents do not wait any more');
  await home.cli(['cancel', '--all']).ended;
  await until(home, async () => (await pendingAgents(cluster)) === 0);
  return { ...measured, both: rounded(measured.daemon + measured.commands) };
}

async function pendingAgents(cluster: Slurm): Promise<number> {
  const jobs = await cluster.administer('squeue', '-h', '-t', 'pending', '-o', '%j');
  return new Set(jobs.split('\n').filter((name) => name.startsWith('oj-'))).size;
}

async function until(home: Home, holds: (count: (pool: string, state: string) => number) => Promise<boolean>): Promise<void> {
  for (const end = Date.now() + 600_000; Date.now() < end; await sleep(1_000)) {
    const { pools } = await home.api.status();
    const count = (pool: string, state: string): number =>
      pools.filter(({ name }) => name === pool).flatMap(({ slots }) => slots.filter((slot) => slot.standby.state === state)).length;
    if (await holds(count)) return;
  }
  throw new Error(`not within ten minutes: ${JSON.stringify(await home.api.status())}`);
}
