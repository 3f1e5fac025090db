/**
 * Observes the world for the loop: runtime events as they arrive, and a slow resync that repairs what a stream missed. A runtime
 * that does not answer says nothing: what cannot be seen is unknown, never gone (S6).
 */

import { attempt, type Failure, toFailure } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { type Clock, every } from '../../core/clock.ts';
import { endedAtGate } from '../../core/gate-failure.ts';
import { type AgentId, type Exit, hostRestarted, type JobId, type Slot } from '../../core/slot.ts';
import type { LogFollowers } from '../../logs/followers.ts';
import type { Runtime, SandboxSeen } from '../../ports/runtime.ts';
import type { Runtimes } from '../../runtimes/choose.ts';
import { roomText } from '../../system/disk-room.ts';
import type { SandboxProbe } from '../actions/probe-sandbox.ts';
import type { Held } from '../held/held.ts';
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
  readonly held: Pick<Held, 'isOurs' | 'gone'>;
  /** Keys of slots that an earlier boot of this host left. */
  readonly rebooted: ReadonlySet<string>;
}

const resyncEvery = 30_000;
/** ms until a runtime that could not be reached is looked at again. */
const lookAgain = 2_000;
/** ms that the log of a sandbox may take to be complete, if it ended before *released* was seen. */
const logPatience = 10_000;

export type Observer = ReturnType<typeof createObserver>;

export function createObserver(parts: ObserveParts) {
  const { reconciler, followers, log, minFree, fingerprints, probe, held, makeRoom, clock } = parts;
  const abort = new AbortController();
  const away = new Map<string, string>();
  const judging = new Set<AgentId>();
  const watching: Promise<void>[] = [];
  const runtimes = [...parts.runtimes];
  const resyncing = new Map<Runtime, Promise<void>>();
  let timer: (() => void) | null = null;

  /** Why a runtime cannot be reached now; null if it can. */
  function unreachable(runtime: string): string | null {
    return away.get(runtime) ?? null;
  }

  /** Nothing begins on an unreachable runtime until a look at it succeeds. */
  function cannotReach(runtime: Runtime, failure: string): void {
    if (away.get(runtime.name) !== failure) log.error('runtime unreachable', { runtime: runtime.name, reason: failure });
    away.set(runtime.name, failure);
    reconciler.away(runtime.name, failure);
    arm();
  }

  /** Follows the existing sandboxes, then looks at everything once. Resolves when that was done or has failed. */
  async function start(): Promise<void> {
    for (const slot of reconciler.slots) if (parts.rebooted.has(slot.key)) endedWithBoot(slot);
    for (const slot of reconciler.slots) {
      for (const agent of standing(slot)) followers.follow(agent, runtimeOf(slot));
    }
    for (const runtime of runtimes) watching.push(watch(runtime));
    await resyncAll();
    arm();
  }

  /** Adds a runtime, or looks at a known one again. Resolves after the look. */
  async function add(runtime: Runtime): Promise<void> {
    if (!runtimes.includes(runtime)) {
      runtimes.push(runtime);
      watching.push(watch(runtime));
    }
    await resync(runtime);
  }

  async function close(): Promise<void> {
    timer?.();
    abort.abort();
    await Promise.allSettled([...watching, ...resyncing.values()]);
  }

  /** Compares the runtime's sandboxes with the slots, both ways. One at a time per runtime. */
  function resync(runtime: Runtime): Promise<void> {
    const running = resyncing.get(runtime);
    if (running !== undefined) return running;
    const done = compare(runtime).finally(() => resyncing.delete(runtime));
    resyncing.set(runtime, done);
    return done;
  }

  /**
   * Removes sandboxes of ours that are in no slot, and what they shared. A request of a killed manager may take effect long after
   * its slot was cleared, and at the end nobody looks again. Never fails; leftovers are logged.
   */
  async function sweep(runtime: Runtime): Promise<void> {
    const signal = abort.signal;
    try {
      const seen = await runtime.list(signal);
      for (const sandbox of seen) if (isOrphan(sandbox)) await removeOrphan(runtime, sandbox);
      await runtime.sweep(signal);
    } catch (error) {
      log.warn('failed to remove everything', { runtime: runtime.name, reason: toFailure(error).message });
    }
  }

  /** An agent's first process has ended. */
  async function exited(agent: AgentId, exit: Exit): Promise<void> {
    const slot = reconciler.slotOf(agent);
    if (slot === undefined || slot.leaving.some((one) => one.agent === agent)) return;
    const { key } = slot;
    if (slot.standby.kind !== 'none' && slot.standby.agent === agent) {
      const failure = slot.standby.kind === 'preparing' ? noShell(slot.standby, reconciler.poolOf(key), exit) : null;
      reconciler.post(
        key,
        failure === null ? { kind: 'exited', agent, exit, released: false } : { kind: 'prepareFailed', agent, failure },
      );
      return;
    }
    if (hasBegun(slot)) {
      reconciler.post(key, { kind: 'exited', agent, exit, released: true });
      return;
    }
    if (judging.has(agent)) return;
    judging.add(agent);
    try {
      const runtime = runtimeOf(slot);
      const follower = followers.follow(agent, runtime);
      let whole = await followers.complete(agent, logPatience);
      // A runtime that is away says nothing about the script; its log is read once it is back.
      while (!whole && away.has(runtime.name) && !abort.signal.aborted) {
        whole = await followers.complete(agent, logPatience);
      }
      if (abort.signal.aborted) return;
      // The marker may have been read from output that a full disk does not take yet.
      const begun = follower.state === 'released';
      // Its gate was heard before a script was sent. A log that does not show that gate is not the whole log.
      const isCut = mayHaveBegun(slot) && !follower.showsNothingBegan;
      const what = whole ? 'a part of its output is missing' : 'its output cannot be read';
      const isUnknown = !begun && (!whole || isCut);
      const end: Exit = isUnknown ? { kind: 'lost', reason: `${what}, so it is unknown whether it began` } : exit;
      reconciler.post(key, { kind: 'exited', agent, exit: end, released: begun || isUnknown });
    } finally {
      judging.delete(agent);
    }
  }

  /**
   * A script that may have been handed over before the host was restarted counts as begun: a power cut takes the marker from the log,
   * too, so its absence proves nothing (S3).
   */
  function endedWithBoot(slot: Slot): void {
    if (!mayHaveBegun(slot) || runtimeOf(slot).capabilities.elsewhere === true) return;
    reconciler.post(slot.key, { kind: 'exited', agent: slot.agent.agent, exit: hostRestarted, released: true });
  }

  async function watch(runtime: Runtime): Promise<void> {
    const { signal } = abort;
    for await (const event of runtime.events(signal)) {
      switch (event.kind) {
        case 'exited':
          void exited(event.agent, event.exit);
          break;
        case 'removed':
          gone(event.agent);
          break;
        case 'lost':
          cannotReach(runtime, event.failure);
          break;
        case 'connected':
          void resync(runtime);
          break;
      }
    }
  }

  async function compare(runtime: Runtime): Promise<void> {
    const { signal } = abort;
    try {
      const before = reconciler.slots.filter((slot) => slot.runtime === runtime.name).flatMap(standing);
      const seen = await runtime.list(signal);
      reached(runtime);
      const there = new Set(seen.map((sandbox) => sandbox.agent));
      for (const agent of before) if (!there.has(agent)) gone(agent);
      for (const sandbox of seen) {
        if (isOrphan(sandbox)) await removeOrphan(runtime, sandbox);
        else if (sandbox.state.kind === 'exited') void exited(sandbox.agent, sandbox.state.exit);
      }
      reconciler.catchUp(runtime.name);
      await fingerprints.refresh(runtime, signal);
      await checkDisk(runtime, signal);
    } catch (error) {
      if (!signal.aborted) cannotReach(runtime, toFailure(error).message);
    }
    if (!signal.aborted) reconciler.replanAll();
  }

  function isOrphan({ agent }: SandboxSeen): boolean {
    return !probe.isProbe(agent) && !held.isOurs(agent) && reconciler.placeOf(agent) === undefined;
  }

  async function removeOrphan(runtime: Runtime, { agent, slot }: SandboxSeen): Promise<void> {
    log.warn('removing an orphan', { runtime: runtime.name, agent, slot });
    await runtime.remove(agent).catch((error: unknown) => {
      log.warn('failed to remove an orphan', { agent, reason: toFailure(error).message });
    });
  }

  async function checkDisk(runtime: Runtime, signal: AbortSignal): Promise<void> {
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

  function gone(agent: AgentId): void {
    const slot = reconciler.slotOf(agent);
    if (slot === undefined) held.gone(agent);
    else if (standing(slot).includes(agent)) reconciler.post(slot.key, { kind: 'gone', agent });
  }

  function runtimeOf(slot: Slot): Runtime {
    const runtime = runtimes.find((one) => one.name === slot.runtime);
    if (runtime === undefined) throw new RangeError(`no runtime ${slot.runtime} for slot ${slot.key}`);
    return runtime;
  }

  function reached(runtime: Runtime): void {
    if (!away.delete(runtime.name)) return;
    log.info('runtime reachable again', { runtime: runtime.name });
    reconciler.back(runtime.name);
  }

  function arm(): void {
    if (abort.signal.aborted) return;
    timer?.();
    timer = clock.after(away.size > 0 ? lookAgain : resyncEvery, async () => {
      await resyncAll();
      arm();
    });
  }

  async function resyncAll(): Promise<void> {
    await Promise.all(runtimes.map((runtime) => resync(runtime)));
  }

  return {
    /** Sentences about runtimes that cannot be reached now. */
    get problems(): string[] {
      return [...away.values()];
    },
    /** Runtimes that cannot be reached now, and why. */
    away: away as ReadonlyMap<string, string>,
    unreachable,
    cannotReach,
    start,
    add,
    close,
    resync,
    sweep,
    exited,
  };
}

/** A gate that could not start, with the name of the image to fix; null for any other end. */
function noShell({ reserved }: Extract<Slot['standby'], { kind: 'preparing' }>, pool: Pool, exit: Exit): Failure | null {
  const failure = endedAtGate(exit);
  if (failure.code !== 'E_NO_SHELL') return null;
  const image = imageOf(pool, reserved?.job ?? null);
  if (image === null) return null;
  return { ...failure, message: failure.message.replace('The image', `The image "${image}"`) };
}

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

/** ms between two looks. */
export const chooseEvery = 30_000;

export interface ChooseAgainParts extends Pick<ObserveParts, 'clock' | 'log'> {
  readonly runtimes: Pick<Runtimes, 'best' | 'reason' | 'chooseAgain'>;
  readonly reconciler: Pick<Reconciler, 'pools'>;
  readonly observer: Pick<Observer, 'add'>;
}

/**
 * For pools that name neither a runtime nor an image, and run their jobs as processes because Docker could not be used: checks
 * Docker again while the manager runs, and moves such pools to it, until the returned function is called. Nothing ever moves the
 * other way.
 */
export function keepChoosing({ clock, log, runtimes, reconciler, observer }: ChooseAgainParts): () => void {
  let isOver = false;
  const look = async (): Promise<void> => {
    if (!(await runtimes.chooseAgain()) || isOver) return;
    for (const pool of reconciler.pools) if (pool.config.runtime === null && !pool.leaving) pool.moveTo(runtimes.best);
    log.info('runtime chosen', { reason: runtimes.reason });
    await observer.add(runtimes.best);
  };
  const stop = every(clock, chooseEvery, look, (error) =>
    log.warn('failed to check runtimes', { reason: toFailure(error).message }),
  );
  return () => {
    isOver = true;
    stop();
  };
}
