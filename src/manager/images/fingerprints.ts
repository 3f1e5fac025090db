/**
 * Fingerprints that a standby must match to be released (S11): recipe and image as the runtime sees them, and for pools with
 * devices the driver. Before the GPUs were checked it is unknown whether an adopted standby is current, so until then such a pool
 * is paused rather than its standbys removed; a look that fails changes nothing (S6).
 */
import { hash } from 'node:crypto';
import type { Progress } from '../../base/abortable.ts';
import type { Finding } from '../../base/finding.ts';
import type { Log } from '../../base/log.ts';
import type { AgentId, JobId } from '../../core/slot.ts';
import type { Inventory } from '../../gpu/inventory.ts';
import type { Made, Recipe, Runtime } from '../../ports/runtime.ts';
import { expandRecipe } from '../../schema/template.ts';
import type { Origin, SlotLook } from '../loop/image-rollout.ts';
import { isOfImage, oldRecipe, type Pool, poolRecipe } from '../loop/pool.ts';
import type { Reconciler } from '../loop/reconciler.ts';
import { engineImage, type PoolImages } from './pool-images.ts';

interface FingerprintParts {
  readonly log: Log;
  readonly reconciler: Reconciler;
  readonly nameOf: (key: string) => string;
  readonly images: PoolImages;
  /** What has proved itself, by pool, as earlier managers have stored it. Default: nothing. */
  readonly proved?: (pool: string) => Origin | null;
}

const reason = 'look';

export class Fingerprints {
  readonly #parts: FingerprintParts;
  readonly #abort = new AbortController();
  /** Version of the driver at the last look, empty where there is none; null before that. */
  #driver: string | null = null;
  /** Counts the changes of driver or image: an answer about an earlier one is ignored. */
  #epoch = 0;

  constructor(parts: FingerprintParts) {
    this.#parts = parts;
  }

  /** Pauses pools with devices until the first look. To be called once all pools exist. */
  start(): void {
    const { images, reconciler, proved } = this.#parts;
    images.isKept = (id) => reconciler.pools.some(({ rollout }) => rollout.trusted?.id === id);
    images.changed = (name, before) => this.#renewed(name, before !== null);
    for (const pool of reconciler.pools) {
      const trusted = pool.leaving ? null : (proved?.(pool.config.name) ?? null);
      if (trusted !== null) pool.rollout.restore(trusted);
      if (needsDevices(pool)) pool.pause.hold(reason, 'the GPUs of this host have not been checked yet');
      else this.#tell(pool);
    }
  }

  close(): void {
    this.#abort.abort();
  }

  /** For `doctor`: which images were chosen or built, and why none was. */
  findings(): Finding[] {
    const { images, reconciler } = this.#parts;
    const own = reconciler.pools.flatMap(({ config, runtime }) =>
      runtime.capabilities.images ? images.findings(config.name) : [],
    );
    const isWanted = reconciler.pools.some(({ config }) => config.recipe.containers !== undefined);
    return isWanted ? [...own, ...images.findings(engineImage)] : own;
  }

  /** The image of a pool that has one chosen or built, built now if needed; null for the recipe's own. @throws OnejobError */
  async imageOf(
    { config, runtime }: Pool,
    progress: Progress,
    signal: AbortSignal,
  ): Promise<Pick<Recipe, 'image' | 'pull'> | null> {
    const { images } = this.#parts;
    return images.has(config.name) && runtime.capabilities.images ? images.need(config.name, progress, signal) : null;
  }

  /** The recipe with the image of its engine, which is built now if needed. @throws OnejobError */
  async withEngine(recipe: Recipe, progress: Progress, signal: AbortSignal): Promise<Recipe> {
    if (recipe.containers === undefined) return recipe;
    const { image } = await this.#parts.images.need(engineImage, progress, signal);
    return { ...recipe, containers: { ...recipe.containers, image } };
  }

  /** The image that contains what this pool's GPUs need; null where there is none, or none is chosen yet. */
  shownImage(name: string): string | null {
    const { images, reconciler } = this.#parts;
    const pool = reconciler.pools.find((one) => one.config.name === name);
    if (pool === undefined || !pool.runtime.capabilities.images) return null;
    return images.base(name) ?? pool.config.recipe.image;
  }

  /** The chosen or built image of a pool that names none; null while there is none. */
  madeFrom(name: string): string | null {
    const chosen = this.#parts.images.of(name);
    return chosen !== null && 'image' in chosen ? chosen.image : null;
  }

  /** Takes a new look at the host: updates the fingerprints of pools with another driver or image. */
  looked(inventory: Inventory): void {
    const driver = inventory.driver ?? (isSilent(inventory) ? '' : this.#driver);
    if (driver === null) return;
    const isOther = driver !== this.#driver;
    this.#driver = driver;
    const chosen = new Set(this.#parts.images.saw(inventory));
    if (isOther || chosen.size > 0) this.#epoch++;
    for (const pool of this.#parts.reconciler.pools) {
      if (!needsDevices(pool) || !(isOther || chosen.has(pool.config.name))) continue;
      pool.rollout.forget();
      if (chosen.has(pool.config.name)) this.#tell(pool);
      // The cause of the old failure may be gone with the new choice.
      if (pool.backoff?.last.code === 'E_IMAGE_CHOICE') pool.backoff = null;
      void this.#relearn(pool);
    }
  }

  /** Asks the runtime about each of its pools. @throws when it cannot be reached */
  async refresh(runtime: Runtime, signal: AbortSignal): Promise<void> {
    for (const pool of this.#parts.reconciler.pools) if (pool.runtime === runtime) await this.#learn(pool, signal);
  }

  /** A sandbox was made. Returns its fingerprint, which is the pool's now unless it is for a job that is different, or the old one. */
  made(
    key: string,
    { agent, job, recipe }: { readonly agent: AgentId; readonly job: JobId | null; readonly recipe: Recipe },
    { fingerprint: plain, imageId }: Made,
  ): string {
    const { reconciler } = this.#parts;
    const pool = reconciler.poolOf(key);
    const fingerprint = this.#stamp(pool, plain);
    const lane = reconciler.slot(key)?.standby;
    const isCold = job !== null && !(lane?.kind === 'preparing' && lane.agent === agent && lane.reserved?.cold === false);
    if (isCold || recipe.imageId !== undefined) return fingerprint;
    const isKnown = imageId !== undefined && pool.runtime.imageId !== undefined && !pool.leaving;
    pool.rollout.made(key, fingerprint, isKnown ? this.#originOf(pool, recipe.image, imageId) : null);
    return fingerprint;
  }

  /** What a sandbox of this pool was made from, with its devices' driver. */
  #stamp(pool: Pool, fingerprint: string): string {
    const driven = needsDevices(pool) ? `${fingerprint} ${this.#driver ?? ''}` : fingerprint;
    if (pool.service.capabilities.binds === 'late') return driven;
    // Under what name and with which tags its agent was registered, before it had a job.
    const known = JSON.stringify([pool.service.name, pool.config.queue, pool.config.tags]);
    return `${driven} ${hash('sha256', known).slice(0, 12)}`;
  }

  /** A pool has its first image, or another one, so that earlier sandboxes are no longer current. */
  #renewed(name: string, hadOne: boolean): void {
    const { reconciler } = this.#parts;
    if (name === engineImage) {
      this.#epoch++;
      for (const each of reconciler.pools) if (each.config.recipe.containers !== undefined) void this.#relearn(each);
      return;
    }
    const pool = reconciler.pools.find((one) => one.config.name === name);
    if (pool === undefined) return;
    // It has an image now.
    if (pool.awaitsImage !== null) pool.backoff = null;
    if (!hadOne) {
      reconciler.replanAll(pool);
      return;
    }
    this.#epoch++;
    // What its slots keep while one of them tries the new image must not be forgotten.
    if (pool.runtime.imageId === undefined) pool.rollout.forget();
    void this.#relearn(pool);
  }

  async #relearn(pool: Pool): Promise<void> {
    const { signal } = this.#abort;
    // A runtime that is away is asked again once it is back.
    await this.#learn(pool, signal).catch(() => {});
    if (!signal.aborted) this.#parts.reconciler.replanAll(pool);
  }

  async #learn(pool: Pool, signal: AbortSignal): Promise<void> {
    if (needsDevices(pool) && this.#driver === null) return;
    const epoch = this.#epoch;
    const { runtime, rollout, config } = pool;
    if (runtime.capabilities.images) await this.#parts.images.look(config.name, signal);
    if (config.recipe.containers !== undefined) await this.#parts.images.look(engineImage, signal);
    const origin = pool.leaving ? null : await this.#originNow(pool, signal);
    const found = await this.#lookAt(pool, origin, signal);
    signal.throwIfAborted();
    if (epoch !== this.#epoch) return;
    // Someone has brought the image. One that must be pulled each time is not usable by being there.
    if (config.recipe.pull !== 'always' && found.some(({ fingerprint }) => fingerprint !== null)) {
      if (pool.awaitsImage !== null) pool.backoff = null;
      if (rollout.backoff !== null && isOfImage(rollout.backoff.last.code)) rollout.forgive();
    }
    rollout.looked(origin, found);
    pool.pause.release(reason);
  }

  /** Asks the runtime what sandboxes of the pool's slots would be made from. */
  async #lookAt(pool: Pool, origin: Origin | null, signal: AbortSignal): Promise<SlotLook[]> {
    const { reconciler, nameOf } = this.#parts;
    const { runtime, rollout } = pool;
    const { trusted } = rollout;
    const stamped = async (recipe: Recipe | null): Promise<string | null> => {
      const whole = recipe === null ? null : this.#withKnownEngine(recipe);
      const fingerprint = whole === null ? null : await runtime.fingerprint(whole, signal);
      return fingerprint === null ? null : this.#stamp(pool, fingerprint);
    };
    const found: SlotLook[] = [];
    for (const { key } of reconciler.slots) {
      // One slot is enough where all recipes are the same.
      if (!(pool.isPerSlot || key.endsWith('/1')) || reconciler.poolOf(key) !== pool) continue;
      // Without images and an agent to mount, it changes only with the driver, and is forgotten then.
      if (!runtime.capabilities.images && pool.service.equip === undefined && rollout.knows(key)) continue;
      const name = nameOf(key);
      const fingerprint = await stamped(this.#recipeNow(pool, name));
      if (trusted === null) found.push({ key, fingerprint, old: undefined });
      else {
        const isKept = rollout.isTrial || (origin !== null && !isSame(origin, trusted));
        found.push({ key, fingerprint, old: await stamped(isKept ? oldRecipe(pool, name, trusted) : null) });
      }
    }
    return found;
  }

  /** What sandboxes of a pool are to be made from now; null for a runtime without images, and while nothing is known that is new. */
  async #originNow(pool: Pool, signal: AbortSignal): Promise<Origin | null> {
    const { runtime, rollout } = pool;
    if (runtime.imageId === undefined) return null;
    const recipe = this.#recipeNow(pool, pool.config.name);
    const id = recipe === null ? null : await runtime.imageId(recipe, signal);
    const origin = this.#originOf(pool, recipe?.image ?? null, id);
    // Somebody has removed the image, which does not make it another one.
    const known = rollout.wanted ?? rollout.trusted;
    const isKnown = known !== null && known.image === origin.image && sameEquipment(known, origin);
    return id === null && isKnown ? { ...origin, id: known.id } : origin;
  }

  #originOf(pool: Pool, image: string | null, id: string | null): Origin {
    const { config, service } = pool;
    const recipe = expandRecipe(config, config.name);
    const equipment = service.equip?.(recipe, config.name).mounts.slice(recipe.mounts.length) ?? [];
    return { image, id, equipment, driver: needsDevices(pool) ? this.#driver : null };
  }

  #tell({ config, runtime }: Pool): void {
    const { images, log } = this.#parts;
    const pool = config.name;
    const chosen = images.of(pool);
    if (chosen === null || !runtime.capabilities.images) return;
    if ('image' in chosen) log.info('image chosen', { pool, image: chosen.image });
    else log.warn('no image fits', { pool, reason: chosen.problem });
  }

  /** null while the image of its engine is not known. */
  #withKnownEngine(recipe: Recipe): Recipe | null {
    if (recipe.containers === undefined) return recipe;
    const image = this.madeFrom(engineImage);
    return image === null ? null : { ...recipe, containers: { ...recipe.containers, image } };
  }

  /** null while no image is chosen or built for it. */
  #recipeNow({ config, runtime, service }: Pool, name: string): Recipe | null {
    const recipe = poolRecipe({ config, service }, name);
    if (!this.#parts.images.has(config.name) || !runtime.capabilities.images) return recipe;
    const image = this.madeFrom(config.name);
    return image === null ? null : { ...recipe, image };
  }
}

/** Whether no driver is to be expected: cards of other vendors do not need one. */
function isSilent({ complete, devices }: Inventory): boolean {
  return complete || (devices.length > 0 && devices.every(({ vendor }) => vendor !== 'nvidia'));
}

function sameEquipment(one: Origin, other: Origin): boolean {
  return JSON.stringify(one.equipment) === JSON.stringify(other.equipment);
}

function isSame(one: Origin, other: Origin): boolean {
  return one.id === other.id && sameEquipment(one, other);
}

function needsDevices({ config }: Pool): boolean {
  return config.devices.count !== 0;
}
