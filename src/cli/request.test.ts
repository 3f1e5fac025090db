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
