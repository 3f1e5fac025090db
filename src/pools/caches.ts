/**
 * Caches that onejob keeps under a name: their folders are made before a sandbox needs them, counted once each time they were
 * used, and cut down to their limit between two agents. What is given up is moved aside first and removed afterwards, so a
 * crash leaves nothing half removed where an agent sees it.
 */

import { lstatSync } from 'node:fs';
import { rmdir, statfs } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { turn } from '../clock.ts';
import { cachePath, isNamed, untrustedCachePath } from '../config/volumes.ts';
import type { Clock } from '../core/clock.ts';
import { toFailure } from '../errors.ts';
import type { Log } from '../log.ts';
import type { Finding, Mount } from '../runtimes/runtime.ts';
import { moveAside, moveTo, toGiveUp } from './cache-cut.ts';
import { cacheFindings, titleOf } from './cache-findings.ts';
import type { Known, WantedCaches } from './cache-known.ts';
import { type CachePlace, ensureFolders, listPlaces, trashFolder } from './cache-places.ts';
import { giveRoom } from './cache-room.ts';
import { clear, measure } from './cache-tree.ts';

export interface CachesParts {
  /** `cachesFolder(stateDir)`. */
  readonly folder: string;
  readonly clock: Clock;
  readonly log: Log;
  readonly wanted: () => readonly WantedCaches[];
  /** The agents' name of a slot, by its key. */
  readonly nameOf: (slot: string) => string;
  /** Whether no released agent has this cache: then what is in it may be moved. Asked often; must answer at once. */
  readonly mayTrim: (place: CachePlace) => boolean;
  /** Share of the disk, 0 to 1, that `makeRoom` makes free. */
  readonly minFree: number;
  /** Free and all blocks, and bytes in each; default: what the disk says. */
  readonly disk?: (path: string) => Promise<{ readonly bavail: number; readonly blocks: number; readonly bsize: number }>;
}

export interface Caches {
  /** Removes in the background what a manager before this one gave up. */
  start(): void;
  /**
   * Makes the folders of named caches among a sandbox's mounts. To be awaited before the sandbox is made.
   * @throws OnejobError E_STATE_DIR
   */
  ensure(mounts: readonly Mount[]): Promise<void>;
  /**
   * The slot's agent has ended, and no script was sent to the next one yet: to be called in the turn in which that was committed.
   * Answers at once: what is known to be too much is moved aside right now, since agents that follow each other closely leave no
   * other moment; the rest is done in the background. `repository`: of an untrusted job, as in its caches' paths.
   */
  used(slot: string, repository?: string | null): void;
  /** Removes what config does not want any more and what nobody used for long; counts what was never counted. */
  tidy(): Promise<void>;
  /** Gives up what was not used for longest until the disk has `minFree` again, or nothing may be taken. */
  makeRoom(signal: AbortSignal): Promise<void>;
  findings(): Finding[];
  /** Resolves when nothing is done in the background any more; for tests. */
  settled(): Promise<void>;
  close(): Promise<void>;
}

const day = 86_400_000;
/** ms after which the content of a cache that nobody uses is given up. */
export const unusedAfter = 90 * day;
/** ms after which a cache that config does not name any more is removed: neither a slip in the config nor a driver that fails costs it. */
export const unwantedAfter = 7 * day;
/** Share of its limit that a cache is cut down to, so that it is not cut after every job. */
const cutTo = 0.8;
/** How long a cache is left alone after it was counted, as a multiple of the time that this took. */
const seldom = 10;
/** How many entries are moved while the loop waits; a rename takes some microseconds. */
const atOnce = 500;
/** The same while an agent's release waits for it. */
const beforeRelease = 100;

export function createCaches(parts: CachesParts): Caches {
  const { folder, clock, log, nameOf, mayTrim, minFree } = parts;
  const disk = parts.disk ?? statfs;
  const trash = join(folder, trashFolder);
  const trusted = cachePath.bind(null, dirname(folder));
  const untrusted = untrustedCachePath.bind(null, dirname(folder));
  const known = new Map<string, Known>();
  const waiting = new Map<string, CachePlace>();
  const abort = new AbortController();
  let working: Promise<void> | null = null;
  let isTrashFull = true;
  let stuck: ReadonlyMap<string, number> = new Map();
  let last: { readonly place: CachePlace; readonly bytes: number; readonly at: number } | null = null;
  const blocked = new Map<string, string>();
  /** Paths of what was used, and not counted since. */
  const overdue = new Set<string>();

  const limitOf = ({ pool }: CachePlace): number =>
    parts.wanted().find((one) => one.pool === pool)?.limit ?? Number.POSITIVE_INFINITY;

  /** Moves aside what is too much, at most so many entries. Whether something may be left to do. */
  const cut = (one: Known, target: number, most = atOnce, may = () => mayTrim(one.place)): boolean => {
    const { place, size } = one;
    const chosen = toGiveUp(size.entries, size.bytes, target);
    if (chosen.length === 0) return false;
    const done = moveAside(place.path, chosen.slice(0, most), { trash, mayTrim: may });
    if (done.failure === null) blocked.delete(place.path);
    else blocked.set(place.path, done.failure);
    if (done.moved.size === 0) return false;
    isTrashFull = true;
    last = { place, bytes: done.bytes, at: clock.wall() };
    const entries = size.entries.filter(({ name }) => !done.moved.has(name));
    const bytes = Number.isFinite(size.bytes) ? size.bytes - done.bytes : entries.reduce((sum, one) => sum + one.bytes, 0);
    known.set(place.path, { ...one, size: { ...size, entries, bytes } });
    log.info('cache trimmed', { cache: titleOf(place), entries: done.moved.size, bytes: done.bytes });
    return chosen.length > most && !done.isInterrupted;
  };
  /**
   * Which caches to cut, by their paths, and to how many bytes; empty when this one may have what it has. All untrusted jobs of a
   * pool share one limit, however many forks there are; of those the cache that was used longest ago gives first.
   */
  const excess = (one: Known): (readonly [path: string, target: number])[] => {
    const limit = limitOf(one.place);
    const isSharing = ({ place }: Known): boolean => place.agent === null && place.pool === one.place.pool;
    const all = one.place.agent === null ? [...known.values()].filter(isSharing) : [one];
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
  };
  /** All that is to be moved aside, with turns for others in between. */
  const cutDown = async (path: string, target: number): Promise<void> => {
    for (;;) {
      const one = known.get(path);
      if (one === undefined || !cut(one, target)) return;
      await turn();
    }
  };

  const count = async (place: CachePlace, signal: AbortSignal): Promise<Known | null> => {
    const at = clock.wall();
    const began = clock.now();
    overdue.delete(place.path);
    const size = await measure(place.path, at, signal);
    if (size === null) {
      known.delete(place.path);
      return null;
    }
    const one = { place, size, at, took: clock.now() - began };
    known.set(place.path, one);
    return one;
  };
  const emptyTrash = async (signal: AbortSignal): Promise<void> => {
    isTrashFull = false;
    const { stuck: left } = await clear(trash, signal);
    if (left.size > 0 && stuck.size === 0)
      log.warn('cannot remove all of what caches gave up', { why: [...left.keys()].join(', ') });
    stuck = left;
  };
  const work = async (): Promise<void> => {
    const { signal } = abort;
    while (waiting.size > 0 || isTrashFull) {
      for (const [path, place] of waiting) {
        waiting.delete(path);
        const one = await count(place, signal);
        for (const [at, target] of one === null ? [] : excess(one)) await cutDown(at, target);
      }
      if (isTrashFull) await emptyTrash(signal);
    }
  };
  const wake = (): Promise<void> => {
    working ??= work()
      .catch((error: unknown) => {
        if (!abort.signal.aborted) log.warn('caches not looked after', { reason: toFailure(error).message });
        for (const path of waiting.keys()) overdue.add(path);
        waiting.clear();
      })
      .finally(() => {
        working = null;
        // Came when all seemed done.
        if (waiting.size > 0) void wake();
      });
    return working;
  };

  /** Takes the whole folder away, when nobody needed it since `before`; whether it is gone. */
  const drop = async (place: CachePlace, before: number): Promise<boolean> => {
    try {
      // In one turn: a sandbox that is made right now has touched the folder, and one that works is told of.
      if (!mayTrim(place) || lstatSync(place.path).ctimeMs > before) return false;
      moveTo(trash, place.path);
    } catch (error) {
      blocked.set(place.path, toFailure(error).message);
      return false;
    }
    // Only those that hold nothing else.
    for (let at = dirname(place.path); at !== folder; at = dirname(at)) await rmdir(at).catch(() => {});
    known.delete(place.path);
    blocked.delete(place.path);
    isTrashFull = true;
    log.info('cache removed', { cache: titleOf(place) });
    return true;
  };
  const makeRoom = (signal: AbortSignal): Promise<void> => {
    const either = AbortSignal.any([signal, abort.signal]);
    return giveRoom({
      lacking: async () => {
        const { bavail, blocks, bsize } = await disk(folder).catch(() => ({ bavail: 1, blocks: 1, bsize: 0 }));
        return (minFree * blocks - bavail) * bsize;
      },
      idle: async () => {
        const counted: Known[] = [];
        for (const place of (await listPlaces(folder)).filter(mayTrim)) {
          const one = known.get(place.path) ?? (await count(place, either));
          if (one !== null) counted.push(one);
        }
        return counted;
      },
      look: (path) => known.get(path),
      cutDown,
      emptyTrash: () => emptyTrash(either),
    });
  };
  const isWanted = ({ pool, agent, cache }: CachePlace): boolean => {
    const one = parts.wanted().find((each) => each.pool === pool);
    if (one === undefined || !one.caches.includes(cache)) return false;
    return agent === null ? one.untrusted : one.agents.includes(agent);
  };

  return {
    start: () => void wake(),
    ensure: async (mounts) => {
      await ensureFolders(folder, mounts);
      for (const { host, cache } of mounts) if (isNamed(cache)) overdue.add(host);
    },

    used(slot, repository = null) {
      const pool = slot.slice(0, slot.lastIndexOf('/'));
      const agent = repository === null ? nameOf(slot) : null;
      const one = parts.wanted().find((each) => each.pool === pool);
      if (one === undefined || one.caches.length === 0 || abort.signal.aborted) return;
      for (const cache of one.caches) {
        const path = agent === null ? untrusted(pool, repository ?? '', cache) : trusted(pool, agent, cache);
        const before = known.get(path);
        // Those of untrusted jobs may be another slot's, too.
        const may = agent === null ? undefined : () => true;
        for (const [at, target] of before === undefined ? [] : excess(before)) {
          const one = known.get(at);
          if (one !== undefined) cut(one, target, beforeRelease, may);
        }
        // One of millions of files is not counted after every short job; the hourly look makes up for it.
        if (before !== undefined && clock.wall() - before.at < before.took * seldom) overdue.add(path);
        else waiting.set(path, { pool, agent, repository, cache, path });
      }
      void wake();
    },

    async tidy() {
      const now = clock.wall();
      for (const place of await listPlaces(folder)) {
        const one = known.get(place.path);
        if (!isWanted(place)) await drop(place, now - unwantedAfter);
        else if (place.agent === null && (await drop(place, now - unusedAfter))) continue;
        else if (one === undefined || overdue.has(place.path)) waiting.set(place.path, place);
        else if (one.size.entries.length > 0 && one.size.used < now - unusedAfter) await cutDown(place.path, 0);
        else for (const [path, target] of excess(one)) await cutDown(path, target);
      }
      // What could not be removed the last time may be by now.
      isTrashFull = true;
      await wake();
      // The disk of sandboxes, which is looked at more often, may be another one.
      await makeRoom(abort.signal);
    },

    makeRoom,
    findings: () =>
      cacheFindings({ known: [...known.values()], wanted: parts.wanted(), now: clock.wall(), last, stuck, blocked, trash }),
    settled: async () => {
      while (working !== null) await working;
    },
    async close() {
      abort.abort(new Error('onejob stops'));
      await working;
    },
  };
}
