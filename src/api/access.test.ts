/** Tokens, sessions and codes, in virtual time. */
import { chmodSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { handClock } from '../../test/kit/core.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { openAccess } from './access.ts';

let dir: Scratch;
beforeEach(() => {
  dir = scratch();
});
afterEach(() => dir[Symbol.dispose]());

const clock = handClock();
const open = () => openAccess({ dir: dir.path, name: 'abc', clock });
const file = (role: string) => join(dir.path, 'api', `${role}.token`);
const token = (role: string) => ({ authorization: `Bearer ${readFileSync(file(role), 'utf8').trim()}` });
const eve = { role: 'read', user: 'eve' } as const;
/** The cookie that a browser sends back. */
const cookieOf = (access: ReturnType<typeof open>, code: string) => {
  const [cookie = ''] = access.cookieOf(access.login(code), false).split(';');
  return { cookie: `other=1; ${cookie}; more=2` };
};

test('tokens are made once, for this user only', () => {
  const access = open();
  expect([file('read'), file('operator')].map((path) => statSync(path).mode & 0o777)).toEqual([0o600, 0o600]);
  expect(access.callerOf(token('read'))).toEqual({ role: 'read', user: null, until: null });
  expect(open().callerOf(token('operator'))).toEqual({ role: 'operator', user: null, until: null });
});

test('a kill while a token is made leaves none, and the next start makes it', () => {
  mkdirSync(join(dir.path, 'api'), { mode: 0o700 });
  writeFileSync(`${file('operator')}.new`, '', { mode: 0o600 });
  expect(open().callerOf(token('operator'))).toMatchObject({ role: 'operator' });
  expect(readdirSync(join(dir.path, 'api')).toSorted()).toEqual(['operator.token', 'read.token']);
});

test.each([
  [{}],
  [{ authorization: '' }],
  [{ authorization: 'Bearer' }],
  [{ authorization: 'Bearer wrong' }],
  [{ authorization: 'Basic eDp5' }],
  [{ cookie: 'onejob-abc=' }],
  [{ cookie: 'onejob-abc=..' }],
  [{ cookie: `onejob-abc=${Buffer.from('{"role":"operator","user":null,"until":9e15}').toString('base64url')}.x` }],
])('%j gives no access', (headers) => {
  expect(open().callerOf(headers)).toBeNull();
});

test('a code is good for one login, and a minute', () => {
  const access = open();
  const { code, until } = access.code(eve);
  expect(until).toBe(clock.wall() + 60_000);
  expect(access.login(code)).toMatchObject(eve);
  expect(() => access.login(code)).toThrow(expect.objectContaining({ code: 'E_API_LOGIN' }));
  const late = access.code(eve).code;
  clock.advance(60_000);
  expect(() => access.login(late)).toThrow(expect.objectContaining({ code: 'E_API_LOGIN' }));
});

test('a session survives a restart, and ends after a week', () => {
  const access = open();
  const headers = cookieOf(access, access.code(eve).code);
  expect(open().callerOf(headers)).toMatchObject(eve);
  // A wrong token does not count as no token.
  expect(access.callerOf({ ...headers, authorization: 'Bearer wrong' })).toBeNull();
  clock.advance(7 * 86_400_000);
  expect(access.callerOf(headers)).toBeNull();
});

test('a changed session is refused', () => {
  const access = open();
  const { cookie } = cookieOf(access, access.code(eve).code);
  const [, payload = '', signature = ''] = /onejob-abc=([^.]+)\.([^;]+)/.exec(cookie) ?? [];
  const raised = Buffer.from(payload, 'base64url').toString().replace('read', 'operator');
  expect(access.callerOf({ cookie: `onejob-abc=${Buffer.from(raised).toString('base64url')}.${signature}` })).toBeNull();
  expect(access.callerOf({ cookie: `onejob-abc=${payload}.${signature.replace(/.$/, '')}` })).toBeNull();
});

test('a new token ends what the old one gave, and nothing else', () => {
  const access = open();
  const headers = cookieOf(access, access.code(eve).code);
  const old = token('read');
  expect(access.refresh()).toBe(false);
  rmSync(file('read'));
  // Until the config is applied.
  expect(access.callerOf(old)).not.toBeNull();
  expect(access.refresh()).toBe(true);
  expect([access.callerOf(old), access.callerOf(headers)]).toEqual([null, null]);
  expect([access.callerOf(token('read')), access.callerOf(token('operator'))]).toMatchObject([
    { role: 'read' },
    { role: 'operator' },
  ]);
});

test('a token that others can read, or guess, is not used', () => {
  open();
  chmodSync(file('read'), 0o640);
  expect(open).toThrow(/others can read it \(mode 0640\)/);
  chmodSync(file('read'), 0o600);
  writeFileSync(file('read'), 'secret\n');
  expect(open).toThrow(expect.objectContaining({ code: 'E_API_LISTEN', hint: expect.stringContaining('Delete') }));
});

test('after ten wrong codes in a minute every code waits', () => {
  const access = open();
  for (let n = 0; n < 10; n += 1) expect(() => access.login('x')).toThrow(expect.objectContaining({ code: 'E_API_LOGIN' }));
  const { code } = access.code(eve);
  expect(() => access.login(code)).toThrow(expect.objectContaining({ code: 'E_API_LIMIT', retry: true }));
  clock.advance(60_000);
  expect(access.login(access.code(eve).code)).toMatchObject(eve);
});

test('a cookie for https is for this host alone', () => {
  const access = open();
  const caller = access.login(access.code(eve).code);
  expect(access.cookieOf(caller, true)).toMatch(
    /^__Host-onejob-abc=[\w-]+\.[\w-]+; Path=\/; Max-Age=604800; HttpOnly; SameSite=Strict; Secure$/,
  );
  const [pair = ''] = access.cookieOf(caller, true).split(';');
  expect(access.callerOf({ cookie: pair })).toMatchObject(eve);
  expect(access.cookieOf(null, false)).toBe('onejob-abc=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict');
});
