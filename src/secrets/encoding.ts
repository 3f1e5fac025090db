/**
 * Bytes as text and back, strictly: what is decoded has exactly one spelling, so that no changed text stands for the same
 * bytes, and values are text that an environment variable can carry.
 */
import { OnejobError } from '../errors.ts';

/** Longest value that is encrypted, in bytes: Linux gives a job no variable over 128 KiB, and the text is longer than the value. */
const longestValue = 64 * 1024;

/** Standard base64 on one line, with padding; null when it is anything else, also when it is empty. */
export function fromBase64(text: string): Buffer | null {
  const bytes = Buffer.from(text, 'base64');
  return text !== '' && bytes.toString('base64') === text ? bytes : null;
}

/** base64url without padding; null when it is anything else, also when it is empty. */
export function fromBase64Url(text: string): Buffer | null {
  const bytes = Buffer.from(text, 'base64url');
  return text !== '' && bytes.toString('base64url') === text ? bytes : null;
}

/** UTF-8 without NUL as text; null when it is anything else. */
export function toText(bytes: Uint8Array): string | null {
  try {
    const text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
    return text.includes('\0') ? null : text;
  } catch {
    return null;
  }
}

/** @throws OnejobError E_SECRET_VALUE for what no variable of a job can hold */
export function checkValue(value: string): void {
  const refuse = (why: string, hint: string) => {
    throw new OnejobError('E_SECRET_VALUE', `The value cannot be encrypted: ${why}.`, { hint });
  };
  if (value.includes('\0'))
    refuse('it contains a NUL byte, which environment variables cannot contain', 'Encode it first, such as with base64.');
  if (!value.isWellFormed()) refuse('it is not valid Unicode', 'Encode it first, such as with base64.');
  const bytes = Buffer.byteLength(value);
  if (bytes > longestValue)
    refuse(
      `it has ${bytes} bytes, and the maximum is ${longestValue}`,
      'Encrypt a key for it instead, and keep the rest in a file.',
    );
}
