/**
 * Jobs that wait for runners, as webhooks tell. Events may come twice, late, in another order, or not at all, so an entry ends with the
 * first event of a later state, with an answer of the REST API, and at the latest when GitHub itself gives the job up.
 */
import type { Clock } from '../../core/clock.ts';
import type { GithubJob, JobEvent } from './wire.ts';

/** ms. GitHub cancels a job that has waited for a day (docs, "Usage limits"). */
const longestWait = 86_400_000;
/** ms after which GitHub is asked whether a job still waits. */
const recheck = 600_000;
/** How many waiting jobs, and jobs that wait no more, are remembered. */
const remembered = 5_000;

interface Waiting {
  readonly job: GithubJob;
  /** As `acme/app`. */
  readonly repository: string;
  readonly places: readonly string[];
  /** Wall clock, ms. */
  readonly until: number;
  /** Core clock, ms. */
  askAt: number;
}

/** Whose jobs an event is about, as `placeOf` has them. */
export function placesOf({ repository, enterprise }: JobEvent): string[] {
  const name = repository.full_name.toLowerCase();
  const slug = enterprise?.slug.toLowerCase();
  return [`repos/${name}`, `orgs/${name.split('/')[0]}`, ...(slug === undefined ? [] : [`enterprises/${slug}`])];
}

export function createWaitingJobs(clock: Clock) {
  const waiting = new Map<number, Waiting>();
  /** Jobs that wait no more: an old event may come once again. */
  const over = new Set<number>();
  /** When anything was told of a place last; core clock, ms. */
  const toldAt = new Map<string, number>();

  /** null: nothing was told of the place for a day, or since the start, so nobody knows. */
  const at = (place: string): readonly Waiting[] | null => {
    const last = toldAt.get(place);
    for (const [id, { until }] of waiting) if (until <= clock.wall()) waiting.delete(id);
    if (last === undefined || clock.now() - last > longestWait) return null;
    return [...waiting.values()].filter(({ places }) => places.includes(place));
  };

  return {
    at,
    heard(event: JobEvent): void {
      const { action, workflow_job: job, repository } = event;
      const places = placesOf(event);
      for (const place of places) toldAt.set(place, clock.now());
      waiting.delete(job.id);
      if (action === 'in_progress' || action === 'completed') over.add(job.id);
      for (const old of [...over].slice(0, -remembered)) over.delete(old);
      if (action !== 'queued' || over.has(job.id)) return;
      const until = (job.created_at ?? clock.wall()) + longestWait;
      waiting.set(job.id, { job, repository: repository.full_name, places, until, askAt: clock.now() + recheck });
      for (const old of [...waiting.keys()].slice(0, -remembered)) waiting.delete(old);
    },
    /** GitHub says that it does not wait. It may wait again, such as after an approval. */
    gone: (job: number) => void waiting.delete(job),
    /** Those of the place that GitHub should be asked about now. */
    inDoubt(place: string): readonly Waiting[] {
      const found = (at(place) ?? []).filter(({ askAt }) => askAt <= clock.now()).slice(0, 10);
      for (const one of found) one.askAt = clock.now() + recheck;
      return found;
    },
  };
}
