/**
 * The simulated Engine: the sandboxes of the world, which outlive managers, and everything that can happen to them and to itself.
 * Nothing here is about one manager's connection to it (`runtime.ts`).
 */

import type { OnejobError } from '../../../src/base/errors.ts';
import { type AgentId, type Exit, hostRestarted } from '../../../src/core/slot.ts';
import type { RuntimeEvent, SandboxSpec } from '../../../src/ports/runtime.ts';
import type { SimTime } from '../time.ts';
import { actOut } from './act.ts';
import { jobIn, type Program, perform, Sandbox, type Surroundings } from './sandbox.ts';

/** What goes wrong, as shares of calls (or events) from 0 to 1. */
export interface Faults {
  /** A call fails before it did anything. */
  fails: number;
  /** A call did what it should, and its answer is lost. */
  answerLost: number;
  /** An event is not reported; the event stream breaks instead. */
  eventLost: number;
  /** A call takes up to 30 s. */
  slow?: number;
  /** A call is not answered until its patience ends, whether it did what it should or not. */
  hung?: number;
  /** An event is reported again, up to 10 s later. */
  eventTwice?: number;
  /** An event, and all after it, is reported up to 30 s late. */
  eventLate?: number;
}

export const noFaults: Faults = { fails: 0, answerLost: 0, eventLost: 0 };

/** Anyone who listens to an owner's events: one per manager that lives. */
export interface Listener {
  readonly owner: string;
  push(event: RuntimeEvent): void;
}

/** Told of what happens to sandboxes of any owner, before it does. */
export interface EngineWatcher {
  made?(sandbox: Seen): void;
  released?(sandbox: Seen): void;
  signalled?(sandbox: Seen, signal: 'TERM' | 'KILL'): void;
  /** Its exit is set. */
  ended?(sandbox: Seen): void;
  removed?(sandbox: Seen): void;
}

/** A sandbox as the world knows it. */
export interface Seen {
  readonly spec: SandboxSpec;
  readonly owner: string;
  readonly fingerprint: string;
  readonly madeAt: number;
  /** UUIDs of the devices that it really has. */
  readonly granted: readonly string[];
  readonly cpuset: string | null;
  /** The job of the own queue that it has; null for none. */
  readonly job: string | null;
  readonly isStarted: boolean;
  readonly released: boolean;
  readonly exit: Exit | null;
}

/** An image that sandboxes are made from. */
export interface SimImage {
  id: string;
  /** Whether the Engine has it. */
  isHere: boolean;
  /** ms that pulling it takes. */
  pull: number;
  /** Why it cannot be pulled; null when it can. */
  trouble: OnejobError | null;
}

export interface EngineOptions {
  /** Bytes of a sandbox's output that are kept; default 64 MiB. */
  readonly keeps?: number;
  readonly endsBy?: 'code' | 'signal';
}

/** Owner of everything, unless told otherwise. */
export const ours = 'ours';
const takenAway: Exit = { kind: 'lost', reason: 'somebody removed its container' };
/** ms within which it starts what there is room for. */
const grantsWithin = 3_000;
/** ms for which what happened is told again to anyone who connects anew. */
const overlap = 10_000;

export class SimEngine {
  readonly watchers = new Set<EngineWatcher>();
  /** False while nothing answers; sandboxes continue. */
  isUp = true;
  faults: Faults = noFaults;
  /** How often each job's script began. */
  readonly begun = new Map<string, number>();
  /** Jobs whose sandboxes the Engine itself, or somebody else, has ended. */
  readonly lost = new Set<string>();
  /** How many sandboxes there were in all. */
  made = 0;
  outages = 0;
  /** How often it was started anew, and ended all that ran. */
  restarts = 0;
  /** How often its host has lost power. */
  cuts = 0;
  /** Sandboxes that somebody else, or the kernel, has ended. */
  seized = 0;
  /** What acts out scripts of other services than the own queue. */
  readonly programs = new Set<Program>();
  /** By reference; one that is not named here is there. */
  readonly images = new Map<string, SimImage>();
  /** Ids of images that were removed. */
  readonly pruned = new Set<string>();
  /** Exit code of a gate that ends before it is ready; null for one that works. */
  gate: (spec: SandboxSpec) => number | null = () => null;
  /** Why the Engine refuses to make a sandbox; null when it does not. */
  refusal: (spec: SandboxSpec) => OnejobError | null = () => null;
  /** Sandboxes that it refused to make. */
  refused = 0;
  /** The devices that a sandbox really gets. */
  grants: (spec: SandboxSpec) => readonly string[] = ({ devices }) => devices.map(({ uuid }) => uuid);
  /** Sandboxes that run at a time where the Engine itself starts them, in turn; null: each starts when it is asked to. */
  #capacity: number | null = null;
  readonly #queue = new Set<Sandbox>();
  /** Of those that it starts in a moment. */
  readonly #granted = new Set<Sandbox>();
  /** Networks by owner. */
  readonly networks = new Map<string, Set<string>>();
  /** Ports of this host that sandboxes on the network `internet` may reach, by owner. */
  readonly doors = new Map<string, Set<number>>();
  readonly time: SimTime;
  readonly random: () => number;
  readonly listeners = new Set<Listener>();
  readonly #owners = new Map<string, Map<AgentId, Sandbox>>([[ours, new Map()]]);
  readonly #returning = new Set<() => void>();
  #recent: { readonly at: number; readonly owner: string; readonly event: RuntimeEvent }[] = [];
  readonly #around: Surroundings;

  constructor(time: SimTime, random: () => number, { keeps = 64 * 2 ** 20, endsBy = 'code' }: EngineOptions = {}) {
    this.time = time;
    this.random = random;
    this.#around = {
      time,
      random,
      keeps,
      endsBy,
      run: (inside) => {
        if (this.programs.size === 0 || !perform(this.programs, inside)) actOut(inside);
      },
      begins: (sandbox) => {
        for (const watcher of this.watchers) watcher.released?.(sandbox);
        if (sandbox.job !== null) this.begun.set(sandbox.job, (this.begun.get(sandbox.job) ?? 0) + 1);
      },
      ended: (sandbox, exit) => {
        if (exit.kind === 'lost' && sandbox.job !== null) this.lost.add(sandbox.job);
        for (const watcher of this.watchers) watcher.ended?.(sandbox);
        this.#grant();
        this.#tell(sandbox.owner, { kind: 'exited', agent: sandbox.spec.agent, exit });
      },
    };
  }

  /** All sandboxes of ours. */
  get sandboxes(): ReadonlyMap<AgentId, Sandbox> {
    return this.of(ours);
  }

  /** All sandboxes of an owner. */
  of(owner: string): Map<AgentId, Sandbox> {
    let owned = this.#owners.get(owner);
    if (owned === undefined) {
      owned = new Map();
      this.#owners.set(owner, owned);
    }
    return owned;
  }

  image(reference: string): SimImage {
    let image = this.images.get(reference);
    if (image === undefined) {
      image = { id: `sha256:${reference}`, isHere: true, pull: 5_000, trouble: null };
      this.images.set(reference, image);
    }
    return image;
  }

  /** An image by its id, which may not be what its name means now. */
  imageWith(reference: string, id: string): SimImage {
    const now = this.image(reference);
    if (now.id === id) return now;
    return { id, isHere: !this.pruned.has(id) && !/^sha256:0+$/.test(id), pull: 0, trouble: null };
  }

  /** Makes a sandbox that is not started; the same agent twice is one sandbox. */
  make(spec: SandboxSpec, fingerprint: string, owner = ours): Sandbox {
    const owned = this.of(owner);
    const there = owned.get(spec.agent);
    if (there !== undefined) return there;
    const sandbox = new Sandbox(this.#around, { spec, owner, fingerprint, granted: this.grants(spec) });
    this.made += 1;
    owned.set(spec.agent, sandbox);
    for (const watcher of this.watchers) watcher.made?.(sandbox);
    return sandbox;
  }

  start(sandbox: Sandbox): void {
    sandbox.start(this.gate(sandbox.spec));
  }

  /** Whether it starts sandboxes itself, as it has room. */
  get startsItself(): boolean {
    return this.#capacity !== null;
  }

  /** It has room for so many from now on; what runs continues. */
  set capacity(most: number | null) {
    this.#capacity = most;
    this.#grant();
  }

  /** It starts once there is room for it, and those before it have started. */
  enqueue(sandbox: Sandbox): void {
    if (sandbox.isStarted || this.#granted.has(sandbox)) return;
    this.#queue.add(sandbox);
    this.#grant();
  }

  /** Names of those that wait for room. */
  get queued(): readonly AgentId[] {
    return Array.from(this.#queue, ({ spec }) => spec.agent);
  }

  /** A node ends with one of those that run on it, and nobody knows more. */
  loseNode(agent: AgentId): void {
    const sandbox = this.sandboxes.get(agent);
    if (sandbox === undefined || !sandbox.isStarted || sandbox.exit !== null) return;
    this.seized += 1;
    sandbox.end({ kind: 'lost', reason: 'the node failed' });
  }

  #grant(): void {
    if (this.#capacity === null || !this.isUp) return;
    const isRunning = ({ isStarted, exit }: Sandbox): boolean => isStarted && exit === null;
    const running = [...this.#owners.values()].flatMap((owned) => [...owned.values()]).filter(isRunning).length;
    let room = this.#capacity - running - this.#granted.size;
    for (const sandbox of this.#queue) {
      if (room <= 0) return;
      room -= 1;
      this.#queue.delete(sandbox);
      this.#granted.add(sandbox);
      this.time.after(this.random() * grantsWithin, () => {
        if (!this.#granted.delete(sandbox)) return;
        this.start(sandbox);
      });
    }
  }

  #ungrant(sandbox: Sandbox): void {
    this.#queue.delete(sandbox);
    this.#granted.delete(sandbox);
    this.#grant();
  }

  /** A frame for a sandbox that is not there any more: nobody can tell whether its job began before. */
  missed(frame: Uint8Array): void {
    const job = jobIn(Buffer.from(frame).toString('latin1'));
    if (job !== null) this.lost.add(job);
  }

  signal(agent: AgentId, signal: 'TERM' | 'KILL', owner = ours): void {
    const sandbox = this.of(owner).get(agent);
    if (sandbox === undefined || !sandbox.isStarted || sandbox.exit !== null) return;
    for (const watcher of this.watchers) watcher.signalled?.(sandbox, signal);
    sandbox.signal(signal);
  }

  /** Ends and removes it. */
  remove(agent: AgentId, owner = ours): void {
    const owned = this.of(owner);
    const sandbox = owned.get(agent);
    if (sandbox === undefined) return;
    for (const watcher of this.watchers) watcher.removed?.(sandbox);
    if (sandbox.isStarted) sandbox.end(takenAway);
    owned.delete(agent);
    this.#ungrant(sandbox);
    sandbox.gone();
    this.#tell(owner, { kind: 'removed', agent });
  }

  /** The kernel ends what runs in it because it has no memory left. */
  oom(agent: AgentId): void {
    const sandbox = this.sandboxes.get(agent);
    if (sandbox === undefined || !sandbox.isStarted) return;
    if (sandbox.job !== null) this.lost.add(sandbox.job);
    this.seized += 1;
    sandbox.end({ kind: 'oom' });
  }

  /** Somebody who is not a manager ends and removes it. */
  takeAway(agent: AgentId): void {
    const sandbox = this.sandboxes.get(agent);
    if (sandbox === undefined) return;
    if (sandbox.job !== null && sandbox.exit === null) this.lost.add(sandbox.job);
    this.seized += 1;
    // It ends first: who removes it then disturbs nobody any more.
    if (sandbox.isStarted) sandbox.end(takenAway);
    this.remove(agent);
  }

  /** What an owner has beside sandboxes goes, when it has no sandbox any more. */
  sweep(owner = ours): void {
    if (this.of(owner).size > 0) return;
    this.networks.delete(owner);
    this.doors.delete(owner);
  }

  /** Names of all that an owner has. */
  left(owner = ours): string[] {
    const networks = [...(this.networks.get(owner) ?? [])].map((name) => `network ${name}`);
    const doors = [...(this.doors.get(owner) ?? [])].map((port) => `door ${port}`);
    return [...[...this.of(owner).keys()].map((agent) => `sandbox ${agent}`), ...networks, ...doors];
  }

  /** Nothing answers for `ms`; what runs continues. */
  outage(ms: number): void {
    if (!this.isUp) return;
    this.isUp = false;
    this.outages += 1;
    for (const listener of this.listeners) listener.push({ kind: 'lost', failure: 'the simulated Engine is away' });
    this.time.after(ms, () => {
      this.isUp = true;
      for (const listener of this.listeners) this.connect(listener);
      const returning = [...this.#returning];
      this.#returning.clear();
      for (const fn of returning) fn();
      this.#grant();
    });
  }

  /** It stops and ends all that runs, no matter whose it is; after `ms` it answers again. */
  restart(ms: number): void {
    if (!this.isUp) return;
    this.restarts += 1;
    this.outage(ms);
    const reason = 'the Engine was stopped, and without live-restore it ends what runs';
    for (const owned of this.#owners.values())
      for (const sandbox of owned.values()) if (sandbox.isStarted) sandbox.end({ kind: 'lost', reason });
  }

  /**
   * Its host loses power, and boots within `ms`: nothing runs any more, nobody knows how anything ended, and what was printed may be
   * lost, because nobody has synced it.
   */
  cutPower(ms: number): void {
    this.cuts += 1;
    for (const owned of this.#owners.values())
      for (const sandbox of owned.values()) {
        if (sandbox.isStarted && sandbox.job !== null) this.lost.add(sandbox.job);
        sandbox.cutPower(hostRestarted, this.random() < 0.5);
      }
    this.#recent = [];
    this.outage(ms);
  }

  /** Says so to a listener, and again what has happened in the last seconds, as an Engine is asked to. */
  connect(listener: Listener): void {
    listener.push({ kind: 'connected' });
    this.#forget();
    for (const { owner, event } of this.#recent) if (owner === listener.owner) listener.push(event);
  }

  /** Calls `fn` once, when the Engine answers again; the returned function calls that off. */
  onReturn(fn: () => void): () => void {
    this.#returning.add(fn);
    return () => this.#returning.delete(fn);
  }

  #tell(owner: string, event: RuntimeEvent): void {
    this.#recent.push({ at: this.time.now, owner, event });
    if (this.#recent.length > 64) this.#forget();
    if (!this.isUp) return;
    const { eventLost, eventTwice = 0 } = this.faults;
    for (const listener of this.listeners) {
      if (listener.owner !== owner) continue;
      const fate = this.random();
      if (fate < eventLost) {
        this.#recent = this.#recent.filter((one) => one.event !== event);
        listener.push({ kind: 'lost', failure: 'the simulated event stream broke' });
        this.time.after(500, () => {
          if (this.isUp && this.listeners.has(listener)) this.connect(listener);
        });
        continue;
      }
      listener.push(event);
      if (fate < eventLost + eventTwice) this.time.after(this.random() * overlap, () => listener.push(event));
    }
  }

  #forget(): void {
    const first = this.#recent.findIndex(({ at }) => at >= this.time.now - overlap);
    this.#recent.splice(0, first === -1 ? this.#recent.length : first);
  }
}
