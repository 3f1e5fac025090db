import { afterEach, beforeEach, expect, it } from 'vitest';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import type { LogFollowers } from '../logs/followers.ts';
import { LogFile, logPath } from '../logs/log-file.ts';
import { lastWords } from './logs.ts';

let dir: Scratch;
beforeEach(() => {
  dir = scratch();
});
afterEach(() => dir[Symbol.dispose]());

const none = { get: () => undefined } as unknown as LogFollowers;

function write(...texts: readonly string[]): LogFile {
  const log = new LogFile(logPath(dir.path, 'a1'));
  for (const text of texts) {
    const bytes = Buffer.from(text);
    log.append({ stream: 'stdout', time: 1n, bytes }, bytes);
  }
  return log;
}

it('says nothing of an agent that said nothing', async () => {
  expect(await lastWords(none, dir.path, 'a1')).toBe('');
  write('\n \n').close();
  expect(await lastWords(none, dir.path, 'a1')).toBe('');
});

it('gives the last six lines, without empty ones, colours, and what would move a cursor', async () => {
  write('one\ntwo\nthree\n', '\u001b[31mfour\u001b[0m\n\n', 'five\rsix\u0007\nseven\n', 'eight\n  nine  \n').close();
  expect(await lastWords(none, dir.path, 'a1')).toBe('three\nfour\nfivesix\nseven\neight\nnine');
});

it('gives at most a thousand characters, however much there was', async () => {
  write('x'.repeat(100_000), `${'y'.repeat(2_000)} the end`).close();
  const words = await lastWords(none, dir.path, 'a1');
  expect(words).toHaveLength(1_000);
  expect(words.endsWith('y the end')).toBe(true);
});

it('reads the log of an agent that is still followed', async () => {
  const file = write('still here\n');
  const keepers = { get: () => ({ file }) } as unknown as LogFollowers;
  expect(await lastWords(keepers, dir.path, 'a1')).toBe('still here');
  file.close();
});
