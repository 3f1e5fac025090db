/** The padding is taken off by hand, so every way in which it can be wrong is tried. */
import { constants, type KeyObject, publicEncrypt } from 'node:crypto';
import { expect, it } from 'vitest';
import { rsaKey } from '../../test/kit/secrets.ts';
import { decryptRsa, encryptRsa, lengthOf, seedRoom } from './seed-format.ts';

const { key } = rsaKey(1024);

function raw(to: KeyObject, block: Buffer): Buffer {
  return publicEncrypt({ key: to, padding: constants.RSA_NO_PADDING }, block);
}
/** `parts` and as many bytes 7 as fill the block, at the place of null. */
function block(...parts: (Buffer | number[] | null)[]): Buffer {
  const length = parts.reduce((sum, each) => sum + (each?.length ?? 0), 0);
  return Buffer.concat(parts.map((each) => (each === null ? Buffer.alloc(128 - length, 7) : Buffer.from(each))));
}
const open = (of: Buffer) => decryptRsa(key, raw(key, of));

it('what is encrypted comes back, whatever its length', () => {
  expect([lengthOf(key), seedRoom(key)]).toEqual([128, 117]);
  for (const length of [0, 1, 64, 117]) {
    const message = Buffer.alloc(length, 0xa5);
    expect(decryptRsa(key, encryptRsa(key, message))).toEqual({ isGood: true, message });
  }
});

it.each([
  ['good', block([0, 2], null, [0], Buffer.from('hello')), true],
  ['eight bytes of padding', block([0, 2, 1, 1, 1, 1, 1, 1, 1, 1, 0], Buffer.alloc(117, 3)), true],
  ['seven bytes of padding', block([0, 2, 1, 1, 1, 1, 1, 1, 1, 0], Buffer.alloc(118, 3)), false],
  ['no padding at all', block([0, 2, 0], null), false],
  ['no end of the padding', block([0, 2], null), false],
  ['another kind of padding', block([0, 1], null, [0, 9]), false],
  ['another first byte', block([1, 2], null, [0, 9]), false],
  ['the end of the padding is the end of the block', block([0, 2], null, [0]), true],
])('%s', (_name, bytes, isGood) => {
  expect(open(bytes).isGood).toBe(isGood);
});

it('the message begins behind the first zero byte', () => {
  expect(open(block([0, 2], null, [0, 1, 0, 2, 0]))).toEqual({ isGood: true, message: Buffer.from([1, 0, 2, 0]) });
});

it('a number that is not below the modulus is not a message', () => {
  expect(decryptRsa(key, Buffer.alloc(128, 0xff)).isGood).toBe(false);
});
