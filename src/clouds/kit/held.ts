/** What a cloud says and what is good for a while, such as a token. Callers that ask at the same time share one question. */
import { createShared } from '../../base/abortable.ts';

export interface Lease<T> {
  readonly value: T;
  /** ms of `now`, from which it is asked for again. */
  readonly until: number;
}

const silent = (): void => {};

/** `now`: ms of any clock. */
export function createHeld<T>(now: () => number) {
  const shared = createShared<Lease<T>>();
  const known = new Map<string, Lease<T>>();
  return {
    /** What holds for `key`, else what `ask` says. Its signal aborts when the last caller has given up. */
    async get(key: string, ask: (signal: AbortSignal) => Promise<Lease<T>>, signal: AbortSignal): Promise<T> {
      signal.throwIfAborted();
      const before = known.get(key);
      if (before !== undefined && now() < before.until) return before.value;
      const found = await shared(key, (_, stop) => ask(stop), silent, signal);
      known.set(key, found);
      return found.value;
    },
    /** The cloud refuses it. A newer one stays. */
    forget(value: T): void {
      for (const [key, lease] of known) if (lease.value === value) known.delete(key);
    },
  };
}
