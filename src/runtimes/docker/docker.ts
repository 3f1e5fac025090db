/**
 * The docker runtime: sandboxes are containers of a Docker Engine, or of Podman behind its Docker-compatible socket.
 *
 * Everything it makes carries the owner's label. It keeps nothing that a new object over the same Engine could not find
 * again; what is held in memory only saves questions.
 */

import { readFile, statfs } from 'node:fs/promises';
import { Readable } from 'node:stream';
import type { DockerEnvironment } from '../../config/environment.ts';
import type { Clock } from '../../core/clock.ts';
import type { Limits } from '../../engine/call.ts';
import { resolveEndpoint } from '../../engine/endpoint.ts';
import { connectEngine } from '../../engine/engine.ts';
import { createImages } from '../../engine/image.ts';
import { isPodman } from '../../engine/probe.ts';
import { OnejobError, toFailure } from '../../errors.ts';
import { diskUsage } from '../disk-usage.ts';
import type { Recipe, Runtime, SandboxSeen } from '../runtime.ts';
import { createDoors, gateEnded, writeInput } from './attach.ts';
import { checkEngine, checkInternet } from './check.ts';
import { createContainers } from './containers.ts';
import { type LogLimits, labels, workspacePath } from './create.ts';
import { createDevices, type DeviceOptions } from './devices.ts';
import { followEvents } from './events.ts';
import { createExits } from './exits.ts';
import { createFirewall } from './firewall.ts';
import { logFolder } from './log-files.ts';
import { followLogs } from './logs.ts';
import { createNetworks, openDoor } from './networks.ts';
import { createPrepare, fingerprintOf } from './prepare.ts';
import { insideFolder, putWorkspace, topEntries, withDot } from './workspace.ts';

export interface DockerOptions extends DeviceOptions {
  /** Id of this installation; labels everything. Letters, digits and dashes. */
  readonly owner: string;
  /** What the environment says about Docker. */
  readonly environment: DockerEnvironment;
  /** Output the Engine keeps per sandbox until it was read; default: for a log limit of 64 MiB. */
  readonly log?: LogLimits;
  /** Whether logs are read in the Engine's files where they can be; a test reads them through its API. Default true. */
  readonly readFiles?: boolean;
  /** Name servers that jobs on the network `internet` may ask; default: those that the Engine hands to its containers. */
  readonly nameservers?: () => Promise<readonly string[]>;
  /** Default: the real one. */
  readonly clock?: Clock;
  /** How long the Engine may take over a call; a test has less patience. */
  readonly limits?: Limits;
}

export interface DockerRuntime extends Runtime {
  imageTrouble(recipe: Recipe, signal: AbortSignal): Promise<string | null>;
  /** Closes idle connections. */
  close(): void;
}

/** States in which a container has no exit code. */
const alive: readonly string[] = ['created', 'running', 'paused', 'restarting'];

/**
 * What the Engine keeps of a sandbox's output, so that all of what config lets be kept survives a manager that is away for long: the
 * Engine adds about 30 bytes to each line, so that is several times the limit. In three files, so that the newest output is never
 * thrown away with them, and the first one alone has more than the limit of usual lines.
 */
export function logLimits(logLimit: number): LogLimits {
  return { maxSize: Math.max(16 * 2 ** 20, 2 * logLimit), maxFile: 3 };
}

/** @throws OnejobError E_ENGINE_ADDRESS when no Engine can be told from the environment. Does not ask the Engine anything. */
export async function createDockerRuntime(options: DockerOptions): Promise<DockerRuntime> {
  const endpoint = await resolveEndpoint(options.environment);
  const isLocal = endpoint.kind === 'unix';
  const bootId = isLocal ? await readBootId() : null;
  const engine = connectEngine(endpoint, options.limits, options.clock);
  const { owner } = options;
  const images = createImages(engine, options.environment.config, engine.clock.now);
  const firewall = createFirewall({ owner, local: isLocal, nameservers: options.nameservers });
  const networks = createNetworks(engine, owner, firewall);
  const exits = createExits(engine, bootId);
  const devices = createDevices(engine, options);
  const doors = createDoors(engine);
  let podman: boolean | null = null;

  const isPodmanHere = async (signal: AbortSignal): Promise<boolean> => {
    podman ??= isPodman(await engine.version(signal));
    return podman;
  };
  const containers = createContainers(engine, owner, (id) => {
    doors.drop(id);
    exits.forget(id);
  });
  const log = options.log ?? logLimits(64 * 2 ** 20);
  let engineRoot: string | null = null;
  const folder = async (id: string, signal: AbortSignal): Promise<string | null> => {
    if (!isLocal || options.readFiles === false) return null;
    engineRoot ??= (await engine.info(signal)).DockerRootDir;
    return engineRoot === '' ? null : logFolder(engineRoot, id);
  };
  const prepare = createPrepare({ engine, owner, bootId, log, containers, images, networks, devices, isPodman: isPodmanHere });

  return {
    name: 'docker',
    capabilities: { weaker: null, images: true, holdsSecrets: true, workspace: () => workspacePath },
    close: () => {
      doors.close();
      engine.close();
    },
    groupsOf: (agent) => {
      const id = containers.recall(agent);
      return id === null ? [] : [id];
    },
    imageTrouble: async (recipe, signal) => {
      const trouble = await images.trouble(recipe, signal);
      return trouble === null ? null : toFailure(trouble).message;
    },

    check: async (signal) => [...(await checkEngine(endpoint, signal, options.grant, engine.clock)), await checkInternet(firewall)],

    fingerprint: async (recipe, signal) => {
      if (recipe.image === null) return null;
      const image = await images.look(recipe.image, signal);
      return image === null ? null : fingerprintOf(recipe, image, bootId);
    },

    prepare: async (spec, progress, signal) => {
      const made = await prepare(spec, progress, signal);
      const id = containers.recall(spec.agent);
      if (id !== null && !(await isPodmanHere(signal))) void doors.ahead(id);
      return made;
    },

    putFiles: async (agent, files, signal) => {
      const { id, owner: whose } = await containers.home(agent, signal);
      await putWorkspace(engine, id, whose, files, signal);
    },

    release: async (agent, frame, signal) => {
      const id = await containers.find(agent, signal);
      if (id === null) throw gateEnded('is gone');
      await writeInput(engine, id, frame, signal, { podman: await isPodmanHere(signal), door: doors.take(id) });
    },

    getFiles: async (agent, signal, only): Promise<Readable> => {
      const container = await containers.sure(agent, signal);
      const podman = await isPodmanHere(signal);
      // Podman follows a link to wherever the job wants.
      if (only != null && !podman) return Readable.from(topEntries(engine, container.Id, only, signal), { objectMode: false });
      const files = await engine.getArchive(container.Id, `${workspacePath}/.`, signal);
      if (files !== null) return podman ? withDot(files) : files;
      throw new OnejobError('E_SANDBOX_LOST', `Agent ${agent} no longer has ${workspacePath}.`);
    },

    getFolder: async (agent, folder, signal) => {
      const container = await containers.sure(agent, signal);
      // With `/.` the Engine follows a link, as root, to wherever the job wants: a mount of its own, another's file.
      const files = await engine.getFolder(container.Id, `${workspacePath}/${folder}`, signal);
      return files === null ? null : insideFolder(files, folder);
    },

    signal: async (agent, signal) => {
      const id = await containers.find(agent);
      if (id !== null) await engine.kill(id, `SIG${signal}`);
    },

    remove: containers.remove,

    list: async (signal) => {
      await networks.guard();
      const found = await engine.containers([`${labels.owner}=${owner}`], signal);
      const ended = found.filter(({ Id, State }) => exits.recall(Id) === null && !alive.includes(State));
      const inspected = (await Promise.all(ended.map(({ Id }) => engine.inspect(Id, signal)))).filter((one) => one !== null);
      const judged = await exits.afterwards(inspected, signal);
      return found.flatMap(({ Id, State, Labels }): SandboxSeen[] => {
        const agent = Labels?.[labels.agent];
        if (agent === undefined) return [];
        containers.note(agent, Id);
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

    logs: (agent, from, signal) => {
      const find = (until: AbortSignal) => containers.find(agent, until);
      return followLogs(engine, { find, folder, fileSize: log.maxSize }, from, signal);
    },

    door: async (network, port, signal) =>
      openDoor({ engine, networks, firewall }, isLocal && (await isPodmanHere(signal)), network, port, signal),

    sweep: async (signal) => {
      const listed = await engine.containers([`${labels.owner}=${owner}`], signal);
      // A container leaves the list last (moby, daemon/delete.go).
      const there = await Promise.all(listed.map(({ Id }) => engine.inspect(Id, signal)));
      if (there.some((one) => one !== null)) return;
      // Left behind by containers that somebody removed without their volumes.
      for (const name of await engine.danglingVolumes(`${labels.owner}=${owner}`, signal)) await engine.removeVolume(name);
      await networks.sweep(signal);
    },

    usage: async (agent, signal) => {
      const id = isLocal ? await containers.find(agent, signal) : null;
      const container = id === null ? null : await engine.inspect(id, signal);
      if (container === null) return null;
      const volumes = (container.Mounts ?? []).filter(({ Destination }) => Destination === workspacePath);
      const folders = [container.GraphDriver?.Data?.UpperDir ?? '', ...volumes.map(({ Source }) => Source)].filter(Boolean);
      return diskUsage(folders, signal);
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
  const id = await readFile('/proc/sys/kernel/random/boot_id', 'utf8').catch(() => null);
  return id?.trim() ?? null;
}
