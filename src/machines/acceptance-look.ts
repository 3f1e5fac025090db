/** What a person with an account would see of an acceptance: lists until they show something, and the console. */
import { hasCode, messageOf } from '../base/errors.ts';
import { type Clock, sleep } from '../core/clock.ts';
import { type Cloud, CloudError, type Listing, type Made } from '../ports/cloud.ts';
import { spoken, Unmet } from './acceptance-steps.ts';

/** ms between two looks. */
export const lookEvery = 10_000;

export interface AccountLookParts {
  readonly cloud: Cloud;
  readonly owner: string;
  readonly clock: Clock;
  readonly signal: AbortSignal;
}

export class AccountLook {
  readonly #parts: AccountLookParts;

  constructor(parts: AccountLookParts) {
    this.#parts = parts;
  }

  /** Until the next look. @throws the reason of the signal */
  async pause(ms = lookEvery): Promise<void> {
    const { clock, signal } = this.#parts;
    await sleep(clock, ms, signal);
    signal.throwIfAborted();
  }

  /** One list; what cannot be had is unknown. */
  async list({ place }: Made): Promise<Listing> {
    const { cloud, owner, signal } = this.#parts;
    try {
      return await cloud.list(owner, { places: [place], everywhere: false }, signal);
    } catch (error) {
      if (error instanceof CloudError && error.retry) return { things: [], unknown: [messageOf(error)] };
      throw error;
    }
  }

  /** Until `isSo` of a complete list, or gives up after `limit` ms. `what`: is the case until then. @throws Unmet */
  async until<T>(what: string, limit: number, isSo: (listing: Listing) => T | null, where: Made): Promise<T> {
    const end = this.#parts.clock.now() + limit;
    for (;;) {
      const listing = await this.list(where);
      const unknown = listing.unknown.join(', ');
      const found = unknown === '' ? isSo(listing) : null;
      if (found !== null) return found;
      if (this.#parts.clock.now() >= end)
        throw new Unmet(`After ${spoken(limit)} ${unknown === '' ? what : `lists are still incomplete: ${unknown}`}.`);
      await this.pause();
    }
  }

  /** Two complete lists in a row for which `isSo`; ms until the first of them. @throws Unmet */
  async twice(what: string, limit: number, isSo: (listing: Listing) => boolean, where: Made): Promise<number> {
    const began = this.#parts.clock.now();
    let first: number | null = null;
    const isSecond = (listing: Listing): number | null => {
      const before = first;
      first = isSo(listing) ? (before ?? this.#parts.clock.now()) : null;
      return first === null || before === null ? null : first - began;
    };
    return await this.until(what, limit, isSecond, where);
  }

  /** A machine that has just started may have no console yet; `why` says so. */
  async console(made: Made): Promise<{ readonly text: string; readonly why: string | null }> {
    try {
      return { text: await this.#parts.cloud.console(made, this.#parts.signal), why: null };
    } catch (error) {
      if (error instanceof CloudError && !hasCode(error, 'E_CLOUD_DENIED', 'E_CLOUD_CREDENTIAL'))
        return { text: '', why: messageOf(error) };
      throw error;
    }
  }
}
