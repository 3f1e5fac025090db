/**
 * Makes a sandbox: its container, a workspace for its user, and then its start. An earlier attempt is continued. A sandbox that
 * nobody waits for any more, or that got foreign devices, is removed before this ends.
 */
import { hash } from 'node:crypto';
import type { Progress } from '../../base/abortable.ts';
import { type ErrorCode, hasCode, messageOf, OnejobError } from '../../base/errors.ts';
import type { AgentId } from '../../core/slot.ts';
import type { Recipe, Runtime, SandboxSpec } from '../../ports/runtime.ts';
import { type Endpoint, endpointUrl } from '../engine/endpoint.ts';
import type { Engine } from '../engine/engine.ts';
import { statusOf, translate } from '../engine/failures.ts';
import type { Image, Images } from '../engine/image.ts';
import { placedOf, verifyMounts } from '../mounts.ts';
import type { Containers } from './containers.ts';
import { type CreateContext, containerName, createBody, labels } from './create.ts';
import type { Devices } from './devices.ts';
import type { Exits } from './exits.ts';
import type { Networks } from './networks.ts';
import { verifyOciRuntime } from './oci-runtime.ts';
import { type Givers, giveWorkspace, type Owner } from './workspace.ts';

/** What all containers of sandboxes are made with. */
export interface SandboxParts extends Pick<CreateContext, 'owner' | 'boot' | 'log'> {
  readonly engine: Engine;
  readonly containers: Containers;
  readonly networks: Pick<Networks, 'resolve' | 'forget'>;
}

/** What another engine does for one inside of a container of it: this host sees nothing of its containers. */
export interface InnerEngine {
  /** Gives the workspace to the user of the sandbox. */
  readonly give: (agent: AgentId, owner: Owner, signal: AbortSignal) => Promise<void>;
}

interface PrepareParts extends SandboxParts {
  readonly images: Images;
  readonly devices: Pick<Devices, 'grant' | 'retreat' | 'verify'>;
  readonly exits: Pick<Exits, 'engineStart' | 'sawAlive'>;
  readonly givers: Pick<Givers, 'give'>;
  /** null: the Engine is not in a container of another. */
  readonly inside?: InnerEngine | null;
}

export function createPrepare(parts: PrepareParts): Runtime['prepare'] {
  const { engine, owner, boot, log, containers, images, networks, devices, exits, givers, inside = null } = parts;
  const { endpoint } = engine;

  /** Its container, and of which start of the Engine that says it is. */
  const make = async (spec: SandboxSpec, image: Image, signal: AbortSignal): Promise<{ id: string; of: string | null }> => {
    const [mount] = spec.recipe.mounts;
    if (mount !== undefined && endpoint.kind !== 'unix') throw elsewhere(spec, mount.host, endpoint);
    await verifyOciRuntime(engine, spec, signal);
    const network = await networks.resolve(spec.recipe.network);
    const podman = await engine.isPodman(signal);
    const grant = await devices.grant(spec, signal);
    // Podman has no daemon that ends its containers.
    const engineStart = podman ? null : await exits.engineStart(signal);
    try {
      const context = {
        owner,
        boot,
        engineStart,
        imageId: image.id,
        imagePath: image.path,
        network,
        podman,
        log,
        grant,
        inside: inside !== null,
      };
      return { id: await engine.create(containerName(spec), createBody(spec, context)), of: engineStart };
    } catch (error) {
      // Podman answers 500 for a name that is in use.
      if (statusOf(error) === 409 || statusOf(error) === 500) {
        const there = await containers.find(spec.agent, signal);
        if (there !== null) {
          const container = await engine.inspect(there, signal);
          // Empty where the Engine has no start, as Podman.
          return { id: there, of: container?.Config.Labels?.[labels.engine] || null };
        }
      }
      throw prepareRefusal(error, spec, endpoint);
    }
  };

  const start = async (spec: SandboxSpec, image: Image, progress: Progress, signal: AbortSignal): Promise<void> => {
    const { id, of } = await make(spec, image, signal);
    containers.note(spec.agent, id);
    // An aborted request may still take effect, so it was not aborted. Now nothing may stay behind.
    if (signal.aborted) {
      await containers.remove(spec.agent);
      signal.throwIfAborted();
    }
    const user = spec.recipe.user ?? image.user;
    const files = await containers.filesOf(spec.agent, { id, image: image.id, user }, signal);
    if (files.uid !== 0 || files.gid !== 0) {
      // Podman unpacks into the volume whatever the root is.
      if (inside !== null) await inside.give(spec.agent, files, signal);
      else if (!spec.recipe.readOnly || (await engine.isPodman(signal))) await giveWorkspace(engine, id, files, signal);
      else await givers.give(spec.agent, { id, image: image.id }, files, signal);
    }
    try {
      await engine.start(id);
      exits.sawAlive([id]);
    } catch (error) {
      throw prepareRefusal(error, spec, endpoint);
    }
    await verifyStart(parts, spec, of, signal);
    if (inside !== null) return;
    try {
      await devices.verify(spec, id, progress, signal);
      await verifyFolders(engine, spec, id, signal);
    } catch (error) {
      // Its gate waits with foreign devices or folders, so nothing may release it.
      if (hasCode(error, 'E_DEVICES_GRANTED') || hasCode(error, 'E_MOUNT_CHANGED')) await containers.remove(spec.agent);
      throw error;
    }
  };

  return async (spec, progress, signal, chosen) => {
    const madeOf = (image: Image) => ({ fingerprint: dockerFingerprint(spec.recipe, image, boot), imageId: image.id });
    let image = await images.get(spec.recipe, progress, signal);
    chosen?.(madeOf(image));
    try {
      await start(spec, image, progress, signal);
    } catch (error) {
      // Something that should exist does not: try once more.
      const isGone = error instanceof OnejobError && ['E_IMAGE_NOT_FOUND', 'E_NETWORK_NOT_FOUND'].includes(error.code);
      if (!isGone && !devices.retreat(error)) throw error;
      signal.throwIfAborted();
      await containers.remove(spec.agent);
      images.forget(spec.recipe);
      networks.forget();
      image = await images.get(spec.recipe, progress, signal);
      chosen?.(madeOf(image));
      await start(spec, image, progress, signal);
    }
    return madeOf(image);
  };
}

/**
 * An Engine that stops still serves, and the socket that systemd keeps for it passes a call on to the next one. So a container may say
 * that it is of an earlier start than the one that has started it, and however it ends would count as the end of its Engine.
 */
export async function verifyStart(
  { containers, exits }: { containers: Containers; exits: Pick<Exits, 'engineStart'> },
  { agent, name }: SandboxSpec,
  of: string | null,
  signal: AbortSignal,
): Promise<void> {
  if (of === null || (await exits.engineStart(signal)) === of) return;
  await containers.remove(agent);
  const hint = 'onejob tries again by itself.';
  throw new OnejobError('E_ENGINE_FAILED', `Cannot start agent ${name}: the Engine was restarted meanwhile.`, {
    hint,
    retry: true,
  });
}

/** Whether a container has the folders of this host that it should. @throws OnejobError E_MOUNT_CHANGED */
export async function verifyFolders(engine: Engine, spec: SandboxSpec, id: string, signal: AbortSignal): Promise<void> {
  if (spec.recipe.mounts.length === 0) return;
  const container = await engine.inspect(id, signal);
  if (container === null || !container.State.Running) return;
  // Of each container the Engine mounts files from a folder with its id, such as /etc/hosts.
  await verifyMounts(spec.name, container.State.Pid, placedOf(spec), (mounts) => mounts.includes(id));
}

/** What a standby was made from, as one short word (S11): recipe, image and boot. The order of keys does not matter. */
export function dockerFingerprint({ pull: _, imageId: __, ...recipe }: Recipe, image: Image, bootId: string | null): string {
  const sorted = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.map(sorted);
    if (typeof value !== 'object' || value === null) return value;
    const entries = Object.entries(value).map(([key, item]) => [key, sorted(item)] as const);
    return Object.fromEntries(entries.sort(([a], [b]) => (a < b ? -1 : 1)));
  };
  return hash('sha256', JSON.stringify(sorted({ recipe, image: image.id, bootId }))).slice(0, 32);
}

/** Explains why the Engine refused to create or start a container: mostly because of the recipe. */
export function prepareRefusal(error: unknown, spec: SandboxSpec, endpoint: Endpoint): OnejobError {
  if (error instanceof OnejobError) return error;
  const doing = `start agent ${spec.name}`;
  if (statusOf(error) === null) return translate(error, doing, endpoint);
  const message = messageOf(error);
  const { recipe, pool } = spec;
  const fail = ({ code, what, hint, retry = false }: Reason) =>
    new OnejobError(code, `Cannot ${doing}: ${what}.`, { hint, retry, cause: error });

  const device = spec.devices.length > 0 ? deviceReason(message, spec) : null;
  if (device !== null) return fail({ code: 'E_DEVICES_REFUSED', ...device });
  const mount = /bind source path does not exist: (\S+)/.exec(message) ?? /statfs (\S+): no such file or directory/.exec(message);
  if (mount !== null) {
    const key = recipe.mounts.some(({ host, cache }) => host === mount[1] && cache !== null) ? 'caches' : 'volumes';
    const hint = /\.sock$/.test(mount[1] ?? '')
      ? `Start the program that listens there, or change the path in the config: pools.${pool}, or the service that asks for it.`
      : `Create it (mkdir -p ${mount[1]}), or remove it from ${key} in pools.${pool}${key === 'volumes' ? ", or from the job's own" : ''}.`;
    return fail({ code: 'E_MOUNT_MISSING', what: `the path "${mount[1]}" of its ${key} is not on this host`, hint });
  }
  if (/no such image/i.test(message)) {
    const what = `image "${recipe.image}" is no longer on the Engine`;
    return fail({ code: 'E_IMAGE_NOT_FOUND', what, hint: `Type "docker pull ${recipe.image}".`, retry: true });
  }
  if (/network .*not found|could not find network/i.test(message)) {
    const { network } = recipe;
    const change = `Type "docker network create ${network}", or change network in pools.${pool}.`;
    const [hint, retry] = network === 'default' ? ['onejob creates it again.', true] : [change, false];
    return fail({ code: 'E_NETWORK_NOT_FOUND', what: `the Engine has no network "${network}"`, hint, retry });
  }
  if (/unable to find (user|group)|no matching entries in (passwd|group) file/i.test(message)) {
    const what = `the image "${recipe.image}" has no user "${recipe.user ?? 'of its own'}"`;
    return fail({ code: 'E_USER_UNKNOWN', what, hint: `Write a uid, or a user of the image, as user in pools.${pool}.` });
  }
  if (/"docker-init": executable file not found|container-init binary not found/.test(message)) {
    const what = `the Engine has no program that stands for init in a sandbox: ${message}`;
    const hint = 'Install it: for Docker the package tini or docker-init, for Podman catatonit.';
    return fail({ code: 'E_ENGINE_FAILED', what, hint });
  }
  if (/executable file .*not found|exec: "sh"|"sh": /i.test(message)) {
    const what = `the image "${recipe.image}" has no "sh"; the gate needs a POSIX shell`;
    return fail({ code: 'E_NO_SHELL', what, hint: `Use another image in pools.${pool}.` });
  }
  if (statusOf(error) === 409 && /name .*(in use|already)/i.test(message)) {
    const what = 'a container with its name exists, and it does not belong to onejob';
    return fail({ code: 'E_NAME_TAKEN', what, hint: 'Inspect it with "docker ps -a".', retry: true });
  }
  return translate(error, doing, endpoint);
}

interface Reason {
  readonly code: ErrorCode;
  /** A clause: "Cannot …: <what>." */
  readonly what: string;
  readonly hint: string;
  readonly retry?: boolean;
}

/** Why the Engine cannot grant devices; null if it refused for another reason. */
function deviceReason(message: string, { recipe, pool, devices }: SandboxSpec): Omit<Reason, 'code'> | null {
  const names = devices.map(({ uuid }) => uuid).join(', ');
  if (/could not select device driver|nvidia-container-runtime-hook.*not found/.test(message)) {
    const hint = 'Install nvidia-container-toolkit and restart Docker, which looks for it only when it starts.';
    return { what: `the Engine has no driver that can give it ${names}: ${message}`, hint };
  }
  const cdi = /unresolvable CDI devices? (.*?)(?:: unknown)?$/m.exec(message);
  if (cdi !== null) {
    const generate = 'Type "nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml", as after each change of MIG instances';
    const hint = `${generate}, or set "grant: request".`;
    return { what: `the Engine has no CDI specification for ${cdi[1]}`, hint, retry: true };
  }
  if (/unknown (or invalid )?runtime/i.test(message)) {
    const hint = 'Type "sudo nvidia-ctk runtime configure --runtime=docker" and restart Docker.';
    return { what: 'the Engine has no runtime "nvidia"', hint };
  }
  const needs = /unsatisfied condition: ([^,]+)/.exec(message);
  if (needs !== null) {
    const what = `the image "${recipe.image}" needs ${needs[1]}, and the driver of this host does not have it`;
    return { what, hint: `Use an image for an older CUDA in pools.${pool}, or update the driver.` };
  }
  if (/gathering device information/.test(message)) {
    return { what: `a device node is no longer on this host (${message})`, hint: 'See "onejob gpus".', retry: true };
  }
  const hook = /running (?:\S+ )?hook.*?stderr: (.*)/is.exec(message) ?? /(nvidia-container-(?:cli|runtime)\S*: .*)/s.exec(message);
  if (hook === null) return null;
  const lines = (hook[1] ?? '')
    .replace(/: unknown$/, '')
    .trim()
    .split('\n');
  const hint = 'Run "nvidia-smi" and "onejob doctor" on its host.';
  return { what: `the Engine failed to give it ${names}: ${lines.at(-1)}`, hint, retry: true };
}

/** The Engine would mount the path of its own host. */
function elsewhere({ name, pool }: SandboxSpec, path: string, endpoint: Endpoint): OnejobError {
  const where = `the path "${path}" of its volumes is on this host, but the Engine at ${endpointUrl(endpoint)} is not`;
  const hint = `Remove the volumes from pools.${pool}, or use an Engine on this host.`;
  return new OnejobError('E_MOUNT_MISSING', `Cannot start agent ${name}: ${where}.`, { hint });
}
