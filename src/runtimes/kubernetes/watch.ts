/**
 * All pods of one owner, as a watch tells them: one list, then every change. A watch that ends continues where it was; after one that
 * fails there is a list again. Pods count as known while a watch is open, never while the API is away. https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
 */
import { z } from 'zod';
import { Waiters } from '../../base/abortable.ts';
import { messageOf, OnejobError } from '../../base/errors.ts';
import { linesOf } from '../../base/lines.ts';
import { type Clock, deadline, doubling, sleep } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import { jsonOf } from '../../system/json.ts';
import { type KubeClient, Refusal } from './client.ts';
import { names, type Pod, podName, podOf } from './pods.ts';

/** Pods of one answer. */
const pageSize = 500;
/** s after which the server ends a watch. */
const watchFor = 1_800;
/** ms without a byte after which a watch is opened anew. Servers send a bookmark each minute. */
const silentFor = 150_000;
/** In ms. */
const [firstPause, longestPause] = [200, 15_000];

const listSchema = z.object({
  metadata: z.object({ resourceVersion: z.string(), continue: z.string().optional() }),
  items: z.array(z.unknown()),
});
const eventSchema = z.object({ type: z.string(), object: z.unknown() });
const versionSchema = z.object({ metadata: z.object({ resourceVersion: z.string() }) });

export interface WatchParts {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly owner: string;
}

/** A change that somebody waits for, from before a look at what there is. */
export interface Change extends Disposable {
  /** Resolves once there was one, after `atMost` ms, or when `signal` aborts. */
  next(signal?: AbortSignal, atMost?: number): Promise<void>;
}

/** What has changed since the last look, which is all once the pods are known again, or are not any more. */
export interface News extends Disposable {
  /** Agents whose pod has changed, or about which somebody knows something new; null: any may have. */
  take(): ReadonlySet<AgentId> | null;
  /** Resolves once there is more to take; after `atMost` ms, or when `signal` aborts. */
  next(signal: AbortSignal, atMost?: number): Promise<void>;
}

export class PodWatch {
  readonly #parts: WatchParts;
  readonly #abort = new AbortController();
  readonly #waiters = new Waiters();
  /** Those who wait for the pod of one agent: with thousands of them, most changes are nobody else's. */
  readonly #changesOf = new Map<AgentId, { readonly waiters: Waiters; count: number; users: number }>();
  readonly #pods = new Map<AgentId, Pod>();
  /** By who follows them. */
  readonly #news = new Set<{ changed: Set<AgentId> | null }>();
  #isRunning = false;
  /** Whether all pods are known, as they are now. */
  #isCurrent = false;
  #failure: OnejobError | null = null;

  constructor(parts: WatchParts) {
    this.#parts = parts;
  }

  /** Why the pods are not known now; null: they are, or the first look is under way. */
  get failure(): OnejobError | null {
    return this.#isCurrent ? null : this.#failure;
  }

  /** All pods of the owner, of now. @throws OnejobError why they cannot be known */
  async all(signal?: AbortSignal): Promise<ReadonlyMap<AgentId, Pod>> {
    this.#start();
    while (!this.#isCurrent) {
      signal?.throwIfAborted();
      if (this.#failure !== null) throw this.#failure;
      await this.#waiters.next(signal);
    }
    return this.#pods;
  }

  /** The same, however long the API is away. */
  async sure(progress: (line: string) => void, signal: AbortSignal): Promise<ReadonlyMap<AgentId, Pod>> {
    for (;;) {
      try {
        return await this.all(signal);
      } catch (error) {
        signal.throwIfAborted();
        progress(messageOf(error));
        await this.#waiters.next(signal);
      }
    }
  }

  /** What is known, even if it is old. */
  get known(): ReadonlyMap<AgentId, Pod> {
    return this.#pods;
  }

  /** The pod of an agent; null: it has none. It may be too new for the watch. @throws OnejobError why that cannot be known */
  async find(agent: AgentId, signal?: AbortSignal): Promise<Pod | null> {
    const { client, owner } = this.#parts;
    const known = (await this.all(signal)).get(agent);
    if (known !== undefined) return known;
    const path = client.path('pods', podName(agent));
    const answer = await client.ask({ path, doing: `look at agent ${agent}`, signal, nothing: [404] });
    const isOwn = Object(Object(answer).metadata?.labels)[names.owner] === owner;
    return isOwn ? podOf(answer) : null;
  }

  /** As `find`. @throws OnejobError E_SANDBOX_LOST if it has none */
  async require(agent: AgentId, signal: AbortSignal): Promise<Pod> {
    const pod = await this.find(agent, signal);
    if (pod === null) throw new OnejobError('E_SANDBOX_LOST', `There is no agent ${agent} in the cluster.`);
    return pod;
  }

  /** The next change of what is known of an agent, counted from now. */
  changeOf(agent: AgentId): Change {
    this.#start();
    const entry = this.#changesOf.get(agent) ?? { waiters: new Waiters(), count: 0, users: 0 };
    this.#changesOf.set(agent, entry);
    entry.users += 1;
    const seen = entry.count;
    return {
      next: async (signal, atMost = Number.POSITIVE_INFINITY) => {
        if (entry.count === seen) await this.#within(entry.waiters, signal, atMost);
      },
      [Symbol.dispose]: () => {
        entry.users -= 1;
        if (entry.users === 0) this.#changesOf.delete(agent);
      },
    };
  }

  async #within(waiters: Waiters, signal: AbortSignal | undefined, atMost: number): Promise<void> {
    if (atMost === Number.POSITIVE_INFINITY) return waiters.next(signal);
    using limit = deadline(this.#parts.clock, atMost, ...(signal === undefined ? [] : [signal]));
    await waiters.next(limit.signal);
  }

  /** What changes from now on; the first look takes all. */
  follow(): News {
    this.#start();
    const news: { changed: Set<AgentId> | null } = { changed: null };
    this.#news.add(news);
    return {
      take: () => {
        const { changed } = news;
        news.changed = new Set();
        return changed;
      },
      next: async (signal, atMost = Number.POSITIVE_INFINITY) => {
        if (news.changed?.size === 0) await this.#within(this.#waiters, signal, atMost);
      },
      [Symbol.dispose]: () => void this.#news.delete(news),
    };
  }

  /** Somebody knows something new about an agent's pod; without one, about any. */
  wake(agent?: AgentId): void {
    for (const news of this.#news) {
      if (agent === undefined) news.changed = null;
      else news.changed?.add(agent);
    }
    this.#waiters.wake();
    const own = agent === undefined ? [...this.#changesOf.values()] : [this.#changesOf.get(agent)];
    for (const entry of own) {
      if (entry === undefined) continue;
      entry.count += 1;
      entry.waiters.wake();
    }
  }

  close(): void {
    this.#abort.abort();
    this.wake();
  }

  #start(): void {
    if (this.#isRunning || this.#abort.signal.aborted) return;
    this.#isRunning = true;
    void this.#run(this.#abort.signal);
  }

  async #run(signal: AbortSignal): Promise<void> {
    let version: string | null = null;
    let failures = 0;
    while (!signal.aborted) {
      try {
        version ??= await this.#list(signal);
        for await (const next of this.#changes(version, signal)) {
          failures = 0;
          version = next;
        }
        // One that ends at once, again and again, must not become a loop.
        failures += 1;
      } catch (error) {
        if (signal.aborted) return;
        // Its version may be too old, or of a server that knows nothing of it any more; and what is known must be of now.
        version = null;
        failures += 1;
        this.#isCurrent = false;
        this.#failure = error instanceof OnejobError ? error : cutWatch(error);
        this.wake();
      }
      if (failures > 0) await sleep(this.#parts.clock, doubling(firstPause, longestPause, failures), signal);
    }
  }

  get #selector(): string {
    return `${names.owner}=${this.#parts.owner}`;
  }

  /** Returns the version of the list. */
  async #list(signal: AbortSignal): Promise<string> {
    const { client } = this.#parts;
    const doing = 'list the pods of onejob';
    const seen = new Set<AgentId>();
    for (let more: string | undefined; ; ) {
      const query = { labelSelector: this.#selector, limit: pageSize, continue: more };
      const answer = await client.ask({ path: client.path('pods'), query, doing, signal });
      const { metadata, items } = client.formed(listSchema, answer, doing);
      for (const item of items) {
        const pod = podOf(item);
        if (pod !== null) this.#pods.set(pod.agent, pod);
        if (pod !== null) seen.add(pod.agent);
      }
      more = metadata.continue === '' ? undefined : metadata.continue;
      if (more !== undefined) continue;
      for (const agent of this.#pods.keys()) if (!seen.has(agent)) this.#pods.delete(agent);
      return metadata.resourceVersion;
    }
  }

  /** The version after each change. Ends when the server ends it. @throws OnejobError if it must begin anew */
  async *#changes(from: string, signal: AbortSignal): AsyncGenerator<string> {
    const { client, clock } = this.#parts;
    const abort = new AbortController();
    using limit = restartable(clock, silentFor, () => abort.abort(), signal);
    const query = {
      labelSelector: this.#selector,
      watch: true,
      allowWatchBookmarks: true,
      resourceVersion: from,
      timeoutSeconds: watchFor,
    };
    const either = AbortSignal.any([signal, abort.signal]);
    const input = await client.flow({ path: client.path('pods'), query, doing: 'watch the pods of onejob', signal: either });
    if (input === null) return;
    this.#isCurrent = true;
    this.wake();
    try {
      for await (const line of linesOf(input)) {
        limit.again();
        const event = eventSchema.safeParse(jsonOf(line));
        // The last line of a connection that was cut.
        if (!event.success) return;
        yield this.#enter(event.data);
      }
    } catch (error) {
      signal.throwIfAborted();
      if (!abort.signal.aborted) throw error;
    } finally {
      input.destroy();
    }
  }

  #enter({ type, object }: z.infer<typeof eventSchema>): string {
    if (type === 'ERROR') throw brokenWatch(object);
    const { resourceVersion } = versionSchema.parse(object).metadata;
    const pod = type === 'BOOKMARK' ? null : podOf(object);
    if (pod === null) return resourceVersion;
    if (type === 'DELETED') this.#pods.delete(pod.agent);
    else this.#pods.set(pod.agent, pod);
    this.wake(pod.agent);
    return resourceVersion;
  }
}

/** An error that comes inside an answer of status 200. */
function brokenWatch(object: unknown): OnejobError {
  const { code, message } = Object(object);
  const cause = new Refusal(Number(code), JSON.stringify(object));
  return new OnejobError('E_ENGINE_FAILED', `The watch of the pods of onejob ended: ${code}: ${message}.`, { retry: true, cause });
}

function cutWatch(cause: unknown): OnejobError {
  return new OnejobError('E_ENGINE_FAILED', `The watch of the pods of onejob was cut: ${messageOf(cause)}.`, {
    retry: true,
    cause,
  });
}

/** A limit that begins anew with `again`. */
function restartable(clock: Clock, ms: number, fn: () => void, signal: AbortSignal) {
  let callOff = clock.after(ms, fn);
  const end = (): void => callOff();
  signal.addEventListener('abort', end, { once: true });
  return {
    again() {
      callOff();
      callOff = clock.after(ms, fn);
    },
    [Symbol.dispose]() {
      callOff();
      signal.removeEventListener('abort', end);
    },
  };
}
