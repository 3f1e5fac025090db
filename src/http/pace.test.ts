import { expect, test } from 'vitest';
import { handClock } from '../../test/kit/core.ts';
import { createPace } from './pace.ts';

test('whatever else the process did meanwhile, an end waits for seconds at most', async () => {
  const clock = handClock();
  const pace = createPace(clock, async () => {});
  const since = pace.now();
  clock.advance(60_000);
  let isOver = false;
  const waiting = pace.spent(since).then(() => {
    isOver = true;
  });
  await Promise.resolve();
  await Promise.resolve();
  clock.advance(2_400);
  await Promise.resolve();
  expect(isOver).toBe(false);
  clock.advance(100);
  await waiting;
});
