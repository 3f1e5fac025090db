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

export function createRepair({ clock, log, command: own, path, recheck }: RepairParts) {
  const waiting = new Map<DeviceId, Broken>();
  const abort = new AbortController();
  let isRunning = false;

  const run = async ({ command, timeout }: RepairCommand, { uuid, pciId, reason }: Broken): Promise<void> => {
    log.info('repair', { device: uuid, command: command[0] });
    const began = clock.now();
    const env = { ONEJOB_DEVICE: uuid, ONEJOB_PCI: pciId ?? '', ONEJOB_REASON: reason.replaceAll('\0', ' ') };
    const end = await runOwners({ command, timeout, env: { PATH: path, LC_ALL: 'C', ...env }, clock, signal: abort.signal });
    if (abort.signal.aborted) return;
    const about = { device: uuid, seconds: Math.round((clock.now() - began) / 1000), output: end.output.trim() || null };
    if (end.why === null) {
      log.info('repaired', about);
      recheck(uuid);
    } else log.warn('repair failed', { ...about, reason: end.why });
  };

  const runAll = async (command: RepairCommand): Promise<void> => {
    isRunning = true;
    for (const [uuid, device] of waiting) {
      waiting.delete(uuid);
      await run(command, device);
    }
    isRunning = false;
  };

  return {
    put(device: Broken): void {
      if (own === null || abort.signal.aborted) return;
      waiting.set(device.uuid, device);
      if (!isRunning) void runAll(own);
    },
    close(): void {
      waiting.clear();
      abort.abort();
    },
  };
}
export type Repair = ReturnType<typeof createRepair>;
