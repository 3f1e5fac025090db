/**
 * Sandboxes of failed jobs, kept for a while so that people can look at their files (`hold_failed`). What is held has no process, no
 * device and no slot: the next agent starts as always.
 *
 * Guarantees: a sandbox is kept only with its row in the store, which is written before and deleted after everything else. So a
 * manager that is killed anywhere neither loses nor leaks one. A shell ends with its client, its hold and its manager.
 */

import { hasCode, OnejobError, toFailure } from '../../base/errors.ts';
import { type Finding, fine } from '../../base/finding.ts';
import type { Log } from '../../base/log.ts';
import { formatBytes } from '../../base/units.ts';
import type { PoolConfig } from '../../config/config.ts';
import type { JobView } from '../../contract/schema.ts';
import { type Clock, every } from '../../core/clock.ts';
import type { AgentId, JobId } from '../../core/slot.ts';
import type { Holding, Recipe, RunningShell, Runtime, ShellSpec } from '../../ports/runtime.ts';
import type { HeldSandbox, HeldTable } from '../../store/held.ts';
import type { MountPlaces } from '../actions/places.ts';
import { endedHolds, type HeldWritten, overQuota, type Quota } from './decide.ts';

/** `hold`: written down, not kept yet. `unhold`: given up, still there. `unheld`: gone, still written down. */
export type HoldBoundary = 'hold.intent' | 'hold.effect' | 'unhold.intent' | 'unhold.effect';

export interface HeldParts {
  readonly clock: Clock;
  readonly log: Log;
  readonly table: HeldTable;
  readonly transaction: <T>(how: { readonly durable: boolean }, write: () => T) => T;
  /** A temporary manager holds nothing of its own, and ends only holds whose time is over. */
  readonly temporary: boolean;
  readonly runtimes: () => readonly Runtime[];
  readonly pools: readonly Pick<PoolConfig, 'name' | 'disk' | 'holdFailed'>[];
  /** Where mounts lead. @throws OnejobError E_MOUNT_CHANGED */
  readonly placesOf: MountPlaces['of'];
  /** Share of the disk, 0 to 1, that must stay free. */
  readonly minFree: number;
  readonly newAgent: () => AgentId;
  /** Whether the agent is still in a slot, which clears it. */
  readonly isInSlot: (agent: AgentId) => boolean;
  /** Called when a job is held, and when it no longer is. */
  readonly changed: (job: JobId) => void;
  /** Called at each boundary. A test may end the manager there as with `kill -9`. */
  readonly boundary: (name: HoldBoundary) => void;
}

/** An ended agent whose job failed. */
export interface Failed extends Pick<HeldSandbox, 'agent' | 'job' | 'pool' | 'slot' | 'name' | 'recipe'> {
  /** ms; null: not at all. */
  readonly holdFailed: number | null;
  readonly runtime: Runtime;
}

/** ms between two looks at what must end. */
const lookEvery = 10_000;
/** Files are measured for no more than this share of the time, however many there are. */
const share = 0.05;
/** ms between two looks for what belongs to no hold: an Engine may finish an image long after its hold has ended. */
const sweepEvery = 600_000;
/** Ended holds whose reason is remembered. */
const overKept = 1_000;

export type Held = ReturnType<typeof createHeld>;

export function createHeld(parts: HeldParts) {
  const { clock, log, table, transaction, temporary, runtimes, pools, minFree, newAgent, isInSlot, changed, boundary, placesOf } =
    parts;
  const held = new Map(table.all().map((one) => [one.agent, one]));
  /** By the ids of their sandboxes. */
  const shells = new Map<AgentId, { readonly of: AgentId; readonly stop: AbortController; readonly done: Promise<void> }>();
  /**
   * What is known of files. `written`: by shells that are open; null if that is unknown. `stale`: a shell has ended since a measurement
   * began, or it failed. `due`: when they may be measured, monotonic ms.
   */
  const measured = new Map<AgentId, { written: HeldWritten | null; stale: boolean; due: number }>();
  const measuredOf = (agent: AgentId) => {
    const known = measured.get(agent) ?? { written: null, stale: true, due: 0 };
    measured.set(agent, known);
    return known;
  };
  const shellsIn = (agent: AgentId) => [...shells.values()].filter(({ of }) => of === agent);
  /** What a shell had outside of the workspace has gone with it. So those that stay, and the next, do not end for what was measured. */
  const shellEnded = (agent: AgentId): void => {
    const known = measuredOf(agent);
    const { first } = known.written ?? {};
    known.stale = true;
    known.written = first === undefined || shellsIn(agent).length === 0 ? null : { first, now: first };
  };
  /** Why the newest holds ended, as clauses. */
  const whyOver = new Map<JobId, string>();
  /** Removals that have begun. */
  const ending = new Map<AgentId, Promise<void>>();
  const closing = new AbortController();
  const { signal: closed } = closing;
  /** Runtimes whose held sandboxes this manager has looked at. */
  const seen = new Set<string>();
  let tidying = Promise.resolve();
  /** When it looks for what belongs to no hold, monotonic ms; null: there cannot be anything. */
  let sweepDue: number | null = clock.now();
  let stop = (): void => {};

  const runtimeOf = ({ runtime }: HeldSandbox): Runtime | null => runtimes().find(({ name }) => name === runtime) ?? null;
  const holdingOf = (one: HeldSandbox): Holding | null => runtimeOf(one)?.holding ?? null;
  const save = (one: HeldSandbox): void => {
    // People are told until when its files are kept.
    transaction({ durable: held.get(one.agent)?.until !== one.until }, () => table.save(one));
    held.set(one.agent, one);
  };
  const forget = ({ agent, job }: HeldSandbox): void => {
    transaction({ durable: false }, () => table.remove(agent));
    held.delete(agent);
    measured.delete(agent);
    sweepDue ??= clock.now() + sweepEvery;
    changed(job);
  };
  const isOpen = ({ until }: HeldSandbox): boolean => until > clock.wall();
  const ofJob = (job: JobId): HeldSandbox | null => [...held.values()].find((one) => one.job === job && isOpen(one)) ?? null;

  /** Before the sandbox is cleared: decides whether it will be kept, and writes that down. */
  async function consider({ runtime, holdFailed, ...failed }: Failed, signal: AbortSignal): Promise<void> {
    if (holdFailed === null || temporary || runtime.holding === undefined || held.has(failed.agent)) return;
    if (await isFull(runtime, signal)) {
      log.info('not holding a failed job', { job: failed.job, reason: 'less than disk.min_free of the disk is free' });
      return;
    }
    const since = clock.wall();
    save({ ...failed, runtime: runtime.name, since, until: since + holdFailed, size: null });
    boundary('hold.intent');
    changed(failed.job);
  }

  /** Instead of removing a sandbox; false: it is not to be kept, or does not exist. */
  async function keep(agent: AgentId): Promise<boolean> {
    const one = held.get(agent);
    const holding = one === undefined ? null : holdingOf(one);
    if (one === undefined || holding === null) return false;
    const isThere = isOpen(one) && (await holding.hold(agent));
    boundary('hold.effect');
    if (!isThere) forget(one);
    else log.info('holding the files of a failed job', { job: one.job, until: new Date(one.until).toISOString() });
    return isThere;
  }

  async function isFull({ disk }: Runtime, signal: AbortSignal): Promise<boolean> {
    return ((await disk(signal).catch(() => null))?.free ?? 1) < minFree;
  }

  /** Ends a hold: first its shells, then its files, then its row. @throws OnejobError if the runtime cannot do it now */
  function end(one: HeldSandbox, why: string): Promise<void> {
    const { agent } = one;
    const before = ending.get(agent);
    if (before !== undefined) return before;
    const done = remove(one, why).finally(() => ending.delete(agent));
    ending.set(agent, done);
    return done;
  }

  async function remove(one: HeldSandbox, why: string): Promise<void> {
    const { agent, job } = one;
    if (one.until !== 0) save({ ...one, until: 0 });
    boundary('unhold.intent');
    // Its slot removes it.
    if (!isInSlot(agent)) {
      const holding = holdingOf(one);
      if (holding === null) return;
      const mine = shellsIn(agent);
      for (const shell of mine) shell.stop.abort(unheld(job, why));
      await Promise.all(mine.map((shell) => shell.done));
      await holding.release(agent);
    }
    boundary('unhold.effect');
    forget(one);
    whyOver.set(job, why);
    for (const oldest of whyOver.keys()) if (whyOver.size > overKept) whyOver.delete(oldest);
    log.info('no longer holding a failed job', { job, reason: why });
  }

  /** Ends what must end, and measures what has not been measured. One at a time; never fails. */
  function tidy(): Promise<void> {
    tidying = tidying.then(async () => {
      if (closed.aborted) return;
      await adopt();
      await sweep();
      await measure();
      const quota = temporary ? null : new Map(pools.map(({ name, disk }) => [name, disk]));
      endWriters(quota);
      const inUse = runtimes().filter(({ name }) => [...held.values()].some(({ runtime }) => runtime === name));
      const full = new Set<string>();
      for (const runtime of inUse) if (await isFull(runtime, closed)) full.add(runtime.name);
      const ended = endedHolds([...held.values()], { now: clock.wall(), pools: quota, full });
      for (const [agent, why] of ended) {
        const one = held.get(agent);
        if (one !== undefined && !closed.aborted) await attempt(one, () => end(one, why));
      }
    });
    return tidying;
  }

  /** What an earlier manager held: ends the shells it had, and forgets what is gone. */
  async function adopt(): Promise<void> {
    for (const runtime of runtimes()) {
      const mine = [...held.values()].filter((one) => one.runtime === runtime.name);
      const { holding } = runtime;
      if (holding === undefined || mine.length === 0 || seen.has(runtime.name)) continue;
      try {
        for (const one of mine) {
          if (isInSlot(one.agent) || !isOpen(one) || (await holding.hold(one.agent))) continue;
          await attempt(one, () => end(one, 'somebody removed its sandbox'));
        }
        seen.add(runtime.name);
      } catch (error) {
        if (!closed.aborted) log.warn('failed to look at held jobs', { runtime: runtime.name, reason: toFailure(error).message });
      }
    }
  }

  async function sweep(): Promise<void> {
    if (sweepDue === null || clock.now() < sweepDue || (temporary && held.size === 0)) return;
    const mayHold = held.size > 0 || pools.some(({ holdFailed }) => holdFailed !== null);
    sweepDue = mayHold ? clock.now() + sweepEvery : null;
    for (const { holding, name } of runtimes()) {
      await holding?.sweep(held, closed).catch((error: unknown) => {
        sweepDue ??= clock.now() + sweepEvery;
        if (!closed.aborted)
          log.warn('failed to remove what held jobs have left', { runtime: name, reason: toFailure(error).message });
      });
    }
  }

  /** Bytes of all files that may have changed, one sandbox after the other. What open shells have written is not in the store. */
  async function measure(): Promise<void> {
    for (const one of [...held.values()]) {
      const { agent } = one;
      const known = measuredOf(agent);
      const isWrittenTo = shellsIn(agent).length > 0;
      if (!isOpen(one) || isInSlot(agent) || clock.now() < known.due || !(isWrittenTo || known.stale)) continue;
      const begun = clock.now();
      known.stale = false;
      const size =
        (await runtimeOf(one)
          ?.usage?.(agent, closed)
          .catch(() => null)) ?? null;
      known.due = clock.now() + Math.max(lookEvery, (clock.now() - begun) / share);
      const now = held.get(agent);
      if (now === undefined || now.until === 0) continue;
      if (size === null || known.stale) known.stale = true;
      else {
        known.written = { first: known.written?.first ?? size, now: size };
        if (now.size === null || !isWrittenTo) save({ ...now, size });
      }
    }
  }

  /** Ends shells that have written too much. */
  function endWriters(quota: Quota['pools']): void {
    const all = [...held.values()].filter(isOpen);
    const written = new Map(
      all.flatMap(({ agent }) => {
        const its = measured.get(agent)?.written ?? null;
        return its === null || shellsIn(agent).length === 0 ? [] : [[agent, its] as const];
      }),
    );
    for (const [agent, over] of overQuota(all, written, quota)) {
      const one = held.get(agent);
      if (one === undefined) continue;
      log.warn('ending the shells in a held job, whose files take too much disk space', { job: one.job, ...over });
      for (const { stop } of shellsIn(agent)) stop.abort(tooMuch(one, over));
    }
  }

  async function attempt(one: HeldSandbox, work: () => Promise<void>): Promise<void> {
    await work().catch((error: unknown) => {
      log.warn('failed to remove a held job; trying again', { job: one.job, reason: toFailure(error).message });
    });
  }

  return {
    /** Whether the sandbox is one of these, or of a shell in one: in no slot, and removed here. */
    isOurs: (agent: AgentId): boolean => held.has(agent) || shells.has(agent),
    consider,
    keep,
    tidy,
    /** Until when the job is held, wall clock, ms; null if it is not. */
    until: (job: JobId): number | null => ofJob(job)?.until ?? null,
    /** `result`: of the job, which says why nothing is held. @throws OnejobError E_NOT_HELD */
    check(job: JobId, result: JobView['result'] = null): void {
      if (ofJob(job) === null) notHeld(job, whyOver.get(job) ?? null, result);
    },
    /** Number of held jobs of a pool. */
    count: (pool: string): number => [...held.values()].filter((one) => one.pool === pool && isOpen(one)).length,
    /** The sandbox has vanished. */
    gone(agent: AgentId): void {
      const one = held.get(agent);
      // Its image and its workspace may still be there.
      if (one !== undefined && !ending.has(agent)) void attempt(one, () => end(one, 'somebody removed its sandbox'));
    },
    /** Ends what an earlier manager has left open, and keeps looking. */
    start(): void {
      void tidy();
      stop = every(clock, lookEvery, tidy, () => {});
    },
    /** @throws OnejobError E_NOT_HELD, or what the runtime says */
    async unhold(job: JobId, result: JobView['result'] = null): Promise<void> {
      await end(ofJob(job) ?? notHeld(job, whyOver.get(job) ?? null, result), 'somebody has ended it');
    },
    /** @throws OnejobError E_NOT_HELD, E_SANDBOX_LOST, E_SHELL */
    async shell(job: JobId, how: Omit<ShellSpec, 'spec'>, outer: AbortSignal): Promise<RunningShell> {
      const one = ofJob(job) ?? notHeld(job, whyOver.get(job) ?? null);
      const { agent, pool, slot, name, recipe } = one;
      const holding = holdingOf(one);
      if (holding === null || isInSlot(agent))
        throw new OnejobError('E_NOT_HELD', `The sandbox of job ${job} is not ready yet.`, {
          hint: 'Try again in a moment.',
          retry: true,
        });
      const own = newAgent();
      const cut = new AbortController();
      const { promise: done, resolve } = Promise.withResolvers<void>();
      shells.set(own, { of: agent, stop: cut, done });
      const over = (): void => {
        shells.delete(own);
        if (held.has(agent)) shellEnded(agent);
        resolve();
      };
      const signal = AbortSignal.any([outer, cut.signal, closed]);
      try {
        const shown = recipeOfShell(recipe, job);
        const spec = { agent: own, pool, slot, name, recipe: shown, places: await placesOf(shown.mounts), devices: [] };
        const shell = await holding.shell(agent, { spec, ...how }, signal);
        shell.ended.then(over, over);
        return shell;
      } catch (error) {
        over();
        // With `retry`, only a copy of its files is gone.
        if (hasCode(error, 'E_SANDBOX_LOST') && !error.retry && held.has(agent))
          await attempt(one, () => end(one, 'its sandbox is gone'));
        throw error;
      }
    },
    /** For `doctor`. */
    findings(): Finding[] {
      const open = [...held.values()].filter(isOpen);
      if (open.length === 0) return [];
      const bytes = open.reduce((sum, { size }) => sum + (size ?? 0), 0);
      const jobs = open.length === 1 ? 'One failed job is' : `${open.length} failed jobs are`;
      return [fine('held jobs', `${jobs} held, with ${formatBytes(bytes)}: ${open.map(({ job }) => job).join(', ')}.`)];
    },
    /** The manager ends and leaves nothing: removes all. What cannot be removed now stays for the next manager. */
    async removeAll(): Promise<void> {
      stop();
      await tidying;
      if (temporary || (held.size === 0 && sweepDue === null)) return;
      for (const one of [...held.values()]) await attempt(one, () => end(one, 'onejob was stopped'));
      sweepDue = clock.now();
      await sweep();
    },
    /** Ends all shells. Holds stay. */
    async close(): Promise<void> {
      stop();
      closing.abort(new OnejobError('E_DAEMON_STOPPING', 'The shell ended because the daemon stops.', { retry: true }));
      await Promise.all([tidying, ...[...shells.values()].map(({ done }) => done)]);
    },
  };
}

/** The next jobs of the slot write to its caches, so a shell may only read them. */
function recipeOfShell(recipe: Recipe, job: JobId): Recipe {
  const mounts = recipe.mounts.map((mount) => (mount.cache === null ? mount : { ...mount, readOnly: true }));
  const { pidHost: _, ...unsafe } = recipe.unsafe;
  return {
    ...recipe,
    mounts,
    env: { ...recipe.env, ONEJOB: 'true', ONEJOB_JOB_ID: job },
    // It would reach the devices of other slots.
    unsafe: { ...unsafe, privileged: false, pidHost: false },
  };
}

/** `why`: it was once. */
function notHeld(job: JobId, why: string | null, result: JobView['result'] = null): never {
  if (why !== null) throw new OnejobError('E_NOT_HELD', `Job ${job} is no longer held: ${why}.`);
  const never = neverHeld(result);
  if (never !== null) throw new OnejobError('E_NOT_HELD', `Job ${job} is not held: ${never}.`);
  throw new OnejobError('E_NOT_HELD', `Job ${job} is not held.`, {
    hint: 'With "hold_failed" in the config of its pool, the sandbox of a job that failed is kept for a while. "onejob jobs JOB" says whether it is.',
  });
}

/** Why no key of the config would have kept its files, as a clause; null: one might have. */
function neverHeld(result: JobView['result']): string | null {
  if (result?.kind === 'unstartable') return 'it could not be started, so it left no files';
  return result?.kind === 'code' && result.code === 0 ? 'it passed, and only files of jobs that failed are held' : null;
}

function unheld(job: JobId, why: string): OnejobError {
  return new OnejobError('E_NOT_HELD', `The shell ended because job ${job} is no longer held: ${why}.`);
}

function tooMuch({ job, pool }: HeldSandbox, { bytes, limit }: { readonly bytes: number; readonly limit: number }): OnejobError {
  const message = `The shell in job ${job} ended because it wrote too much: the held files of pool "${pool}" take ${formatBytes(bytes)}, above its "disk" of ${formatBytes(limit)}.`;
  return new OnejobError('E_SHELL', message, {
    hint: 'End other held jobs of the pool with "onejob unhold JOB", or raise its "disk".',
  });
}
