/**
 * One look after the other at each of the service's agent pools, whatever the number of slots: who is online, who has which job, what
 * waits. A look that fails says nothing about any agent (S6); it only keeps new ones from being begun.
 */
import type { Clock } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import { OnejobError, toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import type { AzureClient } from './client.ts';
import type { Agent, JobRequest, Pool } from './wire.ts';

export interface WatchParts {
  readonly clock: Clock;
  readonly log: Log;
  /** ms between two looks. */
  readonly every: number;
  readonly client: AzureClient;
  readonly find: (signal: AbortSignal) => Promise<Pool>;
  readonly agentOf: (name: string) => AgentId | null;
  /** [0, 1): spreads the looks of many hosts. */
  readonly random: () => number;
  /** Told of each look that succeeded. What goes wrong there says nothing of the service. */
  readonly saw: (seen: Seen, signal: AbortSignal) => void;
  /** Told why nobody could look; null once somebody could. */
  readonly failed: (reason: string | null) => void;
}

export interface Seen {
  readonly pool: Pool;
  /** Everyone's. */
  readonly agents: readonly Agent[];
  /** Ours, by their ids. */
  readonly ours: ReadonlyMap<AgentId, Agent>;
  /** Jobs that are not over. */
  readonly requests: readonly JobRequest[];
  /** Since when every look has succeeded, core clock, ms: before that nobody knows what could come online. */
  readonly steadySince: number;
}

const longest = 60_000;

export class Watch {
  readonly #parts: WatchParts;
  readonly #signal: AbortSignal;
  #failures = 0;
  #steadySince: number | null = null;
  #cancel: () => void = () => {};

  constructor(parts: WatchParts, signal: AbortSignal) {
    this.#parts = parts;
    this.#signal = signal;
    signal.addEventListener('abort', () => this.#cancel(), { once: true });
  }

  /** Looks at once, and again from then on until the signal aborts. */
  async start(): Promise<void> {
    await this.#look();
    if (this.#signal.aborted) return;
    const { clock, every, random } = this.#parts;
    const wait = Math.max(every, Math.min(longest, every * 2 ** Math.min(this.#failures - 1, 10)));
    this.#cancel = clock.after(wait * (0.9 + random() * 0.2), () => void this.start());
  }

  async #look(): Promise<void> {
    const { clock, log, saw, failed } = this.#parts;
    const signal = this.#signal;
    let seen: Seen;
    try {
      seen = await this.#see();
    } catch (error) {
      if (signal.aborted) return;
      // A credential that is refused is held back before anything is sent, so looking whether it was changed costs nothing.
      this.#failures = error instanceof OnejobError && error.code === 'E_CI_CREDENTIAL' ? 1 : this.#failures + 1;
      this.#steadySince = null;
      failed(toFailure(error).message);
      return;
    }
    if (signal.aborted) return;
    this.#failures = 0;
    this.#steadySince ??= clock.now();
    failed(null);
    try {
      saw(seen, signal);
    } catch (error) {
      if (!signal.aborted) log.error('what a CI service shows was not followed up', { reason: toFailure(error).message });
    }
  }

  async #see(): Promise<Seen> {
    const { clock, find, client, agentOf } = this.#parts;
    const signal = this.#signal;
    const pool = await find(signal);
    const [agents, requests] = await Promise.all([
      client.agents(pool.id, { assigned: true }, signal),
      client.requests(pool.id, { unfinished: true }, signal),
    ]);
    const ours = new Map<AgentId, Agent>();
    for (const agent of agents) {
      const id = agentOf(agent.name);
      if (id !== null) ours.set(id, agent);
    }
    return { pool, agents, ours, requests, steadySince: this.#steadySince ?? clock.now() };
  }
}
