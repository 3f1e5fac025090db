/**
 * Caches that jobs keep through the filter: archives, each a plain file that onejob itself writes, below a folder for each service,
 * project and trust. No sandbox sees these folders, so there is no link and no device in them, and nothing that a job wrote is ever
 * unpacked here. What was not used for longest goes first.
 */
import { randomInt } from 'node:crypto';
import { type FileHandle, link, lstat, mkdir, open, readdir, rename, rm, rmdir, statfs, utimes } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { fileNameOf, textOfFileName } from '../../base/file-name.ts';
import { syncFolderLater } from '../../system/files.ts';

/** Whose caches a folder has, as its path below that of all. */
export interface StoredOwner {
  readonly service: string;
  readonly project: string;
  /** `trusted`, with what the service sets apart, or `untrusted` with whose. */
  readonly trust: string;
}

/** How much the trusted jobs of a service may keep together, and its untrusted ones; and the share of the disk that stays free. */
export interface StoredLimits {
  readonly bytes: number;
  readonly minFree: number;
}

export interface StoredCache extends StoredOwner {
  /** Of a long one the beginning, with an ellipsis. */
  readonly key: string;
  readonly path: string;
  readonly bytes: number;
  /** Bytes that it will still take on the disk. */
  readonly missing: number;
  /** ms since the epoch. */
  readonly wroteAt: number;
  readonly usedAt: number;
  /** Whether it is still being written. */
  readonly isPart: boolean;
}

/** Archives that the trusted jobs of a service may keep together, and its untrusted ones: each costs a look when one is written. */
const [most, mostUntrusted] = [10_000, 1_000];
/** ms after which a half archive that nobody writes to is removed. */
const abandoned = 3_600_000;
const parts = '.parts';

/** What `trust` of caches is or begins with. */
export const [trustedCaches, untrustedPrefix] = ['trusted', 'untrusted'] as const;
export const storedFolder = (stateDir: string): string => join(stateDir, 'service-caches');
export const ownerPath = ({ service, project, trust }: StoredOwner): string => [service, project, trust].map(fileNameOf).join('/');

const namesIn = (path: string): Promise<string[]> => readdir(path).catch(() => []);

/** All that is kept, of one service or of all. */
export async function listStored(folder: string, only: string | null = null): Promise<StoredCache[]> {
  const found: StoredCache[] = [];
  for (const service of only === null ? await namesIn(folder) : [fileNameOf(only)])
    for (const project of await namesIn(join(folder, service)))
      for (const trust of await namesIn(join(folder, service, project))) {
        const owner = { service: textOfFileName(service), project: textOfFileName(project), trust: textOfFileName(trust) };
        for (const name of await namesIn(join(folder, service, project, trust)))
          if (name !== parts) found.push(...(await look(owner, join(folder, service, project, trust, name))));
        for (const name of await namesIn(join(folder, service, project, trust, parts)))
          found.push(...(await look(owner, join(folder, service, project, trust, parts, name))));
      }
  return found;
}

async function look(owner: StoredOwner, path: string): Promise<StoredCache[]> {
  const seen = await lstat(path).catch(() => null);
  if (seen === null || !seen.isFile()) return [];
  const isPart = dirname(path).endsWith(parts);
  const name = path.slice(path.lastIndexOf('/') + 1);
  const missing = isPart ? Math.max(0, seen.size - seen.blocks * 512) : 0;
  const key = textOfFileName(isPart ? name.replace(/^\d+\./, '') : name);
  return [{ ...owner, key, path, bytes: seen.size, missing, wroteAt: seen.mtimeMs, usedAt: seen.atimeMs, isPart }];
}

/** Removes archives; folders that are empty then go, too. The bytes that were freed. */
export async function removeStored(folder: string, caches: readonly Pick<StoredCache, 'path' | 'bytes'>[]): Promise<number> {
  let freed = 0;
  for (const { path, bytes } of caches) {
    await rm(path, { force: true });
    freed += bytes;
    for (let at = dirname(path); at.startsWith(`${folder}/`); at = dirname(at)) {
      await rmdir(join(at, parts)).catch(() => {});
      await rmdir(at).catch(() => {});
    }
  }
  return freed;
}

/** Why nothing more may be written. */
export class NoRoom extends Error {}

/** An archive that is being written: `id` names it for later calls. */
export interface StoredPart {
  readonly id: number;
  readonly handle: FileHandle;
}

/** Of the filter. Paths are those of `ownerPath`, which came sealed; keys are a job's. */
export class StoredCaches {
  readonly #folder: string;
  readonly #now: () => number;
  readonly #disk: typeof statfs;
  /** Room is made for one at a time. */
  #turn: Promise<unknown> = Promise.resolve();

  constructor(folder: string, now: () => number, disk: typeof statfs = statfs) {
    this.#folder = folder;
    this.#now = now;
    this.#disk = disk;
  }

  /** Opens an archive and marks it as used now; null if it does not exist. The caller closes it. */
  async open(
    owner: string,
    key: string,
  ): Promise<{ readonly handle: FileHandle; readonly size: number; readonly wroteAt: Date } | null> {
    const path = join(this.#folder, owner, fileNameOf(key));
    const handle = await open(path, 'r').catch(() => null);
    if (handle === null) return null;
    const { size, mtime } = await handle.stat();
    await utimes(path, new Date(this.#now()), mtime).catch(() => {});
    return { handle, size, wroteAt: mtime };
  }

  async has(owner: string, key: string): Promise<boolean> {
    return (await lstat(join(this.#folder, owner, fileNameOf(key))).catch(() => null)) !== null;
  }

  /** Keys that begin with a text, the newest first, without those that are too long for a name. */
  async find(owner: string, start: string): Promise<string[]> {
    const at = join(this.#folder, owner);
    const names = (await namesIn(at)).filter((name) => !name.includes('%~') && textOfFileName(name).startsWith(start));
    const seen = await Promise.all(
      names.map(async (name) => ({ name, at: (await lstat(join(at, name)).catch(() => null))?.mtimeMs ?? 0 })),
    );
    return seen.sort((a, b) => b.at - a.at).map(({ name }) => textOfFileName(name));
  }

  /** Begins an archive of so many bytes, for which there is room then. @throws NoRoom */
  async begin(owner: string, key: string, bytes: number, limits: StoredLimits): Promise<StoredPart> {
    const turn = this.#turn.then(async () => {
      await this.#makeRoom(owner, bytes, limits);
      const id = randomInt(1, 2 ** 47);
      const at = join(this.#folder, owner, parts);
      await mkdir(at, { recursive: true, mode: 0o700 });
      const handle = await open(join(at, `${id}.${fileNameOf(key)}`), 'wx+', 0o600);
      // So that its room is counted as taken from now on.
      await handle.truncate(bytes);
      return { id, handle };
    });
    this.#turn = turn.catch(() => {});
    return turn;
  }

  /** Opens one that was begun; null: nobody began it, or it was given up. The caller closes it. */
  async resume(owner: string, id: number): Promise<FileHandle | null> {
    const path = await this.#partOf(owner, id);
    return path === null ? null : open(path, 'r+').catch(() => null);
  }

  /** What was begun takes the place of what had that key. `isFirst`: unless there is one already. Whether it is kept. */
  async commit(owner: string, id: number, isFirst = false): Promise<boolean> {
    const path = await this.#partOf(owner, id);
    if (path === null) return false;
    const to = join(this.#folder, owner, path.slice(path.lastIndexOf('/') + 1).replace(/^\d+\./, ''));
    await using handle = await open(path, 'r+');
    await handle.datasync();
    const now = new Date(this.#now());
    await handle.utimes(now, now);
    const isKept = await (isFirst ? link(path, to) : rename(path, to)).then(
      () => true,
      () => false,
    );
    await rm(path, { force: true });
    await syncFolderLater(dirname(to));
    return isKept;
  }

  async giveUp(owner: string, id: number): Promise<void> {
    const path = await this.#partOf(owner, id);
    if (path !== null) await rm(path, { force: true });
  }

  async #partOf(owner: string, id: number): Promise<string | null> {
    const at = join(this.#folder, owner, parts);
    const name = (await namesIn(at)).find((each) => each.startsWith(`${id}.`));
    return name === undefined ? null : join(at, name);
  }

  /** Untrusted jobs never push out what trusted ones keep. */
  async #makeRoom(owner: string, bytes: number, limits: StoredLimits): Promise<void> {
    if (bytes > limits.bytes) throw new NoRoom(`it is larger than "cache_limit" of its pool (${limits.bytes} bytes)`);
    const [service = '', , trust = ''] = owner.split('/').map(textOfFileName);
    const isUntrusted = (one: string): boolean => one.startsWith(untrustedPrefix);
    const all = await listStored(this.#folder, service);
    const own = all.filter((one) => isUntrusted(one.trust) === isUntrusted(trust));
    const number = isUntrusted(trust) ? mostUntrusted : most;
    const old = this.#now() - abandoned;
    let [left, count] = [own.reduce((sum, one) => sum + one.bytes, 0), own.length];
    const isFull = (): boolean => left + bytes > limits.bytes || count >= number;
    for (const one of own.sort((a, b) => a.usedAt - b.usedAt)) {
      if (one.isPart ? one.wroteAt > old : !isFull()) continue;
      left -= await removeStored(this.#folder, [one]);
      count -= 1;
    }
    if (isFull()) throw new NoRoom('jobs of its pool are writing others, and together they exceed "cache_limit"');
    await mkdir(this.#folder, { recursive: true, mode: 0o700 });
    const { bavail, blocks, bsize } = await this.#disk(this.#folder);
    const promised = all.reduce((sum, one) => sum + one.missing, 0);
    if (bavail * bsize - promised - bytes < limits.minFree * blocks * bsize)
      throw new NoRoom('the disk of its host would have less free space than "disk.min_free"');
  }
}
