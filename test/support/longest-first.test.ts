import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { laneOf } from '../lanes.ts';
import { longest } from './longest-first.ts';

test('what runs first is there', () => {
  expect(longest.filter((file) => laneOf(file) === null || !existsSync(join(import.meta.dirname, '..', '..', file)))).toEqual([]);
});
