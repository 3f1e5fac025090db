/** Which variables of a job are encrypted, what tells values apart, and what opens for whom. */
import { describe, expect, it } from 'vitest';
import { ageKey, keysOf, rsaKey } from '../../test/kit/secrets.ts';
import { formatOf, openSecret, secretFingerprint, secretsIn } from './open.ts';
import { seal } from './sealed-format.ts';
import { encryptRsa, encryptSeed } from './seed-format.ts';

const age = (await ageKey()).key;
const rsa = rsaKey();
const seed = await encryptSeed(rsa.publicPem, 'hunter2');
const plain = encryptRsa(rsa.key, Buffer.from('hunter2\n')).toString('base64');
const sealed = await seal(age, { name: 'TOKEN', pipelines: ['acme/solver'], value: 'hunter2' });
const keys = keysOf(age, rsa.key);
const job = { name: 'TOKEN', organisation: 'acme', pipeline: 'solver', keys };

it('variables that begin with SECRET_ are encrypted ones', () => {
  const env = {
    SECRET_B: ' two\n',
    SECRET_A: 'one',
    MY_SECRET_KEY: 'x',
    SECRET_: 'x',
    SECRET_1ST: 'x',
    'SECRET_A-B': 'x',
    secret_c: 'x',
  };
  expect(secretsIn(env)).toEqual([
    { name: 'A', variable: 'SECRET_A', text: 'one' },
    { name: 'B', variable: 'SECRET_B', text: 'two' },
  ]);
});

it('the format shows without a key', () => {
  expect([seed, plain, sealed].map(formatOf)).toEqual(['seed', 'plain-rsa', 'sealed']);
  for (const text of ['', 'hunter2', '$SECRET', `${seed}=`, sealed.slice(0, -1), 'oj1:', 'x;y', 'A'.repeat(200_000)]) {
    expect(formatOf(text), text.slice(0, 20)).toBeNull();
  }
});

describe('a fingerprint', () => {
  it('is of the ciphertext, and tells values apart', async () => {
    const all = [seed, plain, sealed, await encryptSeed(rsa.publicPem, 'hunter2')].map(secretFingerprint);
    expect(new Set(all).size).toBe(4);
    for (const each of all) expect(each).toMatch(/^[0-9a-f]{32}$/);
  });

  it('stays when an old value is changed so that it may still open', async () => {
    const [first = '', second = ''] = seed.split(';');
    const longer = Buffer.concat([Buffer.from(second, 'base64'), Buffer.alloc(16)]).toString('base64');
    for (const text of [first, `${first};${longer}`]) expect(secretFingerprint(text)).toBe(secretFingerprint(seed));
  });

  it('is there for anything', () => {
    expect(secretFingerprint('')).toMatch(/^[0-9a-f]{32}$/);
  });
});

describe('opening', () => {
  it('each format by its kind of key', async () => {
    expect(await openSecret({ ...job, text: seed })).toEqual({ ok: true, value: 'hunter2', format: 'seed' });
    expect(await openSecret({ ...job, text: plain })).toEqual({ ok: true, value: 'hunter2', format: 'plain-rsa' });
    expect(await openSecret({ ...job, text: sealed })).toEqual({ ok: true, value: 'hunter2', format: 'sealed' });
  });

  it.each([
    ['another pipeline', { pipeline: 'docs', text: sealed }, 'was encrypted for acme/solver, not for acme/docs'],
    ['another organisation', { organisation: 'evil', text: sealed }, 'was encrypted for acme/solver, not for evil/solver'],
    ['another name', { name: 'OTHER', text: sealed }, 'was encrypted as SECRET_TOKEN, and is used as SECRET_OTHER'],
    ['no RSA key', { keys: keysOf(age), text: seed }, 'was encrypted in the old format, but this host has no RSA key'],
    ['nothing encrypted', { text: 'hunter2' }, 'is not an encrypted value, or is damaged or cut off'],
    ['a damaged one', { text: sealed.slice(0, -9) }, /does not open|damaged/],
    ['far too long', { text: `oj1:${'A'.repeat(200_000)}` }, 'is too long to be an encrypted value'],
  ])('%s is refused', async (_name, more, why) => {
    const found = await openSecret({ ...job, ...more });
    expect(found).toEqual({ ok: false, why: typeof why === 'string' ? why : expect.stringMatching(why) });
  });
});
