/**
 * Another OCI runtime for the sandboxes of a pool, such as gVisor's runsc or Kata Containers: a kernel of the sandbox's own between a job
 * and that of the host. It has to be known to the Engine; onejob names it and nothing else.
 */
import { OnejobError, toFailure } from '../../base/errors.ts';
import type { DockerEnvironment } from '../../config/environment.ts';
import type { SandboxSpec } from '../../ports/runtime.ts';
import { resolveEndpoint } from '../engine/endpoint.ts';
import type { Engine } from '../engine/engine.ts';
import { type InfoAnswer, probeDocker } from '../engine/probe.ts';

/** Why an Engine starts no sandbox with the OCI runtime, as the end of a sentence; null if it does. */
export function ociObstacle(name: string, { Runtimes: known }: Pick<InfoAnswer, 'Runtimes'>, isPodman: boolean): string | null {
  // Podman ignores the field of the request, and starts every container with the runtime of its own configuration.
  if (isPodman) return 'Podman has one runtime for all containers; write "runtime" into its containers.conf instead';
  // Engine 23 and later find shims of containerd by their name: https://docs.docker.com/engine/daemon/alternative-runtimes/
  if (known == null || Object.hasOwn(known, name) || name.startsWith('io.containerd.')) return null;
  const names = Object.keys(known).filter((one) => !one.startsWith('io.containerd.'));
  return `the Engine knows only ${names.join(', ')}; add ${name} to "runtimes" in /etc/docker/daemon.json and type "sudo systemctl reload docker"`;
}

/** The same for the Engine that the environment names. An Engine that is silent may have it. Never throws. */
export async function ociObstacleHere(name: string, environment: DockerEnvironment): Promise<string | null> {
  try {
    const probe = await probeDocker(await resolveEndpoint(environment), new AbortController().signal);
    return probe.reachable ? ociObstacle(name, probe.info, probe.podman) : null;
  } catch (error) {
    return toFailure(error).message.replace(/\.$/, '');
  }
}

/** @throws OnejobError E_OCI_RUNTIME */
export async function verifyOciRuntime(engine: Engine, { name, pool, recipe }: SandboxSpec, signal: AbortSignal): Promise<void> {
  const { ociRuntime } = recipe;
  if (ociRuntime === undefined) return;
  const why = ociObstacle(ociRuntime, await engine.info(signal), await engine.isPodman(signal));
  if (why === null) return;
  const message = `Cannot start agent ${name} with the OCI runtime ${ociRuntime}: ${why}.`;
  const hint = `onejob tries again by itself. Or change "oci_runtime" in pools.${pool}.`;
  throw new OnejobError('E_OCI_RUNTIME', message, { hint, retry: true });
}
