/**
 * What this machine can test. A test names what it needs; where that is missing it is skipped and the reason is printed
 * once for the run. In CI (`CI=true`) nothing may be missing: the run then fails before its first test.
 *
 *     describe.skipIf(lacks('docker', 'image'))('…', () => …)
 */
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { inject } from 'vitest';
import { lacksHost } from '../hosts/machine.ts';
import { lacksAnsible } from './ansible.ts';
import { lacksAwsClients } from './aws-clients.ts';
import { lacksAzureClients } from './azure-clients.ts';
import { lacksBuildkit } from './buildkit-programs.ts';
import { lacksAgent } from './buildkite-agent.ts';
import { lacksEngineBase } from './engine-base.ts';
import { engineAt } from './engine-http.ts';
import { hasPython, lacksGcpClients } from './gcp-clients.ts';
import { lacksGitea } from './gitea-programs.ts';
import { lacksGitHub } from './github-programs.ts';
import { lacksGitlabRunner } from './gitlab-programs.ts';
import { hasGo } from './go-program.ts';
import { lacksKubernetes } from './kubernetes.ts';
import { lacksKubernetesPrograms } from './kubernetes-programs.ts';
import { lacksRunsc } from './runsc.ts';
import { lacksSlurm } from './slurm.ts';
import { lacksSlurmAccounting } from './slurm-accounting.ts';
import { lacksTestcontainers } from './testcontainers.ts';

/** The image that onejob runs jobs in when nobody names another. */
export const defaultImage = 'debian:stable-slim';

/** Why something is missing, as a sentence's end; null when it is there. */
export interface Machine {
  /** An Engine answers on this machine's own socket. */
  readonly docker: string | null;
  /** That Engine has the default image. */
  readonly image: string | null;
  /** A second dockerd can be started by hand, in a network namespace of its own. */
  readonly dockerd: string | null;
  readonly root: string | null;
  /** A probe run of bubblewrap succeeded. */
  readonly bubblewrap: string | null;
  /** Carries the traffic of a network namespace: Debian's package passt. */
  readonly pasta: string | null;
  readonly busybox: string | null;
  /** The command line of OpenSSL, whose encrypted values onejob reads and writes. */
  readonly openssl: string | null;
  /** The program that signs releases. */
  readonly minisign: string | null;
  /** Prometheus' tool that checks metrics and alert rules. */
  readonly promtool: string | null;
  /** Podman with what it needs beside: runc, and catatonit as its init. */
  readonly podman: string | null;
  /** A tmpfs can be mounted, for disks that fill up. */
  readonly mount: string | null;
  /** A file system of a program, which a test can let hang. */
  readonly fuse: string | null;
  /** A file can be mounted as an ext4, for disks that fail. CI may lack it: containers often have no loop devices. */
  readonly loop: string | null;
  /** OpenSSH's client and server, which a test starts itself. */
  readonly sshd: string | null;
  /** Debian's browser, for the dashboard. It is never downloaded. */
  readonly chromium: string | null;
  /** A machine of its own with systemd: systemd-nspawn and debootstrap. */
  readonly nspawn: string | null;
  /** The real buildkite-agent, built before the tests. CI may lack it where there is no Go. */
  readonly buildkiteAgent: string | null;
  /** The real Gitea and its runner, built before the tests. CI may lack them where there is no Go. */
  readonly gitea: string | null;
  /** Real clients of GitHub, built before the tests. CI may lack them where there is no Go. */
  readonly github: string | null;
  /** Clients of AWS in JavaScript and Python, fetched before the tests. CI may lack them where there is no Python. */
  readonly awsClients: string | null;
  /** gitlab-runner, reduced, built before the tests. CI may lack it where there is no Go. */
  readonly gitlabRunner: string | null;
  /** Google's client of Compute Engine, fetched before the tests. CI may lack it where there is no Python. */
  readonly gcpClients: string | null;
  /** Microsoft's Python clients of Azure, installed before the tests. CI may lack them where there is no Python. */
  readonly azureClients: string | null;
  /** Shells that complete commands, as their users do. */
  readonly zsh: string | null;
  readonly fish: string | null;
  readonly shellcheck: string | null;
  /** What reads a unit as systemd does, without a running systemd. */
  readonly systemdAnalyze: string | null;
  /** Reads what clouds hand to a machine. CI may lack it: it belongs to machines of clouds. */
  readonly cloudInit: string | null;
  /** Slurm's daemons and commands, for a cluster of a test's own. CI may lack it: only acceptance starts one. */
  readonly slurm: string | null;
  /** The same of a newer version, made before the tests of acceptance. CI may lack it. */
  readonly newerSlurm: string | null;
  /** What a cluster's accounting needs beside it. CI may lack it: only acceptance starts one. */
  readonly slurmAccounting: string | null;
  /** Kubernetes' own programs, for a cluster of a test's own. CI may lack them: only acceptance builds them. */
  readonly kubernetes: string | null;
  /** The same of the oldest version that the tests know. CI may lack it, too. */
  readonly olderKubernetes: string | null;
  /** The same with a newer containerd and runc: for grants by DRA, and for pods with users of their own. CI may lack them, too. */
  readonly newerContainerd: string | null;
  /** A network for such a cluster that keeps policies and leads to Services. CI may lack it, too. */
  readonly kubernetesNetwork: string | null;
  /** Which installs charts in such a cluster. CI may lack it, too. */
  readonly helm: string | null;
  /** What engines of agents are built on. */
  readonly engineBase: string | null;
  /** Testcontainers for Node. CI may lack it: only acceptance fetches it. */
  readonly testcontainers: string | null;
  /** BuildKit. CI may lack it: only acceptance builds it. */
  readonly buildkit: string | null;
  /** Ansible. CI may lack it: only acceptance installs it. */
  readonly ansible: string | null;
  /** gVisor's runsc, built before the tests of acceptance. CI may lack it. */
  readonly runsc: string | null;
  /** A host on a kernel of its own, with Engine 29. CI may lack it: only acceptance boots it. */
  readonly host: string | null;
}

export type Need = keyof Machine;

declare module 'vitest' {
  interface ProvidedContext {
    machine: Machine;
  }
}

/** True when any of `needs` is missing here, so that the test is to be skipped. Only inside vitest. */
export function lacks(...needs: readonly Need[]): boolean {
  const machine = inject('machine');
  return needs.some((need) => machine[need] !== null);
}

/** Looks once; takes well under a second. */
export async function lookAtMachine(): Promise<Machine> {
  const root = process.getuid?.() === 0 ? null : 'not run as root';
  const docker = await lookAtEngine();
  return {
    docker: docker.engine,
    image: docker.image,
    dockerd: root ?? found('dockerd') ?? found('nsenter') ?? tried('unshare', ['-n', 'true']),
    root,
    bubblewrap:
      found('bwrap') ?? tried('bwrap', ['--ro-bind', '/usr', '/usr', ...libraryLinks(), '--unshare-all', '/usr/bin/true']),
    pasta: found('pasta') ?? found('nsenter') ?? found('ip'),
    busybox: found('busybox'),
    openssl: found('openssl'),
    minisign: found('minisign'),
    promtool: found('promtool'),
    podman: found('podman') ?? found('runc') ?? found('catatonit'),
    chromium: found('chromium'),
    mount: root ?? tried('unshare', ['-m', 'mount', '-t', 'tmpfs', '-o', 'size=64k', 'none', '/mnt']),
    fuse: root ?? (existsSync('/dev/fuse') ? null : 'no /dev/fuse'),
    loop: root ?? found('mkfs.ext4') ?? found('e2fsck') ?? tried('losetup', ['--find']),
    sshd: root ?? found('ssh') ?? found('/usr/sbin/sshd') ?? found('ssh-keygen'),
    nspawn: root ?? found('systemd-nspawn') ?? found('debootstrap') ?? found('nsenter') ?? found('pgrep'),
    buildkiteAgent: lacksAgent(),
    gitea: lacksGitea() ?? found('git'),
    github: lacksGitHub(),
    awsClients: lacksAwsClients(),
    gitlabRunner: lacksGitlabRunner(),
    gcpClients: lacksGcpClients(),
    azureClients: lacksAzureClients(),
    zsh: found('zsh'),
    fish: found('fish'),
    shellcheck: found('shellcheck'),
    systemdAnalyze: found('systemd-analyze'),
    cloudInit: found('cloud-init'),
    slurm: lacksSlurm(),
    newerSlurm: lacksSlurm({ version: 'newer' }),
    slurmAccounting: lacksSlurmAccounting(),
    kubernetes: lacksKubernetes(),
    olderKubernetes: lacksKubernetes({ version: '1.34' }),
    newerContainerd: lacksKubernetes({ dra: true, runc: 'newer' }),
    kubernetesNetwork: lacksKubernetes({ network: true }),
    helm: lacksKubernetesPrograms('1.37', ['helm']),
    engineBase: lacksEngineBase(),
    testcontainers: lacksTestcontainers(),
    buildkit: lacksBuildkit(),
    runsc: lacksRunsc(),
    ansible: lacksAnsible(),
    host: lacksHost(),
  };
}

/** One line per missing thing; `but` leaves some out. */
export function explainMissing(machine: Machine, but: (need: string) => boolean = () => false): string[] {
  return Object.entries(machine).flatMap(([need, why]) => (why === null || but(need) ? [] : [`${need}: ${why}`]));
}

/** What even CI may lack. */
export function mayLack(need: string): boolean {
  if (['awsClients', 'gcpClients', 'azureClients'].includes(need)) return !hasPython();
  const engines = [
    'slurm',
    'newerSlurm',
    'slurmAccounting',
    'kubernetes',
    'olderKubernetes',
    'newerContainerd',
    'kubernetesNetwork',
    'helm',
  ];
  return (
    ['loop', 'host', 'cloudInit', 'testcontainers', 'buildkit', 'runsc', 'ansible', ...engines].includes(need) ||
    (['buildkiteAgent', 'gitea', 'github', 'gitlabRunner'].includes(need) && !hasGo())
  );
}

async function lookAtEngine(): Promise<{ engine: string | null; image: string | null }> {
  using engine = engineAt();
  try {
    await engine.ok('GET', '/version');
  } catch (error) {
    const why = `no Docker Engine answers on ${engine.socket} (${error instanceof Error ? error.message : String(error)})`;
    return { engine: why, image: why };
  }
  const image = await engine.call('GET', `/images/${defaultImage}/json`);
  return { engine: null, image: image.status === 200 ? null : `the Engine has no image ${defaultImage}` };
}

function libraryLinks(): string[] {
  return ['bin', 'lib', 'lib64'].flatMap((name) => (existsSync(`/${name}`) ? ['--symlink', `usr/${name}`, `/${name}`] : []));
}

function found(command: string): string | null {
  return spawnSync('sh', ['-c', `command -v ${command}`]).status === 0 ? null : `"${command}" is not installed`;
}

function tried(command: string, args: readonly string[]): string | null {
  const run = spawnSync(command, args, { encoding: 'utf8', timeout: 10_000 });
  if (run.status === 0) return null;
  const said = (run.stderr ?? '').trim().split('\n')[0] ?? '';
  return `"${command} ${args.at(-1)}" fails here${said === '' ? '' : ` (${said})`}`;
}
