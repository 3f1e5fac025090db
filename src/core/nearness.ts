/** Which of the free devices work best together. Pure. */

/** How well two devices work together, the higher the better, 0 for not at all. Symmetric. */
export type Near<D> = (a: D, b: D) => number;

/**
 * `count` of `free` that sit together and with `kept`; null when there are not so many. Of equal choices the one that leaves
 * other neighbours together, then the one that comes first. Without `near` simply the first.
 */
export function pick<D>(free: readonly D[], count: number, kept: readonly D[], near: Near<D> | null): D[] | null {
  if (count > free.length) return null;
  if (near === null || count <= 0 || count === free.length) return free.slice(0, Math.max(0, count));
  // With many devices every set cannot be looked at: each is the begin of one that grows by its nearest neighbour.
  const begins = kept.length > 0 ? [[]] : free.map((device) => [device]);
  let best: { set: D[]; inside: number; outside: number } | null = null;
  for (const begin of begins) {
    const set = grow(begin, free, count, kept, near);
    const inside = between([...kept, ...set], [...kept, ...set], near);
    const outside = between(
      set,
      free.filter((device) => !set.includes(device)),
      near,
    );
    if (best === null || inside > best.inside || (inside === best.inside && outside < best.outside))
      best = { set, inside, outside };
  }
  return best?.set.toSorted((a, b) => free.indexOf(a) - free.indexOf(b)) ?? null;
}

function grow<D>(begin: readonly D[], free: readonly D[], count: number, kept: readonly D[], near: Near<D>): D[] {
  const set = [...begin];
  while (set.length < count) {
    const rest = free.filter((device) => !set.includes(device));
    const marks = rest.map((device) => between([device], [...kept, ...set], near));
    const next = rest[marks.indexOf(Math.max(...marks))];
    if (next === undefined) break;
    set.push(next);
  }
  return set;
}

function between<D>(some: readonly D[], others: readonly D[], near: Near<D>): number {
  let sum = 0;
  for (const one of some) for (const other of others) if (one !== other) sum += near(one, other);
  return sum;
}
