/** Whoever waits for a job to be done: told once, and gone without a trace when it gives up. */
import type { JobView } from '../../api/schema.ts';

export class Waiters {
  readonly #waiting = new Map<string, Set<(job: JobView) => void>>();

  /** Resolves with the next `tell` of this job; rejects when `signal` aborts. */
  wait(id: string, signal: AbortSignal): Promise<JobView> {
    return new Promise((resolve, reject) => {
      const waiting = this.#waiting.get(id) ?? new Set();
      this.#waiting.set(id, waiting);
      const leave = (): void => {
        waiting.delete(tell);
        if (waiting.size === 0) this.#waiting.delete(id);
        signal.removeEventListener('abort', give);
      };
      const tell = (job: JobView): void => {
        leave();
        resolve(job);
      };
      const give = (): void => {
        leave();
        reject(signal.reason);
      };
      waiting.add(tell);
      signal.addEventListener('abort', give, { once: true });
    });
  }

  tell(job: JobView): void {
    for (const tell of [...(this.#waiting.get(job.id) ?? [])]) tell(job);
  }
}
