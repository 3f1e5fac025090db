/** Values of the old format against OpenSSL's own command line, both ways, and what cannot be opened. */
import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { rsaKey } from '../../test/kit/secrets.ts';
import { anyCharacter } from '../../test/support/any-character.ts';
import { lacks } from '../../test/support/require.ts';
import { scratch } from '../../test/support/scratch.ts';
import { decryptSeed, doesNotOpen, encryptRsa, encryptSeed, parseSeed } from './seed-format.ts';

const dir = scratch();
const { key, pem, publicPem } = rsaKey();
const other = rsaKey();
const files = { key: join(dir.path, 'private.pem'), pub: join(dir.path, 'public.pem'), half: join(dir.path, 'half') };
beforeAll(() => {
  writeFileSync(files.key, pem);
  writeFileSync(files.pub, publicPem);
});
afterAll(() => dir[Symbol.dispose]());

/** Values stand on standard input, never in the script. */
function bash(script: string, input: string): string {
  const run = spawnSync('bash', ['-euo', 'pipefail', '-c', script], {
    input,
    encoding: 'utf8',
    env: { ...process.env, KEY: files.key, PUB: files.pub, HALF: files.half },
  });
  if (run.status !== 0) throw new Error(run.stderr);
  return run.stdout;
}
const opened = (value: string) => ({ ok: true, value });
const refused = { ok: false, why: doesNotOpen };

describe.skipIf(lacks('openssl'))('with the command line of OpenSSL', () => {
  // As the fleet's own tool does it: a key text into a file, both halves encoded on one line.
  const encryptBy = (rsa: string) => `
    openssl rand -base64 128 >"$HALF"
    ek=$(openssl ${rsa} -encrypt -pubin -inkey "$PUB" -in "$HALF" | openssl base64 -A)
    ev=$(openssl enc -aes-256-cbc -salt -pbkdf2 -iter 100000 -pass file:"$HALF" | openssl base64 -A)
    printf '%s;%s' "$ek" "$ev"`;
  const decryptBy = (rsa: string) => `
    IFS= read -r secret || :
    printf %s "\${secret%%;*}" | openssl base64 -d -A | openssl ${rsa} -decrypt -inkey "$KEY" -out "$HALF"
    printf %s "\${secret##*;}" | openssl base64 -d -A | openssl enc -d -aes-256-cbc -pbkdf2 -iter 100000 -pass file:"$HALF"`;

  it.each(['rsautl', 'pkeyutl'])('what it encrypted (%s) is opened', async (rsa) => {
    for (const value of ['hunter2', '{"a": "b c"}\nline two \\n\n  three', 'Grüße 🚀', 'x'.repeat(5_000)]) {
      const text = bash(encryptBy(rsa), `${value}\n`);
      expect(text).toMatch(/^[A-Za-z0-9+/]{342}==;U2FsdGVkX1[A-Za-z0-9+/]+=*$/);
      expect(await decryptSeed([key], text)).toEqual(opened(value));
    }
  });

  it.each(['rsautl', 'pkeyutl'])('it opens what is encrypted here (%s)', async (rsa) => {
    for (const value of ['hunter2', 'a\n\n  b \\ * "$HOME"', 'Grüße 🚀', 'x'.repeat(5_000)]) {
      expect(bash(decryptBy(rsa), await encryptSeed(publicPem, value))).toBe(`${value}\n`);
      // The key text has the very form that OpenSSL prints.
      expect(readFileSync(files.half, 'utf8')).toMatch(/^[A-Za-z0-9+/]{64}\n[A-Za-z0-9+/]{64}\n[A-Za-z0-9+/]{43}=\n$/);
    }
  });

  it('a value without a semicolon, from before values had two halves, is opened', async () => {
    const text = bash('openssl rsautl -encrypt -pubin -inkey "$PUB" | openssl base64 -A', 'hunter2\n');
    expect(text).toMatch(/^[A-Za-z0-9+/]{342}==$/);
    expect(await decryptSeed([key], text)).toEqual(opened('hunter2'));
  });

  it('a PKCS#1 private key of older OpenSSL opens the same', async () => {
    const { createPrivateKey } = await import('node:crypto');
    const old = createPrivateKey(bash('openssl rsa -in "$KEY" -traditional 2>/dev/null', ''));
    expect(await decryptSeed([old], await encryptSeed(publicPem, 'hunter2'))).toEqual(opened('hunter2'));
  });
});

describe('round trips', () => {
  const values = fc
    .string({ unit: anyCharacter, maxLength: 400 })
    .filter((value) => !value.includes('\0') && !value.endsWith('\n'));
  it('of any text that does not end with a newline', async () => {
    await fc.assert(
      fc.asyncProperty(values, async (value) => {
        expect(await decryptSeed([key], await encryptSeed(publicPem, value))).toEqual(opened(value));
      }),
      { numRuns: 30 },
    );
  });

  it('any of several keys may be the one, also of another length', async () => {
    const long = rsaKey(4096);
    const text = await encryptSeed(long.publicPem, 'hunter2');
    expect(await decryptSeed([key, long.key, other.key], text)).toEqual(opened('hunter2'));
  });

  it('is the same for the same random bytes, but for the padding', async () => {
    const random = (bytes: number) => Buffer.alloc(bytes, 1);
    const [one = '', two = ''] = [await encryptSeed(publicPem, 'x', random), await encryptSeed(publicPem, 'x', random)];
    expect(one.split(';')[1]).toBe(two.split(';')[1]);
  });

  it('takes all newlines off the end, as the shell does', async () => {
    const text = encryptRsa(key, Buffer.from('hunter2\n\n\n')).toString('base64');
    expect(await decryptSeed([key], text)).toEqual(opened('hunter2'));
  });
});

describe('what is not encrypted', () => {
  it.each([
    ['a NUL byte', 'a\0b', 'NUL byte'],
    ['half a character', 'a\ud800', 'not valid Unicode'],
    ['a newline at the end', 'a\n', 'ends with a newline'],
    ['more than 64 KiB', 'x'.repeat(65_537), 'the maximum is 65536'],
  ])('%s', async (_name, value, why) => {
    await expect(encryptSeed(publicPem, value)).rejects.toMatchObject({
      code: 'E_SECRET_VALUE',
      message: expect.stringContaining(why),
    });
  });

  it('for a key that is too short for the form', async () => {
    await expect(encryptSeed(rsaKey(1024).publicPem, 'x')).rejects.toMatchObject({ code: 'E_SECRET_KEY' });
  });
});

describe('what does not open', () => {
  it('says the same for another key, a changed key half and a changed value half', async () => {
    const text = await encryptSeed(publicPem, 'hunter2');
    const [first = '', second = ''] = text.split(';');
    const flip = (part: string, at: number) => {
      const bytes = Buffer.from(part, 'base64');
      bytes[at] = (bytes[at] ?? 0) ^ 1;
      return bytes.toString('base64');
    };
    expect(await decryptSeed([other.key], text)).toEqual(refused);
    expect(await decryptSeed([key], `${flip(first, 100)};${second}`)).toEqual(refused);
    expect(await decryptSeed([key], `${first};${flip(second, 12)}`)).toEqual(refused);
    expect(await decryptSeed([key], `${first};${flip(second, 31)}`)).toEqual(refused);
    expect(
      await decryptSeed(
        [key],
        first.replace(/^./, (letter) => (letter === 'A' ? 'B' : 'A')),
      ),
    ).toEqual(refused);
    expect(await decryptSeed([rsaKey(3072).key], text)).toEqual(refused);
  });

  it('the half before the semicolon is not handed out as a value: it is the key of the other', async () => {
    const [first = ''] = (await encryptSeed(publicPem, 'hunter2')).split(';');
    expect(await decryptSeed([key], first)).toEqual({ ok: false, why: 'is only the part of an encrypted value before its ";"' });
  });

  it('a password of an unknown form is not accepted', async () => {
    const short = encryptRsa(key, Buffer.from('password\n')).toString('base64');
    const [, second = ''] = (await encryptSeed(publicPem, 'hunter2')).split(';');
    expect(await decryptSeed([key], `${short};${second}`)).toEqual(refused);
  });

  it('text that is not UTF-8, or holds a NUL byte', async () => {
    for (const bytes of [Buffer.from([0xff, 0xfe]), Buffer.from('a\0b')]) {
      expect(await decryptSeed([key], encryptRsa(key, bytes).toString('base64'))).toEqual(refused);
    }
  });

  it('cut off anywhere, or anything at all: never an error, never a word of the value', async () => {
    const text = await encryptSeed(publicPem, 'hunter2-and-more-of-it');
    const cut = fc.nat(text.length - 1).map((length) => text.slice(0, length));
    const edited = fc
      .tuple(fc.nat(text.length), fc.nat(20), fc.string({ maxLength: 20 }))
      .map(([at, gone, put]) => text.slice(0, at) + put + text.slice(at + gone));
    await fc.assert(
      fc.asyncProperty(fc.oneof(cut, edited, fc.string({ maxLength: 600 }), fc.base64String({ maxLength: 600 })), async (bad) => {
        fc.pre(bad !== text);
        const found = await decryptSeed([key], bad);
        expect(found.ok).toBe(false);
        expect(JSON.stringify(found)).not.toContain('hunter');
      }),
      { numRuns: 100 },
    );
  });

  it('has one spelling: blanks, missing padding and other letters for the same bytes are refused', async () => {
    const text = await encryptSeed(publicPem, 'hunter2');
    for (const bad of [
      ` ${text}`,
      `${text}\n`,
      text.replace('==;', ';'),
      text.replace('==;', '=;'),
      `${text};`,
      text.replaceAll('+', '-'),
    ]) {
      if (bad !== text) expect(parseSeed(bad)).toBeNull();
    }
  });
});
