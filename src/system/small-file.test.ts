import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { scratch } from '../../test/support/scratch.ts';
import { readSmall } from './small-file.ts';

it('reads a file as it is, and says of others what they are', async () => {
  using dir = scratch();
  const file = join(dir.path, 'token');
  writeFileSync(file, 'first', { mode: 0o600 });
  expect(await readSmall(file, 64)).toEqual({ isFile: true, mode: 0o600, size: 5, text: 'first' });
  writeFileSync(file, 'second one');
  expect(await readSmall(file, 64)).toMatchObject({ text: 'second one' });
  expect(await readSmall(file, 4), 'too large').toMatchObject({ isFile: true, size: 10, text: '' });
  mkdirSync(join(dir.path, 'folder'));
  expect(await readSmall(join(dir.path, 'folder'), 64)).toMatchObject({ isFile: false, text: '' });
  await expect(readSmall(join(dir.path, 'none'), 64)).rejects.toMatchObject({ code: 'ENOENT' });
});
