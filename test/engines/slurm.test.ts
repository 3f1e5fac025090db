/** The main job on real Slurms, and what only an engine that grants brings: a queue of its own, GPUs, and a controller that dies. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { mainJob } from '../support/main-job.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';
import { type Slurm, slurmVersions, startSlurm } from '../support/slurm.ts';

describe.each(slurmVersions)('Slurm, $version', ({ version, need }) => {
  let cluster: Slurm;
  beforeAll(async () => {
    if (!lacks(need)) cluster = await startSlurm({ version });
  });
  afterAll(() => cluster?.[Symbol.asyncDispose]());

  const runtimes = (): string =>
    `runtimes: { cluster: { type: slurm, folder: "${cluster.folder}/onejob", ${cluster.keys}, poll: 1s } }\n`;

  mainJob('Slurm', lacks(need), 'runtime: cluster', runtimes);

  describe.skipIf(lacks(need))('a pool of Slurm', () => {
    const gpus = (): Promise<Home> =>
      onejob({ config: `${runtimes()}pools: { gpu: { runtime: cluster, agents: 8, devices: 1 } }\n` });
    const run = (home: Home, ...command: string[]) => home.run('--pool', 'gpu', '--no-workspace', '--', ...command);
    const jobsOf = async (...options: string[]): Promise<string[]> =>
      (await cluster.run('squeue', '-h', '-o', '%T %j', ...options)).split('\n').filter((line) => line !== '');

    test('asks for a GPU only while a job waits, and says where it runs', async () => {
      await using home = await gpus();
      await home.up();
      expect(await jobsOf()).toEqual([]);
      const job = run(home, 'sh', '-c', 'echo "gpu $SLURM_JOB_GPUS on $SLURMD_NODENAME"; read line </dev/null; sleep 1');
      await job.says(/gpu [0-3] on n[12]/);
      const { pools } = await home.api.status();
      expect(pools[0]?.slots.map(({ note }) => note).filter((note) => note !== null)).toEqual([
        expect.stringMatching(/^on node n[12], GPU [0-3]$/),
      ]);
      expect((await job.ended).code).toBe(0);
      await expect.poll(() => jobsOf()).toEqual([]);
    });

    test('runs as many at a time as there are GPUs, each with its own, and says what the others wait for', async () => {
      await using home = await gpus();
      await home.up();
      const jobs = Array.from({ length: 6 }, () =>
        run(home, 'sh', '-c', 'echo "$SLURMD_NODENAME $SLURM_JOB_GPUS"; until [ -e /tmp/go ]; do sleep 0.1; done'),
      );
      await expect.poll(async () => (await jobsOf('-t', 'RUNNING')).length).toBe(4);
      await expect
        .poll(async () =>
          (await home.api.status()).pools[0]?.slots.flatMap(({ note }) => (note?.startsWith('cluster: ') ? [note] : [])).toSorted(),
        )
        // Slurm says why for the first of its queue, in any slot, and for others as it likes.
        .toEqual([expect.stringMatching(/^cluster: waits /), 'cluster: waits for resources']);
      // Slurm says that they run before they have said anything.
      await expect.poll(() => new Set(jobs.flatMap(({ stdout }) => (stdout === '' ? [] : [stdout]))).size).toBe(4);
      // A job that is cancelled takes its place in the queue with it.
      for (const job of jobs) job.signal('SIGINT');
      for (const { ended } of jobs) expect((await ended).code).toBe(130);
      await expect.poll(() => jobsOf()).toEqual([]);
    });

    test('keeps its place in the queue when the daemon is killed, and runs each job once', async () => {
      await using home = await gpus();
      const first = await home.up();
      const jobs = Array.from({ length: 6 }, (_, n) => run(home, 'sh', '-c', `echo begin ${n}; sleep 3; echo end ${n}; exit ${n}`));
      const named = async (): Promise<string[]> => (await jobsOf()).map((line) => line.replace(/^\w+ /, '')).toSorted();
      await expect.poll(named).toHaveLength(6);
      const before = await named();
      await first.kill();
      await home.up();
      // It asks for none anew.
      expect(before).toEqual(expect.arrayContaining(await named()));
      for (const [n, { ended }] of jobs.entries()) expect(await ended).toMatchObject({ code: n, stdout: `begin ${n}\nend ${n}\n` });
      const all = (await cluster.run('squeue', '-h', '-t', 'all', '-o', '%j')).split('\n').filter((name) => before.includes(name));
      expect(all).toHaveLength(6);
      await expect.poll(() => jobsOf()).toEqual([]);
    });

    test('waits while the controller is away, and loses nothing of what runs', async () => {
      await using home = await gpus();
      await home.up();
      const running = run(home, 'sh', '-c', 'echo begun; sleep 8; echo done; exit 3');
      await running.says(/begun/);
      // It saves its state every few seconds.
      await new Promise((resolve) => setTimeout(resolve, 6_000));
      await cluster.controller.kill();
      const waiting = run(home, 'echo', 'later');
      await expect
        .poll(async () => (await home.api.status()).problems)
        .toEqual([expect.stringMatching(/^Runtime cluster cannot be reached: /)]);
      await cluster.controller.start();
      expect(await running.ended).toMatchObject({ code: 3, stdout: 'begun\ndone\n' });
      expect(await waiting.ended).toMatchObject({ code: 0, stdout: 'later\n' });
    });

    test.each([
      ['volume, with a shared folder', 'volumes: ["/no/such:/data"]', true, '/no/such does not exist there'],
      ['volume', 'volumes: ["/no/such:/data"]', false, '/no/such does not exist there'],
      ['module', 'slurm: { modules: [cuda/99] }', false, 'its command "module" is missing, which "modules" needs'],
      ['writable node_folder', '', false, "mkdir: cannot create directory '/no/such/onejob-.*': No such file or directory"],
    ])('says why agents do not begin on a node without a %s, and asks for few', async (what, keys, isShared, words) => {
      const own = what.endsWith('node_folder') ? 'node_folder: /no/such' : 'poll: 1s';
      const type = isShared ? runtimes() : `runtimes: { cluster: { type: slurm, ${cluster.keys}, ${own} } }\n`;
      const pool = ['runtime: cluster', 'agents: 1', ...(keys === '' ? [] : [keys])].join(', ');
      await using home = await onejob({ config: `${type}pools: { gpu: { ${pool} } }\n` });
      await home.up();
      const job = run(home, 'true');
      const why = new RegExp(`^The batch job did not reach its gate: it could not begin on node n[12]: ${words}\\.$`);
      await expect
        .poll(async () => (await home.api.status()).pools[0]?.backoff)
        .toMatchObject({ failures: isShared ? 2 : 1, reason: expect.stringMatching(why) });
      job.signal('SIGINT');
      expect((await job.ended).code).toBe(130);
      await expect.poll(() => jobsOf()).toEqual([]);
    });

    test('gives a job as many GPUs as it asks for', async () => {
      await using home = await gpus();
      await home.up();
      const job = home.run('--devices', '2', '--no-workspace', '--', 'sh', '-c', 'echo "gpus $SLURM_JOB_GPUS"');
      expect(await job.ended).toMatchObject({ code: 0, stdout: expect.stringMatching(/^gpus (0,1|2,3)\n$/) });
      await expect.poll(() => jobsOf()).toEqual([]);
    });

    test('says what an administrator did to a job', async () => {
      await using home = await gpus();
      await home.up();
      const job = run(home, 'sh', '-c', 'trap "" TERM; echo begun; sleep 600');
      await job.says(/begun/);
      const [id = ''] = (await cluster.run('squeue', '-h', '-o', '%i')).split('\n');
      await cluster.administer('scancel', id);
      const ended = await job.ended;
      expect(ended).toMatchObject({
        code: 125,
        stderr: expect.stringMatching(/on node n[12]: somebody cancelled it with scancel/),
      });
    });
  });
});
