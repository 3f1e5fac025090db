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

interface TellerParts {
  readonly index: JobIndex;
  readonly view: (job: Job) => JobView;
  /** Followers know the job's end, so nobody needs it in memory any more. */
  readonly over: (job: Job) => void;
  /** Pools whose jobs may wait for each other's; null: they never do. */
  readonly sharing?: () => Iterable<string> | null;
}

export class Teller {
  readonly #parts: TellerParts;
  readonly #loops = new Set<(event: CiEvent) => void>();
  readonly #followers = new Set<(job: JobView) => void>();
  /** Jobs whose result was not announced yet. */
  readonly #untold = new Set<string>();
  /** Those of them for which the next sync counts. */
  readonly #unsynced = new Set<string>();

  constructor(parts: TellerParts) {
    this.#parts = parts;
  }

  /** Emits how `pools` are now, and events from then on, until `signal` aborts. */
  observe(pools: Iterable<string>, send: (event: CiEvent) => void, signal: AbortSignal): void {
    if (signal.aborted) return;
    const { index } = this.#parts;
    this.#loops.add(send);
    signal.addEventListener('abort', () => this.#loops.delete(send), { once: true });
    for (const pool of pools) if (index.waiting(pool) > 0) send({ kind: 'waiting', pool });
    for (const job of index.all()) {
      const event = cancelOf(job);
      if (event !== null) send(event);
    }
  }

  /** Calls `follower` after every change of a job; returns a function that stops it. */
  follow(follower: (job: JobView) => void): () => void {
    this.#followers.add(follower);
    return () => this.#followers.delete(follower);
  }

  /** Resolves with the end of an unfinished job; rejects when `signal` aborts. */
  async wait(id: string, signal: AbortSignal): Promise<JobView> {
    const { promise, resolve } = Promise.withResolvers<JobView>();
    const stop = this.follow((job) => {
      if (job.id === id && job.state === 'done') resolve(job);
    });
    try {
      return await abortable(promise, signal);
    } finally {
      stop();
    }
  }

  committed(): void {
    const { index } = this.#parts;
    const changes = index.commit();
    for (const { before, after } of changes) {
      if (after.progress.result !== null) {
        this.#untold.add(after.id);
        this.#unsynced.add(after.id);
      } else this.#show(after);
      this.#announce(before, after);
    }
    // A card that somebody gives back may be what another pool's job waits for.
    if (changes.some(({ before, after }) => before?.progress.agent != null && hasLeft(after))) this.wake();
  }

  /** Tells the loops of all pools with jobs that may start now. */
  wake(): void {
    const { index, sharing } = this.#parts;
    for (const pool of sharing?.() ?? []) if (index.waiting(pool) > 0) this.#emit({ kind: 'waiting', pool });
  }

  /** Whether it has a result that was not announced yet. */
  isUntold(id: string): boolean {
    return this.#untold.has(id);
  }

  /** Returns a function to call once everything committed is on disk. */
  syncing(): () => void {
    const ids = [...this.#unsynced];
    this.#unsynced.clear();
    return () => {
      for (const id of ids) this.#synced(id);
    };
  }

  #synced(id: string): void {
    // The next sync announces a newer change.
    if (this.#unsynced.has(id)) return;
    this.#untold.delete(id);
    const job = this.#parts.index.get(id);
    if (job === null) return;
    this.#show(job);
    if (job.progress.state === 'done') this.#parts.over(job);
  }

  #show(job: Job): void {
    // Without a follower nobody may be there yet who knows why jobs wait.
    if (this.#followers.size === 0) return;
    const seen = this.#parts.view(job);
    for (const follower of [...this.#followers]) follower(seen);
  }

  #announce(before: Job | null, after: Job): void {
    const { progress, request } = after;
    const mayStart = (one: Job | null) => one?.progress.state === 'queued' && one.progress.blockedBy.length === 0;
    if (mayStart(after) && (!mayStart(before) || before?.request.pool !== request.pool))
      this.#emit({ kind: 'waiting', pool: request.pool });
    const asked = before?.progress.cancelling === true && before.progress.agent === progress.agent;
    const event = cancelOf(after);
    if (event !== null && !asked) this.#emit(event);
  }

  #emit(event: CiEvent): void {
    for (const send of [...this.#loops]) send(event);
  }
}

function hasLeft({ progress: { agent, result } }: Job): boolean {
  return agent === null || result !== null;
}

/** Logs why the end of a job is unknown. */
export function tellLost({ id, pool, state, agent, result }: JobView, log: Log): void {
  if (state === 'done' && result?.kind === 'lost') log.warn('job lost', { job: id, pool, agent, reason: result.reason });
}

/** The event for a job that must end while an agent has it. */
function cancelOf({ id, progress: { cancelling, agent, result } }: Job): CiEvent | null {
  return cancelling && agent !== null && result === null ? { kind: 'cancel', job: id, agent, grace: null } : null;
}
