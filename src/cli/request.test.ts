import { expect, test } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { runOptions } from './request.ts';

test('more patterns of artifacts than a job may have are refused where they are typed', async () => {
  const { context } = testContext([], '/');
  const ask = (count: number) => runOptions(context, ['true'], { artifact: Array.from({ length: count }, (_, n) => `dist/${n}`) });
  expect((await ask(100)).request.artifacts).toHaveLength(100);
  await expect(ask(101)).rejects.toMatchObject({
    code: 'E_USAGE',
    message: expect.stringContaining('101 patterns: a job may have at most 100'),
  });
});
