/**
 * Signatures of minisign (https://jedisct1.github.io/minisign/): Ed25519 of the BLAKE2b-512 of a file, and of that signature with a
 * comment. Nothing of a file may be used before `signatureProblem` has found none.
 */
import { createHash, createPublicKey, type KeyObject, verify } from 'node:crypto';

export interface MinisignKey {
  /** As minisign shows it. */
  readonly id: string;
  readonly key: KeyObject;
}

/** DER of an Ed25519 key without the key (RFC 8410). */
const spki = Buffer.from('302a300506032b6570032100', 'hex');

/** minisign reads it as a number of 64 bits, lowest byte first. */
const idOf = (bytes: Buffer): string => Buffer.from(bytes).reverse().toString('hex').toUpperCase();

/** Exactly `length` bytes in base64; null for anything else. */
function decode(text: string, length: number): Buffer | null {
  const bytes = Buffer.from(text, 'base64');
  return bytes.length === length && bytes.toString('base64') === text ? bytes : null;
}

/** The second line of a `minisign.pub`; null for anything else. */
export function minisignKey(text: string): MinisignKey | null {
  const bytes = decode(text, 42);
  if (bytes === null || bytes.toString('latin1', 0, 2) !== 'Ed') return null;
  const key = createPublicKey({ key: Buffer.concat([spki, bytes.subarray(10)]), format: 'der', type: 'spki' });
  return { id: idOf(bytes.subarray(2, 10)), key };
}

export interface Signed {
  /** Without folders. */
  readonly name: string;
  readonly bytes: Buffer;
  /** The text of its `.minisig`. */
  readonly signature: string;
}

/** Why this is not a file that the owner of the key signed under this name, as a clause; null: it is. */
export function signatureProblem({ name, bytes, signature }: Signed, { id, key }: MinisignKey): string | null {
  const [untrusted = '', first = '', comment = '', second = '', ...rest] = signature.replaceAll('\r\n', '\n').split('\n');
  const [own, whole] = [decode(first, 74), decode(second, 64)];
  const prefix = 'trusted comment: ';
  const isWhole = untrusted.startsWith('untrusted comment: ') && comment.startsWith(prefix) && rest.join('') === '';
  if (!isWhole || own === null || whole === null) return 'its signature is not one of minisign';
  const kind = own.toString('latin1', 0, 2);
  if (kind === 'Ed') return 'its signature has the old format of minisign: sign it again without -l';
  if (kind !== 'ED') return 'its signature is not one of minisign';
  const signer = idOf(own.subarray(2, 10));
  if (signer !== id) return `it is signed with key ${signer}, not with ${id}`;
  const ofFile = own.subarray(10);
  if (!verify(null, createHash('blake2b512').update(bytes).digest(), key, ofFile))
    return `its bytes are not those that were signed with key ${id}`;
  const trusted = comment.slice(prefix.length);
  if (!verify(null, Buffer.concat([ofFile, Buffer.from(trusted)]), key, whole))
    return 'the trusted comment of its signature was changed';
  // An older release under the name of a newer one is signed, too.
  const named = /(?:^|\t)file:([^\t]*)/.exec(trusted)?.[1];
  return named === undefined || named === name ? null : `it was signed under another name, ${JSON.stringify(named)}`;
}
