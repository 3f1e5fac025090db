/**
 * Tokens that are good for a while: made once for all who ask, renewed before they end, and not used again once they were refused. And
 * what is signed to get one.
 */
import { createPrivateKey, type KeyObject, sign } from 'node:crypto';
import { abortable } from '../base/abortable.ts';
import { attempt, OnejobError } from '../base/errors.ts';
import type { Clock } from '../core/clock.ts';

/** The times of a token, by the core clock, ms. */
export interface TokenTimes {
  readonly madeAt: number;
  /** From then on a new one is made. */
  readonly renewAt: number;
  /** Until then it is used if no new one can be made for a reason that may pass. */
  readonly endsAt: number;
}

export class CachedToken<T extends TokenTimes> {
  readonly #clock: Pick<Clock, 'now'>;
  #token: T | null = null;
  #flight: Promise<T> | null = null;

  constructor(clock: Pick<Clock, 'now'>) {
    this.#clock = clock;
  }

  /** The newest one that nobody has refused. */
  get current(): T | null {
    return this.#token;
  }

  /** `make`: not bound to the signal of one caller, because others wait for it, too. `fits`: whether a token may be used. */
  async get(make: () => Promise<T>, signal: AbortSignal, fits: (token: T) => boolean = () => true): Promise<T> {
    const now = this.#clock.now();
    const held = this.#token !== null && now < this.#token.endsAt && fits(this.#token) ? this.#token : null;
    if (held !== null && now < held.renewAt) return held;
    try {
      return await abortable(this.#renewed(make), signal);
    } catch (error) {
      // The early renewal covers the time in which nobody makes tokens.
      if (held !== null && this.#token === held && error instanceof OnejobError && error.retry) return held;
      throw error;
    }
  }

  /** It was refused. */
  forget(): void {
    this.#token = null;
  }

  #renewed(make: () => Promise<T>): Promise<T> {
    this.#flight ??= make()
      .then((made) => {
        this.#token = made;
        return made;
      })
      .finally(() => {
        this.#flight = null;
      });
    return this.#flight;
  }
}

/** The RSA key in a text in PEM format; null: there is none. */
export function rsaKeyIn(text: string): KeyObject | null {
  const key = attempt(() => createPrivateKey(text));
  return key?.asymmetricKeyType === 'rsa' ? key : null;
}

/** A JSON Web Token signed with RS256 (RFC 7519). `keyId`: how its reader calls the key. */
export function assertion(key: KeyObject, claims: Readonly<Record<string, string | number>>, keyId?: string): string {
  const parts = [{ alg: 'RS256', typ: 'JWT', kid: keyId }, claims];
  const body = parts.map((part) => Buffer.from(JSON.stringify(part)).toString('base64url')).join('.');
  return `${body}.${sign('sha256', Buffer.from(body), key).toString('base64url')}`;
}
