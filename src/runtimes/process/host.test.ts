import { expect, test } from 'vitest';
import { bubblewrapFix } from './bubblewrap.ts';
import { networkFinding, noexec, noGroupKill } from './host.ts';

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

test.each([
  ['absent', {}, /^Install bubblewrap: apt-get install bubblewrap\.$/],
  ['fails', { 'user/max_user_namespaces': '0\n' }, /"sysctl -w user\.max_user_namespaces=15000"/],
  ['fails', { 'kernel/unprivileged_userns_clone': '0\n' }, /"sysctl -w kernel\.unprivileged_userns_clone=1"/],
  [
    'fails',
    { 'kernel/apparmor_restrict_unprivileged_userns': '1\n' },
    /^AppArmor allows .* apparmor-profiles && ln -s .*bwrap-userns-restrict/,
  ],
  [
    'fails',
    { 'user/max_user_namespaces': '63000\n' },
    /^The kernel, an AppArmor profile or a container around onejob may forbid it/,
  ],
] as const)('for bubblewrap that %s, with %j, doctor says what helps', (end, settings, fix) => {
  const known: Readonly<Record<string, string>> = settings;
  expect(bubblewrapFix({ end }, (name) => known[name] ?? '')).toMatch(fix);
});

test('doctor blames the kernel only if it is the cause', () => {
  expect(noGroupKill('5.10.0-28-amd64').message).toMatch(/because the kernel is older than Linux 5\.14\.$/);
  expect(noGroupKill('7.2.13').message).toMatch(/because onejob may make no control groups of version 2\.$/);
});
