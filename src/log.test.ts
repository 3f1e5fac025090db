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

test.each([true, false])('secrets are removed from every string, json %s', (json) => {
  const { log, text } = logged({ json, redact: (each) => each.replaceAll('hunter2', '***') });
  const error = new OnejobError('E_BUG', 'token hunter2 refused', { hint: 'not hunter2' });
  log.info('event hunter2', { deep: { list: ['x hunter2 y'] }, error, plain: new Error('hunter2') });
  const line = text();
  expect(line).toContain('***');
  expect(line).not.toContain('hunter2');
});

test('a closed stream ends nothing', () => {
  const stream = new PassThrough();
  const log = createLog({ json: true, stream });
  stream.destroy(new Error('EPIPE'));
  log.info('still here');
});
