/**
 * Observes the world for the loop: runtime events as they arrive, and a slow resync that repairs what a stream missed. A runtime
 * that does not answer says nothing: what cannot be seen is unknown, never gone (S6).
 */

import { attempt, toFailure } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import type { Clock } from '../../core/clock.ts';
import { endedAtGate } from '../../core/gate-failure.ts';
import { type AgentId, type Exit, hostRestarted, type JobId, type Slot } from '../../core/slot.ts';
import type { LogFollowers } from '../../logs/followers.ts';
import type { Runtime, SandboxSeen } from '../../ports/runtime.ts';
import { roomText } from '../../system/disk-room.ts';
import type { SandboxProbe } from '../actions/probe-sandbox.ts';
import type { HeldJobs } from '../held/held-jobs.ts';
import type { Fingerprints } from '../images/fingerprints.ts';
import type { Pool } from './pool.ts';
import type { Reconciler } from './reconciler.ts';

export interface ObserveParts {
  readonly clock: Clock;
  readonly log: Log;
  readonly followers: LogFollowers;
  readonly reconciler: Reconciler;
  /** The runtimes at the start; `add` brings more. */
  readonly runtimes: readonly Runtime[];
  readonly fingerprints: Pick<Fingerprints, 'refresh'>;
  readonly minFree: number;
  /** Frees space on a disk that is too full. */
  readonly makeRoom: (signal: AbortSignal) => Promise<unknown>;
  /** Its sandboxes are ours, but in no slot: it removes them itself. */
  readonly probe: Pick<SandboxProbe, 'isProbe'>;
  /** The same holds for what is kept of failed jobs. */
  readonly held: Pick<HeldJobs, 'isOurs' | 'gone'>;
  /** Keys of slots that an earlier boot of this host left. */
  readonly rebooted: ReadonlySet<string>;
}

const resyncEvery = 30_000;
/** ms until a runtime that could not be reached is looked at again. */
const lookAgain = 2_000;
/** ms that the log of a sandbox may take to be complete, if it ended before *released* was seen. */
/** ms that reading the last words of a sandbox that ended before its gate may take. */
const wordsPatience = 2_000;
const logPatience = 10_000;

export class Observer {
  readonly #parts: ObserveParts;
  readonly #abort = new AbortController();
  readonly #away = new Map<string, string>();
  readonly #judging = new Set<AgentId>();
  readonly #watching: Promise<void>[] = [];
  readonly #runtimes: Runtime[];
  readonly #resyncing = new Map<Runtime, Promise<void>>();
  /** Agents whose sandboxes an earlier boot of this host has ended. */
  readonly #ended = new Set<AgentId>();
  #timer: (() => void) | null = null;

  constructor(parts: ObserveParts) {
    this.#parts = parts;
    this.#runtimes = [...parts.runtimes];
  }

  /** Sentences about runtimes that cannot be reached now. */
  get problems(): string[] {
    return [...this.#away.values()];
  }

  /** Runtimes that cannot be reached now, and why. */
  get away(): ReadonlyMap<string, string> {
    return this.#away;
  }

  /** Why a runtime cannot be reached now; null if it can. */
  unreachable(runtime: string): string | null {
    return this.#away.get(runtime) ?? null;
  }

  /** Nothing begins on an unreachable runtime until a look at it succeeds. */
  cannotReach(runtime: Runtime, failure: string): void {
    const { log, reconciler } = this.#parts;
    if (this.#away.get(runtime.name) !== failure) log.error('runtime unreachable', { runtime: runtime.name, reason: failure });
    this.#away.set(runtime.name, failure);
    reconciler.away(runtime.name, failure);
    this.#arm();
  }

  /** Follows the existing sandboxes, then looks at everything once. Resolves when that was done or has failed. */
  async start(): Promise<void> {
    const { reconciler, followers, rebooted } = this.#parts;
    for (const slot of reconciler.slots) {
      const agents = rebooted.has(slot.key) ? standing(slot) : [];
      if (agents.length === 0 || this.#runtimeOf(slot).capabilities.elsewhere === true) continue;
      for (const agent of agents) this.#ended.add(agent);
      this.#endedWithBoot(slot);
    }
    for (const slot of reconciler.slots) {
      for (const agent of standing(slot)) followers.follow(agent, this.#runtimeOf(slot));
    }
    for (const runtime of this.#runtimes) this.#watching.push(this.#watch(runtime));
    await this.#resyncAll();
    this.#arm();
  }

  /** Adds a runtime, or looks at a known one again. Resolves after the look. */
  async add(runtime: Runtime): Promise<void> {
    if (!this.#runtimes.includes(runtime)) {
      this.#runtimes.push(runtime);
      this.#watching.push(this.#watch(runtime));
    }
    await this.#resync(runtime);
  }

  async close(): Promise<void> {
    this.#timer?.();
    this.#abort.abort();
    await Promise.allSettled([...this.#watching, ...this.#resyncing.values()]);
  }

  /**
   * Removes sandboxes of ours that are in no slot, and what they shared. A request of a killed manager may take effect long after
   * its slot was cleared, and at the end nobody looks again. Never fails; leftovers are logged, and false is returned.
   */
  async sweep(runtime: Runtime): Promise<boolean> {
    const { signal } = this.#abort;
    try {
      const seen = await runtime.list(signal);
      for (const sandbox of seen) if (this.#isOrphan(sandbox)) await this.#removeOrphan(runtime, sandbox);
      await runtime.sweep(signal);
      return true;
    } catch (error) {
      this.#parts.log.warn('failed to remove everything', { runtime: runtime.name, reason: toFailure(error).message });
      return false;
    }
  }

  /** An agent's first process has ended. */
  async exited(agent: AgentId, exit: Exit): Promise<void> {
    const { reconciler } = this.#parts;
    const slot = reconciler.slotOf(agent);
    if (slot === undefined || slot.leaving.some((one) => one.agent === agent)) return;
    const { key } = slot;
    if (slot.standby.kind !== 'none' && slot.standby.agent === agent) {
      if (slot.standby.kind === 'preparing' && exit.kind !== 'lost') await this.#failed(slot, slot.standby, exit);
      else reconciler.post(key, { kind: 'exited', agent, exit, released: false });
      return;
    }
    if (hasBegun(slot)) {
      reconciler.post(key, { kind: 'exited', agent, exit, released: true });
      return;
    }
    if (this.#judging.has(agent)) return;
    this.#judging.add(agent);
    try {
      await this.#judge(slot, agent, exit);
    } finally {
      this.#judging.delete(agent);
    }
  }

  /** A sandbox ended before its gate: its last words may say why. */
  async #failed(slot: Slot, { agent, reserved }: Preparing, exit: Exit): Promise<void> {
    const { followers, reconciler } = this.#parts;
    const follower = followers.follow(agent, this.#runtimeOf(slot));
    await followers.complete(agent, wordsPatience);
    if (this.#abort.signal.aborted) return;
    const failure = endedAtGate(exit, follower.lastWords);
    const image = failure.code === 'E_NO_SHELL' ? imageOf(reconciler.poolOf(slot.key), reserved?.job ?? null) : null;
    const message = image === null ? failure.message : failure.message.replace('The image', `The image "${image}"`);
    reconciler.post(slot.key, { kind: 'prepareFailed', agent, failure: { ...failure, message } });
  }

  /** Whether the script of an ended agent began, by its log. */
  async #judge(slot: Slot, agent: AgentId, exit: Exit): Promise<void> {
    const { followers, reconciler } = this.#parts;
    const { signal } = this.#abort;
    const runtime = this.#runtimeOf(slot);
    const follower = followers.follow(agent, runtime);
    let whole = await followers.complete(agent, logPatience);
    // A runtime that is away says nothing about the script; its log is read once it is back.
    while (!whole && this.#away.has(runtime.name) && !signal.aborted) {
      whole = await followers.complete(agent, logPatience);
    }
    if (signal.aborted) return;
    // The marker may have been read from output that a full disk does not take yet.
    const begun = follower.state === 'released';
    // Its gate was heard before a script was sent. A log that does not show that gate is not the whole log.
    const isCut = mayHaveBegun(slot) && !follower.showsNothingBegan;
    const what = whole ? 'a part of its output is missing' : 'its output cannot be read';
    const isUnknown = !begun && (!whole || isCut);
    const end: Exit = isUnknown ? { kind: 'lost', reason: `${what}, so it is unknown whether it began` } : exit;
    reconciler.post(slot.key, { kind: 'exited', agent, exit: end, released: begun || isUnknown });
  }

  /**
   * A script that may have been handed over before the host was restarted counts as begun: a power cut takes the marker from the log,
   * too, so its absence proves nothing (S3).
   */
  #endedWithBoot(slot: Slot): void {
    if (!mayHaveBegun(slot)) return;
    this.#parts.reconciler.post(slot.key, { kind: 'exited', agent: slot.agent.agent, exit: hostRestarted, released: true });
  }

  async #watch(runtime: Runtime): Promise<void> {
    for await (const event of runtime.events(this.#abort.signal)) {
      switch (event.kind) {
        case 'exited':
          void this.exited(event.agent, event.exit);
          break;
        case 'removed':
          this.#gone(event.agent);
          break;
        case 'lost':
          this.cannotReach(runtime, event.failure);
          break;
        case 'connected':
          void this.#resync(runtime);
          break;
      }
    }
  }

  /** Compares the runtime's sandboxes with the slots, both ways. One at a time per runtime. */
  #resync(runtime: Runtime): Promise<void> {
    const running = this.#resyncing.get(runtime);
    if (running !== undefined) return running;
    const done = this.#compare(runtime).finally(() => this.#resyncing.delete(runtime));
    this.#resyncing.set(runtime, done);
    return done;
  }

  async #resyncAll(): Promise<void> {
    await Promise.all(this.#runtimes.map((runtime) => this.#resync(runtime)));
  }

  async #compare(runtime: Runtime): Promise<void> {
    const { reconciler, fingerprints } = this.#parts;
    const { signal } = this.#abort;
    try {
      const before = reconciler.slots.filter((slot) => slot.runtime === runtime.name).flatMap(standing);
      const seen = await runtime.list(signal);
      this.#reached(runtime);
      const there = new Set(seen.map((sandbox) => sandbox.agent));
      for (const agent of before) if (!there.has(agent)) this.#gone(agent);
      for (const sandbox of seen) {
        if (this.#isOrphan(sandbox)) await this.#removeOrphan(runtime, sandbox);
        else if (sandbox.state.kind === 'exited') void this.exited(sandbox.agent, sandbox.state.exit);
        // It was at its gate: a power cut has taken from its runtime that it was started, and nothing would ever end it.
        else if (sandbox.state.kind === 'created' && this.#ended.has(sandbox.agent)) void this.exited(sandbox.agent, hostRestarted);
      }
      reconciler.catchUp(runtime.name);
      await fingerprints.refresh(runtime, signal);
      await this.#checkDisk(runtime, signal);
    } catch (error) {
      if (!signal.aborted) this.cannotReach(runtime, toFailure(error).message);
    }
    if (!signal.aborted) reconciler.replanAll();
  }

  #isOrphan({ agent }: SandboxSeen): boolean {
    const { probe, held, reconciler } = this.#parts;
    return !probe.isProbe(agent) && !held.isOurs(agent) && reconciler.placeOf(agent) === undefined;
  }

  async #removeOrphan(runtime: Runtime, { agent, slot }: SandboxSeen): Promise<void> {
    const { log } = this.#parts;
    log.warn('removing an orphan', { runtime: runtime.name, agent, slot });
    await runtime.remove(agent).catch((error: unknown) => {
      log.warn('failed to remove an orphan', { agent, reason: toFailure(error).message });
    });
  }

  async #checkDisk(runtime: Runtime, signal: AbortSignal): Promise<void> {
    const { log, makeRoom, minFree, reconciler } = this.#parts;
    let disk = await runtime.disk(signal);
    if (disk !== null && disk.free < minFree && runtime.capabilities.images) {
      await makeRoom(signal).catch((error: unknown) => {
        log.warn('failed to free disk space', { runtime: runtime.name, reason: toFailure(error).message });
      });
      disk = await runtime.disk(signal);
    }
    const reason = `disk:${runtime.name}`;
    if (disk === null || disk.free >= minFree) {
      if (reconciler.pause.release(reason)) log.info('disk has room again', { runtime: runtime.name });
      return;
    }
    const detail = `${disk.path} ${roomText(disk)}, below disk.min_free of ${Math.round(minFree * 100)} %`;
    if (reconciler.pause.hold(reason, detail)) log.warn('disk is full', { reason: detail });
  }

  #gone(agent: AgentId): void {
    const { held, reconciler } = this.#parts;
    const slot = reconciler.slotOf(agent);
    if (slot === undefined) held.gone(agent);
    else if (standing(slot).includes(agent)) reconciler.post(slot.key, { kind: 'gone', agent });
  }

  #runtimeOf(slot: Slot): Runtime {
    const runtime = this.#runtimes.find((one) => one.name === slot.runtime);
    if (runtime === undefined) throw new RangeError(`no runtime ${slot.runtime} for slot ${slot.key}`);
    return runtime;
  }

  #reached(runtime: Runtime): void {
    if (!this.#away.delete(runtime.name)) return;
    this.#parts.log.info('runtime reachable again', { runtime: runtime.name });
    this.#parts.reconciler.back(runtime.name);
  }

  #arm(): void {
    if (this.#abort.signal.aborted) return;
    this.#timer?.();
    this.#timer = this.#parts.clock.after(this.#away.size > 0 ? lookAgain : resyncEvery, async () => {
      await this.#resyncAll();
      this.#arm();
    });
  }
}

type Preparing = Extract<Slot['standby'], { kind: 'preparing' }>;

/** null if it is unknown: its service no longer knows the job. */
function imageOf(pool: Pool, job: JobId | null): string | null {
  const base = pool.config.recipe;
  return attempt(() => ((job === null ? null : pool.service.jobs?.recipeFor?.(job, base)) ?? base).image);
}

/** Agents whose sandbox must exist: it was made, and nobody asked for its removal. */
function standing(slot: Slot): AgentId[] {
  const agents: AgentId[] = [];
  if (slot.standby.kind === 'standby') agents.push(slot.standby.agent);
  if (slot.agent.kind !== 'free' && slot.agent.kind !== 'proving') agents.push(slot.agent.agent);
  return agents;
}

/** Whether its script may have been handed over, with nobody having seen it begin. */
function mayHaveBegun(slot: Slot): slot is Slot & { readonly agent: { readonly kind: 'releasing' | 'ending' } } {
  return slot.agent.kind === 'releasing' || (slot.agent.kind === 'ending' && !slot.agent.released);
}

function hasBegun(slot: Slot): boolean {
  switch (slot.agent.kind) {
    case 'idle':
    case 'retiring':
    case 'busy':
      return true;
    case 'ending':
      return slot.agent.released;
    default:
      return false;
  }
}
