/**
 * Slurm, real, on this machine: from the submission of a job to its first line, in pairs with `sbatch` itself; and from the submission
 * to the first line where an agent waits already. Jobs write down the time themselves.
 */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { type Home, onejob } from '../test/support/onejob.ts';
import { lacksSlurm, type Slurm, startSlurm } from '../test/support/slurm.ts';
import { wall } from './jobs.ts';
import { type Stats, stats } from './stats.ts';

/** In ms. */
export interface SlurmFigures {
  /** Mean of what it is more than `sbatch`, and the standard error of that. */
  readonly more: { readonly mean: number; readonly error: number };
  readonly ours: Stats;
  readonly floor: Stats;
  /** With `standby: true`. */
  readonly waiting: Stats;
}

const stamp = ['sh', '-c', 'date +%s.%N'];
const bare = { pool: null } as const;

export async function slurmFigures(rounds: number): Promise<SlurmFigures> {
  if (lacksSlurm() !== null) throw new Error(`${lacksSlurm()}`);
  await using cluster = await startSlurm();
  const config = (standby: boolean): string => `
runtimes: { cluster: { type: slurm, folder: "${cluster.folder}/onejob", conf: "${cluster.env.SLURM_CONF}" } }
pools: { default: { runtime: cluster, agents: 2, standby: ${standby} } }
`;
  // The first batch jobs of a new controller wait for 3 s.
  await sleep(5_000);
  const pairs: { readonly floor: number; readonly ours: number }[] = [];
  {
    await using home = await onejob({ config: config(false) });
    await home.up();
    for (let n = 0; n < rounds; n++) {
      await anyPhase();
      const floor = await bySbatch(cluster, n);
      await anyPhase();
      pairs.push({ floor, ours: await byOnejob(home) });
    }
  }
  await using home = await onejob({ config: config(true) });
  await home.up();
  const waiting: number[] = [];
  for (let n = 0; n < rounds; n++) {
    while ((await home.api.status()).pools.some(({ slots }) => slots.some(({ standby }) => standby.state !== 'standby')))
      await sleep(100);
    waiting.push(await byOnejob(home));
  }
  return {
    more: meanOf(pairs.map(({ floor, ours }) => ours - floor)),
    ours: stats(pairs.map(({ ours }) => ours)),
    floor: stats(pairs.map(({ floor }) => floor)),
    waiting: stats(waiting),
  };
}

/** The controller begins batch jobs once a second. What follows a job at once would always wait for most of that. */
async function anyPhase(): Promise<void> {
  await sleep(1_000 * Math.random());
}

function meanOf(values: readonly number[]): SlurmFigures['more'] {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / Math.max(1, values.length - 1);
  return { mean: Math.round(mean), error: Math.round(Math.sqrt(variance / values.length)) };
}

async function bySbatch(cluster: Slurm, n: number): Promise<number> {
  const out = join(cluster.folder, `floor-${n}`);
  const began = wall();
  await cluster.run('sbatch', `--output=${out}`, '--wrap', 'date +%s.%N');
  while (!existsSync(out) || !readFileSync(out, 'utf8').includes('\n')) await sleep(10);
  return Number(readFileSync(out, 'utf8')) * 1000 - began;
}

async function byOnejob(home: Home): Promise<number> {
  const began = wall();
  const { id } = await home.api.submit({ ...bare, command: stamp });
  const ended = await home.cli(['logs', '-f', id]).ended;
  return Number(ended.stdout) * 1000 - began;
}
