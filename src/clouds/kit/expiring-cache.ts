/** What a cloud says and what is good for a while, such as a token. Callers that ask at the same time share one question. */
import { createShared } from '../../base/abortable.ts';

export interface Expiring<T> {
  readonly value: T;
  /** ms of `now`, from which it is asked for again. */
  readonly until: number;
}

const silent = (): void => {};

export class ExpiringCache<T> {
  readonly #now: () => number;
  readonly #shared = createShared<Expiring<T>>();
  readonly #known = new Map<string, Expiring<T>>();

  /** `now`: ms of any clock. */
  constructor(now: () => number) {
    this.#now = now;
  }

  /** What holds for `key`, else what `ask` says. Its signal aborts when the last caller has given up. */
  async get(key: string, ask: (signal: AbortSignal) => Promise<Expiring<T>>, signal: AbortSignal): Promise<T> {
    signal.throwIfAborted();
    const before = this.#known.get(key);
    if (before !== undefined && this.#now() < before.until) return before.value;
    const found = await this.#shared(key, (_, stop) => ask(stop), silent, signal);
    this.#known.set(key, found);
    return found.value;
  }

  /** The cloud refuses it. A newer one stays. */
  forget(value: T): void {
    for (const [key, { value: known }] of this.#known) if (known === value) this.#known.delete(key);
  }
}
