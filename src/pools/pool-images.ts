/**
 * The images of pools that name none: chosen (`image: auto`), built (a recipe), or both. What has been built stays in use until
 * its successor is there, so neither an outage of a CI service nor a build that fails takes a pool's image away (S6, S9).
 */
import type { AgentPackage } from '../ci/ci-service.ts';
import type { ImageRecipe, PoolConfig } from '../config/config.ts';
import { OnejobError, toFailure } from '../errors.ts';
import type { Inventory } from '../gpu/inventory.ts';
import type { Built, ImageBuilder, ImageWish } from '../images/builder.ts';
import { hasOwnLayer } from '../images/plan.ts';
import type { Log } from '../log.ts';
import type { Finding, Recipe } from '../runtimes/runtime.ts';
import { createShared, type Progress } from '../until.ts';
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
export interface Refreshed {
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
    const found = await (await this.#open()).find(this.#wish(pool), signal);
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
    const builder = await this.#open();
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
      ...{ level: 'warning', subject, message: `No newer image could be made: ${problem}` },
      hint: 'Agents go on with the one there is; try "onejob image refresh".',
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
        const after = await this.#get(pool, await this.#open(), (line) => progress(name, line), signal);
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
    const gone = await (await this.#open()).prune((image) => ids.has(image.id), signal);
    if (gone.length > 0) this.#parts.log.info('images removed', { images: gone });
    return gone;
  }

  /** The builder, for what is not about one pool. */
  open(): Promise<ImageBuilder> {
    return this.#open();
  }

  /** What pool `name` asks to be built. @throws OnejobError E_IMAGE_CHOICE */
  wish(name: string): ImageWish | null {
    const pool = this.#pools.get(name);
    return pool === undefined || this.#isFinished(pool) ? null : this.#wish(pool);
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

  #open(): Promise<ImageBuilder> {
    this.#builder ??= this.#parts.builder().catch((error: unknown) => {
      this.#builder = null;
      throw error;
    });
    return this.#builder;
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
    throw new OnejobError('E_IMAGE_CHOICE', `No image can be chosen for pool ${name} here.`);
  }

  /** Whether nothing has to be put on what it names or what is chosen for it. */
  #isFinished({ service, imageRecipe: { base, packages, dockerfile } }: ImagePool): boolean {
    return base !== null && packages.length === 0 && dockerfile === null && !hasOwnLayer(this.#parts.typeOf(service));
  }
}
