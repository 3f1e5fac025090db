/** A node of a test's Kubernetes: a containerd, a kubelet and pretended GPUs, with mounts and a network that only they have. */
import { execFileSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { request } from 'node:http';
import { dirname, join } from 'node:path';
import { daemon, type Ground, type KubernetesDaemon, toEnd } from './kubernetes-daemon.ts';
import { pauseImage, writeNode } from './kubernetes-files.ts';

export interface KubernetesNode extends Place {
  /** Process whose mounts and network it has. */
  readonly space: number;
  readonly kubelet: KubernetesDaemon;
  readonly containerd: KubernetesDaemon;
  /** What grants the GPUs: the device plugin, or the driver for DRA; null without GPUs. */
  readonly gpus: KubernetesDaemon | null;
  /** Says which of its cards are broken, by their names; the others are not. */
  setUnhealthy(...cards: string[]): void;
  /** Runs a command where its mounts and its network are; what it printed. @throws Error when it fails */
  run(...words: string[]): Promise<string>;
  /** Puts the images of an archive on it. */
  import(archive: string): Promise<void>;
  /** Starts its containerd, and puts the images of the archives on it. */
  prepare(archives: readonly string[]): Promise<void>;
  /** Starts the rest, once there is an API server. */
  start(): Promise<void>;
}

export interface NodeOptions {
  /** Place among the cluster's nodes. */
  readonly at: number;
  readonly gpus: number;
  /** Whether containerd is the newer one. */
  readonly isNewer: boolean;
  /** Null: this machine's. */
  readonly runc: string | null;
  /** Whether its cards are granted by dynamic resource allocation, and not by a device plugin. */
  readonly dra: boolean;
  /** Whether kube-router and kube-proxy run on it. */
  readonly network: boolean;
  readonly kubelet: Readonly<Record<string, unknown>>;
}

export interface Place {
  readonly name: string;
  /** Its address, at which this machine reaches it. */
  readonly address: string;
  /** This machine's interface to it. */
  readonly link: string;
  /** Addresses of its pods. */
  readonly pods: string;
}

export const placeOf = (number: number, at: number): Place => ({
  name: `k${at + 1}`,
  address: `10.188.${number}.${at + 2}`,
  link: `ojk${number}-${at + 1}`,
  pods: `10.189.${number}.${at * 128}/25`,
});

/** Makes its namespaces and its files; nothing else runs yet. */
export async function makeNode(ground: Ground, options: NodeOptions): Promise<KubernetesNode> {
  const { at, gpus, isNewer } = options;
  const place = placeOf(ground.number, at);
  const { name, address, link, pods } = place;
  const folder = join(ground.home, name);
  mkdirSync(folder);
  const [containerd, ctr] = isNewer ? [ground.program('containerd'), ground.program('ctr')] : ['containerd', 'ctr'];
  const runc = options.runc ?? execFileSync('sh', ['-c', 'command -v runc'], { encoding: 'utf8' }).trim();
  const cgroup = `${ground.group}/${name}`;
  writeNode({ home: ground.home, folder, address, cgroup, pods, isNewer, runc, kubelet: options.kubelet });
  const cards = Array.from({ length: gpus }, (_, card) => String(at * gpus + card));
  const words = ['unshare', '--mount', '--net', '--propagation', 'private', 'sh', '-c', space, 'sh', folder, ...cards];
  const holder = ground.begin(words);
  await holder.says(/there/);
  execFileSync('sh', ['-c', wire, 'sh', link, String(holder.pid), ground.address, address, pods]);

  const inside = ['nsenter', `--target=${holder.pid}`, '--mount', '--net'];
  const run = (...words: string[]): Promise<string> => toEnd(ground, [...inside, ...words]);
  const control = [ctr, '--address', join(folder, 'containerd.sock')];
  // The shim is looked for on the PATH, and has to be of the same version.
  const path = isNewer ? ['env', `PATH=${dirname(containerd)}:${process.env.PATH}`] : [];
  const begins = (what: string, words: readonly string[], isReady: () => Promise<boolean>): KubernetesDaemon =>
    daemon(ground, `${name}-${what}`, [...inside, ...words], isReady);

  const engine = begins('containerd', [...path, containerd, '--config', join(folder, 'containerd.toml')], () =>
    run(...control, 'version').then(
      () => true,
      () => false,
    ),
  );
  const kubeconfig = join(ground.home, `${name}.kubeconfig`);
  const kubelet = begins(
    'kubelet',
    [
      ...[ground.program('kubelet'), `--config=${join(folder, 'kubelet.json')}`, `--hostname-override=${name}`],
      ...[`--kubeconfig=${kubeconfig}`, `--node-ip=${address}`, '--v=2'],
    ],
    async () => (await isHealthy(address)) && (await isNodeReady(ground, name, null)) && knowsItsPods(ground, name),
  );
  const bad = join(folder, 'bad');
  const ofCards = [`-count=${gpus}`, `-first=${at * gpus}`, '-node=/dev/nvidia%d', `-bad=${bad}`];
  const ofNode = [`-name=${name}`, `-kubeconfig=${kubeconfig}`, `-cdi=${join(folder, 'cdi')}`];
  const grants = options.dra
    ? begins('gpus', [ground.program('dra'), ...ofCards, ...ofNode], () => hasSlice(ground, name))
    : begins('gpus', [ground.program('gpus'), ...ofCards], () => isNodeReady(ground, name, gpus));
  const asks = [`--kubeconfig=${join(ground.home, 'admin.kubeconfig')}`, `--hostname-override=${name}`];
  const keeps = ['--run-firewall=true', '--run-router=false', '--run-service-proxy=false', '--health-port=0', '--metrics-port=0'];
  const leads = ['--proxy-mode=iptables', `--cluster-cidr=${pods}`, '--conntrack-max-per-core=0', '--v=2'];
  const router: KubernetesDaemon = begins('kube-router', [ground.program('kube-router'), ...asks, ...keeps, '-v=1'], async () =>
    router.log.includes('sync iptables took'),
  );
  const proxy = begins('kube-proxy', [ground.program('kube-proxy'), ...asks, ...leads], () =>
    run('iptables-save', '-t', 'nat').then((rules) => rules.includes('KUBE-SERVICES')),
  );
  const importOne = async (archive: string): Promise<void> => {
    await run(...control, '--namespace', 'k8s.io', 'images', 'import', archive);
  };
  return {
    ...place,
    space: holder.pid,
    kubelet,
    containerd: engine,
    gpus: gpus === 0 ? null : grants,
    run,
    setUnhealthy: (...cards) => writeFileSync(bad, cards.map((card) => `${card}\n`).join('')),
    import: importOne,
    async prepare(archives) {
      await engine.start();
      for (const archive of archives) await importOne(archive);
      await run(...control, '--namespace', 'k8s.io', 'images', 'label', pauseImage, 'io.cri-containerd.pinned=pinned');
    },
    async start() {
      await kubelet.start();
      if (gpus > 0) await grants.start();
      if (!options.network) return;
      // kube-router writes its whole table anew: chains that kube-proxy makes just then would be lost.
      await proxy.start();
      await router.start();
    },
  };
}

/**
 * Keeps the namespaces until it is killed. What programs want to write outside of their own folder, they write into the folder `$1`.
 * The others are the numbers of its cards: with a pod that has users of its own, runc looks for a card where the pod has it.
 */
const space = `
  set -e
  folder=$1; shift
  mount -t tmpfs tmpfs /run
  mount --bind "$folder/var-lib" /var/lib
  mount --bind "$folder/var-log" /var/log
  mount -t tmpfs -o mode=755 tmpfs "$folder/dev"
  cp -ax /dev/. "$folder/dev"
  rm -f "$folder"/dev/nvidia*
  for name in pts shm mqueue; do [ ! -d "/dev/$name" ] || mount --rbind "/dev/$name" "$folder/dev/$name"; done
  for card; do mknod -m 666 "$folder/dev/nvidia$card" c 240 "$card"; done
  mount --rbind "$folder/dev" /dev
  ip link set lo up
  echo 1 >/proc/sys/net/ipv4/ip_forward
  echo there
  exec sleep infinity`;

/** Joins this machine, address `$3`, with the network of process `$2`, whose address is `$4` and whose pods have `$5`. */
const wire = `
  set -e
  ip link add "$1" type veth peer name eth0 netns "$2"
  ip address add "$3" peer "$4/32" dev "$1"
  ip link set "$1" up
  ip route add "$5" via "$4"
  nsenter --target="$2" --net sh -c '
    set -e
    ip address add "$2" peer "$1/32" dev eth0
    ip link set eth0 up
    ip route add default via "$1"' sh "$3" "$4"`;

/** Joins the networks of two nodes by a link of their own: this machine's firewall may let nothing pass between its interfaces. */
export function joinNodes(one: KubernetesNode, other: KubernetesNode): void {
  execFileSync('ip', [
    'link',
    'add',
    'eth1',
    'netns',
    `${one.space}`,
    'type',
    'veth',
    'peer',
    'name',
    'eth1',
    'netns',
    `${other.space}`,
  ]);
  const script = `
    set -e
    ip address add "$1" peer "$2/32" dev eth1
    ip link set eth1 up
    ip route add "$3" via "$2"`;
  for (const [near, far] of [
    [one, other],
    [other, one],
  ] as const) {
    const words = ['sh', '-c', script, 'sh', near.address, far.address, far.pods];
    execFileSync('nsenter', [`--target=${near.space}`, '--net', ...words]);
  }
}

function isHealthy(address: string): Promise<boolean> {
  return new Promise((resolve) => {
    const sent = request(`http://${address}:10248/healthz`, { agent: false, timeout: 5_000 }, (answer) => {
      answer.resume();
      resolve(answer.statusCode === 200);
    });
    sent.on('timeout', () => sent.destroy());
    sent.on('error', () => resolve(false));
    sent.end();
  });
}

interface NodeObject {
  readonly status?: {
    readonly conditions?: readonly { readonly type: string; readonly status: string }[];
    readonly allocatable?: Readonly<Record<string, string>>;
  };
}

/** Whether it takes pods, and has so many GPUs for them. Without an API server nobody knows, and so nobody waits. */
async function isNodeReady(ground: Ground, name: string, gpus: number | null): Promise<boolean> {
  const { status, body } = await ground.call('GET', `/api/v1/nodes/${name}`);
  if (status === 0) return true;
  const said = (body as NodeObject).status;
  const isReady = said?.conditions?.some(({ type, status }) => type === 'Ready' && status === 'True') ?? false;
  return isReady && (gpus === null || said?.allocatable?.['nvidia.com/gpu'] === String(gpus));
}

/** A kubelet that has started again does not know for a moment what runs on it. */
async function knowsItsPods(ground: Ground, name: string): Promise<boolean> {
  const names = async (path: string): Promise<string[] | null> => {
    const { status, body } = await ground.call('GET', path);
    if (status !== 200) return status === 0 ? [] : null;
    return ((body as { items?: { metadata: { uid: string } }[] }).items ?? []).map(({ metadata }) => metadata.uid);
  };
  const running = await names(`/api/v1/pods?fieldSelector=spec.nodeName=${name},status.phase=Running`);
  const known = await names(`/api/v1/nodes/${name}/proxy/pods`);
  return running !== null && known !== null && running.every((uid) => known.includes(uid));
}

/** Whether the scheduler can know of its cards. */
async function hasSlice(ground: Ground, name: string): Promise<boolean> {
  const path = `/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName=${name}`;
  const { status, body } = await ground.call('GET', path);
  return status === 0 || (body as { items?: unknown[] }).items?.length === 1;
}
