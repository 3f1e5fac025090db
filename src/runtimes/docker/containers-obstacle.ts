/** Whether agents of a host can have an engine of their own: such engines make user namespaces, as users without rights. */
import { readFileSync } from 'node:fs';
import { release } from 'node:os';
import { attempt, toFailure } from '../../base/errors.ts';
import type { DockerEnvironment } from '../../config/environment.ts';
import { type Endpoint, resolveEndpoint } from '../engine/endpoint.ts';
import { probeDocker } from '../engine/probe.ts';
import { engineProfile, isProfileLoaded } from './apparmor.ts';
import { cardsObstacle } from './engine-cards.ts';

/** What is known of a kernel. */
export interface KernelLook {
  readonly release: string;
  /** A value below /proc/sys; null: this kernel has none of that name. */
  readonly sysctl: (name: string) => string | null;
  /** Whether AppArmor has the profile of engines. */
  readonly isProfileLoaded: () => boolean;
}

const thisKernel: KernelLook = {
  release: release(),
  sysctl: (name) => attempt(() => readFileSync(`/proc/sys/${name.replaceAll('.', '/')}`, 'utf8').trim()),
  isProfileLoaded: () => isProfileLoaded(),
};

/** Their storage is overlayfs, which a user namespace may mount since then. */
const oldest = [5, 13] as const;

/** The value of a setting that leaves users without namespaces, and who does so. */
const settings = [
  ['user.max_user_namespaces', '0', 'the kernel lets nobody make user namespaces'],
  ['kernel.unprivileged_userns_clone', '0', 'the kernel lets only root make user namespaces'],
] as const;

const byAppArmor = 'kernel.apparmor_restrict_unprivileged_userns';

/** Why the kernel of this host allows no such engine, as the end of a sentence; null if it does. */
export function kernelObstacle({ release, sysctl, isProfileLoaded }: KernelLook = thisKernel): string | null {
  const [major = 0, minor = 0] = release.split('.').map((part) => Number.parseInt(part, 10));
  if (major < oldest[0] || (major === oldest[0] && minor < oldest[1]))
    return `the kernel of this host is ${release}, and ${oldest.join('.')} is the first in which users can mount overlayfs`;
  const [found] = settings.filter(([name, bad]) => sysctl(name) === bad);
  if (found !== undefined) return `${found[2]} (sysctl ${found[0]} is ${found[1]})`;
  if (sysctl(byAppArmor) !== '1' || isProfileLoaded()) return null;
  return `AppArmor keeps users from making namespaces (sysctl ${byAppArmor} is 1), and its profile ${engineProfile.name} is not loaded: as root, type "onejob service install"`;
}

/** Why it cannot be on this Engine, whatever its kernel; null if it can. */
export function engineObstacle({ kind }: Pick<Endpoint, 'kind'>, isPodman: boolean): string | null {
  if (kind !== 'unix') return 'it needs a Docker Engine on this host';
  return isPodman ? 'it needs a Docker Engine, and this is Podman' : null;
}

/**
 * Why agents of this host can have no engine, or with `cards` none with cards of NVIDIA's, as the end of a sentence; null if nothing is known
 * against it. Never throws.
 */
export async function containersObstacle(environment: DockerEnvironment, cards = false): Promise<string | null> {
  try {
    const endpoint = await resolveEndpoint(environment);
    const why = engineObstacle(endpoint, false) ?? kernelObstacle();
    if (why !== null) return why;
    const probe = await probeDocker(endpoint, new AbortController().signal);
    return (probe.reachable ? engineObstacle(endpoint, probe.podman) : null) ?? (cards ? await cardsObstacle() : null);
  } catch (error) {
    return toFailure(error).message.replace(/\.$/, '');
  }
}
