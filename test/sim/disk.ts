/**
 * The disk under the store when the host loses power: every commit after the last sync is gone. SQLite's log is written in order, so
 * what is left is a shorter log. Files next to the database are as they were.
 */
import {
  closeSync,
  copyFileSync,
  existsSync,
  fstatSync,
  openSync,
  readSync,
  renameSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';

/** How far the log is written: which log it is, and how many frames it has. */
interface Mark {
  readonly salt: string;
  readonly frames: number;
}

/** Bytes before the first frame of a log, and before the page in each frame (https://sqlite.org/fileformat2.html#walformat). */
const [logHead, frameHead] = [32, 24];

export class SimDisk {
  readonly #database: string;
  readonly #isWatched: boolean;
  /** The index of the log, kept open: closing it would end the locks that SQLite has on it, which belong to the process. */
  #index: number | null = null;
  #synced: Mark = { salt: '', frames: 0 };
  #isCut = false;

  /** `database`: its path. `isWatched`: power may be lost, so it matters what is synced. */
  constructor(database: string, isWatched: boolean) {
    this.#database = database;
    this.#isWatched = isWatched;
  }

  close(): void {
    if (this.#index !== null) closeSync(this.#index);
    this.#index = null;
  }

  /** What is written by now; to be called once that is on disk. */
  begin(): () => void {
    if (!this.#isWatched) return () => {};
    const now = this.#look();
    return () => {
      if (now !== null && (now.salt !== this.#synced.salt || now.frames > this.#synced.frames)) this.#synced = now;
    };
  }

  /** The power is gone. Whoever has the database open may still close it: `boot` brings back what was on disk now. */
  cut(): void {
    const { salt, frames } = this.#synced;
    const now = this.#look();
    if (now === null) return;
    const kept = Math.max(now.copied, now.salt === salt ? frames : 0);
    copyFileSync(this.#database, `${this.#database}.cut`);
    const log = `${this.#database}-wal`;
    if (existsSync(log)) copyFileSync(log, `${log}.cut`);
    else writeFileSync(`${log}.cut`, '');
    truncateSync(`${log}.cut`, kept === 0 ? 0 : logHead + kept * (frameHead + now.pageSize));
    this.#isCut = true;
  }

  boot(): void {
    if (!this.#isCut) return;
    this.#isCut = false;
    for (const path of [this.#database, `${this.#database}-wal`]) renameSync(`${path}.cut`, path);
    rmSync(`${this.#database}-shm`, { force: true });
  }

  /** The head of the index of the log (https://sqlite.org/walformat.html). `copied`: frames that a checkpoint has synced and copied. */
  #look(): (Mark & { readonly pageSize: number; readonly copied: number }) | null {
    const path = `${this.#database}-shm`;
    if (!existsSync(path) || !existsSync(this.#database)) return null;
    if (this.#index !== null && fstatSync(this.#index).ino !== statSync(path).ino) this.close();
    this.#index ??= openSync(path, 'r');
    const head = Buffer.alloc(100);
    if (readSync(this.#index, head, 0, head.length, 0) < head.length) return null;
    const size = head.readUInt16LE(14);
    return {
      salt: head.toString('hex', 32, 40),
      frames: head.readUInt32LE(16),
      pageSize: size === 1 ? 65_536 : size,
      copied: head.readUInt32LE(96),
    };
  }
}
