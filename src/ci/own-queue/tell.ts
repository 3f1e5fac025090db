/**
 * Announces changes of jobs: to the loop and followers once they are committed; a result only once it is on disk, so that nobody
 * hears of an end that a power cut undoes (S7). Waiters hear of an end once.
 */
import { abortable } from '../../abortable.ts';
import type { JobView } from '../../api/schema.ts';
import type { Log } from '../../log.ts';
import type { CiEvent } from '../ci-service.ts';
import type { Job } from './job.ts';
import type { JobIndex } from './job-index.ts';

export interface TellParts {
  readonly index: JobIndex;
  readonly view: (job: Job) => JobView;
  /** Those who follow were told of its end: nobody needs the job in memory any more. */
  readonly over: (job: Job) => void;
}

export class Teller {
  readonly #parts: TellParts;
  readonly #loops = new Set<(event: CiEvent) => void>();
  readonly #followers = new Set<(job: JobView) => void>();
  readonly #waiters = new Set<(job: JobView) => void>();
  /** Jobs with a result of which nobody was told yet. */
  readonly #unsynced = new Set<string>();

  constructor(parts: TellParts) {
    this.#parts = parts;
  }

  /** Events from now on, after those that tell how `pools` stand; until `signal` aborts. */
  observe(pools: Iterable<string>, send: (event: CiEvent) => void, signal: AbortSignal): void {
    if (signal.aborted) return;
    this.#loops.add(send);
    signal.addEventListener('abort', () => this.#loops.delete(send), { once: true });
    const { index } = this.#parts;
    for (const pool of pools) if (index.waiting(pool) > 0) send({ kind: 'waiting', pool });
    for (const job of index.all()) {
      const event = cancelOf(job);
      if (event !== null) send(event);
    }
  }

  /** Calls `follower` after every change of a job; the returned function ends that. */
  follow(follower: (job: JobView) => void): () => void {
    this.#followers.add(follower);
    return () => this.#followers.delete(follower);
  }

  /** The end of a job that is not over yet, told once; rejects when `signal` aborts, and leaves nothing behind. */
  async wait(id: string, signal: AbortSignal): Promise<JobView> {
    const { promise, resolve } = Promise.withResolvers<JobView>();
    const tell = (job: JobView): void => {
      if (job.id === id) resolve(job);
    };
    this.#waiters.add(tell);
    try {
      return await abortable(promise, signal);
    } finally {
      this.#waiters.delete(tell);
    }
  }

  /** What was put into the index is committed. */
  committed(): void {
    const { index, view } = this.#parts;
    for (const { before, after } of index.commit()) {
      if (after.progress.result !== null) this.#unsynced.add(after.id);
      else for (const follower of [...this.#followers]) follower(view(after));
      this.#announce(before, after);
    }
  }

  /** What is committed so far is being put on disk; what this answers is called once that is done. */
  syncing(): () => void {
    const ids = [...this.#unsynced];
    this.#unsynced.clear();
    return () => {
      for (const id of ids) this.#synced(id);
    };
  }

  #synced(id: string): void {
    const { index, view, over } = this.#parts;
    const job = index.get(id);
    // What has changed meanwhile is told by the sync that follows.
    if (job === null || this.#unsynced.has(id)) return;
    const seen = view(job);
    for (const follower of [...this.#followers]) follower(seen);
    if (job.progress.state !== 'done') return;
    over(job);
    for (const tell of [...this.#waiters]) tell(seen);
  }

  #announce(before: Job | null, after: Job): void {
    const { progress, request } = after;
    if (progress.state === 'queued' && before?.progress.state !== 'queued') this.#emit({ kind: 'waiting', pool: request.pool });
    const asked = before?.progress.cancelling === true && before.progress.agent === progress.agent;
    const event = cancelOf(after);
    if (event !== null && !asked) this.#emit(event);
  }

  #emit(event: CiEvent): void {
    for (const send of [...this.#loops]) send(event);
  }
}

/** Says why nothing is known of a job's end, once it is over. */
export function tellLost({ id, pool, state, agent, result }: JobView, log: Log): void {
  if (state === 'done' && result?.kind === 'lost') log.warn('job lost', { job: id, pool, agent, reason: result.reason });
}

/** What the loop is asked for a job that is to end, and that an agent still has. */
function cancelOf({ id, progress: { cancelling, agent, result } }: Job): CiEvent | null {
  return cancelling && agent !== null && result === null ? { kind: 'cancel', job: id, agent, grace: null } : null;
}
