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
  /** Pools whose next set is being made. */
  readonly #busy = new Set<string>();
  readonly #closing = new AbortController();

  constructor(parts: DockerRuntime['parts'], wants: LearnWants) {
    this.#parts = parts;
    this.#wants = wants;
  }

  close(): void {
    this.#closing.abort();
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
    void this.#renew(pool);
    return volume;
  }

  /** Makes a new set if it is time, for the agents from then on. */
  async #renew(pool: Pool): Promise<void> {
    const { name } = pool;
    const now = this.#parts.engine.clock.wall();
    const { signal } = this.#closing;
    if (this.#busy.has(name) || signal.aborted || !mayRenew(this.#of(name), now)) return;
    this.#busy.add(name);
    const agent = `learnt ${name}` as AgentId;
    try {
      // First, so that what fails is not tried all the time.
      this.#change(name, () => ({ at: now }));
      const set = await this.#choose(pool, now, signal);
      if (JSON.stringify(set) !== JSON.stringify(this.#of(name).set)) await pool.fill(plain(set), agent, signal);
      signal.throwIfAborted();
      this.#change(name, () => ({ set, problem: null }));
    } catch (error) {
      if (!signal.aborted) attempt(() => this.#change(name, () => ({ problem: toFailure(error).message })));
    } finally {
      await this.#tidy(name, signal).catch(() => {});
      this.#busy.delete(name);
      pool.letGo(agent);
    }
  }

  /** Whether a pool may have a name of a job: its config may have changed since. */
  #allowing({ name: pool, named }: Pool): (name: string) => boolean {
    const fits = matcher(this.#wants.pools.get(pool)?.pull ?? []);
    const own = new Set(named.map(({ name }) => fullName(name)));
    return (name) => fits(name) && !own.has(fullName(name));
  }

  /** What a job pulled last comes first, as far as it fits. */
  async #choose(pool: Pool, now: number, signal: AbortSignal): Promise<Memory['set']> {
    const allows = this.#allowing(pool);
    this.#change(pool.name, ({ images }) => ({ images: images.filter(({ name }) => allows(name)) }));
    const set: Memory['set'] = [];
    let free = this.#wants.pools.get(pool.name)?.limit ?? 0;
    for (const one of this.#of(pool.name).images) {
      if ((one.image?.size ?? 0) > free || free === 0) continue;
      const image = mustAsk(one, now) ? await this.#ask(pool, one, now, signal) : one.image;
      if (image === null || image.size > free) continue;
      free -= image.size;
      set.push({ id: await this.#pull(pool, image.reference, signal), name: one.name, reference: image.reference });
    }
    // Whichever was pulled last, the same images are the same set.
    return set.sort((a, b) => (a.name < b.name ? -1 : 1));
  }

  /** What the registry has under a name now, pulled; null if jobs cannot have it. */
  async #ask(pool: Pool, { name, image }: Learnt, asked: number, signal: AbortSignal): Promise<Learnt['image']> {
    const found: Pick<Learnt, 'image' | 'problem'> = await (async () => {
      const reference = await pool.from.pinned(name, signal);
      await this.#pull(pool, reference, signal);
      return { image: { reference, size: (await this.#parts.engine.imageSize(reference, signal)) ?? 0 }, problem: null };
    })().catch((error: unknown) => {
      signal.throwIfAborted();
      const mayPass = error instanceof OnejobError && error.retry;
      return { image: mayPass ? image : null, problem: toFailure(error).message };
    });
    const change = (one: Learnt): Learnt => (one.name === name ? { ...one, ...found, asked } : one);
    this.#change(pool.name, ({ images }) => ({ images: images.map(change) }));
    return found.image;
  }

  /** Id of an image, which the Engine has then. */
  async #pull({ name, from }: Pool, reference: string, signal: AbortSignal): Promise<string> {
    // Before it is pulled: who comes after a crash must know what to remove.
    if ((await from.look(reference, signal)) === null)
      this.#change(name, ({ pulled }) => ({ pulled: [...new Set([...pulled, reference])] }));
    return (await from.get({ image: reference, pull: 'missing' } as Recipe, () => {}, signal)).id;
  }

  /** Removes what was pulled and no set has. Another pool, or a container, may use an image under another name. */
  async #tidy(pool: string, signal: AbortSignal): Promise<void> {
    const kept = new Set([...this.#wants.pools.keys()].flatMap((name) => this.#of(name).set.map(({ reference }) => reference)));
    for (const reference of this.#of(pool).pulled.filter((one) => !kept.has(one))) {
      signal.throwIfAborted();
      const isGone = await this.#parts.engine.removeImage(reference).then(
        () => true,
        () => false,
      );
      if (isGone) this.#change(pool, ({ pulled }) => ({ pulled: pulled.filter((one) => one !== reference) }));
    }
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
