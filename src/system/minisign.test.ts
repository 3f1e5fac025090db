/** Against what the program minisign 0.11 wrote; `cli/upgrade.test.ts` runs the program itself. */
import { describe, expect, test } from 'vitest';
import { type MinisignKey, minisignKey, signatureProblem } from './minisign.ts';

const ours = 'RWTsQuC0HjPu8X1iRf0O6PKScPmoDsZxGzgjgufU1KILRx7Vi02luwwu';
const others = 'RWRU5XrKL67vxfVYut0L8+AHeWTCIkZfhxOk/IIV42pdJRNG9aoeB/FW';
const name = 'onejob-1.2.0-linux-x64.tar.gz';
const bytes = Buffer.from('a release\n');

const signature = `untrusted comment: signature from minisign secret key
RUTsQuC0HjPu8UAwG5v8Zh/2tPwXsnqQCpOVuJbEGGqC1JTDOqBb81pp7Ts6Q5Tgra5rVcO7EePr82tr6l0J0vh0z/KmazUpngI=
trusted comment: timestamp:1795875542	file:onejob-1.2.0-linux-x64.tar.gz	hashed
bUPG3fqPAdS33pVwYfm8qW7QyuPeYmmfLKU3VrQenehViQZPk4yeBepYn+Vv/F8c7q75SNy5U1JroDRMpRdgAw==
`;
const legacy = `untrusted comment: signature from minisign secret key
RWTsQuC0HjPu8flk0RVKOF8IEPOQB3i9IH9g+N3OGdXyhn57jhoNPGAo7eGXjWZx8c1mAa7bSQ/6YAdrifGUJ5IH26vtdQLD0gw=
trusted comment: timestamp:1795875542	file:onejob-1.2.0-linux-x64.tar.gz
4jr+oSBCyzSgSGws6TlB0h2HgdKvFhTHC7PSBXPISBBRW466ld/zp0XeYeFltXrCu9e0Af4P1eqSQEU3iPZ7AA==
`;
const byOthers = `untrusted comment: signature from minisign secret key
RURU5XrKL67vxVYGZIGq0I2vAzyAIjSqcxsDE5dEDRm59LSANM1budlwLSd9rq4Exhp8xBO7iP6yLACjFbaB9mXr11ItclUZIw4=
trusted comment: timestamp:1795875542	file:onejob-1.2.0-linux-x64.tar.gz	hashed
cNZBcPG2Vzb4JuZ0aL0b9a7lJMzoC3m4O0/WVOtQh8IF+BQVgGkqA0KhI5+07HkjwOJzJ5kwpfuT76glPcyZAw==
`;

function keyOf(text: string): MinisignKey {
  const key = minisignKey(text);
  if (key === null) throw new Error(`not a key: ${text}`);
  return key;
}

/** With the key id of the first in place of its own. */
function underOurId(given: string): string {
  const [id, other] = [ours, given.split('\n')[1] ?? ''].map((text) => Buffer.from(text, 'base64'));
  id?.copy(other ?? Buffer.alloc(0), 2, 2, 10);
  return given.replace(/\n.*\n/, `\n${other?.toString('base64')}\n`);
}

describe('a signed file', () => {
  const problem = (change: object = {}) => signatureProblem({ name, bytes, signature, ...change }, keyOf(ours));

  test('is what the owner of the key signed', () => {
    expect(problem()).toBeNull();
    expect(problem({ signature: signature.replaceAll('\n', '\r\n') })).toBeNull();
    expect(problem({ signature: signature.replace('signature from minisign secret key', 'anything') })).toBeNull();
    expect([keyOf(ours).id, keyOf(others).id]).toEqual(['F1EE331EB4E042EC', 'C5EFAE2FCA7AE554']);
  });

  test.each([
    ['other bytes', { bytes: Buffer.from('a release?\n') }, 'its bytes are not those that were signed with key F1EE331EB4E042EC'],
    ['no bytes', { bytes: Buffer.alloc(0) }, 'its bytes are not those'],
    ['another key', { signature: byOthers }, 'it is signed with key C5EFAE2FCA7AE554, not with F1EE331EB4E042EC'],
    ['another key under the id of ours', { signature: underOurId(byOthers) }, 'its bytes are not those'],
    ['a changed trusted comment', { signature: signature.replace('1795875542', '1895875542') }, 'trusted comment .* was changed'],
    ['the name of another release', { name: 'onejob-9.9.9-linux-x64.tar.gz' }, 'signed under another name, "onejob-1.2.0-'],
    ['the old format, which hashes nothing', { signature: legacy }, 'old format of minisign: sign it again without -l'],
    ['no trusted comment', { signature: signature.split('\n').slice(0, 2).join('\n') }, 'not one of minisign'],
    ['a second signature behind it', { signature: signature + signature }, 'not one of minisign'],
    ['no text', { signature: '' }, 'not one of minisign'],
    ['something else', { signature: '-----BEGIN PGP SIGNATURE-----\n' }, 'not one of minisign'],
  ])('with %s is refused', (_what, change, why) => {
    expect(problem(change)).toMatch(new RegExp(why));
  });

  test('with any changed bit in its signatures is refused', () => {
    const lines = signature.split('\n');
    for (const at of [1, 3]) {
      const whole = Buffer.from(lines[at] ?? '', 'base64');
      for (let bit = 0; bit < whole.length * 8; bit++) {
        const changed = Buffer.from(whole);
        changed[bit >> 3] = (changed[bit >> 3] ?? 0) ^ (1 << (bit & 7));
        expect(
          problem({ signature: lines.with(at, changed.toString('base64')).join('\n') }),
          `line ${at}, bit ${bit}`,
        ).not.toBeNull();
      }
    }
  });
});

test.each([
  ['', 'nothing'],
  [ours.slice(0, -4), 'too short'],
  [`${ours}AAAA`, 'too long'],
  [`${ours.slice(0, -1)} `, 'with a blank'],
  [byOthers.split('\n')[1] ?? '', 'a signature'],
  [`RUT${ours.slice(3)}`, 'of another kind'],
])('"%s" is not a key: %s', (text) => {
  expect(minisignKey(text)).toBeNull();
});
