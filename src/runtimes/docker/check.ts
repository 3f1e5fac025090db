/** What `doctor` says about an Engine. */
import { statfs } from 'node:fs/promises';
import type { Finding } from '../runtime.ts';
import { type Endpoint, endpointUrl } from './endpoint.ts';
import type { Firewall } from './firewall.ts';
import { type DockerProbe, probeDocker } from './probe.ts';

export async function checkEngine(endpoint: Endpoint, signal: AbortSignal): Promise<Finding[]> {
  const probe = await probeDocker(endpoint, signal);
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
      message: 'This is Podman: memory kills are reported as exit code 137, and GPUs are not granted through this socket.',
      hint: 'Use Docker Engine for pools with devices.',
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
  for (const warning of probe.warnings) {
    if (/^WARNING: No (memory|swap|kernel|oom|cpu)/i.test(warning)) {
      findings.push({ level: 'warning', subject, message: `The Engine says: ${warning.replace(/^WARNING: /, '')}.`, hint: null });
    }
  }
  const disk = await diskOf(probe);
  if (disk !== null) findings.push(disk);
  return findings;
}

/** A limit of this host, and no fault: only pools that ask for that network mind. */
export async function checkInternet(firewall: Firewall): Promise<Finding> {
  const why = await firewall.obstacle();
  if (why === null) return { level: 'ok', subject: 'docker', message: 'Pools may have network: internet.', hint: null };
  return { level: 'ok', subject: 'docker', message: `Pools cannot have network: internet, because ${why}.`, hint: null };
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
