/**
 * A Kubernetes of a test's own: etcd, the API server, the controllers, the scheduler, and one or two nodes with a containerd and a
 * kubelet each. All of them are processes of this machine, in one folder. A node has its mounts and its network in namespaces of its
 * own, so nothing of either is left when it ends, and nobody else sees them. Its GPUs are device nodes behind which is nothing.
 *
 * All that it starts, pods included, is in one cgroup; closing it ends that and leaves nothing. Should the test die first, a process
 * that waits for that does the same.
 */
import { execFile, execFileSync } from 'node:child_process';
import { chmodSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { networkInterfaces } from 'node:os';
import { basename, delimiter, join } from 'node:path';
import { promisify } from 'node:util';
import { freePort } from './free-port.ts';
import { baseRoot, images } from './images.ts';
import { beginIn, caller, daemon, type Ground, type KubernetesDaemon, toEnd, until } from './kubernetes-daemon.ts';
import { networkPlugins, pauseImage, writeIdentities, writeKubeconfig } from './kubernetes-files.ts';
import { isArchive, rootOf, writeArchive } from './kubernetes-images.ts';
import { joinNodes, type KubernetesNode, makeNode, placeOf } from './kubernetes-node.ts';
import { pretendNodes } from './kubernetes-pretended.ts';
import {
  type KubernetesVersion,
  kubernetesProgram,
  lacksKubernetesPrograms,
  newerContainerd,
  ofNetwork,
} from './kubernetes-programs.ts';
import { lacksGroups, lastWill, mounts } from './last-will.ts';
import { scratch } from './scratch.ts';

export type { KubernetesDaemon } from './kubernetes-daemon.ts';
export type { KubernetesNode } from './kubernetes-node.ts';

/** For `describe.each`, with what `lacks` calls them. */
export const testedVersions = [
  { version: '1.37', need: 'kubernetes' },
  { version: '1.34', need: 'olderKubernetes' },
] as const satisfies readonly { readonly version: KubernetesVersion; readonly need: string }[];

export interface KubernetesOptions {
  /** Default 1.37. */
  readonly version?: KubernetesVersion;
  /** How many, named k1 and k2; default 1, and 0 with pretended ones. */
  readonly nodes?: 1 | 2;
  /** Nodes that are only words, and whose pods are: they run once they are placed, and go when they are deleted. Needs `kwok`. */
  readonly pretended?: number;
  /** `nvidia.com/gpu` of each node; default 2, named GPU-fake-0 and so on through all nodes. */
  readonly gpus?: number;
  /** Default `installed`: this machine's. `newer` is 2.4. */
  readonly containerd?: 'installed' | 'newer';
  /** The same of runc; user namespaces need `newer`, which is 1.5, and the newer containerd. */
  readonly runc?: 'installed' | 'newer';
  /**
   * Its GPUs are granted by dynamic resource allocation instead: to claims of the device class `gpu`, and to whoever asks for
   * `nvidia.com/gpu` as before. Needs the newer containerd, and takes it.
   */
  readonly dra?: boolean;
  /**
   * Whether its network keeps network policies, by kube-router, and leads to Services, by kube-proxy, as that of most sites does;
   * default no: what CNI's own plugins make does neither. No name server is there.
   */
  readonly network?: boolean;
  /** More flags of these. */
  readonly flags?: Readonly<Partial<Record<'apiserver' | 'controllerManager' | 'scheduler', readonly string[]>>>;
  /** Keys of every kubelet's configuration, beside or instead of what is said here. */
  readonly kubelet?: Readonly<Record<string, unknown>>;
}

/** As in a Role. */
export interface Rule {
  readonly apiGroups: readonly string[];
  readonly resources: readonly string[];
  readonly verbs: readonly string[];
}

export interface Kubernetes extends AsyncDisposable {
  /** Where its API is. */
  readonly server: string;
  /** This machine as pods see it: what listens there, or everywhere, can be reached by them. */
  readonly address: string;
  /** Path of the administrator's. */
  readonly kubeconfig: string;
  readonly etcd: KubernetesDaemon;
  readonly apiserver: KubernetesDaemon;
  readonly controllerManager: KubernetesDaemon;
  readonly scheduler: KubernetesDaemon;
  /** Of the first node. @throws Error when there are only pretended ones */
  readonly kubelet: KubernetesDaemon;
  /** @throws Error when it has no such node */
  node(name: string): KubernetesNode;
  /** As the administrator; its standard output. @throws Error with all output when it fails */
  kubectl(...words: string[]): Promise<string>;
  /** Makes or changes objects, as the administrator. */
  apply(...objects: readonly unknown[]): Promise<void>;
  /** One call as the administrator, for looks that have to be quick. */
  readonly call: Ground['call'];
  /** Makes a namespace, waits until it takes pods, and returns its name. `labels`: see `podSecurity`. */
  namespace(name: string, labels?: Readonly<Record<string, string>>): Promise<string>;
  /** Path of a kubeconfig of a new service account that has these rights in the namespace, and no others. */
  kubeconfigFor(namespace: string, rules: readonly Rule[]): Promise<string>;
  /**
   * Puts an image on every node; no pod can pull one. `from`: an archive of `docker save`, which names its images itself, or a root
   * file system, as a folder or as a tar of `docker export`. There from the start: `images.base`.
   */
  loadImage(from: string, name: string): Promise<void>;
  /** The same with an image of this machine's Docker. */
  loadDockerImage(name: string): Promise<void>;
}

/** Labels of a namespace that takes only pods of that level. */
export const podSecurity = (level: 'privileged' | 'baseline' | 'restricted'): Record<string, string> => ({
  'pod-security.kubernetes.io/enforce': level,
});

/** Why no such cluster can be had here, as a sentence's end; null when it can. */
export function lacksKubernetes(options: KubernetesOptions = {}): string | null {
  if (process.getuid?.() !== 0) return 'not run as root';
  const { version, dra = false, runc = 'installed' } = options;
  const isNewer = dra || options.containerd === 'newer';
  const installed = [
    ...(options.network ? ['iptables', 'ipset'] : []),
    ...(isNewer ? [] : ['containerd', 'ctr']),
    ...(runc === 'newer' ? [] : ['runc']),
  ];
  const folders = (process.env.PATH ?? '').split(delimiter);
  const missing = ['ip', 'mknod', 'nsenter', 'openssl', 'tar', 'unshare', 'busybox', ...installed].filter(
    (name) => !folders.some((folder) => existsSync(join(folder, name))),
  );
  if (networkPlugins === null) missing.push("Debian's package containernetworking-plugins");
  if (missing.length > 0) return `not installed: ${missing.join(', ')}`;
  const more = [
    ...(isNewer ? newerContainerd : []),
    ...(runc === 'newer' ? ['runc' as const] : []),
    ...(dra ? ['dra' as const] : []),
    ...(options.pretended === undefined ? [] : ['kwok' as const]),
    ...(options.network ? ofNetwork : []),
  ];
  return lacksGroups() ?? lacksKubernetesPrograms(version) ?? lacksKubernetesPrograms(version, more);
}

/** Starts one and waits until its nodes take pods; about 10 s. Needs `lacksKubernetes()` to be null. */
export async function startKubernetes(options: KubernetesOptions = {}): Promise<Kubernetes> {
  const { version = '1.37', gpus = 2, dra = false, network = false, flags = {}, kubelet = {} } = options;
  const { pretended = 0, nodes: count = pretended > 0 ? 0 : 1 } = options;
  const isNewer = dra || options.containerd === 'newer';
  const home = scratch().path;
  const number = freeNumber();
  const address = `10.188.${number}.1`;
  const places = Array.from({ length: count }, (_, at) => placeOf(number, at));
  const name = basename(home);
  const groups = [...mounts('cgroup2').slice(0, 1), ...mounts('cgroup')].map((path) => join(path, name));
  const here = `ojk${number}-0`;
  const will = lastWill({ home, groups, links: [here, ...places.map(({ link }) => link)] });
  try {
    // Root of a pod with users of its own has to reach that pod's files.
    chmodSync(home, 0o711);
    for (const group of groups) for (const path of [group, ...places.map((place) => join(group, place.name))]) makeGroup(path);
    const own = join(groups[0] ?? '', 'daemons');
    mkdirSync(own);
    mkdirSync(join(home, 'log'));
    // Nodes with a network bring the address as well.
    if (count === 0) execFileSync('sh', ['-c', alone, 'sh', here, address]);
    // Nobody else has the address. Pods may call this port of any API.
    const server = `https://${address}:6443`;
    const token = writeIdentities({ home, server, address, nodes: places });
    const ground: Ground = {
      home,
      number,
      address,
      server,
      group: `/${name}`,
      program: (what) => kubernetesProgram(what, version),
      begin: beginIn(home, join(own, 'cgroup.procs')),
      call: caller({ home, server, token }),
    };
    const runc = options.runc === 'newer' ? ground.program('runc') : null;
    const nodes: KubernetesNode[] = [];
    for (const at of places.keys()) nodes.push(await makeNode(ground, { at, gpus, isNewer, runc, dra, network, kubelet }));
    const [first, second] = nodes;
    if (first !== undefined && second !== undefined) joinNodes(first, second);
    const control = await controlPlane(ground, flags);
    const archives = [join(home, 'pause.tar'), join(home, 'base.tar')] as const;
    await writeArchive(archives[0], await rootOf(ground.program('pause'), 'pause'), pauseImage, ['/pause']);
    await writeArchive(archives[1], await baseRoot(), images.base, ['/bin/sh']);
    await Promise.all([
      ...nodes.map((node) => node.prepare(archives)),
      (async () => {
        for (const one of Object.values(control)) await one.start();
      })(),
    ]);
    await Promise.all(nodes.map((node) => node.start()));
    const cluster = faces(ground, nodes);
    if (dra) await cluster.apply(deviceClass);
    const logs = pretended > 0 ? await pretendNodes(ground, pretended, cluster.apply) : null;
    await takesPods(ground, 'default');
    const close = async (): Promise<void> => {
      logs?.end();
      await will.execute();
    };
    return Object.assign(cluster, control, { [Symbol.asyncDispose]: close });
  } catch (error) {
    await will.execute();
    throw error;
  }
}

/** This machine has address `$2` by an interface of its own. */
const alone = 'ip link add "$1" type veth peer name "$1p" && ip address add "$2/32" dev "$1" && ip link set "$1" up';

/** Its name is in the claims of tests; whoever asks for the resource gets the same cards. */
const deviceClass = {
  apiVersion: 'resource.k8s.io/v1',
  kind: 'DeviceClass',
  metadata: { name: 'gpu' },
  spec: {
    selectors: [{ cel: { expression: 'device.driver == "gpu.onejob.invalid"' } }],
    extendedResourceName: 'nvidia.com/gpu',
  },
};

/** One that no cluster of this machine has. */
function freeNumber(): number {
  const taken = Object.values(networkInterfaces()).flatMap((all = []) => all.map(({ address }) => address));
  const numbers = Array.from({ length: 200 }, (_, at) => at + 1).filter((at) => !taken.includes(`10.188.${at}.1`));
  const number = numbers[Math.floor(Math.random() * numbers.length)];
  if (number === undefined) throw new Error('all addresses for clusters are taken');
  return number;
}

/** Makes a cgroup. Of version 1, it has no processors of its own at first, and so takes no process. */
function makeGroup(path: string): void {
  mkdirSync(path);
  for (const file of ['cpuset.cpus', 'cpuset.mems'])
    if (existsSync(join(path, '..', file))) writeFileSync(join(path, file), readFileSync(join(path, '..', file)));
}

type Control = Pick<Kubernetes, 'etcd' | 'apiserver' | 'controllerManager' | 'scheduler'>;

async function controlPlane(ground: Ground, flags: NonNullable<KubernetesOptions['flags']>): Promise<Control> {
  const { home, address, server, program, call } = ground;
  const [clients, peers] = [`http://127.0.0.1:${await freePort()}`, `http://127.0.0.1:${await freePort()}`];
  const pki = (file: string): string => join(home, 'pki', file);
  const isReady = async (): Promise<boolean> => (await call('GET', '/readyz')).status === 200;
  const etcd = [
    ...[program('etcd'), `--data-dir=${join(home, 'etcd')}`, '--unsafe-no-fsync', '--log-level=error'],
    ...[`--listen-client-urls=${clients}`, `--advertise-client-urls=${clients}`],
    ...[`--listen-peer-urls=${peers}`, `--initial-advertise-peer-urls=${peers}`, `--initial-cluster=default=${peers}`],
  ];
  const apiserver = [
    ...[program('kube-apiserver'), `--etcd-servers=${clients}`, `--secure-port=${new URL(server).port}`],
    ...[`--bind-address=${address}`, `--advertise-address=${address}`],
    ...[`--tls-cert-file=${pki('apiserver.crt')}`, `--tls-private-key-file=${pki('apiserver.key')}`],
    ...[`--client-ca-file=${pki('ca.crt')}`, `--token-auth-file=${join(home, 'tokens.csv')}`],
    ...['--authorization-mode=Node,RBAC', '--service-cluster-ip-range=10.96.0.0/16', '--allow-privileged=true'],
    ...['--service-account-issuer=https://kubernetes.default.svc', `--service-account-signing-key-file=${pki('accounts.key')}`],
    ...[`--service-account-key-file=${pki('accounts.key')}`, '--kubelet-preferred-address-types=InternalIP'],
    ...[`--kubelet-client-certificate=${pki('kubelet-client.crt')}`, `--kubelet-client-key=${pki('kubelet-client.key')}`],
    ...[`--kubelet-certificate-authority=${pki('ca.crt')}`, ...(flags.apiserver ?? [])],
  ];
  const asks = (who: string): string[] => [
    ...[`--kubeconfig=${join(home, `${who}.kubeconfig`)}`, '--leader-elect=false', '--secure-port=0'],
  ];
  const manager = [
    ...[program('kube-controller-manager'), ...asks('controllerManager'), '--use-service-account-credentials'],
    ...[`--service-account-private-key-file=${pki('accounts.key')}`, `--root-ca-file=${pki('ca.crt')}`],
    ...(flags.controllerManager ?? []),
  ];
  const scheduler = [program('kube-scheduler'), ...asks('scheduler'), ...(flags.scheduler ?? [])];
  const isThere = async (): Promise<boolean> =>
    fetch(`${clients}/health`).then(
      ({ ok }) => ok,
      () => false,
    );
  return {
    etcd: daemon(ground, 'etcd', etcd, isThere),
    apiserver: daemon(ground, 'apiserver', apiserver, isReady),
    // Nobody can ask these two whether they work: what they do for a pod shows it.
    controllerManager: daemon(ground, 'controller-manager', manager, async () => true),
    scheduler: daemon(ground, 'scheduler', scheduler, async () => true),
  };
}

/** A new namespace has no service account for a moment, and so takes no pod. */
async function takesPods({ call }: Ground, namespace: string): Promise<void> {
  const path = `/api/v1/namespaces/${namespace}/serviceaccounts/default`;
  await until(async () => (await call('GET', path)).status === 200, `namespace ${namespace} takes pods`);
}

function faces(ground: Ground, nodes: readonly KubernetesNode[]): Omit<Kubernetes, keyof Control | typeof Symbol.asyncDispose> {
  const { home, server, address, call } = ground;
  const kubeconfig = join(home, 'admin.kubeconfig');
  const kubectl = (...words: string[]): Promise<string> =>
    toEnd(ground, [ground.program('kubectl'), `--kubeconfig=${kubeconfig}`, ...words]);
  const apply = async (...objects: readonly unknown[]): Promise<void> => {
    const list = { apiVersion: 'v1', kind: 'List', items: objects };
    const words = [ground.program('kubectl'), `--kubeconfig=${kubeconfig}`, 'apply', '--filename=-'];
    await toEnd(ground, words, JSON.stringify(list));
  };
  let files = 0;
  const fresh = (kind: string): string => join(home, `${files++}.${kind}`);
  const importEverywhere = async (archive: string): Promise<void> => {
    await Promise.all(nodes.map((node) => node.import(archive)));
  };
  return {
    server,
    address,
    kubeconfig,
    get kubelet() {
      const [first] = nodes;
      if (first === undefined) throw new Error('no node has a kubelet');
      return first.kubelet;
    },
    kubectl,
    apply,
    call,
    node(name) {
      const found = nodes.find((node) => node.name === name);
      if (found === undefined) throw new Error(`no node ${name} among ${nodes.map((node) => node.name).join(', ')}`);
      return found;
    },
    async namespace(name, labels = {}) {
      await apply({ apiVersion: 'v1', kind: 'Namespace', metadata: { name, labels } });
      await takesPods(ground, name);
      return name;
    },
    async kubeconfigFor(namespace, rules) {
      const path = fresh('kubeconfig');
      const name = `account-${basename(path, '.kubeconfig')}`;
      const metadata = { name, namespace };
      const group = 'rbac.authorization.k8s.io';
      await apply(
        { apiVersion: 'v1', kind: 'ServiceAccount', metadata },
        { apiVersion: `${group}/v1`, kind: 'Role', metadata, rules },
        {
          apiVersion: `${group}/v1`,
          kind: 'RoleBinding',
          metadata,
          roleRef: { apiGroup: group, kind: 'Role', name },
          subjects: [{ kind: 'ServiceAccount', name, namespace }],
        },
      );
      const token = (await kubectl('create', 'token', name, `--namespace=${namespace}`)).trim();
      writeKubeconfig(path, { home, server, token, namespace });
      return path;
    },
    async loadImage(from, name) {
      if (isArchive(from)) return importEverywhere(from);
      const archive = fresh('tar');
      await writeArchive(archive, from, name, ['/bin/sh']);
      await importEverywhere(archive);
    },
    async loadDockerImage(name) {
      const archive = fresh('tar');
      await promisify(execFile)('docker', ['save', '--output', archive, name]);
      await importEverywhere(archive);
    },
  };
}
