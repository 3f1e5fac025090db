import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { type Scratch, scratch } from '../../../test/support/scratch.ts';
import { OneTimeFiles } from './one-time-files.ts';

let dir: Scratch;
let left: OneTimeFiles;
beforeEach(() => {
  dir = scratch();
  left = new OneTimeFiles(dir.path);
});
afterEach(() => dir[Symbol.dispose]());

const files = () => readdirSync(join(dir.path, 'left'));

it('is given out once, byte for byte, and leaves no file', async () => {
  const content = Buffer.from([0, 255, 10, 13, 128]);
  const key = left.leave('a-1', content);
  expect(await left.take('a-1', key)).toEqual(content);
  expect(await left.take('a-1', key)).toBe(null);
  expect(files()).toEqual([]);
});

it('is given to one of many who ask at once', async () => {
  const key = left.leave('a-1', 'a job');
  const answers = await Promise.all(Array.from({ length: 20 }, () => left.take('a-1', key)));
  expect(answers.filter((one) => one !== null).map(String)).toEqual(['a job']);
});

it('shows nothing on the disk, and opens with its own key and name only', async () => {
  const key = left.leave('a-1', 'the secret of a job');
  expect(readFileSync(join(dir.path, 'left', 'a-1'), 'latin1')).not.toContain('secret');
  const other = left.leave('a-2', 'another job');
  expect(await left.take('a-1', other)).toBe(null);
  left.leave('a-1', 'the secret of a job');
  expect(await left.take('a-1', key)).toBe(null);
});

it('stays for its own key if another one was tried', async () => {
  const key = left.leave('a-1', 'a job');
  expect(await left.take('a-1', 'another')).toBe(null);
  expect(files()).toEqual(['a-1']);
  expect(String(await left.take('a-1', key))).toBe('a job');
});

it('is given to its own key while others are tried, which touch nothing', async () => {
  for (let round = 0; round < 30; round += 1) {
    const key = left.leave('a-1', 'a job');
    const wrong = Array.from({ length: 5 }, () => left.take('a-1', 'another'));
    const right = left.take('a-1', key);
    const more = Array.from({ length: 5 }, () => left.take('a-1', 'another'));
    expect(String(await right)).toBe('a job');
    expect((await Promise.all([...wrong, ...more])).filter((one) => one !== null)).toEqual([]);
    expect(files()).toEqual([]);
  }
});

it('stays forgotten, or as it was left anew, although a wrong key was just tried', async () => {
  left.leave('a-1', 'a job');
  const forgotten = Array.from({ length: 5 }, () => left.take('a-1', 'another'));
  left.forget('a-1');
  await Promise.all(forgotten);
  expect(files()).toEqual([]);
  left.leave('a-1', 'a job');
  const replaced = Array.from({ length: 5 }, () => left.take('a-1', 'another'));
  const key = left.leave('a-1', 'a newer job');
  await Promise.all(replaced);
  expect(String(await left.take('a-1', key))).toBe('a newer job');
});

it('is removed with its name', () => {
  for (const name of ['lab-2', 'forge-1']) left.leave(name, 'a job');
  left.forget('lab-2');
  left.forget('lab-2');
  expect(files()).toEqual(['forge-1']);
});

it('has no name that leads elsewhere', () => {
  expect(() => left.leave('../key', 'x')).toThrow(/cannot be the name/);
});
