import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { scratch } from '../../../test/support/scratch.ts';
import { engineAppArmor, engineProfile, installProfile, isProfileLoaded, removeProfile } from './apparmor.ts';

const others = 'docker-default (enforce)\nonejob-engine-old (unconfined)\n';

test.each([
  ['the kernel lists it', `${others}onejob-engine (unconfined)\n`, false, true],
  ['the kernel does not list it, although its file is there', others, true, false],
  ['the kernel may not be asked, and its file is there', null, true, true],
  ['nothing is known of it', null, false, false],
])('%s', (_, list, hasFile, isLoaded) => {
  const look = { profiles: () => list, hasFile: () => hasFile };
  expect(isProfileLoaded(look)).toBe(isLoaded);
  expect(engineAppArmor(look)).toBe(isLoaded ? 'apparmor=onejob-engine' : 'apparmor=unconfined');
});

test('the page has the profile as it is installed', () => {
  const page = readFileSync(join(import.meta.dirname, '../../../docs/job-containers.md'), 'utf8');
  expect(page).toContain(`\`\`\`\n${engineProfile.text}\`\`\``);
  expect(page).toContain(`apparmor_parser --replace ${engineProfile.path}`);
});

test('a profile that cannot be loaded leaves no file, which would look as if it were loaded', async () => {
  using here = scratch();
  const path = join(here.path, 'profile');
  expect(await installProfile(async () => 'no such rule', path)).toBe('no such rule');
  expect(existsSync(path)).toBe(false);
  const loaded: string[] = [];
  const load = async () => {
    loaded.push(readFileSync(path, 'utf8'));
    return null;
  };
  // Also if an earlier one has left it.
  for (const _ of [1, 2]) expect(await installProfile(load, path)).toBeNull();
  expect(loaded).toEqual([engineProfile.text, engineProfile.text]);
  removeProfile(path);
  expect(existsSync(path)).toBe(false);
  removeProfile(path);
});

test('a file that somebody else wrote is neither replaced, nor loaded, nor removed', async () => {
  using here = scratch();
  const path = join(here.path, 'profile');
  writeFileSync(path, 'mine');
  const never = () => Promise.reject(new Error('loaded'));
  expect(await installProfile(never, path)).toBe(`${path} differs from what onejob writes, and stays as it is`);
  removeProfile(path);
  expect(readFileSync(path, 'utf8')).toBe('mine');
});
