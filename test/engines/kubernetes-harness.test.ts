/** What the tests of Kubernetes stand on: a cluster of their own that behaves as sites' clusters do, and leaves nothing. */
import { copyFileSync, existsSync, globSync, mkdirSync, readdirSync, readFileSync } from 'node:fs';
import { networkInterfaces } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { isAlive, startChild } from '../support/child.ts';
import { images } from '../support/images.ts';
import { type Kubernetes, type KubernetesOptions, podSecurity, startKubernetes } from '../support/kubernetes.ts';
import { lacks } from '../support/require.ts';
import { scratch } from '../support/scratch.ts';

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

/** What is there of a cluster: in its own folder, in the kernel, and where its programs write when nobody stops them. */
function traces(kubeconfig: string, server: string): string[] {
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
  const links = Object.keys(networkInterfaces()).filter((name) => name.startsWith(`ojk${server.split('.')[2]}-`));
  const places = ['/var/lib/kubelet', '/var/lib/cni', '/var/log/pods', '/var/log/containers', '/run/containerd/runc/k8s.io'];
  return [...processes, ...groups, ...own, ...links, ...[home, ...places].filter((path) => existsSync(path))];
}

/** A cluster that the tests of a block share; each has pods of its own names. */
function shared(options: KubernetesOptions): Kubernetes {
  let kubernetes: Kubernetes;
  beforeAll(async () => {
    kubernetes = await startKubernetes(options);
  }, 300_000);
  afterAll(() => kubernetes?.[Symbol.asyncDispose]());
  return new Proxy({} as Kubernetes, { get: (_, key) => Reflect.get(kubernetes, key) });
}

/** Two pods and a policy that keeps them from each other, but not from this machine. */
async function tryPolicy(kubernetes: Kubernetes, isKept: boolean): Promise<void> {
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
  if (isKept) await expect.poll(() => ask(address, '80')).toBe('not reached');
  else expect(await ask(address, '80')).toBe('hello\nreached\n');
  expect(await ask(host, port)).toBe('reached\n');
}

describe.skipIf(lacks('kubernetes'))('a Kubernetes', () => {
  describe('of one node', () => {
    const kubernetes = shared({});

    test('gives cards to a pod, and says how it ended', async () => {
      await submit(kubernetes, 'job', { gpus: 1, script: 'echo "$NVIDIA_VISIBLE_DEVICES" /dev/nvidia*; exit 7' });
      await expect.poll(() => exitCode(kubernetes, 'job')).toBe(7);
      expect(await kubernetes.kubectl('logs', 'job')).toMatch(/^GPU-fake-([01]) \/dev\/nvidia\1\n$/);
    });

    test('lets a pod wait for cards that others have, or that are broken', async () => {
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
      kubernetes.node('k1').setUnhealthy();
      await expect.poll(() => exitCode(kubernetes, 'second')).toBe(0);
      await kubernetes.kubectl('delete', 'pod', 'first');
    });

    test('keeps a running pod while the API server, the kubelet and containerd are killed', async () => {
      await submit(kubernetes, 'survivor', { script: 'until [ -e /tmp/end ]; do sleep 0.1; done; echo ended; exit 3' });
      await expect.poll(() => phase(kubernetes, 'survivor')).toBe('Running');
      const { apiserver, kubelet, node } = kubernetes;
      for (const daemon of [apiserver, kubelet, node('k1').containerd]) {
        await daemon.kill();
        expect(daemon.pid).toBeNull();
        await daemon.start();
        expect(await phase(kubernetes, 'survivor')).toBe('Running');
      }
      await kubernetes.kubectl('exec', 'survivor', '--', 'touch', '/tmp/end');
      await expect.poll(() => exitCode(kubernetes, 'survivor')).toBe(3);
      expect(await kubernetes.kubectl('logs', 'survivor')).toBe('ended\n');
    });

    test('has accounts with few rights, and namespaces that refuse pods with many', async () => {
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
      await kubernetes.loadDockerImage('debian:stable-slim');
      await submit(kubernetes, 'debian', { image: 'debian:stable-slim', script: 'cat /etc/os-release' });
      await expect.poll(() => exitCode(kubernetes, 'debian')).toBe(0);
      expect(await kubernetes.kubectl('logs', 'debian')).toContain('ID=debian');
      using folder = scratch();
      mkdirSync(join(folder.path, 'bin'));
      copyFileSync('/bin/busybox', join(folder.path, 'bin', 'sh'));
      await kubernetes.loadImage(folder.path, 'made-of/folder:1');
      await submit(kubernetes, 'folder', { image: 'made-of/folder:1', script: 'exit 9' });
      await expect.poll(() => exitCode(kubernetes, 'folder')).toBe(9);
    });

    test('keeps no network policy', () => tryPolicy(kubernetes, false));
  });

  describe.skipIf(lacks('kubernetesNetwork'))('of two nodes', () => {
    const kubernetes = shared({ nodes: 2, gpus: 1, network: true });

    test("reaches this machine and each other's pods from two nodes", async () => {
      await submit(kubernetes, 'one', { node: 'k1', gpus: 1, script: 'echo "$NVIDIA_VISIBLE_DEVICES"; nc -l -p 80 -e echo hello' });
      await expect.poll(() => phase(kubernetes, 'one')).toBe('Running');
      const address = await kubernetes.kubectl('get', 'pod', 'one', '-o', 'jsonpath={.status.podIP}');
      const script = `echo "$NVIDIA_VISIBLE_DEVICES"; nc ${new URL(kubernetes.server).host.replace(':', ' ')} </dev/null && until nc ${address} 80 </dev/null; do sleep 0.1; done`;
      await submit(kubernetes, 'two', { node: 'k2', gpus: 1, script });
      await expect.poll(() => exitCode(kubernetes, 'two')).toBe(0);
      expect(await kubernetes.kubectl('logs', 'two')).toBe('GPU-fake-1\nhello\n');
    });

    test('keeps network policies, if it is to', () => tryPolicy(kubernetes, true));
  });

  test('leaves nothing', async () => {
    const kubernetes = await startKubernetes();
    await submit(kubernetes, 'job', { gpus: 1, script: 'trap "" TERM; setsid sleep 600 & sleep 600' });
    await expect.poll(() => phase(kubernetes, 'job')).toBe('Running');
    const { kubeconfig, server } = kubernetes;
    expect(traces(kubeconfig, server)).not.toEqual([]);
    await kubernetes.kubelet.kill();
    await kubernetes[Symbol.asyncDispose]();
    expect(traces(kubeconfig, server)).toEqual([]);
  });

  test('leaves nothing when the test dies', async () => {
    const program = `
      import { startKubernetes } from '${join(import.meta.dirname, '../support/kubernetes.ts')}';
      const kubernetes = await startKubernetes();
      console.log(kubernetes.kubeconfig, kubernetes.server);
      await kubernetes.kubectl('get', 'pods', '--watch');`;
    const child = startChild(process.execPath, ['--input-type=module', '--eval', program], { cwd: '/', env: process.env });
    const [, kubeconfig = '', server = ''] = await child.says(/(\S+\.kubeconfig) (\S+)/);
    expect(traces(kubeconfig, server)).not.toEqual([]);
    await child.kill();
    await expect.poll(() => traces(kubeconfig, server)).toEqual([]);
  });
});

describe.skipIf(lacks('newerContainerd'))('a Kubernetes with a newer containerd', () => {
  describe('and grants by DRA', () => {
    const kubernetes = shared({ dra: true, runc: 'newer' });

    test('gives cards to a claim, and to who asks as before', async () => {
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
      const script = 'cat /proc/self/uid_map; echo "$NVIDIA_VISIBLE_DEVICES" /dev/nvidia*';
      await submit(kubernetes, 'users', { gpus: 1, hostUsers: false, script });
      await expect.poll(() => exitCode(kubernetes, 'users')).toBe(0);
      expect(await kubernetes.kubectl('logs', 'users')).toMatch(/^ +0 +[1-9]\d+ +65536\nGPU-fake-([01]) \/dev\/nvidia\1\n$/);
    });
  });
});
