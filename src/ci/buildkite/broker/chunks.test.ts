import { expect, it } from 'vitest';
import { logAfter } from './chunks.ts';

it('chunks overtake each other', () => {
  const second = logAfter({ sequence: 0, offset: 0 }, 'sequence=2&offset=100&size=20');
  expect(second).toEqual({ sequence: 2, offset: 120 });
  expect(logAfter(second, 'sequence=1&offset=0&size=100')).toBe(second);
});

it.each([
  '',
  'sequence=1',
  'sequence=1&offset=-1&size=2',
  'sequence=1e9&offset=0&size=1',
  'sequence=1&offset=0&size=99999999999999999',
])('what is no count changes nothing: %s', (query) => {
  const log = { sequence: 3, offset: 9 };
  expect(logAfter(log, query)).toBe(log);
});
