/** One config file for this host, a real Slurm and a real Kubernetes: only `runtime` of the pool differs, and the results do not. */
import { expect, test } from 'vitest';
import { startKubernetes } from '../support/kubernetes.ts';
import { onejob } from '../support/onejob.ts';
import { pipeline } from '../support/pipeline.ts';
import { defaultImage, lacks } from '../support/require.ts';
import { startSlurm } from '../support/slurm.ts';

test.skipIf(lacks('slurm', 'bubblewrap', 'kubernetes'))(
  'the same pipeline has the same results on this host, on Slurm and on Kubernetes',
  async () => {
    await using slurm = await startSlurm();
    await using kubernetes = await startKubernetes({ gpus: 0 });
    await kubernetes.namespace('ci');
    await kubernetes.loadDockerImage(defaultImage);
    const config = (runtime: string): string => `
runtimes:
  slurm: { type: slurm, folder: "${slurm.folder}/onejob", conf: "${slurm.env.SLURM_CONF}", poll: 1s }
  kubernetes: { type: kubernetes, kubeconfig: "${kubernetes.kubeconfig}", namespace: ci }
pools:
  work:
    runtime: ${runtime}
    image: ${defaultImage} # only Kubernetes uses it
    pull: never
    agents: 4
    timeout: 30m
`;
    const found: unknown[] = [];
    for (const runtime of ['process', 'slurm', 'kubernetes']) {
      await using home = await onejob({ config: config(runtime) });
      await home.up();
      found.push(await pipeline(home, { results: null, joinsOutput: true }));
    }
    const [host, onSlurm, onKubernetes] = found;
    expect(host).toMatchObject({
      files: { log: 'why\n', 'part-1': '20\n', 'part-2': '19\n' },
      said: { failed: { code: 7 }, killed: { code: 137 }, unknown: { code: 127 }, late: { code: 124 } },
    });
    expect(onSlurm).toEqual(host);
    expect(onKubernetes).toEqual(host);
    expect(await slurm.run('squeue', '-h')).toBe('');
    expect(await kubernetes.kubectl('-n', 'ci', 'get', 'pods', '-o', 'name')).toBe('');
  },
);
