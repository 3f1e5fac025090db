/**
 * The manager's side of the filter, a process through which agents of untrusted jobs, and all agents of some services, talk to their
 * service. It seals tokens for sandboxes, and keeps the process running. Jobs outlive managers, so the filter does too. No sandbox is
 * given an address at which the filter has not proved itself: whatever else listens there would get all that the sandbox says.
 */
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import { join } from 'node:path';
import { OnejobError, toFailure } from '../../base/errors.ts';
import { type Finding, fine, problem } from '../../base/finding.ts';
import type { Log } from '../../base/log.ts';
import { type Clock, sleep } from '../../core/clock.ts';
import type { Listen } from '../../http/address.ts';
import type { AgentContext } from '../../ports/ci-service.ts';
import { subdirectory } from '../../store/directory.ts';
import { authorityIn, certify } from './certificates.ts';
import { choosePort, endFilter, type ListenConfig, placeOf, readListenConfig, writeListenConfig } from './doors.ts';
import { type Who, whoAnswers } from './proof.ts';
import { installationKey, Seal } from './seal.ts';

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

/** ms between two checks whether it proves itself, and until it must. */
const [lookEvery, patience] = [2_000, 10_000];
/** Bytes. A larger log is emptied. */
const logLimit = 1 << 20;

/** Whose sandbox is to call the filter. */
type Caller = Pick<AgentContext, 'hostAddress' | 'isRemote'>;

/** How a sandbox reaches the filter. */
export interface WayToFilter {
  /** As the sandbox sees it, such as `http://172.18.0.1:7070`, without a slash at its end. */
  readonly origin: string;
  /** The certificate in PEM with which the filter proves itself there; null: a connection that does not leave this host. */
  readonly ca: string | null;
}

export interface Filter {
  /**
   * Keeps the filter of an earlier manager running, until `signal` aborts. `say`: why agents cannot use it now, each time that somebody
   * has looked; null: they can.
   */
  start(signal: AbortSignal, say?: (trouble: OnejobError | null) => void): void;
  /** @throws OnejobError E_FILTER, E_FILTER_TAKEN (retry), E_NO_DOOR */
  listenFor(context: Caller, signal: AbortSignal): Promise<WayToFilter & { readonly seal: Seal }>;
  /** For `doctor`: at which addresses it proves itself. */
  check(): Promise<Finding[]>;
  /** `leaving`: agents keep running, and so must the filter. */
  close(leaving: boolean): Promise<void>;
}

/** Who answers at an address. */
interface Answering {
  readonly address: string;
  readonly who: Who;
}

/** @throws OnejobError E_STATE_DIR and the like, by its constructor */
export class FilterProcess implements Filter {
  readonly #parts: FilterParts;
  readonly #dir: string;
  readonly #seal: Seal;
  readonly #proofKey: Uint8Array;
  /** Since when nothing answers at an address. */
  readonly #silent = new Map<string, number>();
  readonly #closing = new AbortController();
  #child: number | null = null;
  #starting = Number.NEGATIVE_INFINITY;
  #tell: (trouble: OnejobError | null) => void = () => {};

  constructor(parts: FilterParts) {
    this.#parts = parts;
    this.#dir = subdirectory(this.#parts.stateDir, 'filter');
    this.#seal = new Seal(installationKey(this.#dir));
    this.#proofKey = installationKey(this.#dir, 'proof.key');
  }

  start(signal: AbortSignal, say: (trouble: OnejobError | null) => void = () => {}): void {
    this.#tell = say;
    signal.addEventListener('abort', () => this.#closing.abort(), { once: true });
    void this.#keep(this.#closing.signal);
  }

  async listenFor(context: Caller, signal: AbortSignal) {
    using claim = new PortClaim(this.#dir, () => this.#portInFile());
    const port = await claim.port;
    const given = await context.hostAddress(port, signal);
    const place = placeOf(given, { port });
    const address = place.port === port ? place.host : given;
    const ca = context.isRemote ? await certify(this.#dir, place.host, signal) : null;
    signal.throwIfAborted();
    const known = readListenConfig(this.#dir);
    const { addresses = [], secure = [] } = known ?? {};
    if (addresses.includes(address) && secure.includes(address) !== context.isRemote) throw mixed(address);
    if (known?.version !== this.#parts.version || !addresses.includes(address))
      writeListenConfig(this.#dir, {
        version: this.#parts.version,
        program: [...this.#parts.self],
        port,
        addresses: [...new Set([...addresses, address])],
        secure: [...new Set([...secure, ...(context.isRemote ? [address] : [])])],
      });
    const until = this.#parts.clock.now() + patience;
    for (;;) {
      const why = this.#whyNot(await whoAnswers(this.#proofKey, place.host, place.port, this.#parts.clock, ca), address, port);
      const origin = `${ca === null ? 'http' : 'https'}://${authorityOf(place)}`;
      if (why === null) return { origin, ca, seal: this.#seal };
      signal.throwIfAborted();
      if (why.code === 'E_FILTER_TAKEN') this.#tell(why);
      if (why.code === 'E_FILTER_TAKEN' || this.#parts.clock.now() > until) throw why;
      if (addresses.length === 0) this.#startOne();
      await sleep(this.#parts.clock, 50, signal);
    }
  }

  async check(): Promise<Finding[]> {
    const now = readListenConfig(this.#dir);
    const seen = now === null ? [] : await this.#ask(now);
    return seen.map(({ address, who }) => {
      const port = now?.port ?? 0;
      const why = this.#whyNot(who, address, port);
      if (why === null)
        return fine(
          'filter',
          `The filter answers at ${authorityOf(placeOf(address, { port }))}, and has proved that it is onejob's.`,
        );
      return problem('filter', `${why.message} (${why.code})`, why.hint);
    });
  }

  async close(leaving: boolean): Promise<void> {
    this.#closing.abort();
    if (!leaving) endFilter(this.#parts.stateDir);
  }

  #startOne(): void {
    // A running filter may just be slow to listen.
    if (this.#child !== null || this.#parts.clock.now() - this.#starting < lookEvery) return;
    this.#starting = this.#parts.clock.now();
    const path = join(this.#dir, 'filter.log');
    const file = fs.openSync(path, 'a', 0o600);
    if (fs.fstatSync(file).size > logLimit) fs.ftruncateSync(file);
    const [program = '', ...args] = this.#parts.self;
    const started = spawn(program, [...args, 'filter', '--state-dir', this.#parts.stateDir], {
      cwd: this.#dir,
      // Without other variables, `/proc` shows none of ours.
      env: { ...this.#parts.given, PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' },
      detached: true,
      stdio: ['ignore', file, file],
    });
    fs.closeSync(file);
    this.#child = started.pid ?? null;
    started.once('error', (error) => this.#parts.log.error('cannot start the filter', { reason: error.message }));
    started.once('exit', (code, how) => {
      this.#child = null;
      if (!this.#closing.signal.aborted) this.#parts.log.warn('filter ended', { code, signal: how, log: path });
    });
    started.unref();
  }

  /** Why sandboxes are not given the address; null: the filter has proved itself there. */
  #whyNot(who: Who, address: string, port: number): OnejobError | null {
    const place = placeOf(address, { port });
    const at = authorityOf(place);
    if (who.kind === 'other') {
      const what = `Another program answers at ${at}, where the filter of this onejob must listen, so no job is started there.`;
      const find = `Type "ss -ltnp 'sport = :${place.port}'" to see which program it is, and end it`;
      const other =
        place.port === port
          ? 'run "onejob down", then start onejob again: it takes another port'
          : 'write another port into "address" of the runtime';
      const hint = `${find}. If it must stay, ${other}.`;
      return new OnejobError('E_FILTER_TAKEN', what, { hint, retry: true });
    }
    if (who.kind === 'filter' && who.version === this.#parts.version) return null;
    const why = {
      filter: () => `is still of version ${who.kind === 'filter' ? who.version : ''} at ${at}, not of ${this.#parts.version}`,
      silent: () => `does not answer at ${at}: ${who.kind === 'silent' ? who.why : ''}`,
      absent: () => `does not answer at ${at}: this host has no such address`,
    };
    const hint = 'onejob restarts it automatically; "filter/filter.log" in the state directory says why it ended.';
    const what = `The filter, through which agents reach their service, ${why[who.kind]()}.`;
    return new OnejobError('E_FILTER', what, { hint, retry: true });
  }

  /** Of all addresses that this host has now. */
  async #ask({ addresses, secure, port }: ListenConfig): Promise<Answering[]> {
    const ca = secure.length === 0 ? null : authorityIn(this.#dir);
    const all = await Promise.all(
      addresses.map(async (address) => {
        const pinned = secure.includes(address) ? ca : null;
        const place = placeOf(address, { port });
        return { address, who: await whoAnswers(this.#proofKey, place.host, place.port, this.#parts.clock, pinned) };
      }),
    );
    return all.filter(({ who }) => who.kind !== 'absent');
  }

  /** The first reason that lasts: a filter that was killed is back soon. */
  #troubleIn(seen: readonly Answering[], port: number): OnejobError | null {
    const lasting = seen.map(({ address, who }) => {
      const why = this.#whyNot(who, address, port);
      const since = this.#silent.get(address) ?? this.#parts.clock.now();
      if (why?.code === 'E_FILTER') this.#silent.set(address, since);
      else this.#silent.delete(address);
      return why?.code !== 'E_FILTER' || this.#parts.clock.now() - since >= patience ? why : null;
    });
    return lasting.find((why) => why !== null) ?? null;
  }

  /** Starts the filter while there is an address and it does not answer, and reports an address that it does not have. */
  async #keep(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      const now = readListenConfig(this.#dir);
      if (now !== null && now.addresses.length > 0) {
        try {
          // A filter of another version hands over when it reads this.
          if (now.version !== this.#parts.version)
            writeListenConfig(this.#dir, { ...now, version: this.#parts.version, program: [...this.#parts.self] });
          const seen = await this.#ask(now);
          if (signal.aborted) return;
          this.#tell(this.#troubleIn(seen, now.port));
          if (seen.every(({ who }) => who.kind === 'silent')) this.#startOne();
        } catch (error) {
          this.#parts.log.warn('cannot keep the filter running', { reason: toFailure(error).message });
        }
      }
      await sleep(this.#parts.clock, lookEvery, signal);
    }
  }

  /** The port, which is in the file from then on: several services of a manager have one filter. */
  async #portInFile(): Promise<number> {
    for (;;) {
      const known = readListenConfig(this.#dir);
      if (known !== null && known.addresses.length > 0) return known.port;
      const port = await choosePort(known?.port ?? null);
      const now = readListenConfig(this.#dir);
      if (now?.port !== known?.port || (now !== null && now.addresses.length > 0)) continue;
      writeListenConfig(this.#dir, {
        version: this.#parts.version,
        program: [...this.#parts.self],
        port,
        addresses: [],
        secure: [],
      });
      return port;
    }
  }
}

/**
 * The port of a filter while it has no address in the file yet: all that ask for it meanwhile must get the same, of whichever service
 * they are.
 */
class PortClaim implements Disposable {
  static readonly #claimed = new Map<string, { readonly port: Promise<number>; claims: number }>();
  readonly #dir: string;
  readonly port: Promise<number>;

  constructor(dir: string, choose: () => Promise<number>) {
    const shared = PortClaim.#claimed.get(dir) ?? { port: choose(), claims: 0 };
    PortClaim.#claimed.set(dir, shared);
    shared.claims += 1;
    this.#dir = dir;
    this.port = shared.port;
  }

  [Symbol.dispose](): void {
    const shared = PortClaim.#claimed.get(this.#dir);
    if (shared === undefined) return;
    shared.claims -= 1;
    if (shared.claims === 0) PortClaim.#claimed.delete(this.#dir);
  }
}

function mixed(address: string): OnejobError {
  const message = `The filter cannot serve sandboxes of this host and of other hosts at ${address}: it is already used for one of them.`;
  return new OnejobError('E_FILTER', message, {
    hint: 'Write another "address" of this host into the runtime, and type "onejob down" before the next start.',
    retry: true,
  });
}

function authorityOf({ host, port }: Listen): string {
  return `${host.includes(':') ? `[${host}]` : host}:${port}`;
}
