/** Images that the engines of agents read: that of the sandbox, those that a pool names for its jobs, and those that it has learnt. */
import type { Progress } from '../../base/abortable.ts';
import type { Finding } from '../../base/finding.ts';
import type { AgentId } from '../../core/slot.ts';
import type { Recipe, SandboxSpec } from '../../ports/runtime.ts';
import { Images } from '../engine/image.ts';
import type { DockerRuntime } from './docker.ts';
import { type EngineUser, engineUsers } from './engine-program.ts';
import { ImageStore, type ReadyImage } from './image-store.ts';
import { Learning, type LearnWants } from './learning.ts';
import { userFor } from './own-engine.ts';

export class JobImages {
  readonly #parts: DockerRuntime['parts'];
  readonly #learning: Learning;
  /** For users of the image of engines, whose files they are. */
  readonly #stores: ReadonlyMap<EngineUser, ImageStore>;

  constructor(parts: DockerRuntime['parts'], learn: LearnWants) {
    this.#parts = parts;
    this.#learning = new Learning(parts, learn);
    const { engine, owner } = parts;
    this.#stores = new Map(Object.values(engineUsers).map((user) => [user, new ImageStore(engine, owner, user)]));
  }

  close(): void {
    this.#learning.close();
  }

  storeOf(recipe: Recipe): ImageStore {
    const store = this.#stores.get(userFor(recipe));
    if (store === undefined) throw new TypeError(`no images for user ${userFor(recipe).name}`);
    return store;
  }

  /** Why an image that a pool names for its jobs cannot be pulled now; undefined for other images. */
  async trouble(recipe: Recipe, signal: AbortSignal): Promise<string | null | undefined> {
    const ready = recipe.containers?.ready;
    if (ready === undefined || recipe.image === null || !ready.images.includes(recipe.image)) return undefined;
    return (await this.#pulls(ready.logins).trouble(recipe, signal))?.message ?? null;
  }

  /** A volume with the images that its jobs have from the start, pulled as its own image is; null without any. */
  async ready(
    { agent, pool, recipe }: SandboxSpec,
    maker: string,
    progress: Progress,
    signal: AbortSignal,
  ): Promise<string | null> {
    const { images: names, pull, logins } = recipe.containers?.ready ?? { images: [], pull: 'never', logins: null };
    const from = this.#pulls(logins);
    const named: ReadyImage[] = [];
    for (const image of names) {
      const { id } = await from.get({ image, pull } as Recipe, progress, signal);
      // A job asks for it by its tag, whatever digest it is pulled by.
      named.push({ id, name: image.replace(/@.*$/, '') });
    }
    const store = this.storeOf(recipe);
    const fill = async (others: readonly ReadyImage[], reader: AgentId, until: AbortSignal) => {
      const all = [...named, ...others];
      // This agent does not wait for what is made for later ones.
      const say = reader === agent ? progress : () => {};
      return all.length === 0 ? null : store.ready(reader, pool, all, maker, say, until);
    };
    if (recipe.containers?.untrusted) return fill([], agent, signal);
    return this.#learning.ready({ name: pool, from, named, fill, letGo: (reader) => store.letGo(reader) }, agent, signal);
  }

  /** To be called before the container of an agent is removed. */
  ending(agent: AgentId): Promise<void> {
    return this.#learning.note(agent);
  }

  /** Makes nothing any more, and resolves once nothing is being made. */
  end(): Promise<void> {
    return this.#learning.end();
  }

  findings(): Finding[] {
    return this.#learning.findings();
  }

  /** Removes what a manager that was killed has left of this. */
  async sweep(): Promise<void> {
    for (const store of this.#stores.values()) await store.sweep();
  }

  forget(): void {
    for (const store of this.#stores.values()) store.forget();
  }

  /** Images pulled with the credentials of a folder; null: the usual ones. */
  #pulls(logins: string | null): Images {
    const { engine, images } = this.#parts;
    return logins === null ? images : new Images(engine, logins, engine.clock.now);
  }
}
