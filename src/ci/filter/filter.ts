/**
 * The filter's process, through which agents of untrusted jobs talk to their service, and the manager's side of it, which seals
 * tokens for sandboxes and keeps the process running. Jobs outlive managers, so the filter does too.
 * It listens at one port on the addresses at which sandboxes call. The manager writes them to a file, and the filter reads it; no
 * file means that nobody needs the filter.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import fs from 'node:fs';
import type http from 'node:http';
import { type AddressInfo, connect, createServer } from 'node:net';
import { join } from 'node:path';
import { z } from 'zod';
import { type Clock, sleep } from '../../core/clock.ts';
import { OnejobError, toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import { subdirectory } from '../../store/directory.ts';
import type { AgentContext } from '../ci-service.ts';
import { createSeal, installationKey, type Seal } from './seal.ts';

const doors = z.object({
  /** Of onejob: a filter of another one ends. */
  version: z.string(),
  port: z.int().min(1).max(65_535),
  addresses: z.array(z.string()),
});
export type Doors = Readonly<z.infer<typeof doors>>;

/** null: there is none, or it cannot be read. */
export function readDoors(dir: string): Doors | null {
  try {
    return doors.parse(JSON.parse(fs.readFileSync(join(dir, 'doors.json'), 'utf8')));
  } catch {
    return null;
  }
}

/** A file is whole or not there, whoever is killed meanwhile. @throws what the disk says */
export function writeDoors(dir: string, value: Doors | null): void {
  const path = join(dir, 'doors.json');
  if (value === null) {
    fs.rmSync(path, { force: true });
    return;
  }
  fs.writeFileSync(`${path}.new`, JSON.stringify(value), { mode: 0o600 });
  fs.renameSync(`${path}.new`, path);
}

export type Filter = ReturnType<typeof createFilter>;

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
export function createFilter({ stateDir, self, given, version, clock, log }: FilterParts) {
  const dir = subdirectory(stateDir, 'filter');
  const seal = createSeal(installationKey(dir));
  const closing = new AbortController();
  let child: number | null = null;
  let starting = Number.NEGATIVE_INFINITY;

  function startOne(): void {
    // One that is slow to listen is there all the same.
    if (child !== null || clock.now() - starting < lookEvery) return;
    starting = clock.now();
    const path = join(dir, 'filter.log');
    const file = fs.openSync(path, 'a', 0o600);
    if (fs.fstatSync(file).size > logLimit) fs.ftruncateSync(file);
    const [program = '', ...args] = self;
    const started = spawn(program, [...args, 'filter', '--state-dir', stateDir], {
      cwd: dir,
      // It needs nothing else of ours, and what is not there cannot be read in `/proc`.
      env: { ...given, PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' },
      detached: true,
      stdio: ['ignore', file, file],
    });
    fs.closeSync(file);
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
          log.warn('cannot keep the filter running', { reason: toFailure(error).message });
        }
      }
      await sleep(clock, lookEvery, signal);
    }
  }

  return {
    /** Keeps what was listening before running, until `signal` aborts. */
    start(signal: AbortSignal): void {
      signal.addEventListener('abort', () => closing.abort(), { once: true });
      void keep(closing.signal);
    },
    /**
     * Has the filter listen at `authority`, as the sandbox sees it (`172.18.0.1:7070`). @throws OnejobError E_FILTER (retry), E_NO_DOOR
     */
    async door(
      context: Pick<AgentContext, 'door'>,
      signal: AbortSignal,
    ): Promise<{ readonly authority: string; readonly seal: Seal }> {
      const known = readDoors(dir);
      const port = known?.port ?? (await freePort());
      const address = await context.door(port, signal);
      const addresses = known?.addresses ?? [];
      if (known === null || known.version !== version || !addresses.includes(address))
        writeDoors(dir, { version, port, addresses: [...new Set([...addresses, address])] });
      const until = clock.now() + patience;
      while (!(await answers(address, port))) {
        signal.throwIfAborted();
        if (clock.now() > until) {
          const what = 'The filter, through which agents of untrusted jobs reach their service, does not listen.';
          const hint = 'onejob restarts it automatically; "filter/filter.log" in the state directory says why it ended.';
          throw new OnejobError('E_FILTER', what, { hint, retry: true });
        }
        if (addresses.length === 0) startOne();
        await sleep(clock, 50, signal);
      }
      return { authority: `${address.includes(':') ? `[${address}]` : address}:${port}`, seal };
    },
    /** `leaving`: agents keep running, and so must the filter. */
    async close(leaving: boolean): Promise<void> {
      closing.abort();
      if (!leaving) writeDoors(dir, null);
    },
  };
}

/** Nobody needs one any more: one that is there ends. */
export function endFilter(stateDir: string): void {
  const dir = join(stateDir, 'filter');
  if (fs.existsSync(dir)) writeDoors(dir, null);
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
  await using server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  return (server.address() as AddressInfo).port;
}

/** ms between two looks at the file, and at addresses that this host does not have yet. */
const lookAgain = 500;

/**
 * Listens as the file says, and resolves when the file is gone or for another version. Also when another program, mostly a filter,
 * has every port: the manager starts this one again if needed.
 */
export async function keepDoors(
  dir: string,
  { version, server, clock, log }: Pick<FilterParts, 'version' | 'clock' | 'log'> & { readonly server: () => http.Server },
  signal: AbortSignal,
): Promise<void> {
  const open = new Map<string, http.Server>();
  const said = new Set<string>();
  const taken = new Set<string>();

  function listen(address: string, port: number): void {
    const door = server();
    open.set(address, door);
    door.on('error', (error: NodeJS.ErrnoException) => {
      open.delete(address);
      if (error.code === 'EADDRINUSE') taken.add(address);
      if (!said.has(address)) log.warn('filter does not listen yet', { address, port, reason: error.message });
      said.add(address);
    });
    door.listen({ host: address, port, exclusive: true });
  }

  for (let now = readDoors(dir); now !== null && now.version === version && !signal.aborted; now = readDoors(dir)) {
    if (now.addresses.length > 0 && now.addresses.every((address) => taken.has(address))) return;
    for (const address of now.addresses) if (!open.has(address)) listen(address, now.port);
    await sleep(clock, lookAgain, signal);
  }
}
