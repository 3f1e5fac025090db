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

export interface HeldJobsParts {
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

interface Shell {
  readonly of: AgentId;
  readonly stop: AbortController;
  readonly done: Promise<void>;
}

/** What is known of the files of a held sandbox. */
interface Measured {
  /** By shells that are open; null if that is unknown. */
  written: HeldWritten | null;
  /** A shell has ended since a measurement began, or it failed. */
  stale: boolean;
  /** When they may be measured, monotonic ms. */
  due: number;
}

export class HeldJobs {
  readonly #parts: HeldJobsParts;
  readonly #held: Map<AgentId, HeldSandbox>;
  /** By the ids of their sandboxes. */
  readonly #shells = new Map<AgentId, Shell>();
  readonly #measured = new Map<AgentId, Measured>();
  /** Why the newest holds ended, as clauses. */
  readonly #whyOver = new Map<JobId, string>();
  /** Removals that have begun. */
  readonly #ending = new Map<AgentId, Promise<void>>();
  readonly #closing = new AbortController();
  /** Runtimes whose held sandboxes this manager has looked at. */
  readonly #seen = new Set<string>();
  #tidying = Promise.resolve();
  /** When it looks for what belongs to no hold, monotonic ms; null: there cannot be anything. */
  #sweepDue: number | null;
  #stop = (): void => {};

  constructor(parts: HeldJobsParts) {
    this.#parts = parts;
    this.#held = new Map(parts.table.all().map((one) => [one.agent, one]));
    this.#sweepDue = parts.clock.now();
  }

  /** Ends what an earlier manager has left open, and keeps looking. */
  start(): void {
    void this.tidy();
    this.#stop = every(
      this.#parts.clock,
      lookEvery,
      () => this.tidy(),
      () => {},
    );
  }

  /** Ends all shells. Holds stay. */
  async close(): Promise<void> {
    this.#stop();
    this.#closing.abort(new OnejobError('E_DAEMON_STOPPING', 'The shell ended because the daemon stops.', { retry: true }));
    await Promise.all([this.#tidying, ...[...this.#shells.values()].map(({ done }) => done)]);
  }

  /** Whether the sandbox is one of these, or of a shell in one: in no slot, and removed here. */
  isOurs(agent: AgentId): boolean {
    return this.#held.has(agent) || this.#shells.has(agent);
  }

  /** Until when the job is held, wall clock, ms; null if it is not. */
  until(job: JobId): number | null {
    return this.#ofJob(job)?.until ?? null;
  }

  /** Number of held jobs of a pool. */
  count(pool: string): number {
    return this.#open.filter((one) => one.pool === pool).length;
  }

  /** For `doctor`. */
  findings(): Finding[] {
    const open = this.#open;
    if (open.length === 0) return [];
    const bytes = open.reduce((sum, { size }) => sum + (size ?? 0), 0);
    const jobs = open.length === 1 ? 'One failed job is' : `${open.length} failed jobs are`;
    return [fine('held jobs', `${jobs} held, with ${formatBytes(bytes)}: ${open.map(({ job }) => job).join(', ')}.`)];
  }

  /** Before the sandbox is cleared: decides whether it will be kept, and writes that down. */
  async consider({ runtime, holdFailed, ...failed }: Failed, signal: AbortSignal): Promise<void> {
    const { temporary, log, clock, boundary, changed } = this.#parts;
    if (holdFailed === null || temporary || runtime.holding === undefined || this.#held.has(failed.agent)) return;
    if (await this.#isFull(runtime, signal)) {
      log.info('not holding a failed job', { job: failed.job, reason: 'less than disk.min_free of the disk is free' });
      return;
    }
    const since = clock.wall();
    this.#save({ ...failed, runtime: runtime.name, since, until: since + holdFailed, size: null });
    boundary('hold.intent');
    changed(failed.job);
  }

  /** Instead of removing a sandbox; false: it is not to be kept, or does not exist. */
  async keep(agent: AgentId): Promise<boolean> {
    const { log, boundary } = this.#parts;
    const one = this.#held.get(agent);
    const holding = one === undefined ? null : this.#holdingOf(one);
    if (one === undefined || holding === null) return false;
    const isThere = this.#isOpen(one) && (await holding.hold(agent));
    boundary('hold.effect');
    if (!isThere) this.#forget(one);
    else log.info('holding the files of a failed job', { job: one.job, until: new Date(one.until).toISOString() });
    return isThere;
  }

  /** The sandbox has vanished. */
  gone(agent: AgentId): void {
    const one = this.#held.get(agent);
    // Its image and its workspace may still be there.
    if (one !== undefined && !this.#ending.has(agent)) void this.#tryEnd(one, 'somebody removed its sandbox');
  }

  /** `result`: of the job, which says why nothing is held. @throws OnejobError E_NOT_HELD */
  check(job: JobId, result: JobView['result'] = null): void {
    this.#mustHold(job, result);
  }

  /** @throws OnejobError E_NOT_HELD, or what the runtime says */
  async unhold(job: JobId, result: JobView['result'] = null): Promise<void> {
    await this.#end(this.#mustHold(job, result), 'somebody has ended it');
  }

  /** @throws OnejobError E_NOT_HELD, E_SANDBOX_LOST, E_SHELL */
  async shell(job: JobId, how: Omit<ShellSpec, 'spec'>, outer: AbortSignal): Promise<RunningShell> {
    const one = this.#mustHold(job, null);
    const { agent, pool, slot, name, recipe } = one;
    const holding = this.#holdingOf(one);
    if (holding === null || this.#parts.isInSlot(agent))
      throw new OnejobError('E_NOT_HELD', `The sandbox of job ${job} is not ready yet.`, {
        hint: 'Try again in a moment.',
        retry: true,
      });
    const own = this.#parts.newAgent();
    const cut = new AbortController();
    const { promise: done, resolve } = Promise.withResolvers<void>();
    this.#shells.set(own, { of: agent, stop: cut, done });
    const over = (): void => {
      this.#shells.delete(own);
      if (this.#held.has(agent)) this.#shellEnded(agent);
      resolve();
    };
    const signal = AbortSignal.any([outer, cut.signal, this.#closing.signal]);
    try {
      const shown = recipeOfShell(recipe, job);
      const places = await this.#parts.placesOf(shown.mounts);
      const spec = { agent: own, pool, slot, name, recipe: shown, places, devices: [] };
      const shell = await holding.shell(agent, { spec, ...how }, signal);
      shell.ended.then(over, over);
      return shell;
    } catch (error) {
      over();
      // With `retry`, only a copy of its files is gone.
      if (hasCode(error, 'E_SANDBOX_LOST') && !error.retry && this.#held.has(agent)) await this.#tryEnd(one, 'its sandbox is gone');
      throw error;
    }
  }

  /** Ends what must end, and measures what has not been measured. One at a time; never fails. */
  tidy(): Promise<void> {
    this.#tidying = this.#tidying.then(() => this.#tidy());
    return this.#tidying;
  }

  /** The manager ends and leaves nothing: removes all. What cannot be removed now stays for the next manager. */
  async removeAll(): Promise<void> {
    this.#stop();
    await this.#tidying;
    if (this.#parts.temporary || (this.#held.size === 0 && this.#sweepDue === null)) return;
    for (const one of [...this.#held.values()]) await this.#tryEnd(one, 'onejob was stopped');
    this.#sweepDue = this.#parts.clock.now();
    await this.#sweep();
  }

  async #tidy(): Promise<void> {
    const { temporary, pools, runtimes, clock } = this.#parts;
    const closed = this.#closing.signal;
    if (closed.aborted) return;
    await this.#adopt();
    await this.#sweep();
    await this.#measure();
    const quota = temporary ? null : new Map(pools.map(({ name, disk }) => [name, disk]));
    this.#endWriters(quota);
    const inUse = runtimes().filter(({ name }) => [...this.#held.values()].some(({ runtime }) => runtime === name));
    const full = new Set<string>();
    for (const runtime of inUse) if (await this.#isFull(runtime, closed)) full.add(runtime.name);
    const ended = endedHolds([...this.#held.values()], { now: clock.wall(), pools: quota, full });
    for (const [agent, why] of ended) {
      const one = this.#held.get(agent);
      if (one !== undefined && !closed.aborted) await this.#tryEnd(one, why);
    }
  }

  /** What an earlier manager held: ends the shells it had, and forgets what is gone. */
  async #adopt(): Promise<void> {
    const { runtimes, isInSlot, log } = this.#parts;
    for (const runtime of runtimes()) {
      const mine = [...this.#held.values()].filter((one) => one.runtime === runtime.name);
      const { holding } = runtime;
      if (holding === undefined || mine.length === 0 || this.#seen.has(runtime.name)) continue;
      try {
        for (const one of mine) {
          if (isInSlot(one.agent) || !this.#isOpen(one) || (await holding.hold(one.agent))) continue;
          await this.#tryEnd(one, 'somebody removed its sandbox');
        }
        this.#seen.add(runtime.name);
      } catch (error) {
        if (this.#closing.signal.aborted) continue;
        log.warn('failed to look at held jobs', { runtime: runtime.name, reason: toFailure(error).message });
      }
    }
  }

  async #sweep(): Promise<void> {
    const { clock, temporary, pools, runtimes, log } = this.#parts;
    const closed = this.#closing.signal;
    if (this.#sweepDue === null || clock.now() < this.#sweepDue || (temporary && this.#held.size === 0)) return;
    const mayHold = this.#held.size > 0 || pools.some(({ holdFailed }) => holdFailed !== null);
    this.#sweepDue = mayHold ? clock.now() + sweepEvery : null;
    for (const { holding, name } of runtimes()) {
      await holding?.sweep(this.#held, closed).catch((error: unknown) => {
        this.#sweepDue ??= clock.now() + sweepEvery;
        if (closed.aborted) return;
        log.warn('failed to remove what held jobs have left', { runtime: name, reason: toFailure(error).message });
      });
    }
  }

  /** Bytes of all files that may have changed, one sandbox after the other. What open shells have written is not in the store. */
  async #measure(): Promise<void> {
    const { clock, isInSlot } = this.#parts;
    for (const one of [...this.#held.values()]) {
      const { agent } = one;
      const known = this.#measuredOf(agent);
      const isWrittenTo = this.#shellsIn(agent).length > 0;
      if (!this.#isOpen(one) || isInSlot(agent) || clock.now() < known.due || !(isWrittenTo || known.stale)) continue;
      const begun = clock.now();
      known.stale = false;
      const usage = this.#runtimeOf(one)?.usage?.(agent, this.#closing.signal);
      const size = (await usage?.catch(() => null)) ?? null;
      known.due = clock.now() + Math.max(lookEvery, (clock.now() - begun) / share);
      const now = this.#held.get(agent);
      if (now === undefined || now.until === 0) continue;
      if (size === null || known.stale) known.stale = true;
      else {
        known.written = { first: known.written?.first ?? size, now: size };
        if (now.size === null || !isWrittenTo) this.#save({ ...now, size });
      }
    }
  }

  /** Ends shells that have written too much. */
  #endWriters(quota: Quota['pools']): void {
    const all = this.#open;
    const written = new Map(
      all.flatMap(({ agent }) => {
        const its = this.#measured.get(agent)?.written ?? null;
        return its === null || this.#shellsIn(agent).length === 0 ? [] : [[agent, its] as const];
      }),
    );
    for (const [agent, over] of overQuota(all, written, quota)) {
      const one = this.#held.get(agent);
      if (one === undefined) continue;
      this.#parts.log.warn('ending the shells in a held job, whose files take too much disk space', { job: one.job, ...over });
      for (const { stop } of this.#shellsIn(agent)) stop.abort(tooMuch(one, over));
    }
  }

  /** Ends a hold: first its shells, then its files, then its row. @throws OnejobError if the runtime cannot do it now */
  #end(one: HeldSandbox, why: string): Promise<void> {
    const { agent } = one;
    const before = this.#ending.get(agent);
    if (before !== undefined) return before;
    const done = this.#remove(one, why).finally(() => this.#ending.delete(agent));
    this.#ending.set(agent, done);
    return done;
  }

  async #tryEnd(one: HeldSandbox, why: string): Promise<void> {
    await this.#end(one, why).catch((error: unknown) => {
      this.#parts.log.warn('failed to remove a held job; trying again', { job: one.job, reason: toFailure(error).message });
    });
  }

  async #remove(one: HeldSandbox, why: string): Promise<void> {
    const { isInSlot, boundary, log } = this.#parts;
    const { agent, job } = one;
    if (one.until !== 0) this.#save({ ...one, until: 0 });
    boundary('unhold.intent');
    // Its slot removes it.
    if (!isInSlot(agent)) {
      const holding = this.#holdingOf(one);
      if (holding === null) return;
      const mine = this.#shellsIn(agent);
      for (const shell of mine) shell.stop.abort(unheld(job, why));
      await Promise.all(mine.map((shell) => shell.done));
      await holding.release(agent);
    }
    boundary('unhold.effect');
    this.#forget(one);
    this.#whyOver.set(job, why);
    for (const oldest of this.#whyOver.keys()) if (this.#whyOver.size > overKept) this.#whyOver.delete(oldest);
    log.info('no longer holding a failed job', { job, reason: why });
  }

  #save(one: HeldSandbox): void {
    const { transaction, table } = this.#parts;
    // People are told until when its files are kept.
    transaction({ durable: this.#held.get(one.agent)?.until !== one.until }, () => table.save(one));
    this.#held.set(one.agent, one);
  }

  #forget({ agent, job }: HeldSandbox): void {
    const { transaction, table, clock, changed } = this.#parts;
    transaction({ durable: false }, () => table.remove(agent));
    this.#held.delete(agent);
    this.#measured.delete(agent);
    this.#sweepDue ??= clock.now() + sweepEvery;
    changed(job);
  }

  /** What a shell had outside of the workspace has gone with it. So those that stay, and the next, do not end for what was measured. */
  #shellEnded(agent: AgentId): void {
    const known = this.#measuredOf(agent);
    const { first } = known.written ?? {};
    known.stale = true;
    known.written = first === undefined || this.#shellsIn(agent).length === 0 ? null : { first, now: first };
  }

  #measuredOf(agent: AgentId): Measured {
    const known = this.#measured.get(agent) ?? { written: null, stale: true, due: 0 };
    this.#measured.set(agent, known);
    return known;
  }

  #shellsIn(agent: AgentId): Shell[] {
    return [...this.#shells.values()].filter(({ of }) => of === agent);
  }

  get #open(): HeldSandbox[] {
    return [...this.#held.values()].filter((one) => this.#isOpen(one));
  }

  #isOpen({ until }: HeldSandbox): boolean {
    return until > this.#parts.clock.wall();
  }

  #ofJob(job: JobId): HeldSandbox | null {
    return this.#open.find((one) => one.job === job) ?? null;
  }

  /** @throws OnejobError E_NOT_HELD */
  #mustHold(job: JobId, result: JobView['result']): HeldSandbox {
    const one = this.#ofJob(job);
    if (one === null) throw notHeld(job, this.#whyOver.get(job) ?? null, result);
    return one;
  }

  #runtimeOf({ runtime }: HeldSandbox): Runtime | null {
    return this.#parts.runtimes().find(({ name }) => name === runtime) ?? null;
  }

  #holdingOf(one: HeldSandbox): Holding | null {
    return this.#runtimeOf(one)?.holding ?? null;
  }

  async #isFull(runtime: Runtime, signal: AbortSignal): Promise<boolean> {
    return ((await runtime.disk(signal).catch(() => null))?.free ?? 1) < this.#parts.minFree;
  }
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
function notHeld(job: JobId, why: string | null, result: JobView['result']): OnejobError {
  if (why !== null) return new OnejobError('E_NOT_HELD', `Job ${job} is no longer held: ${why}.`);
  const never = neverHeld(result);
  if (never !== null) return new OnejobError('E_NOT_HELD', `Job ${job} is not held: ${never}.`);
  return new OnejobError('E_NOT_HELD', `Job ${job} is not held.`, {
    hint: 'With "hold_failed" in the config of its pool, the runtimes docker and process keep the sandbox of a job that failed for a while. "onejob jobs JOB" says whether they do.',
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
