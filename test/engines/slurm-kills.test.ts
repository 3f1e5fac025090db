/** Many jobs on real Slurms, while the daemon and Slurm's controller are killed. */
import { mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';
import { slurmVersions, startSlurm } from '../support/slurm.ts';

const jobs = 200;

/** A line of a job: it begins or ends on a GPU. */
interface Line {
  readonly what: string;
  readonly gpu: string;
  readonly job: string;
}

describe.each(slurmVersions)('Slurm, $version', ({ version, need }) => {
  test.skipIf(lacks(need))(`${jobs} jobs, with kills of both: each runs once at most, and no two share a GPU`, async () => {
    await using cluster = await startSlurm({ version });
    const log = join(cluster.folder, 'log');
    mkdirSync(log);
    await using home = await onejob({
      config: `
runtimes: { cluster: { type: slurm, folder: "${cluster.folder}/onejob", ${cluster.keys}, poll: 1s } }
pools: { gpu: { runtime: cluster, agents: 12, devices: 1, volumes: ["${log}:/log:rw"] } }
`,
    });
    let daemon = await home.up();
    const script =
      'me="$SLURMD_NODENAME:$SLURM_JOB_GPUS $ONEJOB_JOB_ID"; echo "B $me" >>/log/all; sleep 0.4; echo "E $me" >>/log/all';
    const array = await home.run(
      '--pool',
      'gpu',
      '--no-workspace',
      '--detach',
      '--array',
      `0-${jobs - 1}`,
      '--',
      'sh',
      '-c',
      script,
    ).ended;
    expect(array, array.stderr).toMatchObject({ code: 0 });

    const waiting = async (): Promise<number> => {
      // A controller that has lost its last seconds gives an id to a second job, and Slurm takes the node out for that.
      if (/Duplicate jobid/.test(await cluster.run('sinfo', '-R', '-h')))
        await cluster.administer('scontrol', 'update', 'nodename=n[1-2]', 'state=resume');
      return (await home.api.jobs({ all: true, pool: null })).filter(({ state }) => state !== 'done').length;
    };
    for (const at of [170, 140, 110, 80, 50]) {
      await expect.poll(waiting, { timeout: 120_000, interval: 250 }).toBeLessThan(at);
      if (at % 60 === 50) {
        await cluster.controller.kill();
        await sleep(2_000 * Math.random());
        await cluster.controller.start();
      } else {
        await daemon.kill();
        await sleep(1_000 * Math.random());
        daemon = await home.up();
      }
    }
    await expect.poll(waiting, { timeout: 240_000, interval: 500 }).toBe(0);

    const lines = readFileSync(join(log, 'all'), 'utf8')
      .trim()
      .split('\n')
      .map((line): Line => {
        const [what = '', gpu = '', job = ''] = line.split(' ');
        return { what, gpu, job };
      });
    const begun = lines.filter(({ what }) => what === 'B').map(({ job }) => job);
    expect(begun.length).toBe(new Set(begun).size);
    const whole = new Set(lines.flatMap(({ what, job }) => (what === 'E' ? [job] : [])));
    const running = new Map<string, string>();
    for (const { what, gpu, job } of lines.filter((line) => whole.has(line.job))) {
      if (what === 'B') expect(running.get(gpu), `${job} on ${gpu}`).toBeUndefined();
      if (what === 'B') running.set(gpu, job);
      else running.delete(gpu);
    }
    const ended = await home.api.jobs({ all: true, pool: null });
    expect(ended).toHaveLength(jobs);
    const passed = ended.filter(({ state, result }) => state === 'done' && result?.kind === 'code' && result.code === 0);
    // What the controller forgot is lost, and said to be; it did not end.
    expect(passed.length).toBe(whole.size);
    expect(passed.length).toBeGreaterThan(jobs - 20);
    await expect.poll(() => cluster.run('squeue', '-h')).toBe('');
  });
});
