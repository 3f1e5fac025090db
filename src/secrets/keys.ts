/**
 * Key files. One file may contain several private keys, so that values for an old key still decrypt while a new one is in use:
 * lines `AGE-SECRET-KEY-1…` (X25519, as `age-keygen` writes them) and PEM blocks of RSA keys, in any order; blank lines and those
 * that begin with `#` are ignored. New values are encrypted for the first key of a kind.
 *
 * Errors name the line. No message contains any of a private key, nor does `inspect` of a key.
 */
import { createPrivateKey, createPublicKey, generateKeyPairSync, hash, type KeyObject } from 'node:crypto';
import { OnejobError } from '../base/errors.ts';

/** `id`: 8 hex digits, the same for both halves. */
type AgeKey = { readonly kind: 'x25519'; readonly id: string; readonly recipient: string };
type RsaKey = { readonly kind: 'rsa'; readonly id: string; readonly key: KeyObject };
export type PublicKey = AgeKey | RsaKey;
export type SecretKey = (AgeKey & { identity(): string }) | RsaKey;

/** In the order of the file; never empty. */
export interface SecretKeys {
  readonly keys: readonly SecretKey[];
}

/** Smallest RSA key that is accepted, bits. */
const shortest = 1024;
/** Size of new RSA keys, bits: their owners' scripts expect it. */
const usual = 2048;

/** A line of a key file, or a PEM block. `at`: its line, from 1. */
interface Piece {
  readonly at: number;
  readonly text: string;
}

/** @throws OnejobError E_SECRET_KEY naming every invalid line of the file `what`, and when there is no private key */
export async function parseKeys(text: string, what = 'The key file'): Promise<SecretKeys> {
  return { keys: await readKeys(text, what, secretOf, 'it contains no private key') };
}

/** Public keys of `age1…` lines, PEM blocks, or a whole key file. @throws OnejobError E_SECRET_KEY */
export async function parsePublicKeys(text: string, what = 'The key'): Promise<PublicKey[]> {
  const read = async (piece: Piece) => (await publicOnly(piece)) ?? asPublic(await secretOf(piece));
  return readKeys(text, what, read, 'it contains no key');
}

/** The public half for others: an `age1…` line, or a PEM block. Ends with a newline. */
export function publicOf(key: SecretKey | PublicKey): string {
  if (key.kind === 'x25519') return `${key.recipient}\n`;
  return publicHalf(key.key).export({ type: 'spki', format: 'pem' }).toString();
}

function asPublic(key: SecretKey | string): PublicKey | string {
  if (typeof key === 'string') return key;
  if (key.kind === 'x25519') return { kind: 'x25519', id: key.id, recipient: key.recipient };
  return { kind: 'rsa', id: key.id, key: publicHalf(key.key) };
}

/** A new private key as a key file's text. `comment`: one line of description. */
export async function makeKey(kind: SecretKey['kind'], comment: string): Promise<string> {
  if (kind === 'rsa') {
    const { privateKey } = generateKeyPairSync('rsa', { modulusLength: usual });
    return `# ${comment}\n${privateKey.export({ type: 'pkcs8', format: 'pem' })}`;
  }
  const { generateX25519Identity, identityToRecipient } = await import('age-encryption');
  const identity = await generateX25519Identity();
  return `# ${comment}\n# public key: ${await identityToRecipient(identity)}\n${identity}\n`;
}

/** `none`: what is wrong with a text without keys. */
async function readKeys<T>(text: string, what: string, read: (piece: Piece) => Promise<T | string>, none: string): Promise<T[]> {
  const keys: T[] = [];
  const problems: string[] = [];
  for (const piece of piecesOf(text)) {
    const found = await read(piece);
    if (typeof found === 'string') problems.push(`line ${piece.at}: ${found}`);
    else keys.push(found);
  }
  if (problems.length === 0 && keys.length === 0) problems.push(none);
  if (problems.length === 0) return keys;
  throw new OnejobError('E_SECRET_KEY', `${what} cannot be used: ${problems.join('; ')}.`, {
    hint: 'docs/secrets.md describes key files; "onejob secret keygen" creates one.',
  });
}

function piecesOf(text: string): Piece[] {
  const pieces: Piece[] = [];
  let block: { at: number; lines: string[] } | null = null;
  for (const [index, raw] of text.split(/\r?\n/).entries()) {
    const line = raw.trim();
    const isBegin = line.startsWith('-----BEGIN ');
    if (block !== null && !isBegin) {
      block.lines.push(line);
      if (!line.startsWith('-----END ')) continue;
      pieces.push({ at: block.at, text: `${block.lines.join('\n')}\n` });
      block = null;
    } else {
      if (block !== null) pieces.push({ at: block.at, text: block.lines.join('\n') });
      block = isBegin ? { at: index + 1, lines: [line] } : null;
      if (!isBegin && line !== '' && !line.startsWith('#')) pieces.push({ at: index + 1, text: line });
    }
  }
  if (block !== null) pieces.push({ at: block.at, text: block.lines.join('\n') });
  return pieces;
}

const notAKey = 'is not a key: expected AGE-SECRET-KEY-1…, age1… or a PEM block';

/** A private key, or what is wrong as a string. */
async function secretOf({ text }: Piece): Promise<SecretKey | string> {
  if (text.startsWith('AGE-SECRET-KEY-')) return ageKey(text);
  if (text.startsWith('age1')) return 'is a public key; the private key begins with AGE-SECRET-KEY-1';
  if (!text.startsWith('-----BEGIN ')) return notAKey;
  if (!text.includes('-----END ')) return 'the PEM block that begins here does not end';
  if (/^-----BEGIN (RSA )?PUBLIC KEY-----/.test(text)) return 'is a public key; the private key is needed';
  if (/ENCRYPTED/.test(text.split('\n', 3).join()))
    return 'is a private key with a passphrase, which onejob cannot ask for; remove the passphrase (openssl pkey -in OLD -out NEW)';
  return rsaKey(() => createPrivateKey(text), 'private');
}

/** A public key; null when it is not one, or what is wrong as a string. */
async function publicOnly({ text }: Piece): Promise<PublicKey | string | null> {
  if (text.startsWith('age1')) return ageRecipient(text);
  if (!/^-----BEGIN (RSA )?PUBLIC KEY-----/.test(text) || !text.includes('-----END ')) return null;
  return rsaKey(() => createPublicKey(text), 'public');
}

async function ageKey(text: string): Promise<SecretKey | string> {
  if (!text.startsWith('AGE-SECRET-KEY-1'))
    return 'is an age key of a kind that onejob does not support; create one with "onejob secret keygen"';
  const { identityToRecipient } = await import('age-encryption');
  try {
    const recipient = await identityToRecipient(text);
    return { kind: 'x25519', id: idOf(recipient), recipient, identity: () => text };
  } catch {
    // The library's message contains the key.
    return 'is a damaged private key: it was cut off or mistyped';
  }
}

async function ageRecipient(text: string): Promise<PublicKey | string> {
  const { Encrypter } = await import('age-encryption');
  try {
    new Encrypter().addRecipient(text);
  } catch {
    return 'is a damaged public key: it was cut off or mistyped';
  }
  if (text.length !== 62)
    return 'is an age public key of a kind that onejob does not support; create one with "onejob secret keygen"';
  return { kind: 'x25519', id: idOf(text), recipient: text };
}

function rsaKey(read: () => KeyObject, half: 'private' | 'public'): RsaKey | string {
  let key: KeyObject;
  try {
    key = read();
  } catch {
    return `the PEM block that begins here is not a valid ${half} key`;
  }
  if (key.asymmetricKeyType !== 'rsa')
    return `is a key for ${key.asymmetricKeyType ?? 'something else'}, but onejob reads only RSA keys from PEM`;
  const bits = key.asymmetricKeyDetails?.modulusLength ?? 0;
  if (bits < shortest) return `is an RSA key of ${bits} bits, which is too weak`;
  return { kind: 'rsa', id: idOf(publicHalf(key).export({ type: 'spki', format: 'der' })), key };
}

function publicHalf(key: KeyObject): KeyObject {
  return key.type === 'public' ? key : createPublicKey(key);
}

function idOf(publicKey: string | Buffer): string {
  return hash('sha256', publicKey).slice(0, 8);
}
