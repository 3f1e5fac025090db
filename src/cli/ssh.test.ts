/** How another host is written, and what ssh's words mean. */
import { describe, expect, test } from 'vitest';
import { parseSshUrl, sshArguments, sshFailure } from './ssh.ts';

describe('a host', () => {
  test.each([
    ['ssh://gpuci', { user: null, host: 'gpuci', port: null, socket: null }],
    ['ssh://ci@lab.example:2222', { user: 'ci', host: 'lab.example', port: 2222, socket: null }],
    ['ssh://GPU_1/run/onejob/onejob.sock', { user: null, host: 'GPU_1', port: null, socket: '/run/onejob/onejob.sock' }],
    ['ssh://[fe80::1]:22/', { user: null, host: 'fe80::1', port: 22, socket: null }],
  ])('%s', (text, host) => {
    expect(parseSshUrl(text)).toEqual({ ...host, shown: text });
  });

  test.each([
    'gpuci',
    'http://gpuci',
    'ssh://',
    'ssh://-oProxyCommand=x',
    'ssh://a@-oProxyCommand=x',
    'ssh://-l@gpuci',
    'ssh://a:hunter2@gpuci',
    "ssh://gpuci/a'b",
    'ssh://gpuci/a b',
    'ssh://gpuci/$(x)',
    'ssh://gpuci?x',
    'ssh://gpuci#x',
    'ssh://gpuci:99999',
  ])('%s is refused', (text) => {
    expect(() => parseSshUrl(text)).toThrow(
      expect.objectContaining({ code: 'E_USAGE', hint: expect.stringContaining('ssh://HOST') }),
    );
  });
});

test('ssh asks nobody unless somebody is there, forwards nothing, and takes no host for an option', () => {
  const host = parseSshUrl('ssh://ci@gpuci:2222/run/x.sock');
  const quiet = sshArguments(host, false);
  expect(quiet).toContain('BatchMode=yes');
  expect(sshArguments(host, true)).not.toContain('BatchMode=yes');
  expect(quiet).toEqual(expect.arrayContaining(['ClearAllForwardings=yes', 'ForwardAgent=no', 'ConnectTimeout=10']));
  expect(quiet.slice(quiet.indexOf('-p'))).toEqual([
    ...['-p', '2222', '-l', 'ci', '--', 'gpuci'],
    `sh -c 'PATH="$PATH:/usr/local/bin:$HOME/.local/bin"; export PATH; exec onejob relay --socket /run/x.sock'`,
  ]);
});

test.each([
  [255, 'ssh: Could not resolve hostname gpuci: Name or service not known', 'no host of that name is known', false],
  [255, 'Host key verification failed.', 'its host key is not known, or is another one than before', false],
  [255, 'ci@gpuci: Permission denied (publickey).', 'it refused the login', false],
  [255, 'ssh: connect to host gpuci port 22: Connection refused', 'nothing listens on its SSH port', true],
  [255, 'ssh: connect to host gpuci port 22: Connection timed out', 'it does not answer', true],
  [255, 'onejob-has-no-ssh', '"ssh" is not installed here', false],
  [255, 'kex_exchange_identification: read: odd', 'the connection was cut: kex_exchange_identification: read: odd', true],
  [127, 'sh: 1: exec: onejob: not found', 'there is no onejob there', false],
  [1, 'Permission denied (publickey).', 'ssh ended with 1: Permission denied (publickey)', false],
  [null, '', 'ssh was ended', true],
])('%s %s', (code, said, why, retry) => {
  const error = sshFailure(parseSshUrl('ssh://ci@gpuci:2222'), code, said);
  expect(error).toMatchObject({ code: 'E_HOST', retry, message: `Cannot reach ssh://ci@gpuci:2222: ${why}.` });
  expect(error.hint).not.toBeNull();
});

test('an older onejob does not know the command', () => {
  const said = 'onejob: unknown command \'relay\'\n  See "onejob --help".';
  expect(sshFailure(parseSshUrl('ssh://gpuci'), 2, said)).toMatchObject({ code: 'E_API_VERSION' });
});
