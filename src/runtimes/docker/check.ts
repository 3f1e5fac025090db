/** What `doctor` says about an Engine. */

import { existsSync } from 'node:fs';
import { statfs } from 'node:fs/promises';
import { systemClock } from '../../clock.ts';
import type { Clock } from '../../core/clock.ts';
import { toFailure } from '../../errors.ts';
import type { Finding } from '../runtime.ts';
import { type DockerSettings, type Endpoint, endpointUrl, resolveEndpoint } from './endpoint.ts';
import { createFirewall, type Firewall } from './firewall.ts';
import { anyGrant, chooseGrant, type GrantChoice, type GrantSetting, type Way } from './grants.ts';
import { type DockerProbe, probeDocker } from './probe.ts';

export async function checkEngine(
  endpoint: Endpoint,
  signal: AbortSignal,
  grant: GrantSetting = 'auto',
  clock: Clock = systemClock,
): Promise<Finding[]> {
  const probe = await probeDocker(endpoint, signal, clock);
  const subject = 'docker';
  if (!probe.reachable) {
    return [{ level: 'error', subject, message: probe.error.message, hint: probe.error.hint }];
  }
  const findings: Finding[] = [
    { level: 'ok', subject, message: `${probe.why} (API ${probe.apiVersion}, from ${endpoint.from}).`, hint: null },
  ];
  if (!probe.liveRestore) {
    findings.push({
      level: 'warning',
      subject,
      message: 'The Engine runs without live-restore: restarting it ends every running job.',
      hint: 'Write { "live-restore": true } into /etc/docker/daemon.json and type "sudo systemctl reload docker".',
    });
  }
  if (probe.podman) {
    findings.push({
      level: 'warning',
      subject,
      message: 'This is Podman: memory kills are reported as exit code 137.',
      hint: null,
    });
  }
  if (!probe.local) {
    findings.push({
      level: 'warning',
      subject,
      message: `The Engine at ${endpointUrl(endpoint)} is not on this host: it serves pools without devices and without volumes.`,
      hint: null,
    });
  }
  if (probe.local) {
    const choice = chooseGrant(probe.told.info, probe.told.version, { ...anyGrant, setting: grant });
    const isHere = (await statfs(probe.rootDir).catch(() => null)) !== null;
    const blind = process.getuid?.() !== 0 ? 'onejob is not root' : isHere ? null : 'the Engine does not run on this host itself';
    findings.push(...deviceFindings(choice, blind, existsSync('/dev/nvidiactl') || existsSync('/dev/kfd')));
  }
  if (probe.told.info.PidsLimit === false) {
    findings.push({
      level: 'warning',
      subject,
      message: 'This Engine cannot limit processes: a job can start as many as the host has room for, whatever "pids" says.',
      hint: 'Use a kernel with the pids control group, and for a rootless Engine delegate it.',
    });
  }
  for (const warning of probe.warnings) {
    if (/^WARNING: No (memory|swap|kernel|oom|cpu)/i.test(warning)) {
      findings.push({ level: 'warning', subject, message: `The Engine says: ${warning.replace(/^WARNING: /, '')}.`, hint: null });
    }
  }
  const disk = await diskOf(probe);
  if (disk !== null) findings.push(disk);
  return findings;
}

const ways: Readonly<Record<Way, string>> = {
  request: 'by device requests to its NVIDIA driver',
  cdi: 'by their CDI names',
  runtime: 'by the runtime "nvidia"',
};

/** How devices would be granted, and whether that is checked. `blind` is why nobody can look, or null. Nothing on a host without GPUs. */
export function deviceFindings(choice: GrantChoice, blind: string | null, gpus: boolean): Finding[] {
  if (!gpus) return [];
  const [subject, level] = ['devices', 'warning'] as const;
  const how: Finding =
    choice.way === null
      ? { level, subject, message: `Pools cannot have devices of NVIDIA, because ${choice.why}.`, hint: choice.hint }
      : { level: 'ok', subject, message: `Devices of NVIDIA are granted ${ways[choice.way]}, because ${choice.why}.`, hint: null };
  const sight: Finding =
    blind === null
      ? { level: 'ok', subject, message: 'What a sandbox was granted is compared with its lease before it is used.', hint: null }
      : {
          level,
          subject,
          message: `What a sandbox was granted cannot be compared with its lease, because ${blind}: the Engine is believed.`,
          hint: "Run onejob as root on the Engine's own host.",
        };
  return [how, sight];
}

/** A limit of this host, and no fault: only pools that ask for that network mind. */
export async function checkInternet(firewall: Firewall): Promise<Finding> {
  const why = await firewall.obstacle();
  if (why === null) return { level: 'ok', subject: 'docker', message: 'Pools may have network: internet.', hint: null };
  return { level: 'ok', subject: 'docker', message: `Pools cannot have network: internet, because ${why}.`, hint: null };
}

/** Why there can be no network `internet` here, as the end of a sentence; null when there can. Asks no Engine. Never throws. */
export async function internetObstacle(settings: DockerSettings): Promise<string | null> {
  try {
    const { kind } = await resolveEndpoint(settings);
    return await createFirewall({ owner: 'nobody', local: kind === 'unix' }).obstacle();
  } catch (error) {
    return toFailure(error).message.replace(/\.$/, '');
  }
}

async function diskOf(probe: Extract<DockerProbe, { reachable: true }>): Promise<Finding | null> {
  if (!probe.local) return null;
  const seen = await statfs(probe.rootDir).catch(() => null);
  if (seen === null) return null;
  const free = Number(seen.bavail) / Number(seen.blocks);
  const message = `${Math.round(free * 100)} % of the disk below ${probe.rootDir} is free.`;
  if (free >= 0.1) return { level: 'ok', subject: 'disk', message, hint: null };
  return { level: 'warning', subject: 'disk', message, hint: 'Free space on it, e.g. with "docker image prune".' };
}
