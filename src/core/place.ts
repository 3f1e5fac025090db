/**
 * Chooses devices that work well together. Pure. The worst pair counts first, since work on several devices goes at the pace of
 * their slowest connection; then all pairs; then what is left for others: a small choice breaks no large neighbourhood if it can
 * be avoided; then the order.
 */

/** How well two devices work together: the higher the better, 0 for not at all. Symmetric. */
export type Near<D> = (a: D, b: D) => number;

/** With more sets than this to compare, the set grows from each device by its nearest neighbour: 16 devices are always compared. */
const mostSets = 15_000;

/** `count` of `free`, in their order, to go with `kept`; null if there are not enough. Without `near` simply the first. */
export function place<D>(count: number, free: readonly D[], kept: readonly D[], near: Near<D> | null): D[] | null {
  if (count > free.length) return null;
  if (near === null || count <= 0 || count === free.length) return free.slice(0, Math.max(0, count));
  const all = [...free, ...kept];
  const table = all.map((one) => all.map((other) => (one === other ? 0 : near(one, other))));
  const between = (a: number, b: number): number => table[a]?.[b] ?? 0;
  const fixed = kept.map((_, at) => free.length + at);
  const indexes = free.map((_, at) => at);
  const sets = countOfSets(free.length, count) <= mostSets ? setsOf(count, free.length) : grownSets(count, indexes, fixed, between);
  let best: { readonly set: readonly number[]; readonly marks: readonly number[] } | null = null;
  for (const set of sets) {
    const marks = marksOf(set, fixed, indexes, between);
    if (best === null || isBetter(marks, best.marks)) best = { set, marks };
  }
  const chosen = new Set(best?.set);
  return free.filter((_, at) => chosen.has(at));
}

type Between = (a: number, b: number) => number;

/** Worst pair, all pairs, and what it takes from the rest: the higher the better. */
function marksOf(set: readonly number[], fixed: readonly number[], free: readonly number[], between: Between): number[] {
  const members = [...set, ...fixed];
  let [worst, inside, outside] = [Number.POSITIVE_INFINITY, 0, 0];
  members.forEach((one, at) => {
    for (let to = at + 1; to < members.length; to++) {
      const mark = between(one, members[to] ?? one);
      worst = Math.min(worst, mark);
      inside += mark;
    }
  });
  const taken = new Set(set);
  for (const one of set) for (const other of free) if (!taken.has(other)) outside += between(one, other);
  return [worst, inside, -outside];
}

function isBetter(some: readonly number[], others: readonly number[]): boolean {
  const at = some.findIndex((mark, n) => mark !== others[n]);
  return at >= 0 && (some[at] ?? 0) > (others[at] ?? 0);
}

function countOfSets(of: number, count: number): number {
  let sets = 1;
  for (let n = 1; n <= Math.min(count, of - count); n++) sets = (sets * (of - n + 1)) / n;
  return sets;
}

/** All sets of `count` numbers below `of`, those of the first numbers first. */
function* setsOf(count: number, of: number, from = 0): Generator<number[]> {
  if (count === 0) yield [];
  else
    for (let first = from; first <= of - count; first++)
      for (const rest of setsOf(count - 1, of, first + 1)) yield [first, ...rest];
}

function* grownSets(count: number, free: readonly number[], fixed: readonly number[], between: Between): Generator<number[]> {
  for (const begin of fixed.length > 0 ? [[]] : free.map((one) => [one])) {
    const set: number[] = [...begin];
    while (set.length < count) {
      const rest = free.filter((one) => !set.includes(one));
      const marks = rest.map((one) => [...fixed, ...set].reduce((sum, other) => sum + between(one, other), 0));
      set.push(rest[marks.indexOf(Math.max(...marks))] ?? 0);
    }
    yield set;
  }
}
