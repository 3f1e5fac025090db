/**
 * A disk that may lose power. Of plain files it has what was synced: a file its content, a folder its names. Everything else may be
 * there, or not: so each moment is left behind in three ways. Of a store it has the commits up to the last sync.
 */

/**
 * A disk that may lose power. Of plain files it has what was synced: a file its content, a folder its names. Everything else may be
 * there, or not: so each moment is left behind in three ways. Of a store it has the commits up to the last sync.
 */
import fs, { cpSync, existsSync, lstatSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { syncBuiltinESMExports } from 'node:module';
import { join } from 'node:path';
import { DatabaseSync, StatementSync } from 'node:sqlite';
import { openStore, type Store } from '../../src/store/store.ts';
import { scratch } from './scratch.ts';

/** `synced`: nothing else was written. `named`: all names, and files without what was not synced. `torn`: with half of that. */
const ways = ['synced', 'named', 'torn'] as const;

/** What the disk has after a power cut. */
export interface Left {
  readonly path: string;
  /** When the power was cut, for messages. */
  readonly cut: string;
  /** What was done had returned before. */
  readonly isTold: boolean;
}

// biome-ignore lint/suspicious/noExplicitAny: it stands for every function of node:fs.
type Call = (...args: any[]) => any;
/** After each of them the power is cut once. */
const changes = ['renameSync', 'linkSync', 'rmSync', 'mkdirSync', 'closeSync', 'writeFileSync'] as const;
const changesLater = ['rename', 'mkdir', 'writeFile', 'rm'] as const;

/** Does something in an empty folder, and calls `start` with what is left of that folder, for each moment at which the power may go. */
export async function eachCut<T>(act: (folder: string) => T, start: (left: Left, told: Awaited<T>) => unknown): Promise<void> {
  using here = scratch();
  const live = join(here.path, 'live');
  mkdirSync(live);
  const disk = new Disk(live);
  const moments: Left[] = [];
  let isOver = false;
  const cut = (after: string): void => {
    for (const way of ways) {
      const path = join(here.path, `${moments.length}`);
      disk.leave(way, path);
      moments.push({ path, cut: `${after}, ${way}`, isTold: isOver });
    }
  };
  const watched = await watch((word, synced) => {
    if (isOver) return;
    if (synced !== null) disk.synced(synced);
    cut(`after ${word}`);
  });
  try {
    const told = await act(live);
    isOver = true;
    watched.quietly(() => cut('once it was told'));
    for (const left of moments) await start(left, told);
  } finally {
    watched.stop();
  }
}

/**
 * Calls `seen` after each call that changes or syncs something, with the descriptor of what was synced. Nothing is really synced, which
 * would take its time.
 */
async function watch(seen: (word: string, synced: number | null) => void) {
  const probe = await open('/dev/null');
  const handle = Object.getPrototypeOf(probe) as object;
  await probe.close();
  let isQuiet = false;
  const quietly = (what: () => void): void => {
    if (isQuiet) return;
    isQuiet = true;
    try {
      what();
    } finally {
      isQuiet = false;
    }
  };
  const before: [object, Record<string, Call>][] = [];
  const replace = (where: object, names: readonly string[], by: (name: string, call: Call) => Call): void => {
    for (const name of names) {
      const call = (where as Record<string, Call>)[name] as Call;
      before.push([where, { [name]: call }]);
      Object.assign(where, { [name]: by(name, call) });
    }
  };
  const tell = (name: string, synced: number | null): void => quietly(() => seen(name, synced));
  replace(fs, changes, (name, call) => (...args) => {
    const found = call(...args);
    tell(name, null);
    return found;
  });
  replace(fs.promises, changesLater, (name, call) => async (...args) => {
    const found = await call(...args);
    tell(name, null);
    return found;
  });
  replace(fs, ['fsyncSync', 'fdatasyncSync'], (name) => (fd: number) => tell(name, fd));
  replace(fs, ['fsync', 'fdatasync'], (name) => (fd: number, done: (error: null) => void) => {
    setImmediate(() => {
      tell(name, fd);
      done(null);
    });
  });
  replace(
    handle,
    ['sync', 'datasync'],
    (name) =>
      async function (this: { readonly fd: number }) {
        tell(name, this.fd);
      },
  );
  syncBuiltinESMExports();
  return {
    quietly,
    stop(): void {
      for (const [where, calls] of before) Object.assign(where, calls);
      syncBuiltinESMExports();
    },
  };
}

/** Which file it is, whatever its name. */
const idOf = (path: string): string => {
  const { ino, birthtimeNs } = lstatSync(path, { bigint: true });
  return `${ino} ${birthtimeNs}`;
};

class Disk {
  readonly #live: string;
  /** Synced contents, and names in synced folders. */
  readonly #contents = new Map<string, Buffer>();
  readonly #names = new Map<string, ReadonlyMap<string, { readonly id: string; readonly isFolder: boolean }>>();

  constructor(live: string) {
    this.#live = live;
    this.#sync(live);
  }

  synced(fd: number): void {
    const path = fs.readlinkSync(`/proc/self/fd/${fd}`);
    if (path.startsWith(this.#live) && existsSync(path)) this.#sync(path);
  }

  leave(way: (typeof ways)[number], to: string): void {
    if (way === 'synced') this.#leaveSynced(idOf(this.#live), to);
    else this.#leaveNamed(this.#live, to, way);
  }

  #sync(path: string): void {
    if (!lstatSync(path).isDirectory()) {
      this.#contents.set(idOf(path), readFileSync(path));
      return;
    }
    const entries = readdirSync(path, { withFileTypes: true });
    const found = entries.map((one) => [one.name, { id: idOf(join(path, one.name)), isFolder: one.isDirectory() }] as const);
    this.#names.set(idOf(path), new Map(found));
  }

  #leaveSynced(folder: string, to: string): void {
    mkdirSync(to);
    for (const [name, { id, isFolder }] of this.#names.get(folder) ?? [])
      if (isFolder) this.#leaveSynced(id, join(to, name));
      else writeFileSync(join(to, name), this.#contents.get(id) ?? '');
  }

  #leaveNamed(from: string, to: string, way: 'named' | 'torn'): void {
    mkdirSync(to);
    for (const entry of readdirSync(from, { withFileTypes: true })) {
      const [path, copy] = [join(from, entry.name), join(to, entry.name)];
      if (entry.isDirectory()) this.#leaveNamed(path, copy, way);
      if (!entry.isFile()) continue;
      const now = readFileSync(path);
      const isSynced = this.#contents.get(idOf(path))?.equals(now) === true;
      writeFileSync(copy, isSynced ? now : now.subarray(0, way === 'torn' ? now.length / 2 : 0));
    }
  }
}

/** A store that may lose power. */
export interface LosingStore extends AsyncDisposable {
  readonly store: Store;
  /** The store of the next start, if the power is cut now; once. */
  readonly cut: () => Store;
}

export function losingStore(): LosingStore {
  const here = scratch();
  const [live, safe, opened] = [join(here.path, 'live'), join(here.path, 'safe'), [] as Store[]];
  const keep = (): void => cpSync(live, safe, { recursive: true, filter: (path) => !/\/lead\.|-shm$/.test(path) });
  // Whether SQLite syncs a commit is said nowhere else.
  let isFull = false;
  const { exec } = DatabaseSync.prototype;
  const { run } = StatementSync.prototype;
  DatabaseSync.prototype.exec = function (sql) {
    exec.call(this, sql);
    if (sql.startsWith('PRAGMA synchronous')) isFull = sql.endsWith('FULL');
  };
  StatementSync.prototype.run = function (...args) {
    const found = run.apply(this, args as never);
    if (this.sourceSQL === 'COMMIT' && isFull) keep();
    return found;
  };
  const store = openStore(live);
  const { sync, syncNow } = store;
  Object.assign(store, {
    sync: async () => {
      await sync();
      keep();
    },
    syncNow: () => {
      syncNow();
      keep();
    },
  });
  return {
    store,
    cut() {
      const after = join(here.path, `after ${opened.length}`);
      if (existsSync(safe)) cpSync(safe, after, { recursive: true });
      DatabaseSync.prototype.exec = exec;
      StatementSync.prototype.run = run;
      const next = openStore(after);
      opened.push(next);
      return next;
    },
    async [Symbol.asyncDispose]() {
      DatabaseSync.prototype.exec = exec;
      StatementSync.prototype.run = run;
      for (const one of [store, ...opened]) one.close();
      here[Symbol.dispose]();
    },
  };
}
