/**
 * RSA with PKCS#1 v1.5 padding, as old encrypted values have it. The padding is removed here, without a branch on what is
 * secret: Node refuses to do it (`ERR_INVALID_ARG_VALUE`) where its OpenSSL has no implicit rejection (CVE-2023-46809), and
 * one that has it answers a wrong key with bytes that look like a message.
 */
import { constants, type KeyObject, privateDecrypt, publicEncrypt } from 'node:crypto';

/** Bytes of padding at least: `00 02`, eight that are not zero, `00`. */
const padding = 11;

/** Length of the modulus in bytes, which is that of every ciphertext. */
export function lengthOf(key: KeyObject): number {
  return Math.ceil((key.asymmetricKeyDetails?.modulusLength ?? 0) / 8);
}

/** Longest message in bytes. */
export function roomOf(key: KeyObject): number {
  return lengthOf(key) - padding;
}

export function encryptRsa(key: KeyObject, message: Uint8Array): Buffer {
  return publicEncrypt({ key, padding: constants.RSA_PKCS1_PADDING }, message);
}

/** `isGood` false: `message` means nothing. Who calls goes on as if it did, so that the time taken tells nobody which it was. */
export interface RsaMessage {
  readonly isGood: boolean;
  readonly message: Buffer;
}

/** `cipher` must have the length of the key's modulus. */
export function decryptRsa(key: KeyObject, cipher: Uint8Array): RsaMessage {
  try {
    return unpad(privateDecrypt({ key, padding: constants.RSA_NO_PADDING }, cipher));
  } catch {
    // A number that is not below the modulus: no ciphertext of this key, as anybody can tell.
    return { isGood: false, message: Buffer.alloc(0) };
  }
}

function unpad(block: Buffer): RsaMessage {
  let good = isZero(block[0]) & isZero((block[1] ?? 0) ^ 2);
  let searching = 1;
  let end = 0;
  for (let at = 2; at < block.length; at += 1) {
    const found = searching & isZero(block[at]);
    end |= at & -found;
    searching &= found ^ 1;
  }
  good &= searching ^ 1;
  good &= isLess(padding - 2, end);
  return { isGood: good === 1, message: block.subarray(end + 1) };
}

/** 1 or 0, of a byte. */
function isZero(byte = 0): number {
  return ((byte - 1) >>> 31) & 1;
}

/** 1 or 0, of small whole numbers. */
function isLess(a: number, b: number): number {
  return ((a - b) >>> 31) & 1;
}
