/** `runtimes` of the config, and pools that use one. */
import { afterAll, describe, expect, it } from 'vitest';
import { Folder } from '../../test/kit/config.ts';

const folder = new Folder();
afterAll(() => folder[Symbol.dispose]());

const cluster = 'runtimes: { cluster: { type: slurm, folder: /shared/onejob } }\n';
const resolved = async (text: string) => (await folder.load(text)).config;

describe('a pool whose runtime is an engine', () => {
  it('needs no devices of this host, and says what it wants of the engine', async () => {
    const { pools, runtimes } = await resolved(
      `${cluster}pools: { gpu: { runtime: cluster, devices: { count: 2, model: a100 }, timeout: 1h, slurm: { partition: gpu } } }\n`,
    );
    expect(runtimes).toEqual([
      { type: 'slurm', name: 'cluster', folder: '/shared/onejob', nodeFolder: '/tmp', path: null, conf: null, poll: 2_000 },
    ]);
    expect(pools[0]).toMatchObject({
      runtime: 'cluster',
      standby: false,
      devices: { count: 0 },
      recipe: {
        image: null,
        wants: {
          gpus: 2,
          model: 'a100',
          images: false,
          lifetime: 4_200_000,
          keys: { partition: 'gpu', sandbox: 'bubblewrap', modules: [] },
        },
      },
    });
  });

  it('keeps standbys only if it says so, and then they live longer', async () => {
    const { pools } = await resolved(
      `${cluster}pools: { gpu: { runtime: cluster, standby: true, standby_max_age: 1h, timeout: 1h } }\n`,
    );
    expect(pools[0]).toMatchObject({ standby: true, recipe: { wants: { gpus: 0, lifetime: 7_800_000 } } });
  });

  it('has the time that it names', async () => {
    const { pools } = await resolved(
      `${cluster}pools: { a: { runtime: cluster, timeout: 1h, slurm: { time: 30m } }, b: { runtime: cluster } }\n`,
    );
    expect(pools.map(({ recipe }) => recipe.wants?.lifetime)).toEqual([1_800_000, null]);
  });

  it('takes keys of "slurm" from defaults', async () => {
    const { pools } = await resolved(
      `${cluster}defaults: { runtime: cluster, slurm: { account: lab } }\npools: { a: { slurm: { qos: high } }, b: {} }\n`,
    );
    expect(pools.map(({ recipe }) => recipe.wants?.keys)).toMatchObject([{ account: 'lab', qos: 'high' }, { account: 'lab' }]);
  });
});

describe('a problem', () => {
  it.each([
    ['runtimes: { cluster: { type: slurm, folder: shared } }\n', 'runtimes.cluster.folder'],
    ['runtimes: { cluster: { type: slrum, folder: /a } }\n', 'unknown type of runtime; did you mean "slurm"?'],
    ['runtimes: { docker: { type: slurm, folder: /a } }\n', '"docker" is a runtime without an entry; choose another name'],
    [`${cluster}pools: { a: { runtime: clutser } }\n`, '"runtimes" has no "clutser"; did you mean "cluster"?'],
    [`${cluster}pools: { a: { runtime: cluster, agents: per-device } }\n`, 'write a number'],
    [`${cluster}pools: { a: { runtime: cluster, devices: all } }\n`, 'is all, but Slurm grants the devices: write a number'],
    [
      `${cluster}pools: { a: { runtime: cluster, devices: { count: 1, memory: 40GiB } } }\n`,
      'is not used: Slurm grants the devices',
    ],
    [
      `${cluster}pools: { a: { runtime: cluster, image: "debian:13" } }\n`,
      'is not used: "runtime" is cluster, which has no images',
    ],
    [`${cluster}pools: { a: { runtime: cluster, caches: ["c:/c"] } }\n`, 'it has no caches'],
    [`${cluster}pools: { a: { runtime: cluster, network: none } }\n`, 'jobs have the network of their node'],
    [`${cluster}pools: { a: { runtime: cluster, slurm: { partition: "a b" } } }\n`, '"a b" is not the name of a partition'],
    ['pools: { a: { runtime: process, slurm: { partition: gpu } } }\n', 'is not used: "runtime" is not of type slurm'],
  ])('of %s is told', async (text, said) => {
    expect((await folder.check(text)).join('\n')).toContain(said);
  });

  it('is told of a service that Slurm does not serve yet', async () => {
    const token = folder.write('token', 'x');
    const text = `${cluster}services: { bk: { type: buildkite, token: { file: ${token} } } }\npools: { a: { service: bk, runtime: cluster } }\n`;
    expect((await folder.check(text)).join('\n')).toContain('runs only jobs of the own queue so far');
  });
});
