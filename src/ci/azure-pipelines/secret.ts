/** Secrets in use: read again when they have changed, taken out of texts, held back when refused. */
import { stat } from 'node:fs/promises';
import type { Clock } from '../../core/clock.ts';
import { OnejobError } from '../../errors.ts';
import { describeSecret, howToReplace, readSecret, type SecretReference, type Variables } from '../../secrets/reference.ts';

/** ms until a refused secret is tried again. */
const retryAfter = 600_000;

/** Reads a secret for each use, from its file only when that has changed. @throws OnejobError E_SECRET */
export function secretOf(reference: SecretReference, variables: Variables | undefined, trim: (text: string) => string) {
  let cached: { readonly mark: string; readonly text: string } | null = null;
  const read = async (): Promise<string> => {
    const text = trim(await (variables === undefined ? readSecret(reference) : readSecret(reference, variables)));
    if (text !== '') return text;
    throw new OnejobError('E_SECRET', `The secret in ${describeSecret({ ...reference, expires: null })} is only white space.`, {
      hint: `${howToReplace(reference)}.`,
    });
  };
  return async (): Promise<string> => {
    if (reference.kind !== 'file') return read();
    const mark = await markOf(reference.path);
    if (cached !== null && mark !== null && cached.mark === mark) return cached.text;
    const text = await read();
    cached = mark === null ? null : { mark, text };
    return text;
  };
}

/** Changes whenever the file does; null when it cannot be seen, which reading it will say better. */
async function markOf(path: string): Promise<string | null> {
  try {
    const { ino, size, mtimeNs, ctimeNs } = await stat(path, { bigint: true });
    return [ino, size, mtimeNs, ctimeNs].join(' ');
  } catch {
    return null;
  }
}

/** Secrets to be taken out of texts. Old ones stay: what was said about them may still come. */
export function createKnown() {
  const values = new Set<string>();
  return {
    add(...texts: readonly string[]): void {
      for (const text of texts) {
        // What is this short is no secret, and taking it out would only spoil texts.
        if (text.length < 6) continue;
        values.delete(text);
        values.add(text);
      }
      for (const oldest of values) {
        if (values.size <= 32) break;
        values.delete(oldest);
      }
    },
    all: (): readonly string[] => [...values],
  };
}

/** Keeps a refused secret, or what it travels as, from being tried again and again. */
export function createHold(clock: Clock) {
  let held: { readonly secret: string; readonly until: number; readonly error: OnejobError } | null = null;
  return {
    check(secret: string): void {
      if (held !== null && held.secret === secret && clock.now() < held.until) throw held.error;
    },
    begin(secret: string, error: OnejobError): OnejobError {
      held = { secret, until: clock.now() + retryAfter, error };
      return error;
    },
    end(secret: string): void {
      if (held?.secret === secret) held = null;
    },
  };
}

/** Takes secrets out of a text, the longest first, since one may hold another. */
export function without(secrets: readonly string[], text: string): string {
  return [...secrets].sort((a, b) => b.length - a.length).reduce((left, secret) => left.replaceAll(secret, '***'), text);
}
