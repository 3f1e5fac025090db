/** Devices out of use until they are shown to be healthy: by a later look, after a reboot, or when a person says so. */

import { toFailure } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { type Clock, doubling, Timers } from '../../core/clock.ts';
import type { DeviceId } from '../../core/slot.ts';
import type { KernelMark } from '../../gpu/kernel-log.ts';
import type { ProofVerdict } from '../../gpu/proof.ts';
import type { KnownDevice } from '../../store/devices.ts';
import type { DeviceRegistry } from './registry.ts';

export interface QuarantineParts {
  readonly clock: Clock;
  readonly log: Log;
  readonly registry: DeviceRegistry;
  readonly bootId: string;
  readonly again: (uuid: DeviceId, signal: AbortSignal) => Promise<{ readonly verdict: ProofVerdict; readonly mark: KernelMark }>;
  readonly repair: (uuid: DeviceId, reason: string) => void;
}

type Dirty = Extract<ProofVerdict, { kind: 'dirty' }>;
type Record = NonNullable<KnownDevice['quarantine']>;

const noMark: KernelMark = { seq: null, at: null };
/** ms while something uses it, or is just leaving. */
const lookAgain = 5_000;
/** ms until the first retry; doubles with each failure. */
const firstRetry = 60_000;
const longestRetry = 3_600_000;

export type Quarantine = ReturnType<typeof createQuarantine>;

export function createQuarantine({ registry, clock, bootId, log, again, repair }: QuarantineParts) {
  const abort = new AbortController();
  const timers = new Timers(clock);

  /** Resumes the quarantines of the last manager. A reboot is worth a look at once. */
  function start(): void {
    for (const { uuid, quarantine } of registry.known.all) if (quarantine !== null) arm(uuid, quarantine);
  }

  /** `mark`: the current end of the kernel log, so that this fault's lines do not count at the next try. */
  function put(uuid: DeviceId, { message, remedy, hint, evidence }: Dirty, mark: KernelMark): void {
    const known = registry.known.get(uuid);
    if (known === undefined) return;
    const failures = (known.quarantine?.failures ?? 0) + 1;
    const baseline = known.baseline && { ...known.baseline, saw: { ...(known.baseline.saw as object), mark } as never };
    keep({ ...known, baseline }, { reason: message, remedy, hint, evidence: evidence as never, failures });
    log.error('device in quarantine', { device: uuid, reason: message, hint });
    if (failures === 1) repair(uuid, message);
  }

  /** For a proof that could not finish: the next manager checks the device before any job gets it. */
  function putOff(uuid: DeviceId): void {
    const known = registry.known.get(uuid);
    if (known === undefined || known.quarantine !== null) return;
    const wall = clock.wall();
    const reason = 'onejob was stopped before it verified that the device is clean';
    const about = { reason, remedy: 'look', hint: null, evidence: null, failures: 0 } as const;
    registry.change({ ...known, quarantine: { ...about, since: wall, boot: bootId, retryAt: wall } });
    log.info('device not verified', { device: uuid, reason });
  }

  /** Put there by a person, and only a person can lift it. */
  function putByHand(device: KnownDevice, reason: string): void {
    keep(device, { reason, remedy: 'person', hint: null, evidence: null, failures: 1 });
  }

  /** Looks at it now and not at its turn, unless a person put it there. */
  function look(uuid: DeviceId): void {
    const quarantine = registry.known.get(uuid)?.quarantine ?? null;
    if (quarantine !== null && quarantine.remedy !== 'person') arm(uuid, { ...quarantine, retryAt: clock.wall() });
  }

  /** For a person who accepts the device as it is now. */
  function clearByHand(device: KnownDevice): void {
    release({ ...device, baseline: null });
  }

  function release(device: KnownDevice): void {
    timers.cancel(device.uuid);
    registry.change({ ...device, quarantine: null });
    log.info('device out of quarantine', { device: device.uuid });
  }

  function close(): void {
    abort.abort();
    timers.clear();
  }

  function keep(
    known: KnownDevice,
    what: Pick<Record, 'reason' | 'remedy' | 'hint' | 'evidence' | 'failures'>,
    wait = doubling(firstRetry, longestRetry, what.failures),
  ): void {
    const retryAt = what.remedy === 'look' ? clock.wall() + wait : null;
    const quarantine: Record = { ...what, since: known.quarantine?.since ?? clock.wall(), boot: bootId, retryAt };
    registry.change({ ...known, quarantine });
    arm(known.uuid, quarantine);
  }

  function arm(uuid: DeviceId, { remedy, boot, retryAt }: Pick<Record, 'remedy' | 'boot' | 'retryAt'>): void {
    timers.cancel(uuid);
    const rebooted = boot !== bootId && remedy !== 'replace' && remedy !== 'person';
    if (retryAt === null && !rebooted) return;
    const wait = rebooted || retryAt === null ? 0 : Math.min(Math.max(0, retryAt - clock.wall()), longestRetry);
    timers.arm(uuid, clock.now() + wait, () => {
      // A store that cannot be written reports that elsewhere; the device stays where it is and is tried again.
      retry(uuid).catch((error: unknown) => {
        log.warn('device stays in quarantine', { device: uuid, reason: toFailure(error).message });
        arm(uuid, { remedy, boot, retryAt: clock.wall() + firstRetry });
      });
    });
  }

  async function retry(uuid: DeviceId): Promise<void> {
    const { signal } = abort;
    const found = await again(uuid, signal).catch((error: unknown) => {
      if (!signal.aborted) log.warn('failed to check device', { device: uuid, reason: toFailure(error).message });
      return null;
    });
    const known = registry.known.get(uuid);
    if (signal.aborted || known === undefined || known.quarantine === null) return;
    const verdict = found?.verdict;
    if (verdict?.kind === 'clean') release(known);
    else if (verdict?.kind === 'dirty') put(uuid, verdict, found?.mark ?? noMark);
    // It was not visible, or something uses it: not its own fault, and no proof that it is healthy.
    else {
      const isSoon = verdict?.kind === 'occupied' || verdict?.kind === 'wait';
      keep(known, { ...known.quarantine, remedy: 'look' }, isSoon ? lookAgain : undefined);
    }
  }

  return { start, put, putOff, putByHand, look, clearByHand, close };
}
