import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { findHost, readHosts } from './hosts.ts';

let dir: Scratch;
beforeEach(() => {
  dir = scratch();
  mkdirSync(join(dir.path, 'onejob'));
});
afterEach(() => dir[Symbol.dispose]());

const env = () => ({ configHome: dir.path });
const write = (text: string): void => writeFileSync(join(dir.path, 'onejob', 'hosts.yml'), text);

test('names and places, in the order of the file', async () => {
  write('hosts: { gpuci: ssh://gpuci, here: local, lab: "ssh://ci@lab:2222" }');
  const { hosts } = await readHosts(env());
  expect([...hosts].map(([name, place]) => [name, place?.shown ?? null])).toEqual([
    ['gpuci', 'ssh://gpuci'],
    ['here', null],
    ['lab', 'ssh://ci@lab:2222'],
  ]);
  expect(await findHost('lab', env())).toMatchObject({ host: 'lab', port: 2222 });
  expect(await findHost('here', env())).toBeNull();
});

test('what needs no file', async () => {
  expect(await findHost('local', env())).toBeNull();
  expect(await findHost('ssh://x', env())).toMatchObject({ host: 'x' });
  await expect(findHost('x', env())).rejects.toMatchObject({ code: 'E_CONFIG', hint: expect.stringContaining('hosts: { gpuci:') });
  await expect(findHost('-oProxyCommand=x', env())).rejects.toMatchObject({ code: 'E_USAGE' });
});

test.each([
  ['hosts: {', /hosts\.yml: /],
  ['[]', /the file: /],
  ['host: { a: ssh://a }', /hosts\.yml: /],
  ['hosts: { a: 7 }', /hosts\.a: /],
  ['hosts: { a: gpuci }', /hosts\.a: Cannot use "gpuci" as a host: it does not begin with ssh:\/\//],
  ['hosts: { local: ssh://a }', /hosts\.local: a name is/],
])('%s is refused with its place', async (text, why) => {
  write(text);
  await expect(readHosts(env())).rejects.toMatchObject({ code: 'E_CONFIG', message: expect.stringMatching(why) });
});

test('a name that is not there', async () => {
  write('hosts: { gpuci: ssh://gpuci }');
  await expect(findHost('gpucj', env())).rejects.toMatchObject({
    code: 'E_USAGE',
    hint: expect.stringContaining('did you mean "gpuci"? A host'),
  });
});
