import { EventEmitter } from 'node:events';
import type { ServerResponse } from 'node:http';
import { setImmediate as turn } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { handClock } from '../../test/kit/core.ts';
import type { CallerAdmission } from './access.ts';
import { Shares } from './shares.ts';

const response = (destroyed = false) => Object.assign(new EventEmitter(), { destroyed }) as unknown as ServerResponse;

it('what a client reads, or leaves behind, counts no longer', () => {
  const shares = new Shares(handClock());
  const half = 40 << 20;
  // It left while it waited for its turn: its `close` is over.
  shares.takeBytes(half, 'reader', response(true));
  const unread = response();
  shares.takeBytes(half, 'reader', unread);
  expect(() => shares.takeBytes(half, 'reader', response())).toThrow('Cannot answer now');
  shares.takeBytes(half, 'other', response());
  unread.emit('close');
  shares.takeBytes(half, 'reader', response());
});

it('a reader that asks again and again, and waits for each answer, has its fifth of the time', async () => {
  const clock = handClock();
  const shares = new Shares(clock);
  const reader = { caller: { role: 'read' }, id: 'reader' } as unknown as CallerAdmission;
  const answered = async () => {
    let isOver = false;
    void shares.turn(reader).then(() => {
      isOver = true;
      // What the answer costs.
      clock.advance(19);
    });
    for (let at = 0; at < 5; at++) await turn();
    return isOver;
  };
  expect(await answered()).toBe(true);
  expect(await answered()).toBe(true);
  expect(await answered()).toBe(false);
  clock.advance(71);
  for (let at = 0; at < 5; at++) await turn();
  clock.advance(10_000);
  for (let at = 0; at < 5; at++) await turn();
  expect(await answered()).toBe(true);
});
