/** Whether an Engine exists, and which. */
import { z } from 'zod';
import { type OnejobError, toFailure } from '../../base/errors.ts';
import { type Clock, deadline } from '../../core/clock.ts';
import { systemClock } from '../../system/system-clock.ts';
import type { Endpoint } from './endpoint.ts';
import { mute, translate, unreachable } from './failures.ts';
import { spokenWith } from './spoken.ts';
import { get } from './wire.ts';

export const versionAnswer = z.object({
  Version: z.string().default('unknown'),
  ApiVersion: z.string().default('unknown'),
  /** Go's name of its architecture, such as `amd64`. */
  Arch: z.string().default(''),
});
export type EngineVersion = z.infer<typeof versionAnswer> & {
  /** Whether it is Podman with its Docker-compatible socket. */
  readonly podman: boolean;
};

/** What an Engine may leave out. Any other shape counts as left out, so that such an Engine can still be used. */
export const lenient = <T extends z.ZodType>(schema: T) => schema.nullish().catch(null);

const strings = z.array(z.string());

export const infoAnswer = z.object({
  LiveRestoreEnabled: z.boolean().default(false),
  /** Folder in which it keeps containers, as it sees the path itself. */
  DockerRootDir: z.string().default(''),
  Warnings: z.array(z.string()).nullish(),
  /** Whether it can limit the number of processes in a container. */
  PidsLimit: lenient(z.boolean()),
  /** `systemd` or `cgroupfs`. */
  CgroupDriver: lenient(z.string()),
  /** `1` or `2`. */
  CgroupVersion: lenient(z.string()),
  OSType: lenient(z.string()),
  /** Names of its drivers. */
  Plugins: lenient(z.object({ Log: lenient(strings), Volume: lenient(strings), Network: lenient(strings) })),
  /** Such as `name=seccomp,profile=default`. */
  SecurityOptions: lenient(strings),
  /** By name. NVIDIA's toolkit adds `nvidia`. */
  Runtimes: lenient(z.record(z.string(), z.unknown())),
  /** Folders of CDI specifications; empty if CDI is turned off (API 1.44). */
  CDISpecDirs: lenient(z.array(z.string())),
  /** Names of devices that can be requested (API 1.50). */
  DiscoveredDevices: lenient(z.array(z.object({ ID: z.string() }))),
});
export type InfoAnswer = z.infer<typeof infoAnswer>;

/** ms of silence after which an Engine counts as absent. */
const patience = 5_000;

/**
 * Probes once. `why` is a clause that names the Engine, or message and hint of the error; `local`: whether it is on this host,
 * according to its address. Throws only when `signal` aborts.
 */
export async function probeDocker(endpoint: Endpoint, signal: AbortSignal, clock: Clock = systemClock) {
  using timeout = deadline(clock, patience, signal);
  try {
    const either = timeout.signal;
    const { podman, version: api } = await spokenWith(endpoint, 'speak', either);
    const ask = (path: string) => get(endpoint, `/v${api}${path}`, either);
    const [versionReply, infoReply] = await Promise.all([ask('/version'), ask('/info')]);
    if (versionReply.status !== 200 || infoReply.status !== 200) {
      const body = versionReply.status === 200 ? infoReply : versionReply;
      const error = new Error(`it answered ${body.status}: ${body.body.slice(0, 200)}`);
      return absent(unreachable(error, 'speak', endpoint));
    }
    const version: EngineVersion = { ...versionAnswer.parse(JSON.parse(versionReply.body)), podman };
    const info = infoAnswer.parse(JSON.parse(infoReply.body));
    const local = endpoint.kind === 'unix';
    const why = `${podman ? 'Podman' : 'Docker Engine'} ${version.Version} answers at ${local ? endpoint.path : endpoint.host}`;
    return { reachable: true as const, why, podman, local, version, info };
  } catch (error) {
    signal.throwIfAborted();
    return absent(timeout.passed ? mute('speak', endpoint, patience) : translate(error, 'speak', endpoint));
  }
}

function absent(error: OnejobError) {
  return { reachable: false as const, why: toFailure(error).message, error };
}
