import { chmodSync, chownSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { scratch } from '../../test/support/scratch.ts';
import { readGroup } from '../config/paths.ts';
import { type AccessFacts, peopleFindings, socketFinding, whyDenied } from './socket-access.ts';

const group = { gid: 999, members: ['alice'] };
const outsider = { name: 'bob', gids: [1000] };
const shared = { uid: 0, gid: 999, mode: 0o660 };
const facts = (more: Partial<AccessFacts>): AccessFacts => ({ group, user: outsider, blocked: null, socket: shared, ...more });

test.each<[string, Partial<AccessFacts>, RegExp, RegExp]>([
  [
    'the group is missing',
    { group: null, socket: { uid: 0, gid: 0, mode: 0o600 } },
    /no group "onejob"/,
    /sudo groupadd onejob.*usermod -aG onejob bob.*restart the daemon.*Members of the group .* root's rights on this host/,
  ],
  [
    'the user is not in it',
    {},
    /you are not in the group/,
    /usermod -aG onejob bob.*log in again\. Members of the group .* root's rights on this host/,
  ],
  ['the user joined after the login', { user: { name: 'alice', gids: [1000] } }, /after you logged in/, /newgrp onejob/],
  [
    'the daemon started before the group was there',
    { socket: { uid: 0, gid: 0, mode: 0o600 } },
    /the group may not use its socket \(mode 0600\)/,
    /restart the daemon/,
  ],
  [
    'a folder on the way is closed',
    { blocked: { path: '/srv/state', gid: 0, mode: 0o700 }, socket: null, user: { name: 'alice', gids: [999] } },
    /you may not enter \/srv\/state \(mode 0700\)/,
    /listens in \/run\/onejob: restart/,
  ],
  ['it is another user’s own', { socket: { uid: 1001, gid: 1001, mode: 0o600 } }, /serves only user 1001/, /--state-dir/],
])('%s: is told, with what to type', (_, more, why, hint) => {
  const said = whyDenied(facts(more));
  expect(said.why).toMatch(why);
  expect(said.hint).toMatch(hint);
});

test('reads the group with its members, or null', () => {
  expect(readGroup('root:x:0:\nonejobs:x:5:eve\nonejob:x:999:alice,bob\n')).toEqual({ gid: 999, members: ['alice', 'bob'] });
  expect(readGroup('onejob:x:999:\n')).toEqual({ gid: 999, members: [] });
  expect(readGroup('root:x:0:\n')).toBe(null);
});

test('doctor says who may use a daemon of root, and what is in the way', () => {
  using dir = scratch();
  const path = join(dir.path, 'a', 's.sock');
  mkdirSync(join(dir.path, 'a'), { mode: 0o700 });
  writeFileSync(path, '');
  expect(socketFinding(path, null)).toMatchObject({
    level: 'ok',
    message: expect.stringContaining('Only root'),
    hint: expect.stringMatching(/groupadd.*root's rights on this host/),
  });
  expect(socketFinding(path, group)).toMatchObject({
    level: 'warning',
    message: expect.stringContaining('before that group existed'),
  });
  chownSync(path, 0, 999);
  expect(socketFinding(path, group)).toMatchObject({
    level: 'warning',
    message: expect.stringContaining(`enter ${dir.path}/a (mode 0700)`),
  });
  for (const each of [dir.path, join(dir.path, 'a')]) chmodSync(each, 0o755);
  expect(socketFinding(path, group)).toMatchObject({ level: 'ok', hint: null });
});

test('where the config says who may use the daemon, nobody is told to make a group, and doctor counts who may', () => {
  const said = whyDenied(facts({ people: true, group: null, socket: { uid: 0, gid: 0, mode: 0o600 } }));
  expect(said.why).toBe('bob is in no group that may use it');
  expect(said.hint).not.toContain('groupadd');
  const config = { groups: [], halfLife: 1 };
  expect(peopleFindings(null, null)).toEqual([]);
  expect(peopleFindings(config, null)).toMatchObject([
    { level: 'warning', message: expect.stringContaining('only one that root starts') },
  ]);
  expect(peopleFindings(config, { missing: ['lab'], all: () => [] })).toMatchObject([
    { level: 'warning', message: expect.stringContaining('no group "lab"'), hint: expect.stringContaining('groupadd lab') },
    { level: 'ok', message: '0 users of this host may use this daemon.' },
  ]);
});
