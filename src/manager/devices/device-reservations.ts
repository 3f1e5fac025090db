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

interface ReservationsParts extends Pick<QuarantineParts, 'clock' | 'log' | 'registry' | 'again'> {
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

export type Reservations = ReturnType<typeof createDeviceReservations>;

export function createDeviceReservations({ registry, clock, log, quarantine, again, isBusy }: ReservationsParts) {
  const abort = new AbortController();
  const timers = new Timers(clock);
  /** When the wait for what a person left behind began: core clock, ms. */
  const waiting = new Map<DeviceId, number>();

  /** Resumes the reservations of the last manager. */
  function start(): void {
    for (const { uuid, reserved } of registry.known.all) if (reserved !== null) arm(uuid, reserved.until);
  }

  /** Keeps new jobs from it; a running job continues. Again: changes the end. @throws OnejobError E_STATE_FULL */
  function reserve(device: KnownDevice, { by, for: time }: Reservation): void {
    const wall = clock.wall();
    const until = time === null ? null : wall + time;
    registry.change({ ...device, reserved: { by, since: device.reserved?.since ?? wall, until } });
    arm(device.uuid, until);
    log.info('device reserved', { device: device.uuid, by, until: until === null ? null : new Date(until).toISOString() });
  }

  /** Begins to give it back; no effect when it is not reserved. @throws OnejobError E_STATE_FULL */
  function giveBack(device: KnownDevice): void {
    if (device.reserved === null) return;
    // Stored as one that is over, so that a restart continues from here.
    const until = clock.wall();
    registry.change({ ...device, reserved: { ...device.reserved, until } });
    arm(device.uuid, until);
  }

  function close(): void {
    abort.abort();
    timers.clear();
  }

  /** `until`: wall clock, ms; null: it does not end by itself. */
  function arm(uuid: DeviceId, until: number | null): void {
    timers.cancel(uuid);
    waiting.delete(uuid);
    if (until === null) return;
    armIn(uuid, Math.min(Math.max(0, until - clock.wall()), longestTimer));
  }

  function armIn(uuid: DeviceId, ms: number): void {
    timers.arm(uuid, clock.now() + ms, () => void due(uuid));
  }

  async function due(uuid: DeviceId): Promise<void> {
    const until = registry.known.get(uuid)?.reserved?.until ?? null;
    if (until === null) return;
    if (until > clock.wall()) return arm(uuid, until);
    try {
      await end(uuid);
    } catch (error) {
      if (abort.signal.aborted) return;
      log.warn('failed to end reservation', { device: uuid, reason: toFailure(error).message });
      armIn(uuid, lookAgain);
    }
  }

  async function end(uuid: DeviceId): Promise<void> {
    const before = registry.known.get(uuid);
    // A device in quarantine is checked before it leaves that.
    if (before === undefined || before.quarantine !== null || isBusy(uuid)) return lift(uuid);
    const { verdict, mark } = await again(uuid, abort.signal);
    const reserved = registry.known.get(uuid)?.reserved ?? null;
    // Reserved again, or forgotten, during the look.
    if (abort.signal.aborted || reserved === null || reserved.until === null || reserved.until > clock.wall()) return;
    if (verdict.kind === 'clean') return lift(uuid);
    if (verdict.kind === 'dirty') {
      quarantine.put(uuid, verdict, mark);
      return lift(uuid);
    }
    if (verdict.kind === 'wait') {
      const since = waiting.get(uuid) ?? clock.now();
      waiting.set(uuid, since);
      if (clock.now() - since >= memoryWait) {
        quarantine.put(uuid, { ...verdict, kind: 'dirty', code: 'left-behind', remedy: 'look', hint: null }, mark);
        return lift(uuid);
      }
    }
    armIn(uuid, lookAgain);
  }

  function lift(uuid: DeviceId): void {
    const known = registry.known.get(uuid);
    waiting.delete(uuid);
    if (known === undefined || known.reserved === null) return;
    registry.change({ ...known, reserved: null });
    log.info('reservation ended', { device: uuid, by: known.reserved.by });
  }

  return { start, reserve, giveBack, close };
}
