/**
 * When a waiting job will start, as a range that is honest: from how long the jobs of its pool ran lately, how many go before it,
 * how many agents there are, and the time limits of the jobs that run. Nothing is said where that cannot be known.
 */
import { everyOutcome } from '../contract/history.ts';
import type { JobView } from '../contract/schema.ts';
import type { Clock } from '../core/clock.ts';
import type { OutcomeTable } from '../store/outcomes.ts';
import type { Reconciler } from './loop/reconciler.ts';

export interface BusyAgent {
  /** How long it has worked on its job, ms. */
  readonly worked: number;
  /** What is left of the time limit of its job, ms; null: it has none. */
  readonly left: number | null;
}

/** What a pool has for its waiting jobs. */
export interface PoolFacts {
  /** Slots that could take a job now: an agent stands ready. */
  readonly ready: number;
  /** Slots that are free, and where none is ready yet: nobody knows when it will be. */
  readonly coming: number;
  readonly busy: readonly BusyAgent[];
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

/** Says of a job by how many start before it when it starts; null if that cannot be known. Thousands of jobs may be asked about. */
export type StartRanges = (ahead: number) => StartRange | null;

export function startRanges({ ready, coming, busy, runs }: PoolFacts): StartRanges {
  const free = ready + coming;
  const isKnown = runs.length >= leastRuns && free + busy.length > 0;
  const sorted = runs.toSorted((a, b) => a - b);
  const [quick, slow] = [shareOf(sorted, 0.1), shareOf(sorted, 0.9)];
  const earliest = turns(
    quick,
    busy.map(({ worked, left }) => Math.min(Math.max(0, quick - worked), left ?? Infinity)),
    free,
  );
  const latest = turns(
    slow,
    busy.map((agent) => latestEnd(agent, sorted)),
    free,
  );
  return (ahead) => {
    if (ahead < ready) return { from: 0, to: 0 };
    if (!isKnown || ahead < free) return null;
    const range = { from: earliest(ahead - free), to: latest(ahead - free) };
    return range.to === Infinity ? null : range;
  };
}

/** The run that this share of the runs is not longer than. */
function shareOf(sorted: readonly number[], share: number): number {
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? 0;
}

/** In how many ms an agent is free at the latest. If its job has run longer than any before, only its time limit tells. */
function latestEnd({ worked, left }: BusyAgent, sorted: readonly number[]): number {
  const longer = sorted.filter((run) => run > worked);
  const expected = longer.length === 0 ? Infinity : shareOf(longer, 0.9) - worked;
  return Math.min(expected, left ?? Infinity);
}

/** When the turn of a job comes, by how many come before it, if the agents are free at `ends` and every further job runs for `run` ms. */
function turns(run: number, ends: readonly number[], free: number): (ahead: number) => number {
  const times = [...ends, ...Array.from({ length: free }, () => run)].toSorted((a, b) => a - b);
  let taken = 0;
  return (ahead) => {
    // The agent that takes a job is free again after its run.
    for (; taken < ahead; taken += 1) {
      const again = (times[taken] ?? 0) + run;
      times.splice(times.findLastIndex((time) => time <= again) + 1, 0, again);
    }
    return times[ahead] ?? 0;
  };
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

/** Adds to a queued job when it will probably start. It looks at each pool once, so it is for one answer. */
export type StartEstimate = (job: JobView) => JobView;

/** Returns a function that makes estimates. */
export function createStartEstimate({ clock, reconciler, outcomes, reasonFor }: StartEstimateParts): () => StartEstimate {
  const known = new Map<string, { readonly at: number; readonly runs: readonly number[] }>();

  const runsOf = (pool: string): readonly number[] => {
    const before = known.get(pool);
    if (before !== undefined && clock.now() - before.at < runsLast) return before.runs;
    const runs = outcomes.list({ ...everyOutcome, pool, limit: runsRead }).flatMap(({ run }) => run ?? []);
    known.set(pool, { at: clock.now(), runs });
    return runs;
  };

  const factsOf = (name: string): PoolFacts => {
    const busy: BusyAgent[] = [];
    const now = clock.now();
    const fresh: BusyAgent = { worked: 0, left: null };
    let [ready, coming] = [0, 0];
    for (const { key, agent, standby } of reconciler.slots) {
      const pool = reconciler.poolOf(key);
      if (pool.config.name !== name) continue;
      if (agent.kind === 'busy')
        busy.push({ worked: now - agent.since, left: agent.due === null ? null : Math.max(0, agent.due - now) });
      else if (agent.kind !== 'free') busy.push(fresh);
      else if (pool.devices.heldBack(key) !== null) continue;
      // It is for a job that waits no more.
      else if (standby.kind !== 'none' && standby.reserved !== null) busy.push(fresh);
      else if (standby.kind === 'standby') ready += 1;
      else coming += 1;
    }
    return { ready, coming, busy, runs: runsOf(name) };
  };

  return () => {
    const pools = new Map<string, StartRanges | null>();
    const rangesOf = (pool: string) => {
      const found = pools.get(pool);
      if (found !== undefined) return found;
      const ranges = reasonFor(pool) === null ? startRanges(factsOf(pool)) : null;
      pools.set(pool, ranges);
      return ranges;
    };
    return (job) => {
      const { pool, state, ahead, cold } = job;
      // Nobody knows how long it takes to make the sandbox of a cold one.
      if (state !== 'queued' || ahead === undefined || cold) return job;
      const startsIn = rangesOf(pool)?.(ahead) ?? null;
      return startsIn === null ? job : { ...job, startsIn: { from: Math.round(startsIn.from), to: Math.round(startsIn.to) } };
    };
  };
}
