/** Tokens, sessions and codes, in virtual time. */
import { createHmac, createPublicKey, verify } from 'node:crypto';
import { chmodSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { handClock } from '../../test/kit/core.ts';
import { authorize, browserKey, hashOf, type Signed } from '../../test/support/browser-login.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import type { Person } from '../config/people.ts';
import { type CallerAdmission, openAccess } from './access.ts';

let dir: Scratch;
beforeEach(() => {
  dir = scratch();
});
afterEach(() => dir[Symbol.dispose]());

const clock = handClock();
const open = () => openAccess({ dir: dir.path, clock });
const file = (role: string) => join(dir.path, 'api', `${role}.token`);
const token = (role: string) => `Bearer ${readFileSync(file(role), 'utf8').trim()}`;
const eve = { role: 'read', user: 'eve', person: null } as const;
const browser = browserKey();
const port = 7717;
const asked = { method: 'POST', path: '/v1/jobs?x=1', challenge: 'c', port };
const signIn = (access: ReturnType<typeof open>): Signed => ({
  session: access.login(access.code(eve).code, browser.key, port).session,
  sign: browser.sign,
});
/** The header of a request as `asked`, in which `otherwise` was signed. */
const header = (signed: Signed, otherwise: object = {}) =>
  authorize(signed, { ...asked, at: clock.wall(), body: 'b', ...otherwise });
const caller = (
  access: ReturnType<typeof open>,
  authorization: string | undefined,
  more: object = {},
): CallerAdmission['caller'] | null => access.callerOf(authorization, { ...asked, ...more })?.caller ?? null;
const encoded = (text: string) => Buffer.from(text).toString('base64url');

test('tokens are made once, for this user only', () => {
  const access = open();
  expect([file('read'), file('operator')].map((path) => statSync(path).mode & 0o777)).toEqual([0o600, 0o600]);
  expect(caller(access, token('read'))).toEqual({ role: 'read', user: null, until: null, person: null });
  expect(caller(open(), token('operator'))).toEqual({ role: 'operator', user: null, until: null, person: null });
});

test('a kill while a token is made leaves none, and the next start makes it', () => {
  mkdirSync(join(dir.path, 'api'), { mode: 0o700 });
  writeFileSync(`${file('operator')}.new`, '', { mode: 0o600 });
  expect(caller(open(), token('operator'))).toMatchObject({ role: 'operator' });
  expect(readdirSync(join(dir.path, 'api')).toSorted()).toEqual(['identity.key', 'operator.token', 'read.token']);
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
  expect(caller(open(), authorization)).toBeNull();
});

test('a session is worth nothing without signatures, and a token is not a session', () => {
  const access = open();
  const { session } = signIn(access);
  for (const sent of [`Bearer ${session}`, `Bearer ${session.replace('ojs_', '')}`, `Onejob session=${session}`])
    expect(caller(access, sent)).toBeNull();
  expect(caller(access, header({ session: `ojs_${token('read').replace('Bearer ', '')}`, sign: browser.sign }))).toBeNull();
});

test('a session of an earlier onejob, which had no key, is refused', () => {
  const access = open();
  const text = encoded(JSON.stringify({ ...eve, until: clock.wall() + 1_000, person: null }));
  const secret = token('read').replace('Bearer ', '');
  const session = `ojs_${text}.${createHmac('sha256', secret).update(`session ${text}`).digest('base64url')}`;
  expect([caller(access, `Bearer ${session}`), caller(access, header({ session, sign: browser.sign }))]).toEqual([null, null]);
});

test('what was signed is good for that request, this listener and about now only', () => {
  const access = open();
  const signed = signIn(access);
  expect(access.callerOf(header(signed), asked)).toMatchObject({ caller: eve, body: hashOf('b') });
  const { at, ...others } = { method: 'GET', path: '/v1/jobs', challenge: 'd', at: clock.wall() - 60_001 };
  for (const [name, value] of Object.entries(others)) expect(caller(access, header(signed, { [name]: value }))).toBeNull();
  expect(caller(access, header(signed, { at }))).toBeNull();
  const sent = header(signed);
  expect(caller(access, sent.replace(hashOf('b'), hashOf('other')))).toBeNull();
  // The port that another program has now, and passes on to this daemon.
  expect(caller(access, sent, { port: port + 1 })).toBeNull();
  clock.advance(60_001);
  expect(caller(access, sent)).toBeNull();
});

test('a session needs the key that logged in', () => {
  const access = open();
  const { session } = signIn(access);
  expect(caller(access, header({ session, sign: browserKey().sign }))).toBeNull();
  const { code } = access.code(eve);
  expect(() => access.login(code, { x: 'A'.repeat(43), y: 'A'.repeat(43) }, port)).toThrow(/not a public key on P-256/);
  expect(access.login(code, browser.key, port)).toMatchObject({ role: 'read', user: 'eve' });
});

test('the daemon has the same key after a restart, and proves who it is with it', () => {
  const access = open();
  expect(open().key).toEqual(access.key);
  const key = createPublicKey({ key: { kty: 'EC', crv: 'P-256', ...access.key }, format: 'jwk' });
  const proof = Buffer.from(access.prove('text'), 'base64url');
  expect(verify('sha256', Buffer.from('text'), { key, dsaEncoding: 'ieee-p1363' }, proof)).toBe(true);
  writeFileSync(join(dir.path, 'api', 'identity.key'), 'x'.repeat(40), { mode: 0o600 });
  expect(open).toThrow(/identity\.key: it is not a private key on P-256/);
});

test('a code is good for one login, and a minute', () => {
  const access = open();
  const { code, until } = access.code(eve);
  expect(until).toBe(clock.wall() + 60_000);
  expect(access.login(code, browser.key, port)).toMatchObject({ role: 'read', user: 'eve' });
  expect(() => access.login(code, browser.key, port)).toThrow(expect.objectContaining({ code: 'E_API_LOGIN' }));
  const late = access.code(eve).code;
  clock.advance(60_000);
  expect(() => access.login(late, browser.key, port)).toThrow(expect.objectContaining({ code: 'E_API_LOGIN' }));
});

test('a session survives a restart, and ends after a week', () => {
  const access = open();
  const signed = signIn(access);
  expect(caller(open(), header(signed))).toEqual({ ...eve, until: clock.wall() + 7 * 86_400_000, person: null });
  clock.advance(7 * 86_400_000);
  expect(caller(access, header(signed))).toBeNull();
});

test('a changed session is refused', () => {
  const access = open();
  const { session, sign } = signIn(access);
  const [, payload = '', mac = ''] = /ojs_([^.]+)\.(.+)/.exec(session) ?? [];
  const raised = Buffer.from(payload, 'base64url').toString().replace('read', 'operator');
  for (const other of [session.replace(payload, encoded(raised)), session.replace(mac, mac.slice(1))])
    expect(caller(access, header({ session: other, sign }))).toBeNull();
});

test('a new token ends what the old one gave, and nothing else', () => {
  const access = open();
  const signed = signIn(access);
  const old = token('read');
  expect(access.refresh()).toBe(false);
  rmSync(file('read'));
  // Until the config is applied.
  expect(caller(access, old)).not.toBeNull();
  expect(access.refresh()).toBe(true);
  expect([caller(access, old), caller(access, header(signed))]).toEqual([null, null]);
  expect([caller(access, token('read')), caller(access, token('operator'))]).toMatchObject([
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
  for (let n = 0; n < 10; n += 1)
    expect(() => access.login('x', browser.key, port)).toThrow(expect.objectContaining({ code: 'E_API_LOGIN' }));
  expect(() => access.login('x', browser.key, port)).toThrow(expect.objectContaining({ code: 'E_API_LIMIT', retry: true }));
  expect(access.login(access.code(eve).code, browser.key, port)).toMatchObject({ role: 'read', user: 'eve' });
  clock.advance(60_000);
  expect(() => access.login('x', browser.key, port)).toThrow(expect.objectContaining({ code: 'E_API_LOGIN' }));
});

describe('a person', () => {
  const group = {
    name: 'lab',
    role: 'submit',
    pools: ['gpu'],
    volumes: [],
    images: [],
    logs: 'own',
    cards: null,
    cardsEach: null,
    weight: 1,
  } as const;
  const ada = { uid: 10_001, name: 'ada', group };
  const link = { role: 'operator', user: 'root', person: ada.uid } as const;
  const openFor = (found: Person | null) =>
    openAccess({ dir: dir.path, clock, people: { of: (uid) => (uid === ada.uid ? found : null) } });
  const session = (role: 'read' | 'operator') => {
    const access = openFor(ada);
    return { session: access.login(access.code({ ...link, role }).code, browser.key, port).session, sign: browser.sign };
  };

  test('has in a browser what the group has now, and no more than the link was for', () => {
    const [whole, looks] = [session('operator'), session('read')];
    expect(caller(openFor(ada), header(whole))).toMatchObject({ role: 'submit', user: 'ada', person: ada });
    expect(caller(openFor(ada), header(looks))).toMatchObject({ role: 'read', user: 'ada' });
    expect(caller(openFor({ ...ada, group: { ...group, role: 'look' } }), header(whole))).toMatchObject({ role: 'read' });
    expect(caller(openFor(null), header(whole))).toBe(null);
    expect(caller(open(), header(whole))).toBe(null);
  });

  test('is nobody whom a token of readers can make, nor an operator', () => {
    const made = session('operator');
    const [, text = ''] = /^ojs_([\w-]+)\./.exec(made.session) ?? [];
    const said = JSON.parse(Buffer.from(text, 'base64url').toString());
    const key = (role: string) => readFileSync(file(role), 'utf8').trim();
    const sign = (payload: object, by: string, what: string) => {
      const forged = encoded(JSON.stringify(payload));
      return {
        session: `ojs_${forged}.${createHmac('sha256', key(by)).update(`${what} ${forged}`).digest('base64url')}`,
        sign: browser.sign,
      };
    };
    for (const forged of [
      sign({ ...said, role: 'read' }, 'read', 'session'),
      sign({ ...said, role: 'read' }, 'read', 'person'),
      sign({ ...said, person: null }, 'read', 'session'),
      { ...made, session: made.session.replace(text, encoded(JSON.stringify({ ...said, person: null }))) },
      { ...made, session: made.session.replace(text, encoded(JSON.stringify({ ...said, person: 10_002 }))) },
    ])
      expect(caller(openFor(ada), header(forged))).toBe(null);
  });
});

test('a person who asks for many links takes those of nobody else away', () => {
  const access = open();
  const { code } = access.code(eve);
  for (let n = 0; n < 200; n++) access.code({ ...eve, person: 1 });
  const { code: theirs } = access.code({ ...eve, person: 2 });
  expect(access.login(code, browser.key, port)).toMatchObject({ user: 'eve' });
  expect(access.login(theirs, browser.key, port)).toMatchObject({ user: 'eve' });
});
