import { expect, it, test } from 'vitest';
import { firstUid, isAgentUid } from '../uids.ts';
import { engineUsers } from './engine-program.ts';
import { aRange, idsObstacle, mapIds, OwnIds } from './own-ids.ts';

const { trusted, untrusted } = engineUsers;

it.each([
  ['6.1.0-18-amd64', 0, null],
  ['5.19.0', 0, null],
  [
    '5.15.0-105-generic',
    0,
    'the kernel of this host is 5.15.0-105-generic, and 5.19 is the first that can map the ids of their images',
  ],
  ['6.1.0', 1000, 'onejob is not root'],
])('agents of a host with kernel %s, whose onejob is user %i, have ids of their own, or not: %s', (kernel, user, why) => {
  expect(idsObstacle(kernel, user)).toBe(why);
});

test('no range has an id of another one, of the image or of the process runtime, and none was ever one of the other trust', () => {
  const at = (user: typeof trusted | typeof untrusted, n: number) => aRange(user, [], () => n);
  const starts = [1, 2, 840].flatMap((n) => [at(trusted, n), at(untrusted, n)]);
  const all = [trusted.first, untrusted.first, ...starts].sort((a, b) => a - b);
  for (const [n, first] of all.entries()) expect((all[n + 1] ?? firstUid) - first).toBeGreaterThanOrEqual(65_537);
  for (let tries = 0; tries < 1_000; tries++)
    for (const user of [trusted, untrusted]) {
      const first = aRange(user, []);
      // SSSD gives people of a directory ids below that, of which no file of the host tells.
      expect([first >= 2_000_200_000, isAgentUid(first), first + 65_537 <= firstUid]).toEqual([true, false, true]);
      expect((first - user.first) % (2 * (untrusted.first - trusted.first))).toBe(0);
    }
});

test('a range of which the host has given away an id is left out', () => {
  const places = [1, 1, 2];
  const first = aRange(trusted, [], () => 1);
  const line = { from: first - 10, ids: 11 };
  expect(aRange(trusted, [line], () => places.shift() ?? 3)).toBe(aRange(trusted, [], () => 2));
  // Empty lines, comments and entries by name.
  expect(aRange(trusted, [{ from: Number.NaN, ids: Number.NaN }], () => 1)).toBe(first);
});

test('nothing is done in a process that is not of the container', async () => {
  const container = { id: 'c0ffee'.repeat(10), pid: process.pid };
  const files = { mounts: [], volumes: ['/'] };
  const own = { ...trusted, first: 1_900_019_712 };
  expect(await mapIds(trusted, own, container, files, new AbortController().signal)).toEqual({
    isRefused: true,
    why: 'onejob does not see the processes of its Engine',
  });
});

test('a pool that cannot have them shares ids from then on, and "doctor" says why', async () => {
  const ids = new OwnIds();
  ids.share('p', 'the kernel maps no ids of /out (Invalid argument)');
  expect(await ids.claim('p', trusted, '/nowhere', { mounts: [] })).toBe(trusted);
  if (idsObstacle() === null)
    expect(ids.findings().map(({ message }) => message)).toEqual([
      'Each agent with containers has user ids of its own.',
      'But those of pool p share user ids with others of the same trust, because the kernel maps no ids of /out (Invalid argument). A job can use up what the kernel counts by user for all of them.',
    ]);
  else expect(ids.findings()).toHaveLength(1);
});

test.skipIf(idsObstacle() !== null)(
  'root of the host runs no file that a job could have put there, so such an agent shares its ids',
  async () => {
    const at = (container: string) => ({ mounts: [{ host: '/srv', container, readOnly: false, variable: null, cache: null }] });
    const claim = (path: string) => new OwnIds().claim('p', trusted, '/nowhere/rev', at(path));
    const places = [
      '/usr',
      '/usr/local/share',
      '/usr/local/lib/site_perl',
      '/etc',
      '/etc/perl',
      '/lib',
      '/home',
      '/home/engine/.ssh',
    ];
    for (const path of places) expect(await claim(path), path).toBe(trusted);
  },
);
