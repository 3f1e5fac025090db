import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { type Near, place } from './place.ts';

/** Cards whose name says where they are: node, root, number, so that `a1x` and `a1y` share a root, `a1x` and `a2x` a node. */
const tree: Near<string> = (a, b) => (a.slice(0, 2) === b.slice(0, 2) ? 2 : a[0] === b[0] ? 1 : 0);

describe('what a job gets', () => {
  test('is as close as there is: the same root before the same node before the rest', () => {
    const host = ['a1x', 'a2x', 'b1x', 'b1y', 'b2x', 'b2y'];
    expect(place(2, host, [], tree)).toEqual(['b1x', 'b1y']);
    expect(place(4, host, [], tree)).toEqual(['b1x', 'b1y', 'b2x', 'b2y']);
    expect(place(2, ['a1x', 'b1x', 'a2x'], [], tree)).toEqual(['a1x', 'a2x']);
    expect(place(2, ['a1x', 'b1x'], [], tree)).toEqual(['a1x', 'b1x']);
    expect(place(3, ['a1x', 'b1x'], [], tree)).toBeNull();
  });

  test('counts by its worst pair: a clique of close ones before two pairs that are far apart', () => {
    const near: Near<number> = (a, b) => {
      const [low, high] = [Math.min(a, b), Math.max(a, b)];
      if (low >= 4) return 1;
      return low % 2 === 0 && high === low + 1 ? 9 : 0;
    };
    expect(place(4, [0, 1, 2, 3, 4, 5, 6, 7], [], near)).toEqual([4, 5, 6, 7]);
  });

  test('leaves large neighbourhoods whole: one card comes from where the fewest others are free', () => {
    expect(place(1, ['a1x', 'a1y', 'a2x', 'a2y', 'b1x'], [], tree)).toEqual(['b1x']);
    expect(place(1, ['a1x', 'a1y', 'a2x'], [], tree)).toEqual(['a2x']);
    // Pairs that are not whole any more come before whole ones.
    expect(place(1, ['a1x', 'a1y', 'b1y', 'b2x'], [], tree)).toEqual(['b1y']);
  });

  test('goes with what it has', () => {
    expect(place(1, ['a1x', 'b1x', 'b2x'], ['b2y'], tree)).toEqual(['b2x']);
  });

  test('are simply the first where nothing is known', () => {
    expect(place(2, ['c', 'b', 'a'], [], null)).toEqual(['c', 'b']);
    expect(place(2, ['c', 'b', 'a'], [], () => 0)).toEqual(['c', 'b']);
    expect(place(0, ['a'], [], tree)).toEqual([]);
  });
});

test('no other set is better: neither its worst pair, nor, with that, all pairs, nor what it leaves', () => {
  const marks = fc.array(fc.integer({ min: 0, max: 3 }), { minLength: 28, maxLength: 28 });
  fc.assert(
    fc.property(marks, fc.integer({ min: 1, max: 8 }), fc.integer({ min: 1, max: 8 }), (table, size, count) => {
      fc.pre(count <= size);
      const near: Near<number> = (a, b) => {
        const [low, high] = [Math.min(a, b), Math.max(a, b)];
        return low === high ? 0 : (table[(high * (high - 1)) / 2 + low] ?? 0);
      };
      const free = Array.from({ length: size }, (_, n) => n);
      const worth = (set: readonly number[]): number => {
        const pairs = set.flatMap((one, at) => set.slice(at + 1).map((other) => near(one, other)));
        const sum = pairs.reduce((all, mark) => all + mark, 0);
        const broken = set.flatMap((one) => free.filter((other) => !set.includes(other)).map((other) => near(one, other)));
        return Math.min(9, ...pairs) * 1e6 + sum * 1e3 - broken.reduce((all, mark) => all + mark, 0);
      };
      const best = worth(place(count, free, [], near) ?? []);
      for (let bits = 0; bits < 2 ** size; bits++) {
        const set = free.filter((n) => (bits & (2 ** n)) !== 0);
        if (set.length === count) expect(worth(set)).toBeLessThanOrEqual(best);
      }
    }),
    { numRuns: 300 },
  );
});

test('so many devices that sets are not compared still give as many as asked, close together', () => {
  const host = Array.from({ length: 56 }, (_, n) => n);
  const near: Near<number> = (a, b) => (Math.floor(a / 7) === Math.floor(b / 7) ? 1 : 0);
  const chosen = place(7, host, [], near) ?? [];
  expect(chosen).toHaveLength(7);
  expect(new Set(chosen.map((n) => Math.floor(n / 7))).size).toBe(1);
});
