/**
 * The Kubernetes runtime: one bare pod for each agent, which waits for its node and then at the gate.
 *
 * Guarantees: Kubernetes places agents and grants their devices; onejob keeps no second book of them. A pod is never deleted without a
 * time to end, because its devices would be granted again while its processes run. The end of a connection is never taken for the end
 * of a job. Nothing of a job's script is in an object of the cluster.
 */
import type { Readable } from 'node:stream';
import { messageOf } from '../../base/errors.ts';
import type { Finding } from '../../base/finding.ts';
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
import { AvoidedNodes } from '../avoided.ts';
import { programFiles } from '../programs.ts';
import { recipeFingerprint } from '../recipe-fingerprint.ts';
import { check } from './check.ts';
import { KubeClient } from './client.ts';
import type { KubernetesConfig } from './config.ts';
import { Ends } from './ends.ts';
import { PodFiles } from './files.ts';
import type { Access } from './kubeconfig.ts';
import { ensureLease, removeLease } from './lease.ts';
import { followLog } from './logs.ts';
import { PodMaker } from './making.ts';
import { GuardedNetworks } from './networks.ts';
import { gateEnded, grantedOf, isOver, lost, type Pod, podName, stateOf, workspacePath } from './pods.ts';
import { releaseGate } from './release.ts';
import { signalScripts } from './script.ts';
import { PodWatch } from './watch.ts';

export interface KubernetesOptions {
  readonly config: KubernetesConfig;
  readonly access: Access;
  readonly owner: string;
  readonly clock: Clock;
}

/** ms that a signal may take to arrive. */
const signalLimit = 10_000;
/** s that a pod has to end once it is deleted. Never 0: its devices would be granted again at once. */
const graceSeconds = 1;
/** ms between two looks at what nobody reports, such as the end of a log that nobody reads. */
const lookAgain = 2_000;

/** A pod as it was last seen, and whether its end was reported. */
interface Reported {
  readonly pod: Pod;
  readonly hasExited: boolean;
}

export function createKubernetesRuntime(options: KubernetesOptions): Runtime {
  return new KubernetesRuntime(options);
}

class KubernetesRuntime implements Runtime {
  readonly name: string;
  readonly capabilities: RuntimeCapabilities = {
    weaker: null,
    unproved:
      'A GPU is not proved clean by onejob between two jobs: Kubernetes grants it, and its memory is looked at before the gate.',
    images: true,
    hostNetwork: null,
    grants: 'engine',
    holdsSecrets: true,
    elsewhere: true,
    oneStream: true,
    workspace: () => workspacePath,
  };
  readonly #options: KubernetesOptions;
  readonly #client: KubeClient;
  readonly #watch: PodWatch;
  readonly #avoided: AvoidedNodes;
  readonly #networks: GuardedNetworks;
  readonly #files: PodFiles;
  readonly #maker: PodMaker;
  readonly #ends: Ends;
  /** Agents whose pod this runtime has deleted, and whether that is how it ended them. */
  readonly #removed = new Map<AgentId, 'ended' | 'cleared'>();
  /** Agents that are being made: their early end is a failure to prepare them. */
  readonly #making = new Set<AgentId>();
  /** Agents that this runtime has made, and whether it opened their gate or wants their end. */
  readonly #released = new Map<AgentId, boolean>();
  /** The end of what a sweep removes. */
  #sweeping: Promise<void> | null = null;

  constructor(options: KubernetesOptions) {
    const { config, access, owner, clock } = options;
    const { name } = config;
    const client = new KubeClient(access, clock);
    const watch = new PodWatch({ client, clock, owner });
    const avoided = new AvoidedNodes(clock);
    const files = new PodFiles(client);
    const lease = async (signal: AbortSignal) => {
      await this.#sweeping;
      return ensureLease(client, owner, signal);
    };
    this.name = name;
    this.#options = options;
    this.#client = client;
    this.#watch = watch;
    this.#avoided = avoided;
    this.#files = files;
    this.#ends = new Ends({ client, clock, watch });
    this.#maker = new PodMaker({ name, owner, client, clock, watch, files, avoided, lease });
    this.#networks = new GuardedNetworks({ client, clock, owner, config, avoided: () => avoided.now.map(({ node }) => node) });
  }

  groupsOf(): readonly string[] {
    return [];
  }

  check(signal: AbortSignal): Promise<Finding[]> {
    const { name, address } = this.#options.config;
    return check({ name, address, client: this.#client, avoided: this.#avoided.now, networks: this.#networks.proofs }, signal);
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
    const making = { agent, progress, signal };
    this.#making.add(agent);
    try {
      const known = (await this.#watch.sure(progress, signal)).get(agent) ?? null;
      const fingerprint = known?.fingerprint ?? recipeFingerprint(spec.recipe);
      chosen?.({ fingerprint });
      const programs = await programFiles(spec.recipe);
      const settles = await this.#networks.admit(spec, progress, signal);
      if (known === null) {
        this.#released.set(agent, false);
        await this.#maker.create(spec, fingerprint, making);
      }
      await this.#maker.finish(spec, programs, making);
      if (settles > 0) await sleep(this.#options.clock, settles, signal);
      signal.throwIfAborted();
      return { fingerprint };
    } finally {
      this.#making.delete(agent);
      // An end that was kept back meanwhile is told now.
      this.#watch.wake(agent);
    }
  }

  async putFiles(agent: AgentId, files: Readable, signal: AbortSignal): Promise<void> {
    await this.#watch.require(agent, signal);
    await this.#files.put(agent, files, signal);
  }

  async release(agent: AgentId, frame: Uint8Array, signal: AbortSignal): Promise<void> {
    const pod = await this.#watch.require(agent, signal);
    if (this.#stateOf(pod).kind === 'exited') throw gateEnded(agent, 'its gate has ended');
    this.#mayEnd(agent);
    const parts = { client: this.#client, clock: this.#options.clock, watch: this.#watch };
    await releaseGate(parts, { agent, bytes: frame }, signal);
  }

  /** From now on its log is followed. */
  #mayEnd(agent: AgentId): void {
    this.#released.set(agent, true);
    this.#watch.wake(agent);
  }

  async getFiles(agent: AgentId, signal: AbortSignal, only?: readonly string[] | null): Promise<Readable> {
    await this.#watch.require(agent, signal);
    return this.#files.get(agent, '.', signal, only);
  }

  async getFolder(agent: AgentId, folder: string, signal: AbortSignal): Promise<Readable | null> {
    await this.#watch.require(agent, signal);
    return (await this.#files.isFolder(agent, folder, signal)) ? this.#files.get(agent, folder, signal) : null;
  }

  async signal(agent: AgentId, signal: 'TERM' | 'KILL'): Promise<void> {
    const pod = await this.#watch.find(agent);
    if (pod === null || isOver(pod) || this.#ends.of(agent) !== null) return;
    this.#mayEnd(agent);
    if (!pod.isRunning) return this.#delete(pod, 'ended');
    using limit = deadline(this.#options.clock, signalLimit);
    try {
      await this.#files.run(agent, signalScripts[signal], limit.signal);
    } catch (error) {
      const now = await this.#watch.find(agent);
      if (now === null || isOver(now)) return;
      // What does not even start a program any more is ended with its pod.
      if (signal === 'KILL') return this.#delete(now, 'ended');
      throw limit.passed ? this.#client.silent(`send ${signal} to agent ${agent}`, signalLimit) : error;
    }
  }

  async remove(agent: AgentId): Promise<void> {
    const { clock } = this.#options;
    let asked = Number.NEGATIVE_INFINITY;
    for (;;) {
      using changed = this.#watch.changeOf(agent);
      const pod = await this.#watch.find(agent);
      if (pod === null) break;
      // One that others delete has more time, up to hours.
      if (clock.now() - asked >= lookAgain) {
        await this.#delete(pod, 'cleared');
        asked = clock.now();
      }
      await changed.next(undefined, lookAgain);
    }
    for (const known of [this.#ends, this.#removed, this.#released]) known.delete(agent);
  }

  async #delete({ agent, uid }: Pod, as: 'ended' | 'cleared'): Promise<void> {
    this.#removed.set(agent, this.#removed.get(agent) ?? as);
    const body = { gracePeriodSeconds: graceSeconds, preconditions: { uid } };
    const path = this.#client.path('pods', podName(agent));
    await this.#client.bytes({ method: 'DELETE', path, body, doing: `remove agent ${agent}`, nothing: [404, 409] });
  }

  async list(signal: AbortSignal): Promise<SandboxSeen[]> {
    const pods = await this.#watch.all(signal);
    await this.#networks.guard(signal);
    await this.#ends.look(signal);
    return [...pods.values()].map((pod) => {
      const { agent, pool, slot } = pod;
      return { agent, pool, slot, state: this.#stateOf(pod) };
    });
  }

  async *events(signal: AbortSignal): AsyncGenerator<RuntimeEvent> {
    const known = new Map<AgentId, Reported>();
    let isLost = false;
    using news = this.#watch.follow();
    yield { kind: 'connected' };
    while (!signal.aborted) {
      const events: RuntimeEvent[] = [];
      const changed = news.take();
      try {
        const pods = await this.#watch.all(signal);
        // A node that does not answer holds up no news of others.
        void this.#ends.lookOnce(signal);
        for (const agent of changed ?? new Set([...known.keys(), ...pods.keys()])) events.push(...this.#newsOf(agent, known));
        if (isLost) events.push({ kind: 'connected' });
        isLost = false;
      } catch (error) {
        if (signal.aborted) return;
        if (!isLost) events.push({ kind: 'lost', failure: messageOf(error) });
        isLost = true;
      }
      yield* events;
      await news.next(signal, this.#ends.areOpen ? lookAgain : undefined);
    }
  }

  #newsOf(agent: AgentId, known: Map<AgentId, Reported>): RuntimeEvent[] {
    const before = known.get(agent);
    const pod = this.#watch.known.get(agent);
    const exited = (exit: Exit): RuntimeEvent => ({ kind: 'exited', agent, exit });
    if (pod === undefined) {
      if (!known.delete(agent) || before === undefined) return [];
      const removed: RuntimeEvent = { kind: 'removed', agent };
      const by = this.#removed.get(agent);
      if (before.hasExited || by === 'cleared') return [removed];
      // Who deletes a pod may leave no time to see it end.
      const end: Exit = by === 'ended' ? { kind: 'signal', signal: 'KILL' } : lost(before.pod, 'somebody deleted its pod');
      return [exited(this.#ends.of(agent) ?? end), removed];
    }
    const state = this.#stateOf(pod);
    if (this.#making.has(agent) && state.kind === 'exited') return [];
    const hasExited = before?.hasExited === true;
    known.set(agent, { pod, hasExited: hasExited || state.kind === 'exited' });
    return state.kind === 'exited' && !hasExited ? [exited(state.exit)] : [];
  }

  #stateOf(pod: Pod): SandboxSeen['state'] {
    return stateOf(pod, { told: this.#ends.of(pod.agent), isRemoved: this.#removed.has(pod.agent) });
  }

  placeOf(agent: AgentId): Granted | null {
    const pod = this.#watch.known.get(agent);
    return pod === undefined ? null : grantedOf(pod);
  }

  async *logs(agent: AgentId, from: LogPosition, signal: AbortSignal): AsyncGenerator<LogChunk[], void> {
    const { clock } = this.#options;
    if ((await this.#awaited(agent, signal)) === null) return;
    using reader = this.#ends.reader(agent);
    const source = {
      client: this.#client,
      clock,
      agent,
      isReleased: () => this.#released.get(agent) ?? null,
      change: () => this.#watch.changeOf(agent),
      hasEnded: () => {
        if (this.#watch.failure !== null) return null;
        const pod = this.#watch.known.get(agent);
        return pod === undefined || isOver(pod);
      },
      ended: (exit: Exit) => this.#ends.tell(agent, exit),
    };
    for await (const chunks of followLog(source, from, signal)) {
      reader.stalledSince = clock.now();
      yield chunks;
      reader.stalledSince = null;
    }
  }

  /** The pod of an agent, once that can be known, and the watch reports it; null: it has none. */
  async #awaited(agent: AgentId, signal: AbortSignal): Promise<Pod | null> {
    while (!signal.aborted) {
      using changed = this.#watch.changeOf(agent);
      const pod = await this.#watch.find(agent, signal).catch(() => undefined);
      if (pod === null || (pod !== undefined && this.#watch.known.has(agent))) return pod;
      await changed.next(signal, lookAgain);
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
}
