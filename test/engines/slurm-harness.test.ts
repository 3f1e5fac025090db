/** What the tests of Slurm stand on: a cluster of their own that behaves as sites' clusters do, and leaves nothing. */
import { existsSync, globSync, readdirSync, readFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { isAlive, startChild } from '../support/child.ts';
import { lacksSlurm, type Slurm, slurmVersions, startSlurm } from '../support/slurm.ts';
import { newerSlurm } from '../support/slurm-newer.ts';

async function submit(slurm: Slurm, script: string, ...options: string[]): Promise<string> {
  return (await slurm.run('sbatch', '--parsable', '--output=%j.out', ...options, '--wrap', script)).trim();
}

async function look(slurm: Slurm, job: string): Promise<string> {
  return (await slurm.run('squeue', '--noheader', '--states=all', '--format=%T %r', `--jobs=${job}`)).trim();
}

const output = (slurm: Slurm, job: string): string => readFileSync(join(slurm.folder, `${job}.out`), 'utf8').trim();

/** What is there of the cluster that has the slurm.conf. */
function traces(conf: string): string[] {
  const home = dirname(conf);
  const processes = readdirSync('/proc').filter((pid) => {
    try {
      return isAlive(Number(pid)) && readFileSync(`/proc/${pid}/environ`, 'utf8').includes(conf);
    } catch {
      return false;
    }
  });
  const groups = globSync([`/sys/fs/cgroup/**/*${basename(home)}`, '/sys/fs/cgroup/*/slurm_*']);
  // What is mounted where a cleanup of this machine could meet it.
  const mounts = readFileSync('/proc/self/mounts', 'utf8').split('\n');
  const own = mounts.filter((line) => line.includes(home) || line.includes(newerSlurm));
  return [...processes, ...groups, ...own, ...(existsSync(home) ? [home] : [])];
}

describe.each(slurmVersions)('a Slurm cluster, $version', ({ version }) => {
  describe.skipIf(lacksSlurm({ version }) !== null)('with Linux processes', () => {
    test.each(['root', 'nobody'])('runs a job of %s, and says how it ended', async (user) => {
      await using slurm = await startSlurm({ version, user });
      const job = await submit(slurm, 'id -un; pwd; exit 7');
      await expect.poll(() => look(slurm, job)).toBe('FAILED NonZeroExitCode');
      expect(output(slurm, job)).toBe(`${user}\n${slurm.folder}`);
      expect(await slurm.run('scontrol', '-o', 'show', 'job', job)).toContain(' ExitCode=7:0 ');
      expect((await slurm.start('srun', 'sh', '-c', 'exit 5').ended).code).toBe(5);
    });

    test('gives each GPU to one job, and lets the next one wait', async () => {
      await using slurm = await startSlurm({ version });
      const jobs: string[] = [];
      for (let at = 0; at < 3; at++)
        jobs.push(await submit(slurm, 'echo "$SLURM_JOB_GPUS"; sleep 600', '--gres=gpu:1', '--nodelist=n1'));
      const [first = '', second = '', third = ''] = jobs;
      for (const job of [first, second]) await expect.poll(() => look(slurm, job)).toBe('RUNNING None');
      await expect.poll(() => look(slurm, third)).toBe('PENDING Resources');
      await expect.poll(() => [first, second].map((job) => output(slurm, job)).sort()).toEqual(['0', '1']);
      await slurm.run('scancel', first);
      await expect.poll(() => look(slurm, third)).toBe('RUNNING None');
    });

    test('keeps a running job while the controller is killed, and while its node is', async () => {
      await using slurm = await startSlurm({ version, nodes: 1 });
      const job = await submit(slurm, 'sleep 9; exit 3');
      await expect.poll(() => look(slurm, job)).toBe('RUNNING None');
      // The controller forgets what began in the last five seconds before it dies.
      await sleep(6_500);
      await slurm.controller.kill();
      expect(slurm.controller.pid).toBeNull();
      await slurm.controller.start();
      expect(await look(slurm, job)).toBe('RUNNING None');
      await slurm.node('n1').kill();
      await slurm.node('n1').start();
      await expect.poll(() => look(slurm, job)).toBe('FAILED NonZeroExitCode');
      expect(await slurm.run('scontrol', '-o', 'show', 'job', job)).toContain(' ExitCode=3:0 ');
    });

    test('leaves nothing', async () => {
      const slurm = await startSlurm({ version, nodes: 1 });
      const conf = slurm.env.SLURM_CONF ?? '';
      const job = await submit(slurm, 'trap "" TERM; setsid env -i sleep 600 & echo $!; sleep 600');
      await expect.poll(() => look(slurm, job)).toBe('RUNNING None');
      await expect.poll(() => output(slurm, job)).toMatch(/^\d+$/);
      const pid = Number(output(slurm, job));
      expect(isAlive(pid)).toBe(true);
      // Now only its cgroup tells whose it is.
      await slurm.node('n1').kill();
      await slurm[Symbol.asyncDispose]();
      expect(isAlive(pid)).toBe(false);
      expect(traces(conf)).toEqual([]);
    });

    test('leaves nothing when the test dies', async () => {
      const program = `
      import { startSlurm } from '${join(import.meta.dirname, '../support/slurm.ts')}';
      const slurm = await startSlurm({ version: '${version}', nodes: 1 });
      await slurm.run('srun', 'true');
      console.log(slurm.env.SLURM_CONF);
      await slurm.run('srun', 'sleep', '600');`;
      const child = startChild(process.execPath, ['--input-type=module', '--eval', program], { cwd: '/', env: process.env });
      const [conf] = await child.says(/\S+slurm\.conf/);
      expect(traces(conf)).not.toEqual([]);
      await child.kill();
      await expect.poll(() => traces(conf)).toEqual([]);
    });
  });

  describe.skipIf(lacksSlurm({ version, proctrack: 'cgroup' }) !== null)('with cgroups', () => {
    test("keeps a job from other jobs' GPUs, and leaves nothing", async () => {
      const slurm = await startSlurm({ version, proctrack: 'cgroup' });
      const conf = slurm.env.SLURM_CONF ?? '';
      try {
        const files = [0, 1].map((gpu) => join(dirname(conf), 'dev', `gpu${gpu}`));
        const script = files.map((file) => `cat ${file}`).join('; ');
        const { stderr } = await slurm.start('srun', '--gres=gpu:1', '--nodelist=n1', 'sh', '-c', `LC_ALL=C; ${script}`).ended;
        expect(stderr).toContain(`${files[0]}: No such device or address`);
        expect(stderr).toContain(`${files[1]}: Operation not permitted`);
        const job = await submit(slurm, 'sleep 600');
        await expect.poll(() => look(slurm, job)).toBe('RUNNING None');
        await slurm.node('n1').kill();
      } finally {
        await slurm[Symbol.asyncDispose]();
      }
      expect(traces(conf)).toEqual([]);
    });
  });
});
