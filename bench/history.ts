/** Questions about the history of a store with many jobs, as the API asks them. */
import { join } from 'node:path';
import { jobView, newJob } from '../src/ci/own-queue/job.ts';
import { jobRequest } from '../src/contract/job.ts';
import { openStore, type Store } from '../src/store/store.ts';
import { endedJobs, jobHistory } from '../src/verdict/history.ts';
import { ownJobEnded } from '../src/verdict/outcomes.ts';
import { type Stats, stats } from './stats.ts';

const pools = ['cpu', 'gpu', 'multigpu', 'nightly'];
const cards = Array.from({ length: 8 }, (_, at) => `GPU-${at}`);
/** A job a minute or so: the jobs span years at that rate, so each asks about a window of its own. */
const between = 20_000;

/** Fills a store as ended jobs do. Returns the wall clock after the last one. */
function fill(store: Store, jobs: number): number {
  let at = Date.UTC(2024, 0, 1);
  for (let done = 0; done < jobs; ) {
    store.transaction({ durable: false }, () => {
      for (let end = Math.min(jobs, done + 5_000); done < end; done += 1, at += between) {
        const pool = pools[done % pools.length] ?? '';
        const id = done.toString(16).padStart(12, '0');
        const request = { ...jobRequest.parse({ command: ['make', 'test'], user: `user${done % 30}` }), pool, array: null };
        const started = newJob(id, request, false, at);
        const agent = `a${id}`;
        // Every 17th job fails; on one card every 5th.
        const card = cards[done % 7 === 0 ? 0 : done % cards.length] ?? '';
        const code = done % 17 === 0 || (card === 'GPU-3' && done % 5 === 0) ? 1 : 0;
        const progress = {
          ...started.progress,
          state: 'done' as const,
          agent,
          attempt: 1,
          result: { kind: 'code' as const, code },
        };
        const job = { ...started, seq: 0, progress: { ...progress, startedAt: at + 2_000, endedAt: at + 60_000 } };
        store.jobs.insert(job);
        // Most run in their pool's image, and some in one that was built for them.
        const image = done % 10 === 0 ? `registry.example.org/team/app:${id}` : `nvidia/cuda:12.6.2-devel-ubuntu24.04-${pool}`;
        const devices = pool === 'cpu' ? [] : [card];
        store.history.made({ agent, pool, slot: `${pool}/1`, name: agent, madeAt: at, devices, image });
        ownJobEnded(store, job, null);
      }
    });
  }
  return at;
}

export interface HistoryFigures {
  readonly jobs: number;
  readonly fillMs: number;
  readonly queries: Readonly<Record<string, Stats>>;
}

/** `rounds`: of each question, at another place each time. */
export function historyFigures(dir: string, jobs: number, rounds: number): HistoryFigures {
  const store = openStore(join(dir, 'history'));
  try {
    const began = performance.now();
    const now = fill(store, jobs);
    const fillMs = performance.now() - began;
    const { outcomes } = store;
    const jobOf = (id: string) => {
      const job = store.jobs.get(id);
      return job === null ? null : jobView(job, () => null, outcomes.get(id));
    };
    const none = {
      pool: null,
      service: null,
      kind: null,
      failed: false,
      image: null,
      device: null,
      since: null,
      until: null,
      before: null,
      text: null,
    };
    const all = { pool: null, service: null, image: null, device: null, since: null, until: null };
    const day = 86_400_000;
    const week = (round: number) => now - ((round * 37) % 300) * day;
    const pool = (round: number) => pools[round % pools.length] ?? '';
    const card = (round: number) => cards[round % cards.length] ?? '';
    const image = (round: number) => `nvidia/cuda:12.6.2-devel-ubuntu24.04-${pool(round)}`;
    const page = (more: Partial<Parameters<typeof endedJobs>[2]>) => endedJobs(outcomes, jobOf, { ...none, limit: 100, ...more });
    const questions: Record<string, (round: number) => unknown> = {
      'a page of 100': (round) => page({ before: `${week(round)}.${jobs}` }),
      'failed ones of a pool': (round) => page({ failed: true, pool: pool(round), until: week(round) }),
      'those of a card': (round) => page({ device: card(round), until: week(round) }),
      'failed ones of a card': (round) => page({ device: card(round), failed: true, until: week(round) }),
      'those with one verdict that is rare': (round) => page({ kind: 'infrastructure', pool: pool(round) }),
      'failed ones of an image': (round) => page({ image: image(round), failed: true, until: week(round) }),
      'those of an image that few had': (round) =>
        page({ image: `registry.example.org/team/app:${(round * 10).toString(16).padStart(12, '0')}`, pool: pool(round) }),
      'sums by card over a week': (round) =>
        jobHistory(outcomes, { ...all, by: 'device', since: week(round) - 7 * day, until: week(round) }),
      'sums by image over a week': (round) =>
        jobHistory(outcomes, { ...all, by: 'image', since: week(round) - 7 * day, until: week(round) }),
      'sums by pool over everything': () => jobHistory(outcomes, { ...all, by: 'pool' }),
      'sums by image over everything': () => jobHistory(outcomes, { ...all, by: 'image' }),
      'sums by day over a quarter': (round) =>
        jobHistory(outcomes, { ...all, by: 'day', since: week(round) - 90 * day, until: week(round) }),
      'sums by day of an image over a quarter': (round) =>
        jobHistory(outcomes, { ...all, by: 'day', image: image(round), since: week(round) - 90 * day, until: week(round) }),
      'one job': (round) => jobOf(((round * 7919) % jobs).toString(16).padStart(12, '0')),
    };
    const queries = Object.fromEntries(
      Object.entries(questions).map(([name, ask]) => {
        const times = Array.from({ length: rounds }, (_, round) => {
          const start = performance.now();
          ask(round);
          return performance.now() - start;
        });
        return [name, stats(times)] as const;
      }),
    );
    return { jobs, fillMs, queries };
  } finally {
    store.close();
  }
}
