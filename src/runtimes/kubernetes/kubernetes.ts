/**
 * The Kubernetes runtime: one bare pod for each agent, which waits for its node and then at the gate.
 *
 * Guarantees: Kubernetes places agents and grants their devices; onejob keeps no second book of them. A pod is never deleted without a
 * time to end, because its devices would be granted again while its processes run. The end of a connection is never taken for the end
 * of a job. Nothing of a job's script is in an object of the cluster.
 */
import { createReadStream } from 'node:fs';
import { realpath } from 'node:fs/promises';
import type { PassThrough, Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { messageOf, OnejobError } from '../../base/errors.ts';
import type { Finding } from '../../base/finding.ts';
import { quoted } from '../../base/quoted.ts';
import { type Clock, deadline, sleep } from '../../core/clock.ts';
import type { AgentId, Exit } from '../../core/slot.ts';
import type {
  Granted,
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
import { AvoidedNodes, avoidedText } from '../avoided.ts';
import { recipeFingerprint } from '../recipe-fingerprint.ts';
import { createPod, stuckIn, unstarted } from './begin.ts';
import { check } from './check.ts';
import { KubeClient, refusalOf } from './client.ts';
import type { KubernetesConfig } from './config.ts';
import type { Access } from './kubeconfig.ts';
import { ensureLease, removeLease } from './lease.ts';
import { endOf, followLog } from './logs.ts';
import { podOfSpec, wantsOf } from './manifest.ts';
import { GuardedNetworks } from './networks.ts';
import { container, grantedOf, isOver, type Pod, podName, podOf, stateOf, waitText, workspacePath } from './pods.ts';
import { runBeside } from './run.ts';
import { exitUnfit, signalScripts, takeProgram, unfitIn, unfitLines } from './script.ts';
import { programOver, type Running, send } from './stream.ts';
import { PodWatch } from './watch.ts';

export interface KubernetesOptions {
  readonly config: KubernetesConfig;
  readonly access: Access;
  readonly owner: string;
  readonly clock: Clock;
}

/** ms in which a gate takes a frame; after that it is sent again. */
const takenWithin = 2_000;
/** ms between two tries to hand over a frame. */
const betweenFrames = 200;
/** ms that a release may take in all. */
const releaseLimit = 15_000;
/** ms that a signal may take to arrive. */
const signalLimit = 10_000;
/** s that a pod has to end once it is deleted. Never 0: its devices would be granted again at once. */
const graceSeconds = 1;
/** ms between two looks at what nobody reports, such as the end of a log that nobody reads. */
const lookAgain = 2_000;
/** ms between two looks at an agent that is about to reach its gate. */
const lookSoon = 200;
/** Bytes of its log that show what it has said. */
const lookBytes = 1_024;
/** ms that a look at a log may take. */
const lookLimit = 5_000;
/** Looks at logs at a time. */
const looksAtOnce = 16;

/** Readers of a log. */
interface Readers {
  count: number;
  /** Since when one of them has not asked for more; null: none. */
  stalledSince: number | null;
}

export function createKubernetesRuntime(options: KubernetesOptions): Runtime {
  return new KubernetesRuntime(options);
}

class KubernetesRuntime implements Runtime {
  readonly name: string;
  readonly capabilities: RuntimeCapabilities;
  readonly #options: KubernetesOptions;
  readonly #client: KubeClient;
  readonly #watch: PodWatch;
  readonly #avoided: AvoidedNodes;
  readonly #networks: GuardedNetworks;
  /** What logs have told: it is there before the container ends. */
  readonly #told = new Map<AgentId, Exit>();
  readonly #readers = new Map<AgentId, Readers>();
  /** Agents whose pod this runtime has deleted. */
  readonly #removed = new Set<AgentId>();
  /** The end of what a sweep removes. */
  #sweeping: Promise<void> | null = null;
  /** Agents that are being made: their early end is a failure to prepare them. */
  readonly #making = new Set<AgentId>();

  constructor(options: KubernetesOptions) {
    const { config, access, owner, clock } = options;
    this.#options = options;
    this.name = config.name;
    this.#client = new KubeClient(access, clock);
    this.#watch = new PodWatch({ client: this.#client, clock, owner });
    this.#avoided = new AvoidedNodes(clock);
    const avoided = (): string[] => this.#avoided.now.map(({ node }) => node);
    this.#networks = new GuardedNetworks({ client: this.#client, clock, owner, config, avoided });
    this.capabilities = {
      weaker:
        'A GPU is not proved clean by onejob between two jobs: Kubernetes grants it, and its memory is looked at before the gate.',
      images: true,
      hostNetwork: null,
      grants: 'engine',
      holdsSecrets: true,
      elsewhere: true,
      oneStream: true,
      workspace: () => workspacePath,
    };
  }

  groupsOf(): readonly string[] {
    return [];
  }

  check(signal: AbortSignal): Promise<Finding[]> {
    return check({ name: this.name, client: this.#client, avoided: this.#avoided.now, networks: this.#networks.proofs }, signal);
  }

  async fingerprint(recipe: Recipe): Promise<string> {
    return recipeFingerprint(recipe);
  }

  async prepare(
    spec: SandboxSpec,
    progress: (line: string) => void,
    signal: AbortSignal,
    chosen?: (made: Made) => void,
  ): Promise<Made> {
    const { agent } = spec;
    this.#making.add(agent);
    try {
      const known = (await this.#pods(progress, signal)).get(agent) ?? null;
      const fingerprint = known?.fingerprint ?? recipeFingerprint(spec.recipe);
      chosen?.({ fingerprint });
      const programs = spec.recipe.mounts.filter(({ program }) => program === true);
      const files = await Promise.all(programs.map(({ host }) => programAt(host)));
      const settles = await this.#networks.admit(spec, progress, signal);
      if (known === null) await this.#create(spec, fingerprint, progress, signal);
      await this.#begun(agent, progress, signal);
      for (const [at, { container: path }] of programs.entries()) await this.#bring(agent, files[at] ?? '', path, signal);
      if (wantsOf(spec.recipe).gpus > 0) await this.#fit(agent, progress, signal);
      if (settles > 0) await sleep(this.#options.clock, settles, signal);
      signal.throwIfAborted();
      return { fingerprint };
    } finally {
      this.#making.delete(agent);
      // An end that was kept back meanwhile is told now.
      this.#watch.wake();
    }
  }

  /** Waits while the cluster has no room for one more pod of this namespace. */
  async #create(spec: SandboxSpec, fingerprint: string, progress: (line: string) => void, signal: AbortSignal): Promise<void> {
    const { owner, clock } = this.#options;
    const { agent } = spec;
    await this.#sweeping;
    const lease = await ensureLease(this.#client, owner, signal);
    const avoided = this.#avoided.now.map(({ node }) => node);
    const body = podOfSpec(spec, { owner, fingerprint, lease, avoided });
    const waits = (why: string): void => progress(`${this.name}: waits for room: ${why}`);
    await createPod({ client: this.#client, clock, body, doing: `create agent ${agent}`, waits }, signal);
  }

  /** Waits until its gate is ready. @throws OnejobError if it will not be */
  async #begun(agent: AgentId, progress: (line: string) => void, signal: AbortSignal): Promise<void> {
    for (;;) {
      const seen = this.#watch.changes;
      const pod = await this.#created(agent, progress, signal);
      if (isOver(pod)) return await this.#early(agent, pod, signal);
      if (pod.isRunning) return;
      const isStuck = stuckIn(pod, `agent ${agent}`);
      if (isStuck !== null) throw isStuck;
      const avoided = this.#avoided.now;
      const more = avoided.length === 0 ? '' : `; ${avoidedText(avoided)}`;
      progress(`${this.name}: ${waitText(pod)}${more}`);
      await this.#watch.next(signal, undefined, seen);
      signal.throwIfAborted();
    }
  }

  /** A pod that was created, once the API answers. One that the watch never saw may have come and gone meanwhile. */
  async #created(agent: AgentId, progress: (line: string) => void, signal: AbortSignal): Promise<Pod> {
    for (;;) {
      const seen = this.#watch.changes;
      const pod = await this.#find(agent, signal).catch((error: unknown) => {
        signal.throwIfAborted();
        progress(messageOf(error));
      });
      if (pod === null) throw gateEnded(agent, 'somebody deleted its pod');
      if (pod !== undefined) return pod;
      await this.#watch.next(signal, lookAgain, seen);
      signal.throwIfAborted();
    }
  }

  /** Waits until its GPUs were looked at: a container that runs is not yet at its gate. @throws OnejobError if they are not fit */
  async #fit(agent: AgentId, progress: (line: string) => void, signal: AbortSignal): Promise<void> {
    for (;;) {
      const pod = (await this.#pods(progress, signal)).get(agent);
      signal.throwIfAborted();
      if (pod === undefined) throw gateEnded(agent, 'somebody deleted its pod');
      if (isOver(pod)) return await this.#early(agent, pod, signal);
      // It says nothing before that. A node that does not answer now may do so later.
      const said = await this.#log(agent, { limitBytes: lookBytes }, signal).catch(() => '');
      if (said !== '' && unfitIn(agent, said) === null) return;
      await this.#watch.next(signal, lookSoon);
    }
  }

  async #log(agent: AgentId, query: Readonly<Record<string, number>>, signal: AbortSignal): Promise<string> {
    const path = this.#client.path('pods', podName(agent), 'log');
    const doing = `read the log of agent ${agent}`;
    const said = await this.#client.ask({ path, query: { container, ...query }, doing, signal, nothing: [400, 404] });
    return typeof said === 'string' ? said : '';
  }

  /** Its container waits for it before its gate. One that is there already comes again, whole. */
  async #bring(agent: AgentId, file: string, path: string, signal: AbortSignal): Promise<void> {
    const cat = await this.#run(agent, takeProgram(path), signal);
    const [, ended] = await Promise.allSettled([pipeline(createReadStream(file), cat.stdin), cat.ended, drained(cat.stdout)]);
    signal.throwIfAborted();
    if (ended.status === 'fulfilled' && ended.value.code === 0) return;
    throw filesFailed(agent, `bring ${path} to`, ended.status === 'fulfilled' ? ended.value.words : ended.reason);
  }

  /** A pod that is over before anybody saw it run. One that had a job is not a failure to make it. */
  async #early(agent: AgentId, pod: Pod, signal: AbortSignal): Promise<void> {
    const { terminated, node, ended } = pod;
    const notStarted = unstarted(pod, `agent ${agent}`);
    if (notStarted !== null) throw notStarted;
    if (terminated?.code === exitUnfit) {
      const path = this.#client.path('pods', podName(agent), 'log');
      const said = await this.#client.ask({
        path,
        query: { container, tailLines: unfitLines },
        doing: `read the log of agent ${agent}`,
        signal,
        nothing: [400, 404],
      });
      if (said === null) throw gateEnded(agent, `it ended on node ${node}, which does not tell why`);
      const why = unfitIn(agent, String(said));
      if (why !== null) {
        this.#avoided.add({ node, why });
        throw gateEnded(agent, `node ${node} is not fit for it: ${why}`);
      }
    }
    if (terminated === null) throw gateEnded(agent, ended ?? 'it ended before it began');
  }

  async putFiles(agent: AgentId, files: Readable, signal: AbortSignal): Promise<void> {
    await this.#require(agent, signal);
    const tar = await this.#run(agent, 'exec tar -x -o -f -', signal);
    const [, ended] = await Promise.allSettled([pipeline(files, tar.stdin), tar.ended, drained(tar.stdout)]);
    signal.throwIfAborted();
    if (ended.status === 'rejected') throw filesFailed(agent, 'put files into', ended.reason);
    const { code, words } = ended.value;
    if (code !== 0) throw filesFailed(agent, 'put files into', words === '' ? `tar ended with exit code ${code}` : words);
  }

  async release(agent: AgentId, frame: Uint8Array, signal: AbortSignal): Promise<void> {
    const pod = await this.#require(agent, signal);
    if (this.#stateOf(pod).kind === 'exited') throw gateEnded(agent, 'its gate has ended');
    using limit = deadline(this.#options.clock, releaseLimit, signal);
    try {
      // What was cut off may not have arrived, and a gate takes the same frame once.
      while (!(await this.#handOver(agent, frame, limit.signal))) await sleep(this.#options.clock, betweenFrames, limit.signal);
    } catch (error) {
      signal.throwIfAborted();
      if (limit.passed) throw this.#client.silent(`release agent ${agent}`, releaseLimit);
      if (refusalOf(error)?.status === 404 || (await this.#hasLeft(agent, signal))) throw gateEnded(agent, 'its gate has ended');
      throw error;
    }
  }

  /** Returns whether the other end was there after all was sent. @throws as `KubeClient.socket` */
  async #handOver(agent: AgentId, frame: Uint8Array, signal: AbortSignal): Promise<boolean> {
    const doing = `release agent ${agent}`;
    const query = { container, stdin: true, stdout: false, stderr: false };
    const socket = await this.#client.socket({ path: this.#client.path('pods', podName(agent), 'attach'), query, doing, signal });
    const { stop } = programOver(socket, doing);
    signal.addEventListener('abort', stop, { once: true });
    try {
      return await send(socket, frame).then(
        () => this.#taken(socket, signal),
        () => false,
      );
    } finally {
      signal.removeEventListener('abort', stop);
      stop();
    }
  }

  /** Asks the other end whether it is there after what was sent: the answer comes after it was passed on. */
  async #taken(socket: Parameters<typeof send>[0], signal: AbortSignal): Promise<boolean> {
    using limit = deadline(this.#options.clock, takenWithin, signal);
    return await new Promise((resolve) => {
      socket.once('pong', () => resolve(true));
      socket.once('close', () => resolve(false));
      limit.signal.addEventListener('abort', () => resolve(false), { once: true });
      if (socket.readyState === socket.OPEN) socket.ping();
      else resolve(false);
    });
  }

  /** Whether nobody is at its gate any more, as far as can be seen now. */
  async #hasLeft(agent: AgentId, signal: AbortSignal): Promise<boolean> {
    using limit = deadline(this.#options.clock, lookLimit, signal);
    try {
      const now = await this.#find(agent, limit.signal);
      return now === null || isOver(now) || (await endOf({ client: this.#client, agent }, limit.signal)) !== null;
    } catch {
      signal.throwIfAborted();
      return false;
    }
  }

  async getFiles(agent: AgentId, signal: AbortSignal, only?: readonly string[] | null): Promise<Readable> {
    return this.#get(agent, '.', signal, only);
  }

  async getFolder(agent: AgentId, folder: string, signal: AbortSignal): Promise<Readable | null> {
    await this.#require(agent, signal);
    const path = quoted(`./${folder}`);
    const look = await this.#run(agent, `[ -d ${path} ] && [ ! -L ${path} ]`, signal);
    look.stdin.end();
    await drained(look.stdout);
    const { code } = await look.ended;
    return code === 0 ? this.#get(agent, folder, signal) : null;
  }

  async #get(agent: AgentId, folder: string, signal: AbortSignal, only?: readonly string[] | null): Promise<Readable> {
    await this.#require(agent, signal);
    const listed = only?.map((name) => quoted(`./${name}`)).join(' ') ?? '.';
    // 1: a file changed while it was read. 2: one could not be read, or is missing. The archive is complete.
    const tar = await this.#run(
      agent,
      `cd -- ${quoted(`./${folder}`)} && tar -c -f - -- ${listed} 2>/dev/null; [ $? -le 2 ]`,
      signal,
    );
    tar.stdin.end();
    const failed = (cause: unknown): void => void tar.stdout.destroy(filesFailed(agent, 'read files from', cause));
    tar.ended.then(({ code }) => code === 0 || failed(`tar ended with exit code ${code}`), failed);
    tar.stdout.on('close', tar.stop);
    return tar.stdout;
  }

  async signal(agent: AgentId, signal: 'TERM' | 'KILL'): Promise<void> {
    const pod = await this.#find(agent);
    if (pod === null || isOver(pod) || this.#told.has(agent)) return;
    if (!pod.isRunning) return this.#delete(pod);
    using limit = deadline(this.#options.clock, signalLimit);
    try {
      const sent = await this.#run(agent, signalScripts[signal], limit.signal);
      sent.stdin.end();
      await drained(sent.stdout);
      await sent.ended;
    } catch (error) {
      const now = await this.#find(agent);
      if (now === null || isOver(now)) return;
      // What does not even start a program any more is ended with its pod.
      if (signal === 'KILL') return this.#delete(now);
      throw limit.passed ? this.#client.silent(`send ${signal} to agent ${agent}`, signalLimit) : error;
    }
  }

  async remove(agent: AgentId): Promise<void> {
    const { clock } = this.#options;
    let asked = Number.NEGATIVE_INFINITY;
    for (;;) {
      const seen = this.#watch.changes;
      const pod = await this.#find(agent);
      if (pod === null) break;
      // One that others delete has more time, up to hours.
      if (clock.now() - asked >= lookAgain) {
        await this.#delete(pod);
        asked = clock.now();
      }
      await this.#watch.next(undefined, lookAgain, seen);
    }
    for (const known of [this.#told, this.#readers, this.#removed]) known.delete(agent);
  }

  async #delete({ agent, uid }: Pod): Promise<void> {
    this.#removed.add(agent);
    const body = { gracePeriodSeconds: graceSeconds, preconditions: { uid } };
    const path = this.#client.path('pods', podName(agent));
    await this.#client.ask({ method: 'DELETE', path, body, doing: `remove agent ${agent}`, nothing: [404, 409] });
  }

  async list(signal: AbortSignal): Promise<SandboxSeen[]> {
    const pods = [...(await this.#watch.all(signal)).values()];
    await this.#networks.guard(signal);
    await this.#lookAtEnds(pods, signal);
    return pods.map((pod) => {
      const { agent, pool, slot } = pod;
      return { agent, pool, slot, state: this.#stateOf(pod) };
    });
  }

  async *events(signal: AbortSignal): AsyncGenerator<RuntimeEvent> {
    /** Agents with a pod, and whether their exit was reported. */
    const known = new Map<AgentId, boolean>();
    let isLost = false;
    let isLooking = false;
    yield { kind: 'connected' };
    while (!signal.aborted) {
      // Changes go on while a reader of events is busy.
      const seen = this.#watch.changes;
      const events: RuntimeEvent[] = [];
      try {
        const pods = await this.#watch.all(signal);
        // A node that does not answer holds up no news of others.
        if (!isLooking) {
          isLooking = true;
          void this.#lookAtEnds([...pods.values()], signal).finally(() => {
            isLooking = false;
          });
        }
        for (const agent of known.keys()) if (!pods.has(agent)) events.push({ kind: 'removed', agent });
        for (const { agent } of events.filter((event) => event.kind === 'removed')) known.delete(agent);
        for (const pod of pods.values()) {
          const { agent } = pod;
          const state = this.#stateOf(pod);
          if (this.#making.has(agent) && state.kind === 'exited') continue;
          if (state.kind === 'exited' && known.get(agent) !== true) events.push({ kind: 'exited', agent, exit: state.exit });
          known.set(agent, known.get(agent) === true || state.kind === 'exited');
        }
        if (isLost) events.push({ kind: 'connected' });
        isLost = false;
      } catch (error) {
        if (signal.aborted) return;
        if (!isLost) events.push({ kind: 'lost', failure: messageOf(error) });
        isLost = true;
      }
      yield* events;
      // A reader of a log may stall at any time, and nothing else tells of the end then.
      const isOpen = [...this.#watch.known.values()].some((pod) => pod.isRunning && !this.#told.has(pod.agent));
      await this.#watch.next(signal, isOpen ? lookAgain : undefined, seen);
    }
  }

  #stateOf(pod: Pod): SandboxSeen['state'] {
    return stateOf(pod, { told: this.#told.get(pod.agent) ?? null, isRemoved: this.#removed.has(pod.agent) });
  }

  /** Running agents whose log nobody reads now. */
  #unread(pods: readonly Pod[]): Pod[] {
    const now = this.#options.clock.now();
    return pods.filter(({ agent, isRunning }) => {
      const readers = this.#readers.get(agent);
      const isRead =
        readers !== undefined && readers.count > 0 && (readers.stalledSince === null || now - readers.stalledSince < lookAgain);
      return isRunning && !this.#told.has(agent) && !isRead;
    });
  }

  /** Asks for the last line of the logs that nobody reads. What a node does not tell now is not known. */
  async #lookAtEnds(pods: readonly Pod[], signal: AbortSignal): Promise<void> {
    const open = this.#unread(pods);
    const look = async (): Promise<void> => {
      for (let pod = open.pop(); pod !== undefined; pod = open.pop()) {
        using limit = deadline(this.#options.clock, lookLimit, signal);
        const exit = await endOf({ client: this.#client, agent: pod.agent }, limit.signal).catch(() => null);
        if (exit === null) continue;
        this.#told.set(pod.agent, exit);
        this.#watch.wake();
      }
    };
    await Promise.all(Array.from({ length: Math.min(looksAtOnce, open.length) }, look));
  }

  placeOf(agent: AgentId): Granted | null {
    const pod = this.#watch.known.get(agent);
    return pod === undefined ? null : grantedOf(pod);
  }

  async *logs(agent: AgentId, from: LogPosition, signal: AbortSignal): AsyncGenerator<LogChunk[], void> {
    const { clock } = this.#options;
    if ((await this.#awaited(agent, signal)) === null) return;
    const readers = this.#readers.get(agent) ?? { count: 0, stalledSince: null };
    this.#readers.set(agent, readers);
    readers.count += 1;
    const hasEnded = (): boolean | null => {
      if (this.#watch.failure !== null) return null;
      const pod = this.#watch.known.get(agent);
      return pod === undefined || isOver(pod);
    };
    const ended = (exit: Exit): void => {
      this.#told.set(agent, exit);
      this.#watch.wake();
    };
    try {
      for await (const chunks of followLog({ client: this.#client, clock, agent, hasEnded, ended }, from, signal)) {
        readers.stalledSince = clock.now();
        yield chunks;
        readers.stalledSince = null;
      }
    } finally {
      readers.count -= 1;
      readers.stalledSince = null;
      // The end of a log that nobody reads any more is looked for.
      this.#watch.wake();
    }
  }

  /** The pod of an agent, once that can be known, and the watch tells of it; null: it has none. */
  async #awaited(agent: AgentId, signal: AbortSignal): Promise<Pod | null> {
    while (!signal.aborted) {
      const seen = this.#watch.changes;
      const pod = await this.#find(agent, signal).catch(() => undefined);
      if (pod === null || (pod !== undefined && this.#watch.known.has(agent))) return pod;
      await this.#watch.next(signal, lookAgain, seen);
    }
    return null;
  }

  hostAddress(network: string, port: number, signal: AbortSignal): Promise<string> {
    return this.#networks.hostAddress(network, port, signal);
  }

  async sweep(signal: AbortSignal): Promise<void> {
    await this.#networks.sweep(signal);
    const isUnused = (await this.#watch.all(signal)).size === 0 && this.#making.size === 0;
    if (!isUnused) return;
    // A pod that is made meanwhile would go with it.
    this.#sweeping = removeLease(this.#client, this.#options.owner, signal).catch(() => {});
    await this.#sweeping;
  }

  async disk(): Promise<null> {
    return null;
  }

  close(): void {
    this.#watch.close();
    this.#client.close();
  }

  /** All pods, even if the API is away for a while. */
  async #pods(progress: (line: string) => void, signal: AbortSignal): Promise<ReadonlyMap<AgentId, Pod>> {
    for (;;) {
      try {
        return await this.#watch.all(signal);
      } catch (error) {
        signal.throwIfAborted();
        progress(messageOf(error));
        await this.#watch.next(signal);
      }
    }
  }

  /** The pod of an agent; null: it has none. It may be too new for the watch. */
  async #find(agent: AgentId, signal?: AbortSignal): Promise<Pod | null> {
    const known = (await this.#watch.all(signal)).get(agent);
    if (known !== undefined) return known;
    const path = this.#client.path('pods', podName(agent));
    const answer = await this.#client.ask({ path, doing: `look at agent ${agent}`, signal, nothing: [404] });
    if (answer === null) return null;
    const isOwn = Object(Object(answer).metadata?.labels)['onejob/owner'] === this.#options.owner;
    return isOwn ? podOf(answer) : null;
  }

  async #require(agent: AgentId, signal: AbortSignal): Promise<Pod> {
    const pod = await this.#find(agent, signal);
    if (pod === null) throw new OnejobError('E_SANDBOX_LOST', `There is no agent ${agent} in the cluster.`);
    return pod;
  }

  #run(agent: AgentId, script: string, signal: AbortSignal): Promise<Running> {
    return runBeside(this.#client, { agent, script, doing: `run a program beside agent ${agent}` }, signal);
  }
}

/** @throws OnejobError E_MOUNT_MISSING if it is not there yet */
function programAt(path: string): Promise<string> {
  return realpath(path).catch((cause: unknown) => {
    throw new OnejobError('E_MOUNT_MISSING', `The program ${path} is not there.`, { retry: true, cause });
  });
}

async function drained(stream: PassThrough): Promise<void> {
  for await (const _ of stream);
}

function gateEnded(agent: AgentId, why: string): OnejobError {
  return new OnejobError('E_GATE_ENDED', `Agent ${agent} did not reach its gate, or has left it: ${why}.`, { retry: true });
}

function filesFailed(agent: AgentId, what: string, cause: unknown): OnejobError {
  const why = (typeof cause === 'string' ? cause : messageOf(cause)).replace(/\.$/, '');
  return new OnejobError('E_FILES', `Cannot ${what} the workspace of agent ${agent}: ${why}.`, { cause, retry: true });
}
