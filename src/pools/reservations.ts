/**
 * Devices that a person took. A reservation over its time ends by itself, also after a restart. Nobody knows what a person
 * leaves behind, so before a job gets the device again it is looked at like after an agent: what is not clean goes to quarantine.
 */
import { type Clock, Timers } from '../core/clock.ts';
import type { DeviceId } from '../core/slot.ts';
import { toFailure } from '../errors.ts';
import { memoryWait } from '../gpu/proof-checks.ts';
import type { Log } from '../log.ts';
import type { KnownDevice } from '../store/devices.ts';
import type { DeviceBook } from './devices.ts';
import type { Quarantine, QuarantineParts } from './quarantine.ts';

export interface ReservationsParts {
  readonly clock: Clock;
  readonly log: Log;
  readonly book: DeviceBook;
  /** Where a device goes that is not clean. */
  readonly quarantine: Pick<Quarantine, 'put'>;
  /** Judges the device as it is now. */
  readonly again: QuarantineParts['again'];
  /** Whether an agent is on the device, or on a part of it: then it is proved clean when that agent has ended. */
  readonly isBusy: (uuid: DeviceId) => boolean;
}

export interface Reservation {
  /** Who takes it; null for somebody without a name. */
  readonly by: string | null;
  /** How long, in ms; null: until it is given back. */
  readonly for: number | null;
}

/** ms after which a wall clock that was set meanwhile is noticed. */
const longestTimer = 3_600_000;
/** ms until the next look at a device that could not be judged. */
const lookAgain = 5_000;

export class Reservations {
  readonly #parts: ReservationsParts;
  readonly #abort = new AbortController();
  readonly #timers: Timers;
  /** Since when what a person left behind is waited for: core clock, ms. */
  readonly #waiting = new Map<DeviceId, number>();

  constructor(parts: ReservationsParts) {
    this.#parts = parts;
    this.#timers = new Timers(parts.clock);
  }

  /** Goes on with those of the last manager. */
  start(): void {
    for (const { uuid, reserved } of this.#parts.book.known.all) if (reserved !== null) this.#arm(uuid, reserved.until);
  }

  /** From now on no job gets it; one that runs on it goes on. Once more changes for how long. @throws OnejobError E_STATE_FULL */
  reserve(device: KnownDevice, { by, for: time }: Reservation): void {
    const { book, clock, log } = this.#parts;
    const wall = clock.wall();
    const until = time === null ? null : wall + time;
    book.change({ ...device, reserved: { by, since: device.reserved?.since ?? wall, until } });
    this.#arm(device.uuid, until);
    log.info('device reserved', { device: device.uuid, by, until: until === null ? null : new Date(until).toISOString() });
  }

  /** Begins to give it back; without effect when nobody has it. @throws OnejobError E_STATE_FULL */
  giveBack(device: KnownDevice): void {
    if (device.reserved === null) return;
    // Kept as one that is over, so that a restart goes on from here.
    const until = this.#parts.clock.wall();
    this.#parts.book.change({ ...device, reserved: { ...device.reserved, until } });
    this.#arm(device.uuid, until);
  }

  close(): void {
    this.#abort.abort();
    this.#timers.clear();
  }

  /** `until`: wall clock, ms; null: it does not end by itself. */
  #arm(uuid: DeviceId, until: number | null): void {
    this.#timers.cancel(uuid);
    this.#waiting.delete(uuid);
    if (until === null) return;
    this.#in(uuid, Math.min(Math.max(0, until - this.#parts.clock.wall()), longestTimer));
  }

  #in(uuid: DeviceId, ms: number): void {
    this.#timers.arm(uuid, this.#parts.clock.now() + ms, () => void this.#due(uuid));
  }

  async #due(uuid: DeviceId): Promise<void> {
    const { book, clock, log } = this.#parts;
    const until = book.known.get(uuid)?.reserved?.until ?? null;
    if (until === null) return;
    if (until > clock.wall()) return this.#arm(uuid, until);
    try {
      await this.#end(uuid);
    } catch (error) {
      if (this.#abort.signal.aborted) return;
      log.warn('reservation not ended', { device: uuid, reason: toFailure(error).message });
      this.#in(uuid, lookAgain);
    }
  }

  async #end(uuid: DeviceId): Promise<void> {
    const { book, quarantine, again, isBusy, clock } = this.#parts;
    const before = book.known.get(uuid);
    // One in quarantine is looked at before it leaves that.
    if (before === undefined || before.quarantine !== null || isBusy(uuid)) return this.#lift(uuid);
    const { verdict, mark } = await again(uuid, this.#abort.signal);
    const reserved = book.known.get(uuid)?.reserved ?? null;
    // Reserved anew, or forgotten, during the look.
    if (this.#abort.signal.aborted || reserved === null || reserved.until === null || reserved.until > clock.wall()) return;
    if (verdict.kind === 'clean') return this.#lift(uuid);
    if (verdict.kind === 'dirty') {
      quarantine.put(uuid, verdict, mark);
      return this.#lift(uuid);
    }
    if (verdict.kind === 'wait') {
      const since = this.#waiting.get(uuid) ?? clock.now();
      this.#waiting.set(uuid, since);
      if (clock.now() - since >= memoryWait) {
        quarantine.put(uuid, { ...verdict, kind: 'dirty', code: 'left-behind', remedy: 'look', hint: null }, mark);
        return this.#lift(uuid);
      }
    }
    this.#in(uuid, lookAgain);
  }

  #lift(uuid: DeviceId): void {
    const known = this.#parts.book.known.get(uuid);
    this.#waiting.delete(uuid);
    if (known === undefined || known.reserved === null) return;
    this.#parts.book.change({ ...known, reserved: null });
    this.#parts.log.info('reservation ended', { device: uuid, by: known.reserved.by });
  }
}
