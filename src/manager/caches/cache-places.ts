/** Where named caches are on disk. The folders above a cache are closed to others; the cache is open to any user of a sandbox. */
import { constants } from 'node:fs';
import { lstat, mkdir, open, readdir } from 'node:fs/promises';
import { join, relative, sep } from 'node:path';
import { codeOf, messageOf, OnejobError } from '../../base/errors.ts';
import { textOfFileName } from '../../base/file-name.ts';
import type { PoolConfig } from '../../config/config.ts';
import type { Slot } from '../../core/slot.ts';
import type { Mount } from '../../ports/runtime.ts';
import { isNamed, untrustedFolder } from '../../schema/volumes.ts';
import { poolOf } from '../loop/pool.ts';

/** One named cache of one slot, or of the untrusted jobs of one repository in a pool. */
export interface CachePlace {
  readonly pool: string;
  readonly agent: string | null;
  /** Whose jobs alone have it: a project, or for untrusted jobs hex digits for a repository; else null. */
  readonly repository: string | null;
  readonly cache: string;
  readonly path: string;
}

/** For what is moved aside to be removed; no pool has this name. */
export const trashFolder = '.trash';

/** Every cache below `folder`, without links and unreadable folders. */
export async function listPlaces(folder: string): Promise<CachePlace[]> {
  const places: CachePlace[] = [];
  for (const pool of await foldersIn(folder)) {
    if (pool === trashFolder) continue;
    for (const agent of await foldersIn(join(folder, pool))) {
      const at = join(folder, pool, agent);
      const holders = agent === untrustedFolder ? (await foldersIn(at)).map((repository) => join(at, repository)) : [at];
      for (const holder of holders) for (const cache of await foldersIn(holder)) places.push(placeAt(folder, join(holder, cache)));
    }
  }
  return places;
}

/** The cache whose path it is. */
export function placeAt(folder: string, path: string): CachePlace {
  const [pool = '', holder = '', ...rest] = relative(folder, path).split(sep);
  const cache = rest.at(-1) ?? '';
  if (holder === untrustedFolder) return { pool, agent: null, repository: rest[0] ?? '', cache, path };
  const [agent = '', project] = holder.split('@');
  return { pool, agent, repository: project === undefined ? null : textOfFileName(project), cache, path };
}

/** Creates the missing folders of named caches and opens them to every user. @throws OnejobError E_STATE_DIR if a link is there */
export async function ensureFolders(folder: string, mounts: readonly Mount[]): Promise<void> {
  for (const { host, cache } of mounts) {
    if (!isNamed(cache)) continue;
    const parts = relative(folder, host).split(sep);
    if (parts.length < 3 || parts.length > 4 || parts[0] === '..' || parts[0] === trashFolder)
      throw new RangeError(`no folder of a named cache: ${host}`);
    let at = folder;
    await ensureFolder(at, host);
    for (const part of parts) {
      at = join(at, part);
      await ensureFolder(at, host);
    }
    try {
      await using handle = await open(host, constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW);
      // A job may have closed it to others; and the change shows on disk that it was needed.
      await handle.chmod(0o777).catch((error: unknown) => {
        // A job changed its owner, or made it immutable: that is a problem only for the next job.
        if (codeOf(error) !== 'EPERM') throw error;
      });
    } catch (error) {
      throw blocked(host, host, error);
    }
  }
}

async function ensureFolder(path: string, cache: string): Promise<void> {
  try {
    await mkdir(path, { mode: 0o700 });
  } catch (error) {
    if (codeOf(error) !== 'EEXIST') throw blocked(path, cache, error);
    const found = await lstat(path).catch(() => null);
    // A link would lead jobs to wherever it points.
    if (found?.isDirectory() !== true) throw blocked(path, cache, new Error('it is a link or a file'));
  }
}

function blocked(path: string, cache: string, cause: unknown): OnejobError {
  const why = messageOf(cause);
  return new OnejobError('E_STATE_DIR', `Cannot keep the cache ${cache}: ${path} is not a folder that onejob can use (${why}).`, {
    hint: 'Move away what is there, and check that the disk has free space. To keep caches on another disk, mount it there.',
    retry: true,
    cause,
  });
}

async function foldersIn(path: string): Promise<string[]> {
  const entries = await readdir(path, { withFileTypes: true }).catch(() => []);
  return entries.flatMap((entry) => (entry.isDirectory() ? entry.name : [])).sort();
}

/** Whether no released agent can have the place among its mounts; without a slot of its own, no agent of its pool may run. */
export function isIdle(place: CachePlace, slots: readonly Slot[], nameOf: (slot: string) => string): boolean {
  const inPool = slots.filter(({ key }) => poolOf(key) === place.pool);
  const own = place.agent === null ? [] : inPool.filter(({ key }) => nameOf(key) === place.agent);
  if (own.length > 0) return own.every(hasNoAgent);
  if (place.agent === null) return inPool.every(hasNoAgent);
  return inPool.every((slot) => hasNoAgent(slot) && slot.standby.kind === 'none' && slot.leaving.length === 0);
}

/** The named caches of a pool. */
export interface WantedCaches {
  readonly pool: string;
  /** Names of the agents of all its slots. */
  readonly agents: readonly string[];
  readonly caches: readonly string[];
  /** Bytes for each. */
  readonly limit: number;
  /** Whether each project has its own. */
  readonly perProject: boolean;
  /** Whether untrusted jobs have their own caches. */
  readonly untrusted: boolean;
}

/** The named caches of each pool, with their limits and owners. */
export function wantedCaches(
  pools: readonly Pick<PoolConfig, 'name' | 'recipe' | 'cacheFor' | 'cacheLimit' | 'trust'>[],
  slots: readonly Slot[],
  nameOf: (slot: string) => string,
): WantedCaches[] {
  return pools.map(({ name, recipe, cacheFor, cacheLimit, trust }) => ({
    pool: name,
    agents: slots.filter(({ key }) => poolOf(key) === name).map(({ key }) => nameOf(key)),
    caches: recipe.mounts.flatMap(({ cache }) => (isNamed(cache) ? [cache.name] : [])),
    limit: cacheLimit,
    perProject: cacheFor === 'project',
    untrusted: trust.caches === 'private',
  }));
}

/** Whether the change took the slot's agent away, even if the next one is about to be released already. */
export function hasEnded(before: Slot, after: Slot): boolean {
  const agentOf = ({ agent }: Slot) => (agent.kind === 'free' ? null : agent.agent);
  return !hasNoAgent(before) && (hasNoAgent(after) || agentOf(before) !== agentOf(after));
}

/** Whether no agent was let through its gate, and none is about to be. */
function hasNoAgent({ agent }: Slot): boolean {
  return agent.kind === 'free' || agent.kind === 'proving';
}
