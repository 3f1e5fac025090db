/**
 * The images of pools that name none: chosen (`image: auto`), built (a recipe), or both. A built image stays in use until its
 * successor is there, so neither an outage of a CI service nor a failing build takes a pool's image away (S6, S9).
 */
import { join } from 'node:path';
import { createShared, type Progress } from '../../base/abortable.ts';
import { OnejobError, toFailure } from '../../base/errors.ts';
import { type Finding, fine, warning } from '../../base/finding.ts';
import type { Log } from '../../base/log.ts';
import { ownQueue } from '../../ci/own-queue/type.ts';
import type { Config, ImageRecipe, PoolConfig } from '../../config/config.ts';
import type { Environment } from '../../config/environment.ts';
import { hasImages } from '../../config/types.ts';
import { toErrorView } from '../../contract/http-errors.ts';
import type { ImageService } from '../../contract/manager.ts';
import type { ImageOutcome } from '../../contract/schema.ts';
import { type Clock, every } from '../../core/clock.ts';
import type { Inventory } from '../../gpu/inventory.ts';
import type { Built, ImageBuilder, ImageWish } from '../../images/builder.ts';
import { imageLabels } from '../../images/plan.ts';
import type { AgentPackage, CiService } from '../../ports/ci-service.ts';
import type { Recipe } from '../../ports/runtime.ts';
import type { AutoImages, ImageOf } from './auto-image.ts';

/** A pool whose image is chosen or built. */
interface ImagePool {
  readonly name: string;
  readonly service: string;
  /** Which Dockerfile it needs. */
  readonly type: string;
  readonly pull: Recipe['pull'];
  readonly imageRecipe: ImageRecipe;
  /** False when nothing has to be built on the named or chosen image. */
  readonly isBuilt: boolean;
  built: Built | null;
  problem: string | null;
}

interface PoolImagesParts {
  readonly pools: readonly PoolConfig[];
  readonly log: Log;
  readonly auto: AutoImages | null;
  readonly typeOf: (service: string) => string;
  readonly builder: () => Promise<ImageBuilder>;
  readonly agentPackage: (service: string, platform: string, signal: AbortSignal) => Promise<AgentPackage | null>;
}

/** Stands for a pool: the image of the engines that jobs run containers with. */
export const engineImage = 'engine';

const engineEntry: ImagePool = {
  name: engineImage,
  service: '',
  type: engineImage,
  pull: 'missing',
  imageRecipe: { base: 'debian:trixie-slim', packages: [], dockerfile: null, flavour: 'devel', distribution: null },
  isBuilt: true,
  built: null,
  problem: null,
};

export class PoolImages {
  readonly #parts: PoolImagesParts;
  readonly #pools: ReadonlyMap<string, ImagePool>;
  readonly #getting = createShared<Built>();
  readonly #abort = new AbortController();
  #builder: Promise<ImageBuilder> | null = null;
  /** Called for a pool that has its first image, or another one. */
  changed: (pool: string, before: Built | null) => void = () => {};
  /** Whether slots still use an image, by its id, although their pool has a newer one. */
  isKept: (id: string) => boolean = () => false;

  constructor(parts: PoolImagesParts) {
    this.#parts = parts;
    const own = parts.pools.flatMap(({ name, service, recipe, imageRecipe, runtime }): ImagePool[] => {
      if (imageRecipe === null || !hasImages({ runtime, recipe })) return [];
      const { base, packages, dockerfile } = imageRecipe;
      // Only a job of the own queue is there without an agent.
      const type = parts.typeOf(service);
      const hasAgent = type !== ownQueue.type;
      const isBuilt = base === null || packages.length > 0 || dockerfile !== null || hasAgent;
      return [{ name, service, type, pull: recipe.pull, imageRecipe, isBuilt, built: null, problem: null }];
    });
    const engine = parts.pools.some(({ recipe }) => recipe.containers !== undefined) ? [{ ...engineEntry }] : [];
    this.#pools = new Map([...own, ...engine].map((pool) => [pool.name, pool]));
  }

  get names(): readonly string[] {
    return [...this.#pools.values()].filter(({ isBuilt }) => isBuilt).map(({ name }) => name);
  }

  /** Whether this pool's image is chosen or built. */
  has(pool: string): boolean {
    return this.#pools.has(pool);
  }

  /** The image as far as it is known; null for a pool that names its own. */
  of(name: string): ImageOf | null {
    const pool = this.#pools.get(name);
    if (pool === undefined) return null;
    const { base } = pool.imageRecipe;
    const chosen = base === 'auto' ? (this.#parts.auto?.of(name) ?? null) : base === null ? null : { image: base };
    if (!pool.isBuilt || (chosen !== null && 'problem' in chosen)) return chosen;
    return pool.built === null ? null : { image: pool.built.reference };
  }

  /** The base, which contains what the GPU needs, whatever is built on it. */
  base(name: string): string | null {
    const base = this.#pools.get(name)?.imageRecipe.base ?? null;
    if (base !== 'auto') return base;
    const chosen = this.#parts.auto?.of(name) ?? null;
    return chosen !== null && 'image' in chosen ? chosen.image : null;
  }

  built(name: string): Built | null {
    return this.#pools.get(name)?.built ?? null;
  }

  /** Finds an earlier build. Asks the Engine only if `of` does not know an image yet; builds nothing. */
  async look(name: string, signal: AbortSignal): Promise<void> {
    const pool = this.#pools.get(name);
    if (pool?.isBuilt !== true || pool.built !== null) return;
    const base = this.base(name);
    if (base === null && pool.imageRecipe.base !== null) return;
    const found = await (await this.open()).find(this.#wish(pool), signal);
    // Meanwhile it may have been built, or another base chosen.
    if (this.base(name) === base) pool.built ??= found;
  }

  /** The image for a new sandbox, built if needed. @throws OnejobError E_IMAGE_CHOICE, E_IMAGE_BUILD, E_AGENT_PACKAGE, … */
  async need(name: string, progress: Progress, signal: AbortSignal): Promise<Pick<Recipe, 'image' | 'pull'>> {
    const pool = this.#pools.get(name);
    if (pool === undefined) throw new OnejobError('E_BUG', `Pool ${name} names its image itself.`);
    if (!pool.isBuilt) return { image: this.#base(pool), pull: pool.pull };
    const builder = await this.open();
    await this.look(name, signal);
    const known = pool.built !== null && (await builder.isThere(pool.built, signal)) ? pool.built : null;
    const built = known ?? (await this.#get(pool, builder, progress, signal));
    return { image: built.reference, pull: built.pull };
  }

  /** Takes a new look at the host. Returns the pools that have another image now, or another reason for none. */
  saw(inventory: Inventory): string[] {
    const others = this.#parts.auto?.saw(inventory) ?? [];
    for (const name of others) {
      const pool = this.#pools.get(name);
      if (pool !== undefined) pool.built = null;
    }
    return others;
  }

  findings(name: string): Finding[] {
    const pool = this.#pools.get(name);
    if (pool === undefined) return [];
    const chosen = pool.imageRecipe.base === 'auto' ? (this.#parts.auto?.findings(name) ?? []) : [];
    if (!pool.isBuilt || chosen.some(({ level }) => level === 'error')) return chosen;
    const [subject, its] = pool.type === engineImage ? ['containers', 'The image of engines'] : [`pool ${name}`, 'Its image'];
    const { built, problem } = pool;
    const version = built?.agentVersion ?? null;
    const on = `built on ${this.base(name) ?? 'its Dockerfile'}${version === null ? '' : `, with agent ${version}`}`;
    const message = built === null ? `${its} is built when it is first needed.` : `${its} is ${built.reference}, ${on}.`;
    const hint = 'Agents continue to use the current image; try "onejob image refresh".';
    const stale = problem === null ? [] : [warning(subject, `Failed to build a newer image: ${problem}`, hint)];
    return [fine(subject, message), ...stale];
  }

  /** Builds each pool's image with today's agent and base; a failure leaves the old one. Rejects only when `signal` aborts. */
  async refresh(names: readonly string[], progress: (pool: string, line: string) => void, signal: AbortSignal) {
    const done: { pool: string; problem: OnejobError | null }[] = [];
    for (const name of names) {
      const pool = this.#pools.get(name);
      if (pool?.isBuilt !== true) continue;
      let problem: OnejobError | null = null;
      try {
        await this.#get(pool, await this.open(), (line) => progress(name, line), signal);
      } catch (error) {
        signal.throwIfAborted();
        problem = error instanceof OnejobError ? error : new OnejobError('E_BUG', toFailure(error).message, { cause: error });
      }
      pool.problem = problem?.message ?? null;
      done.push({ pool: name, problem });
    }
    return done;
  }

  /** The built image of each pool, also where nothing has asked for it since the start. */
  async used(signal: AbortSignal): Promise<ReadonlyMap<string, Built>> {
    for (const name of this.names) await this.look(name, signal);
    return new Map([...this.#pools].flatMap(([name, { built }]) => (built === null ? [] : [[name, built] as const])));
  }

  /** Removes the images of this installation that no pool uses and no container was made from; their names. */
  async prune(signal: AbortSignal): Promise<string[]> {
    const ids = new Set([...(await this.used(signal)).values()].map(({ id }) => id));
    // Before the GPUs were checked, the image of such a pool is unknown, and so is which images are unused.
    if (this.names.some((name) => this.#pools.get(name)?.imageRecipe.base === 'auto' && this.base(name) === null)) return [];
    const gone = await (await this.open()).prune((image) => ids.has(image.id) || this.isKept(image.id), signal);
    if (gone.length > 0) this.#parts.log.info('images removed', { images: gone });
    return gone;
  }

  /** The builder, for requests that are not about one pool. */
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
    const work = async (say: Progress, until: AbortSignal): Promise<Built> => {
      const built = await builder.get(wish, say, until);
      if (this.base(name) !== wish.base) return built;
      const before = pool.built;
      pool.built = built;
      if (before?.id === built.id) return built;
      const { reference: image, agentVersion: agent } = built;
      this.#parts.log.info(before === null ? 'image ready' : 'image renewed', { pool: name, image, agent });
      this.changed(name, before);
      return built;
    };
    return this.#getting(`${name} ${wish.base}`, work, progress, AbortSignal.any([signal, this.#abort.signal]));
  }

  #wish(pool: ImagePool): ImageWish {
    const { service, type, pull, imageRecipe } = pool;
    const { packages, dockerfile } = imageRecipe;
    const agent: ImageWish['agent'] = (platform, signal) => this.#parts.agentPackage(service, platform, signal);
    return { type, base: this.#base(pool), packages, dockerfile, pull, agent };
  }

  #base({ name, imageRecipe: { base } }: ImagePool): string | null {
    const { auto } = this.#parts;
    if (base !== 'auto') return base;
    if (auto !== null) return auto.need(name);
    throw new OnejobError('E_IMAGE_CHOICE', `Cannot choose an image for pool ${name} on this host.`);
  }
}

interface OpenImagesParts {
  readonly config: Pick<Config, 'pools' | 'services'>;
  readonly env: Pick<Environment, 'docker' | 'hostRoot'>;
  readonly store: { readonly dir: string; readonly owner: string };
  readonly services: ReadonlyMap<string, CiService>;
  readonly log: Log;
}

/** The images of a config's pools, for one manager or one command. It loads and asks nothing before that is needed. */
export async function openPoolImages({ config, env, store, services, log }: OpenImagesParts): Promise<PoolImages> {
  const { pools } = config;
  const wantsChoice = pools.some((pool) => pool.imageRecipe?.base === 'auto');
  const auto = wantsChoice ? await (await import('./auto-image.ts')).openAutoImages(config, env.hostRoot) : null;
  return new PoolImages({
    pools,
    log,
    auto,
    typeOf: (service) => config.services.find(({ name }) => name === service)?.type ?? ownQueue.type,
    builder: async () => {
      const [{ createImageBuilder }, { BuiltImages }] = await Promise.all([
        import('../../images/builder.ts'),
        import('../../images/built.ts'),
      ]);
      const warn = (text: string, fields: Record<string, unknown>) => log.warn(text, fields);
      const built = new BuiltImages(join(store.dir, 'built-images'));
      const packages = join(store.dir, 'packages');
      return createImageBuilder({ environment: env.docker, owner: store.owner, packages, built, warn });
    },
    agentPackage: async (service, platform, signal) => (await services.get(service)?.agentPackage?.(platform, signal)) ?? null,
  });
}

const day = 24 * 60 * 60_000;
/** ms after its start that a manager looks first: not while everything begins. */
const firstLook = 60_000;

/** Renews the images in use soon after the start and every day, and removes replaced ones. The returned function ends it. */
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
  for (const { pool, problem } of done)
    if (problem !== null) log.warn('failed to renew image', { pool, reason: toFailure(problem).message });
  const builder = await images.open();
  // Images of the same recipes; others may belong to another config.
  const ids = new Set(used.map((name) => images.built(name)?.id));
  const recipes = new Set((await builder.list(signal)).filter(({ id }) => ids.has(id)).map((image) => builder.recipeOf(image)));
  const gone = await builder.prune(
    (image) => ids.has(image.id) || images.isKept(image.id) || !recipes.has(builder.recipeOf(image)),
    signal,
  );
  if (gone.length > 0) log.info('old images removed', { images: gone });
  // Which packages are in use is known only if every pool could be refreshed.
  if (done.every(({ problem }) => problem === null)) await builder.prunePackages();
}

/** Answers requests about the images that onejob builds, from the images of pools and those on the Engine. */
export function createImageDesk(images: PoolImages, pools: readonly Pick<PoolConfig, 'name' | 'recipe'>[]): ImageService {
  const chosen = (asked: readonly string[]): readonly string[] => {
    const unknown = asked.find((name) => !images.has(name) && !pools.some((pool) => pool.name === name));
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
      for (const pool of chosen(asked)) outcomes.push(await one(pool));
      return outcomes;

      async function one(pool: string): Promise<ImageOutcome> {
        if (!images.names.includes(pool)) {
          const image = images.base(pool) ?? pools.find(({ name }) => name === pool)?.recipe.image ?? null;
          return { pool, image, agent: null, what: 'there', problem: null };
        }
        await images.look(pool, signal);
        const before = images.built(pool);
        const about = { image: before?.reference ?? null, agent: before?.agentVersion ?? null };
        try {
          if (what === 'build') await images.need(pool, (line) => progress(pool, line), signal);
          else {
            const [refreshed] = await images.refresh([pool], progress, signal);
            if (refreshed?.problem != null) throw refreshed.problem;
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
