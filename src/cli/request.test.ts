import { expect, test } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { runOptions } from './request.ts';

test('refuses too many artifact patterns before it submits the job', async () => {
  const { context } = testContext([], '/');
  const ask = (count: number) => runOptions(context, ['true'], { artifact: Array.from({ length: count }, (_, n) => `dist/${n}`) });
  expect((await ask(100)).request.artifacts).toHaveLength(100);
  await expect(ask(101)).rejects.toMatchObject({
    code: 'E_USAGE',
    message: expect.stringContaining('101 patterns: a job may have at most 100'),
  });
});

test.each([
  ['a\n\nb\n', '--name: it has 3 lines: give one, of at most 100 letters.'],
  ['a\tb', '--name: it contains a control character, such as a tab.'],
  ['x'.repeat(101), '--name: it has 101 letters, at most 100 are possible.'],
  ['', '--name: it is empty.'],
  ['  ', '--name: it is empty.'],
])('says what is wrong with a name: %j', async (name, message) => {
  const { context } = testContext([], '/');
  await expect(runOptions(context, ['true'], { name })).rejects.toMatchObject({ code: 'E_USAGE', message });
  const hint = name.trim() === '' ? 'Leave --name out, or give it a text.' : expect.stringContaining('its first line');
  await expect(runOptions(context, ['true'], { name })).rejects.toMatchObject({ hint });
  expect((await runOptions(context, ['true'], { name: ' fit 3 ' })).request.name).toBe('fit 3');
  expect((await runOptions(context, ['true'], { name: '😀'.repeat(100) })).request.name).toHaveLength(200);
});
