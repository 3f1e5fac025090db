/** What a manager before this one had reserved or given to agents: kept, and run after all, looked after, or known to be over. */
import type { AgentId, JobId } from '../../core/slot.ts';
import type { Log } from '../../log.ts';
import { type JobRows, wordOf } from './job-rows.ts';
import type { Reservations } from './reservations.ts';
import type { Runs } from './runs.ts';
import { type Stacks, stageOf } from './stacks.ts';

export interface TakeUpParts {
  readonly queue: string;
  /** Key of its stack. */
  readonly stack: string;
  /** Names of its pools, and of those that config does not know any more. */
  readonly isOfQueue: (pool: string) => boolean;
  readonly stacks: Pick<Stacks, 'states'>;
  readonly rows: Pick<JobRows, 'unended' | 'left'>;
  readonly reservations: Pick<Reservations, 'take'>;
  readonly runs: Pick<Runs, 'add'>;
  /** It is looked after: an agent has it, or it is reserved already. */
  readonly isKnown: (job: JobId) => boolean;
  /** For a job of this pool: the one that has it, or one that is free, or any; undefined: the pool has none. */
  readonly slotFor: (pool: string, job: JobId) => string | undefined;
  /** Whose sandbox in this slot is to run the job, or runs it. */
  readonly agentOf: (slot: string, job: JobId) => AgentId | null;
  readonly log: Log;
}

/** @throws OnejobError E_CI_* */
export async function takeUp(parts: TakeUpParts, signal: AbortSignal): Promise<void> {
  const { queue, stack, stacks, rows, log } = parts;
  const left = rows.unended().filter(({ id, pool }) => parts.isOfQueue(pool) && !parts.isKnown(id));
  if (left.length === 0) return;
  const ids = left.map(({ id }) => id);
  const states = await stacks.states(stack, ids, signal);
  const picks: { job: JobId; slot: string }[] = [];
  for (const { id, pool } of left) {
    const state = states.get(id) ?? 'gone';
    const slot = parts.slotFor(pool, id);
    const agent = slot === undefined ? null : parts.agentOf(slot, id);
    if (slot !== undefined && agent !== null) parts.runs.add({ job: id, agent, slot });
    if (slot !== undefined && state === 'reserved') picks.push({ job: id, slot });
    else if (agent === null) rows.left(id, stageOf(state) === 'over' ? wordOf(state, null) : null);
  }
  if (picks.length === 0) return;
  log.info('reservations taken up', { queue, jobs: picks.map(({ job }) => job) });
  await parts.reservations.take(queue, picks);
}
