/** The main job on a real Kubernetes, and what only an engine that grants brings: a queue of its own, GPUs, and an API that is away. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { images } from '../support/images.ts';
import { type Kubernetes, startKubernetes, testedVersions } from '../support/kubernetes.ts';
import { mainJob } from '../support/main-job.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

describe.each(testedVersions)('Kubernetes $version', ({ version, need }) => {
  const isMissing = lacks(need);
  let cluster: Kubernetes;
  beforeAll(async () => {
    if (isMissing) return;
    cluster = await startKubernetes({ version });
    await cluster.namespace('ci');
  });
  afterAll(() => cluster?.[Symbol.asyncDispose]());

  const runtimes = (): string =>
    `runtimes: { cluster: { type: kubernetes, kubeconfig: "${cluster.kubeconfig}", namespace: ci } }\n`;
  const image = `image: "${images.base}", pull: never`;

  mainJob('Kubernetes', isMissing, `runtime: cluster, ${image}`, runtimes, { joinsOutput: true, hasFolders: false });

  describe.skipIf(isMissing)('a pool of Kubernetes', () => {
    const pool = (keys: string): Promise<Home> =>
      onejob({ config: `${runtimes()}pools: { gpu: { runtime: cluster, ${keys} } }\n` });
    const gpus = () => pool(`${image}, agents: 8, devices: 1`);
    const run = (home: Home, ...command: string[]) => home.run('--pool', 'gpu', '--no-workspace', '--', ...command);
    const pods = async (): Promise<string[]> =>
      (await cluster.kubectl('-n', 'ci', 'get', 'pods', '-o', 'name')).split('\n').filter((line) => line !== '');

    test('asks for a GPU only while a job waits, and says where it runs', async () => {
      await using home = await gpus();
      await home.up();
      expect(await pods()).toEqual([]);
      const job = run(home, 'sh', '-c', 'echo "gpu $NVIDIA_VISIBLE_DEVICES"; sleep 1');
      await job.says(/gpu GPU-fake-[01]\n/);
      const { pools } = await home.api.status();
      // Kubernetes tells which GPUs since 1.36.
      expect(pools[0]?.slots.map(({ note }) => note).filter((note) => note !== null)).toEqual([
        version === '1.37' ? expect.stringMatching(/^on node k1, GPU GPU-fake-[01]$/) : 'on node k1',
      ]);
      expect((await job.ended).code).toBe(0);
      await expect.poll(pods).toEqual([]);
    });

    test('runs as many at a time as there are GPUs, each with its own, and says what the others wait for', async () => {
      await using home = await gpus();
      await home.up();
      const jobs = Array.from({ length: 4 }, () =>
        run(home, 'sh', '-c', 'echo "$NVIDIA_VISIBLE_DEVICES"; while :; do sleep 0.1; done'),
      );
      await expect.poll(() => new Set(jobs.flatMap(({ stdout }) => (stdout === '' ? [] : [stdout]))).size).toBe(2);
      await expect
        .poll(async () =>
          (await home.api.status()).pools[0]?.slots.flatMap(({ note }) => (note?.startsWith('cluster: ') ? [note] : [])),
        )
        .toEqual(Array(2).fill(expect.stringMatching(/^cluster: waits for a node: .*Insufficient nvidia.com\/gpu/)));
      for (const job of jobs) job.signal('SIGINT');
      for (const { ended } of jobs) expect((await ended).code).toBe(130);
      await expect.poll(pods).toEqual([]);
    });

    test('keeps its places when the daemon is killed, and runs each job once', async () => {
      await using home = await gpus();
      const first = await home.up();
      const jobs = Array.from({ length: 4 }, (_, n) => run(home, 'sh', '-c', `echo begin ${n}; sleep 3; echo end ${n}; exit ${n}`));
      await expect.poll(async () => (await pods()).length).toBe(4);
      const before = await pods();
      await first.kill();
      await home.up();
      expect(before).toEqual(expect.arrayContaining(await pods()));
      for (const [n, { ended }] of jobs.entries()) expect(await ended).toMatchObject({ code: n, stdout: `begin ${n}\nend ${n}\n` });
      await expect.poll(pods).toEqual([]);
    });

    test('waits while the API server is away, and loses nothing of what runs', async () => {
      await using home = await gpus();
      await home.up();
      const running = run(home, 'sh', '-c', 'echo begun; sleep 8; echo done; exit 3');
      await running.says(/begun/);
      await cluster.apiserver.kill();
      const waiting = run(home, 'echo', 'later');
      await expect
        .poll(async () => (await home.api.status()).problems)
        .toEqual([expect.stringMatching(/^Cannot \w+ the pods of onejob with the Kubernetes API at .*: nothing listens there/)]);
      await cluster.apiserver.start();
      expect(await running.ended).toMatchObject({ code: 3, stdout: 'begun\ndone\n' });
      expect(await waiting.ended).toMatchObject({ code: 0, stdout: 'later\n' });
      await expect.poll(pods).toEqual([]);
    });

    test('says why an agent does not begin', async () => {
      await using home = await pool('image: "onejob-test/none:1", pull: never');
      await home.up();
      const job = run(home, 'true');
      await expect
        .poll(async () => (await home.api.status()).pools[0]?.backoff?.reason)
        .toMatch(/^Cannot start agent \w+ on node k1: ErrImageNeverPull: /);
      job.signal('SIGINT');
      expect((await job.ended).code).toBe(130);
      await expect.poll(pods).toEqual([]);
    });

    test('says what an administrator did to a job', async () => {
      await using home = await gpus();
      await home.up();
      const job = run(home, 'sh', '-c', 'trap "" TERM; echo begun; sleep 600');
      await job.says(/begun/);
      await cluster.kubectl('-n', 'ci', 'delete', '--wait=false', ...(await pods()));
      expect(await job.ended).toMatchObject({
        code: 125,
        stderr: expect.stringMatching(/Kubernetes ended it on node k1: somebody deleted its pod/),
      });
      await expect.poll(pods).toEqual([]);
    });

    test('tells a job that has used up its memory', async () => {
      await using home = await pool(`${image}, memory: 32MiB`);
      await home.up();
      const job = run(home, 'sh', '-c', 'x=$(head -c 200000000 /dev/zero | tr "\\0" x); echo "${#x}"');
      expect(await job.ended).toMatchObject({
        stderr: expect.stringMatching(/was killed because it used more memory than its limit of 32 MiB/),
      });
      await expect.poll(pods).toEqual([]);
    });

    test('a job that does not end is ended, with its last words', async () => {
      await using home = await pool(`${image}, timeout: 2s, stop_grace: 2s`);
      await home.up();
      const job = run(home, 'sh', '-c', 'trap "echo last words; exit 3" TERM; echo begun; while :; do sleep 0.1; done');
      expect(await job.ended).toMatchObject({ code: 124, stdout: 'begun\nlast words\n' });
    });
  });
});
