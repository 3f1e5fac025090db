/** How many machines people want, by host, and until when. A wish is on disk before anything is made for it. */
import type { Clock } from '../core/clock.ts';
import type { Wish } from '../store/machine.ts';
import type { Store } from '../store/store.ts';

/** ms; a wall clock that was wrong makes no wish longer. */
const longest = 86_400_000;

export class Wishes {
  readonly #clock: Clock;
  readonly #store: Pick<Store, 'machines' | 'transaction'>;
  readonly #wishes: Map<string, Wish>;
  /** When they are over, by `clock.now()`, which no step of the wall clock changes. */
  readonly #ends = new Map<string, number>();

  constructor(clock: Clock, store: Pick<Store, 'machines' | 'transaction'>) {
    this.#clock = clock;
    this.#store = store;
    this.#wishes = store.machines.wanted();
    for (const [host, { until }] of this.#wishes)
      if (until !== null) this.#ends.set(host, clock.now() + Math.min(until - clock.wall(), longest));
  }

  /** How many machines people wait for; -1: they want none, whatever waits. */
  of(host: string): number {
    return this.#wishes.get(host)?.machines ?? 0;
  }

  all(): ReadonlyMap<string, number> {
    return new Map([...this.#wishes].map(([host, { machines }]) => [host, machines]));
  }

  /** `wait`: ms until it is over; null: it is not. */
  set(host: string, machines: number, wait: number | null = null): void {
    if (wait === null && this.of(host) === machines) return;
    const wish = { machines, until: wait === null ? null : Math.round(this.#clock.wall() + wait) };
    this.#store.transaction({ durable: true }, () => this.#store.machines.want(host, wish));
    this.#wishes.set(host, wish);
    if (wait === null) this.#ends.delete(host);
    else this.#ends.set(host, this.#clock.now() + wait);
  }

  /** Hosts whose wish has had its time. */
  over(): readonly string[] {
    return [...this.#ends].flatMap(([host, end]) => (this.#clock.now() >= end ? [host] : []));
  }

  /** Counts as over only after `ms`. */
  postpone(host: string, ms: number): void {
    this.#ends.set(host, this.#clock.now() + ms);
  }

  /** When the next one is over, by `clock.now()`. */
  get nextEnd(): number {
    return Math.min(...this.#ends.values());
  }
}
