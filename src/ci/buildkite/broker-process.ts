/** Starts the broker: a process of its own that outlives the manager, its words in `broker.log` beside its store. */
import { spawn } from 'node:child_process';
import { closeSync, fstatSync, ftruncateSync, openSync } from 'node:fs';
import { join } from 'node:path';
import { OnejobError } from '../../errors.ts';
import { subdirectory } from '../../store/directory.ts';

/** Above this size what brokers have said so far is dropped, in bytes. */
const logLimit = 1 << 20;
/** Linux takes 107 bytes; Node cuts longer ones without a word. */
const longestSocket = 100;

export interface BrokerPlace {
  readonly dir: string;
  readonly socket: string;
  readonly log: string;
}

/** Where the broker of a state directory is. @throws OnejobError E_SOCKET_PATH when the directory's path is too long */
export function brokerPlace(stateDir: string): BrokerPlace {
  const dir = subdirectory(stateDir, 'broker');
  const socket = join(dir, 'broker.sock');
  if (Buffer.byteLength(socket) > longestSocket) {
    throw new OnejobError('E_SOCKET_PATH', `The broker's socket ${socket} has a path of more than ${longestSocket} bytes.`, {
      hint: 'Choose a shorter "state_dir".',
    });
  }
  return { dir, socket, log: join(dir, 'broker.log') };
}

/**
 * Starts one; resolves once it has ended, with how, as the end of a sentence. One that finds another there ends at once.
 * @param given variables by which it finds its way to services
 */
export function startBroker(
  self: readonly string[],
  stateDir: string,
  place: BrokerPlace,
  given: Readonly<Record<string, string>> = {},
): Promise<string> {
  const log = openSync(place.log, 'a', 0o600);
  boundLog(log);
  const [program = '', ...args] = self;
  const child = spawn(program, [...args, 'broker', '--state-dir', stateDir, '--socket', place.socket], {
    cwd: place.dir,
    // It needs nothing else of ours, and what is not there cannot be read in `/proc`.
    env: { ...given, PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' },
    detached: true,
    stdio: ['ignore', log, log],
  });
  closeSync(log);
  child.unref();
  return new Promise((resolve) => {
    child.once('error', (error) => resolve(`could not be started (${error.message})`));
    child.once('exit', (code, signal) => resolve(signal === null ? `ended with exit code ${code}` : `was ended by ${signal}`));
  });
}

/** Begins a log that has grown too large anew, from inside the broker too: it runs for months. Never throws; only for files. */
export function boundLog(file: number): void {
  try {
    const stat = fstatSync(file);
    if (stat.isFile() && stat.size > logLimit) ftruncateSync(file);
  } catch {
    // Neither a log that is closed nor a disk that fails may end the broker.
  }
}
