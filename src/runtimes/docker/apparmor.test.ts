import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { engineAppArmor, engineProfile, isProfileLoaded } from './apparmor.ts';

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
