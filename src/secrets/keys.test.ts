/** Key files: several keys in one, what is wrong with one by line, and never a word of what stands there. */
import { generateKeyPairSync } from 'node:crypto';
import { inspect } from 'node:util';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { ageKey, rsaKey } from '../../test/kit/secrets.ts';
import { OnejobError } from '../base/errors.ts';
import { makeKey, parseKeys, parsePublicKeys, publicOf } from './keys.ts';

const age = await ageKey();
const second = await ageKey();
const rsa = rsaKey();

async function problem(text: string): Promise<string> {
  const error = await parseKeys(text, '/etc/key').catch((thrown: unknown) => thrown);
  if (!(error instanceof OnejobError)) throw new Error('it was taken');
  expect(error.code).toBe('E_SECRET_KEY');
  return error.message;
}

describe('a file', () => {
  it('may hold keys of both kinds, in any order, with comments, blank lines and either line end', async () => {
    const text = `# new\n${age.text}\n\n${rsa.pem}# old\n${second.text}`;
    for (const each of [text, text.replaceAll('\n', '\r\n'), text.trimEnd(), `\n  ${age.text.trim()}\n${rsa.pem}${second.text}`]) {
      const { keys } = await parseKeys(each);
      expect(keys.map((key) => key.kind)).toEqual(['x25519', 'rsa', 'x25519']);
      expect([keys[0]?.id, keys[2]?.id]).toEqual([age.key.id, second.key.id]);
    }
  });

  it('gives the public halves, which have the same ids', async () => {
    const { keys } = await parseKeys(`${age.text}${rsa.pem}`);
    const halves = keys.map(publicOf);
    expect(halves).toEqual([`${age.key.recipient}\n`, rsa.publicPem]);
    expect((await parsePublicKeys(halves.join(''))).map((key) => key.id)).toEqual(keys.map((key) => key.id));
    expect((await parsePublicKeys(`${age.text}${rsa.pem}`)).map(publicOf)).toEqual(halves);
  });

  it('that was just made holds one key, and its public half as a comment', async () => {
    for (const kind of ['x25519', 'rsa'] as const) {
      const text = await makeKey(kind, 'made for a test');
      const { keys } = await parseKeys(text);
      expect([keys.length, keys[0]?.kind, text.startsWith('# made for a test\n')]).toEqual([1, kind, true]);
    }
    expect(age.text).toContain(`# public key: ${age.key.recipient}\n`);
  });
});

describe('what is wrong', () => {
  const line = age.text.trim().split('\n').at(-1) ?? '';
  const ec = generateKeyPairSync('x25519').privateKey.export({ type: 'pkcs8', format: 'pem' }).toString();
  const locked = generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey.export({
    type: 'pkcs8',
    format: 'pem',
    cipher: 'aes-256-cbc',
    passphrase: 'x',
  });

  it.each([
    ['an empty file', '# nothing\n\n', 'it contains no private key'],
    ['a line that is not a key', `${age.text}hunter2\n`, 'line 4: is not a key: expected AGE-SECRET-KEY-1…, age1… or a PEM block'],
    ['a key that was cut off', line.slice(0, -4), 'line 1: is a damaged private key'],
    ['a key that was mistyped', line.replace(/.$/, (end) => (end === 'Q' ? 'P' : 'Q')), 'line 1: is a damaged private key'],
    ['a public key', age.key.recipient, 'line 1: is a public key; the private key begins with AGE-SECRET-KEY-1'],
    ['a public PEM block', rsa.publicPem, 'line 1: is a public key; the private key is needed'],
    ['a block without an end', `#\n${rsa.pem.slice(0, 400)}`, 'line 2: the PEM block that begins here does not end'],
    ['a block in a block', `${rsa.pem.slice(0, 400)}\n${rsa.pem}`, 'line 1: the PEM block that begins here does not end'],
    ['a damaged block', rsa.pem.replace(/\n.{40}/, '\nMIIE'), 'line 1: the PEM block that begins here is not a valid private key'],
    ['a key for something else', ec, 'line 1: is a key for x25519, but onejob reads only RSA keys from PEM'],
    ['a passphrase', String(locked), 'line 1: is a private key with a passphrase'],
    ['a key that anyone can break', rsaKey(512).pem, 'line 1: is an RSA key of 512 bits'],
  ])('%s', async (_name, text, why) => {
    expect(await problem(text)).toContain(why);
  });

  it('all of it at once', async () => {
    expect(await problem(`one\n${age.text}two\n`)).toMatch(
      /^\/etc\/key cannot be used: line 1: is not a key.*; line 5: is not a key/,
    );
  });

  it('in whatever way a file is damaged: one kind of error, and nothing of its keys', async () => {
    const text = `${age.text}${rsa.pem}`;
    const words = [line.slice(16, 40), ...rsa.pem.split('\n').filter((each) => each.length === 64)];
    const edit = fc.tuple(fc.nat(text.length), fc.nat(300), fc.string({ maxLength: 10 }));
    await fc.assert(
      fc.asyncProperty(edit, async ([at, gone, put]) => {
        const bad = text.slice(0, at) + put + text.slice(at + gone);
        const found = await parseKeys(bad).catch((error: unknown) => error);
        if (found instanceof Error) expect([found, found.cause]).toMatchObject([{ code: 'E_SECRET_KEY' }, undefined]);
        const shown = found instanceof Error ? `${found.message}${inspect(found)}` : inspect(found, { depth: 9, showHidden: true });
        for (const word of words) expect(shown).not.toContain(word);
      }),
      { numRuns: 150 },
    );
  });
});
