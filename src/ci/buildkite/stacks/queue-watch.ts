/** Follows one queue: asks for its waiting jobs while a slot could take one, and reserves no more of them than there are such slots. */

import { toFailure } from '../../../base/errors.ts';
import type { JobId } from '../../../core/slot.ts';
import { buildkiteEnd } from '../jobs/outcome.ts';
import type { Shared } from '../shared.ts';
import type { JobPick, Reservations } from './job-reservations.ts';
import type { Runs } from './runs.ts';
import { type ScheduledJob, stageOf, whyRefused } from './stacks.ts';
import { type Turns, takeTurns } from './turns.ts';

/** ms. Longest wait after failures, and the wait after a refusal, which only a person can fix. */
const longest = 60_000;
/** Jobs per page, and pages that are read at a time. */
const [pageSize, mostPages] = [100, 10];
/** ms that a job must wait before its page says why. */
const beforeNote = 5_000;
/** How many of those are remembered. */
const mostTold = 5_000;

/** `often`: ms between two questions while a slot is free. `say`: why there are no jobs; null: there is no problem. */
export function watchQueue(
  queue: string,
  { often, say }: { readonly often: number; readonly say: (problem: string | null) => void },
  { shared, reservations, runs }: { readonly shared: Shared; readonly reservations: Reservations; readonly runs: Runs },
): Turns {
  const { config, entry, stacks, stack, rows, poolOf, expiry, clock, log, signal } = shared;
  const pools = shared.pools.filter((pool) => pool.queue === queue && pool.elsewhere === undefined);
  /** ms between two extensions of reservations. */
  const keepEvery = (expiry * 1000) / 4;
  /** The service refused a call, so it may not know the stack any more. Others go on until this is found out at the next turn. */
  let isDoubted = false;
  let isTakenUp = false;
  let isOddTold = false;
  let [asked, kept, notBefore] = [Number.NEGATIVE_INFINITY, clock.now(), Number.NEGATIVE_INFINITY];
  let crowd = new Map<JobId, number>();
  const told = new Set<JobId>();

  /** Resumes jobs of an earlier manager, and those reserved without an answer. @throws OnejobError E_CI_* */
  async function adoptReservations(): Promise<void> {
    const isOfQueue = (pool: string): boolean => (shared.pools.find(({ name }) => name === pool)?.queue ?? queue) === queue;
    const isLookedAfter = (job: JobId): boolean => reservations.of(job) !== null || runs.of(job) !== null;
    const left = rows.unended().filter(({ id, pool }) => isOfQueue(pool) && !isLookedAfter(id));
    if (left.length === 0) return;
    const ids = left.map(({ id }) => id);
    const states = await stacks.states(stack, ids, signal);
    const picks: JobPick[] = [];
    for (const { id, pool } of left) {
      const state = states.get(id) ?? 'gone';
      const slot = reservations.slotFor(pool, id);
      const agent = slot === undefined ? null : shared.slots.agentOf(slot, id);
      if (slot !== undefined && agent !== null) runs.add({ job: id, agent, slot });
      if (slot !== undefined && state === 'reserved') picks.push({ job: id, slot });
      else if (agent === null) rows.left(id, stageOf(state) === 'over' ? buildkiteEnd(state, null) : null);
    }
    if (picks.length === 0) return;
    log.info('reservations resumed', { queue, jobs: picks.map(({ job }) => job) });
    await take(picks);
  }

  async function take(picks: readonly JobPick[]): Promise<void> {
    isTakenUp = false;
    await reservations.take(queue, picks);
    isTakenUp = true;
  }

  const pick = (job: ScheduledJob, free: string[]): string | null => {
    const at = free.findIndex((slot) => fits(job.rules, queue, poolOf(slot)?.tags ?? []));
    return at < 0 ? null : (free.splice(at, 1)[0] ?? null);
  };

  async function ask(): Promise<void> {
    asked = clock.now();
    // Pools with priority first.
    const rank = (slot: string): number => poolOf(slot)?.priority ?? 0;
    const free = reservations.free(queue).toSorted((a, b) => rank(b) - rank(a));
    const picks: JobPick[] = [];
    const waiting = new Map<JobId, number>();
    let after: string | null = null;
    for (let pages = 0; pages < mostPages; pages++) {
      const page = await stacks.scheduled(stack, queue, { limit: pageSize, after }, signal);
      notBefore = Math.max(notBefore, clock.now() + page.wait);
      if (page.odd > 0 && !isOddTold)
        log.warn('the service lists jobs whose ids are invalid; onejob ignores them', { queue, jobs: page.odd });
      isOddTold ||= page.odd > 0;
      if (page.paused) break;
      for (const job of page.jobs.toSorted((a, b) => b.priority - a.priority)) {
        if (reservations.of(job.id) !== null || reservations.isShunned(job.id)) continue;
        const slot = pick(job, free);
        if (slot !== null) picks.push({ job: job.id, slot });
        else if (pools.some(({ tags }) => fits(job.rules, queue, tags))) waiting.set(job.id, crowd.get(job.id) ?? clock.now());
      }
      after = page.next;
      if (after === null || free.length === 0 || page.wait > 0) break;
    }
    crowd = waiting;
    if (picks.length > 0) await take(picks);
    await note();
  }

  /** Once per job; a failure costs nothing. */
  async function note(): Promise<void> {
    const late = [...crowd].filter(([job, since]) => clock.now() - since >= beforeNote && !told.has(job)).map(([job]) => job);
    if (late.length === 0) return;
    for (const job of late) told.add(job);
    for (const job of told) if (told.size > mostTold) told.delete(job);
    const detail = `onejob on ${shared.host}: every slot that fits is busy; this job waits for one`;
    const notes = late.slice(0, pageSize).map((job) => ({ job, detail }));
    await stacks.notify(stack, notes, signal).catch((error: unknown) => {
      if (!signal.aborted) log.info('failed to report why jobs wait', { queue, reason: toFailure(error).message });
    });
  }

  async function turn(): Promise<void> {
    if (isDoubted) {
      isDoubted = isTakenUp = false;
      entry.doubt();
    }
    if (!entry.isKnown) {
      isTakenUp = false;
      await entry.register(queue, signal).catch((error: unknown) => {
        throw whyRefused(error);
      });
    }
    if (!isTakenUp) {
      await adoptReservations();
      isTakenUp = true;
      runs.wake();
    }
    if (clock.now() >= kept + keepEvery) {
      kept = clock.now();
      await reservations.keep(queue);
    }
    if (clock.now() >= nextAsk()) await ask();
    say(null);
  }

  function failed(error: unknown, failures: number): number {
    const { message, retry, code } = toFailure(error);
    // The stack may be gone, or another installation may have it: register it again.
    if (code === 'E_CI_DENIED') isDoubted = true;
    // A single failure is not an outage.
    if (!retry || failures > 1) say(message);
    return retry ? 0 : longest;
  }

  // The service removes a stack that asks nothing.
  const nextAsk = (): number => asked + (reservations.free(queue).length > 0 ? often : config.pollEvery);
  const due = (): number | null => {
    if (!shared.isReady() || !reservations.knowsSlots) return null;
    const keep = reservations.has(queue) ? kept + keepEvery : Number.POSITIVE_INFINITY;
    return Math.max(notBefore, !isDoubted && entry.isKnown && isTakenUp ? Math.min(nextAsk(), keep) : notBefore);
  };

  return takeTurns({ due, turn, failed, longest }, shared);
}

/**
 * Whether an agent's tags meet every rule of a job. `key=*` accepts any value; without a value it is `true`. Only onejob checks
 * this: the service gives a reserved job to any agent that names it (docs page `agent/cli/reference/start`, `--acquire-job`).
 */
export function fits(rules: readonly string[], queue: string, tags: readonly string[]): boolean {
  const own = [`queue=${queue}`, ...tags].map(split);
  return rules.every((rule) => {
    const [key, value] = split(rule);
    return own.some(([name, has]) => name === key && (value === '*' || has === value));
  });
}

function split(tag: string): readonly [string, string] {
  const at = tag.indexOf('=');
  return at < 0 ? [tag.trim(), 'true'] : [tag.slice(0, at).trim(), tag.slice(at + 1).trim()];
}
