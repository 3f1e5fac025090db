/**
 * Waiting jobs that no pool of the config can run, by what a service shows with looks that it makes anyway. A job that has just come is
 * left out: another host may be about to take it.
 */
import type { Clock } from '../../core/clock.ts';
import type { UnfitJobs } from '../../ports/ci-service.ts';

/** ms that a job must wait before it is shown: people are warned of it, and another host may only be busy or about to start. */
const patience = 5 * 60_000;
/** Kinds of jobs that are shown one by one, words of what a job asks for, and characters of each. */
const [mostKinds, mostWords, longestWord] = [5, 8, 80];

/** Jobs that are alike, or one of them. */
export interface Unfit {
  readonly jobs: number;
  /** For after "jobs wait": where, and for what. The same for jobs that are alike. */
  readonly how: string;
}

interface Seen extends Unfit {
  /** The clock's `now`. */
  readonly since: number;
}

export class UnfitWatch {
  readonly #clock: Pick<Clock, 'now'>;
  /** What to compare, as a sentence. */
  readonly #compare: string;
  readonly #seen = new Map<string, ReadonlyMap<string, Seen>>();

  constructor(clock: Pick<Clock, 'now'>, compare: string) {
    this.#clock = clock;
    this.#compare = compare;
  }

  /**
   * All that a look at a place shows, each by a key that stays the same. A look that failed is not told: what was seen before stays.
   * `listed`: the keys of all that a look has listed before it was cut short, which says nothing of the rest; null: it listed all.
   */
  saw(place: string, now: ReadonlyMap<string, Unfit>, listed: ReadonlySet<string> | null = null): void {
    const before = this.#seen.get(place) ?? new Map<string, Seen>();
    const at = this.#clock.now();
    const kept = listed === null ? [] : [...before].filter(([key]) => !listed.has(key));
    const found = [...now].map(([key, one]) => [key, { ...one, since: before.get(key)?.since ?? at }] as const);
    this.#seen.set(place, new Map([...kept, ...found]));
  }

  list(): UnfitJobs[] {
    const old = [...this.#seen.values()]
      .flatMap((one) => [...one.values()])
      .filter(({ since }) => this.#clock.now() - since >= patience);
    const kinds = [...Map.groupBy(old, ({ how }) => how)].map(([how, same]) => ({ how, jobs: sum(same) }));
    const hint = `${this.#compare} If another host is to run such jobs, nothing is wrong.`;
    const rest = kinds.slice(mostKinds);
    const more = rest.length === 0 ? [] : [{ how: 'for other agents that no pool here has', jobs: sum(rest) }];
    return [...kinds.slice(0, mostKinds), ...more].map((one) => ({ ...one, hint }));
  }
}

/** `where`: such as `queue "default"`. `asks`: foreign words, which say what agent the job wants. */
export function unfitHow(where: string, asks: readonly string[]): string {
  const words = asks.slice(0, mostWords).map(plainWord);
  const what = [...words, ...(asks.length > mostWords ? ['more'] : [])].join(', ');
  return `in ${printable(where)} for an agent with ${what}, which no pool here has`;
}

/** A foreign word, cut, and without characters that move a cursor or turn the direction of text. */
export function plainWord(word: string): string {
  return [...printable(word)].slice(0, longestWord).join('');
}

function printable(text: string): string {
  return text.replaceAll(/\p{C}/gu, ' ');
}

function sum(found: readonly { readonly jobs: number }[]): number {
  return found.reduce((all, { jobs }) => all + jobs, 0);
}
