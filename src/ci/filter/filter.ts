/**
 * The filter's process, through which agents of untrusted jobs, and all agents of some services, talk to their service. And the
 * manager's side of it, which seals tokens for sandboxes and keeps the process running. Jobs outlive managers, so the filter does too.
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
import { attempt, OnejobError, toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import { subdirectory } from '../../store/directory.ts';
import type { AgentContext } from '../ci-service.ts';
import { createSeal, installationKey } from './seal.ts';

const listenConfig = z.object({
  /** Of onejob: a filter of another version ends. */
  version: z.string(),
  port: z.int().min(1).max(65_535),
  addresses: z.array(z.string()),
});
export type ListenConfig = Readonly<z.infer<typeof listenConfig>>;

/** null: the file is missing or invalid. */
export function readListenConfig(dir: string): ListenConfig | null {
  return attempt(() => listenConfig.parse(JSON.parse(fs.readFileSync(join(dir, 'doors.json'), 'utf8'))));
}

/** The file is never incomplete. @throws errors of the file system */
export function writeListenConfig(dir: string, value: ListenConfig | null): void {
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
  /** Environment variables with which it reaches services. */
  readonly given: Readonly<Record<string, string>>;
  readonly version: string;
  readonly clock: Clock;
  readonly log: Log;
}

/** ms between two checks whether it answers, and until it must. */
const [lookEvery, patience] = [2_000, 10_000];
/** Bytes. A larger log is emptied. */
const logLimit = 1 << 20;

/** @throws OnejobError E_STATE_DIR and the like */
export function createFilter({ stateDir, self, given, version, clock, log }: FilterParts) {
  const dir = subdirectory(stateDir, 'filter');
  const seal = createSeal(installationKey(dir));
  const closing = new AbortController();
  let child: number | null = null;
  let starting = Number.NEGATIVE_INFINITY;

  function startOne(): void {
    // A running filter may just be slow to listen.
    if (child !== null || clock.now() - starting < lookEvery) return;
    starting = clock.now();
    const path = join(dir, 'filter.log');
    const file = fs.openSync(path, 'a', 0o600);
    if (fs.fstatSync(file).size > logLimit) fs.ftruncateSync(file);
    const [program = '', ...args] = self;
    const started = spawn(program, [...args, 'filter', '--state-dir', stateDir], {
      cwd: dir,
      // Without other variables, `/proc` shows none of ours.
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

  /** Starts the filter while there is an address and it does not answer. */
  async function keep(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      const now = readListenConfig(dir);
      const [address] = now?.addresses ?? [];
      if (now !== null && address !== undefined) {
        try {
          // A filter of another version ends when it reads this.
          if (now.version !== version) writeListenConfig(dir, { ...now, version });
          if (!(await answers(address, now.port)) && !signal.aborted) startOne();
        } catch (error) {
          log.warn('cannot keep the filter running', { reason: toFailure(error).message });
        }
      }
      await sleep(clock, lookEvery, signal);
    }
  }

  return {
    /** Keeps the filter of an earlier manager running, until `signal` aborts. */
    start(signal: AbortSignal): void {
      signal.addEventListener('abort', () => closing.abort(), { once: true });
      void keep(closing.signal);
    },
    /** `authority`: as the sandbox sees it (`172.18.0.1:7070`). @throws OnejobError E_FILTER (retry), E_NO_DOOR */
    async listenFor(context: Pick<AgentContext, 'hostAddress'>, signal: AbortSignal) {
      const known = readListenConfig(dir);
      const port = known?.port ?? (await freePort());
      const address = await context.hostAddress(port, signal);
      const addresses = known?.addresses ?? [];
      if (known === null || known.version !== version || !addresses.includes(address))
        writeListenConfig(dir, { version, port, addresses: [...new Set([...addresses, address])] });
      const until = clock.now() + patience;
      while (!(await answers(address, port))) {
        signal.throwIfAborted();
        if (clock.now() > until) {
          const what = 'The filter, through which agents reach their service, does not listen.';
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
      if (!leaving) writeListenConfig(dir, null);
    },
  };
}

/** Ends the filter, because nobody needs one. */
export function endFilter(stateDir: string): void {
  const dir = join(stateDir, 'filter');
  if (fs.existsSync(dir)) writeListenConfig(dir, null);
}

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

/** A port that is free now. */
async function freePort(): Promise<number> {
  await using server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  return (server.address() as AddressInfo).port;
}

/** ms between two looks at the file, and two tries to listen. */
const lookAgain = 500;

/**
 * Listens as the file says, and resolves when the file is gone or for another version. Also when another program, mostly a filter,
 * has every port: the manager starts this one again if needed.
 */
export async function keepListening(
  dir: string,
  { version, server, clock, log }: Pick<FilterParts, 'version' | 'clock' | 'log'> & { readonly server: () => http.Server },
  signal: AbortSignal,
): Promise<void> {
  const open = new Map<string, http.Server>();
  const said = new Set<string>();
  const taken = new Set<string>();

  function listen(address: string, port: number): void {
    const listener = server();
    open.set(address, listener);
    listener.on('error', (error: NodeJS.ErrnoException) => {
      open.delete(address);
      if (error.code === 'EADDRINUSE') taken.add(address);
      if (!said.has(address)) log.warn('filter does not listen yet', { address, port, reason: error.message });
      said.add(address);
    });
    listener.listen({ host: address, port, exclusive: true });
  }

  for (let now = readListenConfig(dir); now !== null && now.version === version && !signal.aborted; now = readListenConfig(dir)) {
    if (now.addresses.length > 0 && now.addresses.every((address) => taken.has(address))) return;
    for (const address of now.addresses) if (!open.has(address)) listen(address, now.port);
    await sleep(clock, lookAgain, signal);
  }
}
