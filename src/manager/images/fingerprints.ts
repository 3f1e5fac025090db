/**
 * What standbys must have been made from to be released (S11), kept current: recipe and image as the runtime sees them, and for
 * pools with devices the driver. Of an adopted standby nobody can say whether it is current before the GPUs were looked at, so
 * until then such a pool is paused rather than its standbys thrown away; a look that fails changes nothing (S6).
 */
import { hash } from 'node:crypto';
import type { Finding } from '../../finding.ts';
import type { Inventory } from '../../gpu/inventory.ts';
import type { Log } from '../../log.ts';
import type { Recipe, Runtime } from '../../runtimes/runtime.ts';
import { type Pool, poolRecipe } from '../loop/pool.ts';
import type { Reconciler } from '../loop/reconciler.ts';
import type { PoolImages } from './pool-images.ts';

export type ImageAndPull = Pick<Recipe, 'image' | 'pull'>;

interface FingerprintParts {
  readonly log: Log;
  readonly reconciler: Reconciler;
  readonly nameOf: (key: string) => string;
  readonly images: PoolImages;
}

const reason = 'look';

export type Fingerprints = ReturnType<typeof createFingerprints>;

export function createFingerprints({ reconciler, images, nameOf, log }: FingerprintParts) {
  const abort = new AbortController();
  /** Version of the driver as it was last seen, empty where there is none that says it; null before that. */
  let lastDriver: string | null = null;
  /** Counts what was seen to be another one: an answer about the one before it is worth nothing. */
  let thisEpoch = 0;

  /** Pools with devices wait for the first look. To be called once all pools are there. */
  function start(): void {
    images.changed = (name, before) => renewed(name, before !== null);
    for (const pool of reconciler.pools) {
      if (needsDevices(pool)) pool.pause.hold(reason, 'the GPUs of this host have not been checked yet');
      else tell(pool);
    }
  }

  /** For `doctor`: which images were chosen or built, and why none was. */
  function findings(): Finding[] {
    return reconciler.pools.flatMap(({ config, runtime }) => (runtime.capabilities.images ? images.findings(config.name) : []));
  }

  function close(): void {
    abort.abort();
  }

  /** What a sandbox of this pool was made from, with what its devices are driven by. */
  function stamp(pool: Pool, fingerprint: string): string {
    const driven = needsDevices(pool) ? `${fingerprint} ${lastDriver ?? ''}` : fingerprint;
    if (pool.service.capabilities.binds === 'late') return driven;
    // What it was made known as, before it had a job.
    const known = JSON.stringify([pool.service.name, pool.config.queue, pool.config.tags]);
    return `${driven} ${hash('sha256', known).slice(0, 12)}`;
  }

  /** The image of a pool that has one chosen or built, if need be now; null for the recipe's own. @throws OnejobError */
  async function imageOf(
    { config, runtime }: Pool,
    progress: (line: string) => void,
    signal: AbortSignal,
  ): Promise<ImageAndPull | null> {
    return images.has(config.name) && runtime.capabilities.images ? images.need(config.name, progress, signal) : null;
  }

  /** The image that brings what this pool's GPUs need; null where there is none, or none is chosen yet. */
  function shownImage(name: string): string | null {
    const pool = reconciler.pools.find((one) => one.config.name === name);
    if (pool === undefined || !pool.runtime.capabilities.images) return null;
    return images.base(name) ?? pool.config.recipe.image;
  }

  /** The image that is chosen or built for a pool that names none itself; null while there is none. */
  function madeFrom(name: string): string | null {
    const chosen = images.of(name);
    return chosen !== null && 'image' in chosen ? chosen.image : null;
  }

  /** A new look at the host: whatever standbys depend on another driver or image from now on is known at once. */
  function looked(inventory: Inventory): void {
    const driver = inventory.driver ?? (isSilent(inventory) ? '' : lastDriver);
    if (driver === null) return;
    const isOther = driver !== lastDriver;
    lastDriver = driver;
    const chosen = new Set(images.saw(inventory));
    if (isOther || chosen.size > 0) thisEpoch++;
    for (const pool of reconciler.pools) {
      if (!needsDevices(pool) || !(isOther || chosen.has(pool.config.name))) continue;
      pool.forget();
      if (chosen.has(pool.config.name)) tell(pool);
      // What was wrong with the old choice need not be wrong with the new one.
      if (pool.backoff?.last.code === 'E_IMAGE_CHOICE') pool.backoff = null;
      void relearn(pool);
    }
  }

  /** Asks the runtime for every pool of its own. @throws when it cannot be reached */
  async function refresh(runtime: Runtime, signal: AbortSignal): Promise<void> {
    for (const pool of reconciler.pools) if (pool.runtime === runtime) await learn(pool, signal);
  }

  /** A pool has another image, so what was made from the one before is no longer current; or its first one. */
  function renewed(name: string, hadOne: boolean): void {
    const pool = reconciler.pools.find((one) => one.config.name === name);
    if (pool === undefined) return;
    // What kept it from having one is over.
    if (pool.awaitsImage !== null) pool.backoff = null;
    if (!hadOne) {
      reconciler.replanAll(pool);
      return;
    }
    thisEpoch++;
    pool.forget();
    void relearn(pool);
  }

  async function relearn(pool: Pool): Promise<void> {
    const { signal } = abort;
    // A runtime that is away is asked again once it is back.
    await learn(pool, signal).catch(() => {});
    if (!signal.aborted) reconciler.replanAll(pool);
  }

  async function learn(pool: Pool, signal: AbortSignal): Promise<void> {
    if (needsDevices(pool) && lastDriver === null) return;
    const epoch = thisEpoch;
    if (pool.runtime.capabilities.images) await images.look(pool.config.name, signal);
    for (const { key } of reconciler.slots) {
      // One slot speaks for all where their recipes are the same.
      if (!(pool.isPerSlot || key.endsWith('/1')) || reconciler.poolOf(key) !== pool) continue;
      const recipe = recipeNow(pool, nameOf(key));
      const fingerprint = recipe === null ? null : await pool.runtime.fingerprint(recipe, signal);
      signal.throwIfAborted();
      if (epoch !== thisEpoch) return;
      if (fingerprint === null) continue;
      pool.learn(key, stamp(pool, fingerprint));
      // Somebody has brought the image. One that is to be pulled each time is not had by being there.
      if (pool.awaitsImage !== null && pool.config.recipe.pull !== 'always') pool.backoff = null;
    }
    pool.pause.release(reason);
  }

  function tell({ config, runtime }: Pool): void {
    const pool = config.name;
    const chosen = images.of(pool);
    if (chosen === null || !runtime.capabilities.images) return;
    if ('image' in chosen) log.info('image chosen', { pool, image: chosen.image });
    else log.warn('no image fits', { pool, reason: chosen.problem });
  }

  /** null while no image is chosen for it, or none built. */
  function recipeNow({ config, runtime, service }: Pool, name: string): Recipe | null {
    const recipe = poolRecipe({ config, service }, name);
    if (!images.has(config.name) || !runtime.capabilities.images) return recipe;
    const chosen = images.of(config.name);
    return chosen !== null && 'image' in chosen ? { ...recipe, image: chosen.image } : null;
  }

  return { start, findings, close, stamp, imageOf, shownImage, madeFrom, looked, refresh };
}

/** Whether there is no driver that could be said: of other vendors' cards it is not needed. */
function isSilent({ complete, devices }: Inventory): boolean {
  return complete || (devices.length > 0 && devices.every(({ vendor }) => vendor !== 'nvidia'));
}

function needsDevices({ config }: Pool): boolean {
  return config.devices.count !== 0;
}
