/**
 * The owner's own command for a device that was put in quarantine (`on_quarantine`). Never a shell, never two at a time, never
 * longer than its time; what it leaves running is killed with it. It is told of the device by its environment and is given
 * nothing else of the manager's, so that no credential reaches it (S8). Nothing waits for it: the device stays in quarantine
 * until a look finds it well, and a command that ends with 0 only brings that look about at once.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import type { RepairCommand } from '../../config/config.ts';
import { formatDuration } from '../../config/units.ts';
import type { Clock } from '../../core/clock.ts';
import type { DeviceId } from '../../core/slot.ts';
import type { Log } from '../../log.ts';

export interface RepairParts {
  readonly clock: Clock;
  readonly log: Log;
  /** null: nothing is ever run. */
  readonly command: RepairCommand | null;
  /** `$PATH`: where the program is looked for, and its own. */
  readonly path: string;
  /** Looks at a device in quarantine without waiting for its turn. */
  readonly again: (uuid: DeviceId) => void;
}

/** A device that was put in quarantine. */
export interface Broken {
  readonly uuid: DeviceId;
  readonly pciId: string | null;
  readonly reason: string;
}

/** Bytes of output that are kept, the last ones. */
const mostOutput = 8 * 1024;
/** ms that one that was killed may take to be gone before the next one begins: a driver in trouble may keep it for ever. */
const patience = 5_000;
/** ms that a pipe may stay open after the program has ended. */
const drain = 250;

export function createRepair({ command, log, clock, again, path }: RepairParts) {
  const waiting = new Map<DeviceId, Broken>();
  const abort = new AbortController();
  let running = false;

  /** Runs the command for this device once those before it are through. */
  function put(device: Broken): void {
    if (command === null || abort.signal.aborted) return;
    waiting.set(device.uuid, device);
    if (!running) void runAll(command);
  }

  /** Kills what runs. */
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
    const end = await ended(command, { env: { PATH: path, LC_ALL: 'C', ...env }, timeout, clock, signal });
    if (signal.aborted) return;
    const about = { device: uuid, seconds: Math.round((clock.now() - began) / 1000), output: end.output.trim() || null };
    if (end.why === null) {
      log.info('repaired', about);
      again(uuid);
    } else log.warn('not repaired', { ...about, reason: end.why });
  }

  return { put, close };
}

interface RunOptions {
  readonly env: Readonly<Record<string, string>>;
  readonly timeout: number;
  readonly clock: Clock;
  readonly signal: AbortSignal;
}

/** `why` it did not do its work; null when it ended with 0. Never rejects. */
async function ended(
  [program, ...args]: RepairCommand['command'],
  { env, timeout, clock, signal }: RunOptions,
): Promise<{ why: string | null; output: string }> {
  const { promise, resolve } = Promise.withResolvers<string | null>();
  let output = Buffer.alloc(0);
  let child: ChildProcess;
  try {
    // A group of its own, so that what it started is killed with it.
    child = spawn(program, args, { cwd: '/', env, detached: true, stdio: ['ignore', 'pipe', 'pipe'] });
  } catch (error) {
    return { why: notStarted(program, error), output: '' };
  }
  const cancels: (() => void)[] = [];
  const kill = (why: string): void => {
    killGroup(child.pid);
    cancels.push(clock.after(patience, () => resolve(why)));
    child.once('exit', () => resolve(why));
  };
  const stop = (): void => {
    killGroup(child.pid);
    resolve('onejob is stopping');
  };
  for (const stream of [child.stdout, child.stderr]) {
    stream?.on('error', () => {});
    stream?.on('data', (data: Buffer) => {
      output = Buffer.concat([output, data]).subarray(-mostOutput);
    });
  }
  let isKilled = false;
  child.once('error', (error) => resolve(notStarted(program, error)));
  child.once('exit', (code, by) => {
    if (isKilled) return;
    const why = code === 0 ? null : by === null ? `it ended with ${code}` : `it was ended by ${by}`;
    // What it left in the background may hold the pipes open for ever.
    const leave = (): void => {
      killGroup(child.pid);
      resolve(why);
    };
    cancels.push(clock.after(drain, leave));
    child.once('close', () => resolve(why));
  });
  cancels.push(
    clock.after(timeout, () => {
      isKilled = true;
      kill(`it took longer than ${formatDuration(timeout)} and was killed`);
    }),
  );
  signal.addEventListener('abort', stop, { once: true });
  const why = await promise;
  for (const cancel of cancels) cancel();
  signal.removeEventListener('abort', stop);
  child.stdout?.destroy();
  child.stderr?.destroy();
  child.unref();
  return { why, output: output.toString() };
}

function notStarted(program: string, error: unknown): string {
  return `${program} cannot be started: ${error instanceof Error ? error.message : String(error)}`;
}

function killGroup(pid: number | undefined): void {
  try {
    if (pid !== undefined) process.kill(-pid, 'SIGKILL');
  } catch {
    // It has ended by itself.
  }
}
