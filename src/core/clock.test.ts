import { getEventListeners } from 'node:events';
import { describe, expect, test } from 'vitest';
import { handClock } from '../../test/kit/core.ts';
import { deadline, sleep } from './clock.ts';

const listeners = (signal: AbortSignal): number => getEventListeners(signal, 'abort').length;

describe('sleep', () => {
  test('ends when its time is over, and leaves no listener on the signal', async () => {
    const clock = handClock();
    const { signal } = new AbortController();
    let isOver = false;
    const slept = sleep(clock, 500, signal).then(() => {
      isOver = true;
    });
    clock.advance(499);
    await Promise.resolve();
    expect(isOver).toBe(false);
    clock.advance(1);
    await slept;
    expect(listeners(signal)).toBe(0);
  });

  test('ends at an abort, and leaves no timer', async () => {
    const clock = handClock();
    const controller = new AbortController();
    const slept = sleep(clock, 500, controller.signal);
    controller.abort();
    await slept;
    expect(clock.next()).toBeNull();
    await sleep(clock, 500, controller.signal);
    expect(clock.next()).toBeNull();
  });
});

describe('deadline', () => {
  test('aborts with a TimeoutError when its time is over', () => {
    const clock = handClock();
    using limit = deadline(clock, 1_000);
    expect([limit.passed, limit.signal.aborted]).toEqual([false, false]);
    clock.advance(1_000);
    expect([limit.passed, limit.signal.aborted]).toEqual([true, true]);
    expect(limit.signal.reason).toMatchObject({ name: 'TimeoutError' });
  });

  test('aborts as the outer signal does, with its reason, and has not passed', () => {
    const clock = handClock();
    const outer = new AbortController();
    using limit = deadline(clock, 1_000, outer.signal);
    outer.abort(new Error('stopped'));
    expect(limit.signal.reason).toEqual(new Error('stopped'));
    clock.advance(2_000);
    expect(limit.passed).toBe(false);
    using late = deadline(clock, 1_000, outer.signal);
    expect(late.signal.aborted).toBe(true);
    expect(clock.next()).toBeNull();
  });

  test('leaves no timer and no listener', () => {
    const clock = handClock();
    const outer = new AbortController();
    {
      using _ = deadline(clock, 1_000, outer.signal);
      expect([clock.next(), listeners(outer.signal)]).toEqual([1_000, 1]);
    }
    expect([clock.next(), listeners(outer.signal)]).toEqual([null, 0]);
  });
});
