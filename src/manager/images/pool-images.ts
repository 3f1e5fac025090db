/**
 * The images of pools that name none: chosen (`image: auto`), built (a recipe), or both. What has been built stays in use until
 * its successor is there, so neither an outage of a CI service nor a build that fails takes a pool's image away (S6, S9).
 */

import { join } from 'node:path';
import { createShared, type Progress } from '../../abortable.ts';
import { toErrorView } from '../../api/http-errors.ts';
import type { ImageService } from '../../api/manager.ts';
import type { ImageOutcome } from '../../api/schema.ts';
import type { AgentPackage, CiService } from '../../ci/ci-service.ts';
import { serviceType } from '../../ci/types.ts';
import type { Config, ImageRecipe, PoolConfig } from '../../config/config.ts';
import type { Environment } from '../../config/environment.ts';
import { type Clock, every } from '../../core/clock.ts';
import { OnejobError, toFailure } from '../../errors.ts';
import type { Finding } from '../../finding.ts';
import type { Inventory } from '../../gpu/inventory.ts';
import type { Built, ImageBuilder, ImageWish } from '../../images/builder.ts';
import { hasOwnLayer, imageLabels } from '../../images/plan.ts';
import type { Log } from '../../log.ts';
import type { Recipe } from '../../runtimes/runtime.ts';
import type { AutoImages, ImageOf } from './auto-image.ts';

type ImagePool = Pick<PoolConfig, 'name' | 'service' | 'recipe'> & { readonly imageRecipe: ImageRecipe };

export interface PoolImagesParts {
  readonly pools: readonly PoolConfig[];
  readonly log: Log;
  /** null where no pool wants its image chosen. */
  readonly auto: AutoImages | null;
  /** Type of a service by its name. */
  readonly typeOf: (service: string) => string;
  /** Called at the first need of something built. */
  readonly builder: () => Promise<ImageBuilder>;
  /** The agent that images for a service must have. */
  readonly agentPackage: (service: string, platform: string, signal: AbortSignal) => Promise<AgentPackage | null>;
}

/** What became of one pool's image when it was looked whether there is a newer one. */
interface Refreshed {
  readonly pool: string;
  readonly before: Built | null;
  /** As before when it failed. */
  readonly after: Built | null;
  /** Why there is none that is newer; null when all went well. */
  readonly problem: OnejobError | null;
}

export class PoolImages {
  readonly #parts: PoolImagesParts;
  readonly #pools: ReadonlyMap<string, ImagePool>;
  readonly #built = new Map<string, Built>();
  /** Why the last look for a newer image failed. */
  readonly #problems = new Map<string, string>();
  readonly #getting = createShared<Built>();
  readonly #abort = new AbortController();
  #builder: Promise<ImageBuilder> | null = null;
  /** Told of a pool that has another image from now on, or its first one. */
  changed: (pool: string, before: Built | null) => void = () => {};

  constructor(parts: PoolImagesParts) {
    this.#parts = parts;
    const own = parts.pools.flatMap(({ imageRecipe, ...pool }) =>
      imageRecipe === null || pool.runtime === 'process' ? [] : [{ ...pool, imageRecipe }],
    );
    this.#pools = new Map(own.map((pool) => [pool.name, pool]));
  }

  /** Names of the pools whose images are built. */
  get names(): readonly string[] {
    return [...this.#pools.values()].filter((pool) => !this.#isFinished(pool)).map(({ name }) => name);
  }

  /** Whether this pool names no finished image. */
  has(pool: string): boolean {
    return this.#pools.has(pool);
  }

  /** The image as it is known now; null while it is not, and for a pool that names its own. */
  of(name: string): ImageOf | null {
    const pool = this.#pools.get(name);
    if (pool === undefined) return null;
    const { base } = pool.imageRecipe;
    const chosen = base === 'auto' ? (this.#parts.auto?.of(name) ?? null) : base === null ? null : { image: base };
    if (this.#isFinished(pool) || (chosen !== null && 'problem' in chosen)) return chosen;
    const built = this.#built.get(name);
    return built === undefined ? null : { image: built.reference };
  }

  /** What is installed for the GPU's sake: the base, whatever is built on it. */
  base(name: string): string | null {
    const base = this.#pools.get(name)?.imageRecipe.base ?? null;
    if (base !== 'auto') return base;
    const chosen = this.#parts.auto?.of(name) ?? null;
    return chosen !== null && 'image' in chosen ? chosen.image : null;
  }

  /** The built image that is in use. */
  built(name: string): Built | null {
    return this.#built.get(name) ?? null;
  }

  /** Finds what was built before. Asks the Engine only where `of` says nothing yet; builds nothing. */
  async look(name: string, signal: AbortSignal): Promise<void> {
    const pool = this.#pools.get(name);
    if (pool === undefined || this.#isFinished(pool) || this.#built.has(name)) return;
    const base = this.base(name);
    if (base === null && pool.imageRecipe.base !== null) return;
    const found = await (await this.open()).find(this.#wish(pool), signal);
    // It may have been built, or another base chosen, meanwhile.
    if (found !== null && !this.#built.has(name) && this.base(name) === base) this.#built.set(name, found);
  }

  /**
   * The image for a sandbox that is to be made, built if it is not there.
   * @throws OnejobError E_IMAGE_CHOICE, E_IMAGE_BUILD, E_AGENT_PACKAGE, and those of Engine and CI service
   */
  async need(name: string, progress: Progress, signal: AbortSignal): Promise<Pick<Recipe, 'image' | 'pull'>> {
    const pool = this.#pools.get(name);
    if (pool === undefined) throw new OnejobError('E_BUG', `Pool ${name} names its image itself.`);
    const { base } = pool.imageRecipe;
    if (this.#isFinished(pool)) {
      const image = base === 'auto' ? this.#chosen(name) : base;
      return { image, pull: pool.recipe.pull };
    }
    const builder = await this.open();
    await this.look(name, signal);
    const known = this.#built.get(name);
    const built =
      known !== undefined && (await builder.isThere(known, signal)) ? known : await this.#get(pool, builder, progress, signal);
    return { image: built.reference, pull: built.pull };
  }

  /** A new look at the host. Returns the names of the pools that have another image now, or another reason for none. */
  saw(inventory: Inventory): string[] {
    const others = this.#parts.auto?.saw(inventory) ?? [];
    for (const name of others) this.#built.delete(name);
    return others;
  }

  /** For `doctor`. */
  findings(name: string): Finding[] {
    const pool = this.#pools.get(name);
    if (pool === undefined) return [];
    const chosen = pool.imageRecipe.base === 'auto' ? (this.#parts.auto?.findings(name) ?? []) : [];
    if (this.#isFinished(pool) || chosen.some(({ level }) => level === 'error')) return chosen;
    const subject = `pool ${name}`;
    const built = this.#built.get(name);
    const version = built?.agentVersion ?? null;
    const on = `built on ${this.base(name) ?? 'its Dockerfile'}${version === null ? '' : `, with agent ${version}`}`;
    const message = built === undefined ? 'Its image is built when it is first needed.' : `Its image is ${built.reference}, ${on}.`;
    const problem = this.#problems.get(name);
    const stale: Finding = {
      ...{ level: 'warning', subject, message: `Failed to build a newer image: ${problem}` },
      hint: 'Agents continue to use the current image; try "onejob image refresh".',
    };
    return [{ level: 'ok', subject, message, hint: null }, ...(problem === undefined ? [] : [stale])];
  }

  /**
   * Makes each pool's image as things are now: with the agent that its service hands out, on its base as it is. One that fails
   * leaves what there is. Never rejects but when `signal` aborts.
   */
  async refresh(
    names: readonly string[],
    progress: (pool: string, line: string) => void,
    signal: AbortSignal,
  ): Promise<Refreshed[]> {
    const done: Refreshed[] = [];
    for (const name of names) {
      const pool = this.#pools.get(name);
      if (pool === undefined || this.#isFinished(pool)) continue;
      const before = this.#built.get(name) ?? null;
      try {
        const after = await this.#get(pool, await this.open(), (line) => progress(name, line), signal);
        this.#problems.delete(name);
        done.push({ pool: name, before, after, problem: null });
      } catch (error) {
        signal.throwIfAborted();
        const problem = error instanceof OnejobError ? error : new OnejobError('E_BUG', toFailure(error).message, { cause: error });
        this.#problems.set(name, problem.message);
        done.push({ pool: name, before, after: before, problem });
      }
    }
    return done;
  }

  /** What each pool uses, also where nothing has asked for it since the start. */
  async used(signal: AbortSignal): Promise<ReadonlyMap<string, Built>> {
    for (const name of this.names) await this.look(name, signal);
    return this.#built;
  }

  /** Removes the images of this installation that no pool uses and no container was made from; their names. */
  async prune(signal: AbortSignal): Promise<string[]> {
    const ids = new Set([...(await this.used(signal)).values()].map(({ id }) => id));
    // Which image such a pool uses cannot be said before the GPUs were looked at, so neither which ones are not used.
    if (this.names.some((name) => this.#pools.get(name)?.imageRecipe.base === 'auto' && this.base(name) === null)) return [];
    const gone = await (await this.open()).prune((image) => ids.has(image.id), signal);
    if (gone.length > 0) this.#parts.log.info('images removed', { images: gone });
    return gone;
  }

  /** The builder, for what is not about one pool. */
  open(): Promise<ImageBuilder> {
    this.#builder ??= this.#parts.builder().catch((error: unknown) => {
      this.#builder = null;
      throw error;
    });
    return this.#builder;
  }

  async close(): Promise<void> {
    this.#abort.abort();
    const opened = await this.#builder?.catch(() => null);
    opened?.close();
  }

  async #get(pool: ImagePool, builder: ImageBuilder, progress: Progress, signal: AbortSignal): Promise<Built> {
    const { name } = pool;
    const wish = this.#wish(pool);
    return this.#getting(
      `${name} ${wish.base}`,
      async (say, until) => {
        const built = await builder.get(wish, say, until);
        if (this.base(name) !== wish.base) return built;
        const before = this.#built.get(name);
        this.#built.set(name, built);
        if (before?.id === built.id) return built;
        const { reference: image, agentVersion: agent } = built;
        this.#parts.log.info(before === undefined ? 'image ready' : 'image renewed', { pool: name, image, agent });
        this.changed(name, before ?? null);
        return built;
      },
      progress,
      AbortSignal.any([signal, this.#abort.signal]),
    );
  }

  #wish({ name, service, recipe, imageRecipe }: ImagePool): ImageWish {
    const { base, packages, dockerfile } = imageRecipe;
    return {
      type: this.#parts.typeOf(service),
      base: base === 'auto' ? this.#chosen(name) : base,
      packages,
      dockerfile,
      pull: recipe.pull,
      agent: (platform, signal) => this.#parts.agentPackage(service, platform, signal),
    };
  }

  #chosen(name: string): string {
    const { auto } = this.#parts;
    if (auto !== null) return auto.need(name);
    throw new OnejobError('E_IMAGE_CHOICE', `Cannot choose an image for pool ${name} on this host.`);
  }

  /** Whether nothing has to be put on what it names or what is chosen for it. */
  #isFinished({ service, imageRecipe: { base, packages, dockerfile } }: ImagePool): boolean {
    return base !== null && packages.length === 0 && dockerfile === null && !hasOwnLayer(this.#parts.typeOf(service));
  }
}

interface OpenImagesParts {
  readonly config: Pick<Config, 'pools' | 'services'>;
  readonly env: Pick<Environment, 'docker' | 'hostRoot'>;
  /** Of the state directory. */
  readonly store: { readonly dir: string; readonly owner: string };
  readonly services: ReadonlyMap<string, CiService>;
  readonly log: Log;
}

/** The images of a config's pools, for one manager or one command. Nothing is loaded or asked before it is needed. */
export async function openPoolImages({ config, env, store, services, log }: OpenImagesParts): Promise<PoolImages> {
  const { pools } = config;
  const wantsChoice = pools.some((pool) => pool.imageRecipe?.base === 'auto');
  const auto = wantsChoice ? await (await import('./auto-image.ts')).openAutoImages(config, env.hostRoot) : null;
  return new PoolImages({
    pools,
    log,
    auto,
    typeOf: (service) => serviceType(config.services.find((one) => one.name === service)?.type).type,
    builder: async () => {
      const { createImageBuilder } = await import('../../images/builder.ts');
      const warn = (text: string, fields: Record<string, unknown>) => log.warn(text, fields);
      return createImageBuilder({ environment: env.docker, owner: store.owner, packages: join(store.dir, 'packages'), warn });
    },
    agentPackage: async (service, platform, signal) => (await services.get(service)?.agentPackage?.(platform, signal)) ?? null,
  });
}

const day = 24 * 60 * 60_000;
/** How long after its start a manager looks first, in ms: not while everything begins. */
const firstLook = 60_000;

/**
 * Looks for newer agents soon, and every day until the answer is called, so that images do not grow old; removes what the new ones
 * replace. Only images that are in use are renewed.
 */
export function renewImages(images: PoolImages, { clock, log }: { readonly clock: Clock; readonly log: Log }): () => void {
  if (images.names.length === 0) return () => {};
  const closing = new AbortController();
  const { signal } = closing;
  const look = () => renew(images, log, signal);
  const failed = (error: unknown): void => {
    if (!signal.aborted) log.warn('failed to check images', { reason: toFailure(error).message });
  };
  let cancel = clock.after(firstLook, () => {
    void look().catch(failed);
    cancel = every(clock, day, look, failed);
  });
  return () => {
    closing.abort();
    cancel();
  };
}

async function renew(images: PoolImages, log: Log, signal: AbortSignal): Promise<void> {
  const used = images.names.filter((name) => images.built(name) !== null);
  if (used.length === 0) return;
  const done = await images.refresh(used, () => {}, signal);
  for (const { pool, problem } of done) {
    if (problem !== null) log.warn('failed to renew image', { pool, reason: toFailure(problem).message });
  }
  const builder = await images.open();
  // Those of the same recipes; what else is there may be another config's.
  const ids = new Set(used.map((name) => images.built(name)?.id));
  const recipes = new Set((await builder.list(signal)).filter(({ id }) => ids.has(id)).map(builder.recipeOf));
  const gone = await builder.prune((image) => ids.has(image.id) || !recipes.has(builder.recipeOf(image)), signal);
  if (gone.length > 0) log.info('old images removed', { images: gone });
  // Which packages are in use is only known of pools that could be looked at.
  if (done.every(({ problem }) => problem === null)) await builder.prunePackages();
}

/** Answers what is asked about images that onejob builds, by the images of pools and what is on the Engine. */
export function createImageDesk(images: PoolImages, pools: readonly Pick<PoolConfig, 'name' | 'recipe'>[]): ImageService {
  const chosen = (asked: readonly string[]): readonly string[] => {
    const unknown = asked.find((name) => !pools.some((pool) => pool.name === name));
    if (unknown === undefined) return asked.length === 0 ? images.names : asked;
    const known = pools.map((pool) => pool.name).join(', ');
    throw new OnejobError('E_POOL_UNKNOWN', `There is no pool "${unknown}".`, { hint: `The pools are: ${known}.` });
  };

  return {
    async list(signal) {
      const now = await images.used(signal);
      const builder = await images.open();
      return (await builder.list(signal)).map(({ reference, id, labels, size, created, containers }) => ({
        reference,
        id,
        pools: [...now].filter(([, built]) => built.id === id).map(([pool]) => pool),
        base: labels[imageLabels.base] ?? null,
        agent: labels[imageLabels.agentVersion] ?? null,
        size,
        createdAt: created,
        containers,
      }));
    },

    async make(what, asked, progress, signal) {
      const outcomes: ImageOutcome[] = [];
      for (const pool of chosen(asked)) {
        if (!images.names.includes(pool)) {
          const image = images.base(pool) ?? pools.find(({ name }) => name === pool)?.recipe.image ?? null;
          outcomes.push({ pool, image, agent: null, what: 'there', problem: null });
          continue;
        }
        await images.look(pool, signal);
        const before = images.built(pool);
        outcomes.push(await one(pool, before));
      }
      return outcomes;

      async function one(pool: string, before: Built | null): Promise<ImageOutcome> {
        const about = { image: before?.reference ?? null, agent: before?.agentVersion ?? null };
        try {
          if (what === 'build') await images.need(pool, (line) => progress(pool, line), signal);
          else {
            const [refreshed] = await images.refresh([pool], progress, signal);
            if (refreshed !== undefined && refreshed.problem !== null) throw refreshed.problem;
          }
        } catch (error) {
          signal.throwIfAborted();
          return { pool, ...about, what: 'failed', problem: toErrorView(error) };
        }
        const after = images.built(pool);
        const change = after?.id === before?.id ? 'there' : before === null ? 'built' : 'newer';
        return { pool, image: after?.reference ?? null, agent: after?.agentVersion ?? null, what: change, problem: null };
      }
    },

    prune: (signal) => images.prune(signal),
  };
}
