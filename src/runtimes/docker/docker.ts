/**
 * The docker runtime: sandboxes are containers of a Docker Engine, or of Podman behind its Docker-compatible socket.
 *
 * Everything it makes carries the owner's label. It keeps nothing that a new object over the same Engine could not find
 * again; what is held in memory only saves questions.
 */
import { readFile, statfs } from 'node:fs/promises';
import type { Readable } from 'node:stream';
import { setTimeout as pause } from 'node:timers/promises';
import type { AgentId } from '../../core/slot.ts';
import { OnejobError, toFailure } from '../../errors.ts';
import type { Runtime, SandboxSeen, SandboxSpec } from '../runtime.ts';
import type { Owner } from './archive.ts';
import { gateEnded, writeInput } from './attach.ts';
import type { Limits } from './call.ts';
import { checkEngine, checkInternet } from './check.ts';
import { containerName, createBody, type LogLimits, labels, workspacePath } from './create.ts';
import { createDevices, type DeviceOptions } from './devices.ts';
import { createDoors } from './doors.ts';
import { type DockerSettings, endpointUrl, resolveEndpoint } from './endpoint.ts';
import { type ContainerAnswer, connectEngine } from './engine.ts';
import { followEvents } from './events.ts';
import { createExits } from './exits.ts';
import { statusOf } from './failures.ts';
import { fingerprintOf } from './fingerprint.ts';
import { createFirewall } from './firewall.ts';
import { openDoor } from './host-door.ts';
import { createImages, type Image } from './image.ts';
import { followLogs } from './logs.ts';
import { createNetworks } from './networks.ts';
import { isPodman } from './probe.ts';
import { elsewhere, refusal } from './refusal.ts';
import { insideFolder, withDot } from './rename.ts';
import { ownerOf } from './users.ts';
import { giveWorkspace, putWorkspace } from './workspace.ts';

export interface DockerOptions extends DeviceOptions {
  /** Id of this installation; labels everything. Letters, digits and dashes. */
  readonly owner: string;
  /** What the environment says about Docker. */
  readonly environment: DockerSettings;
  /** Output the Engine keeps per sandbox; default 2 files of 128 MB. The first file should hold twice the log limit. */
  readonly log?: LogLimits;
  /** Name servers that jobs on the network `internet` may ask; default: those that the Engine hands to its containers. */
  readonly nameservers?: () => Promise<readonly string[]>;
  /** How long the Engine may take over a call; a test has less patience. */
  readonly limits?: Limits;
}

export interface DockerRuntime extends Runtime {
  /** Why an image could not be had right now: one sentence; null when it is there, or its registry has it. */
  imageTrouble(reference: string, signal: AbortSignal): Promise<string | null>;
  /** Closes idle connections. */
  close(): void;
}

type Progress = (line: string) => void;

interface Known {
  readonly id: string;
  readonly owner: Owner | null;
}

/** States in which a container has no exit code. */
const alive: readonly string[] = ['created', 'running', 'paused', 'restarting'];

/**
 * Whoever follows a log reads its first file to the end, however slowly; of later ones some may be skipped (Engine 20.10).
 * So the first file is larger than what is kept of an agent's output by default.
 */
const defaultLog: LogLimits = { maxSize: '128m', maxFile: 2 };

/** @throws OnejobError E_ENGINE_ADDRESS when no Engine can be told from the environment. Does not ask the Engine anything. */
export async function createDockerRuntime(options: DockerOptions): Promise<DockerRuntime> {
  const endpoint = await resolveEndpoint(options.environment);
  const isLocal = endpoint.kind === 'unix';
  const bootId = isLocal ? await readBootId() : null;
  const engine = await connectEngine(endpoint, options.limits);
  const { owner } = options;
  const images = createImages(engine, options.environment.config, () => performance.now());
  const firewall = createFirewall({ owner, local: isLocal, ...(options.nameservers && { nameservers: options.nameservers }) });
  const networks = createNetworks(engine, owner, firewall);
  const exits = createExits(engine, bootId);
  const devices = createDevices(engine, options);
  const doors = createDoors(engine);
  const known = new Map<AgentId, Known>();
  const owners = new Map<string, Owner>();
  let podman: boolean | null = null;

  const isPodmanHere = async (signal: AbortSignal): Promise<boolean> => {
    podman ??= isPodman(await engine.version(signal));
    return podman;
  };
  const find = async (agent: AgentId, signal?: AbortSignal): Promise<string | null> => {
    const id = known.get(agent)?.id;
    if (id !== undefined) return id;
    const [found] = await engine.containers([`${labels.owner}=${owner}`, `${labels.agent}=${agent}`], signal);
    if (found === undefined) return null;
    known.set(agent, { id: found.Id, owner: null });
    return found.Id;
  };
  const sure = async (agent: AgentId, signal: AbortSignal): Promise<ContainerAnswer> => {
    const id = await find(agent, signal);
    const container = id === null ? null : await engine.inspect(id, signal);
    if (container !== null) return container;
    known.delete(agent);
    throw new OnejobError('E_SANDBOX_LOST', `The sandbox of agent ${agent} is not on the Engine at ${endpointUrl(endpoint)}.`);
  };
  const userOf = async (id: string, image: string, user: string, signal: AbortSignal): Promise<Owner> => {
    const key = `${image} ${user}`;
    const found = owners.get(key) ?? (await ownerOf(engine, id, user, signal));
    owners.set(key, found);
    return found;
  };

  /** The container of this spec, made if it is not there. */
  const make = async (spec: SandboxSpec, image: Image, signal: AbortSignal): Promise<string> => {
    const [mount] = spec.recipe.mounts;
    if (mount !== undefined && !isLocal) throw elsewhere(spec, mount.host, endpointUrl(endpoint));
    const network = await networks.resolve(spec.recipe.network);
    const context = {
      owner,
      bootId,
      imageId: image.id,
      network,
      podman: await isPodmanHere(signal),
      log: options.log ?? defaultLog,
      grant: await devices.grant(spec, signal),
    };
    try {
      return await engine.create(containerName(spec), createBody(spec, context));
    } catch (error) {
      // Podman says 500 for a name that is taken.
      if (statusOf(error) === 409 || statusOf(error) === 500) {
        const there = await find(spec.agent, signal);
        if (there !== null) return there;
      }
      throw refusal(error, spec, endpoint);
    }
  };

  const start = async (spec: SandboxSpec, image: Image, progress: Progress, signal: AbortSignal): Promise<void> => {
    const id = await make(spec, image, signal);
    known.set(spec.agent, { id, owner: null });
    // A request that is cut off may still be carried out, so it was not; now nothing must stay behind.
    if (signal.aborted) {
      await discard(spec.agent);
      signal.throwIfAborted();
    }
    const user = spec.recipe.user ?? image.user;
    const files = await userOf(id, image.id, user, signal);
    known.set(spec.agent, { id, owner: files });
    if (files.uid !== 0 || files.gid !== 0) await giveWorkspace(engine, id, files, signal);
    try {
      await engine.start(id);
    } catch (error) {
      throw refusal(error, spec, endpoint);
    }
    try {
      await devices.verify(spec, id, progress, signal);
    } catch (error) {
      // Its gate waits, with devices that are not its own: nobody may come to release it.
      if (error instanceof OnejobError && error.code === 'E_DEVICES_GRANTED') await discard(spec.agent);
      throw error;
    }
  };

  const discard = async (agent: AgentId): Promise<void> => {
    const id = await find(agent);
    if (id === null) return;
    // A removal that somebody else began is waited for; nothing tells when it is done.
    while (!(await engine.remove(id)) && (await engine.inspect(id)) !== null) await pause(100);
    known.delete(agent);
    doors.drop(id);
    exits.forget(id);
  };

  return {
    name: 'docker',
    capabilities: { weaker: null, images: true, holdsSecrets: true, workspace: () => workspacePath },
    close: () => {
      doors.close();
      engine.close();
    },
    groupsOf: (agent) => {
      const id = known.get(agent)?.id;
      return id === undefined ? [] : [id];
    },
    imageTrouble: async (reference, signal) => {
      const trouble = await images.trouble(reference, signal);
      return trouble === null ? null : toFailure(trouble).message;
    },

    check: async (signal) => [...(await checkEngine(endpoint, signal, options.grant)), await checkInternet(firewall)],

    fingerprint: async (recipe, signal) => {
      if (recipe.image === null) return null;
      const image = await images.look(recipe.image, signal);
      return image === null ? null : fingerprintOf(recipe, image, bootId);
    },

    prepare: async (spec, progress, signal) => {
      let image = await images.get(spec.recipe, progress, signal);
      try {
        await start(spec, image, progress, signal);
      } catch (error) {
        // Something that was believed to be there is gone, or is not there: look again, once.
        const isGone = error instanceof OnejobError && ['E_IMAGE_NOT_FOUND', 'E_NETWORK_NOT_FOUND'].includes(error.code);
        if (!isGone && !devices.retreat(error)) throw error;
        signal.throwIfAborted();
        await discard(spec.agent);
        if (spec.recipe.image !== null) images.forget(spec.recipe.image);
        networks.forget();
        image = await images.get(spec.recipe, progress, signal);
        await start(spec, image, progress, signal);
      }
      const id = known.get(spec.agent)?.id;
      if (id !== undefined && !(await isPodmanHere(signal))) void doors.ahead(id);
      return { fingerprint: fingerprintOf(spec.recipe, image, bootId) };
    },

    putFiles: async (agent, files, signal) => {
      const own = known.get(agent);
      const id = own?.id ?? (await sure(agent, signal)).Id;
      const to = own?.owner ?? (await whose(await sure(agent, signal)));
      await putWorkspace(engine, id, to, files, signal);

      async function whose(container: ContainerAnswer): Promise<Owner> {
        return userOf(container.Id, container.Image, container.Config.User, signal);
      }
    },

    release: async (agent, frame, signal) => {
      const id = await find(agent, signal);
      if (id === null) throw gateEnded('is gone');
      await writeInput(engine, id, frame, signal, { podman: await isPodmanHere(signal), door: doors.take(id) });
    },

    getFiles: async (agent, signal): Promise<Readable> => {
      const container = await sure(agent, signal);
      const files = await engine.getArchive(container.Id, `${workspacePath}/.`, signal);
      if (files !== null) return (await isPodmanHere(signal)) ? withDot(files) : files;
      throw new OnejobError('E_SANDBOX_LOST', `Agent ${agent} has no ${workspacePath} any more.`);
    },

    getFolder: async (agent, folder, signal) => {
      const container = await sure(agent, signal);
      // With `/.` the Engine follows a link, as root, to wherever the job wants: a mount of its own, another's file.
      const files = await engine.getFolder(container.Id, `${workspacePath}/${folder}`, signal);
      return files === null ? null : insideFolder(files, folder);
    },

    signal: async (agent, signal) => {
      const id = await find(agent);
      if (id !== null) await engine.kill(id, `SIG${signal}`);
    },

    remove: discard,

    list: async (signal) => {
      await networks.guard();
      const found = await engine.containers([`${labels.owner}=${owner}`], signal);
      const ended = found.filter(({ Id, State }) => exits.recall(Id) === null && !alive.includes(State));
      const inspected = await Promise.all(ended.map(({ Id }) => engine.inspect(Id, signal)));
      const judged = await exits.afterwards(
        inspected.filter((one) => one !== null),
        signal,
      );
      return found.flatMap(({ Id, State, Labels }): SandboxSeen[] => {
        const agent = Labels?.[labels.agent];
        if (agent === undefined) return [];
        known.set(agent, { id: Id, owner: known.get(agent)?.owner ?? null });
        const about = { agent, pool: Labels?.[labels.pool] ?? '', slot: Labels?.[labels.slot] ?? '' };
        const exit = exits.recall(Id) ?? judged.get(Id);
        if (exit !== undefined) return [{ ...about, state: { kind: 'exited', exit } }];
        if (State === 'created') return [{ ...about, state: { kind: 'created' } }];
        // Ended when it was listed, gone when it was looked at.
        return alive.includes(State) ? [{ ...about, state: { kind: 'running' } }] : [];
      });
    },

    events: (signal) => {
      // What has ended takes a connection and says nothing, so its door leads nowhere.
      const atDeath: typeof exits.atDeath = (id, ...rest) => {
        doors.drop(id);
        return exits.atDeath(id, ...rest);
      };
      return followEvents(engine, { ...exits, atDeath }, owner, signal);
    },

    logs: (agent, from, signal) => followLogs(engine, (until) => find(agent, until), from, signal),

    door: async (network, port, signal) =>
      openDoor({ engine, networks, firewall, podman: isLocal && (await isPodmanHere(signal)) }, network, port, signal),

    sweep: async (signal) => {
      if ((await engine.containers([`${labels.owner}=${owner}`], signal)).length > 0) return;
      // Left behind by containers that somebody removed without their volumes.
      for (const name of await engine.danglingVolumes(`${labels.owner}=${owner}`, signal)) await engine.removeVolume(name);
      await networks.sweep(signal);
    },

    disk: async (signal) => {
      if (!isLocal) return null;
      const { DockerRootDir } = await engine.info(signal);
      try {
        const { bavail, blocks } = await statfs(DockerRootDir);
        return { path: DockerRootDir, free: Number(bavail) / Number(blocks) };
      } catch {
        // An Engine in a virtual machine: its path is not ours.
        return null;
      }
    },
  };
}

async function readBootId(): Promise<string | null> {
  return readFile('/proc/sys/kernel/random/boot_id', 'utf8').then(
    (id) => id.trim(),
    () => null,
  );
}
