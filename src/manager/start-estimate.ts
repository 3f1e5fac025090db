/**
 * When a waiting job will start, as a range that is honest: from how long the jobs of its pool ran lately, how many go before it,
 * and how many agents there are. Nothing is said where that cannot be known.
 */
import type { JobView } from '../api/schema.ts';
import type { Clock } from '../core/clock.ts';
import type { OutcomeTable } from '../store/outcomes.ts';
import type { Reconciler } from './loop/reconciler.ts';

export interface QueueAhead {
  /** Jobs of the pool that start before it. */
  readonly ahead: number;
  /** Slots that could take a job now. */
  readonly free: number;
  /** How long each busy agent has worked, ms. */
  readonly busy: readonly number[];
  /** How long jobs ran lately, ms. */
  readonly runs: readonly number[];
}

/** ms from now. */
export interface StartRange {
  readonly from: number;
  readonly to: number;
}

/** Fewer runs say nothing about the next one. */
const leastRuns = 5;

/** null if it cannot be known. */
export function startRange({ ahead, free, busy, runs }: QueueAhead): StartRange | null {
  if (ahead < free) return { from: 0, to: 0 };
  if (runs.length < leastRuns || free + busy.length === 0) return null;
  const sorted = runs.toSorted((a, b) => a - b);
  const at = (share: number) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? 0;
  return { from: startIf(at(0.1), ahead - free, busy, free), to: startIf(at(0.9), ahead - free, busy, free) };
}

/** When its turn comes if every job runs for `run` ms; one that already ran longer ends at once. */
function startIf(run: number, ahead: number, busy: readonly number[], free: number): number {
  const ends = [...busy.map((worked) => Math.max(0, run - worked)), ...Array.from({ length: free }, () => run)].toSorted(
    (a, b) => a - b,
  );
  const rounds = Math.floor(ahead / ends.length);
  return (ends[ahead % ends.length] ?? 0) + rounds * run;
}

/** How many of the last jobs of a pool are looked at, and for how long that is true enough, ms. */
const [runsRead, runsLast] = [50, 10_000];

interface StartEstimateParts {
  readonly clock: Clock;
  readonly reconciler: Pick<Reconciler, 'slots' | 'poolOf'>;
  readonly outcomes: Pick<OutcomeTable, 'list'>;
  /** Why jobs of a pool wait; null if its agents are just busy. */
  readonly reasonFor: (pool: string) => string | null;
}

/** Adds to a queued job when it will probably start. */
export function createStartEstimate({ clock, reconciler, outcomes, reasonFor }: StartEstimateParts) {
  const known = new Map<string, { readonly at: number; readonly runs: readonly number[] }>();

  const runsOf = (pool: string): readonly number[] => {
    const before = known.get(pool);
    if (before !== undefined && clock.now() - before.at < runsLast) return before.runs;
    const none = { service: null, kind: null, device: null, since: null, until: null, before: null };
    const runs = outcomes.list({ ...none, pool, failed: false, limit: runsRead }).flatMap(({ run }) => run ?? []);
    known.set(pool, { at: clock.now(), runs });
    return runs;
  };

  return (job: JobView): JobView => {
    const { pool, state, ahead, needs = [] } = job;
    if (state !== 'queued' || ahead === undefined || needs.length > 0 || reasonFor(pool) !== null) return job;
    const slots = reconciler.slots.filter(({ key }) => reconciler.poolOf(key).config.name === pool);
    const usable = slots.filter(({ key, agent }) => agent.kind !== 'free' || reconciler.poolOf(key).devices.heldBack(key) === null);
    const busy = usable.flatMap(({ agent }) =>
      agent.kind === 'busy' ? [clock.now() - agent.since] : agent.kind === 'free' ? [] : [0],
    );
    const startsIn = startRange({ ahead, free: usable.length - busy.length, busy, runs: runsOf(pool) });
    return startsIn === null ? job : { ...job, startsIn: { from: Math.round(startsIn.from), to: Math.round(startsIn.to) } };
  };
}
