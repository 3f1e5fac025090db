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
import type { Origin } from '../loop/image-rollout.ts';
import { isOfImage, oldRecipe, type Pool, poolRecipe } from '../loop/pool.ts';
import type { Reconciler } from '../loop/reconciler.ts';
import type { PoolImages } from './pool-images.ts';

interface FingerprintParts {
  readonly log: Log;
  readonly reconciler: Reconciler;
  readonly nameOf: (key: string) => string;
  readonly images: PoolImages;
  /** What has proved itself, by pool, as earlier managers have stored it. Default: nothing. */
  readonly proved?: (pool: string) => Origin | null;
}

const reason = 'look';

export type Fingerprints = ReturnType<typeof createFingerprints>;

export function createFingerprints({ reconciler, images, nameOf, log, proved }: FingerprintParts) {
  const abort = new AbortController();
  /** Version of the driver at the last look, empty where there is none; null before that. */
  let lastDriver: string | null = null;
  /** Counts the changes of driver or image: an answer about an earlier one is ignored. */
  let thisEpoch = 0;

  /** Pauses pools with devices until the first look. To be called once all pools exist. */
  function start(): void {
    images.isKept = (id) => reconciler.pools.some(({ rollout }) => rollout.trusted?.id === id);
    images.changed = (name, before) => renewed(name, before !== null);
    for (const pool of reconciler.pools) {
      const trusted = pool.leaving ? null : (proved?.(pool.config.name) ?? null);
      if (trusted !== null) pool.rollout.restore(trusted);
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

  /** What a sandbox of this pool was made from, with its devices' driver. */
  function stamp(pool: Pool, fingerprint: string): string {
    const driven = needsDevices(pool) ? `${fingerprint} ${lastDriver ?? ''}` : fingerprint;
    if (pool.service.capabilities.binds === 'late') return driven;
    // Under what name and with which tags its agent was registered, before it had a job.
    const known = JSON.stringify([pool.service.name, pool.config.queue, pool.config.tags]);
    return `${driven} ${hash('sha256', known).slice(0, 12)}`;
  }

  /** The image of a pool that has one chosen or built, built now if needed; null for the recipe's own. @throws OnejobError */
  async function imageOf({ config, runtime }: Pool, progress: Progress, signal: AbortSignal) {
    return images.has(config.name) && runtime.capabilities.images ? images.need(config.name, progress, signal) : null;
  }

  /** The image that contains what this pool's GPUs need; null where there is none, or none is chosen yet. */
  function shownImage(name: string): string | null {
    const pool = reconciler.pools.find((one) => one.config.name === name);
    if (pool === undefined || !pool.runtime.capabilities.images) return null;
    return images.base(name) ?? pool.config.recipe.image;
  }

  /** The chosen or built image of a pool that names none; null while there is none. */
  function madeFrom(name: string): string | null {
    const chosen = images.of(name);
    return chosen !== null && 'image' in chosen ? chosen.image : null;
  }

  /** Takes a new look at the host: updates the fingerprints of pools with another driver or image. */
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
      // The cause of the old failure may be gone with the new choice.
      if (pool.backoff?.last.code === 'E_IMAGE_CHOICE') pool.backoff = null;
      void relearn(pool);
    }
  }

  /** Asks the runtime about each of its pools. @throws when it cannot be reached */
  async function refresh(runtime: Runtime, signal: AbortSignal): Promise<void> {
    for (const pool of reconciler.pools) if (pool.runtime === runtime) await learn(pool, signal);
  }

  /** A pool has its first image, or another one, so that earlier sandboxes are no longer current. */
  function renewed(name: string, hadOne: boolean): void {
    const pool = reconciler.pools.find((one) => one.config.name === name);
    if (pool === undefined) return;
    // It has an image now.
    if (pool.awaitsImage !== null) pool.backoff = null;
    if (!hadOne) {
      reconciler.replanAll(pool);
      return;
    }
    thisEpoch++;
    // What its slots keep while one of them tries the new image must not be forgotten.
    if (pool.runtime.imageId === undefined) pool.forget();
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
    const { runtime, rollout } = pool;
    if (runtime.capabilities.images) await images.look(pool.config.name, signal);
    const origin = pool.leaving ? null : await originNow(pool, signal);
    const { trusted } = rollout;
    const isOther = origin !== null && trusted !== null && origin.id !== trusted.id;
    const found: { readonly key: string; readonly fingerprint: string | null; readonly old: string | null }[] = [];
    for (const { key } of reconciler.slots) {
      // One slot is enough where all recipes are the same.
      if (!(pool.isPerSlot || key.endsWith('/1')) || reconciler.poolOf(key) !== pool) continue;
      // Without images and an agent to mount, it changes only with the driver, and is forgotten then.
      if (!runtime.capabilities.images && pool.service.equip === undefined && pool.knows(key)) continue;
      const name = nameOf(key);
      const recipe = recipeNow(pool, name);
      const fingerprint = recipe === null ? null : await runtime.fingerprint(recipe, signal);
      const isKept = trusted !== null && (isOther || rollout.isTrial || !sameEquipment(origin, trusted));
      const old = isKept ? await runtime.fingerprint(oldRecipe(pool, name, trusted), signal) : null;
      found.push({ key, fingerprint, old });
    }
    signal.throwIfAborted();
    if (epoch !== thisEpoch) return;
    if (origin !== null) wish(pool, origin);
    for (const { key, fingerprint, old } of found) {
      if (rollout.isUnproved && trusted !== null && rollout.trusted !== null)
        pool.learnOld(key, old === null ? null : stamp(pool, old));
      if (fingerprint === null) continue;
      pool.learn(key, stamp(pool, fingerprint));
      // Someone has brought the image. One that must be pulled each time is not usable by being there.
      if (pool.config.recipe.pull === 'always') continue;
      if (pool.awaitsImage !== null) pool.backoff = null;
      if (rollout.backoff !== null && isOfImage(rollout.backoff.last.code)) rollout.forgive();
    }
    if (origin !== null) reconciler.tryUpdate(pool);
    pool.pause.release(reason);
  }

  /** What sandboxes of a pool are to be made from now; null for a runtime without images, and while nothing is known that is new. */
  async function originNow(pool: Pool, signal: AbortSignal): Promise<Origin | null> {
    const { runtime, rollout } = pool;
    if (runtime.imageId === undefined) return null;
    const recipe = recipeNow(pool, pool.config.name);
    const id = recipe === null ? null : await runtime.imageId(recipe, signal);
    const origin = originOf(pool, recipe?.image ?? null, id);
    // Somebody has removed the image, which does not make it another one.
    const known = rollout.wanted ?? rollout.trusted;
    const isSame = known !== null && known.image === origin.image && sameEquipment(known, origin);
    return id === null && isSame ? { ...origin, id: known.id } : origin;
  }

  function originOf(pool: Pool, image: string | null, id: string | null): Origin {
    const { config, service } = pool;
    const recipe = expandRecipe(config, config.name);
    const equipment = service.equip?.(recipe, config.name).mounts.slice(recipe.mounts.length) ?? [];
    return { image, id, equipment, driver: needsDevices(pool) ? lastDriver : null };
  }

  function wish(pool: Pool, origin: Origin): void {
    const before = pool.rollout.wanted;
    pool.wish(origin);
    if (before === null || before.id === origin.id || origin.id === null || pool.rollout.trusted === null) return;
    const { image } = origin;
    log.info('another image', { pool: pool.config.name, image, id: origin.id });
  }

  /** A sandbox was made. Returns its fingerprint, which is the pool's now unless it is for a job that is different, or the old one. */
  function made(
    key: string,
    { agent, job, recipe }: { readonly agent: AgentId; readonly job: JobId | null; readonly recipe: Recipe },
    { fingerprint: plain, imageId }: Made,
  ): string {
    const pool = reconciler.poolOf(key);
    const fingerprint = stamp(pool, plain);
    const lane = reconciler.slot(key)?.standby;
    const isCold = job !== null && !(lane?.kind === 'preparing' && lane.agent === agent && lane.reserved?.cold === false);
    if (isCold || recipe.imageId !== undefined) return fingerprint;
    const isNew = imageId !== undefined && pool.runtime.imageId !== undefined && !pool.leaving;
    // A slot that has begun before another one was to try it first brings nothing new.
    if (isNew && pool.rollout.keepsOld(key)) return fingerprint;
    if (isNew) wish(pool, originOf(pool, recipe.image, imageId));
    pool.learn(key, fingerprint);
    if (isNew) reconciler.tryUpdate(pool, key);
    return fingerprint;
  }

  function tell({ config, runtime }: Pool): void {
    const pool = config.name;
    const chosen = images.of(pool);
    if (chosen === null || !runtime.capabilities.images) return;
    if ('image' in chosen) log.info('image chosen', { pool, image: chosen.image });
    else log.warn('no image fits', { pool, reason: chosen.problem });
  }

  /** null while no image is chosen or built for it. */
  function recipeNow({ config, runtime, service }: Pool, name: string): Recipe | null {
    const recipe = poolRecipe({ config, service }, name);
    if (!images.has(config.name) || !runtime.capabilities.images) return recipe;
    const image = madeFrom(config.name);
    return image === null ? null : { ...recipe, image };
  }

  return { start, findings, close, made, imageOf, shownImage, madeFrom, looked, refresh };
}

/** Whether no driver is to be expected: cards of other vendors do not need one. */
function isSilent({ complete, devices }: Inventory): boolean {
  return complete || (devices.length > 0 && devices.every(({ vendor }) => vendor !== 'nvidia'));
}

function sameEquipment(one: Origin | null, other: Origin): boolean {
  return one === null || JSON.stringify(one.equipment) === JSON.stringify(other.equipment);
}

function needsDevices({ config }: Pool): boolean {
  return config.devices.count !== 0;
}
