import { expect, test } from 'vitest';
import { lacksInodes, roomOf, roomText } from './disk-room.ts';

const seen = { blocks: 100, bavail: 80, files: 1_000, ffree: 900 };

test('the scarcer of space and inodes counts', () => {
  expect(roomOf('/d', seen)).toEqual({ path: '/d', free: 0.8 });
  const few = roomOf('/d', { ...seen, ffree: 30 });
  expect(few).toEqual({ path: '/d', free: 0.03, of: 'inodes' });
  expect(few && roomText(few)).toBe('has 3 % of its inodes free');
  expect(roomOf('/d', { ...seen, files: 0, ffree: 0 })).toEqual({ path: '/d', free: 0.8 });
  expect(roomOf('/d', { ...seen, blocks: 0 })).toBeNull();
});

test('a file that cannot be made for lack of inodes', () => {
  expect(lacksInodes('/d', () => ({ ...seen, ffree: 0 }))).toBe(true);
  expect(lacksInodes('/d', () => seen)).toBe(false);
  expect(lacksInodes('/d', () => ({ ...seen, files: 0, ffree: 0 }))).toBe(false);
});
