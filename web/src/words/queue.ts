/** Many jobs in few lines: arrays as one, and jobs that wait for the same reason under it. */
import type { Job } from '../views.ts';
import { isWaiting, jobState } from './words.ts';

export interface Entry {
  readonly key: string;
  /** In the order of their indices; more than one only of an array. */
  readonly jobs: readonly Job[];
}

/** Jobs of an array are one entry, at the place of the first of them. */
export function entriesOf(jobs: readonly Job[]): Entry[] {
  const groups = groupedBy(jobs, ({ id, array }) => array?.id ?? id);
  const index = ({ array }: Job) => array?.index ?? 0;
  return groups.map(({ key, jobs: of }) => ({ key, jobs: of.toSorted((a, b) => index(a) - index(b)) }));
}

/** Jobs that wait in the same pool for the same reason, in their order. */
export function queuesOf(jobs: readonly Job[]): Entry[] {
  return groupedBy(jobs, ({ pool, service, state, reason }) => JSON.stringify([pool, service, state, reason]));
}

function groupedBy(jobs: readonly Job[], keyOf: (job: Job) => string): { readonly key: string; readonly jobs: readonly Job[] }[] {
  const groups = new Map<string, Job[]>();
  for (const job of jobs) {
    const key = keyOf(job);
    const group = groups.get(key);
    if (group === undefined) groups.set(key, [job]);
    else group.push(job);
  }
  return [...groups].map(([key, of]) => ({ key, jobs: of }));
}

/** Such as "[0-199]". */
export function indicesText(jobs: readonly Job[]): string {
  const indices = jobs.flatMap(({ array }) => array?.index ?? []);
  const [least, most] = [Math.min(...indices), Math.max(...indices)];
  return least === most ? `[${least}]` : `[${least}-${most}]`;
}

const words: readonly string[] = ['passed', 'failed', 'lost', 'cancelled', 'ended', 'running', 'wait'];

/** Such as "12 passed, 2 failed, 2 running, 184 wait". */
export function countsText(jobs: readonly Job[]): string {
  const counts = new Map<string, number>();
  for (const job of jobs) counts.set(wordOf(job), (counts.get(wordOf(job)) ?? 0) + 1);
  return words.flatMap((word) => (counts.has(word) ? [`${counts.get(word)} ${word}`] : [])).join(', ');
}

function wordOf(job: Job): string {
  if (isWaiting(job)) return 'wait';
  if (job.state !== 'done') return 'running';
  const { word } = jobState(job);
  return words.includes(word) ? word : 'ended';
}
