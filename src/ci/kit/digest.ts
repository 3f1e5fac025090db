/** The first hex digits of a text's SHA-256, for names. */
import { createHash } from 'node:crypto';

export function digest(text: string, digits: number): string {
  return createHash('sha256').update(text).digest('hex').slice(0, digits);
}
