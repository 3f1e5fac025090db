/**
 * Kubernetes' own programs for clusters of a test's own, built once from the module proxy, each by itself; also a command: `node
 * test/support/kubernetes-programs.ts [1.37|1.34] [program…]` builds them, and says what came of it. It takes six minutes of two
 * cores: etcd and six programs of Kubernetes, of which the API server is most.
 */
import { createHash } from 'node:crypto';
import { existsSync, globSync, readFileSync } from 'node:fs';
import { chmod, copyFile, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { go, hasGo, inCache, madeOnce, moduleFolder } from './go-program.ts';

const versions = { '1.37': '1.37.2', '1.34': '1.34.4' } as const;
const containerdVersion = '2.4.2';
const runcVersion = '1.5.1';
const kwokVersion = '0.8.0';
const helmVersion = '4.3.2';
/** The newest that the module proxy has. */
const kubeRouterVersion = '2.1.0';

export type KubernetesVersion = keyof typeof versions;
export const kubernetesVersions = Object.keys(versions) as KubernetesVersion[];

/** Of one version of Kubernetes; etcd is of the version that it asks for. */
const always = ['etcd', 'kube-apiserver', 'kube-controller-manager', 'kube-scheduler', 'kubelet', 'kubectl'] as const;
const ofKubernetes = [...always, 'kube-proxy'] as const;
/** What nodes have beside: pretended cards, granted in two ways, and the first process of a pod. */
const own = ['gpus', 'dra', 'pause'] as const;
/** What every cluster needs. */
const needed = [...always, 'gpus', 'pause'] as const;
/** What a cluster has whose network keeps policies, and leads to Services. */
export const ofNetwork = ['kube-router', 'kube-proxy'] as const;
/** Newer than Debian's. */
export const newerContainerd = ['containerd', 'containerd-shim-runc-v2', 'ctr'] as const;
/** What the tests have beside. */
export const forTests = [...needed, ...newerContainerd, 'runc', 'dra', 'helm', ...ofNetwork] as const;
const others = [...newerContainerd, 'runc', 'dra', 'helm', 'kwok', ...ofNetwork] as const;

export type KubernetesProgram = (typeof needed)[number] | (typeof others)[number];

const source = join(import.meta.dirname, 'kubernetes-go');
const sourceHash = globSync(['go.mod', 'go.sum', '*/*.go'], { cwd: source })
  .sort()
  .reduce((hash, name) => hash.update(readFileSync(join(source, name))), createHash('sha256'))
  .digest('hex')
  .slice(0, 12);

const isOneOf = <Name extends string>(names: readonly Name[], name: string): name is Name =>
  (names as readonly string[]).includes(name);

/** Where a program is, or would be. Programs that call each other by name are in one folder. */
export function kubernetesProgram(name: KubernetesProgram, version: KubernetesVersion = '1.37'): string {
  if (isOneOf(own, name)) return join(inCache(`kubernetes-test-${sourceHash}`), name);
  if (name === 'runc') return join(inCache(`runc-${runcVersion}`), name);
  if (name === 'helm') return join(inCache(`helm-${helmVersion}`), name);
  if (name === 'kube-router') return join(inCache(`kube-router-${kubeRouterVersion}`), name);
  if (name === 'kwok') return join(inCache(`kwok-${kwokVersion}`), name);
  if (isOneOf(newerContainerd, name)) return join(inCache(`containerd-${containerdVersion}`), name);
  return join(inCache(`kubernetes-${versions[version]}`), name);
}

/** Why programs are not there, as a sentence's end; null when they are. */
export function lacksKubernetesPrograms(
  version: KubernetesVersion = '1.37',
  names: readonly KubernetesProgram[] = needed,
): string | null {
  const missing = names.find((name) => !existsSync(kubernetesProgram(name, version)));
  if (missing === undefined) return null;
  const command = ['npx node test/support/kubernetes-programs.ts', version, ...(names === needed ? [] : names)].join(' ');
  return `nothing at ${kubernetesProgram(missing, version)}; ${hasGo() ? `run "${command}" once` : '"go" is not installed to build it'}`;
}

/** Builds what is missing. @throws Error with what Go said */
export async function buildKubernetes(
  version: KubernetesVersion = '1.37',
  names: readonly KubernetesProgram[] = needed,
): Promise<void> {
  for (const name of names) await madeOnce(kubernetesProgram(name, version), (half) => build(name, version, half));
}

async function build(name: KubernetesProgram, version: KubernetesVersion, half: string): Promise<void> {
  const words = ['build', '-trimpath', '-ldflags', '-s -w', '-o', half];
  if (isOneOf(own, name)) {
    await go([...words, `./${name}`], source);
  } else if (name === 'runc') {
    const folder = await moduleFolder(`github.com/opencontainers/runc@v${runcVersion}`);
    await go([...words, '-tags', 'seccomp', '.'], folder, { CGO_ENABLED: '1' });
  } else if (name === 'helm') {
    await go([...words, './cmd/helm'], await moduleFolder(`helm.sh/helm/v4@v${helmVersion}`));
  } else if (name === 'kube-router') {
    const folder = await moduleFolder(`github.com/cloudnativelabs/kube-router/v2@v${kubeRouterVersion}`);
    await go([...words, './cmd/kube-router'], folder);
  } else if (name === 'kwok') {
    await go([...words, './cmd/kwok'], await moduleFolder(`sigs.k8s.io/kwok@v${kwokVersion}`));
  } else if (isOneOf(newerContainerd, name)) {
    const folder = await moduleFolder(`github.com/containerd/containerd/v2@v${containerdVersion}`);
    await go([...words, '-tags', 'no_btrfs no_devmapper no_zfs', `./cmd/${name}`], folder);
  } else {
    await buildOfKubernetes(name, version, half);
  }
}

/**
 * Kubernetes' module names its own parts by folders that are not in it. So it is built in a module that asks for what it asks for,
 * its parts by their versions instead; its sums then hold, and nothing is chosen anew.
 */
async function buildOfKubernetes(name: (typeof ofKubernetes)[number], version: KubernetesVersion, half: string): Promise<void> {
  const full = versions[version];
  const part = `v0${full.slice(1)}`;
  const folder = await moduleFolder(`k8s.io/kubernetes@v${full}`);
  const asked = await readFile(join(folder, 'go.mod'), 'utf8');
  const work = await mkdtemp(join(tmpdir(), 'onejob-kubernetes-'));
  try {
    const module = [
      'module onejob.invalid/kubernetes-programs',
      ...(asked.match(/^(require|godebug) \([^)]*^\)$|^(go|godebug) .*$/gm) ?? []),
      `require k8s.io/kubernetes v${full}`,
      ...Array.from(asked.matchAll(/^\s*(k8s\.io\/\S+) => \.\/staging\/.*$/gm), ([, path]) => `replace ${path} => ${path} ${part}`),
    ];
    await writeFile(join(work, 'go.mod'), `${module.join('\n').replaceAll(/ v0\.0\.0$| v0\.0\.0(?= )/gm, ` ${part}`)}\n`);
    await copyFile(join(folder, 'go.sum'), join(work, 'go.sum'));
    await chmod(join(work, 'go.sum'), 0o644);
    const what = name === 'etcd' ? 'go.etcd.io/etcd/server/v3' : `k8s.io/kubernetes/cmd/${name}`;
    await writeFile(join(work, 'programs.go'), `//go:build programs\n\npackage programs\n\nimport _ "${what}"\n`);
    const [major, minor] = full.split('.');
    const said = { gitVersion: `v${full}`, gitMajor: major, gitMinor: minor, gitTreeState: 'clean' };
    const flags = Object.entries(said).map(([key, value]) => `-X k8s.io/component-base/version.${key}=${value}`);
    const words = ['build', '-trimpath', '-ldflags', `-s -w ${flags.join(' ')}`, '-o', half, what];
    await go(words, work, { GOFLAGS: '-mod=mod -buildvcs=false', GOTOOLCHAIN: 'local' });
  } finally {
    await rm(work, { recursive: true, force: true });
  }
}

/** Builds them if they are missing and can be built; why they are still missing, as a sentence's end. @throws Error with what Go said */
export async function makeKubernetes(
  version: KubernetesVersion = '1.37',
  names: readonly KubernetesProgram[] = needed,
): Promise<string | null> {
  if (lacksKubernetesPrograms(version, names) !== null && hasGo()) await buildKubernetes(version, names);
  return lacksKubernetesPrograms(version, names);
}

if (import.meta.main) {
  const [version = '1.37', ...names] = process.argv.slice(2);
  const known = [...needed, ...others];
  const foreign = isOneOf(kubernetesVersions, version) ? names.find((name) => !isOneOf(known, name)) : version;
  if (foreign !== undefined) {
    console.error(`Not known: ${foreign}. Versions: ${kubernetesVersions.join(', ')}. Programs: ${known.join(', ')}.`);
    process.exit(2);
  }
  for (const name of (names.length > 0 ? names : needed) as KubernetesProgram[]) {
    const from = Date.now();
    const why = await makeKubernetes(version as KubernetesVersion, [name]);
    if (why !== null) console.log(`Tests with a real Kubernetes are skipped: ${why}.`);
    else console.log(`${kubernetesProgram(name, version as KubernetesVersion)} (${Math.round((Date.now() - from) / 1000)} s)`);
  }
}
