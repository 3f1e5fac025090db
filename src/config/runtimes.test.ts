/** `runtimes` of the config, and pools that use one. */
import { afterAll, describe, expect, it } from 'vitest';
import { Folder } from '../../test/kit/config.ts';
import { lookAtHost } from './host-look.ts';

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
      {
        type: 'slurm',
        name: 'cluster',
        folder: '/shared/onejob',
        nodeFolder: '/tmp',
        path: null,
        conf: null,
        address: null,
        poll: 2_000,
      },
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
          folders: true,
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

  it('is called back at an address, with a port or without one', async () => {
    for (const address of ['10.0.0.1', '10.0.0.1:7443', '[fd00::1]:7443']) {
      const { runtimes } = await resolved(`runtimes: { cluster: { type: slurm, address: "${address}" } }\n`);
      expect(runtimes).toMatchObject([{ address }]);
    }
    const { runtimes } = await resolved('runtimes: { cluster: { type: kubernetes, address: "onejob.ci:7443" } }\n');
    expect(runtimes).toMatchObject([{ address: 'onejob.ci:7443' }]);
  });

  it('takes keys of "slurm" from defaults', async () => {
    const { pools } = await resolved(
      `${cluster}defaults: { runtime: cluster, slurm: { account: lab } }\npools: { a: { slurm: { qos: high } }, b: {} }\n`,
    );
    expect(pools.map(({ recipe }) => recipe.wants?.keys)).toMatchObject([{ account: 'lab', qos: 'high' }, { account: 'lab' }]);
  });
});

it('says nothing of what only this host has not: nodes have their own cores, memory and folders', async () => {
  const wants = 'agents: 500, cpus: 8, memory: 1TiB, volumes: ["/no/such:/x"]';
  expect(await folder.check(`${cluster}pools: { a: { runtime: cluster, ${wants} } }\n`, { look: lookAtHost })).toEqual([]);
});

describe('a problem', () => {
  it.each([
    ['runtimes: { cluster: { type: slurm, folder: shared } }\n', 'runtimes.cluster.folder'],
    ['runtimes: { cluster: { type: slurm, address: localhost:7443 } }\n', 'or with a port "10.0.0.1:7443"'],
    ['runtimes: { cluster: { type: slurm, address: 10.0.0.1:99999 } }\n', 'expected an IP address'],
    ['runtimes: { cluster: { type: slurm, address: onejob:7443 } }\n', 'expected an IP address'],
    ['runtimes: { cluster: { type: kubernetes, address: onejob } }\n', 'or a name with a port such as "onejob:7443"'],
    ['runtimes: { cluster: { type: kubernetes, address: localhost:7443 } }\n', 'or a name with a port such as "onejob:7443"'],
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

  it.each([
    ['{ sandbox: apptainer }', 'pools.a.slurm.sandbox: is apptainer, which makes a container from an image; add "image"'],
    ['{ image: /shared/a.sif }', 'pools.a.slurm.image: is not used: "sandbox" is bubblewrap'],
    ['{ sandbox: pyxis, image: "docker://debian" }', null],
  ])('with slurm %s is told: %s', async (keys, said) => {
    const found = (await folder.check(`${cluster}pools: { a: { runtime: cluster, slurm: ${keys} } }\n`)).join('\n');
    if (said === null) expect(found).not.toContain('slurm');
    else expect(found).toContain(said);
    const alone = `runtimes: { cluster: { type: slurm } }\npools: { a: { runtime: cluster, slurm: ${keys} } }\n`;
    if (said === null) expect((await folder.check(alone)).join('\n')).toContain('needs a "folder" of the runtime');
  });

  const inImage = 'slurm: { sandbox: apptainer, image: /shared/agent.sif }';

  const services = () => {
    const token = `token: { file: ${folder.write('token', 'x')} }`;
    const github = `type: github, ${token}`;
    const gitea = `type: gitea, url: https://git.example, ${token}`;
    return `services: { bk: { type: buildkite, ${token} }, early: { ${gitea} }, late: { ${gitea}, binding: late }, gh: { ${github} }, sets: { ${github}, mode: scale-set }, engine: { ${github}, docker: { socket: /run/d.sock, folder: /srv/jobs } }, az: { type: azure-pipelines, url: https://dev.azure.com/acme, ${token} } }\n`;
  };

  it.each([
    ['{ a: { service: bk, runtime: cluster } }', 'pools.a.trust.network: is "internet", but "runtime" is cluster, of type slurm'],
    [
      '{ a: { service: bk, runtime: cluster, trust: { network: default }, slurm: { sandbox: none } } }',
      'is "none", but "service" is bk, whose agent needs a sandbox',
    ],
    [
      '{ a: { service: bk, runtime: cluster, trust: { network: default } }, b: { runtime: cluster, slurm: { sandbox: none } } }',
      'pools.a.isolation: is full, but jobs of cluster are all of the same user, and pool b has "sandbox: none"',
    ],
    [
      '{ a: { service: early, queue: acme, runtime: cluster } }',
      'pools.a.standby: is false, but "service" is early, which gives jobs only',
    ],
    [
      '{ a: { service: gh, queue: acme, runtime: cluster } }',
      'pools.a.slurm.sandbox: is "bubblewrap", but "service" is gh, whose agent is part of an image: there would be no agent; write "sandbox: apptainer" or',
    ],
    [
      '{ a: { service: az, runtime: cluster, standby: true, slurm: { sandbox: none } } }',
      'pools.a.slurm.sandbox: is "none", but "service" is az, whose agent is part of an image',
    ],
    [
      `{ a: { service: az, runtime: cluster, ${inImage} } }`,
      'pools.a.standby: is false, but "service" is az, which gives jobs only to agents that wait already',
    ],
    [
      `{ a: { service: gh, queue: acme, runtime: cluster, ${inImage} } }`,
      'pools.a.standby: is false, but "service" is gh, which gives jobs only to agents that wait already',
    ],
    [
      `{ a: { service: engine, queue: acme, runtime: cluster, ${inImage} } }`,
      'pools.a.runtime: is cluster, but "service" is engine, whose "docker" is an Engine and a folder of this host',
    ],
  ])('of a pool of a service is told: %s', async (pools, said) => {
    expect((await folder.check(`${cluster}${services()}pools: ${pools}\n`)).join('\n')).toContain(said);
  });

  it.each([
    '{ a: { service: bk, runtime: cluster, trust: { network: default } } }',
    '{ a: { service: bk, runtime: cluster, trust: { forks: refuse, others: refuse } }, b: { runtime: cluster } }',
    '{ a: { service: late, queue: acme, runtime: cluster, trust: { others: refuse, forks: refuse } } }',
    '{ a: { service: early, queue: acme, runtime: cluster, standby: true } }',
    `{ a: { service: az, runtime: cluster, standby: true, devices: 1, ${inImage} } }`,
    `{ a: { service: gh, queue: acme, runtime: cluster, standby: true, ${inImage} } }`,
    `{ a: { service: gh, queue: acme/one, runtime: cluster, devices: 1, ${inImage} } }`,
    `{ a: { service: sets, queue: acme, runtime: cluster, devices: 1, ${inImage} } }`,
  ])('a pool of a service on it is sound: %s', async (pools) => {
    expect((await folder.check(`${cluster}${services()}pools: ${pools}\n`)).filter((line) => line.includes('pools.'))).toEqual([]);
  });
});

describe('Kubernetes', () => {
  const ci = 'runtimes: { ci: { type: kubernetes, namespace: ci } }\n';

  it('says what a pool wants of it', async () => {
    const { pools, runtimes } = await resolved(
      `${ci}pools: { a: { runtime: ci, image: "debian:13", devices: { count: 2, model: A100 }, timeout: 1h, kubernetes: { claims: ["data:/data", "out:/out:rw"] } } }\n`,
    );
    expect(runtimes).toEqual([{ type: 'kubernetes', name: 'ci', kubeconfig: null, context: null, namespace: 'ci', address: null }]);
    expect(pools[0]?.recipe).toMatchObject({
      image: 'debian:13',
      wants: {
        gpus: 2,
        model: 'A100',
        images: true,
        folders: false,
        lifetime: 70 * 60_000,
        keys: {
          resource: 'nvidia.com/gpu',
          claims: [
            { claim: 'data', path: '/data', writable: false },
            { claim: 'out', path: '/out', writable: true },
          ],
        },
      },
    });
    expect(pools[0]?.standby).toBe(false);
  });

  it.each([
    ['image: auto', 'pools.a.image: is to be built, but "runtime" is ci, of type kubernetes'],
    ['user: builder', 'pools.a.user: is builder, but "runtime" is ci, of type kubernetes, which knows users by number'],
    ['user: "0", kubernetes: { security: restricted }', 'pools.a.user: is root'],
    ['network: host', 'pools.a.network: is "host", but "runtime" is ci, of type kubernetes: write "default", "internet" or "none"'],
    ['network: lab', 'pools.a.network: is "lab", but "runtime" is ci, of type kubernetes'],
    ['volumes: ["/data:/data"]', 'pods see none of them; use "claims" of "kubernetes"'],
    ['caches: ["c:/c"]', 'pods see none of them; use "claims" of "kubernetes"'],
    ['agents: per-device', 'write a number'],
    ['kubernetes: { claims: ["data"] }', 'expected a claim such as "imagenet:/datasets/imagenet"'],
    ['kubernetes: { queue: "a b" }', '"a b" is not the name of a LocalQueue'],
    ['slurm: { partition: gpu }', 'is not used: "runtime" is not of type slurm'],
  ])('says what is wrong with "%s"', async (keys, said) => {
    expect((await folder.check(`${ci}pools: { a: { runtime: ci, ${keys} } }\n`)).join('\n')).toContain(said);
  });

  const service = () => `services: { bk: { type: buildkite, token: { file: ${folder.write('token', 'x')} } } }\n`;
  const pool = (keys: string): string =>
    `pools: { a: { runtime: ci, service: bk, image: "debian:13", kubernetes: { security: restricted }, ${keys} } }\n`;

  it.each([
    ['trust: { network: lab }', 'pools.a.trust.network: is "lab", but "runtime" is ci, of type kubernetes; write "internet"'],
    ['network: none', 'pools.a.network: is "none", but "service" is bk'],
  ])('says what is wrong with a pool of a service that has "%s"', async (keys, said) => {
    expect((await folder.check(`${ci}${service()}${pool(keys)}`)).join('\n')).toContain(said);
  });

  it.each(['devices: 1', 'network: internet', 'trust: { network: default }'])(
    'takes untrusted jobs of a service with "%s"',
    async (keys) => {
      expect((await folder.check(`${ci}${service()}${pool(keys)}`)).filter((line) => line.includes('pools.'))).toEqual([]);
    },
  );

  it.each(['internet', 'none'])('takes network: %s', async (network) => {
    expect((await folder.check(`${ci}pools: { a: { runtime: ci, network: ${network} } }\n`)).join('\n')).not.toContain('network');
  });

  const services = () => {
    const token = `token: { file: ${folder.write('token', 'x')} }`;
    const github = `type: github, ${token}`;
    const gitea = `type: gitea, url: https://git.example, ${token}`;
    return `services: { bk: { type: buildkite, ${token} }, early: { ${gitea} }, gh: { ${github} }, sets: { ${github}, mode: scale-set }, engine: { ${github}, docker: { socket: /run/d.sock, folder: /srv/jobs } }, there: { ${github}, agent: { folder: /opt/runner } }, az: { type: azure-pipelines, url: https://dev.azure.com/acme, ${token} } }\n`;
  };

  it.each([
    ['service: bk', 'pools.a.kubernetes.security: is not restricted, but the pool accepts untrusted jobs'],
    ['service: early, queue: acme', 'pools.a.standby: is false, but "service" is early, which gives jobs only'],
    ['service: az', 'pools.a.standby: is false, but "service" is az, which gives jobs only to agents that wait already'],
    ['service: gh, queue: acme', 'pools.a.standby: is false, but "service" is gh, which gives jobs only'],
    ['service: az, standby: true, image: auto', 'pools.a.image: is to be built, but "runtime" is ci, of type kubernetes'],
    ['service: engine, queue: acme, standby: true', 'pools.a.runtime: is ci, but "service" is engine, whose "docker" is an Engine'],
    ['service: there, queue: acme, standby: true', 'pools.a.runtime: is ci, but "service" is there, whose "agent.folder" is a'],
  ])('of a pool of a service is told: %s', async (keys, said) => {
    const pools = `pools: { a: { runtime: ci, image: "agent:1", ${keys} } }\n`.replace(/image: "agent:1", (.*image:)/, '$1');
    expect((await folder.check(`${ci}${services()}${pools}`)).join('\n')).toContain(said);
  });

  it.each([
    'service: bk, trust: { forks: refuse, others: refuse }',
    'service: bk, trust: { network: default }, user: "1000", kubernetes: { security: restricted }',
    'service: early, queue: acme, standby: true',
    'service: az, standby: true, devices: 1',
    'service: gh, queue: acme, standby: true',
    'service: gh, queue: acme/one, devices: 1',
    'service: sets, queue: acme, devices: 1',
  ])('a pool of a service on it is sound: %s', async (keys) => {
    const said = await folder.check(`${ci}${services()}pools: { a: { runtime: ci, image: "agent:1", ${keys} } }\n`);
    expect(said.filter((line) => line.includes('pools.'))).toEqual([]);
  });
});
