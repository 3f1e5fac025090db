/** Jobs that agents of this host are to acquire, or have. Only the service's word tells how far they are. */

import type { JobId } from '../../../core/slot.ts';
import type { Shared } from '../shared.ts';
import type { JobReservations } from './job-reservations.ts';
import { type PollLoop, startPollLoop } from './poll-loop.ts';
import type { Run } from './run.ts';
import { stageOf } from './stacks.ts';

/** ms between two looks: before an agent has its job, and after. */
const [soon, later] = [1_000, 5_000];
/** ms after its grace period in which a cancelled job's agent sends the end of its log. */
const slack = 30_000;
/** ms. An older answer is not used to give an agent up. */
const fresh = 2_000;

/** They are asked about while there are any. */
export interface Runs extends PollLoop {
  /** An agent is about to be released with the job, or was by an earlier manager. */
  add(run: Pick<Run, 'job' | 'agent' | 'slot'>): void;
  of(job: JobId): Run | null;
  drop(job: JobId): void;
}

export function createRuns(shared: Shared, reservations: Pick<JobReservations, 'forget' | 'lost'>): Runs {
  const { config, stacks, stack, rows, poolOf, emit, clock, log, signal } = shared;
  const runs = new Map<JobId, Run>();
  let asked = Number.NEGATIVE_INFINITY;

  const put = (run: Run, patch: Partial<Run>): void => {
    if (runs.has(run.job)) runs.set(run.job, { ...run, ...patch });
  };
  const end = ({ job, agent }: Run): void => emit({ kind: 'cancel', job, agent, grace: 0 });

  function acquired(run: Run, patch: Pick<Run, 'phase'> & Partial<Run>): void {
    put(run, { ...patch, wasAcquired: true });
    if (run.phase !== 'expected') return;
    reservations.forget(run.job);
    rows.runs(run.job, run.agent);
    shared.wake();
  }

  function judge(run: Run, state: string, isFresh: boolean): void {
    const now = clock.now();
    switch (stageOf(state)) {
      case 'reserved': {
        if (run.phase !== 'expected' || !isFresh || now - run.since <= config.bootTimeout) return;
        const late = `the agent in its sandbox did not acquire it within ${Math.round(config.bootTimeout / 1000)} s`;
        put(run, { since: now, late });
        end(run);
        return;
      }
      case 'running':
        if (run.phase === 'expected') acquired(run, { phase: 'running' });
        return;
      case 'ending': {
        const since = run.cancelledAt ?? now;
        const isLate = now - since > (poolOf(run.slot)?.stopGrace ?? 0) + slack;
        acquired(run, { phase: 'ending', cancelledAt: isLate ? now : since });
        if (isLate) endUnheeded(run);
        return;
      }
      case 'waiting':
        if (run.phase === 'expected') reservations.lost(run.job, state);
        return;
      case 'over':
        if (run.phase === 'over') return;
        put(run, { phase: 'over' });
        // Its agent never had it, or is done.
        if (run.phase === 'expected' && state !== 'finished') reservations.lost(run.job, state);
        else emit({ kind: 'jobDone', agent: run.agent });
        return;
      case null:
        return;
    }
  }

  /** Its agent did not end a cancelled job in time. Repeated after as long. */
  function endUnheeded(run: Run): void {
    log.warn('cancelled job ended', { job: run.job, agent: run.agent });
    rows.note(run.job, 'The job was cancelled, but its agent did not end it, so onejob ended it.');
    end(run);
  }

  async function ask(): Promise<void> {
    asked = clock.now();
    const before = [...runs.values()];
    const jobs = before.map(({ job }) => job);
    const states = await stacks.states(stack, jobs, signal);
    for (const { job, agent } of before) {
      const run = runs.get(job);
      if (run?.agent === agent) judge(run, states.get(job) ?? 'gone', clock.now() - asked < fresh);
    }
  }

  /** null: there is nothing to ask, or no token. */
  function due(): number | null {
    const open = [...runs.values()].filter(({ phase }) => phase !== 'over');
    if (open.length === 0 || !shared.isReady() || !shared.entry.isKnown) return null;
    return asked + (open.some(({ phase }) => phase === 'expected') ? soon : later);
  }

  const loop = startPollLoop({ due, poll: ask, longest: 30_000 }, shared);
  return {
    ...loop,
    add(run) {
      const fresh = { phase: 'expected', wasAcquired: false, late: null, cancelledAt: null } as const;
      runs.set(run.job, { ...run, ...fresh, since: clock.now() });
      loop.wake();
    },
    of: (job) => runs.get(job) ?? null,
    drop: (job) => void runs.delete(job),
  };
}
