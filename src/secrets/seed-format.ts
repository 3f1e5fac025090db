/**
 * Encrypted values as shell scripts around OpenSSL write them for Buildkite fleets, byte for byte:
 * `base64(RSA PKCS#1 v1.5 of a key text);base64(openssl enc -aes-256-cbc -pbkdf2 -iter 100000 of value and newline)`.
 * Only the key text's first line is the password, since OpenSSL reads one line of a password file. Older ones have no `;`:
 * RSA directly over value and newline. Neither is authenticated, so the decrypted value may be an attacker's choice.
 *
 * Why a value does not decrypt is never shown: padding, password and text fail with the same words after the same work.
 */
import {
  constants,
  createCipheriv,
  createDecipheriv,
  createPublicKey,
  type KeyObject,
  pbkdf2,
  privateDecrypt,
  publicEncrypt,
  randomBytes,
} from 'node:crypto';
import { promisify } from 'node:util';
import { attempt, OnejobError } from '../base/errors.ts';
import { checkValue, decodeStrict, type Outcome, toText } from './encoding.ts';

const derive = promisify(pbkdf2);
const rounds = 100_000;
const magic = Buffer.from('Salted__');
/** Bytes in the key text: `openssl rand -base64 128`. */
const keyBytes = 128;
/** The key text: lines of 64, 64 and 44 characters, each with its newline; 175 bytes. */
const keyText = /^[A-Za-z0-9+/]{64}\n[A-Za-z0-9+/]{64}\n[A-Za-z0-9+/]{43}=\n$/;
const passwordLine = /^[A-Za-z0-9+/]{64}$/;

export type Decrypted = Outcome<{ readonly value: string }>;

/** The parts of an encrypted value; `body` null: RSA alone. */
interface SeedParts {
  readonly key: Buffer;
  readonly body: { readonly salt: Buffer; readonly cipher: Buffer } | null;
}

/** The end of the sentence "it …". */
export const doesNotOpen = 'does not decrypt with this key: it was encrypted for another key, or was changed since';
const malformed = 'is damaged or cut off: it is not what the encryption printed';
const halved = 'is only the part of an encrypted value before its ";"';

/**
 * @param publicKey SPKI PEM of an RSA key of 2048 bits or more
 * @param random returns that many random bytes; tests replace it
 * @throws OnejobError E_SECRET_VALUE for a value that this format cannot contain, E_SECRET_KEY for another or too short a key
 */
export async function encryptSeed(publicKey: string | KeyObject, value: string, random: (bytes: number) => Buffer = randomBytes) {
  checkValue(value);
  if (value.endsWith('\n')) {
    throw new OnejobError('E_SECRET_VALUE', 'The value cannot be encrypted: it ends with a newline, which the old format loses.', {
      hint: 'Omit --seed-format, or encode the value, such as with base64.',
    });
  }
  const key = typeof publicKey === 'string' ? createPublicKey(publicKey) : publicKey;
  if (key.asymmetricKeyType !== 'rsa' || seedRoom(key) < 245) {
    throw new OnejobError('E_SECRET_KEY', 'The old format needs an RSA key of 2048 bits or more.', {
      hint: 'Create one with "onejob secret keygen --rsa".',
    });
  }
  const text = random(keyBytes)
    .toString('base64')
    .replaceAll(/.{1,64}/g, '$&\n');
  const salt = random(8);
  const { secret, iv } = await cipherKey(text.slice(0, 64), salt);
  const cipher = createCipheriv('aes-256-cbc', secret, iv);
  const body = Buffer.concat([magic, salt, cipher.update(`${value}\n`, 'utf8'), cipher.final()]);
  return `${encryptRsa(key, Buffer.from(text)).toString('base64')};${body.toString('base64')}`;
}

/** The parts of an encrypted value, without any key; null for anything else. */
export function parseSeed(text: string): SeedParts | null {
  const [first = '', second, ...more] = text.split(';');
  const key = decodeStrict(first, 'base64');
  // The shortest RSA key that anyone could have used has 512 bits.
  if (key === null || key.length < 64 || more.length > 0) return null;
  if (second === undefined) return { key, body: null };
  const bytes = decodeStrict(second, 'base64');
  if (bytes === null || bytes.length < 32 || bytes.length % 16 !== 0 || !bytes.subarray(0, 8).equals(magic)) return null;
  return { key, body: { salt: bytes.subarray(8, 16), cipher: bytes.subarray(16) } };
}

/** Tries each of the RSA keys. It removes all newlines at the end, like the shell that these values were made for. */
export async function decryptSeed(keys: readonly KeyObject[], text: string): Promise<Decrypted> {
  const parts = parseSeed(text);
  if (parts === null) return { ok: false, why: malformed };
  let opened: Buffer | null = null;
  for (const key of keys) {
    if (lengthOf(key) !== parts.key.length) continue;
    opened = (await (parts.body === null ? openPlain(key, parts.key) : openBoth(key, parts.key, parts.body))) ?? opened;
  }
  const value = opened === null ? null : toText(opened);
  if (value === null) return { ok: false, why: doesNotOpen };
  // Handed out, it would decrypt its other half for anyone who has that.
  if (parts.body === null && keyText.test(value)) return { ok: false, why: halved };
  return { ok: true, value: value.replace(/\n+$/, '') };
}

function openPlain(key: KeyObject, cipher: Buffer): Buffer | null {
  const { isGood, message } = decryptRsa(key, cipher);
  return isGood ? message : null;
}

async function openBoth(key: KeyObject, cipher: Buffer, body: NonNullable<SeedParts['body']>): Promise<Buffer | null> {
  const { isGood, message } = decryptRsa(key, cipher);
  const line = message.toString('latin1').split('\n', 1)[0] ?? '';
  // A password of another form is not a key text: OpenSSL with implicit rejection returns such bytes for a wrong key.
  const isKey = isGood && passwordLine.test(line);
  // The slow part always runs: the time must not show whether the RSA half was good.
  const { secret, iv } = await cipherKey(isKey ? line : randomBytes(48).toString('base64'), body.salt);
  const decipher = createDecipheriv('aes-256-cbc', secret, iv);
  const opened = attempt(() => Buffer.concat([decipher.update(body.cipher), decipher.final()]));
  return isKey ? opened : null;
}

async function cipherKey(password: string, salt: Buffer): Promise<{ secret: Buffer; iv: Buffer }> {
  const bytes = await derive(password, salt, rounds, 48, 'sha256');
  return { secret: bytes.subarray(0, 32), iv: bytes.subarray(32) };
}

/** Bytes of padding at least: `00 02`, eight that are not zero, `00`. */
const padding = 11;

/** Length of the modulus, and so of every ciphertext, in bytes. */
export function lengthOf(key: KeyObject): number {
  return Math.ceil((key.asymmetricKeyDetails?.modulusLength ?? 0) / 8);
}

/** Longest message in bytes. */
export function seedRoom(key: KeyObject): number {
  return lengthOf(key) - padding;
}

export function encryptRsa(key: KeyObject, message: Uint8Array): Buffer {
  return publicEncrypt({ key, padding: constants.RSA_PKCS1_PADDING }, message);
}

/** `isGood` false: `message` is meaningless. Callers continue as if it were good, so that the time does not reveal it. */
interface RsaMessage {
  readonly isGood: boolean;
  readonly message: Buffer;
}

/**
 * RSA with PKCS#1 v1.5 padding. The padding is removed here, without a branch on secret data: Node refuses to do it
 * (`ERR_INVALID_ARG_VALUE`) where its OpenSSL has no implicit rejection (CVE-2023-46809), and OpenSSL that has it returns bytes
 * that look like a message for a wrong key. `cipher` must have the length of the key's modulus.
 */
export function decryptRsa(key: KeyObject, cipher: Uint8Array): RsaMessage {
  try {
    return unpad(privateDecrypt({ key, padding: constants.RSA_NO_PADDING }, cipher));
  } catch {
    // A number that is not below the modulus: not a ciphertext of this key, as anyone can tell.
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
