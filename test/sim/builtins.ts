/**
 * What Node gives every module of the product, made a part of the simulation: chance follows from the seed, and each change of a
 * file passes a point at which its process may be killed, and fails while the simulated disk is full.
 *
 * Modules import these by name and keep working: Node's own bindings are replaced for the whole process, once.
 */
import crypto, { type webcrypto } from 'node:crypto';
import fs from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import { currentProcess, Killed, type SimProcess } from './process.ts';

let random: () => number = Math.random;
let isFull = false;
let disk: SyncedDisk | null = null;
let boot = 0;

/** Where simulated processes sync what they have written. */
export interface SyncedDisk {
  /** What is written by now; to be called once that is on disk. */
  begin(): () => void;
  /** ms that a sync takes. */
  takes(): number;
}

export function syncTo(synced: SyncedDisk): void {
  disk = synced;
}

/** The host boots anew, as its boot id shows. */
export function bootAnew(): void {
  boot += 1;
}

/** Where chance comes from now. */
export function drawFrom(source: () => number): void {
  random = source;
}

/** While it is full, nothing is written by simulated processes. */
export function fillDisk(full: boolean): void {
  isFull = full;
}

export function isDiskFull(): boolean {
  return isFull;
}

function noSpace(call: string): NodeJS.ErrnoException {
  return Object.assign(new Error(`ENOSPC: no space left on device, ${call}`), { code: 'ENOSPC', errno: -28, syscall: call });
}

type Call = (...args: never[]) => unknown;

/** Calls that write, and calls that only move or remove names, which a full disk allows. */
const writes = [
  'writeSync',
  'writevSync',
  'writeFileSync',
  'appendFileSync',
  'mkdirSync',
  'copyFileSync',
  'symlinkSync',
  'linkSync',
];
const moves = ['renameSync', 'rmSync', 'unlinkSync', 'rmdirSync', 'ftruncateSync', 'truncateSync'];
const asyncWrites = ['writeFile', 'appendFile', 'mkdir', 'mkdtemp', 'copyFile', 'symlink', 'link'];
const asyncMoves = ['rename', 'rm', 'unlink', 'rmdir', 'truncate'];
const asyncReads = ['readFile', 'readdir', 'stat', 'lstat', 'statfs', 'access', 'realpath', 'readlink'];

const { writeSync } = fs;

function writeHalf(fd: number, parts: readonly Uint8Array[], at: number): void {
  const whole = Buffer.concat(parts);
  writeSync(fd, whole, 0, whole.length >> 1, at);
}

let isInstalled = false;

/**
 * Whether the process lives on after the point. A killed one that removes or moves something is on its way out of a catch: it must
 * get as far as to close what it has open, as the kernel would.
 */
function passes(process: SimProcess, throws: boolean): boolean {
  try {
    process.point('file');
    return true;
  } catch (error) {
    if (throws) throw error;
    return false;
  }
}

/** Replaces the bindings. Idempotent; there is no way back, so this is for a process that only simulates. */
export function installBuiltins(): void {
  if (isInstalled) return;
  isInstalled = true;
  const bytes = (size: number): Buffer => {
    const made = Buffer.alloc(size);
    for (let at = 0; at < size; at++) made[at] = Math.floor(random() * 256);
    return made;
  };
  Math.random = () => random();
  Object.assign(crypto, {
    randomBytes: bytes,
    randomInt: (from: number, to?: number) =>
      to === undefined ? Math.floor(random() * from) : from + Math.floor(random() * (to - from)),
    randomUUID: () => {
      const hex = bytes(16).toString('hex');
      return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-4${hex.slice(13, 16)}-a${hex.slice(17, 20)}-${hex.slice(20)}`;
    },
  });
  deriveAtOnce();
  followSignals();
  // What a killed process has put off ends nobody else.
  const soon = globalThis.queueMicrotask;
  globalThis.queueMicrotask = (fn) => {
    const own = currentProcess();
    soon(own === undefined ? fn : () => own.run(fn));
  };
  // Each would have a stack of its own, which costs more than the rest of an abort; nobody reads it.
  const aborted = new DOMException('This operation was aborted', 'AbortError');
  const abort = AbortController.prototype.abort;
  AbortController.prototype.abort = function (reason: unknown = aborted) {
    abort.call(this, reason);
  };
  const sync = fs as unknown as Record<string, Call>;
  const reals = new Map<string, Call>();
  for (const name of [...writes, ...moves]) {
    const real = sync[name] as Call;
    reals.set(name, real);
    const needsSpace = writes.includes(name);
    sync[name] = (...args) => {
      const own = currentProcess();
      if (own === undefined) return real(...args);
      if (!passes(own, needsSpace)) return undefined;
      if (isFull && needsSpace) {
        // What is left of the disk takes a part of it.
        if (name === 'writevSync') writeHalf(...(args as unknown as Parameters<typeof writeHalf>));
        throw noSpace(name);
      }
      const answer = real(...args);
      passes(own, needsSpace);
      return answer;
    };
  }
  const promises = fs.promises as unknown as Record<string, Call>;
  const realSync = (name: string): Call => reals.get(`${name}Sync`) ?? (sync[`${name}Sync`] as Call);
  // Done at once and told a moment later: nothing waits for another thread, which would take its own time.
  for (const name of asyncReads) {
    const real = realSync(name);
    promises[name] = async (...args) => real(...args);
  }
  const realOpen = fs.promises.open;
  Object.assign(fs.promises, {
    async opendir(path: string) {
      const entries = fs.readdirSync(path, { withFileTypes: true });
      return {
        async *[Symbol.asyncIterator]() {
          yield* entries;
        },
        async close() {},
      };
    },
    open: async (path: string, flags: string | number = 'r', mode?: number) =>
      flags === 'r' ? new ReadHandle(fs.openSync(path, flags)) : realOpen(path, flags, mode),
  });
  const syncNow = sync.fdatasyncSync as Call;
  sync.fdatasync = ((fd: number, done: (error: unknown) => void) => {
    const own = currentProcess();
    if (own === undefined || disk === null) {
      (syncNow as (fd: number) => void)(fd);
      queueMicrotask(() => done(null));
      return;
    }
    const synced = disk.begin();
    own.after(disk.takes(), () => {
      own.point('sync');
      synced();
      own.point('sync');
      done(null);
    });
  }) as unknown as Call;
  sync.fdatasyncSync = (...args) => {
    const own = currentProcess();
    if (own === undefined || disk === null) return syncNow(...args);
    own.point('sync');
    disk.begin()();
    own.point('sync');
    return undefined;
  };
  const readFile = sync.readFileSync as Call;
  sync.readFileSync = (...args) => {
    const [path] = args as readonly unknown[];
    return path === '/proc/sys/kernel/random/boot_id' ? `simulated-boot-${boot}\n` : readFile(...args);
  };
  for (const name of [...asyncWrites, ...asyncMoves]) {
    const real = realSync(name);
    const needsSpace = asyncWrites.includes(name);
    promises[name] = async (...args) => {
      const own = currentProcess();
      if (own === undefined) return real(...args);
      try {
        own.point('file');
        if (isFull && needsSpace) throw noSpace(name);
        const answer = real(...args);
        own.point('file');
        return answer;
      } catch (error) {
        if (error instanceof Killed) return await new Promise<never>(() => {});
        throw error;
      }
    };
  }
  syncBuiltinESMExports();
  // A killed process is gone with its promises: nobody hears of what it could not do any more.
  process.on('unhandledRejection', (error) => {
    if (!isOfKilled(error)) throw error;
  });
}

/** Secrets of jobs are opened with X25519, which Node leaves to a thread that takes its own time. */
function deriveAtOnce(): void {
  const { subtle } = crypto.webcrypto;
  const { deriveBits, importKey } = subtle as unknown as Record<string, Call>;
  const isIts = (algorithm: unknown): boolean => (algorithm as { name?: string }).name === 'X25519';
  const derived = async ({ public: theirs }: { public: webcrypto.CryptoKey }, own: webcrypto.CryptoKey) => {
    const [privateKey, publicKey] = [crypto.KeyObject.from(own), crypto.KeyObject.from(theirs)];
    return new Uint8Array(crypto.diffieHellman({ privateKey, publicKey })).buffer;
  };
  Object.defineProperties(subtle, {
    deriveBits: {
      value: (...args: Parameters<typeof derived>) =>
        isIts(args[0]) ? derived(...args) : Reflect.apply(deriveBits as Call, subtle, args),
    },
    // Only a key that may leave can be used in another way.
    importKey: {
      value: (...args: unknown[]) => Reflect.apply(importKey as Call, subtle, isIts(args[2]) ? args.with(3, true) : args),
    },
  });
}

/** Node keeps a signal that follows others for as long as anybody listens to it: also those of killed managers, for ever. */
function followSignals(): void {
  AbortSignal.any = (given) => {
    const signals = [...new Set(given)];
    // Nothing takes a listener off that never hears anything: one for each look at GPUs, and each makes the next one slower.
    const [only] = signals;
    if (only !== undefined && signals.length === 1) return only;
    const own = new AbortController();
    const offs: (() => void)[] = [];
    const abort = (by: AbortSignal): void => {
      for (const off of offs) off();
      own.abort(by.reason);
    };
    for (const one of signals) {
      const fn = (): void => abort(one);
      one.addEventListener('abort', fn);
      offs.push(() => one.removeEventListener('abort', fn));
    }
    const already = signals.find(({ aborted }) => aborted);
    if (already !== undefined) abort(already);
    return own.signal;
  };
}

/** A file that is only read, as `fs.promises.open` gives it. */
class ReadHandle {
  readonly fd: number;

  constructor(fd: number) {
    this.fd = fd;
  }

  stat = async () => fs.fstatSync(this.fd);
  readFile = async (options: BufferEncoding | null = null) => fs.readFileSync(this.fd, { encoding: options });
  close = async () => fs.closeSync(this.fd);

  async read(buffer: Uint8Array, offset: number, length: number, position: number) {
    return { buffer, bytesRead: fs.readSync(this.fd, buffer, offset, length, position) };
  }

  async [Symbol.asyncDispose]() {
    await this.close();
  }
}

/** Whether it comes of a kill, also deep inside. */
export function isOfKilled(error: unknown): boolean {
  for (let cause = error; cause instanceof Error; cause = cause.cause) if (cause instanceof Killed) return true;
  return error instanceof AggregateError && error.errors.some(isOfKilled);
}
