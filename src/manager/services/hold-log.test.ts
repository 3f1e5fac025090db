import { expect, test } from 'vitest';
import { handClock } from '../../../test/kit/core.ts';
import { createHoldLog } from './ci-events.ts';

function open() {
  const clock = handClock();
  const lines: string[] = [];
  const keep = (text: string, fields?: Record<string, unknown>) => void lines.push(`${text}: ${fields?.reason ?? ''}`);
  return { clock, lines, ...createHoldLog(clock, { info: keep, warn: keep }) };
}

test('a quick start causes no warning', () => {
  const { clock, lines, tell } = open();
  tell('ci', 'looking for the agent', true);
  clock.advance(2_000);
  tell('ci', 'looking for the agent', true);
  tell('ci', null, false);
  clock.advance(60_000);
  expect(lines).toEqual([]);
});

test('a slow start causes a warning with its current reason, and its end is logged', () => {
  const { clock, lines, tell } = open();
  tell('ci', 'looking for the agent', true);
  clock.advance(4_000);
  tell('ci', 'looking for the agent', true);
  clock.advance(1_000);
  tell('ci', null, false);
  expect(lines).toEqual(['pool waits for its CI service: looking for the agent', 'CI service is back: ']);
});

test('a problem is logged at once, even during a start', () => {
  const { clock, lines, tell } = open();
  tell('ci', 'looking for the agent', true);
  tell('ci', 'the token is refused', false);
  clock.advance(60_000);
  expect(lines).toEqual(['pool waits for its CI service: the token is refused']);
});

test('nothing is logged after closing', () => {
  const { clock, lines, tell, close } = open();
  tell('ci', 'looking for the agent', true);
  close();
  clock.advance(60_000);
  expect(lines).toEqual([]);
});
