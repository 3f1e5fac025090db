/** Devices out of use until they are shown to be healthy: by a later look, after a reboot, or when a person says so. */

import { toFailure } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { type Clock, doubling, Timers } from '../../core/clock.ts';
import type { DeviceId } from '../../core/slot.ts';
import type { KernelMark } from '../../gpu/kernel-log.ts';
import type { ProofVerdict } from '../../gpu/proof.ts';
import type { KnownDevice } from '../../store/devices.ts';
import type { DeviceRegistry } from './registry.ts';

/** What a check of one device found, and the end of the kernel log then. */
export interface DeviceCheck {
  readonly verdict: ProofVerdict;
  readonly mark: KernelMark;
}

export interface QuarantineParts {
  readonly clock: Clock;
  readonly log: Log;
  readonly registry: DeviceRegistry;
  readonly bootId: string;
  /** Whether a device that is out of use would be found clean now. Rejects when aborted, or when the look fails. */
  readonly recheck: (uuid: DeviceId, signal: AbortSignal) => Promise<DeviceCheck>;
  /** Called when a device is put there for the first time. */
  readonly repair: (uuid: DeviceId, reason: string) => void;
}

type Dirty = Extract<ProofVerdict, { kind: 'dirty' }>;
type Entry = NonNullable<KnownDevice['quarantine']>;

const noMark: KernelMark = { seq: null, at: null };
/** ms while something uses it, or is just leaving. */
const lookAgain = 5_000;
/** ms until the first retry; doubles with each failure. */
const firstRetry = 60_000;
const longestRetry = 3_600_000;

export class Quarantine {
  readonly #parts: QuarantineParts;
  readonly #abort = new AbortController();
  readonly #timers: Timers;

  constructor(parts: QuarantineParts) {
    this.#parts = parts;
    this.#timers = new Timers(parts.clock);
  }

  /** Resumes the quarantines of the last manager. A reboot is worth a look at once. */
  start(): void {
    for (const { uuid, quarantine } of this.#parts.registry.known.all) if (quarantine !== null) this.#arm(uuid, quarantine);
  }

  /** `mark`: the current end of the kernel log, so that this fault's lines do not count at the next try. */
  put(uuid: DeviceId, { message, remedy, hint, evidence }: Dirty, mark: KernelMark): void {
    const known = this.#parts.registry.known.get(uuid);
    if (known === undefined) return;
    const failures = (known.quarantine?.failures ?? 0) + 1;
    const saw = known.baseline?.saw ?? null;
    const baseline = known.baseline && { ...known.baseline, saw: saw && { ...saw, mark } };
    this.#keep({ ...known, baseline }, { reason: message, remedy, hint, evidence, failures });
    this.#parts.log.error('device in quarantine', { device: uuid, reason: message, hint });
    if (failures === 1) this.#parts.repair(uuid, message);
  }

  /** For a proof that could not finish: the next manager checks the device before any job gets it. */
  putOff(uuid: DeviceId): void {
    const { clock, bootId, log, registry } = this.#parts;
    const known = registry.known.get(uuid);
    if (known === undefined || known.quarantine !== null) return;
    const wall = clock.wall();
    const reason = 'onejob was stopped before it verified that the device is clean';
    const about = { reason, remedy: 'look', hint: null, evidence: null, failures: 0 } as const;
    registry.change({ ...known, quarantine: { ...about, since: wall, boot: bootId, retryAt: wall } });
    log.info('device not verified', { device: uuid, reason });
  }

  /** Put there by a person, and only a person can lift it. */
  putByHand(device: KnownDevice, reason: string): void {
    this.#keep(device, { reason, remedy: 'person', hint: null, evidence: null, failures: 1 });
  }

  /** Looks at it now and not at its turn, unless a person put it there. */
  look(uuid: DeviceId): void {
    const { registry, clock } = this.#parts;
    const quarantine = registry.known.get(uuid)?.quarantine ?? null;
    if (quarantine !== null && quarantine.remedy !== 'person') this.#arm(uuid, { ...quarantine, retryAt: clock.wall() });
  }

  /** For a person who accepts the device as it is now. */
  clearByHand(device: KnownDevice): void {
    this.#release({ ...device, baseline: null });
  }

  close(): void {
    this.#abort.abort();
    this.#timers.clear();
  }

  #release(device: KnownDevice): void {
    this.#timers.cancel(device.uuid);
    this.#parts.registry.change({ ...device, quarantine: null });
    this.#parts.log.info('device out of quarantine', { device: device.uuid });
  }

  #keep(
    known: KnownDevice,
    what: Pick<Entry, 'reason' | 'remedy' | 'hint' | 'evidence' | 'failures'>,
    wait = doubling(firstRetry, longestRetry, what.failures),
  ): void {
    const { clock, bootId, registry } = this.#parts;
    const retryAt = what.remedy === 'look' ? clock.wall() + wait : null;
    const quarantine: Entry = { ...what, since: known.quarantine?.since ?? clock.wall(), boot: bootId, retryAt };
    registry.change({ ...known, quarantine });
    this.#arm(known.uuid, quarantine);
  }

  #arm(uuid: DeviceId, { remedy, boot, retryAt }: Pick<Entry, 'remedy' | 'boot' | 'retryAt'>): void {
    const { clock, bootId, log } = this.#parts;
    this.#timers.cancel(uuid);
    const rebooted = boot !== bootId && remedy !== 'replace' && remedy !== 'person';
    if (retryAt === null && !rebooted) return;
    const wait = rebooted || retryAt === null ? 0 : Math.min(Math.max(0, retryAt - clock.wall()), longestRetry);
    this.#timers.arm(uuid, clock.now() + wait, () => {
      // A store that cannot be written reports that elsewhere; the device stays where it is and is tried again.
      this.#retry(uuid).catch((error: unknown) => {
        log.warn('device stays in quarantine', { device: uuid, reason: toFailure(error).message });
        this.#arm(uuid, { remedy, boot, retryAt: clock.wall() + firstRetry });
      });
    });
  }

  async #retry(uuid: DeviceId): Promise<void> {
    const { recheck, log, registry } = this.#parts;
    const { signal } = this.#abort;
    const check = await recheck(uuid, signal).catch((error: unknown) => {
      if (!signal.aborted) log.warn('failed to check device', { device: uuid, reason: toFailure(error).message });
      return null;
    });
    const known = registry.known.get(uuid);
    if (signal.aborted || known === undefined || known.quarantine === null) return;
    const verdict = check?.verdict;
    if (verdict?.kind === 'clean') this.#release(known);
    else if (verdict?.kind === 'dirty') this.put(uuid, verdict, check?.mark ?? noMark);
    // It was not visible, or something uses it: not its own fault, and no proof that it is healthy.
    else {
      const isSoon = verdict?.kind === 'occupied' || verdict?.kind === 'wait';
      this.#keep(known, { ...known.quarantine, remedy: 'look' }, isSoon ? lookAgain : undefined);
    }
  }
}
