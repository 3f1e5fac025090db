/**
 * Files of workspaces that stay here after their jobs, so that who sent them need not send them again. They are tars, and each has a
 * name that only its sender was told: random, so that nobody finds that of another, and with the checksum of what came, so that a
 * damaged one is noticed. Nothing is found by its content: who knows the hash of a file gets nothing for it.
 */
import { createHash } from 'node:crypto';
import { createReadStream, type Stats } from 'node:fs';
import { link, readdir, readFile, rm, stat, statfs, utimes } from 'node:fs/promises';
import { join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { codeOf, OnejobError } from '../../base/errors.ts';
import { type JoinRequest, mostFiles } from '../../contract/schema.ts';
import type { Clock } from '../../core/clock.ts';
import { subdirectory } from '../../store/directory.ts';

/** Bytes and number of all that are kept, and the share of the free disk that they may take. */
const [mostKept, mostTars, mostShare] = [20 * 2 ** 30, 1_000, 0.1];
/** ms for which a file that was read, or came, and has not been written since is taken as whole. */
const trusted = 60 * 60_000;
const chunk = 256 * 1024;
const shape = /^[0-9a-f-]{36}\.([0-9a-f]{64})$/;

export class SentFiles {
  readonly folder: string;
  readonly #clock: Pick<Clock, 'now' | 'wall'>;
  /** By name: which file was whole, and when. */
  readonly #whole = new Map<string, { readonly file: string; readonly at: number }>();

  /** One at a time is read: many who ask for the same wait for the first. */
  #turn: Promise<void> = Promise.resolve();

  constructor(dir: string, clock: Pick<Clock, 'now' | 'wall'>) {
    this.folder = subdirectory(dir, 'sent');
    this.#clock = clock;
  }

  /** To be called when a file is here, as it came. Another one that came may have pushed it out. */
  came(name: string): Promise<void> {
    return this.#isWhole(name, join(this.folder, name))
      .catch(isMissing)
      .then(() => {});
  }

  /**
   * Links files as `BASE.0`, `BASE.1` and so on, where their removal from here does not concern them. Each must be as it came, and have
   * its ranges. @throws OnejobError E_WORKSPACE_UNKNOWN, and removes one that is damaged
   */
  async take({ sent, ranges }: JoinRequest, base: string, most: number, signal: AbortSignal): Promise<void> {
    const taken = sent.map((name, at) => ({ name, path: join(this.folder, name), here: `${base}.${at}` }));
    const sizes: number[] = [];
    for (const { name, path, here } of taken) {
      const isHere = shape.test(name) && (await link(path, here).then(() => true, isMissing));
      if (!isHere) throw notKept('they are not here any more');
      sizes.push((await stat(here)).size);
    }
    if (ranges.some(([at, from, to]) => from >= to || to > (sizes[at] ?? 0))) throw notKept('they are shorter than that');
    // Reading takes time.
    if (sizes.reduce((all, size) => all + size, 0) > most) throw notKept('they are too large');
    for (const { name, path, here } of taken) {
      const checked = this.#turn.then(() => this.#check(name, path, here, signal));
      this.#turn = checked.catch(() => {});
      await checked;
      // For `sweep`, also where reading a file changes no time.
      await utimes(here, new Date(this.#clock.wall()), (await stat(here)).mtime);
    }
  }

  /** @throws OnejobError E_WORKSPACE_UNKNOWN, and removes it, if it is not as it came */
  async #check(name: string, path: string, here: string, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    const before = this.#whole.get(name);
    if (before !== undefined && this.#clock.now() - before.at <= trusted && before.file === fileOf(await stat(here))) return;
    const sum = createHash('sha256');
    await pipeline(createReadStream(here, { highWaterMark: chunk }), sum, { signal });
    if (!name.endsWith(sum.digest('hex'))) {
      await rm(path, { force: true });
      throw notKept('they are damaged');
    }
    await this.#isWhole(name, here);
  }

  async #isWhole(name: string, path: string): Promise<void> {
    this.#whole.set(name, { file: fileOf(await stat(path)), at: this.#clock.now() });
  }

  /** Removes those that were last used before `time`, and of the rest those unused for longest that are too much, but never the newest. */
  async sweep(time: number): Promise<void> {
    const found = [];
    for (const name of await readdir(this.folder)) {
      const path = join(this.folder, name);
      const there = shape.test(name) ? await stat(path).catch(() => null) : null;
      if (there !== null) found.push({ name, path, used: there.atimeMs, size: there.blocks * 512 });
    }
    const { bavail, bsize } = await statfs(this.folder);
    const all = found.reduce((sum, { size }) => sum + size, 0);
    let left = Math.min(mostKept, (bavail * bsize + all) * mostShare);
    for (const [n, { name, path, used, size }] of found.sort((a, b) => b.used - a.used).entries()) {
      left -= size;
      if ((left >= 0 || n === 0) && n < mostTars && used >= time) continue;
      this.#whole.delete(name);
      await rm(path, { force: true });
    }
  }
}

/** Files of a workspace that is made of others: its ranges, and those that `take` made. */
export function joinedFiles(base: string): string[] {
  return [`${base}.joined`, ...Array.from({ length: mostFiles }, (_, at) => `${base}.${at}`)];
}

/** The bytes of one. */
export async function* joined(base: string): AsyncGenerator<Buffer> {
  const ranges = JSON.parse(await readFile(`${base}.joined`, 'utf8')) as JoinRequest['ranges'];
  for (const [at, from, to] of ranges) yield* createReadStream(`${base}.${at}`, { start: from, end: to - 1, highWaterMark: chunk });
}

/** Setting when a file was used changes when it was changed, and rounds when it was written, as here. */
function fileOf({ ino, size, mtimeMs }: Stats): string {
  return [ino, size, Math.round(mtimeMs)].join(' ');
}

/** false, also where a file has as many links as it may have; @throws any other failure */
function isMissing(error: unknown): false {
  if (codeOf(error) === 'ENOENT' || codeOf(error) === 'EMLINK') return false;
  throw error;
}

function notKept(why: string): OnejobError {
  const message = `Cannot make a workspace of files that were sent before: ${why}.`;
  return new OnejobError('E_WORKSPACE_UNKNOWN', message, { hint: 'Send the whole workspace.' });
}
