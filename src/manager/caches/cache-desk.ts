/** All caches of the host as people see and empty them: named ones of pools, and those that jobs keep through the filter. */
import { listStored, removeStored, type StoredCache, storedFolder, untrustedPrefix } from '../../ci/stored/store.ts';
import type { CachesClearedView, CacheView, ClearCachesRequest } from '../../contract/schema.ts';
import type { Clock } from '../../core/clock.ts';
import { type Caches, unusedAfter, unwantedAfter } from './caches.ts';

export interface CacheDeskParts {
  readonly stateDir: string;
  readonly clock: Clock;
  readonly named: Pick<Caches, 'list' | 'drop' | 'tidy' | 'lacking' | 'makeRoom'>;
  /** Names of services in the config. */
  readonly services: readonly string[];
}

export interface CacheDesk {
  list(signal: AbortSignal): Promise<CacheView[]>;
  /** Those that a job has stay. */
  clear(request: ClearCachesRequest, signal: AbortSignal): Promise<CachesClearedView>;
  /** Removes what is too old, or no longer in the config. */
  tidy(): Promise<void>;
  /** Gives up what was unused for longest until the disk has enough free space again. */
  makeRoom(signal: AbortSignal): Promise<void>;
}

/** ms after which a half archive is removed: its agent was killed. */
const halfAfter = 86_400_000;

export function createCacheDesk({ stateDir, clock, named, services }: CacheDeskParts): CacheDesk {
  const folder = storedFolder(stateDir);
  const stored = () => listStored(folder);
  const all = async (signal: AbortSignal) => {
    const own = (await named.list(signal)).map((one) => ({
      view: viewOfNamed(one),
      clear: () => named.drop(one.place, Number.POSITIVE_INFINITY),
    }));
    const theirs = (await stored()).map((one) => ({
      view: viewOfStored(one),
      clear: async () => {
        await removeStored(folder, [one]);
        return true;
      },
    }));
    return [...own, ...theirs];
  };
  return {
    list: async (signal) => (await all(signal)).map(({ view }) => view),
    async clear({ dryRun, ...only }, signal) {
      const done = { caches: 0, bytes: 0, inUse: 0, dryRun };
      for (const { view, clear } of await all(signal)) {
        if (!matchesRequest(view, only)) continue;
        const isGone = !view.inUse && (dryRun || (await clear()));
        if (!isGone) done.inUse += 1;
        else done.caches += 1;
        if (isGone) done.bytes += view.bytes ?? 0;
      }
      if (!dryRun) await named.tidy();
      return done;
    },
    async tidy() {
      await named.tidy();
      const now = clock.wall();
      const isOver = ({ service, usedAt, isPart }: StoredCache) =>
        now - usedAt > (isPart ? halfAfter : services.includes(service) ? unusedAfter : unwantedAfter);
      await removeStored(folder, (await stored()).filter(isOver));
    },
    async makeRoom(signal) {
      await named.makeRoom(signal);
      for (const one of (await stored()).sort((a, b) => a.usedAt - b.usedAt)) {
        if (signal.aborted || (await named.lacking()) <= 0) return;
        await removeStored(folder, [one]);
      }
    },
  };
}

type Listed = Awaited<ReturnType<Caches['list']>>[number];

function viewOfNamed({ place, size, inUse }: Listed): CacheView {
  const { pool, agent, repository, cache } = place;
  const bytes = size !== null && Number.isFinite(size.bytes) ? size.bytes : null;
  const usedAt = size === null || size.used === 0 ? null : size.used;
  return { kind: 'named', of: pool, name: cache, agent, project: repository, trusted: agent !== null, bytes, usedAt, inUse };
}

function viewOfStored({ service, key, project, trust, bytes, usedAt, isPart }: StoredCache): CacheView {
  // A key of Actions ends in the version of its client.
  const name = key.split('\n')[0] ?? key;
  const trusted = !trust.startsWith(untrustedPrefix);
  return { kind: 'service', of: service, name, agent: null, project, trusted, bytes, usedAt, inUse: isPart };
}

function matchesRequest(view: CacheView, { of, name, project, untrusted }: Omit<ClearCachesRequest, 'dryRun'>): boolean {
  if (of !== undefined && view.of !== of) return false;
  if (name !== undefined && view.name !== name) return false;
  if (project !== undefined && view.project !== project) return false;
  return untrusted !== true || !view.trusted;
}
