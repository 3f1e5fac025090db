/**
 * The process runtime: sandboxes are processes of this host, isolated by bubblewrap if it works.
 *
 * Guarantees: the folder of a sandbox (`folder.ts`) holds everything about it, so a new manager continues where a killed one
 * stopped. No job ends with the manager. Under root no job runs as root, and no two agents as the same user.
 */
import { existsSync } from 'node:fs';
import { lstat, statfs } from 'node:fs/promises';
import { join } from 'node:path';
import { OnejobError, toFailure } from '../../base/errors.ts';
import type { Clock } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import type { Runtime, RuntimeEvent, SandboxSeen } from '../../ports/runtime.ts';
import { roomOf } from '../../system/disk-room.ts';
import { diskUsage } from '../disk-usage.ts';
import { watchFolders } from '../watch.ts';
import { openDoor } from './door.ts';
import { archive, extract, type Files } from './files.ts';
import { agentsIn, type Intent, type Layout, readIntent, stateOf } from './folder.ts';
import { createHolding } from './holding.ts';
import { hostFindings, lookAtHost, type ProcessHost, type ProcessRuntimeOptions } from './host.ts';
import { followLog } from './logs.ts';
import { checkFolders, checkRecipe, makeSandbox, processFingerprint } from './prepare.ts';
import { releaseGate, untilStarted, verifyFolders } from './release.ts';
import { endLeftovers, killWhole, removeSandbox, sweepLeftovers, terminate, tidyShared } from './remove.ts';
import { filterLoader } from './seccomp.ts';

/** Sets up the runtime: probes bubblewrap, finds control groups, creates its folders. */
export async function createProcessRuntime(options: ProcessRuntimeOptions): Promise<Runtime> {
  const host = await lookAtHost(options);
  const busy = new Set<AgentId>();
  const folder = (agent: AgentId): string => join(host.at.agents, agent);
  const known = (agent: AgentId): Intent | null => {
    const about = readIntent(host.at, agent);
    return about === null || about === 'damaged' || about.owner !== host.owner ? null : about;
  };
  const needed = (agent: AgentId): Intent => {
    const about = known(agent);
    if (about !== null) return about;
    throw new OnejobError('E_SANDBOX_LOST', `Agent ${agent} no longer has a sandbox on this host.`);
  };
  const look = (agent: AgentId): SandboxSeen['state'] | null => {
    const about = readIntent(host.at, agent);
    if (about === null) return null;
    if (about === 'damaged')
      return { kind: 'exited', exit: { kind: 'lost', reason: 'its folder was damaged when the host went down' } };
    return about.owner === host.owner ? stateOf(host.at, about, host.boot) : null;
  };
  const hasExited = (agent: AgentId) => (): boolean => (look(agent)?.kind ?? 'exited') === 'exited';
  const whileBusy = async <T>(agent: AgentId, action: () => Promise<T>): Promise<T> => {
    busy.add(agent);
    try {
      return await action();
    } finally {
      busy.delete(agent);
    }
  };
  const filesOf = ({ agent, files, uid, mode }: Intent): Files => {
    // What the sandbox has: it may have been made when this host could do more, or less.
    const filter = join(folder(agent), 'filter');
    const confine = mode === 'plain' && existsSync(filter) ? filterLoader(process.arch, filter) : [];
    return { agent, files, uid, confine, inherited: host.inherited };
  };
  /** Without mounts, what an ended job has left could take over the program of the same user that reads its files. */
  const ended = async (agent: AgentId): Promise<Intent> => {
    const about = needed(agent);
    if (about.mode === 'plain' && about.uid !== null && hasExited(agent)()) await endLeftovers(host, about);
    return about;
  };
  /** Opens a port of the host in the agent's own network, if it has one. */
  const open = async (agent: AgentId, network: string, port: number, signal: AbortSignal): Promise<void> => {
    if (!host.network.own || network !== 'default') return;
    await untilStarted(host.clock, folder(agent), hasExited(agent), signal);
    signal.throwIfAborted();
    await openDoor(host, agent, port, signal);
  };

  return {
    name: 'process',
    // Its groups are named after the agent.
    groupsOf: () => [],
    capabilities: {
      weaker: weaker(host),
      images: false,
      hostNetwork: host.network.own ? null : host.network.why,
      holdsSecrets: host.mode === 'bubblewrap' && host.root && host.filter !== null,
      workspace: (agent) => {
        if (host.mode === 'bubblewrap') return '/workspace';
        return join(host.root ? join(host.openDir, agent) : folder(agent), 'work');
      },
    },
    check: () => hostFindings(host),
    fingerprint: async (recipe) => processFingerprint(host, recipe),
    prepare: (spec, progress, signal) =>
      whileBusy(spec.agent, async () => {
        checkRecipe(host, spec.recipe);
        await checkFolders(spec.recipe);
        const state = look(spec.agent);
        if (state?.kind === 'running' || state?.kind === 'exited') return { fingerprint: needed(spec.agent).fingerprint };
        // It was begun and never started: by a manager that was killed, or by a failed attempt.
        await removeSandbox(host, spec.agent);
        signal.throwIfAborted();
        await makeSandbox(host, spec, progress);
        for (const port of spec.doors ?? []) await open(spec.agent, spec.recipe.network, port, signal);
        return { fingerprint: processFingerprint(host, spec.recipe) };
      }),
    putFiles: async (agent, files, signal) => extract(filesOf(needed(agent)), files, signal),
    release: async (agent, frame, signal) => {
      needed(agent);
      await verifyFolders(host.clock, folder(agent), agent, hasExited(agent), signal);
      return releaseGate(host.clock, folder(agent), agent, frame, hasExited(agent), signal);
    },
    getFiles: async (agent, signal, only) => archive(filesOf(await ended(agent)), '.', signal, only),
    getFolder: async (agent, name, signal) => {
      const about = await ended(agent);
      // A link would lead to wherever the job wants.
      const found = await lstat(join(about.files, 'work', name)).catch(() => null);
      return found?.isDirectory() === true ? archive(filesOf(about), name, signal) : null;
    },
    signal: async (agent, signal) => {
      const about = known(agent);
      if (about === null) return;
      // Before its first process is known nothing can be signalled, and it would still start.
      await untilStarted(host.clock, folder(agent), hasExited(agent));
      if (signal === 'TERM') terminate(folder(agent), about);
      else await killWhole(host.clock, folder(agent), about);
    },
    remove: async (agent) => {
      await whileBusy(agent, () => removeSandbox(host, agent));
      if (busy.size === 0) await tidyShared(host);
    },
    list: async () => {
      const seen: SandboxSeen[] = [];
      for (const agent of await agentsIn(host.at)) {
        const about = readIntent(host.at, agent);
        const state = look(agent);
        if (about === null || state === null) continue;
        const { pool, slot } = about === 'damaged' ? { pool: '', slot: '' } : about;
        seen.push({ agent, pool, slot, state });
      }
      return seen;
    },
    events: (signal) => followExits(host.clock, host.at, look, signal),
    logs: (agent, from, signal) => followLog(host.clock, join(folder(agent), 'log'), from, hasExited(agent), signal),
    hostAddress: async (network, port, signal, agent) => {
      if (agent !== undefined) await open(agent, network, port, signal);
      if (network === 'default' || network === 'host') return '127.0.0.1';
      const why = network === 'none' ? 'it has only its own loopback interface' : 'processes can only use "host" or "none"';
      const hint = 'Write network: host.';
      throw new OnejobError('E_NO_DOOR', `Sandboxes on network "${network}" cannot reach services on this host: ${why}.`, { hint });
    },
    holding: createHolding(host, known, (agent) => whileBusy(agent, () => removeSandbox(host, agent))),
    sweep: () => sweepLeftovers(host, busy),
    usage: async (agent, signal) => {
      const about = known(agent);
      const folders = about === null ? [] : ['work', 'home', 'tmp'].map((name) => join(about.files, name));
      return diskUsage(folders, signal);
    },
    disk: async () => roomOf(host.at.agents, await statfs(host.at.agents)),
  };
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
