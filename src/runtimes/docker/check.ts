/** What `doctor` says about an Engine. */
import { existsSync } from 'node:fs';
import { statfs } from 'node:fs/promises';
import { toFailure } from '../../base/errors.ts';
import { type Finding, fine, problem, warning } from '../../base/finding.ts';
import type { PoolConfig } from '../../config/config.ts';
import type { DockerEnvironment } from '../../config/environment.ts';
import type { Clock } from '../../core/clock.ts';
import type { EngineFacts } from '../../gpu/host-facts.ts';
import type { GrantWay } from '../../ports/runtime.ts';
import { roomOf } from '../../system/disk-room.ts';
import { systemClock } from '../../system/system-clock.ts';
import { type Endpoint, endpointUrl, resolveEndpoint } from '../engine/endpoint.ts';
import { type InfoAnswer, probeDocker } from '../engine/probe.ts';
import { createFirewall, type Firewall } from './firewall.ts';
import { anyGrant, chooseGrant, type GrantChoice, type GrantMethod } from './grants.ts';

export async function checkEngine(endpoint: Endpoint, signal: AbortSignal, grant: GrantWay, clock: Clock): Promise<Finding[]> {
  const probe = await probeDocker(endpoint, signal, clock);
  const subject = 'docker';
  if (!probe.reachable) return [{ ...problem(subject, probe.error.message, probe.error.hint), code: probe.error.code }];
  const { info, version, podman } = probe;
  const disk = probe.local ? await statfs(info.DockerRootDir).catch(() => null) : null;
  const findings: Finding[] = [fine(subject, `${probe.why} (API ${version.ApiVersion}, from ${endpoint.from}).`)];
  // Podman's containers always outlive a restart.
  if (!podman && !info.LiveRestoreEnabled) {
    const message = 'The Engine runs without live-restore: restarting it ends every running job.';
    const hint = 'Write { "live-restore": true } into /etc/docker/daemon.json and type "sudo systemctl reload docker".';
    findings.push(warning(subject, message, hint));
  }
  findings.push(...lackFindings(info, podman));
  if (podman) findings.push(...podmanFindings(info));
  if (!probe.local) {
    const where = `The Engine at ${endpointUrl(endpoint)} is not on this host`;
    findings.push(warning(subject, `${where}: it only works for pools without devices and volumes.`));
  } else {
    const choice = chooseGrant(info, version, { ...anyGrant, setting: grant });
    const far = disk === null ? 'the Engine does not run directly on this host' : null;
    const blind = process.getuid?.() === 0 ? far : 'onejob is not root';
    findings.push(...grantFindings(choice, blind, existsSync('/dev/nvidiactl') || existsSync('/dev/kfd')));
  }
  if (info.PidsLimit === false) {
    const message = 'This Engine cannot limit processes: a job can start as many as the host can hold, and "pids" has no effect.';
    const hint = 'Use a kernel with the pids control group, and delegate it to a rootless Engine.';
    findings.push(warning(subject, message, hint));
  }
  for (const line of info.Warnings ?? []) {
    if (!/^WARNING: No (memory|swap|kernel|oom|cpu)/i.test(line)) continue;
    findings.push(warning(subject, `The Engine reports: ${line.replace(/^WARNING: /, '')}.`));
  }
  if (disk !== null) {
    const { free, of } = roomOf(info.DockerRootDir, disk) ?? { free: 1 };
    const what = of === 'inodes' ? 'the inodes of the disk' : 'the disk';
    const message = `${Math.round(free * 100)} % of ${what} below ${info.DockerRootDir} is free.`;
    const hint = 'Free space on it, e.g. with "docker image prune".';
    findings.push(free >= 0.1 ? fine('disk', message) : warning('disk', message, hint));
  }
  return findings;
}

/** What an Engine has to have, by its own account; what it does not tell counts as there (docs/runtimes/docker.md). */
const needs: readonly { readonly lacks: (info: InfoAnswer, podman: boolean) => boolean; readonly finding: Finding }[] = [
  {
    lacks: ({ OSType }) => OSType != null && OSType !== 'linux',
    finding: problem(
      'docker',
      'This Engine runs no Linux containers, and onejob makes no others.',
      'Switch it to Linux containers.',
    ),
  },
  {
    lacks: ({ Plugins }, podman) => !podman && Plugins?.Log?.includes('local') === false,
    finding: problem(
      'docker',
      'This Engine has no log driver "local", which keeps the output of jobs.',
      'Use a Docker Engine that has it: "docker info" lists its log drivers.',
    ),
  },
  {
    lacks: ({ Plugins }) => Plugins?.Volume?.includes('local') === false,
    finding: problem(
      'docker',
      'This Engine has no volume driver "local", with which it makes workspaces.',
      'Use an Engine that has it: "docker info" lists its volume drivers.',
    ),
  },
  {
    lacks: ({ Plugins }) => Plugins?.Network?.includes('bridge') === false,
    finding: warning(
      'docker',
      'This Engine has no network driver "bridge": only pools with network: none, host or a network of your own can start.',
      'Use an Engine that has it: "docker info" lists its network drivers.',
    ),
  },
  {
    lacks: ({ SecurityOptions }) => SecurityOptions?.some((one) => /^(?:name=)?seccomp\b/.test(one)) === false,
    finding: warning(
      'docker',
      'This Engine uses no seccomp: jobs may make every system call of the kernel.',
      'Use a kernel and an Engine with seccomp: "docker info" lists it among the security options.',
    ),
  },
];

/** What an Engine lacks. With an error nothing can run on it. */
export function lackFindings(info: InfoAnswer, podman: boolean): Finding[] {
  return needs.filter(({ lacks }) => lacks(info, podman)).map(({ finding }) => finding);
}

/** Measured: Podman 5.4 reports memory kills with cgroup v2, Podman 4.3 with v1 does not. */
export function podmanFindings({ CgroupVersion }: Pick<InfoAnswer, 'CgroupVersion'>): Finding[] {
  if (CgroupVersion === '2') return [];
  return [warning('docker', 'This is Podman on cgroup v1: memory kills are reported as exit code 137.')];
}

const ways: Readonly<Record<GrantMethod, string>> = {
  request: 'through device requests to its NVIDIA driver',
  cdi: 'through their CDI names',
  runtime: 'through the runtime "nvidia"',
};

/** How devices would be granted. `blind`: why onejob cannot check that, or null. Empty on a host without GPUs. */
export function grantFindings(choice: GrantChoice, blind: string | null, gpus: boolean): Finding[] {
  if (!gpus) return [];
  const subject = 'devices';
  const how =
    choice.way === null
      ? warning(subject, `Pools cannot have NVIDIA devices, because ${choice.why}.`, choice.hint)
      : fine(subject, `NVIDIA devices are granted ${ways[choice.way]}, because ${choice.why}.`);
  if (blind === null)
    return [how, fine(subject, 'onejob compares the devices of a sandbox with its lease before it uses the sandbox.')];
  const message = `onejob cannot compare the devices of a sandbox with its lease, because ${blind}: it has to trust the Engine.`;
  return [how, warning(subject, message, "Run onejob as root on the Engine's own host.")];
}

/** This is a limit of the host, not a fault: it concerns only pools that ask for that network. */
export async function checkInternet(firewall: Firewall): Promise<Finding> {
  const why = await firewall.obstacle();
  return fine('docker', why === null ? 'Pools may use network: internet.' : `Pools cannot use network: internet, because ${why}.`);
}

/** Why the network `internet` is not possible here, as the end of a sentence, or null. Asks no Engine. Never throws. */
export async function internetObstacle(settings: DockerEnvironment): Promise<string | null> {
  try {
    const { kind } = await resolveEndpoint(settings);
    return await createFirewall('nobody', kind === 'unix').obstacle();
  } catch (error) {
    return toFailure(error).message.replace(/\.$/, '');
  }
}

/**
 * The facts about the Engine that gives these pools their devices. null if no pool needs one, it does not answer, or it is not on
 * this host. Throws only when `signal` aborts.
 */
export async function engineFacts(
  pools: readonly Pick<PoolConfig, 'devices' | 'runtime' | 'recipe'>[],
  environment: DockerEnvironment,
  signal: AbortSignal,
  clock: Clock = systemClock,
): Promise<EngineFacts | null> {
  const [pool] = pools.filter(({ devices, runtime }) => devices.count !== 0 && runtime !== 'process');
  if (pool === undefined) return null;
  const setting = pool.recipe.grant.way;
  const endpoint = await resolveEndpoint(environment).catch(() => null);
  const probe = endpoint === null ? null : await probeDocker(endpoint, signal, clock);
  if (probe === null || !probe.reachable || !probe.local) return null;
  const { info, version } = probe;
  const { way } = chooseGrant(info, version, { ...anyGrant, setting });
  return { version: version.Version, cgroupDriver: info.CgroupDriver ?? null, way };
}
