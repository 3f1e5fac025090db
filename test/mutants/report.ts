/** Which mutants to try, what came of each, and what that says of the tests. */
import type { Mutation, Numbered } from './mutate.ts';

export interface Result extends Pick<Mutation, 'key' | 'file' | 'line' | 'operator' | 'from' | 'to'> {
  /** Test files that are red with it, sorted; none when it survives. */
  readonly killedBy: readonly string[];
  /** How many test files reach it; 0 when nothing can kill it. */
  readonly reachedBy: number;
}

/** What `--json` writes and `--against` reads. */
export interface Report {
  readonly folder: string;
  readonly results: readonly Result[];
  /** How many mutants only this test file kills; a file with 0 is one that may go, as far as this sample says. */
  readonly onlyBy: Readonly<Record<string, number>>;
}

/** The same mutants whenever seed and source are the same. */
export function sampleOf(mutations: readonly Mutation[], size: number, seed: number): Numbered[] {
  // mulberry32, as in support/dice.ts, which is for use inside vitest.
  let state = seed | 0;
  const random = (): number => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  const drawn = mutations.map((mutation) => ({ mutation, at: random() })).sort((a, b) => a.at - b.at);
  return inOrder(drawn.slice(0, size).map(({ mutation }) => mutation));
}

/** The mutants of an earlier report that were killed then and that the source still has. */
export function knownOf(mutations: readonly Mutation[], before: Report): Numbered[] {
  const killed = new Set(before.results.filter(({ killedBy }) => killedBy.length > 0).map(({ key }) => key));
  return inOrder(mutations.filter(({ key }) => killed.has(key)));
}

function inOrder(mutations: readonly Mutation[]): Numbered[] {
  return mutations.toSorted((a, b) => a.file.localeCompare(b.file) || a.start - b.start).map((one, number) => ({ ...one, number }));
}

export function reportOf(folder: string, results: readonly Result[], tests: readonly string[]): Report {
  const onlyBy = Object.fromEntries(tests.toSorted().map((file) => [file, 0]));
  for (const { killedBy } of results) {
    const [file] = killedBy;
    if (file !== undefined && killedBy.length === 1) onlyBy[file] = (onlyBy[file] ?? 0) + 1;
  }
  return { folder, results, onlyBy };
}

export interface Comparison {
  /** Killed before, and survives now. */
  readonly lost: readonly Result[];
  /** How many are killed before and now. */
  readonly held: number;
  /** Keys of those whose place in the source is gone or reads otherwise. */
  readonly gone: readonly string[];
}

export function compare(before: Report, now: readonly Result[]): Comparison {
  const known = new Map(now.map((one) => [one.key, one]));
  const killed = before.results.filter(({ killedBy }) => killedBy.length > 0);
  const found = killed.flatMap(({ key }) => known.get(key) ?? []);
  return {
    lost: found.filter(({ killedBy }) => killedBy.length === 0),
    held: found.filter(({ killedBy }) => killedBy.length > 0).length,
    gone: killed.filter(({ key }) => !known.has(key)).map(({ key }) => key),
  };
}

/** One line for a person. */
export function lineOf({ file, line, operator, from, to, killedBy, reachedBy }: Result): string {
  const short = (text: string): string => {
    const flat = text.replaceAll(/\s+/g, ' ');
    return flat.length > 50 ? `${flat.slice(0, 49)}…` : flat;
  };
  const change = to === '' ? `without ${short(from)}` : `${short(from)} → ${short(to)}`;
  const came =
    killedBy.length > 0 ? killedBy.join(' ') : reachedBy === 0 ? 'no test reaches it' : `alive after ${reachedBy} test files`;
  return `${killedBy.length > 0 ? '✓' : '✗'} ${file}:${line} ${operator}: ${change}\n      ${came}`;
}
