/** The findings of `doctor` about the process runtime. */
import { existsSync } from 'node:fs';
import { access, constants } from 'node:fs/promises';
import { join } from 'node:path';
import { type Finding, fine, problem, warning } from '../../finding.ts';
import { path } from './bubblewrap.ts';
import type { Host } from './host.ts';

/** Programs that every sandbox needs. All are part of every Debian, Ubuntu and Fedora. */
const needed = ['sh', 'dd', 'cat', 'mkfifo', 'tar', 'rm', 'env', 'setsid'];

export async function findings(host: Host): Promise<Finding[]> {
  const found: Finding[] = [bubblewrap(host), seccomp(host), devices(host)];
  for (const name of host.root ? [...needed, 'setpriv'] : needed) {
    if (await isInstalled(name)) continue;
    const message = `The program "${name}" was not found in ${path}; no agent can start without it.`;
    found.push(problem(name, message, `Install the package that holds "${name}".`));
  }
  const { memory, cpu, kills } = host.cgroups;
  const missing = [memory === null ? 'memory' : null, cpu === null ? 'cpus' : null].filter((name) => name !== null);
  if (missing.length > 0) {
    const message = `Limits on ${missing.join(' and ')} are not enforced: there is no writable control group for them.`;
    found.push(warning('limits', message, 'Run onejob as root, or use "runtime: docker" for pools that need limits.'));
  } else found.push(fine('limits', 'Limits on memory and CPUs are enforced.'));
  if (host.processLimit === null) {
    const message =
      'The number of processes of a job is not limited, and "pids" has no effect: there is no writable control group for it.';
    found.push(warning('pids', message, 'Run onejob as root, install bubblewrap (Linux 5.14 or newer), or use "runtime: docker".'));
  } else found.push(fine('pids', 'Limits on the number of processes are enforced.'));
  if (host.mode === 'plain' && !kills) {
    const message =
      'The kernel of this host cannot end a whole group of processes at once; a job that forks quickly takes longer to end.';
    found.push(warning('cgroup.kill', message, 'Install bubblewrap, or use Linux 5.14 or newer as root.'));
  }
  return found;
}

function bubblewrap(host: Host): Finding {
  if (host.mode === 'bubblewrap') return fine('bubblewrap', host.why);
  const message = `${host.why} Jobs are less isolated from each other.`;
  return warning('bubblewrap', message, 'Install bubblewrap: apt-get install bubblewrap.');
}

function seccomp({ mode, root, filter }: Host): Finding {
  if (filter !== null) {
    const message =
      "Jobs may make the system calls that Docker allows: none of those reaches the kernel's keyring, mounts or namespaces.";
    return fine('seccomp', message);
  }
  const why = mode === 'plain' && !root ? 'Without bubblewrap and root' : 'On this host';
  return warning(
    'seccomp',
    `${why} jobs may make every system call: they can read keys of the session that started onejob, and leave keys for later jobs.`,
    mode === 'plain' ? 'Install bubblewrap; if onejob runs as root, perl is enough.' : 'Use "runtime: docker".',
  );
}

/** A host without GPUs needs no warning. */
function devices({ mode, deviceDir }: Host): Finding {
  if (mode === 'bubblewrap') return fine('devices', 'A job can only use the GPUs of the host that were leased to it.');
  const message =
    'Variables such as CUDA_VISIBLE_DEVICES tell jobs which GPUs are theirs, but do not restrict them: jobs can use every GPU.';
  const gpus = ['nvidiactl', 'kfd'].some((name) => existsSync(join(deviceDir, name)));
  if (!gpus) return fine('devices', message);
  return warning('devices', message, 'Install bubblewrap, or use "runtime: docker" for pools with devices.');
}

async function isInstalled(name: string): Promise<boolean> {
  const found = path.split(':').map((folder) => access(`${folder}/${name}`, constants.X_OK));
  return (await Promise.allSettled(found)).some(({ status }) => status === 'fulfilled');
}
