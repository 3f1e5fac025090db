/** What ends a job on a real Kubernetes, and what onejob says of it; what only seems to end one; and cards that are not fit. */
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { parse } from 'yaml';
import type { Child } from '../support/child.ts';
import { baseRoot, images } from '../support/images.ts';
import { type Kubernetes, type KubernetesOptions, type Rule, startKubernetes } from '../support/kubernetes.ts';
import { mainJob } from '../support/main-job.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';
import { scratch } from '../support/scratch.ts';

const runtimeOf = ({ kubeconfig }: Kubernetes): string =>
  `runtimes: { cluster: { type: kubernetes, kubeconfig: "${kubeconfig}", namespace: ci } }\n`;

/** A pool whose agents have one GPU each. `more`: other keys, as YAML. */
const poolOf = (more = '', image: string = images.base): string =>
  `{ runtime: cluster, agents: 8, devices: 1, image: "${image}", pull: never${more} }`;

function run(home: Home, script: string, pool = 'gpu'): Child {
  return home.run('--pool', pool, '--no-workspace', '--', 'sh', '-c', script);
}

/** Says on which card it has begun, and does not end by itself. */
const stays = 'echo "begun on $NVIDIA_VISIBLE_DEVICES"; while :; do sleep 0.1; done';

const isLost = (reason: string) => ({
  code: 125,
  stderr: expect.stringMatching(new RegExp(`^onejob: job \\w+ was lost: Kubernetes ended it on node ${reason}$`, 'm')),
});

/** Of jobs that wait until they are told to continue. */
interface Signals extends AsyncDisposable {
  /** A shell condition: whether `name` was set. */
  is(name: string): string;
  set(name: string): void;
}

async function signalsOf({ address }: Kubernetes): Promise<Signals> {
  const known = new Set<string>();
  const server = createServer(({ url }, answer) => {
    answer.writeHead(known.has(`${url}`) ? 200 : 404).end();
  }).listen(0, address);
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  return {
    is: (name) => `wget -q -O /dev/null http://${address}:${port}/${name} 2>/dev/null`,
    set: (name) => known.add(`/${name}`),
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      server.close();
    },
  };
}

/** A cluster that the tests of a block share. */
function shared(options: KubernetesOptions, isMissing: boolean, ready: (cluster: Kubernetes) => Promise<void> = async () => {}) {
  let cluster: Kubernetes;
  beforeAll(async () => {
    if (isMissing) return;
    cluster = await startKubernetes(options);
    await cluster.namespace('ci');
    await ready(cluster);
  }, 300_000);
  afterAll(() => cluster?.[Symbol.asyncDispose]());
  return new Proxy({} as Kubernetes, { get: (_, key) => Reflect.get(cluster, key) });
}

const podsOf = async ({ kubectl }: Kubernetes): Promise<string[]> =>
  (await kubectl('-n', 'ci', 'get', 'pods', '-o', 'name')).split('\n').filter((line) => line !== '');

/** No pod of onejob is left. */
async function leavesNothing(cluster: Kubernetes): Promise<void> {
  await expect.poll(() => podsOf(cluster)).toEqual([]);
}

const isReady = async ({ kubectl }: Kubernetes, node: string): Promise<string> =>
  kubectl('get', 'node', node, '-o', 'jsonpath={.status.conditions[?(@.type=="Ready")].status}');

/** Fails on the node whose card is the first one. */
const noCard = 'Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error';

async function loadBadImage(cluster: Kubernetes): Promise<void> {
  const { path } = scratch();
  const root = join(path, 'root');
  mkdirSync(root);
  writeFileSync(join(path, 'root.tar'), await baseRoot());
  execFileSync('tar', ['-C', root, '-xf', join(path, 'root.tar')]);
  const script = `[ "$NVIDIA_VISIBLE_DEVICES" != GPU-fake-0 ] || { echo "${noCard}"; exit 15; }\n[ "$1" != -L ] || echo "GPU 0: A100"`;
  writeFileSync(join(root, 'bin', 'nvidia-smi'), `#!/bin/sh\n${script}\n`, { mode: 0o755 });
  await cluster.loadImage(root, 'onejob-test/bad-card:1');
}

const isMissing = lacks('kubernetes');

describe.skipIf(isMissing)('onejob says', () => {
  // For whatever comes next.
  afterEach(() => Promise.all(['k1', 'k2'].map((node) => cluster.kubectl('uncordon', node))));
  const cluster = shared({ nodes: 2, gpus: 1 }, isMissing, loadBadImage);
  const homeOf = (...pools: readonly string[]): Promise<Home> =>
    onejob({
      config: `${runtimeOf(cluster)}pools: { ${pools.length === 0 ? `gpu: ${poolOf()}` : pools.join(', ')} }\n`,
    });
  /** The node on which such a job has begun. */
  const nodeOf = async (job: Child): Promise<string> => `k${Number((await job.says(/begun on GPU-fake-(\d)/))[1]) + 1}`;

  const changePods = async (spec: object): Promise<void> => {
    const pods = await podsOf(cluster);
    await cluster.kubectl('-n', 'ci', 'patch', ...pods, '--patch', JSON.stringify({ spec }));
  };

  test('that the time limit of a pod was over, whether its job minds TERM or not', async () => {
    await using home = await homeOf(`gpu: ${poolOf(', kubernetes: { pod: { spec: { terminationGracePeriodSeconds: 2 } } }')}`);
    await home.up();
    const late = () => changePods({ activeDeadlineSeconds: 1 });
    const jobs = [run(home, stays), run(home, `trap "" TERM; ${stays}`)];
    const nodes = await Promise.all(jobs.map(nodeOf));
    await late();
    for (const [at, { ended }] of jobs.entries())
      expect(await ended).toMatchObject(isLost(`${nodes[at]}: its time limit was over.*`));
    const dutiful = run(home, `trap "echo bye; exit 5" TERM; ${stays}`);
    await nodeOf(dutiful);
    await late();
    expect(await dutiful.ended).toMatchObject({ code: 5, stdout: expect.stringMatching(/bye\n$/) });
    await leavesNothing(cluster);
  });

  test('that a pod with a higher priority took its place', async () => {
    await cluster.apply({
      apiVersion: 'scheduling.k8s.io/v1',
      kind: 'PriorityClass',
      metadata: { name: 'urgent' },
      value: 1000,
    });
    await using home = await homeOf();
    await home.up();
    const jobs = [run(home, stays), run(home, stays)];
    const nodes = await Promise.all(jobs.map(nodeOf));
    await cluster.apply({
      apiVersion: 'v1',
      kind: 'Pod',
      metadata: { name: 'urgent', namespace: 'default' },
      spec: {
        priorityClassName: 'urgent',
        restartPolicy: 'Never',
        nodeSelector: { 'kubernetes.io/hostname': nodes[0] },
        containers: [
          {
            name: 'main',
            image: images.base,
            imagePullPolicy: 'Never',
            command: ['true'],
            resources: { limits: { 'nvidia.com/gpu': '1' } },
          },
        ],
      },
    });
    expect(await jobs[0]?.ended).toMatchObject(isLost(`${nodes[0]}: a pod with a higher priority took its place.*`));
    expect(await run(home, 'echo again').ended).toMatchObject({ code: 0, stdout: 'again\n' });
    jobs[1]?.signal('SIGINT');
    expect((await jobs[1]?.ended)?.code).toBe(130);
    await leavesNothing(cluster);
  });

  test('that its node was drained, and the next job is elsewhere', async () => {
    await using home = await homeOf();
    await home.up();
    const job = run(home, stays);
    const node = await nodeOf(job);
    await cluster.kubectl('drain', node, '--force', '--delete-emptydir-data');
    expect(await job.ended).toMatchObject(isLost(`${node}: somebody evicted it, such as by draining its node.*`));
    const next = run(home, stays);
    expect(await nodeOf(next)).not.toBe(node);
    next.signal('SIGINT');
    expect((await next.ended).code).toBe(130);
    await leavesNothing(cluster);
  });

  test('nothing of a cordoned node: its job ends well', async () => {
    await using signals = await signalsOf(cluster);
    await using home = await homeOf();
    await home.up();
    const job = run(
      home,
      `echo "begun on $NVIDIA_VISIBLE_DEVICES"; until ${signals.is('go')}; do sleep 0.1; done; echo end; exit 3`,
    );
    const node = await nodeOf(job);
    await cluster.kubectl('cordon', node);
    signals.set('go');
    expect(await job.ended).toMatchObject({ code: 3, stdout: expect.stringMatching(/end\n$/) });
    await leavesNothing(cluster);
  });

  test('which node has a card that fails, and keeps away from it', async () => {
    await using home = await homeOf(`gpu: ${poolOf('', 'onejob-test/bad-card:1')}`);
    await home.up();
    await cluster.kubectl('cordon', 'k2');
    const job = run(home, 'echo "$NVIDIA_VISIBLE_DEVICES"');
    const status = async (): Promise<string> => (await home.cli(['status']).ended).stdout;
    await expect.poll(status, { timeout: 30_000 }).toContain(`avoids node k1 (nvidia-smi fails: ${noCard})`);
    const { stdout } = await home.cli(['doctor']).ended;
    expect(stdout.replaceAll(/\s+/g, ' ')).toMatch(/Node k1 is avoided for 15 more minutes: nvidia-smi fails: /);
    await cluster.kubectl('uncordon', 'k2');
    expect(await job.ended).toMatchObject({ code: 0, stdout: 'GPU-fake-1\n' });
    expect(await run(home, 'echo "$NVIDIA_VISIBLE_DEVICES"').ended).toMatchObject({ code: 0, stdout: 'GPU-fake-1\n' });
    await leavesNothing(cluster);
  });

  test('what its agents wait for when a card has become unhealthy', async () => {
    await using home = await homeOf();
    await home.up();
    const free = async (node: string): Promise<string> =>
      cluster.kubectl('get', 'node', node, '-o', 'jsonpath={.status.allocatable.nvidia\\.com/gpu}');
    for (const [at, node] of ['k1', 'k2'].entries()) cluster.node(node).setUnhealthy(`GPU-fake-${at}`);
    await expect.poll(async () => [await free('k1'), await free('k2')], { timeout: 60_000 }).toEqual(['0', '0']);
    const job = run(home, 'echo "$NVIDIA_VISIBLE_DEVICES"');
    await expect
      .poll(async () => (await home.api.status()).pools[0]?.slots.flatMap(({ note }) => note ?? []))
      .toEqual([expect.stringMatching(/^cluster: waits for a node: .*Insufficient nvidia.com\/gpu/)]);
    cluster.node('k2').setUnhealthy();
    expect(await job.ended).toMatchObject({ code: 0, stdout: 'GPU-fake-1\n' });
    cluster.node('k1').setUnhealthy();
    await expect.poll(() => free('k1'), { timeout: 60_000 }).toBe('1');
    await leavesNothing(cluster);
  });

  test('nothing of an engine or a kubelet that starts again, and a waiting agent can still be released', async () => {
    await using signals = await signalsOf(cluster);
    await using home = await homeOf(`gpu: ${poolOf(', standby: true').replace('agents: 8', 'agents: 2')}`);
    const daemon = await home.up();
    const script = `echo "begun on $NVIDIA_VISIBLE_DEVICES"; n=0; until ${signals.is('go')}; do n=$((n + 1)); echo "$n"; sleep 0.1; done; echo "end $n"; exit 3`;
    const job = run(home, script);
    const node = await nodeOf(job);
    const isWaiting = async () =>
      (await home.api.status()).pools[0]?.slots.some(({ standby }) => standby.state === 'standby') ?? false;
    await expect.poll(isWaiting, { timeout: 30_000 }).toBe(true);
    for (const name of ['k1', 'k2'])
      for (const what of ['containerd', 'kubelet'] as const) {
        const one = cluster.node(name)[what];
        await one.kill();
        await one.start();
      }
    expect(await isWaiting()).toBe(true);
    const second = run(home, stays);
    expect(await nodeOf(second)).not.toBe(node);
    signals.set('go');
    const { code, stdout } = await job.ended;
    expect(code).toBe(3);
    const [, last] = /\nend (\d+)\n$/.exec(stdout) ?? [];
    expect(stdout.split('\n').slice(1, -2)).toEqual(Array.from({ length: Number(last) }, (_, at) => `${at + 1}`));
    second.signal('SIGINT');
    expect((await second.ended).code).toBe(130);
    await daemon.stop();
    await leavesNothing(cluster);
  });
});

describe.skipIf(isMissing)('a node that', () => {
  const cluster = shared({ nodes: 2, gpus: 2 }, isMissing);
  const homeOf = (): Promise<Home> => onejob({ config: `${runtimeOf(cluster)}pools: { gpu: ${poolOf()} }\n` });
  const nodeOf = async (job: Child): Promise<string> => (Number((await job.says(/begun on GPU-fake-(\d)/))[1]) < 2 ? 'k1' : 'k2');
  /** Four jobs fill all cards; by node. */
  const fill = async (home: Home, script: (at: number) => string): Promise<Record<string, { job: Child; at: number }[]>> => {
    const jobs = Array.from({ length: 4 }, (_, at) => ({ job: run(home, script(at)), at }));
    const nodes = await Promise.all(jobs.map(({ job }) => nodeOf(job)));
    return { k1: jobs.filter((_, at) => nodes[at] === 'k1'), k2: jobs.filter((_, at) => nodes[at] === 'k2') };
  };

  test('is silent for a while loses no job and no output, and holds up no other node', async () => {
    await using signals = await signalsOf(cluster);
    await using home = await homeOf();
    await home.up();
    const { k1 = [], k2 = [] } = await fill(
      home,
      (at) =>
        `echo "begun on $NVIDIA_VISIBLE_DEVICES"; n=0; until ${signals.is(`${at}`)}; do n=$((n + 1)); echo "$n"; sleep 0.1; done; echo "end $n"; exit ${at}`,
    );
    const isWhole = async ({ job, at }: { job: Child; at: number }): Promise<void> => {
      const { code, stdout } = await job.ended;
      expect(code).toBe(at);
      const [, last] = /\nend (\d+)\n$/.exec(stdout) ?? [];
      expect(stdout.split('\n').slice(1, -2)).toEqual(Array.from({ length: Number(last) }, (_, line) => `${line + 1}`));
    };
    await cluster.node('k2').kubelet.kill();
    await expect.poll(() => isReady(cluster, 'k2'), { timeout: 120_000 }).toBe('Unknown');
    // One ends while nobody hears of it.
    signals.set(`${k2[0]?.at}`);
    for (const one of k1) {
      signals.set(`${one.at}`);
      await isWhole(one);
    }
    expect(await run(home, 'echo elsewhere').ended).toMatchObject({ code: 0, stdout: 'elsewhere\n' });
    expect((await home.api.status()).problems).toEqual([]);
    expect(k2.map(({ job }) => job.running)).toEqual([true, true]);
    await cluster.node('k2').kubelet.start();
    await isWhole(k2[0] as (typeof k2)[number]);
    signals.set(`${k2[1]?.at}`);
    await isWhole(k2[1] as (typeof k2)[number]);
    await leavesNothing(cluster);
  });

  test('is removed from the cluster loses its jobs, and says so', async () => {
    await using home = await homeOf();
    await home.up();
    const { k1 = [], k2 = [] } = await fill(home, () => stays);
    await cluster.node('k2').kubelet.kill();
    await cluster.kubectl('delete', 'node', 'k2');
    for (const { job } of k2) expect(await job.ended).toMatchObject(isLost('k2: its node is gone.*'));
    for (const { job } of k1) job.signal('SIGINT');
    for (const { job } of k1) expect((await job.ended).code).toBe(130);
    expect(await run(home, 'echo on').ended).toMatchObject({ code: 0, stdout: 'on\n' });
    await leavesNothing(cluster);
  });
});

describe.skipIf(isMissing)('GPUs of Kubernetes', () => {
  const cluster = shared({ gpus: 1 }, isMissing);

  test('are never granted while a process of the job before is alive', async () => {
    await using home = await onejob({ config: `${runtimeOf(cluster)}pools: { gpu: ${poolOf(', stop_grace: 1s')} }\n` });
    await home.up();
    // Hundredths of a second since the machine was started, which all pods share.
    const script = `trap "" TERM; echo "begun on $NVIDIA_VISIBLE_DEVICES"; while read t _ </proc/uptime; do echo "$t"; sleep 0.02; done`;
    const jobs = Array.from({ length: 6 }, () => run(home, script));
    const waiting = new Set(jobs);
    for (let at = 0; waiting.size > 0; at += 1) {
      const job = await Promise.race([...waiting].map((one) => one.says(/begun on GPU-fake-0\n[\d.]+\n/).then(() => one)));
      waiting.delete(job);
      // Each way in which an agent goes that does not want to.
      if (at % 3 === 0) job.signal('SIGINT');
      else if (at % 3 === 1) await cluster.kubectl('-n', 'ci', 'delete', '--wait=false', '--grace-period=2', ...(await running()));
      // It may be killed with the others.
      else await cluster.kubectl('-n', 'ci', 'exec', (await running())[0] ?? '', '--', 'sh', '-c', 'kill -KILL -1').catch(() => '');
      await job.ended;
    }
    const times = jobs.map(({ stdout }) => Array.from(stdout.matchAll(/^(\d+\.\d\d)\n/gm), ([, time]) => Number(time)));
    expect(times.every((one) => one.length > 0)).toBe(true);
    times.sort(([one = 0], [other = 0]) => one - other);
    for (const [at, [from = 0]] of times.entries()) expect(from).toBeGreaterThanOrEqual(times[at - 1]?.at(-1) ?? 0);
    await leavesNothing(cluster);
  });

  async function running(): Promise<string[]> {
    const names = await cluster.kubectl('-n', 'ci', 'get', 'pods', '--field-selector=status.phase=Running', '-o', 'name');
    return names.split('\n').filter((line) => line !== '');
  }

  test('may have the name of a slice', async () => {
    const slice = 'nvidia.com~1mig-1g.10gb';
    const patch = JSON.stringify([{ op: 'add', path: `/status/capacity/${slice}`, value: '2' }]);
    await cluster.kubectl('patch', 'node', 'k1', '--subresource=status', '--type=json', `--patch=${patch}`);
    await using home = await onejob({
      config: `${runtimeOf(cluster)}pools: { gpu: ${poolOf(', kubernetes: { resource: nvidia.com/mig-1g.10gb }')} }\n`,
    });
    await home.up();
    const jobs = Array.from({ length: 3 }, () => run(home, stays));
    await expect.poll(() => jobs.filter(({ stdout }) => stdout !== '').length).toBe(2);
    await expect
      .poll(async () =>
        (await home.api.status()).pools[0]?.slots.flatMap(({ note }) => (note?.startsWith('cluster: ') ? note : [])),
      )
      .toEqual([expect.stringMatching(/Insufficient nvidia.com\/mig-1g.10gb/)]);
    for (const job of jobs) job.signal('SIGINT');
    for (const { ended } of jobs) expect((await ended).code).toBe(130);
    await leavesNothing(cluster);
  });
});

const isMissingClaims = lacks('kubernetes', 'newerContainerd');

describe.skipIf(isMissingClaims)('GPUs by dynamic resource allocation', () => {
  const cluster = shared({ dra: true }, isMissingClaims, ({ apply }) =>
    apply({
      apiVersion: 'resource.k8s.io/v1',
      kind: 'ResourceClaimTemplate',
      metadata: { name: 'card', namespace: 'ci' },
      spec: { spec: { devices: { requests: [{ name: 'gpu', exactly: { deviceClassName: 'gpu' } }] } } },
    }),
  );

  test('are each of one job at a time, and a third one waits', async () => {
    await using home = await onejob({
      config: `${runtimeOf(cluster)}pools: { gpu: ${poolOf(', kubernetes: { claim: card }')} }\n`,
    });
    await home.up();
    const jobs = Array.from({ length: 3 }, () => run(home, stays));
    const cards = (): string[] => jobs.flatMap(({ stdout }) => /begun on (GPU-fake-\d)\n/.exec(stdout)?.[1] ?? []);
    await expect.poll(() => cards().toSorted(), { timeout: 60_000 }).toEqual(['GPU-fake-0', 'GPU-fake-1']);
    const notes = async () => (await home.api.status()).pools[0]?.slots.flatMap(({ note }) => note ?? []).toSorted();
    await expect
      .poll(notes)
      .toEqual([
        expect.stringMatching(/^cluster: waits for a node: .*claim/),
        ...Array(2).fill(expect.stringMatching(/^on node k1/)),
      ]);
    jobs.find(({ stdout }) => stdout !== '')?.signal('SIGINT');
    await expect.poll(() => cards().length, { timeout: 60_000 }).toBe(3);
    for (const job of jobs) job.signal('SIGINT');
    for (const { ended } of jobs) expect((await ended).code).toBe(130);
    await leavesNothing(cluster);
    await expect.poll(() => cluster.kubectl('-n', 'ci', 'get', 'resourceclaims', '-o', 'name')).toBe('');
  });
});

describe.skipIf(isMissing)('with the role of the page', () => {
  let kubeconfig: string;
  const cluster = shared({}, isMissing, async (own) => {
    const page = readFileSync(join(import.meta.dirname, '../../docs/runtimes/kubernetes.md'), 'utf8');
    const role = page.split('```').find((block) => block.startsWith('yaml\n') && block.includes('kind: Role\n')) ?? '';
    const { rules } = parse(role.replace(/^yaml\n/, '')) as { rules: readonly Rule[] };
    kubeconfig = await own.kubeconfigFor('ci', rules);
  });
  const runtimes = (): string => `runtimes: { cluster: { type: kubernetes, kubeconfig: "${kubeconfig}", namespace: ci } }\n`;

  mainJob('Kubernetes', isMissing, `runtime: cluster, image: "${images.base}", pull: never`, runtimes, {
    joinsOutput: true,
    hasFolders: false,
  });

  test('doctor misses nothing, and an installation that is over leaves nothing', async () => {
    await using home = await onejob({ config: `${runtimes()}pools: { gpu: ${poolOf()} }\n` });
    const daemon = await home.up();
    const { stdout } = await home.cli(['doctor']).ended;
    expect(stdout).toMatch(/Kubernetes v1\.\d+\.\d+ answers/);
    expect(stdout).not.toMatch(/It may not/);
    const job = run(home, stays);
    await job.says(/begun/);
    const leases = (): Promise<string> => cluster.kubectl('-n', 'ci', 'get', 'leases', '-o', 'name');
    expect(await leases()).toMatch(/onejob-/);
    job.signal('SIGINT');
    expect((await job.ended).code).toBe(130);
    await leavesNothing(cluster);
    await daemon.stop();
    await expect.poll(leases).toBe('');
  });
});
