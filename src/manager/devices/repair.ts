/**
 * The owner's own command for a device in quarantine (`on_quarantine`). It runs without a shell, one at a time, with a time limit,
 * and what it leaves running is killed with it. Its environment describes the device and contains nothing else of the manager's,
 * so no credential reaches it (S8). Nothing waits for it: the device stays in quarantine until a look finds it healthy, and exit
 * code 0 only makes that look happen at once.
 */
import { once } from 'node:events';
import type { RepairCommand } from '../../config/config.ts';
import { formatDuration } from '../../config/units.ts';
import { type Clock, deadline } from '../../core/clock.ts';
import type { DeviceId } from '../../core/slot.ts';
import { killGroup, listen, startGroup } from '../../gpu/run.ts';
import type { Log } from '../../log.ts';

export interface RepairParts {
  readonly clock: Clock;
  readonly log: Log;
  readonly command: RepairCommand | null;
  /** `$PATH` to find the program, and for its own environment. */
  readonly path: string;
  /** Looks at a device in quarantine without waiting for its turn. */
  readonly again: (uuid: DeviceId) => void;
}

export interface Broken {
  readonly uuid: DeviceId;
  readonly pciId: string | null;
  readonly reason: string;
}

/** Bytes of output that are kept, the last ones. */
const mostOutput = 8 * 1024;
/** ms to wait for a killed command before the next one starts: a driver in trouble may keep it for ever. */
const patience = 5_000;
/** ms that a pipe may stay open after the program has ended. */
const drain = 250;

export function createRepair({ command, log, clock, again, path }: RepairParts) {
  const waiting = new Map<DeviceId, Broken>();
  const abort = new AbortController();
  let running = false;

  function put(device: Broken): void {
    if (command === null || abort.signal.aborted) return;
    waiting.set(device.uuid, device);
    if (!running) void runAll(command);
  }

  function close(): void {
    waiting.clear();
    abort.abort();
  }

  async function runAll(command: RepairCommand): Promise<void> {
    running = true;
    for (const [uuid, device] of waiting) {
      waiting.delete(uuid);
      await run(command, device);
    }
    running = false;
  }

  async function run({ command, timeout }: RepairCommand, { uuid, pciId, reason }: Broken): Promise<void> {
    const { signal } = abort;
    log.info('repair', { device: uuid, command: command[0] });
    const began = clock.now();
    const env = { ONEJOB_DEVICE: uuid, ONEJOB_PCI: pciId ?? '', ONEJOB_REASON: reason.replaceAll('\0', ' ') };
    const end = await ended(command, timeout, { PATH: path, LC_ALL: 'C', ...env });
    if (signal.aborted) return;
    const about = { device: uuid, seconds: Math.round((clock.now() - began) / 1000), output: end.output.trim() || null };
    if (end.why === null) {
      log.info('repaired', about);
      again(uuid);
    } else log.warn('repair failed', { ...about, reason: end.why });
  }

  /** `why` it failed; null when it ended with 0. Never rejects. */
  async function ended([program, ...args]: RepairCommand['command'], timeout: number, env: Record<string, string>) {
    const { signal } = abort;
    const notStarted = ({ message }: Error) => ({ why: `${program} cannot be started: ${message}`, output: '' });
    const child = startGroup(program, args, env);
    if (child instanceof Error) return notStarted(child);
    let output = Buffer.alloc(0);
    const take = (data: Buffer): boolean => {
      output = Buffer.concat([output, data]).subarray(-mostOutput);
      return true;
    };
    const end = await listen(child, { clock, limit: timeout, drain, signal, take });
    if (end instanceof Error) return notStarted(end);
    // What it left in the background may hold the pipes open for ever.
    if (end !== 'closed' && child.pid !== undefined) killGroup(child.pid);
    const isOver = child.exitCode !== null || child.signalCode !== null;
    let why: string | null = null;
    if (signal.aborted) why = 'onejob is stopping';
    else if (end === 'hung' && !isOver) {
      why = `it took longer than ${formatDuration(timeout)} and was killed`;
      using limit = deadline(clock, patience, signal);
      await once(child, 'exit', { signal: limit.signal }).catch(() => {});
    } else if (child.signalCode !== null) why = `it was ended by ${child.signalCode}`;
    else if (child.exitCode !== 0) why = `it exited with ${child.exitCode}`;
    return { why, output: output.toString() };
  }

  return { put, close };
}
