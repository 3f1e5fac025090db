/**
 * Announces changes of jobs: to the loop and followers once they are committed; a result only once it is on disk, so that nobody
 * hears of an end that a power cut undoes (S7).
 */
import { abortable } from '../../base/abortable.ts';
import type { Log } from '../../base/log.ts';
import type { JobView } from '../../contract/schema.ts';
import type { CiEvent } from '../../ports/ci-service.ts';
import type { Job } from './job.ts';
import type { JobIndex } from './job-index.ts';

/** `over`: followers know the job's end, so nobody needs it in memory any more. */
export function createTeller(index: JobIndex, view: (job: Job) => JobView, over: (job: Job) => void) {
  const loops = new Set<(event: CiEvent) => void>();
  const followers = new Set<(job: JobView) => void>();
  /** Jobs whose result was not announced yet. */
  const untold = new Set<string>();
  /** Those of them for which the next sync counts. */
  const unsynced = new Set<string>();

  function synced(id: string): void {
    // The next sync announces a newer change.
    if (unsynced.has(id)) return;
    untold.delete(id);
    const job = index.get(id);
    if (job === null) return;
    const seen = view(job);
    for (const follower of [...followers]) follower(seen);
    if (job.progress.state === 'done') over(job);
  }

  function announce(before: Job | null, after: Job): void {
    const { progress, request } = after;
    const mayStart = (one: Job | null) => one?.progress.state === 'queued' && one.progress.blockedBy.length === 0;
    if (mayStart(after) && (!mayStart(before) || before?.request.pool !== request.pool))
      emit({ kind: 'waiting', pool: request.pool });
    const asked = before?.progress.cancelling === true && before.progress.agent === progress.agent;
    const event = cancelOf(after);
    if (event !== null && !asked) emit(event);
  }

  function emit(event: CiEvent): void {
    for (const send of [...loops]) send(event);
  }

  /** Calls `follower` after every change of a job; returns a function that stops it. */
  function follow(follower: (job: JobView) => void): () => void {
    followers.add(follower);
    return () => followers.delete(follower);
  }

  return {
    /** Emits how `pools` are now, and events from then on, until `signal` aborts. */
    observe(pools: Iterable<string>, send: (event: CiEvent) => void, signal: AbortSignal): void {
      if (signal.aborted) return;
      loops.add(send);
      signal.addEventListener('abort', () => loops.delete(send), { once: true });
      for (const pool of pools) if (index.waiting(pool) > 0) send({ kind: 'waiting', pool });
      for (const job of index.all()) {
        const event = cancelOf(job);
        if (event !== null) send(event);
      }
    },
    follow,
    /** Resolves with the end of an unfinished job; rejects when `signal` aborts. */
    async wait(id: string, signal: AbortSignal): Promise<JobView> {
      const { promise, resolve } = Promise.withResolvers<JobView>();
      const stop = follow((job) => {
        if (job.id === id && job.state === 'done') resolve(job);
      });
      try {
        return await abortable(promise, signal);
      } finally {
        stop();
      }
    },
    committed(): void {
      for (const { before, after } of index.commit()) {
        if (after.progress.result !== null) {
          untold.add(after.id);
          unsynced.add(after.id);
        } else for (const follower of [...followers]) follower(view(after));
        announce(before, after);
      }
    },
    /** Whether it has a result that was not announced yet. */
    isUntold: (id: string): boolean => untold.has(id),
    /** Returns a function to call once everything committed is on disk. */
    syncing(): () => void {
      const ids = [...unsynced];
      unsynced.clear();
      return () => {
        for (const id of ids) synced(id);
      };
    },
  };
}

/** Logs why the end of a job is unknown. */
export function tellLost({ id, pool, state, agent, result }: JobView, log: Log): void {
  if (state === 'done' && result?.kind === 'lost') log.warn('job lost', { job: id, pool, agent, reason: result.reason });
}

/** The event for a job that must end while an agent has it. */
function cancelOf({ id, progress: { cancelling, agent, result } }: Job): CiEvent | null {
  return cancelling && agent !== null && result === null ? { kind: 'cancel', job: id, agent, grace: null } : null;
}
