/**
 * Whose job is next, where people share: who has used least lately, for the weight of the group. What was used counts half after each
 * half-life, so nobody pays for ever, and who has got nothing for a whole half-life goes first, so nobody waits for ever. Pure: time is
 * passed in.
 */

/** Hours of cards or agents, with what is older counting less, as of `at` (wall clock, ms). */
export interface Spent {
  readonly amount: number;
  readonly at: number;
}

const hour = 3_600_000;

/** What is left of it later. */
export function spentAt({ amount, at }: Spent, now: number, halfLife: number): number {
  return amount * 2 ** (-Math.max(0, now - at) / halfLife);
}

/** What so many cards from one time to another count at the end of it: the sum of what each moment counts. */
export function spentBy(
  { cards, from, to }: { readonly cards: number; readonly from: number; readonly to: number },
  halfLife: number,
): number {
  const scale = halfLife / Math.LN2;
  return (cards * scale * (1 - 2 ** (-Math.max(0, to - from) / halfLife))) / hour;
}

/** The first job of somebody in one pool. */
export interface Contender {
  readonly who: string;
  readonly priority: number;
  /** Hours, as of now. */
  readonly used: number;
  readonly weight: number;
  /** When somebody last got an agent of the pool, or began to wait. */
  readonly since: number;
}

/** Who is next, in the order of `contenders` where nothing else decides; null if nobody waits. `overdue`: for having waited so long. */
export function nextOf<C extends Contender>(
  contenders: readonly C[],
  now: number,
  halfLife: number,
): { readonly next: C; readonly overdue: boolean } | null {
  const highest = Math.max(...contenders.map(({ priority }) => priority));
  const equal = contenders.filter(({ priority }) => priority === highest);
  const waited = least(equal, ({ since }) => since);
  if (waited !== null && now - waited.since > halfLife) return { next: waited, overdue: true };
  const next = least(equal, ({ used, weight }) => used / weight);
  return next === null ? null : { next, overdue: false };
}

/** The first of those with the least. */
function least<C>(all: readonly C[], by: (one: C) => number): C | null {
  return all.reduce<C | null>((best, one) => (best === null || by(one) < by(best) ? one : best), null);
}

/** Why cards that are asked for cannot be given now, as a clause; null: they can. */
export function overLimit(
  asked: number,
  limits: readonly { readonly whose: string; readonly most: number | null; readonly inUse: number }[],
): string | null {
  for (const { whose, most, inUse } of limits) {
    if (most === null || asked === 0 || inUse + asked <= most) continue;
    const many = asked === Number.POSITIVE_INFINITY ? 'all cards' : asked === 1 ? 'one' : `${asked}`;
    if (asked > most)
      return `it asks for ${many}${asked > 1 && Number.isFinite(asked) ? ' cards' : ''}, and ${whose} may have ${most} at once`;
    return `${whose} has ${inUse} of at most ${most} ${most === 1 ? 'card' : 'cards'} at once, and it asks for ${many}`;
  }
  return null;
}

/** Hours in words, such as `3.4`. */
export function hours(amount: number): string {
  return amount >= 100 ? String(Math.round(amount)) : amount.toFixed(1);
}
