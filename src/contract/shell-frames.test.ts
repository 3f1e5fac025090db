import { PassThrough } from 'node:stream';
import { expect, it } from 'vitest';
import { drained } from './shell-frames.ts';

it('waits for a full stream a hundred times without leaving a listener', async () => {
  const stream = new PassThrough({ highWaterMark: 1 });
  const count = () => stream.listenerCount('drain') + stream.listenerCount('close') + stream.listenerCount('error');
  const before = count();
  for (let times = 0; times < 100; times += 1) {
    expect(stream.write('xx')).toBe(false);
    const more = drained(stream);
    stream.read();
    await more;
  }
  expect(count()).toBe(before);
});

it('ends its wait when the stream closes', async () => {
  const stream = new PassThrough({ highWaterMark: 1 });
  stream.write('xx');
  const more = drained(stream);
  stream.destroy();
  await more;
});
