/** The times of a job, in their order. */
import type { Job, ProofView } from '../views.ts';
import { plain } from './text.ts';

export interface Moment {
  readonly name: 'Queued' | 'Released' | 'First output' | 'Ended' | 'Proved';
  /** Wall clock, ms; null: not yet, or unknown. */
  readonly at: number | null;
  /** ms since the last known moment before it. */
  readonly after: number | null;
  readonly note: string | null;
  /** Of the end of a job that runs: when it began, wall clock, ms. */
  readonly since: number | null;
}

/** `proofs`: of its devices, made after its agent. */
export function timeLine(job: Job, proofs: readonly ProofView[]): Moment[] {
  const { submittedAt, startedAt, endedAt, firstOutputAt } = job;
  const proved = proofs.length === 0 ? null : Math.max(...proofs.map(({ at }) => at));
  const verdicts = [...new Set(proofs.map(({ verdict }) => plain(verdict)))].join(', ');
  const all: [Moment['name'], number | null, string | null][] = [
    ['Queued', submittedAt, null],
    ['Released', startedAt, null],
    ...(firstOutputAt === undefined ? [] : [['First output', firstOutputAt, null] as [Moment['name'], number | null, null]]),
    ['Ended', endedAt, null],
    ...(proved === null ? [] : [['Proved', proved, verdicts] as [Moment['name'], number, string]]),
  ];
  let last: number | null = null;
  return all.map(([name, at, note]) => {
    const after = at === null || last === null ? null : Math.max(0, at - last);
    last = at ?? last;
    return { name, at, after, note, since: name === 'Ended' && at === null && job.state !== 'done' ? startedAt : null };
  });
}
