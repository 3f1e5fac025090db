/** Writes the frame to a gate through its FIFO. */
import { closeSync, constants, openSync, readdirSync, readSync } from 'node:fs';
import { Socket } from 'node:net';
import { join } from 'node:path';
import { z } from 'zod';
import { codeOf, OnejobError } from '../../base/errors.ts';
import { type Clock, deadline, sleep } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import { readOr } from '../../system/process-identity.ts';
import { releasedMarker } from '../gate.ts';
import { type Placed, verifyMounts } from '../mounts.ts';
import { watchFolders } from '../watch.ts';
import { firstProcessOf } from './folder.ts';
import { placedFile } from './prepare.ts';
import { insideBubblewrap } from './remove.ts';

/** A sandbox that starts, or waits at its gate. */
export interface StartedSandbox {
  readonly clock: Clock;
  readonly agent: AgentId;
  /** Its folder. */
  readonly path: string;
  readonly hasEnded: () => boolean;
}

/**
 * Writes `frame` to the gate. Resolves when the kernel has all of it, or at once if it was released before.
 * @throws OnejobError E_GATE_ENDED if the gate has ended or does not read; the abort reason if aborted
 */
export async function releaseGate(sandbox: StartedSandbox, frame: Uint8Array, signal: AbortSignal): Promise<void> {
  const { clock, agent, path } = sandbox;
  const until = clock.now() + startTimeout;
  // The sandbox records its identity right after it has opened its input. Nobody reads the FIFO before.
  const started = await untilStarted(sandbox, signal);
  signal.throwIfAborted();
  if (!started) throw ended(agent, 'its gate did not start');
  using watch = watchFolders(clock, [path, join(path, 'log')], signal);
  const useless = (): boolean => {
    if (hasReleased(path, agent)) return true;
    if (sandbox.hasEnded()) throw ended(agent, 'its gate has ended');
    return false;
  };
  if (useless()) return;
  const fd = openThere(join(path, 'stdin'), constants.O_WRONLY | constants.O_NONBLOCK);
  // Nobody reads any more: it was released, or is ending.
  if (fd === null && useless()) return;
  if (fd === null) throw ended(agent, 'its gate has closed its input');
  const socket = new Socket({ fd, readable: false, writable: true });
  try {
    const writing = new Promise<boolean>((resolve) => {
      socket.once('error', () => resolve(false));
      socket.write(frame, (error) => resolve(!error));
    });
    for (;;) {
      signal.throwIfAborted();
      // A large frame waits for the gate to read. A gate that was released meanwhile never does.
      const isWritten = await Promise.race([writing, watch.next(500).then(() => null)]);
      if (isWritten === true || useless()) return;
      if (isWritten === false) throw ended(agent, 'its gate closed its input');
      if (clock.now() > until + startTimeout) throw ended(agent, 'its gate did not read its script in time');
    }
  } finally {
    socket.destroy();
  }
}

/** Whether the sandbox has the folders of this host that it should. @throws OnejobError E_MOUNT_CHANGED */
export async function verifyFolders(sandbox: StartedSandbox, signal: AbortSignal): Promise<void> {
  const text = readOr(join(sandbox.path, placedFile), '');
  if (text === '') return;
  const placed = z.array(z.object({ host: z.string(), container: z.string() })).parse(JSON.parse(text));
  await untilStarted(sandbox, signal);
  await verifyInside(sandbox, { name: sandbox.agent, status: 'status', placed }, signal);
}

/** What a sandbox must have inside. */
export interface Inside {
  /** Of its agent, for people. */
  readonly name: string;
  /** The file in which bubblewrap reports. */
  readonly status: string;
  readonly placed: readonly Placed[];
}

/** Waits until all is mounted, and compares it. Nothing may run before. @throws OnejobError E_MOUNT_CHANGED, E_GATE_ENDED */
export async function verifyInside(
  { clock, agent, path, hasEnded }: StartedSandbox,
  { name, status, placed }: Inside,
  signal: AbortSignal,
): Promise<void> {
  const until = clock.now() + startTimeout;
  for (;;) {
    signal.throwIfAborted();
    const pid = insideBubblewrap(path, status);
    // Its own files are in its folder.
    if (pid !== null) return verifyMounts(name, pid, placed, (mounts) => mounts.includes(`/${agent}/`));
    if (hasEnded()) return;
    if (clock.now() >= until) throw ended(agent, 'nothing shows what is mounted in its sandbox');
    await sleep(clock, 20, signal);
  }
}

/** null: it is gone, or nobody reads a FIFO. A file may go at any moment, so nothing is asked before. */
function openThere(path: string, flags: number): number | null {
  try {
    return openSync(path, flags);
  } catch (error) {
    if (['ENXIO', 'ENOENT'].includes(codeOf(error))) return null;
    throw error;
  }
}

/**
 * Whether the gate was released already. Its markers are within the first bytes of the log, whose first file goes when more has come.
 */
export function hasReleased(path: string, agent: AgentId, within = 4096): boolean {
  const buffer = Buffer.alloc(within);
  const fd = openThere(join(path, 'log/stdout'), constants.O_RDONLY);
  if (fd === null) return readdirSync(join(path, 'log')).some((name) => name.startsWith('stdout.'));
  try {
    const start = buffer.toString('latin1', 0, readSync(fd, buffer, 0, buffer.length, 0));
    return start.split('\n').slice(0, -1).includes(releasedMarker(agent));
  } finally {
    closeSync(fd);
  }
}

function ended(agent: AgentId, why: string): OnejobError {
  return new OnejobError('E_GATE_ENDED', `Cannot release agent ${agent}: ${why}.`, { retry: true });
}

/** ms a sandbox may take to start its first process. */
const startTimeout = 10_000;

/** Resolves to true once its first process is known; to false if the sandbox has ended or does not start in time. */
export async function untilStarted({ clock, path, hasEnded }: StartedSandbox, ...outer: AbortSignal[]): Promise<boolean> {
  using limit = deadline(clock, startTimeout, ...outer);
  const { signal } = limit;
  using watch = watchFolders(clock, [path], signal);
  while (firstProcessOf(path) === null) {
    if (signal.aborted || hasEnded()) return false;
    await watch.next(500);
  }
  return true;
}
