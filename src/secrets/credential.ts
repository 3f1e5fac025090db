/** What onejob signs in with at a service: what every kind of it has, and what keeps its secrets out of messages. */
import { stat } from 'node:fs/promises';
import { OnejobError } from '../base/errors.ts';
import type { Variables } from '../base/variables.ts';
import type { Clock } from '../core/clock.ts';
import { howToReplace, readSecret, type SecretReference, secretPlace } from '../schema/secret-reference.ts';
import { follow } from '../system/real-path.ts';
import { systemClock } from '../system/system-clock.ts';

export interface Credential {
  /** A fresh Authorization header. @throws OnejobError E_SECRET, and what the service's calls throw */
  header(signal: AbortSignal): Promise<string>;
  /** Values that must not be shown: the secrets so far, and their encodings. */
  readonly redact: () => readonly string[];
  /**
   * The service refused `header`, by default the last one. Unless the error's `retry` is true, when a new token may help, `header`
   * throws it until the secret changes or ten minutes have passed.
   */
  rejected(why: string, header?: string): OnejobError;
  /** An error for a refusal that does not hold the credential back. */
  refusal(why: string): OnejobError;
  /** The service accepted `header`, by default the last one. */
  accepted(header?: string): void;
}

/** ms for which a secret of a file server is used before it is read again: each read starts a program. */
const readEvery = 30_000;

/** Reads a secret for each use, from its file only when that has changed; from a file server every 30 s. @throws OnejobError E_SECRET */
export function secretOf(reference: SecretReference, variables: Variables | undefined, clock: Pick<Clock, 'now'> = systemClock) {
  let cached: { readonly mark: string; readonly text: string } | null = null;
  const markOf = async (): Promise<string | null> => {
    if (reference.kind !== 'file') return null;
    return follow(reference.path).server === null ? await markOfFile(reference.path) : `${Math.floor(clock.now() / readEvery)}`;
  };
  return async (): Promise<string> => {
    const mark = await markOf();
    if (cached !== null && mark !== null && cached.mark === mark) return cached.text;
    const text = (await readSecret(reference, variables)).trim();
    if (text === '') {
      const hint = `${howToReplace(reference)}.`;
      throw new OnejobError('E_SECRET', `The secret in ${secretPlace(reference)} contains only whitespace.`, { hint });
    }
    cached = mark === null ? null : { mark, text };
    return text;
  };
}

/** Changes with the file; null when it cannot be read, which reading it reports better. */
async function markOfFile(path: string): Promise<string | null> {
  const found = await stat(path, { bigint: true }).catch(() => null);
  return found === null ? null : [found.ino, found.size, found.mtimeNs, found.ctimeNs].join(' ');
}

/** Secrets to remove from texts. Old ones stay, because messages about them may still come. */
export function createKnown() {
  const values = new Set<string>();
  return {
    add(...texts: readonly string[]): void {
      for (const text of texts) {
        // Such a short text is not a secret, and removing it would spoil messages.
        if (text.length < 6) continue;
        values.delete(text);
        values.add(text);
      }
      for (const oldest of [...values].slice(0, -32)) values.delete(oldest);
    },
    all: (): readonly string[] => [...values],
  };
}

/** ms until a refused secret is tried again. */
const retryAfter = 600_000;

/** Keeps onejob from sending a refused secret again and again. */
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

/** Removes secrets from a text, the longest first, since one may contain another. */
export function without(secrets: readonly string[], text: string): string {
  return [...secrets].sort((a, b) => b.length - a.length).reduce((left, secret) => left.replaceAll(secret, '***'), text);
}
