/**
 * How much of the daemon each caller over TCP may take, so that none keeps the others away: answers of a route, and bytes of answers,
 * that it has not read yet, and of those who may not do everything their share of this process' time.
 */
import type { ServerResponse } from 'node:http';
import { OnejobError } from '../base/errors.ts';
import type { Clock } from '../core/clock.ts';
import { createPace, type Pace } from '../http/pace.ts';
import { afterInBackground } from '../system/system-clock.ts';
import { type CallerAdmission, isLogin } from './access.ts';
import type { ApiRequest, Route } from './route.ts';

/** ms after which a client that does not read such an answer is cut off. */
export const readPatience = 60_000;

/** ms without a request after which a reader owes nothing, see `createPace`. */
const owingEnds = 3_000;

/** Bytes of answers that a caller may leave unread, with those of its requests that are not answered yet. */
const mostUnread = 64 << 20;

interface Reader {
  readonly pace: Pace;
  /** Resolves when the next request may be answered. */
  last: Promise<void>;
  waiting: number;
  /** When its last request was answered, by the clock. */
  usedAt: number;
}

export class Shares {
  readonly #clock: Clock;
  readonly #answers = new Map<string, number>();
  readonly #bytes = new Map<string, number>();
  readonly #readers = new Map<string, Reader>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /**
   * Resolves when this request of a caller may be answered. Those of one who may not do everything are answered one after the other, and what that costs
   * is measured: a list of ten thousand jobs takes a second.
   */
  async turn({ caller, id }: CallerAdmission): Promise<void> {
    if (caller.role === 'operator') return;
    const [readers, clock] = [this.#readers, this.#clock];
    for (const [one, { waiting, usedAt }] of readers) if (waiting === 0 && clock.now() - usedAt > owingEnds) readers.delete(one);
    const reader = readers.get(id) ?? { pace: createPace(clock), last: Promise.resolve(), waiting: 0, usedAt: 0 };
    readers.set(id, reader);
    const { last } = reader;
    const over = Promise.withResolvers<void>();
    reader.last = over.promise;
    reader.waiting += 1;
    await last;
    // The answer is made before anything else of this process has its turn.
    void reader.pace.spent(reader.pace.now()).then(() => {
      reader.waiting -= 1;
      reader.usedAt = clock.now();
      over.resolve();
    });
  }

  /** Of a route that has a limit. @throws OnejobError E_API_BUSY */
  takeAnswer({ summary }: Route, most: number | undefined, kind: ApiRequest['kind'], id: string, response: ServerResponse): void {
    if (most === undefined || response.destroyed) return;
    // One login has a share of what its role has, so that it keeps no other away.
    const limits = [[`${kind} ${summary}`, most] as const, ...(isLogin(id) ? [[`${id} ${summary}`, most / 4] as const] : [])];
    for (const [key, limit] of limits)
      if ((this.#answers.get(key) ?? 0) >= limit) throw busy(`${limit} clients are already reading the same ("${summary}")`);
    for (const [key] of limits) count(this.#answers, key, 1, response);
    response.once(
      'close',
      afterInBackground(readPatience, () => response.destroy()),
    );
  }

  /** Before so many bytes are read or written. @throws OnejobError E_API_BUSY */
  takeBytes(length: number, id: string, response: ServerResponse): void {
    const unread = this.#bytes.get(id) ?? 0;
    if (unread + length > mostUnread) throw busy('earlier requests or answers of the same token, login or person are not read yet');
    count(this.#bytes, id, length, response);
  }
}

/** Counts until the client has read the answer, or has gone. */
function count(counts: Map<string, number>, key: string, added: number, response: ServerResponse): void {
  // It has gone already, and `close` comes only once.
  if (response.destroyed) return;
  counts.set(key, (counts.get(key) ?? 0) + added);
  response.once('close', () => {
    const left = (counts.get(key) ?? 0) - added;
    if (left > 0) counts.set(key, left);
    else counts.delete(key);
  });
}

function busy(why: string): OnejobError {
  return new OnejobError('E_API_BUSY', `Cannot answer now: ${why}.`, { hint: 'Try again in a minute.', retry: true });
}
