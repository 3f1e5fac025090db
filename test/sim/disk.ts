/**
 * The disk under the store when the host loses power: every commit after the last sync is gone. SQLite's log is written in order, so
 * what is left is a shorter log. Files next to the database are as they were.
 */
import { closeSync, copyFileSync, existsSync, openSync, readSync, renameSync, rmSync, truncateSync, writeFileSync } from 'node:fs';

/** How far the log is written: which log it is, and how many frames it has. */
interface Mark {
  readonly salt: string;
  readonly frames: number;
}

/** Bytes before the first frame of a log, and before the page in each frame (https://sqlite.org/fileformat2.html#walformat). */
const [logHead, frameHead] = [32, 24];

export class SimDisk {
  readonly #database: string;
  #synced: Mark = { salt: '', frames: 0 };
  #isCut = false;

  /** `database`: its path. */
  constructor(database: string) {
    this.#database = database;
  }

  /** What is written by now; to be called once that is on disk. */
  begin(): () => void {
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
    const head = Buffer.alloc(100);
    const file = openSync(path, 'r');
    try {
      if (readSync(file, head, 0, head.length, 0) < head.length) return null;
    } finally {
      closeSync(file);
    }
    const size = head.readUInt16LE(14);
    return {
      salt: head.toString('hex', 32, 40),
      frames: head.readUInt32LE(16),
      pageSize: size === 1 ? 65_536 : size,
      copied: head.readUInt32LE(96),
    };
  }
}
