/** What `bin/onejob` does before there is a Node. */
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { expect, it } from 'vitest';

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
])('one that is an address goes on: %s', (address) =>
  expect(started({ HTTPS_PROXY: address, HTTP_PROXY: address })).toMatchObject({ status: 0, stderr: '' }),
);
