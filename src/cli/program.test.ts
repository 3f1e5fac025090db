/** What `bin/onejob` does before there is a Node. */
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { scratch } from '../../test/support/scratch.ts';

const program = join(import.meta.dirname, '..', '..', 'bin', 'onejob');
const started = (variables: Record<string, string>) =>
  spawnSync('sh', [program, '--version'], {
    encoding: 'utf8',
    env: { PATH: process.env.PATH, NODE_USE_ENV_PROXY: '1', ...variables },
  });

it.each([
  'proxy:3128',
  'alice:s3cret@proxy:3128',
  'http://alice:s3cret@bad host:1',
  'http://alice:s3cret/x@proxy:1',
  'http://alice:s3cret#x@proxy:1',
  'http://alice:s3cret@proxy:99999',
  'http://alice:s3cret@proxy:12x',
  'http://alice:s3cret@',
])('a proxy that is not an address ends it with a sentence, where Node would print its password: %s', (address) => {
  const { status, stdout, stderr } = started({ https_proxy: address });
  expect({ status, stdout }).toEqual({ status: 125, stdout: '' });
  expect(stderr).toMatch(/^onejob: invalid proxy address in https_proxy: .*\n$/);
  expect(stderr).not.toContain('s3cret');
  expect(started({ https_proxy: address, NODE_USE_ENV_PROXY: '' }).status).toBe(0);
});

it.each([
  '',
  'http://proxy',
  'http://al%2Fice:s3cret!$&*+,;=~_-@proxy.example:3128/',
  'https://alice:s3cret@[fd00::1]:3128',
  'http://[fd00::1]',
])('one that is an address continues: %s', (address) =>
  expect(started({ HTTPS_PROXY: address, HTTP_PROXY: address })).toMatchObject({ status: 0, stderr: '' }),
);

const inShell = (script: string, variables: Record<string, string> = {}) => {
  using home = scratch();
  const env = { PATH: process.env.PATH, HOME: home.path, ONEJOB_STATE_DIR: join(home.path, 'state'), ...variables };
  return spawnSync('sh', ['-c', script, program], { encoding: 'utf8', env, cwd: home.path });
};

it('a folder that was deleted under the shell is a sentence, not a stack', () => {
  const { status, stderr } = inShell('mkdir gone; cd gone; rmdir ../gone; exec "$0" --version');
  // The shell itself complains first.
  expect([status, stderr.split('\n').filter((line) => !/^[\w-]+: .*getcwd/.test(line))]).toEqual([
    125,
    ['onejob: the current folder no longer exists: go to another one with "cd".', ''],
  ]);
});

it.each([
  ['NODE_OPTIONS', '--import=./no-such-file.mjs'],
  ['NODE_OPTIONS', '--no-such-option'],
  ['NODE_DEBUG', 'module,http,net'],
  ['NODE_CHANNEL_FD', '77'],
  ['NODE_UNIQUE_ID', '3'],
  ['NODE_ICU_DATA', '/nonexistent'],
  ['NODE_REDIRECT_WARNINGS', './warnings'],
])('%s of the caller has no effect', (name, value) => {
  expect(inShell('exec "$0" --version', { [name]: value })).toMatchObject({ status: 0, stderr: '' });
});

it('options for its own Node have a name of their own', () => {
  const { status, stderr } = inShell('exec "$0" --version', { ONEJOB_NODE_OPTIONS: '--no-such-option' });
  expect([status, stderr]).toEqual([9, expect.stringContaining('--no-such-option')]);
});

it('an argument or variable that is not UTF-8 is refused, because the job would get other bytes', () => {
  const odd = `E=$(printf 'caf\\351') && export E && exec "$0" run`;
  expect(inShell(`${odd} -- echo "$E"`)).toMatchObject({
    status: 2,
    stderr: expect.stringContaining('Cannot pass on the argument "caf\ufffd": it is not UTF-8.'),
  });
  expect(inShell(`${odd} --env E -- true`)).toMatchObject({
    status: 2,
    stderr: expect.stringContaining('Cannot pass on the variable E: it is not UTF-8.'),
  });
});

it('a user without a home folder and without an entry in passwd gets an answer', () => {
  const asStranger = 'unset HOME ONEJOB_STATE_DIR; exec setpriv --reuid 54321 --regid 54321 --clear-groups "$0" status';
  if (process.getuid?.() !== 0) return;
  const { status, stderr } = inShell(asStranger);
  expect([status, stderr]).toEqual([1, expect.stringMatching(/^onejob: No daemon is running/)]);
});
