/**
 * The docker runtime with engines of agents: an agent whose recipe asks for containers has an engine in a container, and its sandbox is
 * made by the same runtime on that engine. All else of the agent is what the container of its engine is: its labels, its limits, its
 * network, its files and its removal. So only the Engine of the host says whether it is gone.
 *
 * For each such agent there is a folder, made before its container and removed after it. It holds the socket of the engine, the log of
 * the sandbox and how that has ended, and says after a restart which agents have one.
 *
 * When a sandbox has ended, that is noted there, then the container of its engine is killed, and only its end is told as the agent's: so
 * nothing that a job has left behind holds a device when that is proved clean, and a manager killed in between tells the same end.
 */
import { existsSync, watch } from 'node:fs';
import { type FileHandle, mkdir, readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import { type Progress, Waiters } from '../../base/abortable.ts';
import { OnejobError } from '../../base/errors.ts';
import { type Finding, fine, problem } from '../../base/finding.ts';
import type { AgentId, Exit } from '../../core/slot.ts';
import type {
  LogChunk,
  LogPosition,
  Made,
  Recipe,
  RunningShell,
  Runtime,
  RuntimeEvent,
  SandboxSeen,
  SandboxSpec,
} from '../../ports/runtime.ts';
import { inside, openFolder, removeTree } from '../../system/foreign-tree.ts';
import { statusOf } from '../engine/failures.ts';
import { freeLostUids, freeUidOf, keepUid } from '../uids.ts';
import { AgentEngine } from './agent-engine.ts';
import { gateEnded } from './attach.ts';
import { writeCards } from './cards-inside.ts';
import { engineObstacle, kernelObstacle } from './containers-obstacle.ts';
import { containerName } from './create.ts';
import type { DockerRuntime } from './docker.ts';
import { cardsObstacle, cardsOf, specFolders } from './engine-cards.ts';
import { limitsObstacle } from './engine-group.ts';
import { engineUsers, inEngine } from './engine-program.ts';
import { JobImages } from './job-images.ts';
import type { LearnWants } from './learning.ts';
import { lastWords } from './logs.ts';
import { engineBody, outside, specInside } from './own-engine.ts';
import { mapIds, OwnIds, type Unmapped } from './own-ids.ts';
import { makeOwnLog } from './own-log.ts';
import { dockerFingerprint, prepareRefusal, verifyFolders, verifyStart } from './prepare.ts';
import { putWorkspace } from './workspace.ts';

/** Ids of the image of an engine, and of the volume with images for its jobs; null without. */
interface EngineImages {
  readonly imageId: string;
  readonly ready: string | null;
}

export interface EngineWants {
  /** A pool has `containers`. */
  readonly containers?: boolean;
  /** One of those has devices. */
  readonly devices?: boolean;
  /** Pools that learn. */
  readonly learn?: LearnWants;
  /** Folders of CDI specifications. Default: those of this host. */
  readonly specs?: readonly string[];
}

export class WithEngines implements Runtime {
  readonly name = 'docker';
  readonly capabilities: Runtime['capabilities'];
  readonly holding: DockerRuntime['holding'];
  readonly #outer: DockerRuntime;
  readonly #folder: string;
  readonly #wants: EngineWants;
  readonly #images: JobImages;
  readonly #ids = new OwnIds();
  readonly #engines = new Map<AgentId, AgentEngine>();
  readonly #events: RuntimeEvent[] = [];
  readonly #waiters = new Waiters();
  /** The folder, opened once and for as long as this lives: a path through it has no limit on its length, and leads nowhere else. */
  #opened: Promise<FileHandle> | null = null;
  #isSwept = false;

  /** `folder`: of this installation alone, for the sockets of engines. */
  constructor(outer: DockerRuntime, folder: string, wants: EngineWants = {}) {
    this.#wants = wants;
    this.#outer = outer;
    this.#folder = folder;
    this.#images = new JobImages(outer.parts, wants.learn ?? { folder, pools: new Map() });
    this.capabilities = outer.capabilities;
    this.holding = outer.holding;
  }

  close(): void {
    this.#images.close();
    for (const engine of this.#engines.values()) engine.close();
    this.#engines.clear();
    void this.#opened?.then((folder) => folder.close());
    this.#outer.close();
  }

  groupsOf(agent: AgentId): readonly string[] {
    return this.#outer.groupsOf(agent);
  }

  async check(signal: AbortSignal): Promise<Finding[]> {
    const { engine } = this.#outer.parts;
    const found = await this.#outer.check(signal);
    // Of an Engine that is away nothing else is to be said.
    const isPodman = this.#wants.containers === true ? await engine.isPodman(signal).catch(() => null) : null;
    if (isPodman === null) return found;
    const why = engineObstacle(engine.endpoint, isPodman) ?? kernelObstacle();
    const hint = 'Change that setting of the host, remove "containers" from its pools, or move them to another host.';
    if (why !== null) return [...found, problem('containers', `Pools cannot use containers: ${why}.`, hint)];
    const noCards = this.#wants.devices === true ? await cardsObstacle(this.#wants.specs) : null;
    if (noCards !== null) found.push(problem('containers', `Pools with containers cannot have devices: ${noCards}.`));
    const limits = limitsObstacle();
    const single =
      limits === null
        ? 'Limits of single containers of a job hold.'
        : `Limits of single containers of a job ("docker run -m") are ignored, because ${limits}; those of its pool hold.`;
    return [
      ...found,
      fine('containers', 'Pools may use containers: its kernel lets their engines make user namespaces.'),
      fine('containers', single),
      ...this.#ids.findings(),
      ...this.#images.findings(),
    ];
  }

  async imageTrouble(recipe: Recipe, signal: AbortSignal): Promise<string | null> {
    const trouble = await this.#images.trouble(recipe, signal);
    return trouble === undefined ? this.#outer.imageTrouble(recipe, signal) : trouble;
  }

  imageId(recipe: Recipe, signal: AbortSignal): Promise<string | null> {
    return this.#outer.imageId(recipe, signal);
  }

  /** The name of the engine's image follows from all that it was built from, so it counts as it is. */
  async fingerprint(recipe: Recipe, signal: AbortSignal): Promise<string | null> {
    return recipe.containers?.image === null ? null : this.#outer.fingerprint(recipe, signal);
  }

  async prepare(spec: SandboxSpec, progress: Progress, signal: AbortSignal, chosen?: (made: Made) => void): Promise<Made> {
    const { agent, recipe } = spec;
    if (recipe.containers === undefined) return this.#outer.prepare(spec, progress, signal, chosen);
    const { boot, images } = this.#outer.parts;
    const store = this.#images.storeOf(recipe);
    const image = await images.get(recipe, progress, signal);
    const made = { fingerprint: dockerFingerprint(recipe, image, boot), imageId: image.id };
    chosen?.(made);
    try {
      const maker = await this.#makerOf(spec, progress, signal);
      const from = { imageId: maker, ready: await this.#images.ready(spec, maker, progress, signal) };
      const name = await store.ensure(image.id, maker, progress, signal);
      const engine = await this.#start(spec, from, progress, signal);
      await engine.delegate();
      await engine.ask((runtime) => runtime.prepare(specInside(spec, name), progress, signal));
      void engine.watch();
      return made;
    } catch (error) {
      // Somebody may have removed a volume with images.
      store.forget({ agent, imageId: image.id });
      await this.remove(agent).catch(() => {});
      throw error;
    } finally {
      store.letGo(agent);
    }
  }

  async putFiles(agent: AgentId, files: Readable, signal: AbortSignal): Promise<void> {
    const engine = await this.#of(agent);
    if (engine === null) return this.#outer.putFiles(agent, files, signal);
    const { owner } = await engine.ask(({ parts }) => parts.containers.home(agent, signal));
    const container = await this.#outer.parts.containers.sure(agent, signal);
    await putWorkspace(this.#outer.parts.engine, container.Id, outside(owner, container), files, signal);
  }

  async release(agent: AgentId, frame: Uint8Array, signal: AbortSignal): Promise<void> {
    if ((await this.#of(agent))?.exit != null) throw gateEnded('has ended');
    return this.#ask(agent, (runtime) => runtime.release(agent, frame, signal));
  }

  /** The workspace is in the container of its engine, which the Engine of the host can read also after the end of both. */
  getFiles(agent: AgentId, signal: AbortSignal, only?: readonly string[] | null): Promise<Readable> {
    return this.#outer.getFiles(agent, signal, only);
  }

  getFolder(agent: AgentId, folder: string, signal: AbortSignal): Promise<Readable | null> {
    return this.#outer.getFolder(agent, folder, signal);
  }

  async exec(agent: AgentId, command: readonly string[], signal: AbortSignal): Promise<RunningShell> {
    return this.#ask(agent, (runtime) => runtime.exec(agent, command, signal));
  }

  /** KILL is the Engine's of the host if the agent's own does not do it. It is asked first, so that what was written can be read. */
  async signal(agent: AgentId, signal: 'TERM' | 'KILL'): Promise<void> {
    const engine = await this.#of(agent);
    if (engine === null) return this.#outer.signal(agent, signal);
    if (signal === 'TERM') await engine.runtime.signal(agent, signal).catch(() => {});
    else if (!(await engine.kill())) await this.#outer.signal(agent, signal);
  }

  async remove(agent: AgentId): Promise<void> {
    if (existsSync(this.#folderOf(agent))) await this.#images.ending(agent);
    await this.#outer.remove(agent);
    this.#engines.get(agent)?.close();
    this.#engines.delete(agent);
    if (existsSync(this.#folderOf(agent))) await this.#forget(agent);
  }

  async list(signal: AbortSignal): Promise<SandboxSeen[]> {
    const folders = await readdir(this.#folder).catch((): string[] => []);
    const isFirst = !this.#isSwept;
    if (isFirst) await this.#images.sweep();
    this.#isSwept = true;
    const seen = await this.#outer.list(signal);
    const there = new Set(seen.map(({ agent }) => agent));
    for (const agent of folders) if (!there.has(agent) && !this.#engines.has(agent)) await this.#forget(agent);
    if (isFirst) await freeLostUids(this.#folder);
    if (isFirst) for (const agent of folders) if (there.has(agent)) await this.#keepIds(agent, signal);
    return Promise.all(seen.map((sandbox) => this.#seen(sandbox)));
  }

  async *events(signal: AbortSignal): AsyncGenerator<RuntimeEvent, void> {
    void this.#follow(signal);
    while (!signal.aborted) {
      for (let event = this.#events.shift(); event !== undefined; event = this.#events.shift()) yield event;
      await this.#waiters.next(signal);
    }
  }

  async *logs(agent: AgentId, from: LogPosition, signal: AbortSignal): AsyncGenerator<LogChunk[], void> {
    const engine = await this.#of(agent);
    if (engine === null) yield* this.#outer.logs(agent, from, signal);
    else yield* engine.logs(from, signal);
  }

  hostAddress(network: string, port: number, signal: AbortSignal): Promise<string> {
    return this.#outer.hostAddress(network, port, signal);
  }

  async sweep(signal: AbortSignal): Promise<void> {
    await this.#images.end();
    await this.#images.sweep();
    await this.#outer.sweep(signal);
    this.#images.forget();
  }

  async usage(agent: AgentId, signal: AbortSignal): Promise<number | null> {
    const used = await this.#outer.usage(agent, signal);
    const log = await stat(join(this.#folderOf(agent), inEngine.log)).catch(() => null);
    return used === null ? null : used + (log?.size ?? 0);
  }

  disk(signal: AbortSignal): ReturnType<Runtime['disk']> {
    return this.#outer.disk(signal);
  }

  #folderOf(agent: AgentId): string {
    return join(this.#folder, agent);
  }

  /** Id of the image of the engines. @throws OnejobError if there can be no engine, with what to do */
  async #makerOf(spec: SandboxSpec, progress: Progress, signal: AbortSignal): Promise<string> {
    const { engine, images } = this.#outer.parts;
    const { imageId: _, publicOnly: __, containers, ...recipe } = spec.recipe;
    const why = engineObstacle(engine.endpoint, await engine.isPodman(signal)) ?? kernelObstacle();
    if (why === null && containers?.image != null)
      return (await images.get({ ...recipe, image: containers.image, pull: 'never' }, progress, signal)).id;
    const hint = `Remove "containers" from pools.${spec.pool}, or move the pool to a host that "onejob doctor" finds fit for it.`;
    const message = `Cannot give agent ${spec.name} an engine for containers: ${why ?? 'it has no image'}.`;
    throw new OnejobError('E_NO_CONTAINERS', message, { hint });
  }

  /** Makes the container of an engine, and resolves once its socket is there. An earlier attempt is continued. */
  async #start(spec: SandboxSpec, from: EngineImages, progress: Progress, signal: AbortSignal): Promise<AgentEngine> {
    const { boot, containers, devices, engine, exits, networks, owner } = this.#outer.parts;
    const { agent } = spec;
    const folder = this.#folderOf(agent);
    const path = join(folder, inEngine.api);
    const before = await containers.find(agent, signal);
    if (before !== null) {
      const known = await this.#of(agent);
      const isRunning = known?.exit === null && (await engine.inspect(before, signal))?.State.Running === true;
      if (known !== null && isRunning && existsSync(path)) return known;
    }
    // Also of a folder alone: it may say how an earlier attempt has ended.
    if (before !== null || existsSync(folder)) await this.remove(agent);
    await mkdir(folder, { recursive: true, mode: 0o755 });
    await makeOwnLog(folder);
    const made = await this.#open(agent);
    const network = await networks.resolve(spec.recipe.network);
    const engineStart = await exits.engineStart(signal);
    const cards = await cardsOf(spec, this.#wants.specs ?? specFolders);
    if (cards.own.length > 0) await writeCards(folder, cards);
    const nodes = spec.devices.filter(({ vendor }) => vendor !== 'nvidia');
    const { host: others } = await devices.grant({ ...spec, devices: nodes }, signal);
    const { user: shared, volume: store } = this.#images.storeOf(spec.recipe);
    const user = await this.#ids.claim(spec.pool, shared, folder, spec.recipe);
    const body = engineBody(spec, { owner, boot, engineStart, network, ...from, folder, user, store, cards, others });
    const id = await engine.create(containerName(spec), body).catch((error: unknown) => {
      // The request of an earlier attempt has taken effect meanwhile.
      if (statusOf(error) !== 409) throw prepareRefusal(error, spec, engine.endpoint);
      throw new OnejobError('E_NAME_TAKEN', `Cannot start agent ${spec.name}: its container is there already.`, { retry: true });
    });
    containers.note(agent, id);
    // An aborted request may still take effect, so it was not aborted.
    signal.throwIfAborted();
    const waiting = new AbortController();
    const watcher = watch(folder, { signal: waiting.signal });
    let unmapped: Unmapped | null = null;
    try {
      const socket = new Promise<boolean>((resolve) => watcher.on('change', () => existsSync(path) && resolve(true)));
      await engine.start(id).catch((error: unknown) => {
        throw prepareRefusal(error, spec, engine.endpoint);
      });
      exits.sawAlive([id]);
      await verifyStart(this.#outer.parts, spec, engineStart, signal);
      const pid = user === shared ? 0 : ((await engine.inspect(id, signal))?.State.Pid ?? 0);
      const volumes = [inEngine.images, ...(from.ready === null ? [] : [inEngine.ready])];
      const mounts = { mounts: spec.recipe.mounts, volumes };
      unmapped = pid === 0 ? null : await mapIds(shared, user, { id, pid }, mounts, signal);
      // One that has ended was not refused anything.
      if (unmapped?.isRefused === true && (await engine.inspect(id, signal))?.State.Running === true) {
        this.#ids.share(spec.pool, unmapped.why);
        await this.remove(agent);
        return await this.#start(spec, from, progress, signal);
      }
      // It waits for its ids.
      if (unmapped !== null) await engine.kill(id, 'KILL');
      const ended = engine.ended(id, AbortSignal.any([signal, waiting.signal])).then(() => false);
      ended.catch(() => {});
      if (await Promise.race([socket, ended])) {
        await devices.verify(spec, id, progress, signal);
        await verifyFolders(engine, spec, id, signal);
        return made;
      }
    } finally {
      waiting.abort();
    }
    const said = (await lastWords(engine, id, signal)) || (unmapped?.why ?? '');
    const why = `the engine for its containers ended at once${said && `: ${said}`}`;
    throw new OnejobError('E_ENGINE_FAILED', `Cannot start agent ${spec.name}: ${why.replace(/\.$/, '')}.`, {
      hint: 'Type "onejob doctor" to check the Engine, and see docs/job-containers.md for what such an engine needs.',
      retry: true,
    });
  }

  /** Its container is gone. */
  async #forget(agent: AgentId): Promise<void> {
    await removeTree(this.#folderOf(agent));
    await freeUidOf(this.#folderOf(agent));
  }

  /** A reboot empties the folder of claims, and a container that has ended still has its files. */
  async #keepIds(agent: AgentId, signal: AbortSignal): Promise<void> {
    const container = await this.#outer.parts.containers.sure(agent, signal).catch(() => null);
    const first = container === null ? 0 : outside({ uid: 0, gid: 0 }, container).uid;
    if (first > engineUsers.untrusted.first) await keepUid(first, this.#folderOf(agent));
  }

  /** The engine of an agent; null if it has none. */
  async #of(agent: AgentId): Promise<AgentEngine | null> {
    const known = this.#engines.get(agent);
    if (known !== undefined) return known;
    if (!existsSync(this.#folderOf(agent))) return null;
    const engine = await this.#open(agent);
    void engine.watch();
    return engine;
  }

  async #open(agent: AgentId): Promise<AgentEngine> {
    // Before it is awaited, since a handle that two open would be closed as garbage, and its number given away.
    this.#opened ??= openFolder(this.#folder);
    const folder = await this.#opened;
    const known = this.#engines.get(agent);
    if (known !== undefined) return known;
    const socket = join(inside(folder, agent), inEngine.api);
    const engine = new AgentEngine(agent, this.#outer, socket);
    this.#engines.set(agent, engine);
    return engine;
  }

  /** What an agent's own engine, or that of the host, does for it. */
  async #ask<T>(agent: AgentId, call: (runtime: DockerRuntime) => Promise<T>): Promise<T> {
    const engine = await this.#of(agent);
    return engine === null ? call(this.#outer) : engine.ask(call);
  }

  async #seen(sandbox: SandboxSeen): Promise<SandboxSeen> {
    const engine = await this.#of(sandbox.agent);
    if (engine === null || sandbox.state.kind === 'created') return sandbox;
    if (sandbox.state.kind === 'exited') {
      engine.lost();
      return { ...sandbox, state: { kind: 'exited', exit: engine.exit ?? withEngine(sandbox.state.exit) } };
    }
    // Its end counts once the container of its engine has ended, which the Engine of the host says.
    await (engine.exit === null ? engine.look() : engine.end());
    return sandbox;
  }

  async #follow(signal: AbortSignal): Promise<void> {
    for await (const event of this.#outer.events(signal)) {
      const hasEnded = event.kind === 'exited' || event.kind === 'removed';
      const engine = hasEnded ? await this.#of(event.agent).catch(() => null) : null;
      engine?.lost();
      if (event.kind !== 'exited' || engine === null) this.#tell(event);
      else this.#tell({ ...event, exit: engine.exit ?? withEngine(event.exit) });
    }
  }

  #tell(event: RuntimeEvent): void {
    this.#events.push(event);
    this.#waiters.wake();
  }
}

/** How a sandbox ended whose engine did. */
function withEngine(exit: Exit): Exit {
  if (exit.kind !== 'code') return exit;
  return { kind: 'lost', reason: `the engine of its containers ended (exit code ${exit.code})` };
}
