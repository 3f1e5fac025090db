/** What the process runtime found on this host and was told when it was created, and what `doctor` says about it. */
import { existsSync, realpathSync } from 'node:fs';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { release } from 'node:os';
import { dirname, join } from 'node:path';
import { attempt } from '../../base/errors.ts';
import { type Finding, fine, problem, warning } from '../../base/finding.ts';
import { compareVersions, leadingVersion } from '../../base/version.ts';
import { type Clock, deadline } from '../../core/clock.ts';
import { mountOf } from '../../system/mountinfo.ts';
import { bootId, inheritedDescriptors, readOr } from '../../system/process-identity.ts';
import { run } from '../../system/run.ts';
import { systemClock } from '../../system/system-clock.ts';
import { firstUid } from '../uids.ts';
import { bubblewrapFix, hostMounts, probeBubblewrap } from './bubblewrap.ts';
import { type Cgroups, findCgroups } from './cgroup.ts';
import { type Intent, type Layout, layout } from './folder.ts';
import { probeNetwork } from './network.ts';
import { isInstalled, searchPath } from './programs.ts';
import { filterLoader, seccompFilter } from './seccomp.ts';
import { openTrials, type Trial, type Trials, trialLimit, wasLate } from './trials.ts';

export interface ProcessRuntimeOptions {
  readonly owner: string;
  /** Folder for sandboxes in the state directory; created if missing. */
  readonly dir: string;
  readonly clock?: Clock;
  /** `auto`: if a probe succeeds. Default `auto`. */
  readonly bubblewrap?: 'auto' | 'off';
  /** Default: those of this host. */
  readonly cgroups?: Cgroups;
  /** Folder of the host's device nodes. Default `/dev`. */
  readonly deviceDir?: string;
}

export interface ProcessHost extends Required<Pick<ProcessRuntimeOptions, 'owner' | 'clock' | 'cgroups' | 'deviceDir'>> {
  readonly at: Layout;
  readonly root: boolean;
  readonly mode: Intent['mode'];
  /** The reason for that mode, as a sentence. */
  readonly why: string;
  /** What would let sandboxes run in bubblewrap. */
  readonly fix: string;
  readonly trials: Pick<Trials, 'doubts' | 'path'>;
  /** Whether sandboxes get a network of their own, and why, as a sentence; what to do about it, null: nothing. */
  readonly network: { readonly own: boolean; readonly why: string; readonly fix: string | null };
  readonly boot: string;
  /** Bubblewrap's options for the parts of the host that sandboxes see. */
  readonly mounts: readonly string[];
  /** Seccomp filter of system calls that jobs may not make; null if it cannot be applied here. */
  readonly filter: Uint8Array | null;
  /** What limits the number of a job's processes; null if nothing does. */
  readonly processLimit: 'cgroup' | 'rlimit' | null;
  /** Descriptors that the manager inherited and would pass on to every job. */
  readonly inherited: readonly number[];
  /** Folder for jobs that run as another user without mounts. Others must be able to pass through its parents. */
  readonly openDir: string;
}

/** Probes bubblewrap, finds control groups, creates the folders of the runtime. */
export async function lookAtHost(options: ProcessRuntimeOptions): Promise<ProcessHost> {
  const { owner, dir, clock = systemClock, deviceDir = '/dev', cgroups = findCgroups(owner) } = options;
  const root = process.getuid?.() === 0;
  const at = layout(dir);
  const filter = seccompFilter(process.arch);
  for (const folder of [at.agents, at.exits]) await mkdir(folder, { recursive: true, mode: 0o700 });
  const trials = openTrials(join(dir, 'trials.json'));
  const isOff = options.bubblewrap === 'off';
  using limit = deadline(clock, 2 * trialLimit);
  const probe = isOff ? null : await probeBubblewrap(limit.signal, root ? firstUid : null, filter);
  const usable = probe !== null && trials.settle('bubblewrap', probe.sandbox);
  const fix = bubblewrapFix(probe?.sandbox ?? { end: 'absent' }, (name) => readOr(`/proc/sys/${name}`, ''));
  const net: Trial = usable
    ? await probeNetwork(root, at.agents)
    : { end: 'absent', why: 'A network of their own needs bubblewrap.' };
  const ownNetwork = usable && trials.settle('network', net);
  const network = {
    own: ownNetwork,
    why: net.why,
    fix: ownNetwork ? null : usable ? networkFix(net) : `${fix} Install pasta, too: apt-get install passt.`,
  };
  // A job that runs as the user who started onejob could do everything through another process of that user.
  const filtered = usable ? trials.settle('seccomp', probe.filtered) : root && filter !== null && (await canLoad(filter, dir));
  const mode: Intent['mode'] = usable ? 'bubblewrap' : 'plain';
  const hasRlimit = root || (usable && compareVersions(leadingVersion(release()) ?? '', '5.14') >= 0);
  return {
    clock,
    owner,
    at,
    root,
    cgroups,
    mode,
    why: probe?.sandbox.why ?? 'Bubblewrap was turned off.',
    fix,
    trials,
    network,
    boot: bootId(),
    mounts: usable ? hostMounts() : [],
    filter: filtered ? filter : null,
    processLimit: cgroups.pids !== null ? 'cgroup' : hasRlimit ? 'rlimit' : null,
    inherited: inheritedDescriptors(),
    deviceDir,
    openDir: `/var/lib/onejob-agents-${owner}`,
  };
}

function networkFix({ end }: Trial): string {
  if (end === 'absent') return 'Install pasta: apt-get install passt.';
  return 'Update pasta (Debian package "passt") if it does not know an option; "pasta --version" says what is there.';
}

/** Whether a command ran under the filter, according to its own status. If it has not ended by then, it is used all the same. */
async function canLoad(filter: Uint8Array, dir: string): Promise<boolean> {
  const file = join(dir, '.filter');
  await writeFile(file, filter);
  const [program = 'perl', ...args] = filterLoader(process.arch, file);
  const command = [...args, 'grep', '^Seccomp:', '/proc/self/status'];
  const ended = await run(program, command, { env: { PATH: searchPath }, timeout: trialLimit });
  const { code, stdout } = ended;
  await rm(file, { force: true });
  return wasLate(ended) || (code === 0 && /^Seccomp:\s+2$/m.test(stdout.toString()));
}

/** Programs that every sandbox needs. All are part of every Debian, Ubuntu and Fedora. */
const needed = ['sh', 'dd', 'cat', 'mkfifo', 'tar', 'rm', 'env', 'setsid'];

/** Where limits of control groups are. */
const ownLimits = 'Run onejob as root or by "onejob service install --user" (systemd 254 or newer, control groups of version 2)';

/** The findings of `doctor` about the process runtime. */
export async function hostFindings(host: ProcessHost): Promise<Finding[]> {
  const findings: Finding[] = [
    bubblewrap(host),
    networkFinding(host),
    seccomp(host),
    devices(host),
    ...host.trials.doubts.map(doubt(host)),
  ];
  const files = host.mode === 'plain' && host.root ? dirname(host.openDir) : host.at.agents;
  findings.push(...noexec(files, readOr('/proc/self/mountinfo', '')));
  for (const name of host.root ? [...needed, 'setpriv', 'chown'] : needed) {
    if (await isInstalled(name)) continue;
    const message = `The program "${name}" was not found in ${searchPath}; no agent can start without it.`;
    findings.push(problem(name, message, `Install the package that holds "${name}".`));
  }
  const { memory, cpu, kills } = host.cgroups;
  const missing = [memory === null ? 'memory' : null, cpu === null ? 'cpus' : null].filter((name) => name !== null);
  if (missing.length > 0) {
    const message = `Limits on ${missing.join(' and ')} are not enforced: there is no writable control group for them.`;
    findings.push(warning('limits', message, `${ownLimits}, or use "runtime: docker" for pools that need limits.`));
  } else findings.push(fine('limits', 'Limits on memory and CPUs are enforced.'));
  if (host.processLimit === null) {
    const message =
      'The number of processes of a job is not limited, and "pids" has no effect: there is no writable control group for it.';
    findings.push(
      warning('pids', message, `${ownLimits}, let jobs run in bubblewrap (Linux 5.14 or newer), or use "runtime: docker".`),
    );
  } else findings.push(fine('pids', 'Limits on the number of processes are enforced.'));
  if (host.mode === 'plain' && !kills) findings.push(noGroupKill(release()));
  return findings;
}

/** Of a plain process whose group cannot be ended at once. `kernel`: its release. */
export function noGroupKill(kernel: string): Finding {
  const isOld = compareVersions(leadingVersion(kernel) ?? '', '5.14') < 0;
  const why = isOld ? 'the kernel is older than Linux 5.14' : 'onejob may make no control groups of version 2';
  const message = `A job that forks quickly takes longer to end: its processes cannot be ended all at once, because ${why}.`;
  return warning('cgroup.kill', message, `Let jobs run in bubblewrap, or use ${isOld ? 'Linux 5.14 or newer as root' : 'root'}.`);
}

/** Of what could not be shown now, and jobs have all the same. */
const doubt =
  ({ trials }: Pick<ProcessHost, 'trials'>) =>
  (why: string): Finding =>
    warning(
      'isolation',
      `${why} Jobs are isolated by it all the same, or do not start.`,
      `Restart the daemon when the host is less busy. If the host cannot do it any more, delete ${trials.path} first.`,
    );

function bubblewrap(host: ProcessHost): Finding {
  if (host.mode === 'bubblewrap') return fine('bubblewrap', host.why);
  const message = `${host.why} Jobs are less isolated from each other.`;
  return warning('bubblewrap', message, host.fix);
}

/** Whether jobs share the network of this host. */
export function networkFinding({ network }: Pick<ProcessHost, 'network'>): Finding {
  if (network.fix === null)
    return fine(
      'network',
      `Jobs have networks of their own: they can take no port of this host, nor reach its localhost. ${network.why}`,
    );
  const message = `Jobs share this host's network: they can reach services on localhost, and listen in the place of those that have ended. ${network.why}`;
  return warning(
    'network',
    message,
    `${network.fix} Pools of a service whose jobs go through the filter start nothing until then.`,
  );
}

function seccomp({ mode, root, filter }: ProcessHost): Finding {
  if (filter !== null) {
    const message =
      "Jobs may make the system calls that Docker allows: none of those reaches the kernel's keyring, mounts or namespaces.";
    return fine('seccomp', message);
  }
  const why = mode === 'plain' && !root ? 'Without bubblewrap and root' : 'On this host';
  return warning(
    'seccomp',
    `${why} jobs may make every system call: they can read keys of the session that started onejob, and leave keys for later jobs.`,
    mode === 'plain' ? 'Let jobs run in bubblewrap; if onejob runs as root, perl is enough.' : 'Use "runtime: docker".',
  );
}

/** On such a disk every build in a workspace ends with 126. */
export function noexec(files: string, mountinfo: string): Finding[] {
  const mount = mountOf(attempt(() => realpathSync(files)) ?? files, mountinfo);
  if (mount?.options.includes('noexec') !== true) return [];
  const message = `The files of jobs are in ${files}, and ${mount.point} is mounted noexec: no job can execute what it builds or brings along (exit code 126).`;
  const hint = `Keep the state on another disk (state_dir in the config), or type "mount -o remount,exec ${mount.point}".`;
  return [problem('noexec', message, hint)];
}

/** A host without GPUs needs no warning. */
function devices({ mode, deviceDir }: ProcessHost): Finding {
  if (mode === 'bubblewrap') return fine('devices', 'A job can only use the GPUs of the host that were leased to it.');
  const message =
    'Variables such as CUDA_VISIBLE_DEVICES tell jobs which GPUs are theirs, but do not restrict them: jobs can use every GPU.';
  const gpus = ['nvidiactl', 'kfd'].some((name) => existsSync(join(deviceDir, name)));
  if (!gpus) return fine('devices', message);
  return warning('devices', message, 'Let jobs run in bubblewrap, or use "runtime: docker" for pools with devices.');
}
