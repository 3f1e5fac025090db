/** Bytes as text and back. Each value has exactly one accepted spelling, so that no changed text stands for the same bytes. */
import { attempt, OnejobError } from '../base/errors.ts';

/** `why`: the end of a sentence. */
export type Outcome<T> = ({ readonly ok: true } & T) | { readonly ok: false; readonly why: string };

/** Longest value, in bytes: Linux gives a job no variable over 128 KiB, and the encrypted text is longer than the value. */
const longestValue = 64 * 1024;

/** Standard base64 with padding on one line, or base64url without padding; null for anything else, and for an empty text. */
export function decodeStrict(text: string, encoding: 'base64' | 'base64url'): Buffer | null {
  const bytes = Buffer.from(text, encoding);
  return text !== '' && bytes.toString(encoding) === text ? bytes : null;
}

/** UTF-8 without NUL as text; null for anything else. */
export function toText(bytes: Uint8Array): string | null {
  const text = attempt(() => new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes));
  return text?.includes('\0') ? null : text;
}

/** @throws OnejobError E_SECRET_VALUE for a value that no variable of a job can contain */
export function checkValue(value: string): void {
  const refuse = (why: string, hint: string) => {
    throw new OnejobError('E_SECRET_VALUE', `The value cannot be encrypted: ${why}.`, { hint });
  };
  const encode = 'Encode it first, such as with base64.';
  if (value.includes('\0')) refuse('it contains a NUL byte, which environment variables cannot contain', encode);
  if (!value.isWellFormed()) refuse('it is not valid Unicode', encode);
  const bytes = Buffer.byteLength(value);
  const instead = 'Encrypt a key for it instead, and keep the rest in a file.';
  if (bytes > longestValue) refuse(`it has ${bytes} bytes, and the maximum is ${longestValue}`, instead);
}
