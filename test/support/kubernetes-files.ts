/** What the programs of a test's Kubernetes are told by files: who they are, whom they trust, how a node behaves. */
import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

/** Who may ask the API server, by a token each. */
const people = {
  admin: { name: 'admin', group: 'system:masters' },
  controllerManager: { name: 'system:kube-controller-manager', group: '' },
  scheduler: { name: 'system:kube-scheduler', group: '' },
} as const;

interface Cluster {
  readonly home: string;
  /** Of the API server. */
  readonly server: string;
  readonly address: string;
  readonly nodes: readonly { readonly name: string; readonly address: string }[];
}

/** Writes keys, certificates, tokens, and a kubeconfig for each of those who ask; the administrator's token. */
export function writeIdentities({ home, server, address, nodes }: Cluster): string {
  const pki = join(home, 'pki');
  mkdirSync(pki, { mode: 0o700 });
  const script = `
    set -e
    cd "$1"
    key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"; }
    leaf() {
      key "$1"
      openssl req -new -key "$1.key" -subj "$2" -out "$1.csr"
      printf 'subjectAltName=%s\\nextendedKeyUsage=serverAuth,clientAuth\\n' "$3" >"$1.ext"
      openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -extfile "$1.ext" -out "$1.crt" 2>&1
    }
    key ca
    openssl req -x509 -new -key ca.key -subj /CN=onejob-test -days 30 -out ca.crt
    key accounts
    leaf apiserver /CN=kube-apiserver "$2"
    leaf kubelet-client /O=system:masters/CN=kubelet-client DNS:client
    leaf kubelet /CN=kubelet "$3"`;
  const names = [`IP:${address}`, ...nodes.map(({ name, address }) => `DNS:${name},IP:${address}`)].join(',');
  execFileSync('sh', ['-c', script, 'sh', pki, `IP:${address},IP:10.96.0.1,DNS:localhost,DNS:kubernetes.default.svc`, names]);
  const all = [
    ...Object.entries(people),
    ...nodes.map(({ name }) => [name, { name: `system:node:${name}`, group: 'system:nodes' }] as const),
  ].map(([file, person]) => ({ file, ...person, token: randomBytes(16).toString('hex') }));
  const lines = all.map(({ name, group, token }) => `${token},${name},${name},${group}\n`);
  writeFileSync(join(home, 'tokens.csv'), lines.join(''), { mode: 0o600 });
  for (const { file, token } of all) writeKubeconfig(join(home, `${file}.kubeconfig`), { home, server, token });
  return all[0]?.token ?? '';
}

interface Identity {
  readonly home: string;
  readonly server: string;
  readonly token: string;
  readonly namespace?: string;
}

/** Writes a kubeconfig as people have it: YAML, of which JSON is a part, with the authority's certificate in it. */
export function writeKubeconfig(path: string, { home, server, token, namespace = 'default' }: Identity): void {
  const authority = readFileSync(join(home, 'pki', 'ca.crt')).toString('base64');
  const config = {
    apiVersion: 'v1',
    kind: 'Config',
    clusters: [{ name: 'test', cluster: { server, 'certificate-authority-data': authority } }],
    users: [{ name: 'test', user: { token } }],
    contexts: [{ name: 'test', context: { cluster: 'test', user: 'test', namespace } }],
    'current-context': 'test',
  };
  writeFileSync(path, `${JSON.stringify(config, null, 2)}\n`, { mode: 0o600 });
}

interface Node {
  readonly home: string;
  /** Folder of this node. */
  readonly folder: string;
  readonly address: string;
  readonly cgroup: string;
  /** Addresses of its pods. */
  readonly pods: string;
  readonly isNewer: boolean;
  readonly runc: string;
  readonly kubelet: Readonly<Record<string, unknown>>;
}

/** Where Debian has the plugins, and where others have. */
export const networkPlugins = ['/usr/lib/cni', '/opt/cni/bin'].find((folder) => existsSync(join(folder, 'ptp'))) ?? null;

/** Name of the image that holds a pod's namespaces, as containerd wants it. */
export const pauseImage = 'docker.io/onejob-test/pause:1';

/** Writes what containerd and the kubelet of a node read. */
export function writeNode(node: Node): void {
  const { folder } = node;
  for (const name of ['cni', 'cdi', 'var-lib', 'var-lib/kubelet', 'var-log', 'dev']) mkdirSync(join(folder, name));
  const network = {
    cniVersion: '1.0.0',
    name: 'test',
    plugins: [
      {
        // A link for each pod: all that pods send each other is forwarded, and can so be filtered.
        type: 'ptp',
        ipMasq: false,
        ipam: {
          type: 'host-local',
          ranges: [[{ subnet: node.pods }]],
          routes: [{ dst: '0.0.0.0/0' }],
          dataDir: join(folder, 'addresses'),
        },
      },
    ],
  };
  writeFileSync(join(folder, 'cni', 'test.conflist'), JSON.stringify(network));
  writeFileSync(join(folder, 'containerd.toml'), containerdConfig(node));
  writeFileSync(join(folder, 'kubelet.json'), JSON.stringify(kubeletConfig(node), null, 2));
  writeFileSync(join(folder, 'resolv.conf'), readFileSync('/etc/resolv.conf'));
}

function containerdConfig({ folder, isNewer, runc }: Node): string {
  const cri = isNewer ? 'plugins."io.containerd.cri.v1.runtime"' : 'plugins."io.containerd.grpc.v1.cri"';
  return [
    ...[`version = ${isNewer ? 3 : 2}`, `root = "${folder}/containerd"`, `state = "${folder}/state"`],
    ...['[grpc]', `address = "${folder}/containerd.sock"`, '[ttrpc]', `address = "${folder}/containerd.sock.ttrpc"`],
    ...['[plugins."io.containerd.internal.v1.opt"]', `path = "${folder}/opt"`],
    ...(isNewer ? ['[plugins."io.containerd.cri.v1.images".pinned_images]', `sandbox = "${pauseImage}"`] : []),
    // Else it would have the kernel spare some processes, which root of a container may not.
    ...[`[${cri}]`, 'restrict_oom_score_adj = true'],
    isNewer ? `cdi_spec_dirs = ["${folder}/cdi"]` : `sandbox_image = "${pauseImage}"`,
    ...[
      `[${cri}.cni]`,
      isNewer ? `bin_dirs = ["${networkPlugins}"]` : `bin_dir = "${networkPlugins}"`,
      `conf_dir = "${folder}/cni"`,
    ],
    ...[`[${cri}.containerd.runtimes.runc]`, 'runtime_type = "io.containerd.runc.v2"'],
    ...[`[${cri}.containerd.runtimes.runc.options]`, `BinaryName = "${runc}"`],
    '',
  ].join('\n');
}

function kubeletConfig({ home, folder, address, cgroup, kubelet }: Node): unknown {
  const pki = join(home, 'pki');
  return {
    apiVersion: 'kubelet.config.k8s.io/v1beta1',
    kind: 'KubeletConfiguration',
    containerRuntimeEndpoint: `unix://${folder}/containerd.sock`,
    address,
    healthzBindAddress: address,
    healthzPort: 10_248,
    authentication: { anonymous: { enabled: false }, webhook: { enabled: true }, x509: { clientCAFile: join(pki, 'ca.crt') } },
    authorization: { mode: 'Webhook' },
    tlsCertFile: join(pki, 'kubelet.crt'),
    tlsPrivateKeyFile: join(pki, 'kubelet.key'),
    resolvConf: join(folder, 'resolv.conf'),
    cgroupDriver: 'cgroupfs',
    cgroupRoot: cgroup,
    cgroupsPerQOS: true,
    enforceNodeAllocatable: [],
    // This machine may have cgroups of version 1, which the kubelet refuses since 1.35, and swap.
    failCgroupV1: false,
    failSwapOn: false,
    oomScoreAdj: 0,
    makeIPTablesUtilChains: false,
    // A full disk of this machine is no reason to evict a test's pods.
    imageGCHighThresholdPercent: 100,
    evictionHard: Object.fromEntries(
      ['memory.available', 'nodefs.available', 'nodefs.inodesFree', 'imagefs.available', 'imagefs.inodesFree'].map((what) => [
        what,
        '0%',
      ]),
    ),
    shutdownGracePeriod: '0s',
    ...kubelet,
  };
}
