import { PassThrough } from 'node:stream';
import { expect, test } from 'vitest';
import { OnejobError } from './errors.ts';
import { createLog, type LogOptions } from './log.ts';

function logged(options: Partial<LogOptions>) {
  const stream = new PassThrough();
  const log = createLog({ json: true, stream, ...options });
  return { log, text: () => String(stream.read() ?? '') };
}

test('a JSON line carries level, time, event and fields', () => {
  const { log, text } = logged({});
  log.warn('pool backs off', { pool: 'lab', failures: 3 });
  expect(JSON.parse(text())).toEqual({
    level: 'warn',
    time: expect.stringMatching(/^20/),
    event: 'pool backs off',
    pool: 'lab',
    failures: 3,
  });
});

test('a line for a person is one line', () => {
  const { log, text } = logged({ json: false });
  log.error('cannot start', { agent: 'a1', why: 'no such\nimage "x"', nothing: null });
  expect(text()).toMatch(/^\d\d:\d\d:\d\d error: cannot start {2}agent=a1 why="no such\\nimage \\"x\\""\n$/);
});

test('an error is its code, message and hint; only an unexpected one has its stack', () => {
  const { log, text } = logged({});
  log.error('failed', { deep: { list: [new OnejobError('E_BUG', 'broken', { hint: 'report it' })] }, plain: new Error('odd') });
  const { deep, plain } = JSON.parse(text());
  expect(deep.list).toEqual([{ code: 'E_BUG', message: 'broken', hint: 'report it', retry: false }]);
  expect(plain).toEqual({ message: 'odd', stack: expect.stringContaining('log.test.ts') });
});

test('a closed stream ends nothing', () => {
  const stream = new PassThrough();
  const log = createLog({ json: true, stream });
  stream.destroy(new Error('EPIPE'));
  log.info('still here');
});
