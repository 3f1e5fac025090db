/**
 * Pools that learn: names of images that trusted jobs have pulled are read out of their ended containers, and onejob pulls those images
 * itself, by the digest that the registry has now and with the credentials of the pool. So a job says which images, among those that
 * the pool allows, and nothing of what is in them. A new set is made while agents have the one before, and none waits for it.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { abortable } from '../../base/abortable.ts';
import { attempt, hasCode, OnejobError, toFailure } from '../../base/errors.ts';
import { type Finding, fine, warning } from '../../base/finding.ts';
import { formatBytes } from '../../base/units.ts';
import { deadline } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import type { Learn, Recipe } from '../../ports/runtime.ts';
import { makeFolder, writeWhole } from '../../system/files.ts';
import { jsonOf } from '../../system/json.ts';
import type { Images } from '../engine/image.ts';
import { readFile } from './containers.ts';
import { labels } from './create.ts';
import type { DockerRuntime } from './docker.ts';
import { engineUsers, inEngine } from './engine-program.ts';
import type { ReadyImage } from './image-store.ts';
import { fullName, type Learnt, type Memory, matcher, mayRenew, memory, mustAsk, noted, pulledNames } from './learnt-images.ts';
import { userLabel } from './own-engine.ts';

/** ms for which what a job has left may hold up its removal. */
const patience = 5_000;
/** Bytes of a list of names: a thousand images have as many. */
const longest = 256 * 1024;
/** Where a Docker Engine lists its images. */
const list = `${inEngine.storage}/docker/image/overlay2/repositories.json`;
/** Images that are left out of one set since no engine can have them: for each, it is made anew. */
const mostUnfit = 3;
/** Names in a finding. */
const shown = 5;

const nothing: Memory = { at: 0, images: [], set: [], pulled: [], problem: null };

export interface LearnWants {
  /** For what was learnt. */
  readonly folder: string;
  readonly pools: ReadonlyMap<string, Learn>;
}

/** How a pool gets its images. */
interface Pool {
  readonly name: string;
  /** Images with its credentials. */
  readonly from: Images;
  /** Those that it names. */
  readonly named: readonly ReadyImage[];
  /** Puts them and others into a store that `agent` uses; its volume. */
  readonly fill: (others: readonly ReadyImage[], agent: AgentId, signal: AbortSignal) => Promise<string | null>;
  readonly letGo: (agent: AgentId) => void;
}

export class Learning {
  readonly #parts: DockerRuntime['parts'];
  readonly #wants: LearnWants;
  readonly #memories = new Map<string, Memory>();
  /** The making of a pool's next set. One at a time: none may remove an image that another has chosen. */
  #work: Promise<void> | null = null;
  readonly #closing = new AbortController();

  constructor(parts: DockerRuntime['parts'], wants: LearnWants) {
    this.#parts = parts;
    this.#wants = wants;
  }

  close(): void {
    this.#closing.abort();
  }

  /** Ends for good, and resolves once nothing is made any more. */
  async end(): Promise<void> {
    this.close();
    await this.#work;
  }

  /** For `doctor`. */
  findings(): Finding[] {
    return [...this.#wants.pools].flatMap(([pool, { limit }]) => {
      const { images, set, problem } = this.#of(pool);
      const used = new Set(set.map(({ reference }) => reference));
      const size = images.reduce((sum, { image }) => sum + (image !== null && used.has(image.reference) ? image.size : 0), 0);
      const more = set.length > shown ? ` and ${set.length - shown} more` : '';
      const names = set.map(({ name }) => name).slice(0, shown);
      const what =
        set.length === 0 ? 'no image so far' : `${names.join(', ')}${more} (${formatBytes(size)} of ${formatBytes(limit)})`;
      const failed = images.flatMap((one) => (one.problem === null ? [] : [`${one.name}, which a job has pulled: ${one.problem}`]));
      if (problem !== null) failed.unshift(`newer images: ${problem}`);
      const said = `Jobs of pool ${pool} have taught it ${what}.`;
      return [fine('containers', said), ...failed.map((why) => warning('containers', `Pool ${pool} does not get ${why}`))];
    });
  }

  /** Takes the names that the job of an agent has left, in bounded time. To be called before its container is removed. */
  async note(agent: AgentId): Promise<void> {
    if (this.#wants.pools.size === 0) return;
    using limit = deadline(this.#parts.engine.clock, patience);
    await abortable(this.#note(agent, limit.signal), limit.signal).catch(() => {});
  }

  async #note(agent: AgentId, signal: AbortSignal): Promise<void> {
    const { containers, engine } = this.#parts;
    const { Id, State, Config } = await containers.sure(agent, signal);
    const name = Config.Labels?.[labels.pool] ?? '';
    const learn = this.#wants.pools.get(name);
    // In one that runs, somebody could change what is read.
    if (learn === undefined || State.Running || Config.Labels?.[userLabel] !== engineUsers.trusted.name) return;
    const left = await readFile(engine, Id, list, signal, longest);
    const names = pulledNames(left ?? '', matcher(learn.pull));
    const now = engine.clock.wall();
    if (names.length > 0 && !signal.aborted) this.#change(name, ({ images }) => ({ images: noted(images, names, now) }));
  }

  /** The volume for an agent of a pool, with what that has learnt. What was only learnt keeps no agent from starting. */
  async ready(pool: Pool, agent: AgentId, signal: AbortSignal): Promise<string | null> {
    if (!this.#wants.pools.has(pool.name)) return pool.fill([], agent, signal);
    const { set } = this.#of(pool.name);
    const allows = this.#allowing(pool);
    const others = set.filter(({ name }) => allows(name));
    const volume = await pool.fill(plain(others), agent, signal).catch((error: unknown) => {
      if (others.length === 0 || !hasCode(error, 'E_ENGINE_FAILED', 'E_DISK_FULL')) throw error;
      const change = { set: [], problem: error.message };
      attempt(() => this.#change(pool.name, (now) => (now.set === set ? change : {})));
      return pool.fill([], agent, signal);
    });
    this.#renewLater(pool);
    return volume;
  }

  /** Makes a new set if it is time, for the agents from then on. */
  #renewLater(pool: Pool): void {
    const now = this.#parts.engine.clock.wall();
    if (this.#work !== null || this.#closing.signal.aborted || !mayRenew(this.#of(pool.name), now)) return;
    this.#work = this.#renew(pool, now).finally(() => {
      this.#work = null;
    });
  }

  /** Never throws. */
  async #renew(pool: Pool, now: number): Promise<void> {
    const { name } = pool;
    const { signal } = this.#closing;
    const agent = `learnt ${name}` as AgentId;
    try {
      // First, so that what fails is not tried all the time.
      this.#change(name, () => ({ at: now }));
      const set = await this.#fill(pool, agent, now);
      signal.throwIfAborted();
      this.#change(name, () => ({ set, problem: null }));
    } catch (error) {
      if (!signal.aborted) attempt(() => this.#change(name, () => ({ problem: toFailure(error).message })));
    } finally {
      await this.#tidy(pool).catch(() => {});
      pool.letGo(agent);
    }
  }

  /** Fills a store with a new set, without those images that no engine of an agent can have. */
  async #fill(pool: Pool, agent: AgentId, now: number): Promise<Memory['set']> {
    const { signal } = this.#closing;
    const unfit = new Set<string>();
    for (;;) {
      const set = await this.#choose(pool, unfit, now);
      if (JSON.stringify(set) === JSON.stringify(this.#of(pool.name).set)) return set;
      try {
        await pool.fill(plain(set), agent, signal);
        return set;
      } catch (error) {
        // It names the image by its id.
        const { message } = toFailure(error);
        const bad = hasCode(error, 'E_ENGINE_FAILED') ? set.find(({ id }) => message.includes(id)) : undefined;
        if (bad === undefined || unfit.size === mostUnfit) throw error;
        unfit.add(bad.name);
        this.#learn(pool.name, bad.name, { image: null, problem: message });
      }
    }
  }

  #learn(pool: string, name: string, found: Partial<Learnt>): void {
    const change = (one: Learnt): Learnt => (one.name === name ? { ...one, ...found } : one);
    this.#change(pool, ({ images }) => ({ images: images.map(change) }));
  }

  /** Whether a pool may have a name of a job: its config may have changed since. */
  #allowing({ name: pool, named }: Pool): (name: string) => boolean {
    const fits = matcher(this.#wants.pools.get(pool)?.pull ?? []);
    const own = new Set(named.map(({ name }) => fullName(name)));
    return (name) => fits(name) && !own.has(fullName(name));
  }

  /** What a job pulled last comes first, as far as it fits. */
  async #choose(pool: Pool, unfit: ReadonlySet<string>, now: number): Promise<Memory['set']> {
    const allows = this.#allowing(pool);
    this.#change(pool.name, ({ images }) => ({ images: images.filter(({ name }) => allows(name)) }));
    const set: Memory['set'] = [];
    const limit = this.#wants.pools.get(pool.name)?.limit ?? 0;
    let free = limit;
    for (const one of this.#of(pool.name).images) {
      const asks = mustAsk(one, now);
      if (free === 0 || unfit.has(one.name) || (!asks && (one.image?.size ?? 0) > free)) continue;
      const image = asks ? await this.#ask(pool, one, now) : one.image;
      if (image === null) continue;
      if (image.size > limit) {
        const problem = `it has ${formatBytes(image.size)}, and "learn" is ${formatBytes(limit)}`;
        this.#learn(pool.name, one.name, { problem });
      }
      if (image.size > free) {
        // Before the next is pulled: otherwise names alone would fill the disk.
        if (!set.some(({ reference }) => reference === image.reference)) await this.#drop(pool, image.reference);
        continue;
      }
      free -= image.size;
      set.push({ id: await this.#pull(pool, image.reference), name: one.name, reference: image.reference });
    }
    // Whichever was pulled last, the same images are the same set.
    return set.sort((a, b) => (a.name < b.name ? -1 : 1));
  }

  /** What the registry has under a name now, pulled; null if jobs cannot have it. */
  async #ask(pool: Pool, { name, image }: Learnt, asked: number): Promise<Learnt['image']> {
    const { signal } = this.#closing;
    const found: Pick<Learnt, 'image' | 'problem'> = await (async () => {
      const reference = await pool.from.pinned(name, signal);
      if (image?.reference === reference) return { image, problem: null };
      await this.#pull(pool, reference);
      return { image: { reference, size: (await this.#parts.engine.image(reference, signal))?.size ?? 0 }, problem: null };
    })().catch((error: unknown) => {
      signal.throwIfAborted();
      // No other image has room either.
      if (hasCode(error, 'E_DISK_FULL')) throw error;
      const mayPass = error instanceof OnejobError && error.retry;
      return { image: mayPass ? image : null, problem: toFailure(error).message };
    });
    this.#learn(pool.name, name, { ...found, asked });
    return found.image;
  }

  /** Id of an image, which the Engine has then. */
  async #pull({ name, from }: Pool, reference: string): Promise<string> {
    const { signal } = this.#closing;
    // Before it is pulled: who comes after a crash must know what to remove.
    if ((await from.look(reference, signal)) === null)
      this.#change(name, ({ pulled }) => ({ pulled: [...new Set([...pulled, reference])] }));
    return (await from.get({ image: reference, pull: 'missing' } as Recipe, () => {}, signal)).id;
  }

  /** Removes what was pulled and no set has. */
  async #tidy(pool: Pool): Promise<void> {
    for (const reference of this.#of(pool.name).pulled) await this.#drop(pool, reference);
  }

  /** Removes an image if it was pulled for this, and nobody has it for anything else. */
  async #drop(pool: Pool, reference: string): Promise<void> {
    const { signal } = this.#closing;
    signal.throwIfAborted();
    const sets = [...this.#wants.pools.keys()].flatMap((name) => this.#of(name).set);
    if (sets.some((one) => one.reference === reference) || !this.#of(pool.name).pulled.includes(reference)) return;
    const { engine } = this.#parts;
    try {
      const image = await engine.image(reference, signal);
      // With containerd's store an Engine that removes a digest removes each tag of its repository with it (moby, image_delete.go).
      const isTheirs = image !== null && (image.tags.length > 0 || pool.named.some(({ id }) => id === image.id));
      if (image !== null && !isTheirs) await engine.removeImage(reference);
    } catch {
      signal.throwIfAborted();
      return;
    }
    this.#change(pool.name, ({ pulled }) => ({ pulled: pulled.filter((one) => one !== reference) }));
  }

  #path(pool: string): string {
    return join(this.#wants.folder, `${pool}.json`);
  }

  #of(pool: string): Memory {
    const known = this.#memories.get(pool);
    if (known !== undefined) return known;
    const written = memory.safeParse(jsonOf(attempt(() => readFileSync(this.#path(pool), 'utf8')) ?? '')).data ?? nothing;
    this.#memories.set(pool, written);
    return written;
  }

  /** @throws Error of the file system, or if this is closed, and then nothing has changed */
  #change(pool: string, change: (now: Memory) => Partial<Memory>): void {
    // Somebody else may have it open by then.
    this.#closing.signal.throwIfAborted();
    const next = { ...this.#of(pool), ...change(this.#of(pool)) };
    makeFolder(this.#wants.folder);
    writeWhole(this.#path(pool), JSON.stringify(next), { over: true, mode: 0o600, alone: true });
    this.#memories.set(pool, next);
  }
}

const plain = (set: Memory['set']): ReadyImage[] => set.map(({ id, name }) => ({ id, name }));
