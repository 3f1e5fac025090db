import { PassThrough } from 'node:stream';
import { expect, test } from 'vitest';
import { linesOf } from './lines.ts';

test('a stream is read by lines, also a last one without an end', async () => {
  const stream = new PassThrough();
  stream.end('one\r\ntwo\n\nthree');
  const read: string[] = [];
  for await (const line of linesOf(stream)) read.push(line);
  expect(read).toEqual(['one', 'two', '', 'three']);
});

test('an error of the stream is thrown', async () => {
  const stream = new PassThrough();
  stream.write('one\n');
  const read: string[] = [];
  const reading = (async () => {
    for await (const line of linesOf(stream)) {
      read.push(line);
      stream.destroy(new Error('cut'));
    }
  })();
  await expect(reading).rejects.toThrow('cut');
  expect(read).toEqual(['one']);
});

test('an error after the last line that is wanted hurts nobody', async () => {
  const stream = new PassThrough();
  stream.write('one\ntwo\n');
  for await (const line of linesOf(stream)) {
    expect(line).toBe('one');
    break;
  }
  const closed = new Promise((resolve) => stream.on('close', resolve));
  stream.destroy(new Error('late'));
  await closed;
});
