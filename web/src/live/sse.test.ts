import { expect, test } from 'vitest';
import { createEventParser } from './sse.ts';

test('reads events however their text is cut', () => {
  const text = 'id: 1-1\nevent: job\ndata: {"a":\ndata: 1}\n\n: alive\n\nevent:pool\r\ndata:{}\r\n\r\ndata: x\n\n';
  const whole = createEventParser()(text);
  expect(whole).toEqual([
    { name: 'job', data: '{"a":\n1}' },
    { name: 'pool', data: '{}' },
    { name: 'message', data: 'x' },
  ]);
  for (const size of [1, 2, 3, 7]) {
    const parse = createEventParser();
    const parts = Array.from({ length: Math.ceil(text.length / size) }, (_, at) => text.slice(at * size, (at + 1) * size));
    expect(parts.flatMap(parse)).toEqual(whole);
  }
});

test('an event without data does not count, and neither does a comment', () => {
  expect(createEventParser()('event: job\n\n:\n\nretry: 5\n\n')).toEqual([]);
});
