/**
 * Tells people what needs them. What is to be sent is written to the store first, and ticked off after the target has accepted it:
 * after `kill -9` a message may be sent twice (with the same `id`), but none is lost. A failed delivery is tried again for a day.
 * Nothing waits for it.
 */

import { hasCode, OnejobError, toFailure } from '../base/errors.ts';
import { type Finding, fine, warning } from '../base/finding.ts';
import type { Log } from '../base/log.ts';
import { formatTime } from '../base/units.ts';
import { type Clock, doubling } from '../core/clock.ts';
import type { Store } from '../store/store.ts';
import { decide, delivered, type Notice, type Seen } from './decide.ts';
import { type Message, messageOf } from './message.ts';

export interface NoticesParts {
  readonly clock: Clock;
  readonly log: Log;
  readonly store: Pick<Store, 'notices' | 'transaction'>;
  /** Short name of this host. */
  readonly host: string;
  /** What is wrong now. */
  readonly see: () => Seen;
  /** Where messages go, for people. */
  readonly target: string;
  /** Returns what came back. @throws OnejobError */
  readonly send: (message: Message, signal: AbortSignal) => Promise<string>;
}

/** ms after a failed delivery; doubles with each further one, up to `longestRetry`. */
const firstRetry = 60_000;
const longestRetry = 3_600_000;
/** ms after which a message is given up: nobody needs yesterday's. */
const giveUp = 24 * 3_600_000;

export interface Notices {
  /** Looks at what is wrong, and sends what is due. Returns before that is sent. */
  look(): void;
  /** Why people cannot be told, in one sentence; null if nothing is wrong. */
  readonly problem: string | null;
  /** For `doctor`. */
  findings(): Finding[];
  /** Breaks off what is being sent: the next manager sends it again. */
  close(): Promise<void>;
}

/** @throws OnejobError E_STATE_CORRUPT */
export function createNotices({ clock, log, store, host, see, target, send }: NoticesParts): Notices {
  const closing = new AbortController();
  const { signal } = closing;
  /** As in the store. */
  const stored = new Map(store.notices.all().map((told) => [told.key, told]));
  let notices: readonly Notice[] = [...stored.values()].map((told) => ({ ...told, from: clock.now(), gone: null }));
  let failures = 0;
  let retryAt = 0;
  /** Why the last delivery failed; null if it did not. */
  let trouble: OnejobError | null = null;
  /** When a message was last accepted, wall clock, ms. */
  let acceptedAt: number | null = null;
  let delivering: Promise<void> | null = null;

  /** Writes what people were or will be told. On a disk that is full the next look tries again: the message matters more. */
  function save(): void {
    const now = new Map(notices.flatMap(toldOf).map((told) => [told.key, told]));
    const gone = [...stored.keys()].filter((key) => !now.has(key));
    const changed = [...now.values()].filter(({ key, state }) => stored.get(key)?.state !== state);
    if (gone.length + changed.length === 0) return;
    try {
      store.transaction({ durable: true }, () => {
        gone.forEach(store.notices.remove);
        changed.forEach(store.notices.save);
      });
      for (const key of gone) stored.delete(key);
      for (const told of changed) stored.set(told.key, told);
    } catch (error) {
      if (!(error instanceof OnejobError)) throw error;
      log.warn('failed to record a message for people', { reason: error.message });
    }
  }

  /** Sends what is due, one after the other, until one fails. */
  async function deliver(): Promise<void> {
    for (;;) {
      const next = notices.flatMap(toldOf).filter(({ state }) => state !== 'announced');
      const [first] = next.toSorted((one, other) => one.at - other.at);
      if (first === undefined || signal.aborted) return;
      const about = { cause: first.key, to: target };
      const isOver = first.state === 'ending';
      try {
        const answer = await send(messageOf(first, host), signal);
        [failures, trouble, acceptedAt] = [0, null, clock.wall()];
        tickOff(first.key);
        log.info(isOver ? 'told people that it is over' : 'told people', { ...about, answer });
      } catch (error) {
        if (signal.aborted) return;
        trouble = error instanceof OnejobError ? error : new OnejobError('E_NOTIFY', toFailure(error).message);
        failures += 1;
        retryAt = clock.now() + doubling(firstRetry, longestRetry, failures);
        const reason = { ...about, reason: trouble.message };
        if (clock.wall() - first.at <= giveUp) log.warn('failed to tell people', reason);
        else {
          tickOff(first.key);
          log.error('gave up a message for people', reason);
        }
        return;
      }
    }
  }

  function tickOff(key: string): void {
    notices = notices.flatMap((one) => (one.key === key ? (delivered(one) ?? []) : one));
    save();
  }

  return {
    look() {
      if (signal.aborted) return;
      notices = decide(see(), notices, { now: clock.now(), wall: clock.wall() });
      save();
      if (delivering !== null || clock.now() < retryAt) return;
      delivering = deliver()
        .catch((error: unknown) => log.error('failed to tell people', { reason: toFailure(error).message }))
        .finally(() => {
          delivering = null;
        });
    },
    get problem() {
      return trouble === null ? null : `${trouble.message}${trouble.hint === null ? '' : ` ${trouble.hint}`}`;
    },
    findings() {
      if (trouble !== null) {
        const again = hasCode(trouble, 'E_SECRET') ? '' : ' onejob tries again.';
        return [warning('notify', `${trouble.message}${again}`, trouble.hint)];
      }
      const last = acceptedAt === null ? '' : ` The last one was accepted at ${formatTime(acceptedAt, clock.wall())}.`;
      return [fine('notify', `Messages for people go to ${target}.${last}`)];
    },
    async close() {
      closing.abort(new OnejobError('E_DAEMON_STOPPING', 'onejob is stopping.'));
      await delivering;
    },
  };
}

function toldOf({ from: _from, gone: _gone, ...notice }: Notice) {
  return notice.state === 'waiting' ? [] : [notice];
}
