/**
 * Named caches: counted after each use, and trimmed to their limit between two agents. What is given up is moved aside first and
 * removed afterwards, so a crash leaves nothing half removed where an agent sees it.
 */
import { randomBytes } from 'node:crypto';
import { lstatSync, mkdirSync, renameSync } from 'node:fs';
import { rmdir, statfs } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { codeOf, messageOf, toFailure } from '../../base/errors.ts';
import { type Finding, fine, warning } from '../../base/finding.ts';
import type { Log } from '../../base/log.ts';
import { formatBytes } from '../../base/units.ts';
import type { Clock } from '../../core/clock.ts';
import type { Mount } from '../../ports/runtime.ts';
import { cachePath, isNamed } from '../../schema/volumes.ts';
import { clearFolder, whyStuck } from '../../system/foreign-tree.ts';
import { turn } from '../../system/system-clock.ts';
import { poolOf } from '../loop/pool.ts';
import { type CachePlace, ensureFolders, listPlaces, placeAt, trashFolder, type WantedCaches } from './cache-places.ts';
import { type CacheEntry, type CacheSize, measure, pathOf } from './cache-tree.ts';

export interface CachesParts {
  readonly folder: string;
  readonly clock: Clock;
  readonly log: Log;
  readonly wanted: () => readonly WantedCaches[];
  readonly nameOf: (slot: string) => string;
  /** Whether no released agent has this cache, so that its contents may be moved. Called often; must answer at once. */
  readonly mayTrim: (place: CachePlace) => boolean;
  /** Share of the disk, 0 to 1, that `makeRoom` keeps free. */
  readonly minFree: number;
  /** Free and all blocks, and bytes in each; default: what the disk reports. */
  readonly disk?: (path: string) => Promise<{ readonly bavail: number; readonly blocks: number; readonly bsize: number }>;
}

interface Known {
  readonly place: CachePlace;
  readonly size: CacheSize;
  /** When it was counted, ms since the epoch, and how many ms that took. */
  readonly at: number;
  readonly took: number;
}

const day = 86_400_000;
/** ms after which the content of an unused cache is given up. */
export const unusedAfter = 90 * day;
/** ms after which a cache that is no longer in the config is removed: a mistake in the config must not lose it. */
export const unwantedAfter = 7 * day;
/** Share of its limit that a cache is trimmed to, so that it is not trimmed after every job. */
const cutTo = 0.8;
/** How long a cache is not counted again, as a multiple of the time that counting took. */
const seldom = 10;
/** How many entries are moved while the loop waits; a rename takes some microseconds. */
const atOnce = 500;
/** The same while an agent's release waits. */
const beforeRelease = 100;

export class Caches {
  readonly #parts: CachesParts;
  readonly #trash: string;
  readonly #known = new Map<string, Known>();
  readonly #waiting = new Map<string, CachePlace>();
  readonly #abort = new AbortController();
  readonly #blocked = new Map<string, string>();
  /** Paths of caches that were used, and not counted since. */
  readonly #overdue = new Set<string>();
  #working: Promise<void> | null = null;
  #isTrashFull = true;
  #stuck: ReadonlyMap<string, number> = new Map();
  #last: { readonly place: CachePlace; readonly bytes: number; readonly at: number } | null = null;

  constructor(parts: CachesParts) {
    this.#parts = parts;
    this.#trash = join(parts.folder, trashFolder);
  }

  /** Removes in the background what an earlier manager gave up. */
  start(): void {
    void this.#wake();
  }

  async close(): Promise<void> {
    this.#abort.abort(new Error('onejob is stopping'));
    await this.#working;
  }

  /** Resolves when no work is left in the background; for tests. */
  async settled(): Promise<void> {
    while (this.#working !== null) await this.#working;
  }

  /** Creates the folders of named caches among a sandbox's mounts, before the sandbox. @throws OnejobError E_STATE_DIR */
  async ensure(mounts: readonly Mount[]): Promise<void> {
    await ensureFolders(this.#parts.folder, mounts);
    for (const { host, cache } of mounts) if (isNamed(cache)) this.#overdue.add(host);
  }

  /**
   * To be called when the slot's agent has ended, in the turn of that commit, before a script is sent to the next one. It moves a
   * known excess aside at once, since agents that follow each other closely leave no other moment, and does the rest in the
   * background. Caches of untrusted jobs are left to `tidy`.
   */
  used(slot: string): void {
    const { nameOf, folder, clock } = this.#parts;
    const pool = poolOf(slot);
    const agent = nameOf(slot);
    const one = this.#wantedBy(pool);
    if (one === undefined || one.caches.length === 0 || this.#abort.signal.aborted) return;
    // Those of projects that its agents had.
    const others = [...this.#overdue].filter((path) => {
      const place = placeAt(folder, path);
      return place.pool === pool && place.agent === agent && place.repository !== null;
    });
    for (const path of new Set([...one.caches.map((cache) => cachePath(dirname(folder), pool, agent, cache)), ...others])) {
      const before = this.#known.get(path);
      if (before !== undefined) for (const [, target] of this.#excess(before)) this.#cut(before, target, beforeRelease, () => true);
      // A cache of millions of files is not counted after every short job; the hourly `tidy` makes up for it.
      if (before !== undefined && clock.wall() - before.at < before.took * seldom) this.#overdue.add(path);
      else this.#waiting.set(path, placeAt(folder, path));
    }
    void this.#wake();
  }

  /** Removes caches that are no longer in the config or long unused; counts those that were never counted. */
  async tidy(): Promise<void> {
    const now = this.#parts.clock.wall();
    for (const place of await listPlaces(this.#parts.folder)) {
      const one = this.#known.get(place.path);
      if (!this.#isWanted(place)) await this.drop(place, now - unwantedAfter);
      else if (place.repository !== null && (await this.drop(place, now - unusedAfter))) continue;
      else if (one === undefined || this.#overdue.has(place.path)) this.#waiting.set(place.path, place);
      else if (one.size.entries.length > 0 && one.size.used < now - unusedAfter) await this.#cutDown(place.path, 0);
      else for (const [path, target] of this.#excess(one)) await this.#cutDown(path, target);
    }
    // What could not be removed last time may be removable now.
    this.#isTrashFull = true;
    await this.#wake();
    // The disk of sandboxes, which is checked more often, may be another one.
    await this.makeRoom(this.#abort.signal);
  }

  /** Gives up what was unused for longest until the disk has `minFree` again, or nothing may be moved. */
  async makeRoom(signal: AbortSignal): Promise<void> {
    const { folder, mayTrim } = this.#parts;
    const either = AbortSignal.any([signal, this.#abort.signal]);
    if ((await this.lacking()) <= 0) return;
    // Emptying the trash may be enough.
    await this.#emptyTrash(either);
    const idle: Known[] = [];
    for (const place of (await listPlaces(folder)).filter(mayTrim)) {
      const one = this.#known.get(place.path) ?? (await this.#count(place, either));
      if (one !== null) idle.push(one);
    }
    for (const { path } of idle.sort((a, b) => a.size.used - b.size.used).map(({ place }) => place)) {
      for (;;) {
        const bytes = await this.lacking();
        if (bytes <= 0) return;
        const before = this.#known.get(path)?.size;
        if (before === undefined || before.entries.length === 0) break;
        await this.#cutDown(path, Math.max(0, before.bytes - bytes));
        // An agent came, or nothing can be moved.
        if ((this.#known.get(path)?.size.entries.length ?? 0) === before.entries.length) break;
        // Only this frees the space.
        await this.#emptyTrash(either);
      }
    }
  }

  /** All of them; those that nobody has counted yet are counted. `size` null: gone meanwhile. */
  async list(signal: AbortSignal) {
    const listed: { readonly place: CachePlace; readonly size: CacheSize | null; readonly inUse: boolean }[] = [];
    for (const place of await listPlaces(this.#parts.folder)) {
      const one = this.#known.get(place.path) ?? (await this.#count(place, AbortSignal.any([signal, this.#abort.signal])));
      listed.push({ place, size: one?.size ?? null, inUse: !this.#parts.mayTrim(place) });
    }
    return listed;
  }

  /** The size of each pool's caches, and what could not be kept within its limit. */
  findings(): Finding[] {
    const found = this.#parts.wanted().flatMap((one) => this.#findingsOf(one));
    if (this.#stuck.size === 0) return found;
    const trash = this.#trash;
    const message = `Failed to remove everything that was trimmed from caches from ${trash} (${whyStuck({ stuck: this.#stuck })}).`;
    return [...found, warning('caches', message, `Check it with "lsattr -R ${trash}", and remove it.`)];
  }

  #findingsOf({ pool, caches, limit }: WantedCaches): Finding[] {
    if (caches.length === 0) return [];
    const own = [...this.#known.values()].filter(({ place }) => place.pool === pool);
    const bytes = own.reduce((sum, { size }) => sum + size.bytes, 0);
    const counted = own.length === 0 ? 'were not counted yet' : `hold ${human(bytes)} in ${own.length} of their folders`;
    const cut = this.#last?.place.pool === pool ? this.#last : null;
    const trimmed = cut && ` ${human(cut.bytes)} of ${titleOf(cut.place)} were removed ${ago(this.#parts.clock.wall() - cut.at)}.`;
    const over = own.filter(({ size }) => size.bytes > limit);
    const message = `Its named caches ${counted}; each may have up to ${human(limit)}.${trimmed ?? ''}`;
    const subject = `pool ${pool}`;
    if (over.length === 0) return [fine(subject, message)];
    const names = over.map(({ place, size }) => `${titleOf(place)} (${human(size.bytes)})`).join(', ');
    const reason = over.map(({ place }) => this.#blocked.get(place.path)).find((why) => why !== undefined);
    const why = reason === undefined ? 'onejob trims a cache once its agent has ended' : `nothing can be removed: ${reason}`;
    const hint = reason === undefined ? null : 'Check the files there, also with "lsattr".';
    return [fine(subject, message), warning(subject, `These exceed it: ${names}; ${why}.`, hint)];
  }

  /** Moves aside what exceeds `target`, at most `most` entries. Whether there may be more to move. */
  #cut(one: Known, target: number, most = atOnce, may = this.#parts.mayTrim): boolean {
    const { place, size } = one;
    const chosen = toGiveUp(size.entries, size.bytes, target);
    if (chosen.length === 0) return false;
    const done = moveAside(place.path, chosen.slice(0, most), this.#trash, () => may(place));
    if (done.failure === null) this.#blocked.delete(place.path);
    else this.#blocked.set(place.path, done.failure);
    if (done.moved.size === 0) return false;
    this.#isTrashFull = true;
    this.#last = { place, bytes: done.bytes, at: this.#parts.clock.wall() };
    const entries = size.entries.filter(({ name }) => !done.moved.has(name));
    const bytes = Number.isFinite(size.bytes) ? size.bytes - done.bytes : entries.reduce((sum, one) => sum + one.bytes, 0);
    this.#known.set(place.path, { ...one, size: { ...size, entries, bytes } });
    this.#parts.log.info('cache trimmed', { cache: titleOf(place), entries: done.moved.size, bytes: done.bytes });
    return chosen.length > most && !done.isInterrupted;
  }

  /** Paths of caches to trim, and to how many bytes. A pool's untrusted jobs share one limit, and so do projects in a slot; the longest unused give first. */
  #excess(one: Known): (readonly [path: string, target: number])[] {
    const limit = this.#wantedBy(one.place.pool)?.limit ?? Number.POSITIVE_INFINITY;
    const { pool, agent, cache, repository } = one.place;
    const isSharing = ({ place }: Known): boolean =>
      place.pool === pool && place.agent === agent && place.repository !== null && (agent === null || place.cache === cache);
    const all = repository === null ? [one] : [...this.#known.values()].filter(isSharing);
    const bytes = all.reduce((sum, { size }) => sum + size.bytes, 0);
    if (bytes <= limit) return [];
    const endless = all.filter(({ size }) => !Number.isFinite(size.bytes));
    if (endless.length > 0) return endless.map(({ place }) => [place.path, limit * cutTo]);
    let over = bytes - limit * cutTo;
    const cuts: (readonly [string, number])[] = [];
    for (const { place, size } of all.sort((a, b) => a.size.used - b.size.used)) {
      const given = Math.min(over, size.bytes);
      over -= given;
      if (given > 0) cuts.push([place.path, size.bytes - given]);
    }
    return cuts;
  }

  /** Moves aside everything above `target`, and lets other work run in between. */
  async #cutDown(path: string, target: number): Promise<void> {
    for (;;) {
      const one = this.#known.get(path);
      if (one === undefined || !this.#cut(one, target)) return;
      await turn();
    }
  }

  async #count(place: CachePlace, signal: AbortSignal): Promise<Known | null> {
    const { clock } = this.#parts;
    const at = clock.wall();
    const began = clock.now();
    this.#overdue.delete(place.path);
    const size = await measure(place.path, at, signal);
    if (size === null) {
      this.#known.delete(place.path);
      return null;
    }
    const one = { place, size, at, took: clock.now() - began };
    this.#known.set(place.path, one);
    return one;
  }

  async #emptyTrash(signal: AbortSignal): Promise<void> {
    this.#isTrashFull = false;
    const { stuck: left } = await clearFolder(this.#trash, { signal });
    if (left.size > 0 && this.#stuck.size === 0)
      this.#parts.log.warn('failed to remove everything that was trimmed from caches', { why: [...left.keys()].join(', ') });
    this.#stuck = left;
  }

  #wake(): Promise<void> {
    this.#working ??= this.#work()
      .catch((error: unknown) => {
        if (!this.#abort.signal.aborted) this.#parts.log.warn('failed to trim caches', { reason: toFailure(error).message });
        for (const path of this.#waiting.keys()) this.#overdue.add(path);
        this.#waiting.clear();
      })
      .finally(() => {
        this.#working = null;
        // More came after the work had ended.
        if (this.#waiting.size > 0) void this.#wake();
      });
    return this.#working;
  }

  async #work(): Promise<void> {
    const { signal } = this.#abort;
    while (this.#waiting.size > 0 || this.#isTrashFull) {
      for (const [path, place] of this.#waiting) {
        this.#waiting.delete(path);
        const one = await this.#count(place, signal);
        for (const [at, target] of one === null ? [] : this.#excess(one)) await this.#cutDown(at, target);
      }
      if (this.#isTrashFull) await this.#emptyTrash(signal);
    }
  }

  /** Removes the whole cache if nothing needed it since `before`; whether it is gone. */
  async drop(place: CachePlace, before: number): Promise<boolean> {
    const { folder, log, mayTrim } = this.#parts;
    try {
      // In one turn: creating a sandbox touches the folder, and `mayTrim` knows of running ones.
      if (!mayTrim(place) || lstatSync(place.path).ctimeMs > before) return false;
      moveTo(this.#trash, place.path);
    } catch (error) {
      this.#blocked.set(place.path, toFailure(error).message);
      return false;
    }
    // Removes only empty folders.
    for (let at = dirname(place.path); at !== folder; at = dirname(at)) await rmdir(at).catch(() => {});
    this.#known.delete(place.path);
    this.#blocked.delete(place.path);
    this.#isTrashFull = true;
    log.info('cache removed', { cache: titleOf(place) });
    return true;
  }

  /** Bytes to free on the disk; 0 or less when none. */
  async lacking(): Promise<number> {
    const { disk = statfs, folder, minFree } = this.#parts;
    const { bavail, blocks, bsize } = await disk(folder).catch(() => ({ bavail: 1, blocks: 1, bsize: 0 }));
    return (minFree * blocks - bavail) * bsize;
  }

  #isWanted({ pool, agent, repository, cache }: CachePlace): boolean {
    const one = this.#wantedBy(pool);
    if (one === undefined || !one.caches.includes(cache)) return false;
    return agent === null ? one.untrusted : one.agents.includes(agent) && one.perProject === (repository !== null);
  }

  #wantedBy(pool: string): WantedCaches | undefined {
    return this.#parts.wanted().find((one) => one.pool === pool);
  }
}

/** `depot of gpu.1`, `depot of acme/app in gpu.1`, or `depot of untrusted jobs in pool gpu`. */
function titleOf({ pool, agent, repository, cache }: CachePlace): string {
  if (agent === null) return `${cache} of untrusted jobs in pool ${pool}`;
  return repository === null ? `${cache} of ${agent}` : `${cache} of ${repository} in ${agent}`;
}

/** The entries to give up until at most `target` bytes are left: uncountable ones, then those unused for longest. Pure. */
function toGiveUp(entries: readonly CacheEntry[], bytes: number, target: number): CacheEntry[] {
  const isEndless = (entry: CacheEntry): boolean => !Number.isFinite(entry.bytes);
  const endless = entries.filter(isEndless);
  const others = entries.filter((entry) => !isEndless(entry)).sort((a, b) => a.used - b.used || b.bytes - a.bytes);
  // `bytes` without the uncountable ones.
  let left = Number.isFinite(bytes) ? bytes : others.reduce((sum, entry) => sum + entry.bytes, 0);
  const chosen: CacheEntry[] = [];
  for (const entry of others) {
    if (left <= target) break;
    chosen.push(entry);
    left -= entry.bytes;
  }
  return [...endless, ...chosen];
}

/** Moves entries into `trash`. `mayTrim` is asked in the turn of each move: an agent may have come (`isInterrupted`). */
function moveAside(from: string, entries: readonly CacheEntry[], trash: string, mayTrim: () => boolean) {
  const moved = new Set<string>();
  let bytes = 0;
  let failure: string | null = null;
  for (const entry of entries) {
    if (!mayTrim()) return { bytes, moved, failure, isInterrupted: true };
    const path = pathOf(from, entry.name);
    try {
      moveTo(trash, path);
      bytes += Number.isFinite(entry.bytes) ? entry.bytes : 0;
      moved.add(entry.name);
    } catch (error) {
      if (codeOf(error) === 'ENOENT') moved.add(entry.name);
      else failure = messageOf(error).replace(/, (rename|mkdir) '.*$/s, '');
    }
  }
  return { bytes, moved, failure, isInterrupted: false };
}

/** Moves it into the trash, which is created if missing, under a new name. */
function moveTo(trash: string, path: string | Buffer): void {
  mkdirSync(trash, { recursive: true, mode: 0o700 });
  renameSync(path, join(trash, randomBytes(8).toString('hex')));
}

function human(bytes: number): string {
  return Number.isFinite(bytes) ? formatBytes(bytes) : 'more than can be counted';
}

function ago(ms: number): string {
  const minutes = Math.max(0, Math.round(ms / 60_000));
  if (minutes < 1) return 'just now';
  return minutes < 120 ? `${minutes} min ago` : `${Math.round(minutes / 60)} h ago`;
}
