import { expect, it } from 'vitest';
import { eachScratch } from '../../test/support/each-scratch.ts';
import { createLogFolder, type LogFile } from './log-file.ts';
import { outputTail } from './select.ts';

const dir = eachScratch();

const words = () => outputTail(createLogFolder(dir.path).read('a1'));

function write(...texts: readonly string[]): LogFile {
  const log = createLogFolder(dir.path).open('a1');
  for (const text of texts) {
    const bytes = Buffer.from(text);
    log.append({ stream: 'stdout', time: 1n, bytes }, bytes);
  }
  return log;
}

it('is empty for an agent without output', async () => {
  expect(await words()).toBe('');
  write('\n \n').close();
  expect(await words()).toBe('');
});

it('gives the last six lines, without empty ones, colours, and control characters', async () => {
  write('one\ntwo\nthree\n', '\u001b[31mfour\u001b[0m\n\n', 'five\rsix\u0007\nseven\n', 'eight\n  nine  \n').close();
  expect(await words()).toBe('three\nfour\nfivesix\nseven\neight\nnine');
});

it('gives at most a thousand characters, however much there was', async () => {
  write('x'.repeat(100_000), `${'y'.repeat(2_000)} the end`).close();
  const said = await words();
  expect(said).toHaveLength(1_000);
  expect(said.endsWith('y the end')).toBe(true);
});

it('reads the log of an agent that is still followed', async () => {
  const file = write('still here\n');
  expect(await outputTail(file.read())).toBe('still here');
  file.close();
});
