import { describe, expect, it } from 'vitest';
import { type Contender, hours, nextOf, overLimit, spentAt, spentBy } from './fair-share.ts';

const hour = 3_600_000;
const day = 24 * hour;
const one = (who: string, more: Partial<Contender> = {}): Contender => ({
  who,
  priority: 0,
  used: 0,
  weight: 1,
  since: 0,
  ...more,
});
const next = (all: Contender[], now = 0) => nextOf(all, now, day)?.next.who;

describe('what was used', () => {
  it('counts half after each half-life', () => {
    expect(spentAt({ amount: 8, at: 0 }, day, day)).toBe(4);
    expect(spentAt({ amount: 8, at: 0 }, 3 * day, day)).toBe(1);
    expect(spentAt({ amount: 8, at: day }, 0, day)).toBe(8);
  });

  it('is nearly card-hours for a short job, and never more than a half-life and a half of a long one', () => {
    expect(spentBy({ cards: 2, from: 0, to: hour }, day)).toBeCloseTo(1.97, 2);
    expect(spentBy({ cards: 1, from: 0, to: 100 * day }, day)).toBeCloseTo(24 / Math.LN2, 5);
    expect(spentBy({ cards: 1, from: hour, to: 0 }, day)).toBe(0);
  });

  it('is the same whether it is counted at once or in pieces, as over a restart', () => {
    const whole = spentBy({ cards: 3, from: 0, to: 10 * hour }, day);
    const first = spentAt({ amount: spentBy({ cards: 3, from: 0, to: 4 * hour }, day), at: 4 * hour }, 10 * hour, day);
    expect(first + spentBy({ cards: 3, from: 4 * hour, to: 10 * hour }, day)).toBeCloseTo(whole, 9);
  });

  it('is said with one digit', () => {
    expect([hours(0.04), hours(3.44), hours(1234.5)]).toEqual(['0.0', '3.4', '1235']);
  });
});

describe('next', () => {
  it('is who has used least for the weight, then who came first', () => {
    expect(next([])).toBe(undefined);
    expect(next([one('ada', { used: 2 }), one('bob', { used: 1 })])).toBe('bob');
    expect(next([one('ada', { used: 2, weight: 4 }), one('bob', { used: 1 })])).toBe('ada');
    expect(next([one('ada'), one('bob')])).toBe('ada');
  });

  it('is a job of a higher priority before all others', () => {
    expect(next([one('ada', { used: 0 }), one('bob', { used: 9, priority: 1 })])).toBe('bob');
    expect(next([one('ada', { since: 0 }), one('bob', { since: 2 * day, priority: 1 })], 2 * day)).toBe('bob');
  });

  it('is who has got nothing for a half-life, the longest first', () => {
    const all = [one('new', { since: 2 * day }), one('old', { used: 99, since: 1 }), one('older', { used: 999, since: 0 })];
    expect(nextOf(all, day, day)).toMatchObject({ next: { who: 'new' }, overdue: false });
    expect(nextOf(all, 2 * day, day)).toMatchObject({ next: { who: 'older' }, overdue: true });
  });
});

/** One agent, and people who always have jobs: who gets how many of them. */
function play(people: Record<string, { weight?: number; run: number; used?: number; from?: number }>, until: number) {
  const spent = new Map(Object.entries(people).map(([who, { used = 0 }]) => [who, { amount: used, at: 0 }]));
  const since = new Map(Object.keys(people).map((who) => [who, people[who]?.from ?? 0]));
  const got: Record<string, number> = {};
  const longest: Record<string, number> = {};
  for (let now = 0; now < until; ) {
    const waiting = Object.entries(people).filter(([, { from = 0 }]) => from <= now);
    const found = nextOf(
      waiting.map(([who, { weight = 1 }]) => {
        const its = spent.get(who) ?? { amount: 0, at: 0 };
        return one(who, { weight, used: spentAt(its, now, day), since: since.get(who) ?? 0 });
      }),
      now,
      day,
    );
    if (found === null) throw new Error('nobody is next');
    const { who } = found.next;
    longest[who] = Math.max(longest[who] ?? 0, now - found.next.since);
    const to = now + (people[who]?.run ?? hour);
    spent.set(who, {
      amount: spentAt(spent.get(who) ?? { amount: 0, at: 0 }, to, day) + spentBy({ cards: 1, from: now, to }, day),
      at: to,
    });
    since.set(who, now);
    got[who] = (got[who] ?? 0) + (to - now);
    now = to;
  }
  return { got, longest };
}

describe('over time', () => {
  it('people get equal hours, however long their jobs are', () => {
    const { got } = play({ ada: { run: hour }, bob: { run: hour / 4 } }, 30 * day);
    expect((got.ada ?? 0) / (got.bob ?? 1)).toBeCloseTo(1, 1);
  });

  it('weights are shares', () => {
    const { got } = play({ ada: { run: hour, weight: 3 }, bob: { run: hour } }, 60 * day);
    expect(Math.round((got.ada ?? 0) / (got.bob ?? 1))).toBe(3);
  });

  it('who comes late does not wait for what others have had, nor gets it all', () => {
    const { got, longest } = play({ ada: { run: hour }, bob: { run: hour, from: 20 * day } }, 40 * day);
    expect(longest.bob).toBeLessThanOrEqual(2 * hour);
    expect(got.bob).toBeLessThan(14 * day);
    expect(got.bob).toBeGreaterThan(9 * day);
  });

  it('nobody waits for longer than a half-life and a job, whatever he has used and how many others come', () => {
    const newcomers = Object.fromEntries(Array.from({ length: 60 }, (_, n) => [`new${n}`, { run: hour, from: n * 12 * hour }]));
    const { longest } = play({ old: { run: hour, used: 100_000 }, ...newcomers }, 30 * day);
    expect(longest.old).toBeLessThan(day + 70 * hour);
    expect(longest.old).toBeGreaterThan(0);
  });
});

describe('cards at once', () => {
  const ada = { whose: 'ada', most: 2, inUse: 1 };

  it('are given up to the limit, and a job without cards never waits for them', () => {
    expect(overLimit(1, [ada])).toBe(null);
    expect(overLimit(9, [{ ...ada, most: null }])).toBe(null);
    expect(overLimit(0, [{ ...ada, most: 0 }])).toBe(null);
  });

  it('say who has how many', () => {
    expect(overLimit(2, [ada])).toBe('ada has 1 of at most 2 cards at once, and it asks for 2');
    expect(
      overLimit(1, [
        { ...ada, most: null },
        { whose: 'the group "lab"', most: 1, inUse: 1 },
      ]),
    ).toBe('the group "lab" has 1 of at most 1 card at once, and it asks for one');
    expect(overLimit(3, [ada])).toBe('it asks for 3 cards, and ada may have 2 at once');
    expect(overLimit(Number.POSITIVE_INFINITY, [ada])).toBe('it asks for all cards, and ada may have 2 at once');
  });
});
