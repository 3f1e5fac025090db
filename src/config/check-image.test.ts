import { chmodSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { Folder } from '../../test/kit/config.ts';

test('a Dockerfile that is not there is said, with the key; one that is there is not', async () => {
  using folder = new Folder();
  const path = join(folder.path, 'Dockerfile');
  const problems = () => folder.check(`pools: { a: { image: { dockerfile: ${path} } } }\n`);
  const at = 'config.yml:1:36: warning: pools.a.image.dockerfile: Dockerfile';
  expect(await problems()).toEqual([`${at} does not exist: the image could not be built`]);
  folder.write('Dockerfile', 'FROM debian:12\n');
  expect(await problems()).toEqual([]);
  chmodSync(path, 0);
  if (process.getuid?.() !== 0)
    expect(await problems()).toEqual([`${at} cannot be read by this user: the image could not be built`]);
});
