/** How many machines people want, by host, and until when. A wish is on disk before anything is made for it. */
import type { Clock } from '../core/clock.ts';
import type { Wish } from '../store/machine.ts';
import type { Store } from '../store/store.ts';

/** ms; a wall clock that was wrong makes no wish longer. */
const longest = 86_400_000;

export function createWishes(clock: Clock, store: Pick<Store, 'machines' | 'transaction'>) {
  const wishes: Map<string, Wish> = store.machines.wanted();
  /** When they are over, by `clock.now()`, which no step of the wall clock changes. */
  const ends = new Map<string, number>();
  for (const [host, { until }] of wishes) if (until !== null) ends.set(host, clock.now() + Math.min(until - clock.wall(), longest));

  /** How many machines people wait for; -1: they want none, whatever waits. */
  const of = (host: string): number => wishes.get(host)?.machines ?? 0;

  return {
    of,
    all: (): ReadonlyMap<string, number> => new Map([...wishes].map(([host, { machines }]) => [host, machines])),
    /** `wait`: ms until it is over; null: it is not. */
    set(host: string, machines: number, wait: number | null = null): void {
      if (wait === null && of(host) === machines) return;
      const wish = { machines, until: wait === null ? null : Math.round(clock.wall() + wait) };
      store.transaction({ durable: true }, () => store.machines.want(host, wish));
      wishes.set(host, wish);
      if (wait === null) ends.delete(host);
      else ends.set(host, clock.now() + wait);
    },
    /** Hosts whose wish has had its time. */
    over: (): readonly string[] => [...ends].flatMap(([host, end]) => (clock.now() >= end ? [host] : [])),
    /** Counts as over only after `ms`. */
    postpone: (host: string, ms: number) => void ends.set(host, clock.now() + ms),
    /** When the next one is over, by `clock.now()`. */
    get nextEnd(): number {
      return Math.min(...ends.values());
    },
  };
}
