/**
 * The process runtime: sandboxes are processes of this host, isolated by bubblewrap if it works.
 *
 * Guarantees: the folder of a sandbox (`folder.ts`) holds everything about it, so a new manager continues where a killed one
 * stopped. No job ends with the manager. Under root no job runs as root, and no two agents as the same user.
 */
import { existsSync } from 'node:fs';
import { lstat, rm, statfs } from 'node:fs/promises';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import { OnejobError, toFailure } from '../../base/errors.ts';
import type { Finding } from '../../base/finding.ts';
import type { Clock } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import type {
  Holding,
  LogChunk,
  LogPosition,
  Made,
  Recipe,
  Runtime,
  RuntimeCapabilities,
  RuntimeEvent,
  SandboxSeen,
  SandboxSpec,
} from '../../ports/runtime.ts';
import { type DiskRoom, roomOf } from '../../system/disk-room.ts';
import { diskUsage } from '../disk-usage.ts';
import { FirstLook, removeDrafts } from '../first-look.ts';
import { watchFolders } from '../watch.ts';
import { openDoor } from './door.ts';
import { archive, extract, type Files } from './files.ts';
import { agentsIn, type Intent, intentOf, type Layout, readIntent, requireIntent, stateOf } from './folder.ts';
import { ProcessHolding } from './holding.ts';
import { hostFindings, lookAtHost, type ProcessHost, type ProcessRuntimeOptions } from './host.ts';
import { followLog } from './logs.ts';
import { checkFolders, checkRecipe, makeSandbox, processFingerprint } from './prepare.ts';
import { releaseGate, type StartedSandbox, untilStarted, verifyFolders } from './release.ts';
import { endLeftovers, finishRemovals, killWhole, removeSandbox, sweepLeftovers, terminate, tidyShared } from './remove.ts';
import { filterLoader } from './seccomp.ts';

/** Sets up the runtime: probes bubblewrap, finds control groups, creates its folders. */
export async function createProcessRuntime(options: ProcessRuntimeOptions): Promise<Runtime> {
  return new ProcessRuntime(await lookAtHost(options));
}

class ProcessRuntime implements Runtime {
  readonly name = 'process';
  readonly capabilities: RuntimeCapabilities;
  readonly holding: Holding;
  readonly #host: ProcessHost;
  /** Agents whose sandboxes are being made or removed. */
  readonly #busy = new Set<AgentId>();
  readonly #firstLook = new FirstLook();

  constructor(host: ProcessHost) {
    this.#host = host;
    this.holding = new ProcessHolding(host, (agent) => this.#whileBusy(agent, () => removeSandbox(host, agent)));
    this.capabilities = {
      weaker: weaker(host),
      images: false,
      hostNetwork: host.network.own ? null : host.network.why,
      grants: 'host',
      holdsSecrets: host.mode === 'bubblewrap' && host.root && host.filter !== null,
      workspace: (agent) => {
        if (host.mode === 'bubblewrap') return '/workspace';
        return join(host.root ? join(host.openDir, agent) : this.#folder(agent), 'work');
      },
    };
  }

  /** Its groups are named after the agent. */
  groupsOf(): readonly string[] {
    return [];
  }

  check(): Promise<Finding[]> {
    return hostFindings(this.#host);
  }

  async fingerprint(recipe: Recipe): Promise<string> {
    return processFingerprint(this.#host, recipe);
  }

  prepare(spec: SandboxSpec, progress: (line: string) => void, signal: AbortSignal): Promise<Made> {
    const { agent, recipe } = spec;
    return this.#whileBusy(agent, async () => {
      await this.#firstLook.end();
      checkRecipe(this.#host, recipe);
      await checkFolders(recipe);
      const state = this.#look(agent);
      if (state?.kind === 'running' || state?.kind === 'exited')
        return { fingerprint: requireIntent(this.#host, agent).fingerprint };
      // It was begun and never started: by a manager that was killed, or by a failed attempt.
      await removeSandbox(this.#host, agent);
      signal.throwIfAborted();
      await makeSandbox(this.#host, spec, progress);
      for (const port of spec.doors ?? []) await this.#open(agent, recipe.network, port, signal);
      return { fingerprint: processFingerprint(this.#host, recipe) };
    });
  }

  async putFiles(agent: AgentId, files: Readable, signal: AbortSignal): Promise<void> {
    await extract(this.#filesOf(requireIntent(this.#host, agent)), files, signal);
  }

  async release(agent: AgentId, frame: Uint8Array, signal: AbortSignal): Promise<void> {
    requireIntent(this.#host, agent);
    await verifyFolders(this.#started(agent), signal);
    await releaseGate(this.#started(agent), frame, signal);
  }

  async getFiles(agent: AgentId, signal: AbortSignal, only?: readonly string[] | null): Promise<Readable> {
    return archive(this.#filesOf(await this.#quiet(agent)), '.', signal, only);
  }

  async getFolder(agent: AgentId, folder: string, signal: AbortSignal): Promise<Readable | null> {
    const about = await this.#quiet(agent);
    // A link would lead to wherever the job wants.
    const entry = await lstat(join(about.files, 'work', folder)).catch(() => null);
    return entry?.isDirectory() === true ? archive(this.#filesOf(about), folder, signal) : null;
  }

  async signal(agent: AgentId, signal: 'TERM' | 'KILL'): Promise<void> {
    const about = intentOf(this.#host, agent);
    if (about === null) return;
    // Before its first process is known nothing can be signalled, and it would still start.
    await untilStarted(this.#started(agent));
    if (signal === 'TERM') terminate(this.#folder(agent), about);
    else await killWhole(this.#host.clock, this.#folder(agent), about);
  }

  async remove(agent: AgentId): Promise<void> {
    await this.#whileBusy(agent, () => removeSandbox(this.#host, agent));
    if (this.#busy.size === 0) await tidyShared(this.#host);
  }

  async list(): Promise<SandboxSeen[]> {
    const { agents, exits } = this.#host.at;
    await this.#firstLook.sweep(async () => {
      await removeDrafts(agents, (agent) => rm(join(exits, agent), { force: true }));
      await finishRemovals(this.#host);
    });
    const seen: SandboxSeen[] = [];
    for (const agent of await agentsIn(this.#host.at)) {
      const about = readIntent(this.#host.at, agent);
      const state = this.#look(agent);
      if (about === null || state === null) continue;
      const { pool, slot } = about === 'damaged' ? { pool: '', slot: '' } : about;
      seen.push({ agent, pool, slot, state });
    }
    return seen;
  }

  events(signal: AbortSignal): AsyncIterable<RuntimeEvent> {
    return followExits(this.#host.clock, this.#host.at, (agent) => this.#look(agent), signal);
  }

  logs(agent: AgentId, from: LogPosition, signal: AbortSignal): AsyncIterable<LogChunk[]> {
    const { clock, path, hasEnded } = this.#started(agent);
    return followLog(clock, join(path, 'log'), from, hasEnded, signal);
  }

  async hostAddress(network: string, port: number, signal: AbortSignal, agent?: AgentId): Promise<string> {
    if (agent !== undefined) await this.#open(agent, network, port, signal);
    if (network === 'default' || network === 'host') return '127.0.0.1';
    const why = network === 'none' ? 'it has only its own loopback interface' : 'processes can only use "host" or "none"';
    const hint = 'Write network: host.';
    throw new OnejobError('E_NO_DOOR', `Sandboxes on network "${network}" cannot reach services on this host: ${why}.`, { hint });
  }

  sweep(): Promise<void> {
    return sweepLeftovers(this.#host, this.#busy);
  }

  async usage(agent: AgentId, signal: AbortSignal): Promise<number | null> {
    const about = intentOf(this.#host, agent);
    const folders = about === null ? [] : ['work', 'home', 'tmp'].map((name) => join(about.files, name));
    return diskUsage(folders, signal);
  }

  async disk(): Promise<DiskRoom | null> {
    const { agents } = this.#host.at;
    return roomOf(agents, await statfs(agents));
  }

  #folder(agent: AgentId): string {
    return join(this.#host.at.agents, agent);
  }

  /** The state of a sandbox; null if there is none of this owner. */
  #look(agent: AgentId): SandboxSeen['state'] | null {
    const { at, owner, boot } = this.#host;
    const about = readIntent(at, agent);
    if (about === null) return null;
    if (about === 'damaged')
      return { kind: 'exited', exit: { kind: 'lost', reason: 'its folder was damaged when the host went down' } };
    return about.owner === owner ? stateOf(at, about, boot) : null;
  }

  #hasEnded(agent: AgentId): boolean {
    return (this.#look(agent)?.kind ?? 'exited') === 'exited';
  }

  #started(agent: AgentId): StartedSandbox {
    return { clock: this.#host.clock, agent, path: this.#folder(agent), hasEnded: () => this.#hasEnded(agent) };
  }

  async #whileBusy<T>(agent: AgentId, action: () => Promise<T>): Promise<T> {
    this.#busy.add(agent);
    try {
      return await action();
    } finally {
      this.#busy.delete(agent);
    }
  }

  #filesOf({ agent, files, uid, mode }: Intent): Files {
    // What the sandbox has: it may have been made when this host could do more, or less.
    const filter = join(this.#folder(agent), 'filter');
    const confine = mode === 'plain' && existsSync(filter) ? filterLoader(process.arch, filter) : [];
    return { agent, files, uid, confine, inherited: this.#host.inherited };
  }

  /** Without mounts, what an ended job has left could take over the program of the same user that reads its files. */
  async #quiet(agent: AgentId): Promise<Intent> {
    const about = requireIntent(this.#host, agent);
    if (about.mode === 'plain' && about.uid !== null && this.#hasEnded(agent)) await endLeftovers(this.#host, about);
    return about;
  }

  /** Opens a port of the host in the agent's own network, if it has one. */
  async #open(agent: AgentId, network: string, port: number, signal: AbortSignal): Promise<void> {
    if (!this.#host.network.own || network !== 'default') return;
    await untilStarted(this.#started(agent), signal);
    signal.throwIfAborted();
    await openDoor(this.#host, agent, port, signal);
  }
}

function weaker(host: ProcessHost): string {
  if (host.mode === 'bubblewrap') {
    const user = host.root ? '' : ' They run as your own user.';
    const calls = host.filter === null ? ' They can make every system call.' : '';
    const network = host.network.own
      ? "Jobs use this host's programs, and its network for calls to others."
      : `Jobs share this host's network: they can reach services on localhost, and take its ports. ${host.network.why}`;
    return `${network}${user}${calls}`;
  }
  if (host.root)
    return 'Jobs run as users of their own, but can see everything that any user of this host can read, its processes, its network and every GPU.';
  return 'Jobs run as your own user without isolation: they can read, write and use everything that you can, including every GPU.';
}

/** ms between looks at all sandboxes, to find those whose processes were killed without an exit code. */
const slowLook = 5_000;
/** ms until a failed read is tried again. */
const soonLook = 1_000;

/**
 * Exits and removals of sandboxes as they happen, until `signal` aborts. Yields `lost` if something cannot be read, and
 * `connected` once everything could be. `look` returns the state of an agent, null if it has no sandbox.
 */
export async function* followExits(
  clock: Clock,
  at: Layout,
  look: (agent: AgentId) => SandboxSeen['state'] | null,
  signal: AbortSignal,
): AsyncGenerator<RuntimeEvent> {
  using watch = watchFolders(clock, [at.agents, at.exits], signal);
  /** Agents with a sandbox, and whether their exit was reported. */
  const known = new Map<AgentId, boolean>();
  const all = async (): Promise<ReadonlySet<string>> => new Set([...known.keys(), ...(await agentsIn(at))]);
  const tell = (agent: AgentId): RuntimeEvent | null => {
    const state = look(agent);
    if (state === null) return known.delete(agent) ? { kind: 'removed', agent } : null;
    if (state.kind !== 'exited') known.set(agent, false);
    else if (known.get(agent) !== true) {
      known.set(agent, true);
      return { kind: 'exited', agent, exit: state.exit };
    }
    return null;
  };
  let isLost = false;
  /** Agents to look at; null for all. */
  let names: ReadonlySet<string> | null = null;
  yield { kind: 'connected' };
  while (!signal.aborted) {
    try {
      for (const agent of names ?? (await all())) {
        const event = agent.startsWith('.') ? null : tell(agent);
        if (event !== null) yield event;
      }
      if (isLost) yield { kind: 'connected' };
      isLost = false;
    } catch (error) {
      if (!isLost) yield { kind: 'lost', failure: toFailure(error).message };
      isLost = true;
    }
    const changed = await watch.next(isLost ? soonLook : slowLook);
    names = isLost ? null : changed;
  }
}
