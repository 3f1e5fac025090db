/**
 * Devices that a person reserved. A reservation ends by itself when its time is over, also after a restart. Before a job gets the
 * device again it is checked like after an agent: if it is not clean, it goes to quarantine.
 */

import { toFailure } from '../../base/errors.ts';
import { Timers } from '../../core/clock.ts';
import type { DeviceId } from '../../core/slot.ts';
import { memoryWait } from '../../gpu/proof-checks.ts';
import type { KnownDevice } from '../../store/devices.ts';
import type { Quarantine, QuarantineParts } from './quarantine.ts';

interface ReservationsParts extends Pick<QuarantineParts, 'clock' | 'log' | 'registry' | 'recheck'> {
  readonly quarantine: Pick<Quarantine, 'put'>;
  /** Whether an agent uses the device, or a part of it: then it is checked when that agent has ended. */
  readonly isBusy: (uuid: DeviceId) => boolean;
}

export interface Reservation {
  /** Who takes it; null without a name. */
  readonly by: string | null;
  /** How long, in ms; null: until it is returned. */
  readonly for: number | null;
}

/** ms after which a changed wall clock is noticed. */
const longestTimer = 3_600_000;
/** ms until the next look at a device that could not be judged. */
const lookAgain = 5_000;

export class Reservations {
  readonly #parts: ReservationsParts;
  readonly #abort = new AbortController();
  readonly #timers: Timers;
  /** When the wait for what a person left behind began: core clock, ms. */
  readonly #waiting = new Map<DeviceId, number>();

  constructor(parts: ReservationsParts) {
    this.#parts = parts;
    this.#timers = new Timers(parts.clock);
  }

  /** Resumes the reservations of the last manager. */
  start(): void {
    for (const { uuid, reserved } of this.#parts.registry.known.all) if (reserved !== null) this.#arm(uuid, reserved.until);
  }

  /** Keeps new jobs from it; a running job continues. Again: changes the end. @throws OnejobError E_STATE_FULL */
  reserve(device: KnownDevice, { by, for: time }: Reservation): void {
    const { clock, log, registry } = this.#parts;
    const wall = clock.wall();
    const until = time === null ? null : wall + time;
    registry.change({ ...device, reserved: { by, since: device.reserved?.since ?? wall, until } });
    this.#arm(device.uuid, until);
    log.info('device reserved', { device: device.uuid, by, until: until === null ? null : new Date(until).toISOString() });
  }

  /** Begins to give it back; no effect when it is not reserved. @throws OnejobError E_STATE_FULL */
  giveBack(device: KnownDevice): void {
    if (device.reserved === null) return;
    // Stored as one that is over, so that a restart continues from here.
    const until = this.#parts.clock.wall();
    this.#parts.registry.change({ ...device, reserved: { ...device.reserved, until } });
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
    this.#armIn(uuid, Math.min(Math.max(0, until - this.#parts.clock.wall()), longestTimer));
  }

  #armIn(uuid: DeviceId, ms: number): void {
    this.#timers.arm(uuid, this.#parts.clock.now() + ms, () => void this.#due(uuid));
  }

  async #due(uuid: DeviceId): Promise<void> {
    const { clock, log, registry } = this.#parts;
    const until = registry.known.get(uuid)?.reserved?.until ?? null;
    if (until === null) return;
    if (until > clock.wall()) return this.#arm(uuid, until);
    try {
      await this.#end(uuid);
    } catch (error) {
      if (this.#abort.signal.aborted) return;
      log.warn('failed to end reservation', { device: uuid, reason: toFailure(error).message });
      this.#armIn(uuid, lookAgain);
    }
  }

  async #end(uuid: DeviceId): Promise<void> {
    const { clock, isBusy, quarantine, recheck, registry } = this.#parts;
    const { signal } = this.#abort;
    const before = registry.known.get(uuid);
    // A device in quarantine is checked before it leaves that.
    if (before === undefined || before.quarantine !== null || isBusy(uuid)) return this.#lift(uuid);
    const { verdict, mark } = await recheck(uuid, signal);
    const reserved = registry.known.get(uuid)?.reserved ?? null;
    // Reserved again, or forgotten, during the look.
    if (signal.aborted || reserved === null || reserved.until === null || reserved.until > clock.wall()) return;
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
    this.#armIn(uuid, lookAgain);
  }

  #lift(uuid: DeviceId): void {
    const { log, registry } = this.#parts;
    const known = registry.known.get(uuid);
    this.#waiting.delete(uuid);
    if (known === undefined || known.reserved === null) return;
    registry.change({ ...known, reserved: null });
    log.info('reservation ended', { device: uuid, by: known.reserved.by });
  }
}
