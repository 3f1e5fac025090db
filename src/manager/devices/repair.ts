/**
 * The owner's own command for a device in quarantine (`on_quarantine`). It runs without a shell, one at a time, with a time limit,
 * and what it leaves running is killed with it. Its environment describes the device and contains nothing else of the manager's,
 * so no credential reaches it (S8). Nothing waits for it: the device stays in quarantine until a look finds it healthy, and exit
 * code 0 only makes that look happen at once.
 */

import type { Log } from '../../base/log.ts';
import type { RepairCommand } from '../../config/config.ts';
import type { Clock } from '../../core/clock.ts';
import type { DeviceId } from '../../core/slot.ts';
import { runOwners } from '../../system/group.ts';

export interface RepairParts {
  readonly clock: Clock;
  readonly log: Log;
  readonly command: RepairCommand | null;
  /** `$PATH` to find the program, and for its own environment. */
  readonly path: string;
  /** Looks at a device in quarantine without waiting for its turn. */
  readonly recheck: (uuid: DeviceId) => void;
}

export interface Broken {
  readonly uuid: DeviceId;
  readonly pciId: string | null;
  readonly reason: string;
}

export class Repair {
  readonly #parts: RepairParts;
  readonly #waiting = new Map<DeviceId, Broken>();
  readonly #abort = new AbortController();
  #isRunning = false;

  constructor(parts: RepairParts) {
    this.#parts = parts;
  }

  put(device: Broken): void {
    const { command } = this.#parts;
    if (command === null || this.#abort.signal.aborted) return;
    this.#waiting.set(device.uuid, device);
    if (!this.#isRunning) void this.#runAll(command);
  }

  close(): void {
    this.#waiting.clear();
    this.#abort.abort();
  }

  async #runAll(command: RepairCommand): Promise<void> {
    this.#isRunning = true;
    for (const [uuid, device] of this.#waiting) {
      this.#waiting.delete(uuid);
      await this.#run(command, device);
    }
    this.#isRunning = false;
  }

  async #run({ command, timeout }: RepairCommand, { uuid, pciId, reason }: Broken): Promise<void> {
    const { clock, log, path, recheck } = this.#parts;
    const { signal } = this.#abort;
    log.info('repair', { device: uuid, command: command[0] });
    const began = clock.now();
    const env = { ONEJOB_DEVICE: uuid, ONEJOB_PCI: pciId ?? '', ONEJOB_REASON: reason.replaceAll('\0', ' ') };
    const end = await runOwners({ command, timeout, env: { PATH: path, LC_ALL: 'C', ...env }, clock, signal });
    if (signal.aborted) return;
    const about = { device: uuid, seconds: Math.round((clock.now() - began) / 1000), output: end.output.trim() || null };
    if (end.why === null) {
      log.info('repaired', about);
      recheck(uuid);
    } else log.warn('repair failed', { ...about, reason: end.why });
  }
}
