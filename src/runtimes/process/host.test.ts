import { expect, test } from 'vitest';
import { networkFinding, noexec } from './host.ts';

const mountinfo = ['22 1 254:0 / / rw,relatime - ext4 /dev/vda rw', '40 22 0:40 / /no-such rw,noexec,nosuid - tmpfs x rw'].join(
  '\n',
);

test('a disk whose programs cannot be executed is an error of doctor', () => {
  expect(noexec('/no-such/agents', mountinfo)).toMatchObject([
    { level: 'error', message: expect.stringContaining('/no-such is mounted noexec'), hint: expect.stringContaining('state_dir') },
  ]);
  expect(noexec('/elsewhere', mountinfo)).toEqual([]);
  expect(noexec('/elsewhere', '')).toEqual([]);
});

test('without networks of their own, doctor says what that means, why, and what to install', () => {
  const network = {
    own: false,
    why: 'pasta (Debian package "passt") is not installed.',
    fix: 'Install pasta: apt-get install passt.',
  };
  expect(networkFinding({ network })).toEqual({
    level: 'warning',
    subject: 'network',
    message:
      'Jobs share this host\'s network: they can reach services on localhost, and listen in the place of those that have ended. pasta (Debian package "passt") is not installed.',
    hint: 'Install pasta: apt-get install passt. Pools of a service whose jobs go through the filter start nothing until then.',
  });
  const own = { own: true, why: 'pasta is installed and a probe network was made.', fix: null };
  expect(networkFinding({ network: own })).toMatchObject({
    level: 'ok',
    message: expect.stringContaining('networks of their own'),
  });
});
