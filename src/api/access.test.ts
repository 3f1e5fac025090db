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
const open = () => openAccess({ dir: dir.path, clock });
const file = (role: string) => join(dir.path, 'api', `${role}.token`);
const token = (role: string) => `Bearer ${readFileSync(file(role), 'utf8').trim()}`;
const eve = { role: 'read', user: 'eve' } as const;
/** What a browser sends once somebody has logged in. */
const login = (access: ReturnType<typeof open>) => `Bearer ${access.login(access.code(eve).code).session}`;
const encoded = (text: string) => Buffer.from(text).toString('base64url');

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
  [undefined],
  [''],
  ['Bearer'],
  ['Bearer wrong'],
  ['Basic eDp5'],
  ['Bearer ojs_'],
  ['Bearer ojs_x.y'],
  [`Bearer ojs_${encoded('{"role":"operator","user":null,"until":9e15}')}.x`],
])('%j gives no access', (authorization) => {
  expect(open().callerOf(authorization)).toBeNull();
});

test('a session is not a token, and a token is not a session', () => {
  const access = open();
  const sent = login(access);
  expect(sent).toMatch(/^Bearer ojs_[\w-]+\.[\w-]+$/);
  expect(access.callerOf(sent.replace('ojs_', ''))).toBeNull();
  expect(access.callerOf(token('read').replace('Bearer ', 'Bearer ojs_'))).toBeNull();
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
  const sent = login(access);
  expect(open().callerOf(sent)).toEqual({ ...eve, until: clock.wall() + 7 * 86_400_000 });
  clock.advance(7 * 86_400_000);
  expect(access.callerOf(sent)).toBeNull();
});

test('a changed session is refused', () => {
  const access = open();
  const sent = login(access);
  const [, payload = '', signature = ''] = /ojs_([^.]+)\.(.+)/.exec(sent) ?? [];
  const raised = Buffer.from(payload, 'base64url').toString().replace('read', 'operator');
  expect(access.callerOf(sent.replace(payload, encoded(raised)))).toBeNull();
  expect(access.callerOf(sent.replace(signature, signature.slice(1)))).toBeNull();
});

test('a new token ends what the old one gave, and nothing else', () => {
  const access = open();
  const sent = login(access);
  const old = token('read');
  expect(access.refresh()).toBe(false);
  rmSync(file('read'));
  // Until the config is applied.
  expect(access.callerOf(old)).not.toBeNull();
  expect(access.refresh()).toBe(true);
  expect([access.callerOf(old), access.callerOf(sent)]).toEqual([null, null]);
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

test('after ten wrong codes in a minute no more are tried, and a right one is still good', () => {
  const access = open();
  for (let n = 0; n < 10; n += 1) expect(() => access.login('x')).toThrow(expect.objectContaining({ code: 'E_API_LOGIN' }));
  expect(() => access.login('x')).toThrow(expect.objectContaining({ code: 'E_API_LIMIT', retry: true }));
  expect(access.login(access.code(eve).code)).toMatchObject(eve);
  clock.advance(60_000);
  expect(() => access.login('x')).toThrow(expect.objectContaining({ code: 'E_API_LOGIN' }));
});
