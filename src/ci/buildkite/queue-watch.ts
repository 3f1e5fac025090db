/** Follows one queue: asks for its waiting jobs while a slot could take one, and reserves no more of them than there are such slots. */
import type { PoolConfig } from '../../config/config.ts';
import type { Clock } from '../../core/clock.ts';
import type { JobId } from '../../core/slot.ts';
import { OnejobError, toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import { fits } from './agent-rules.ts';
import { LaterError } from './api.ts';
import type { Reservations } from './reservations.ts';
import type { ScheduledJob, Stacks } from './stacks.ts';
import { createWaker } from './waker.ts';

export interface QueueWatchParts {
  readonly queue: string;
  /** Those that take jobs from it. */
  readonly pools: readonly PoolConfig[];
  /** Key of this host's. */
  readonly stack: string;
  /** The host's short name, for people. */
  readonly host: string;
  readonly stacks: Pick<Stacks, 'scheduled' | 'notify'>;
  readonly reservations: Pick<Reservations, 'take' | 'of' | 'isShunned' | 'keep' | 'all'>;
  /** Slots of these pools that could take a job and have none, not even one that is only reserved. */
  readonly free: () => readonly string[];
  readonly poolOf: (slot: string) => PoolConfig | undefined;
  /** Makes the stack known, and takes up what an earlier manager had. `again`: it is not known any more. @throws OnejobError E_CI_* */
  readonly begin: (again: boolean) => Promise<void>;
  /** Whether anything can be asked at all: there is a token. */
  readonly isReady: () => boolean;
  /** Why jobs cannot be had; null when they can. */
  readonly say: (problem: string | null) => void;
  /** ms between two questions while a slot is free. */
  readonly often: number;
  /** ms between two questions while no slot is free: the service takes a stack that asks nothing for one that is gone. */
  readonly every: number;
  /** ms between two rounds that keep reservations. */
  readonly keepEvery: number;
  readonly clock: Clock;
  readonly log: Log;
  readonly random: () => number;
  readonly signal: AbortSignal;
}

export interface QueueWatch {
  /** Something has changed: a slot is free, the token is another. */
  wake(): void;
  /** Resolves once `signal` is aborted and nothing is under way. */
  readonly ended: Promise<void>;
}

/** ms. Shortest and longest wait after failures; the latter is the wait after a refusal, which only a person can mend. */
const [shortest, longest] = [1_000, 60_000];
/** Jobs of an answer, and answers that are read at a time to find those that fit. */
const [pageSize, mostPages] = [100, 10];
/** ms that a job must have waited before its page says what for. */
const beforeNote = 5_000;
/** Jobs of which it is remembered that their page says it. */
const mostTold = 5_000;

export function watchQueue(parts: QueueWatchParts): QueueWatch {
  const { queue, pools, stack, stacks, reservations, clock, log, signal } = parts;
  const waker = createWaker(clock);
  signal.addEventListener('abort', waker.wake, { once: true });
  let isKnown = false;
  let wasKnown = false;
  let failures = 0;
  /** Times of the clock. */
  let [asked, kept, notBefore] = [Number.NEGATIVE_INFINITY, clock.now(), Number.NEGATIVE_INFINITY];
  let crowd = new Map<JobId, number>();
  const told = new Set<JobId>();

  const pick = (job: ScheduledJob, free: string[]): string | null => {
    const at = free.findIndex((slot) => fits(job.rules, queue, parts.poolOf(slot)?.tags ?? []));
    return at < 0 ? null : (free.splice(at, 1)[0] ?? null);
  };

  async function ask(): Promise<void> {
    asked = clock.now();
    // The pool that is to have jobs first.
    const rank = (slot: string): number => parts.poolOf(slot)?.priority ?? 0;
    const free = parts.free().toSorted((a, b) => rank(b) - rank(a));
    const picks: { job: JobId; slot: string }[] = [];
    const waiting = new Map<JobId, number>();
    let after: string | null = null;
    for (let pages = 0; pages < mostPages; pages++) {
      const page = await stacks.scheduled(stack, queue, { limit: pageSize, after }, signal);
      notBefore = Math.max(notBefore, clock.now() + page.wait);
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
    if (picks.length > 0) await reservations.take(queue, picks);
    await note();
  }

  /** Once for each job, and never at the cost of one. */
  async function note(): Promise<void> {
    const late = [...crowd].filter(([job, since]) => clock.now() - since >= beforeNote && !told.has(job)).map(([job]) => job);
    if (late.length === 0) return;
    for (const job of late) told.add(job);
    for (const job of told) if (told.size > mostTold) told.delete(job);
    const detail = `onejob on ${parts.host}: every slot that fits is busy; this job waits for one`;
    const notes = late.slice(0, pageSize).map((job) => ({ job, detail }));
    await stacks.notify(stack, notes, signal).catch((error: unknown) => {
      if (!signal.aborted) log.info('jobs not told why they wait', { queue, reason: toFailure(error).message });
    });
  }

  async function turn(): Promise<void> {
    try {
      if (!isKnown) await parts.begin(wasKnown);
      isKnown = true;
      wasKnown = true;
      if (clock.now() >= kept + parts.keepEvery) {
        kept = clock.now();
        await reservations.keep(queue);
      }
      if (clock.now() >= nextAsk()) await ask();
      failures = 0;
      parts.say(null);
    } catch (error) {
      if (signal.aborted) return;
      failures += 1;
      const { message, retry, code } = toFailure(error);
      // The stack may be gone, or another installation's now: it is made known again.
      if (code === 'E_CI_DENIED') isKnown = false;
      const backOff = retry ? Math.min(shortest * 2 ** (failures - 1), longest) * (1 - parts.random() / 5) : longest;
      notBefore = clock.now() + Math.max(backOff, error instanceof LaterError ? error.retryAfter : 0);
      if (!(error instanceof OnejobError)) log.error('cannot follow a queue', { queue, error });
      // One that failed once is no outage.
      if (!retry || failures > 1) parts.say(message);
    }
  }

  const nextAsk = (): number => asked + (parts.free().length > 0 ? parts.often : parts.every);
  const due = (): number | null => {
    if (!parts.isReady()) return null;
    const keep = reservations.all().some((one) => one.queue === queue) ? kept + parts.keepEvery : Number.POSITIVE_INFINITY;
    return Math.max(notBefore, isKnown ? Math.min(nextAsk(), keep) : notBefore);
  };

  async function run(): Promise<void> {
    while (!signal.aborted) {
      const at = due();
      if (at === null || clock.now() < at) await waker.wait(at);
      else await turn();
    }
  }

  return {
    wake() {
      waker.wake();
    },
    ended: run(),
  };
}
