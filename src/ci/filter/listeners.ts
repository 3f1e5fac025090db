/**
 * The listeners of the filter's process. It listens on the addresses at which sandboxes call, at one port if the config says no other.
 * A filter of another version takes its listeners over, so that no other program can take the port in between.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import type http from 'node:http';
import type https from 'node:https';
import net from 'node:net';
import { messageOf } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { type Clock, sleep } from '../../core/clock.ts';
import { isNamed } from '../../http/address.ts';
import { type Certificate, certificateIn } from './certificates.ts';
import { type ListenConfig, placeOf, readListenConfig } from './doors.ts';

export interface ListenerParts {
  /** Of onejob. */
  readonly version: string;
  readonly stateDir: string;
  /** The filter's folder in it. */
  readonly dir: string;
  /** A server for one more address. `tls`: the certificate that it needs there. */
  readonly server: (tls: Certificate | null) => http.Server | https.Server;
  readonly clock: Clock;
  readonly log: Log;
}

type Open = ReadonlyMap<string, http.Server | https.Server>;

/** ms between two looks at the file, and two tries to listen. */
const lookAgain = 500;
/** ms for a successor to listen, and until the next one is tried. */
const [successorPatience, successorAgain] = [20_000, 10_000];

/**
 * Listens as the file says, and resolves when nobody needs the filter, or when other programs, mostly a filter, have the port at every
 * address: the manager starts this one again if needed. True: a filter of another version has taken over, and calls may be under way.
 */
export async function keepListening(parts: ListenerParts, signal: AbortSignal, before: Predecessor = none): Promise<boolean> {
  const { dir, version, clock, log } = parts;
  const open = new Map<string, http.Server | https.Server>();
  const said = new Set<string>();
  const taken = new Set<string>();
  let nextTry = Number.NEGATIVE_INFINITY;

  function listen(address: string, at: net.Server | { readonly host: string; readonly port: number }): void {
    const file = readListenConfig(dir);
    const isSecure = file?.secure.includes(address) === true;
    const tls = isSecure ? certificateIn(dir, placeOf(address, file).host) : null;
    // The manager makes it before it writes the address down.
    if (isSecure && tls === null) return;
    const listener = parts.server(tls);
    open.set(address, listener);
    listener.on('error', (error: NodeJS.ErrnoException) => {
      open.delete(address);
      const isTaken = error.code === 'EADDRINUSE';
      if (isTaken) taken.add(address);
      if (!said.has(address)) log[isTaken ? 'error' : 'warn']('filter does not listen yet', { address, reason: error.message });
      said.add(address);
    });
    listener.on('listening', () => taken.delete(address));
    if (at instanceof net.Server) listener.listen(at);
    // A name leads to an address of this host that it may not have tomorrow: all of them, of both families where there are both.
    else listener.listen({ ...(!isNamed(at.host) && { host: at.host }), port: at.port, exclusive: true });
  }

  const isNeeded = (now: ListenConfig | null): now is ListenConfig => now !== null && now.addresses.length > 0 && !signal.aborted;

  await before.give(listen);
  for (let now = readListenConfig(dir); isNeeded(now); now = readListenConfig(dir)) {
    if (now.version === version) {
      if (before.isThere()) before.leave();
      if (now.addresses.every((address) => taken.has(address))) return false;
      for (const address of now.addresses) if (!open.has(address)) listen(address, placeOf(address, now));
    } else if (before.isThere() || now.program.length === 0 || ![...open.values()].some((one) => one.listening)) {
      // A program that was replaced on the disk, or a file of an older version.
      return false;
    } else if (clock.now() >= nextTry) {
      if (await isSucceeded(parts, now.program, open)) return true;
      nextTry = clock.now() + successorAgain;
    }
    await sleep(clock, lookAgain, signal);
  }
  return false;
}

/** Starts a filter of the version that the file names, and gives it the listeners. Whether it serves them now. */
async function isSucceeded(
  { stateDir, dir, clock, log }: ListenerParts,
  [program = '', ...args]: readonly string[],
  open: Open,
): Promise<boolean> {
  const child = spawn(program, [...args, 'filter', '--state-dir', stateDir], {
    cwd: dir,
    detached: true,
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  });
  try {
    await handOver(child, open, clock);
    child.disconnect();
    child.unref();
    return true;
  } catch (error) {
    log.error('a filter of another version cannot take over, and this one continues', { program, reason: messageOf(error) });
    child.kill('SIGKILL');
    return false;
  }
}

/** @throws Error: it has ended, or does not listen */
async function handOver(child: ChildProcess, open: Open, clock: Clock): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  const callOff = clock.after(successorPatience, () => reject(new Error('it does not listen')));
  child.on('error', reject);
  child.once('exit', (code, how) => reject(new Error(`it has ended with ${how ?? code}`)));
  child.on('message', (message) => {
    if (message === 'ready') {
      for (const [address, listener] of open) if (listener.listening) child.send({ address }, listener);
      child.send('all');
    }
    if (message === 'listening') resolve();
  });
  try {
    await promise;
  } finally {
    callOff();
  }
}

/** The filter that has started this one, to hand its listeners over. */
export interface Predecessor {
  /** Resolves when it has given all, or is gone: what it has given stays open. `take` must listen at once, or calls get no answer. */
  give(take: (address: string, listener: net.Server) => void): Promise<void>;
  /** Whether it still waits for `leave`. */
  isThere(): boolean;
  /** Tells it that its listeners are served. */
  leave(): void;
}

const none: Predecessor = { give: async () => {}, isThere: () => false, leave() {} };

/** Of this process. */
export function predecessor(): Predecessor {
  if (!process.connected) return none;
  const tell = (message: string): void => void process.send?.(message, undefined, {}, () => {});
  return {
    give: (take) =>
      new Promise((resolve) => {
        process.once('disconnect', resolve);
        process.on('message', (message, handle) => {
          if (message === 'all') resolve();
          const { address } = Object(message);
          if (typeof address === 'string' && handle instanceof net.Server) take(address, handle);
        });
        tell('ready');
      }),
    isThere: () => process.connected,
    leave: () => tell('listening'),
  };
}
