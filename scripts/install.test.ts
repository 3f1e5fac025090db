/** What `install.sh` links, and where; `test/long/service.test.ts` has it on a machine of its own. */
import { execFileSync } from 'node:child_process';
import { chmodSync, copyFileSync, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { scratch } from '../test/support/scratch.ts';

/** A release with nothing in it but what the installer needs. */
function release(work: string, version: string, path = process.env.PATH): (...flags: string[]) => string {
  const folder = join(work, `onejob-${version}`);
  mkdirSync(join(folder, 'node_modules/node/bin'), { recursive: true });
  mkdirSync(join(folder, 'bin'));
  copyFileSync(join(import.meta.dirname, '../install.sh'), join(folder, 'install.sh'));
  writeFileSync(join(folder, 'package.json'), `{\n  "version": "${version}",\n}\n`);
  for (const [program, says] of [
    ['node_modules/node/bin/node', 'v24.0.0'],
    ['bin/onejob', version],
  ] as const) {
    writeFileSync(join(folder, program), `#!/bin/sh\necho ${says}\n`);
    chmodSync(join(folder, program), 0o755);
  }
  const env = { PATH: path, HOME: join(work, 'home') };
  return (...flags) =>
    execFileSync('sh', [join(folder, 'install.sh'), '--user', ...flags], { env, encoding: 'utf8', stdio: 'pipe' });
}

const versionOf = (program: string): string => execFileSync(program, { encoding: 'utf8' }).trim();

test('a later version is linked to where the last one was, until another place is named', () => {
  using dir = scratch();
  const [first, second] = [release(dir.path, '1.0.0'), release(dir.path, '2.0.0')];
  const [bin, share] = [join(dir.path, 'my tools'), join(dir.path, "50% off & 'more'")];
  first('--bin', bin, '--share', share);
  const completion = 'bash-completion/completions/onejob';
  expect(versionOf(join(bin, 'onejob'))).toBe('1.0.0');
  expect(readdirSync(join(share, 'bash-completion/completions'))).toEqual(['onejob']);
  second();
  expect(versionOf(join(bin, 'onejob'))).toBe('2.0.0');
  expect(existsSync(join(dir.path, 'home/.local/bin'))).toBe(false);
  first('--bin', join(dir.path, 'other'));
  second();
  expect(versionOf(join(dir.path, 'other', 'onejob'))).toBe('2.0.0');
  const versions = join(dir.path, 'home/.local/share/onejob');
  expect(readFileSync(join(versions, '.links'), 'utf8')).toBe(`bin=${join(dir.path, 'other')}\nshare=${share}\n`);
  expect(readdirSync(versions).toSorted()).toEqual(['.links', '.lock', '1.0.0', '2.0.0', 'current', 'previous']);
  expect(existsSync(join(dir.path, 'home/.local/share', completion))).toBe(false);
});

test('the usual places are remembered, too, before anything is linked', () => {
  using dir = scratch();
  const install = release(dir.path, '1.0.0');
  const home = join(dir.path, 'home');
  // A file stands where the folder of the command would be made.
  mkdirSync(join(home, '.local'), { recursive: true });
  writeFileSync(join(home, '.local/bin'), '');
  expect(() => install()).toThrow();
  expect(readFileSync(join(home, '.local/share/onejob/.links'), 'utf8')).toBe(
    `bin=${home}/.local/bin\nshare=${home}/.local/share\n`,
  );
});

test('a version is on disk before it has its name, and its links are before the installer ends', () => {
  using dir = scratch();
  const [bin, said] = [join(dir.path, 'fake'), join(dir.path, 'said')];
  const versions = join(dir.path, 'home/.local/share/onejob');
  mkdirSync(bin);
  const see = `ls -d ${versions}/1.0.0 ${versions}/current 2>/dev/null | tr '\\n' ' '`;
  writeFileSync(join(bin, 'sync'), `#!/bin/sh\necho "$(${see})" >>${said}\n`, { mode: 0o755 });
  release(dir.path, '1.0.0', `${bin}:${process.env.PATH}`)();
  const [first, ...later] = readFileSync(said, 'utf8').trimEnd().split('\n');
  expect(first).toBe('');
  expect(later.at(-1)).toMatch(/1\.0\.0 .*current/);
});
