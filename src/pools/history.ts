/** Which agents there were: written in the same commit as the slot they were in. */
import type { Change, Exit, JobResult, Slot } from '../core/slot.ts';
import type { HistoryTable } from '../store/history.ts';

export interface HistoryParts {
  readonly table: HistoryTable;
  readonly pool: string;
  readonly name: string;
  /** Wall clock, ms since the epoch. */
  readonly wall: number;
}

/** Writes down what a step of one slot says about its agents. Standbys that nothing was released to leave no trace. */
export function writeHistory(before: Slot, after: Slot, changes: readonly Change[], parts: HistoryParts): void {
  if (before.agent === after.agent) return;
  const left = before.agent.kind === 'free' ? null : before.agent.agent;
  const here = after.agent.kind === 'free' ? null : after.agent.agent;
  if (left !== null && (left !== here || after.agent.kind === 'proving'))
    parts.table.ended(left, exitOf(left, changes) ?? leftBehind(left, after), parts.wall);
  if (here === null || after.agent.kind === 'proving') return;
  if (left !== here) parts.table.made({ agent: here, pool: parts.pool, slot: after.key, name: parts.name, madeAt: parts.wall });
  if (after.agent.kind === 'busy') parts.table.released(here, after.agent.job, parts.wall);
}

function exitOf(agent: string, changes: readonly Change[]): Exit | null {
  const ended = changes.find((change) => change.change === 'ended' && change.agent === agent);
  return ended?.change === 'ended' && isExit(ended.result) ? ended.result : null;
}

function leftBehind(agent: string, { leaving }: Slot): Exit | null {
  return leaving.find((one) => one.agent === agent)?.exit ?? null;
}

function isExit(result: JobResult): result is Exit {
  return result.kind === 'code' || result.kind === 'signal' || result.kind === 'oom' || result.kind === 'lost';
}
