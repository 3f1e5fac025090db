/**
 * What standbys must have been made from to be released (S11), kept current: recipe and image as the runtime sees them, and for
 * pools with devices the driver. Of an adopted standby nobody can say whether it is current before the GPUs were looked at, so
 * until then such a pool is paused rather than its standbys thrown away; a look that fails changes nothing (S6).
 */
import { hash } from 'node:crypto';
import type { Inventory } from '../gpu/inventory.ts';
import type { Log } from '../log.ts';
import type { Finding, Recipe, Runtime } from '../runtimes/runtime.ts';
import { type Pool, poolRecipe } from './pool.ts';
import type { PoolImages } from './pool-images.ts';
import type { Reconciler } from './reconciler.ts';

export type ImageAndPull = Pick<Recipe, 'image' | 'pull'>;

interface FingerprintParts {
  readonly log: Log;
  readonly reconciler: Reconciler;
  readonly nameOf: (key: string) => string;
  readonly images: PoolImages;
}

const reason = 'look';

export class Fingerprints {
  readonly #parts: FingerprintParts;
  readonly #abort = new AbortController();
  /** Version of the driver as it was last seen, empty where there is none that says it; null before that. */
  #driver: string | null = null;
  /** Counts what was seen to be another one: an answer about the one before it is worth nothing. */
  #epoch = 0;

  constructor(parts: FingerprintParts) {
    this.#parts = parts;
  }

  /** Pools with devices wait for the first look. To be called once all pools are there. */
  start(): void {
    this.#parts.images.changed = (name, before) => this.#renewed(name, before !== null);
    for (const pool of this.#parts.reconciler.pools) {
      if (needsDevices(pool)) pool.pause.hold(reason, 'the GPUs of this host have not been looked at yet');
      else this.#tell(pool);
    }
  }

  /** For `doctor`: which images were chosen or built, and why none was. */
  findings(): Finding[] {
    const { reconciler, images } = this.#parts;
    return reconciler.pools.flatMap(({ config, runtime }) => (runtime.capabilities.images ? images.findings(config.name) : []));
  }

  close(): void {
    this.#abort.abort();
  }

  /** What a sandbox of this pool was made from, with what its devices are driven by. */
  stamp(pool: Pool, fingerprint: string): string {
    const driven = needsDevices(pool) ? `${fingerprint} ${this.#driver ?? ''}` : fingerprint;
    if (pool.service.capabilities.binds === 'late') return driven;
    // What it was made known as, before it had a job.
    const known = JSON.stringify([pool.service.name, pool.config.queue, pool.config.tags]);
    return `${driven} ${hash('sha256', known).slice(0, 12)}`;
  }

  /** The image of a pool that has one chosen or built, if need be now; null for the recipe's own. @throws OnejobError */
  async imageOf({ config, runtime }: Pool, progress: (line: string) => void, signal: AbortSignal): Promise<ImageAndPull | null> {
    const { images } = this.#parts;
    return images.has(config.name) && runtime.capabilities.images ? images.need(config.name, progress, signal) : null;
  }

  /** The image that brings what this pool's GPUs need; null where there is none, or none is chosen yet. */
  shownImage(name: string): string | null {
    const pool = this.#parts.reconciler.pools.find((one) => one.config.name === name);
    if (pool === undefined || !pool.runtime.capabilities.images) return null;
    return this.#parts.images.base(name) ?? pool.config.recipe.image;
  }

  /** The image that is chosen or built for a pool that names none itself; null while there is none. */
  madeFrom(name: string): string | null {
    const chosen = this.#parts.images.of(name);
    return chosen !== null && 'image' in chosen ? chosen.image : null;
  }

  /** A new look at the host: whatever standbys depend on another driver or image from now on is known at once. */
  looked(inventory: Inventory): void {
    const { images, reconciler } = this.#parts;
    const driver = inventory.driver ?? (isSilent(inventory) ? '' : this.#driver);
    if (driver === null) return;
    const isOther = driver !== this.#driver;
    this.#driver = driver;
    const chosen = new Set(images.saw(inventory));
    if (isOther || chosen.size > 0) this.#epoch++;
    for (const pool of reconciler.pools) {
      if (!needsDevices(pool) || !(isOther || chosen.has(pool.config.name))) continue;
      pool.forget();
      if (chosen.has(pool.config.name)) this.#tell(pool);
      // What was wrong with the old choice need not be wrong with the new one.
      if (pool.backoff?.last.code === 'E_IMAGE_CHOICE') pool.backoff = null;
      void this.#relearn(pool);
    }
  }

  /** Asks the runtime for every pool of its own. @throws when it cannot be reached */
  async refresh(runtime: Runtime, signal: AbortSignal): Promise<void> {
    for (const pool of this.#parts.reconciler.pools) if (pool.runtime === runtime) await this.#learn(pool, signal);
  }

  /** A pool has another image, so what was made from the one before is no longer current; or its first one. */
  #renewed(name: string, hadOne: boolean): void {
    const { reconciler } = this.#parts;
    const pool = reconciler.pools.find((one) => one.config.name === name);
    if (pool === undefined) return;
    // What kept it from having one is over.
    if (pool.awaitsImage !== null) pool.backoff = null;
    if (!hadOne) {
      reconciler.replanAll(pool);
      return;
    }
    this.#epoch++;
    pool.forget();
    void this.#relearn(pool);
  }

  async #relearn(pool: Pool): Promise<void> {
    const { signal } = this.#abort;
    // A runtime that is away is asked again once it is back.
    await this.#learn(pool, signal).catch(() => {});
    if (!signal.aborted) this.#parts.reconciler.replanAll(pool);
  }

  async #learn(pool: Pool, signal: AbortSignal): Promise<void> {
    const { reconciler, nameOf } = this.#parts;
    if (needsDevices(pool) && this.#driver === null) return;
    const epoch = this.#epoch;
    if (pool.runtime.capabilities.images) await this.#parts.images.look(pool.config.name, signal);
    for (const { key } of reconciler.slots) {
      // One slot speaks for all where their recipes are the same.
      if (reconciler.poolOf(key) !== pool || !(pool.isPerSlot || key.endsWith('/1'))) continue;
      const recipe = this.#recipe(pool, nameOf(key));
      const fingerprint = recipe === null ? null : await pool.runtime.fingerprint(recipe, signal);
      signal.throwIfAborted();
      if (epoch !== this.#epoch) return;
      if (fingerprint === null) continue;
      pool.learn(key, this.stamp(pool, fingerprint));
      // Somebody has brought the image. One that is to be pulled each time is not had by being there.
      if (pool.awaitsImage !== null && pool.config.recipe.pull !== 'always') pool.backoff = null;
    }
    pool.pause.release(reason);
  }

  #tell({ config, runtime }: Pool): void {
    const pool = config.name;
    const chosen = this.#parts.images.of(pool);
    if (chosen === null || !runtime.capabilities.images) return;
    if ('image' in chosen) this.#parts.log.info('image chosen', { pool, image: chosen.image });
    else this.#parts.log.warn('no image', { pool, reason: chosen.problem });
  }

  /** null while no image is chosen for it, or none built. */
  #recipe({ config, runtime, service }: Pool, name: string): Recipe | null {
    const { images } = this.#parts;
    const recipe = poolRecipe({ config, service }, name);
    if (!images.has(config.name) || !runtime.capabilities.images) return recipe;
    const chosen = images.of(config.name);
    return chosen !== null && 'image' in chosen ? { ...recipe, image: chosen.image } : null;
  }
}

/** Whether there is no driver that could be said: of other vendors' cards it is not needed. */
function isSilent({ complete, devices }: Inventory): boolean {
  return complete || (devices.length > 0 && devices.every(({ vendor }) => vendor !== 'nvidia'));
}

function needsDevices({ config }: Pool): boolean {
  return config.devices.count !== 0;
}
