/** Many jobs on a real Kubernetes, while the daemon, the API server and the whole control plane are killed. */
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { images } from '../support/images.ts';
import { type Kubernetes, startKubernetes, testedVersions } from '../support/kubernetes.ts';
import { onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

const jobs = 200;

/** All that is not on a node, at once; and again. */
async function restartControlPlane({ etcd, apiserver, controllerManager, scheduler }: Kubernetes): Promise<void> {
  const all = [etcd, apiserver, controllerManager, scheduler];
  await Promise.all(all.map((one) => one.kill()));
  await sleep(2_000 * Math.random());
  for (const one of all) await one.start();
}

describe.each(testedVersions)('Kubernetes $version', ({ version, need }) => {
  test.skipIf(lacks(need))(
    `${jobs} jobs, with kills of all of them: each runs once, none is lost, and no two share a GPU`,
    async () => {
      await using cluster = await startKubernetes({ version, gpus: 4 });
      await cluster.namespace('ci');
      await using home = await onejob({
        config: `
runtimes: { cluster: { type: kubernetes, kubeconfig: "${cluster.kubeconfig}", namespace: ci } }
pools: { gpu: { runtime: cluster, agents: 8, devices: 1, image: "${images.base}", pull: never } }
`,
      });
      let daemon = await home.up();
      // Hundredths of a second since the machine was started, which all pods share.
      const script = 'now() { read t _ </proc/uptime; }; now; a=$t; sleep 0.4; now; echo "$NVIDIA_VISIBLE_DEVICES $a $t"';
      const words = ['--pool', 'gpu', '--no-workspace', '--detach', '--array', `0-${jobs - 1}`];
      const array = await home.run(...words, '--', 'sh', '-c', script).ended;
      expect(array, array.stderr).toMatchObject({ code: 0 });

      const all = () => home.api.jobs({ all: true, pool: null });
      const waiting = async (): Promise<number> => (await all()).filter(({ state }) => state !== 'done').length;
      for (const at of [170, 140, 110, 80, 50]) {
        await expect.poll(waiting, { timeout: 180_000, interval: 250 }).toBeLessThan(at);
        if (at === 110) {
          await restartControlPlane(cluster);
        } else if (at === 140) {
          await cluster.apiserver.kill();
          await sleep(2_000 * Math.random());
          await cluster.apiserver.start();
        } else {
          await daemon.kill();
          await sleep(1_000 * Math.random());
          daemon = await home.up();
        }
      }
      await expect.poll(waiting, { timeout: 300_000, interval: 500 }).toBe(0);

      const ended = await all();
      expect(ended).toHaveLength(jobs);
      const bad = ended.filter(({ result }) => result?.kind !== 'code' || result.code !== 0);
      expect(bad.map(({ id, result }) => ({ id, result }))).toEqual([]);
      const byGpu = new Map<string, (readonly [number, number])[]>();
      for (const { id } of ended) {
        const { stdout } = await home.cli(['logs', id]).ended;
        const [, gpu = '', from, to] = /^(GPU-fake-\d) ([\d.]+) ([\d.]+)\n$/.exec(stdout) ?? [];
        expect(gpu, `job ${id} said ${JSON.stringify(stdout)}`).not.toBe('');
        byGpu.set(gpu, [...(byGpu.get(gpu) ?? []), [Number(from), Number(to)]]);
      }
      expect([...byGpu.keys()].toSorted()).toEqual([0, 1, 2, 3].map((n) => `GPU-fake-${n}`));
      for (const [gpu, times] of byGpu) {
        times.sort(([one], [other]) => one - other);
        for (const [at, [from]] of times.entries()) expect(from, gpu).toBeGreaterThanOrEqual(times[at - 1]?.[1] ?? 0);
      }
      await expect.poll(() => cluster.kubectl('-n', 'ci', 'get', 'pods', '-o', 'name')).toBe('');
    },
  );
});
