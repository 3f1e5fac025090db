/** How jobs end, as far as the logs of their agents tell: a container lives on for its files to be fetched. */
import { type Clock, deadline } from '../../core/clock.ts';
import type { AgentId, Exit } from '../../core/slot.ts';
import type { KubeClient } from './client.ts';
import { endOf } from './logs.ts';
import type { Pod } from './pods.ts';
import type { PodWatch } from './watch.ts';

/** ms for which a reader may not ask for more before others look for the end. */
const stalledFor = 2_000;
/** ms that a look at a log may take. */
const lookLimit = 5_000;
/** Looks at logs at a time. */
const looksAtOnce = 16;

interface Parts {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly watch: PodWatch;
}

/** Somebody who reads the log of an agent. */
export interface Reader extends Disposable {
  /** Since when it has not asked for more; null: it does. */
  stalledSince: number | null;
}

export class Ends {
  readonly #parts: Parts;
  readonly #told = new Map<AgentId, Exit>();
  readonly #readers = new Map<AgentId, Set<Reader>>();
  #isLooking = false;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  /** null: its log has told none. */
  of(agent: AgentId): Exit | null {
    return this.#told.get(agent) ?? null;
  }

  tell(agent: AgentId, exit: Exit): void {
    this.#told.set(agent, exit);
    this.#parts.watch.wake(agent);
  }

  delete(agent: AgentId): void {
    this.#told.delete(agent);
    this.#readers.delete(agent);
  }

  /** While it reads, nobody else looks for the end. */
  reader(agent: AgentId): Reader {
    const readers = this.#readers.get(agent) ?? new Set();
    this.#readers.set(agent, readers);
    const reader: Reader = {
      stalledSince: null,
      [Symbol.dispose]: () => {
        readers.delete(reader);
        // The end of a log that nobody reads any more is looked for.
        this.#parts.watch.wake(agent);
      },
    };
    readers.add(reader);
    return reader;
  }

  /** Whether an agent runs whose log has told no end. Its reader may stall at any time, and nothing else reports the end then. */
  get areOpen(): boolean {
    for (const pod of this.#parts.watch.known.values()) if (this.#isOpen(pod)) return true;
    return false;
  }

  /** As `look`, unless such a look is under way. */
  async lookOnce(signal: AbortSignal): Promise<void> {
    if (this.#isLooking) return;
    this.#isLooking = true;
    await this.look(signal).finally(() => {
      this.#isLooking = false;
    });
  }

  /** Looks for the ends that nobody reads now. What a node does not tell now is not known. */
  async look(signal: AbortSignal): Promise<void> {
    const { client, clock, watch } = this.#parts;
    const open = [...watch.known.values()].filter((pod) => this.#isOpen(pod) && !this.#isRead(pod));
    const looks = async (): Promise<void> => {
      for (let pod = open.pop(); pod !== undefined; pod = open.pop()) {
        const { agent } = pod;
        using limit = deadline(clock, lookLimit, signal);
        const exit = await endOf({ client, agent }, limit.signal).catch(() => null);
        if (exit !== null) this.tell(agent, exit);
      }
    };
    await Promise.all(Array.from({ length: Math.min(looksAtOnce, open.length) }, looks));
  }

  #isOpen({ agent, isRunning }: Pod): boolean {
    return isRunning && !this.#told.has(agent);
  }

  #isRead({ agent }: Pod): boolean {
    const now = this.#parts.clock.now();
    const readers = [...(this.#readers.get(agent) ?? [])];
    return readers.length > 0 && readers.every(({ stalledSince }) => stalledSince === null || now - stalledSince < stalledFor);
  }
}
