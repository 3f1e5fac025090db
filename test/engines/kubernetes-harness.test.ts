/** What the tests of Kubernetes stand on: a cluster of their own that behaves as sites' clusters do, and leaves nothing. */
import { existsSync, globSync, readdirSync, readFileSync } from 'node:fs';
import { networkInterfaces } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { isAlive, startChild } from '../support/child.ts';
import { images } from '../support/images.ts';
import { type Kubernetes, podSecurity, startKubernetes } from '../support/kubernetes.ts';
import { lacks } from '../support/require.ts';

interface Pod {
  readonly status: {
    readonly phase: string;
    readonly containerStatuses?: readonly {
      readonly state: { readonly terminated?: { readonly exitCode: number } };
      readonly allocatedResourcesStatus?: readonly {
        readonly resources: readonly { readonly resourceID: string; readonly health: string }[];
      }[];
    }[];
  };
}

interface Wanted {
  readonly script: string;
  readonly gpus?: number;
  readonly image?: string;
  readonly node?: string;
  readonly hostUsers?: boolean;
  /** Template of what its card is claimed by. */
  readonly claim?: string;
}

async function submit(
  kubernetes: Kubernetes,
  name: string,
  { script, gpus = 0, image = images.base, node, claim, hostUsers = true }: Wanted,
): Promise<void> {
  await kubernetes.apply({
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name, namespace: 'default' },
    spec: {
      hostUsers,
      restartPolicy: 'Never',
      shareProcessNamespace: true,
      terminationGracePeriodSeconds: 1,
      ...(node === undefined ? {} : { nodeSelector: { 'kubernetes.io/hostname': node } }),
      ...(claim === undefined ? {} : { resourceClaims: [{ name: 'card', resourceClaimTemplateName: claim }] }),
      containers: [
        {
          name: 'job',
          image,
          imagePullPolicy: 'Never',
          command: ['sh', '-c', script],
          ...(gpus === 0 ? {} : { resources: { limits: { 'nvidia.com/gpu': gpus } } }),
          ...(claim === undefined ? {} : { resources: { claims: [{ name: 'card' }] } }),
        },
      ],
    },
  });
}

async function look(kubernetes: Kubernetes, name: string): Promise<Pod['status']> {
  const { body } = await kubernetes.call('GET', `/api/v1/namespaces/default/pods/${name}`);
  return (body as Pod).status;
}

const phase = async (kubernetes: Kubernetes, name: string): Promise<string> => (await look(kubernetes, name)).phase;

const exitCode = async (kubernetes: Kubernetes, name: string): Promise<number | undefined> =>
  (await look(kubernetes, name)).containerStatuses?.[0]?.state.terminated?.exitCode;

/** What is there of the cluster that has the kubeconfig. */
function traces(kubeconfig: string): string[] {
  const home = dirname(kubeconfig);
  const processes = readdirSync('/proc').filter((pid) => {
    try {
      return isAlive(Number(pid)) && readFileSync(`/proc/${pid}/cgroup`, 'utf8').includes(basename(home));
    } catch {
      return false;
    }
  });
  const groups = globSync([`/sys/fs/cgroup/*${basename(home)}`, `/sys/fs/cgroup/*/*${basename(home)}`]);
  const mounts = readFileSync('/proc/self/mounts', 'utf8').split('\n');
  const own = mounts.filter((line) => line.includes(home));
  return [...processes, ...groups, ...own, ...(existsSync(home) ? [home] : [])];
}

/** What clusters could leave beside their own folder. */
const places = (): string[] => [
  ...Object.keys(networkInterfaces()).filter((name) => name.startsWith('ojk')),
  ...['/var/lib/kubelet', '/var/lib/cni', '/var/log/pods', '/var/log/containers', '/run/netns'].filter((path) => existsSync(path)),
  ...globSync(['/run/containerd/s/*', '/run/containerd/runc/k8s.io']),
];

describe.skipIf(lacks('kubernetes'))('a Kubernetes', () => {
  test('gives cards to a pod, and says how it ended', async () => {
    await using kubernetes = await startKubernetes();
    await submit(kubernetes, 'job', { gpus: 1, script: 'echo "$NVIDIA_VISIBLE_DEVICES" /dev/nvidia*; exit 7' });
    await expect.poll(() => exitCode(kubernetes, 'job')).toBe(7);
    expect(await kubernetes.kubectl('logs', 'job')).toMatch(/^GPU-fake-([01]) \/dev\/nvidia\1\n$/);
  });

  test('lets a pod wait for cards that others have, or that are broken', async () => {
    await using kubernetes = await startKubernetes();
    kubernetes.node('k1').setUnhealthy('GPU-fake-0');
    await expect
      .poll(async () => await kubernetes.kubectl('get', 'node', 'k1', '-o', 'jsonpath={.status.allocatable}'))
      .toContain('"nvidia.com/gpu":"1"');
    await submit(kubernetes, 'first', { gpus: 1, script: 'sleep 600' });
    await submit(kubernetes, 'second', { gpus: 1, script: 'echo "$NVIDIA_VISIBLE_DEVICES"' });
    await expect.poll(() => phase(kubernetes, 'first')).toBe('Running');
    expect(await phase(kubernetes, 'second')).toBe('Pending');
    expect((await look(kubernetes, 'first')).containerStatuses?.[0]?.allocatedResourcesStatus?.[0]?.resources).toEqual([
      { resourceID: 'GPU-fake-1', health: 'Healthy' },
    ]);
    await kubernetes.kubectl('delete', 'pod', 'first');
    await expect.poll(() => exitCode(kubernetes, 'second')).toBe(0);
  });

  test('keeps a running pod while the API server, the kubelet and containerd are killed', async () => {
    await using kubernetes = await startKubernetes({ gpus: 0 });
    await submit(kubernetes, 'job', { script: 'until [ -e /tmp/end ]; do sleep 0.1; done; echo ended; exit 3' });
    await expect.poll(() => phase(kubernetes, 'job')).toBe('Running');
    const { apiserver, kubelet, node } = kubernetes;
    for (const daemon of [apiserver, kubelet, node('k1').containerd]) {
      await daemon.kill();
      expect(daemon.pid).toBeNull();
      await daemon.start();
      expect(await phase(kubernetes, 'job')).toBe('Running');
    }
    await kubernetes.kubectl('exec', 'job', '--', 'touch', '/tmp/end');
    await expect.poll(() => exitCode(kubernetes, 'job')).toBe(3);
    expect(await kubernetes.kubectl('logs', 'job')).toBe('ended\n');
  });

  test('has accounts with few rights, and namespaces that refuse pods with many', async () => {
    await using kubernetes = await startKubernetes({ gpus: 0 });
    await kubernetes.namespace('agents', podSecurity('restricted'));
    const kubeconfig = await kubernetes.kubeconfigFor('agents', [
      { apiGroups: [''], resources: ['pods'], verbs: ['create', 'get'] },
    ]);
    const can = (verb: string, what: string): Promise<string> =>
      kubernetes.kubectl(`--kubeconfig=${kubeconfig}`, 'auth', 'can-i', verb, what).catch(String);
    expect(await can('create', 'pods')).toBe('yes\n');
    expect(await can('get', 'secrets')).toContain('no\n');
    const run = ['run', 'job', `--image=${images.base}`, '--image-pull-policy=Never', '--restart=Never'];
    await expect(kubernetes.kubectl(`--kubeconfig=${kubeconfig}`, ...run)).rejects.toThrow(/violates PodSecurity "restricted/);
  });

  test.skipIf(lacks('docker', 'image'))("runs images of this machine's Docker, and of a folder", async () => {
    await using kubernetes = await startKubernetes({ gpus: 0 });
    await kubernetes.loadDockerImage('debian:stable-slim');
    await submit(kubernetes, 'debian', { image: 'debian:stable-slim', script: 'cat /etc/os-release' });
    await expect.poll(() => exitCode(kubernetes, 'debian')).toBe(0);
    expect(await kubernetes.kubectl('logs', 'debian')).toContain('ID=debian');
  });

  test("reaches this machine and each other's pods from two nodes", async () => {
    await using kubernetes = await startKubernetes({ nodes: 2, gpus: 1 });
    await submit(kubernetes, 'one', { node: 'k1', gpus: 1, script: 'echo "$NVIDIA_VISIBLE_DEVICES"; nc -l -p 80 -e echo hello' });
    await expect.poll(() => phase(kubernetes, 'one')).toBe('Running');
    const address = await kubernetes.kubectl('get', 'pod', 'one', '-o', 'jsonpath={.status.podIP}');
    const script = `echo "$NVIDIA_VISIBLE_DEVICES"; nc ${new URL(kubernetes.server).host.replace(':', ' ')} </dev/null && until nc ${address} 80 </dev/null; do sleep 0.1; done`;
    await submit(kubernetes, 'two', { node: 'k2', gpus: 1, script });
    await expect.poll(() => exitCode(kubernetes, 'two')).toBe(0);
    expect(await kubernetes.kubectl('logs', 'two')).toBe('GPU-fake-1\nhello\n');
  });

  test.each([true, false])('keeps network policies: %s', async (keepsPolicies) => {
    await using kubernetes = await startKubernetes({ gpus: 0, keepsPolicies });
    await submit(kubernetes, 'server', { script: 'while :; do nc -l -p 80 -e echo hello; done' });
    await expect.poll(() => phase(kubernetes, 'server')).toBe('Running');
    const address = await kubernetes.kubectl('get', 'pod', 'server', '-o', 'jsonpath={.status.podIP}');
    const [host, port] = new URL(kubernetes.server).host.split(':');
    await submit(kubernetes, 'client', { script: 'sleep 600' });
    await expect.poll(() => phase(kubernetes, 'client')).toBe('Running');
    const ask = (...where: readonly (string | undefined)[]): Promise<string> => {
      const script = `nc -w 1 ${where.join(' ')} </dev/null && echo reached`;
      return kubernetes.kubectl('exec', 'client', '--', 'sh', '-c', script).catch(() => 'not reached');
    };
    expect(await ask(address, '80')).toBe('hello\nreached\n');
    expect(await ask(host, port)).toBe('reached\n');
    await kubernetes.apply({
      apiVersion: 'networking.k8s.io/v1',
      kind: 'NetworkPolicy',
      metadata: { name: 'outside-only', namespace: 'default' },
      spec: {
        podSelector: {},
        policyTypes: ['Egress'],
        egress: [{ to: [{ ipBlock: { cidr: '0.0.0.0/0', except: ['10.189.0.0/16'] } }] }],
      },
    });
    if (keepsPolicies) await expect.poll(() => ask(address, '80')).toBe('not reached');
    else expect(await ask(address, '80')).toBe('hello\nreached\n');
    expect(await ask(host, port)).toBe('reached\n');
  });

  test('leaves nothing', async () => {
    const before = places();
    const kubernetes = await startKubernetes();
    await submit(kubernetes, 'job', { gpus: 1, script: 'trap "" TERM; setsid sleep 600 & sleep 600' });
    await expect.poll(() => phase(kubernetes, 'job')).toBe('Running');
    const { kubeconfig } = kubernetes;
    expect(traces(kubeconfig)).not.toEqual([]);
    await kubernetes.kubelet.kill();
    await kubernetes[Symbol.asyncDispose]();
    expect(traces(kubeconfig)).toEqual([]);
    expect(places()).toEqual(before);
  });

  test('leaves nothing when the test dies', async () => {
    const before = places();
    const program = `
      import { startKubernetes } from '${join(import.meta.dirname, '../support/kubernetes.ts')}';
      const kubernetes = await startKubernetes();
      console.log(kubernetes.kubeconfig);
      await kubernetes.kubectl('get', 'pods', '--watch');`;
    const child = startChild(process.execPath, ['--input-type=module', '--eval', program], { cwd: '/', env: process.env });
    const [kubeconfig] = await child.says(/\S+\.kubeconfig/);
    expect(traces(kubeconfig)).not.toEqual([]);
    await child.kill();
    await expect.poll(() => traces(kubeconfig)).toEqual([]);
    expect(places()).toEqual(before);
  });
});

describe.skipIf(lacks('newerContainerd'))('a Kubernetes with a newer containerd', () => {
  test('gives cards to a claim, and to who asks as before', async () => {
    await using kubernetes = await startKubernetes({ dra: true });
    await submit(kubernetes, 'job', { gpus: 2, script: 'echo "$NVIDIA_VISIBLE_DEVICES" /dev/nvidia*; exit 7' });
    await expect.poll(() => exitCode(kubernetes, 'job')).toBe(7);
    expect(await kubernetes.kubectl('logs', 'job')).toMatch(/^GPU-fake-[01],GPU-fake-[01] \/dev\/nvidia0 \/dev\/nvidia1\n$/);
    await kubernetes.apply({
      apiVersion: 'resource.k8s.io/v1',
      kind: 'ResourceClaimTemplate',
      metadata: { name: 'card', namespace: 'default' },
      spec: { spec: { devices: { requests: [{ name: 'gpu', exactly: { deviceClassName: 'gpu' } }] } } },
    });
    await submit(kubernetes, 'claims', { claim: 'card', script: 'echo "$NVIDIA_VISIBLE_DEVICES" /dev/nvidia*' });
    await expect.poll(() => exitCode(kubernetes, 'claims')).toBe(0);
    expect(await kubernetes.kubectl('logs', 'claims')).toMatch(/^GPU-fake-([01]) \/dev\/nvidia\1\n$/);
  });

  test('gives cards to a pod that has users of its own', async () => {
    await using kubernetes = await startKubernetes({ containerd: 'newer', runc: 'newer' });
    const script = 'cat /proc/self/uid_map; echo "$NVIDIA_VISIBLE_DEVICES" /dev/nvidia*';
    await submit(kubernetes, 'job', { gpus: 1, hostUsers: false, script });
    await expect.poll(() => exitCode(kubernetes, 'job')).toBe(0);
    expect(await kubernetes.kubectl('logs', 'job')).toMatch(/^ +0 +[1-9]\d+ +65536\nGPU-fake-([01]) \/dev\/nvidia\1\n$/);
  });
});
