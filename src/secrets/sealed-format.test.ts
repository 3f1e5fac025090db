/** Values that are bound to their pipelines and their name: what opens, for whom, and that no changed bit does. */
import { inspect } from 'node:util';
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { ageKey } from '../../test/kit/secrets.ts';
import { anyCharacter } from '../../test/support/any-character.ts';
import { misfit, parseEnvelope, type Sealed, seal, unseal } from './sealed-format.ts';

const { key, text: keyText } = await ageKey();
const other = (await ageKey()).key;
const one: Sealed = { name: 'CODECOV_TOKEN', pipelines: ['acme/solver', 'acme/docs'], value: 'hunter2' };
const sealed = await seal(key, one);

it('is one line that says which key it is for', () => {
  expect(sealed).toMatch(/^oj1:[0-9a-f]{8}:[A-Za-z0-9_-]+$/);
  expect(parseEnvelope(sealed)?.key).toBe(key.id);
});

it('any text comes back exactly, with what it is for', async () => {
  const text = fc.string({ unit: anyCharacter, maxLength: 2_000 }).filter((value) => !value.includes('\0'));
  await fc.assert(
    fc.asyncProperty(text, async (value) => {
      expect(await unseal([other, key], await seal(key, { ...one, value }))).toEqual({ ok: true, sealed: { ...one, value } });
    }),
    { numRuns: 40 },
  );
  const long = { ...one, value: `${'ü'.repeat(32_767)}\n\n` };
  expect(await unseal([key], await seal(key, long))).toEqual({ ok: true, sealed: long });
});

it('no changed bit opens', async () => {
  await fc.assert(
    fc.asyncProperty(fc.nat(sealed.length - 1), fc.nat(7), async (at, bit) => {
      const letter = String.fromCharCode(sealed.charCodeAt(at) ^ (1 << bit));
      const found = await unseal([key], sealed.slice(0, at) + letter + sealed.slice(at + 1));
      expect(found.ok).toBe(false);
      expect(JSON.stringify(found)).not.toContain('hunter2');
    }),
    { numRuns: 300 },
  );
});

it('no changed byte of the decoded file opens', async () => {
  const bytes = parseEnvelope(sealed)?.body ?? Buffer.alloc(0);
  for (const [at, byte] of bytes.entries()) {
    const changed = Buffer.from(bytes);
    changed[at] = byte ^ 0x10;
    expect(await unseal([key], `oj1:${key.id}:${changed.toString('base64url')}`)).toMatchObject({ ok: false });
  }
});

it('cut off, prolonged or anything at all is refused with a reason', async () => {
  const cut = fc.nat(sealed.length - 1).map((length) => sealed.slice(0, length));
  const more = fc.string({ minLength: 1, maxLength: 9 }).map((tail) => sealed + tail);
  await fc.assert(
    fc.asyncProperty(fc.oneof(cut, more, fc.string()), async (bad) => {
      expect(await unseal([key], bad)).toEqual({ ok: false, why: expect.stringMatching(/^(is|was|does) /) });
    }),
    { numRuns: 150 },
  );
});

it('another key: its id and ours are named', async () => {
  expect(await unseal([other], sealed)).toEqual({ ok: false, why: `was made for key ${key.id}, and this host has ${other.id}` });
  expect(await unseal([], sealed)).toEqual({ ok: false, why: `was made for key ${key.id}, and this host has no key of this kind` });
  // Our id in front of it does not mean that it was encrypted for us.
  expect(await unseal([other], sealed.replace(key.id, other.id))).toMatchObject({
    ok: false,
    why: expect.stringMatching(/^does not decrypt/),
  });
});

it('a later version says so', async () => {
  expect(await unseal([key], sealed.replace('oj1:', 'oj2:'))).toEqual({ ok: false, why: 'was made by a later version of onejob' });
});

it('what another tool encrypted for the same key is not a value', async () => {
  const { Encrypter } = await import('age-encryption');
  for (const inside of [
    'hunter2',
    '{"v":1}',
    '{"v":2,"name":"A","pipelines":["a/b"],"value":"x"}',
    '{"v":1,"name":"A","pipelines":["*/b"],"value":"x"}',
  ]) {
    const encrypter = new Encrypter();
    encrypter.addRecipient(key.recipient);
    const bytes = Buffer.from(await encrypter.encrypt(inside));
    expect(await unseal([key], `oj1:${key.id}:${bytes.toString('base64url')}`)).toMatchObject({ ok: false });
  }
});

it('is for its pipelines and its name only', () => {
  const job = { name: 'CODECOV_TOKEN', organisation: 'acme', pipeline: 'docs' };
  expect(misfit(one, job)).toBeNull();
  expect(misfit(one, { ...job, pipeline: 'site' })).toBe('was encrypted for acme/solver and acme/docs, not for acme/site');
  expect(misfit(one, { ...job, organisation: 'other' })).toBe('was encrypted for acme/solver and acme/docs, not for other/docs');
  expect(misfit(one, { ...job, pipeline: null })).toContain('not for a job of an unknown pipeline');
  expect(misfit(one, { ...job, name: 'TOKEN' })).toBe('was encrypted as SECRET_CODECOV_TOKEN, and is used as SECRET_TOKEN');
  expect(misfit({ ...one, pipelines: ['acme/*'] }, { ...job, pipeline: 'any' })).toBeNull();
  expect(misfit({ ...one, pipelines: ['acme/*'] }, { ...job, organisation: 'acme2' })).toBe(
    'was encrypted for acme/*, not for acme2/docs',
  );
  expect(misfit({ ...one, pipelines: ['*/*'] }, { ...job, organisation: null })).not.toBeNull();
});

it('shows nothing of a private key', () => {
  const material = keyText.match(/AGE-SECRET-KEY-1(\w+)/)?.[1] ?? '?';
  expect(inspect(key, { depth: 9, showHidden: true }) + JSON.stringify(key)).not.toContain(material);
});
