/**
 * The docker runtime: sandboxes are containers of a Docker Engine, or of Podman with its Docker-compatible socket.
 *
 * Everything it creates carries the owner's label. A new object finds it again on the same Engine; memory only saves requests.
 */
import { statfs } from 'node:fs/promises';
import { Readable } from 'node:stream';
import type { Progress } from '../../base/abortable.ts';
import { OnejobError, toFailure } from '../../base/errors.ts';
import type { Finding } from '../../base/finding.ts';
import type { DockerEnvironment } from '../../config/environment.ts';
import type { Clock } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import type {
  GrantWay,
  LogChunk,
  LogPosition,
  Made,
  Recipe,
  RunningShell,
  Runtime,
  RuntimeCapabilities,
  RuntimeEvent,
  SandboxSeen,
  SandboxSpec,
} from '../../ports/runtime.ts';
import { uplinkMtu } from '../../system/default-route.ts';
import { type DiskRoom, roomOf } from '../../system/disk-room.ts';
import { bootId } from '../../system/process-identity.ts';
import { diskUsage } from '../disk-usage.ts';
import type { Limits } from '../engine/call.ts';
import { type Endpoint, resolveEndpoint } from '../engine/endpoint.ts';
import { type ContainerListed, Engine } from '../engine/engine.ts';
import { Images } from '../engine/image.ts';
import { FirstLook } from '../first-look.ts';
import { gateEnded, Inputs, writeInput } from './attach.ts';
import { checkEngine, checkInternet } from './check.ts';
import { Containers } from './containers.ts';
import { type LogLimits, labels, workspacePath } from './create.ts';
import { Devices } from './devices.ts';
import { inEngine } from './engine-program.ts';
import { followEvents } from './events.ts';
import { runInside } from './exec.ts';
import { Exits } from './exits.ts';
import { createFirewall, type Firewall } from './firewall.ts';
import { DockerHolding } from './holding.ts';
import { logFolder } from './log-files.ts';
import { followLogs, type LogSource } from './logs.ts';
import { mtuFindings } from './mtu.ts';
import { Networks } from './networks.ts';
import { createPrepare, dockerFingerprint, type InnerEngine, type SandboxParts } from './prepare.ts';
import { Givers, insideFolder, putWorkspace, topEntries, withDot } from './workspace.ts';

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
  /** Set for an engine in a container of another. */
  readonly inside?: InnerEngine;
  /** Time limits of calls to the Engine; a test has shorter ones. */
  readonly limits?: Limits;
}

/** Where volumes of an agent are: of its sandbox, and of its engine. */
const ownVolumes: readonly string[] = [workspacePath, '/tmp', inEngine.storage];

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
  return new DockerRuntime(await resolveEndpoint(options.environment), options);
}

/** What the engines of agents are made with, in addition to sandboxes. */
export interface DockerParts extends SandboxParts {
  readonly images: Images;
  readonly exits: Exits;
  readonly devices: Devices;
}

export class DockerRuntime implements Runtime {
  readonly name = 'docker';
  readonly parts: DockerParts;
  readonly options: DockerOptions;
  readonly capabilities: RuntimeCapabilities;
  readonly holding: DockerHolding;
  readonly #isLocal: boolean;
  readonly #boot: string | null;
  readonly #log: LogLimits;
  readonly #engine: Engine;
  readonly #images: Images;
  readonly #firewall: Firewall;
  readonly #networks: Networks;
  readonly #exits: Exits;
  readonly #inputs: Inputs;
  readonly #containers: Containers;
  readonly #givers: Givers;
  readonly #prepare: Runtime['prepare'];
  readonly #firstLook = new FirstLook();
  /** Folder of the Engine; null until it was asked. */
  #engineRoot: string | null = null;

  constructor(endpoint: Endpoint, options: DockerOptions) {
    const { owner } = options;
    this.options = options;
    this.#isLocal = endpoint.kind === 'unix';
    this.#boot = this.#isLocal ? bootId() : null;
    this.#log = options.log ?? logLimits(64 * 2 ** 20);
    this.#engine = new Engine(endpoint, options.limits, options.clock);
    const engine = this.#engine;
    this.#images = new Images(engine, options.environment.config, engine.clock.now);
    this.#firewall = createFirewall(owner, this.#isLocal, {
      nameservers: options.nameservers,
      isPodman: () => engine.isPodman(),
    });
    this.#networks = new Networks(engine, owner, this.#firewall, this.#uplink);
    this.#inputs = new Inputs(engine);
    // An ended container accepts a connection and stays silent.
    this.#exits = new Exits(engine, this.#boot, (id) => this.#inputs.drop(id));
    this.#containers = new Containers(engine, owner, (id) => {
      this.#inputs.drop(id);
      this.#exits.forget(id);
    });
    this.#givers = new Givers(engine, owner);
    const images = this.#images;
    const exits = this.#exits;
    const parts = { engine, owner, boot: this.#boot, log: this.#log, containers: this.#containers, networks: this.#networks };
    this.parts = { ...parts, images, exits, devices: new Devices(engine, options.grant) };
    this.#prepare = createPrepare({ ...this.parts, givers: this.#givers, inside: options.inside ?? null });
    this.holding = new DockerHolding({ ...parts, stopped: (id) => this.#inputs.drop(id) });
    this.capabilities = {
      weaker: null,
      images: true,
      hostNetwork: null,
      grants: 'host',
      holdsSecrets: true,
      elsewhere: !this.#isLocal,
      workspace: () => workspacePath,
    };
  }

  close(): void {
    this.#inputs.close();
    this.#engine.close();
  }

  groupsOf(agent: AgentId): readonly string[] {
    return [this.#containers.recall(agent)].filter((id) => id !== null);
  }

  async imageTrouble(recipe: Recipe, signal: AbortSignal): Promise<string | null> {
    const trouble = await this.#images.trouble(recipe, signal);
    return trouble === null ? null : toFailure(trouble).message;
  }

  async check(signal: AbortSignal): Promise<Finding[]> {
    const { endpoint, clock } = this.#engine;
    const [findings, bridge, podman] = await Promise.all([
      checkEngine(endpoint, signal, this.options.grant ?? 'auto', clock),
      this.#engine.network('bridge', signal).catch(() => null),
      this.#engine.isPodman(signal).catch(() => false),
    ]);
    const mtu = mtuFindings(this.#uplink(), bridge === null ? null : (bridge.Options ?? {}), { podman });
    return [...findings, await checkInternet(this.#firewall), ...mtu];
  }

  async fingerprint(recipe: Recipe, signal: AbortSignal): Promise<string | null> {
    const image = await this.#images.of(recipe, signal);
    return image === null ? null : dockerFingerprint(recipe, image, this.#boot);
  }

  async imageId(recipe: Recipe, signal: AbortSignal): Promise<string | null> {
    return (await this.#images.of(recipe, signal))?.id ?? null;
  }

  async prepare(spec: SandboxSpec, progress: Progress, signal: AbortSignal, chosen?: (made: Made) => void): Promise<Made> {
    await this.#firstLook.end();
    const made = await this.#prepare(spec, progress, signal, chosen);
    const id = this.#containers.recall(spec.agent);
    if (id !== null && !(await this.#engine.isPodman(signal))) void this.#inputs.ahead(id);
    return made;
  }

  async putFiles(agent: AgentId, files: Readable, signal: AbortSignal): Promise<void> {
    const { id, owner } = await this.#containers.home(agent, signal);
    await putWorkspace(this.#engine, id, owner, files, signal);
  }

  async release(agent: AgentId, frame: Uint8Array, signal: AbortSignal): Promise<void> {
    const id = await this.#containers.find(agent, signal);
    if (id === null) throw gateEnded('is gone');
    const podman = await this.#engine.isPodman(signal);
    await writeInput(this.#engine, id, frame, signal, { podman, connection: this.#inputs.take(id) });
  }

  async getFiles(agent: AgentId, signal: AbortSignal, only?: readonly string[] | null): Promise<Readable> {
    const { Id } = await this.#containers.sure(agent, signal);
    const podman = await this.#engine.isPodman(signal);
    // Podman follows a link to wherever the job wants.
    if (only != null && !podman) return Readable.from(topEntries(this.#engine, Id, only, signal), { objectMode: false });
    const files = await this.#engine.getArchive(Id, `${workspacePath}/.`, signal);
    if (files !== null) return podman ? withDot(files) : files;
    throw new OnejobError('E_SANDBOX_LOST', `Agent ${agent} no longer has ${workspacePath}.`);
  }

  async getFolder(agent: AgentId, folder: string, signal: AbortSignal): Promise<Readable | null> {
    const { Id } = await this.#containers.sure(agent, signal);
    // With `/.` the Engine would follow a link as root: to a mount, or to a file of another user.
    const files = await this.#engine.getFolder(Id, `${workspacePath}/${folder}`, signal);
    return files === null ? null : insideFolder(files, folder);
  }

  async exec(agent: AgentId, command: readonly string[], signal: AbortSignal): Promise<RunningShell> {
    return runInside(this.#engine, await this.#containers.find(agent, signal), command, signal);
  }

  async signal(agent: AgentId, signal: 'TERM' | 'KILL'): Promise<void> {
    const id = await this.#containers.find(agent);
    if (id !== null) await this.#engine.kill(id, `SIG${signal}`);
  }

  remove(agent: AgentId): Promise<void> {
    return this.#containers.remove(agent);
  }

  async list(signal: AbortSignal): Promise<SandboxSeen[]> {
    await this.#networks.guard();
    const exits = this.#exits;
    const listed = await this.#listed(signal);
    await this.#givers.sweep(listed);
    // An Engine syncs a volume before its container, so a power cut may leave it alone.
    await this.#firstLook.sweep(() => this.#removeVolumes([labels.agent], signal));
    exits.sawAlive(listed.filter(({ State }) => alive.includes(State)).map(({ Id }) => Id));
    const ended = listed.filter(({ Id, State }) => exits.recall(Id) === null && !alive.includes(State));
    const inspected = (await Promise.all(ended.map(({ Id }) => this.#engine.inspect(Id, signal)))).filter((one) => one !== null);
    const judged = await exits.afterwards(inspected, signal);
    return listed.flatMap(({ Id, State, Labels }): SandboxSeen[] => {
      const agent = Labels?.[labels.agent];
      if (agent === undefined) return [];
      this.#containers.note(agent, Id);
      const about = { agent, pool: Labels?.[labels.pool] ?? '', slot: Labels?.[labels.slot] ?? '' };
      const exit = exits.recall(Id) ?? judged.get(Id);
      if (exit !== undefined) return [{ ...about, state: { kind: 'exited', exit } }];
      if (State === 'created') return [{ ...about, state: { kind: 'created' } }];
      // It had ended when it was listed, and was gone when it was inspected.
      return alive.includes(State) ? [{ ...about, state: { kind: 'running' } }] : [];
    });
  }

  events(signal: AbortSignal): AsyncIterable<RuntimeEvent> {
    return followEvents(this.#engine, this.#exits, this.options.owner, signal);
  }

  logs(agent: AgentId, from: LogPosition, signal: AbortSignal): AsyncIterable<LogChunk[]> {
    const source: LogSource = {
      find: (until) => this.#containers.find(agent, until),
      folder: (id, until) => this.#logFolder(id, until),
      fileSize: this.#log.maxSize,
    };
    return followLogs(this.#engine, source, from, signal);
  }

  hostAddress(network: string, port: number, signal: AbortSignal): Promise<string> {
    return this.#networks.hostAddress(network, port, signal);
  }

  async sweep(signal: AbortSignal): Promise<void> {
    const engine = this.#engine;
    // A container leaves the list last (moby, daemon/delete.go).
    const there = await Promise.all((await this.#listed(signal)).map(({ Id }) => engine.inspect(Id, signal)));
    if (there.some((container) => container !== null)) return;
    // Containers that somebody removed without their volumes leave these behind.
    await this.#removeVolumes([], signal);
    await this.#networks.sweep(signal);
  }

  /** Of ours, with these labels, if no container uses them. */
  async #removeVolumes(more: readonly string[], signal: AbortSignal): Promise<void> {
    const found = await this.#engine.danglingVolumes([`${labels.owner}=${this.options.owner}`, ...more], signal);
    for (const name of found) await this.#engine.removeVolume(name);
  }

  async usage(agent: AgentId, signal: AbortSignal): Promise<number | null> {
    const id = this.#isLocal ? await this.#containers.find(agent, signal) : null;
    const container = id === null ? null : await this.#engine.inspect(id, signal);
    if (container === null) return null;
    const shells = await Promise.all(this.holding.shellsIn(agent).map((shell) => this.#engine.inspect(shell, signal)));
    const own = [container, ...shells].map((one) => one?.GraphDriver?.Data?.UpperDir ?? '');
    const volumes = (container.Mounts ?? []).filter(({ Destination }) => ownVolumes.includes(Destination));
    return diskUsage([...own, ...volumes.map(({ Source }) => Source)].filter(Boolean), signal);
  }

  async disk(signal: AbortSignal): Promise<DiskRoom | null> {
    if (!this.#isLocal) return null;
    const { DockerRootDir: path } = await this.#engine.info(signal);
    // If the Engine runs in a virtual machine, its path is not on this host.
    const seen = await statfs(path).catch(() => null);
    return seen && roomOf(path, seen);
  }

  readonly #uplink: typeof uplinkMtu = () => (this.#isLocal ? uplinkMtu() : null);

  /** All containers of this owner. */
  #listed(signal: AbortSignal): Promise<ContainerListed[]> {
    return this.#engine.containers([`${labels.owner}=${this.options.owner}`], signal);
  }

  /** Folder of a container's log; null if it cannot be read. */
  async #logFolder(id: string, signal: AbortSignal): Promise<string | null> {
    if (!this.#isLocal || this.options.readFiles === false) return null;
    this.#engineRoot ??= (await this.#engine.info(signal)).DockerRootDir;
    return this.#engineRoot === '' ? null : logFolder(this.#engineRoot, id);
  }
}
