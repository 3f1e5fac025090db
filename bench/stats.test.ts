import { expect, test } from 'vitest';
import { inTurn, ratio, ratioText } from './stats.ts';

test('a ratio is that of pairs, whatever the machine did between them', () => {
  // Twice as slow from the third pair on: the mean of all floors would say something else of each.
  const found = ratio([
    [10, 9],
    [10, 9.5],
    [5, 4.5],
    [5, 4],
  ]);
  expect(found).toMatchObject({ pairs: 4, median: 0.9, min: 0.8, max: 0.95 });
  expect(ratioText(found)).toBe('90 % (median of 4 pairs, 80–95 %)');
});

test('floor and figure take turns, and neither always begins', async () => {
  const order: string[] = [];
  const note = (name: string, value: number) => async () => {
    order.push(name);
    return value;
  };
  expect(await inTurn(3, note('floor', 4), note('figure', 3))).toMatchObject({ median: 0.75, measured: Array(3).fill([4, 3]) });
  expect(order).toEqual(['floor', 'figure', 'figure', 'floor', 'floor', 'figure']);
});
