/** `network: internet` and `none` on a real Kubernetes: one whose network keeps policies, by kube-router, and one whose network ignores them. */
import { execFileSync } from 'node:child_process';
import { copyFileSync, mkdirSync } from 'node:fs';
import { createServer, type Server } from 'node:net';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Runtime } from '../../src/ports/runtime.ts';
import { frame } from '../../src/runtimes/gate.ts';
import { networkRights, rights } from '../../src/runtimes/kubernetes/check.ts';
import { completePool } from '../../src/runtimes/kubernetes/config.ts';
import { accessOf } from '../../src/runtimes/kubernetes/kubeconfig.ts';
import { createKubernetesRuntime } from '../../src/runtimes/kubernetes/kubernetes.ts';
import { systemClock } from '../../src/system/system-clock.ts';
import { plainRecipe } from '../kit/process-runtime.ts';
import { follow, specOf } from '../kit/runtime-contract/contract.ts';
import type { JobView } from '../standins/buildkite/standin.ts';
import { buildkiteBench, expectClean } from '../support/buildkite.ts';
import { fork, theAgent } from '../support/buildkite-days.ts';
import { images } from '../support/images.ts';
import { type Kubernetes, type KubernetesOptions, podSecurity, startKubernetes } from '../support/kubernetes.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { defaultImage, lacks } from '../support/require.ts';
import { scratch } from '../support/scratch.ts';

const never = new AbortController().signal;
const [door, closed] = [18_443, 18_444];

/** A cluster that the tests of a block share. */
function shared(options: KubernetesOptions): () => Kubernetes {
  let cluster: Kubernetes;
  beforeAll(async () => {
    cluster = await startKubernetes(options);
    await cluster.namespace('ci', podSecurity('restricted'));
  }, 300_000);
  afterAll(() => cluster?.[Symbol.asyncDispose]());
  return () => cluster;
}

/** A runtime with the rights of the documented role, and no others. */
async function runtimeIn(cluster: Kubernetes, owner = 'me'): Promise<Runtime> {
  const rules = [...rights, ...networkRights].map(({ group, resource, verbs }) => ({
    apiGroups: [group],
    resources: [resource],
    verbs,
  }));
  const kubeconfig = await cluster.kubeconfigFor('ci', rules);
  const { address } = cluster;
  const config = { type: 'kubernetes', name: 'cluster', kubeconfig, context: null, namespace: 'ci', address } as const;
  return createKubernetesRuntime({ config, access: await accessOf(config, systemClock), owner, clock: systemClock });
}

const specFor = (network: string, image: string = images.base) => {
  const keys = { ...completePool({}), security: 'restricted' as const };
  const wants = { gpus: 0, model: null, images: true, folders: false, lifetime: null, keys };
  return specOf({ ...plainRecipe, image, pull: 'never', network, user: '1000', wants });
};

/** What a job on this network prints, once its agent is there. `between`: done before it begins. */
async function job(runtime: Runtime, network: string, script: string, between: () => Promise<unknown> = async () => {}) {
  const spec = specFor(network);
  const said: string[] = [];
  await runtime.prepare(spec, (line) => said.push(line), never);
  await between();
  const log = follow(runtime, spec.agent);
  await runtime.release(spec.agent, frame(spec.agent, script), never);
  await log.ended;
  await runtime.remove(spec.agent);
  return { output: log.text(), said };
}

/** Says whether a connection is there. */
const reach = (name: string, host: string, port: number | string): string =>
  `nc -w 2 ${host} ${port} </dev/null >/dev/null 2>&1 && echo ${name}: reached || echo ${name}: not reached`;

const probes = (cluster: Kubernetes): Promise<string> =>
  cluster.kubectl('-n', 'ci', 'get', 'pods', '-l', 'onejob/probe', '-o', 'name');
const policies = (cluster: Kubernetes): Promise<string> => cluster.kubectl('-n', 'ci', 'get', 'networkpolicies', '-o', 'name');

const homeOf = (cluster: Kubernetes, keys: string): Promise<Home> =>
  onejob({
    config: `
runtimes: { cluster: { type: kubernetes, kubeconfig: "${cluster.kubeconfig}", namespace: ci } }
pools: { net: { runtime: cluster, agents: 2, pull: never, user: "1000", kubernetes: { security: restricted }, ${keys} } }
`,
  });

/** What `doctor` says, on one line. */
const doctorOf = async (home: Home): Promise<string> => (await home.cli(['doctor']).ended).stdout.replaceAll(/\s+/g, ' ');

describe.skipIf(lacks('kubernetesNetwork'))('a cluster whose network plugin keeps network policies', () => {
  const cluster = shared({ network: true });
  let runtime: Runtime;
  let server: Server;
  /** Of this machine, and not private: 6to4's relays are given up, so nobody has it. */
  let outside: string;
  let neighbour: string;

  beforeAll(async () => {
    const { address, kubectl } = cluster();
    runtime = await runtimeIn(cluster());
    const [, , number = ''] = address.split('.');
    outside = `192.88.99.${number}`;
    execFileSync('ip', ['address', 'add', `${outside}/32`, 'dev', `ojk${number}-1`]);
    const listener = (port: number) =>
      new Promise<Server>((resolve) => {
        const one = createServer((socket) => socket.on('error', () => {}).end());
        one.listen(port, () => resolve(one));
      });
    const [first, second] = await Promise.all([listener(door), listener(closed)]);
    server = first;
    first.on('close', () => second.close());
    const run = ['run', 'neighbour', `--image=${images.base}`, '--image-pull-policy=Never', '--restart=Never', '--command', '--'];
    await kubectl(...run, 'sh', '-c', 'while :; do nc -l -p 80 </dev/null; done');
    await kubectl('wait', '--for=condition=Ready', 'pod/neighbour', '--timeout=60s');
    neighbour = await kubectl('get', 'pod', 'neighbour', '-o', 'jsonpath={.status.podIP}');
  });
  afterAll(() => {
    server?.close();
    runtime?.close?.();
  });

  const all = (): string => {
    const { address, server: api } = cluster();
    return [
      reach('neighbour', neighbour, 80),
      reach('api', address, new URL(api).port),
      reach('door', address, door),
      reach('closed', address, closed),
      reach('outside', outside, closed),
    ].join('\n');
  };

  test('leads to public addresses and to doors of this host with internet, and nowhere with none', async () => {
    const open = await job(runtime, 'default', all());
    expect(open.output.match(/^\w+: .*$/gm)).toEqual(
      ['neighbour', 'api', 'door', 'closed', 'outside'].map((name) => `${name}: reached`),
    );
    expect(open.said.join('\n')).not.toContain('network');
    const internet = await job(runtime, 'internet', `sleep 2\n${all()}`, () => runtime.hostAddress('internet', door, never));
    expect(internet.output.match(/^\w+: .*$/gm)).toEqual([
      'neighbour: not reached',
      'api: not reached',
      'door: reached',
      'closed: not reached',
      'outside: reached',
    ]);
    expect(internet.said).toContain('cluster: tries whether the cluster keeps network internet');
    const none = await job(runtime, 'none', all());
    expect(none.output.match(/: reached/g)).toBeNull();
    await expect.poll(() => probes(cluster())).toBe('');
  });

  test('tries it once, and again when somebody has changed the policy, which is restored', async () => {
    const first = await runtimeIn(cluster(), 'changes');
    const tries = async () => (await job(first, 'none', 'true')).said.some((line) => line.includes('tries whether'));
    expect(await tries()).toBe(true);
    expect(await tries()).toBe(false);
    const name = 'onejob-changes-none';
    await cluster().kubectl('-n', 'ci', 'delete', 'networkpolicy', name);
    await first.list(never);
    expect(await policies(cluster())).toContain(name);
    expect(await tries()).toBe(true);
    const patch = '{"spec":{"egress":[{}]}}';
    await cluster().kubectl('-n', 'ci', 'patch', 'networkpolicy', name, '--type=merge', '-p', patch);
    expect(await tries()).toBe(true);
    expect((await first.check(never)).map(({ message }) => message)).toContain(
      'The cluster keeps network none: pods have tried it.',
    );
    await first.sweep(never);
    expect(await policies(cluster())).not.toContain(name);
    first.close?.();
  });

  test('keeps the doors of an onejob that was away, and no policy that no pod needs', async () => {
    const owner = 'doors';
    const [first, second] = [await runtimeIn(cluster(), owner), await runtimeIn(cluster(), owner)];
    expect(await first.hostAddress('internet', 7001, never)).toBe(cluster().address);
    await second.hostAddress('internet', 7002, never);
    const name = `onejob-${owner}-internet`;
    const egress = await cluster().kubectl(
      '-n',
      'ci',
      'get',
      'networkpolicy',
      name,
      '-o',
      'jsonpath={.spec.egress[*].ports[*].port}',
    );
    expect(egress.split(' ')).toEqual(['53', '53', '7001', '7002']);
    await expect(first.hostAddress('none', 7001, never)).rejects.toMatchObject({ code: 'E_NO_DOOR' });
    const spec = specFor('internet');
    await second.prepare(spec, () => {}, never);
    await second.sweep(never);
    expect(await policies(cluster())).toContain(name);
    await second.remove(spec.agent);
    await second.sweep(never);
    expect(await policies(cluster())).not.toContain(name);
    first.close?.();
    second.close?.();
  });

  test('says so when another policy of the namespace allows more', async () => {
    const other = await runtimeIn(cluster(), 'allowed');
    await cluster().apply({
      apiVersion: 'networking.k8s.io/v1',
      kind: 'NetworkPolicy',
      metadata: { name: 'all-out', namespace: 'ci' },
      spec: { podSelector: { matchLabels: { 'onejob/owner': 'allowed' } }, policyTypes: ['Egress'], egress: [{}] },
    });
    await expect(other.prepare(specFor('internet'), () => {}, never)).rejects.toMatchObject({
      code: 'E_NETWORK_UNGUARDED',
      message: expect.stringContaining('a pod that it selects reached another one, on node k1'),
    });
    await other.sweep(never);
    other.close?.();
  });

  test.skipIf(lacks('docker', 'image'))('tries it with what the image has, and says when that is nothing', async () => {
    await cluster().loadDockerImage(defaultImage);
    using folder = scratch();
    // Busybox' own shell has all its programs.
    const libraries = execFileSync('ldd', ['/bin/dash'], { encoding: 'utf8' }).match(/\/\S+/g) ?? [];
    for (const [from, to] of [['/bin/dash', '/bin/sh'], ...libraries.map((path) => [path, path])]) {
      mkdirSync(join(folder.path, dirname(`${to}`)), { recursive: true });
      copyFileSync(`${from}`, join(folder.path, `${to}`));
    }
    await cluster().loadImage(folder.path, 'made-of/shell:1');
    const other = await runtimeIn(cluster(), 'tools');
    await expect(other.prepare(specFor('none', 'made-of/shell:1'), () => {}, never)).rejects.toMatchObject({
      code: 'E_NETWORK_UNGUARDED',
      message: expect.stringContaining('image "made-of/shell:1" has neither perl nor python3 nor nc'),
    });
    const spec = specFor('none', defaultImage);
    await other.prepare(spec, () => {}, never);
    await other.remove(spec.agent);
    await other.sweep(never);
    other.close?.();
  });

  test.skipIf(lacks('docker', 'image', 'buildkiteAgent', 'openssl'))(
    "runs a stranger's job of Buildkite, which reaches the filter and nothing else that is private",
    async () => {
      const { address, server: api, kubeconfig } = cluster();
      await cluster().loadDockerImage(defaultImage);
      await using bench = await buildkiteBench(theAgent(), { lostMs: 15_000, publicHost: address });
      const { buildkite, tokenFile } = bench;
      await using here = await onejob({
        config: `
runtimes: { cluster: { type: kubernetes, kubeconfig: "${kubeconfig}", namespace: ci, address: ${address} } }
services: { bk: { type: buildkite, endpoint: "${buildkite.endpoint}", token: { file: ${tokenFile} }, poll: 2s, agent: { from: ${theAgent()} } } }
pools:
  bk: { service: bk, queue: default, runtime: cluster, agents: 1, image: "${defaultImage}", pull: never, user: "1000", kubernetes: { security: restricted } }
`,
      });
      await here.up();
      const script = [
        'echo "network $(hostname) of $(id -u)"',
        'reach() { timeout 3 bash -c "exec 3<>/dev/tcp/$2/$3" 2>/dev/null && echo "$1: reached" || echo "$1: not reached"; }',
        `reach neighbour ${neighbour} 80`,
        `reach api ${address} ${new URL(api).port}`,
        `reach buildkite ${address} ${new URL(buildkite.endpoint).port}`,
        `reach closed ${address} ${closed}`,
        `reach outside ${outside} ${closed}`,
        'at=${BUILDKITE_AGENT_ENDPOINT#https://}; at=${at%%/*}; reach filter ${at%:*} ${at#*:}',
        'buildkite-agent meta-data set told yes && echo "told: $(buildkite-agent meta-data get told)"',
        'exit 3',
      ].join('\n');
      const saidBy = ({ log }: JobView) => log.match(/^\w+: .*$/gm)?.map((line) => line.trim());
      const stranger = await bench.job(script, fork);
      expect([stranger.exit, saidBy(stranger)], stranger.log).toEqual([
        3,
        [
          'neighbour: not reached',
          'api: not reached',
          'buildkite: not reached',
          'closed: not reached',
          'outside: reached',
          'filter: reached',
          'told: yes',
        ],
      ]);
      const trusted = await bench.job(script);
      expect(saidBy(trusted)).toContain('neighbour: reached');
      expect(await doctorOf(here)).toContain('The cluster keeps network internet: pods have tried it.');
      expect((await here.cli(['down']).ended).code).toBe(0);
      expectClean(bench);
    },
    120_000,
  );

  test('leaves nothing when it is killed while it tries', async () => {
    await using home = await homeOf(cluster(), `image: "${images.base}", network: internet`);
    const before = await policies(cluster());
    const daemon = await home.up();
    const waiting = home.run('--pool', 'net', '--no-workspace', '--', 'echo', 'done');
    await expect.poll(async () => (await probes(cluster())).split('\n').length).toBe(4);
    await daemon.kill();
    const left = await probes(cluster());
    await home.up();
    expect(await waiting.ended).toMatchObject({ code: 0, stdout: 'done\n' });
    for (const name of left.trim().split('\n')) await expect.poll(() => probes(cluster())).not.toContain(name);
    expect(await doctorOf(home)).toContain('The cluster keeps network internet: pods have tried it.');
    expect((await home.cli(['down']).ended).code).toBe(0);
    await expect.poll(() => probes(cluster())).toBe('');
    expect(await policies(cluster())).toBe(before);
  });
});

describe.skipIf(lacks('kubernetes'))('a cluster without a network plugin that keeps them', () => {
  const cluster = shared({});

  test.each(['internet', 'none'])('runs nothing with network: %s, and says why', async (network) => {
    await using home = await homeOf(cluster(), `image: "${images.base}", network: ${network}`);
    await home.up();
    const job = home.run('--pool', 'net', '--no-workspace', '--', 'echo', 'ran');
    const why = `the cluster does not keep policy onejob-\\S+-${network}: a pod that it selects reached another one, on node k1`;
    await expect
      .poll(async () => (await home.api.status()).pools[0]?.backoff?.reason, { timeout: 90_000 })
      .toMatch(new RegExp(`^Cannot keep jobs on network "${network}" from the cluster and private networks: ${why}`));
    expect(await doctorOf(home)).toMatch(new RegExp(`${why}. \\(E_NETWORK_UNGUARDED\\)`));
    job.signal('SIGINT');
    expect(await job.ended).toMatchObject({ code: 130, stdout: '' });
    await home.cli(['down']).ended;
    await expect.poll(() => probes(cluster())).toBe('');
    expect(await policies(cluster())).toBe('');
  });
});
