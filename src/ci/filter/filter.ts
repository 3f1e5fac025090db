/**
 * The manager's end of the filter, through which agents of untrusted jobs speak to their service: seals tokens for sandboxes, and keeps
 * a process at work while any sandbox may need it. Jobs outlive managers, so that process does, too.
 */
import { spawn } from 'node:child_process';
import { closeSync, existsSync, fstatSync, ftruncateSync, openSync } from 'node:fs';
import { type AddressInfo, connect, createServer } from 'node:net';
import { join } from 'node:path';
import { type Clock, sleep } from '../../core/clock.ts';
import { OnejobError, toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import { subdirectory } from '../../store/directory.ts';
import type { AgentContext } from '../ci-service.ts';
import { readDoors, writeDoors } from './doors.ts';
import { createSeal, installationKey, type Seal } from './seal.ts';

/** The way in for one sandbox. */
export interface Door {
  /** As the sandbox sees it, such as `172.18.0.1:7070`. */
  readonly authority: string;
  readonly seal: Seal;
}

export interface Filter {
  /** Keeps what was listening before at work, until `signal` aborts. */
  start(signal: AbortSignal): void;
  /** Has the filter listen where the sandbox reaches it. @throws OnejobError E_FILTER (retry), E_NO_DOOR */
  door(context: Pick<AgentContext, 'door'>, signal: AbortSignal): Promise<Door>;
  /** `leaving`: agents go on, and so must the filter. */
  close(leaving: boolean): Promise<void>;
}

export interface FilterParts {
  readonly stateDir: string;
  /** Program and arguments that start this onejob again. */
  readonly self: readonly string[];
  /** Variables by which it finds its way to services. */
  readonly given: Readonly<Record<string, string>>;
  /** Of onejob. */
  readonly version: string;
  readonly clock: Clock;
  readonly log: Log;
}

/** ms between two looks whether it answers, and that it may take to. */
const [lookEvery, patience] = [2_000, 10_000];
/** Above this size what filters have said so far is dropped, in bytes. */
const logLimit = 1 << 20;

/** @throws OnejobError E_STATE_DIR and the like */
export function createFilter({ stateDir, self, given, version, clock, log }: FilterParts): Filter {
  const dir = subdirectory(stateDir, 'filter');
  const seal = createSeal(installationKey(dir));
  const closing = new AbortController();
  let child: number | null = null;
  let starting = Number.NEGATIVE_INFINITY;
  let isKept = false;

  function startOne(): void {
    // One that is slow to listen is there all the same.
    if (child !== null || clock.now() - starting < lookEvery) return;
    starting = clock.now();
    const path = join(dir, 'filter.log');
    const file = openSync(path, 'a', 0o600);
    if (fstatSync(file).size > logLimit) ftruncateSync(file);
    const [program = '', ...args] = self;
    const started = spawn(program, [...args, 'filter', '--state-dir', stateDir], {
      cwd: dir,
      // It needs nothing else of ours, and what is not there cannot be read in `/proc`.
      env: { ...given, PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' },
      detached: true,
      stdio: ['ignore', file, file],
    });
    closeSync(file);
    child = started.pid ?? null;
    started.once('error', (error) => log.error('cannot start the filter', { reason: error.message }));
    started.once('exit', (code, how) => {
      child = null;
      if (!closing.signal.aborted) log.warn('filter ended', { code, signal: how, log: path });
    });
    started.unref();
  }

  /** While an address is named, something listens there. */
  async function keep(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      const now = readDoors(dir);
      const [address] = now?.addresses ?? [];
      if (now !== null && address !== undefined) {
        try {
          // One of another version ends when it reads this.
          if (now.version !== version) writeDoors(dir, { ...now, version });
          if (!(await answers(address, now.port)) && !signal.aborted) startOne();
        } catch (error) {
          log.warn('cannot keep the filter at work', { reason: toFailure(error).message });
        }
      }
      await sleep(clock, lookEvery, signal);
    }
  }

  return {
    start(signal) {
      if (isKept) return;
      isKept = true;
      signal.addEventListener('abort', () => closing.abort(), { once: true });
      void keep(closing.signal);
    },
    async door(context, signal) {
      const known = readDoors(dir);
      const port = known?.port ?? (await freePort());
      const address = await context.door(port, signal);
      const addresses = known?.addresses ?? [];
      if (known === null || known.version !== version || !addresses.includes(address)) {
        writeDoors(dir, { version, port, addresses: [...new Set([...addresses, address])] });
      }
      const until = clock.now() + patience;
      while (!(await answers(address, port))) {
        signal.throwIfAborted();
        if (clock.now() > until) throw away();
        if (addresses.length === 0) startOne();
        await sleep(clock, 50, signal);
      }
      return { authority: `${address.includes(':') ? `[${address}]` : address}:${port}`, seal };
    },
    async close(leaving) {
      closing.abort();
      if (!leaving) writeDoors(dir, null);
    },
  };
}

/** Nobody needs one any more: one that is there ends. */
export function endFilter(stateDir: string): void {
  const dir = join(stateDir, 'filter');
  if (existsSync(dir)) writeDoors(dir, null);
}

function away(): OnejobError {
  return new OnejobError(
    'E_FILTER',
    'The filter, through which agents of untrusted jobs speak to their service, does not listen.',
    {
      hint: 'It is started again by itself; "filter/filter.log" in the state directory says why it ended.',
      retry: true,
    },
  );
}

/** Whether something listens there. */
function answers(host: string, port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect({ host, port, timeout: 1_000 });
    const say = (is: boolean) => () => {
      socket.destroy();
      resolve(is);
    };
    socket.once('connect', say(true)).once('error', say(false)).once('timeout', say(false));
  });
}

/** One that nobody has now. */
async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(0, '127.0.0.1', resolve);
  });
  const { port } = server.address() as AddressInfo;
  await new Promise<void>((resolve) => server.close(() => resolve()));
  return port;
}
