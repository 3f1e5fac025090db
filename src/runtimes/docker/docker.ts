/**
 * The docker runtime: sandboxes are containers of a Docker Engine, or of Podman with its Docker-compatible socket.
 *
 * Everything it creates carries the owner's label. A new object finds it again on the same Engine; memory only saves requests.
 */
import { statfs } from 'node:fs/promises';
import { Readable } from 'node:stream';
import { OnejobError, toFailure } from '../../base/errors.ts';
import type { DockerEnvironment } from '../../config/environment.ts';
import type { Clock } from '../../core/clock.ts';
import type { GrantWay, Runtime, SandboxSeen } from '../../ports/runtime.ts';
import { uplinkMtu } from '../../system/default-route.ts';
import { roomOf } from '../../system/disk-room.ts';
import { bootId } from '../../system/process-identity.ts';
import { diskUsage } from '../disk-usage.ts';
import type { Limits } from '../engine/call.ts';
import { resolveEndpoint } from '../engine/endpoint.ts';
import { connectEngine } from '../engine/engine.ts';
import { createImages } from '../engine/image.ts';
import { isPodman } from '../engine/probe.ts';
import { createInputs, gateEnded, writeInput } from './attach.ts';
import { checkEngine, checkInternet } from './check.ts';
import { createContainers } from './containers.ts';
import { type LogLimits, labels, workspacePath } from './create.ts';
import { createDevices } from './devices.ts';
import { followEvents } from './events.ts';
import { runInside } from './exec.ts';
import { createExits } from './exits.ts';
import { createFirewall } from './firewall.ts';
import { createHolding } from './holding.ts';
import { logFolder } from './log-files.ts';
import { followLogs } from './logs.ts';
import { mtuFindings } from './mtu.ts';
import { createNetworks } from './networks.ts';
import { createPrepare, dockerFingerprint } from './prepare.ts';
import { createGivers, insideFolder, putWorkspace, topEntries, withDot } from './workspace.ts';

export interface DockerOptions {
  /** Id of this installation; labels everything. Letters, digits and dashes. */
  readonly owner: string;
  /** What the environment says about Docker. */
  readonly environment: DockerEnvironment;
  /** How to ask the Engine for NVIDIA devices if a recipe does not say. Default `auto`: as the Engine reports that it can. */
  readonly grant?: GrantWay;
  /** Output that the Engine keeps per sandbox until it is read. Default: for a log limit of 64 MiB. */
  readonly log?: LogLimits;
  /** Whether to read logs in the Engine's files if possible; a test reads them through the API. Default true. */
  readonly readFiles?: boolean;
  /** Name servers for jobs on the network `internet`. Default: those that the Engine gives its containers. */
  readonly nameservers?: () => Promise<readonly string[]>;
  /** Default: the real one. */
  readonly clock?: Clock;
  /** Time limits of calls to the Engine; a test has shorter ones. */
  readonly limits?: Limits;
}

export type DockerRuntime = Runtime & Required<Pick<Runtime, 'imageTrouble' | 'close'>>;

/** Container states without an exit code. */
const alive: readonly string[] = ['created', 'running', 'paused', 'restarting'];

/**
 * The Engine's log limits. All output that config keeps must survive a manager that is away for long. The Engine adds about 30
 * bytes per line, so this is several times the limit; with three files it never deletes the newest output.
 */
export function logLimits(logLimit: number): LogLimits {
  return { maxSize: Math.max(16 * 2 ** 20, 2 * logLimit), maxFile: 3 };
}

/** Does not contact the Engine. @throws OnejobError E_ENGINE_ADDRESS if the environment names no usable Engine */
export async function createDockerRuntime(options: DockerOptions): Promise<DockerRuntime> {
  const endpoint = await resolveEndpoint(options.environment);
  const isLocal = endpoint.kind === 'unix';
  const boot = isLocal ? bootId() : null;
  const engine = connectEngine(endpoint, options.limits, options.clock);
  const { owner, grant = 'auto' } = options;
  const images = createImages(engine, options.environment.config, engine.clock.now);
  const firewall = createFirewall(owner, isLocal, options.nameservers);
  const uplink = isLocal ? uplinkMtu : () => null;
  const networks = createNetworks(engine, owner, firewall, uplink);
  const exits = createExits(engine, boot);
  const devices = createDevices(engine, grant);
  const inputs = createInputs(engine);
  let podman: boolean | null = null;

  const isPodmanHere = async (signal: AbortSignal): Promise<boolean> => {
    podman ??= isPodman(await engine.version(signal));
    return podman;
  };
  const containers = createContainers(engine, owner, (id) => {
    inputs.drop(id);
    exits.forget(id);
  });
  const log = options.log ?? logLimits(64 * 2 ** 20);
  let engineRoot: string | null = null;
  const folder = async (id: string, signal: AbortSignal): Promise<string | null> => {
    if (!isLocal || options.readFiles === false) return null;
    engineRoot ??= (await engine.info(signal)).DockerRootDir;
    return engineRoot === '' ? null : logFolder(engineRoot, id);
  };
  const givers = createGivers(engine, owner);
  const prepare = createPrepare({
    engine,
    owner,
    boot,
    log,
    containers,
    images,
    networks,
    devices,
    isPodman: isPodmanHere,
    exits,
    givers,
  });
  const holding = createHolding({
    engine,
    owner,
    boot,
    log,
    containers,
    networks,
    isPodman: isPodmanHere,
    stopped: inputs.drop,
  });

  return {
    name: 'docker',
    capabilities: {
      weaker: null,
      images: true,
      hostNetwork: null,
      holdsSecrets: true,
      elsewhere: !isLocal,
      workspace: () => workspacePath,
    },
    close: () => {
      inputs.close();
      engine.close();
    },
    groupsOf: (agent) => [containers.recall(agent)].filter((id) => id !== null),
    imageTrouble: async (recipe, signal) => {
      const trouble = await images.trouble(recipe, signal);
      return trouble === null ? null : toFailure(trouble).message;
    },

    check: async (signal) => {
      const [found, bridge, podman] = await Promise.all([
        checkEngine(endpoint, signal, grant, engine.clock),
        engine.network('bridge', signal).catch(() => null),
        isPodmanHere(signal).catch(() => false),
      ]);
      const mtu = mtuFindings(uplink(), bridge === null ? null : (bridge.Options ?? {}), { podman });
      return [...found, await checkInternet(firewall), ...mtu];
    },

    fingerprint: async (recipe, signal) => {
      const image = await images.of(recipe, signal);
      return image === null ? null : dockerFingerprint(recipe, image, boot);
    },

    imageId: async (recipe, signal) => (await images.of(recipe, signal))?.id ?? null,

    prepare: async (spec, progress, signal, chosen) => {
      const made = await prepare(spec, progress, signal, chosen);
      const id = containers.recall(spec.agent);
      if (id !== null && !(await isPodmanHere(signal))) void inputs.ahead(id);
      return made;
    },

    putFiles: async (agent, files, signal) => {
      const { id, owner: whose } = await containers.home(agent, signal);
      await putWorkspace(engine, id, whose, files, signal);
    },

    release: async (agent, frame, signal) => {
      const id = await containers.find(agent, signal);
      if (id === null) throw gateEnded('is gone');
      await writeInput(engine, id, frame, signal, { podman: await isPodmanHere(signal), connection: inputs.take(id) });
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
      // With `/.` the Engine would follow a link as root: to a mount, or to a file of another user.
      const files = await engine.getFolder(container.Id, `${workspacePath}/${folder}`, signal);
      return files === null ? null : insideFolder(files, folder);
    },

    exec: async (agent, command, signal) => runInside(engine, await containers.find(agent, signal), command, signal),

    signal: async (agent, signal) => {
      const id = await containers.find(agent);
      if (id !== null) await engine.kill(id, `SIG${signal}`);
    },

    remove: containers.remove,

    list: async (signal) => {
      await networks.guard();
      const found = await engine.containers([`${labels.owner}=${owner}`], signal);
      await givers.sweep(found);
      exits.sawAlive(found.filter(({ State }) => alive.includes(State)).map(({ Id }) => Id));
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
        // It had ended when it was listed, and was gone when it was inspected.
        return alive.includes(State) ? [{ ...about, state: { kind: 'running' } }] : [];
      });
    },

    events: (signal) => {
      // An ended container accepts a connection and stays silent.
      const atDeath: typeof exits.atDeath = (id, ...rest) => {
        inputs.drop(id);
        return exits.atDeath(id, ...rest);
      };
      return followEvents(engine, { ...exits, atDeath }, owner, signal);
    },

    logs: (agent, from, signal) => {
      const find = (until: AbortSignal) => containers.find(agent, until);
      return followLogs(engine, { find, folder, fileSize: log.maxSize }, from, signal);
    },

    hostAddress: async (network, port, signal) =>
      networks.hostAddress(isLocal && (await isPodmanHere(signal)), network, port, signal),

    holding,

    sweep: async (signal) => {
      const listed = await engine.containers([`${labels.owner}=${owner}`], signal);
      // A container leaves the list last (moby, daemon/delete.go).
      const there = await Promise.all(listed.map(({ Id }) => engine.inspect(Id, signal)));
      if (there.some((one) => one !== null)) return;
      // Containers that somebody removed without their volumes leave these behind.
      for (const name of await engine.danglingVolumes([`${labels.owner}=${owner}`], signal)) await engine.removeVolume(name);
      await networks.sweep(signal);
    },

    usage: async (agent, signal) => {
      const id = isLocal ? await containers.find(agent, signal) : null;
      const container = id === null ? null : await engine.inspect(id, signal);
      if (container === null) return null;
      const shells = await Promise.all(holding.shellsIn(agent).map((shell) => engine.inspect(shell, signal)));
      const own = [container, ...shells].map((one) => one?.GraphDriver?.Data?.UpperDir ?? '');
      const volumes = (container.Mounts ?? []).filter(({ Destination }) => Destination === workspacePath);
      return diskUsage([...own, ...volumes.map(({ Source }) => Source)].filter(Boolean), signal);
    },

    disk: async (signal) => {
      if (!isLocal) return null;
      const { DockerRootDir: path } = await engine.info(signal);
      // If the Engine runs in a virtual machine, its path is not on this host.
      const seen = await statfs(path).catch(() => null);
      return seen && roomOf(path, seen);
    },
  };
}
