/**
 * Registrations of agents that bind early, made while their sandboxes still wait at the gate, so that a free slot needs no call to
 * the CI service. Script and credential are held in memory only: after a restart a new registration takes the old one's place.
 */

import { abortable } from '../../abortable.ts';
import type { Registration } from '../../ci/ci-service.ts';
import type { AgentId } from '../../core/slot.ts';

type Register = (signal: AbortSignal) => Promise<Registration>;

interface Held {
  readonly abort: AbortController;
  readonly made: Promise<Registration>;
}

export class Registrations {
  readonly #held = new Map<AgentId, Held>();

  /** Begins; the second time for an agent changes nothing. What goes wrong is told to who takes it. */
  ahead(agent: AgentId, register: Register): void {
    void this.#begin(agent, register).catch(() => {});
  }

  /** The one begun ahead, or a new one; one that failed ahead is tried once more. */
  async take(agent: AgentId, register: Register, signal: AbortSignal): Promise<Registration> {
    const wasAhead = this.#held.has(agent);
    try {
      return await abortable(this.#begin(agent, register), signal);
    } catch (error) {
      signal.throwIfAborted();
      this.drop(agent);
      if (!wasAhead) throw error;
      return await abortable(this.#begin(agent, register), signal).catch((again: unknown) => {
        this.drop(agent);
        throw again;
      });
    }
  }

  /** What was taken and not dropped yet. */
  async get(agent: AgentId): Promise<Registration | null> {
    return (await this.#held.get(agent)?.made) ?? null;
  }

  /** Forgets the agent; what is under way for it is given up. Resolves once nothing is. */
  async drop(agent: AgentId): Promise<void> {
    const held = this.#held.get(agent);
    this.#held.delete(agent);
    held?.abort.abort();
    await held?.made.catch(() => {});
  }

  /** Gives up all that is under way. */
  async close(): Promise<void> {
    await Promise.all([...this.#held.keys()].map((agent) => this.drop(agent)));
  }

  #begin(agent: AgentId, register: Register): Promise<Registration> {
    const known = this.#held.get(agent);
    if (known !== undefined) return known.made;
    const abort = new AbortController();
    // Also what it throws before its first wait is told to who takes it.
    const made = (async () => register(abort.signal))();
    this.#held.set(agent, { abort, made });
    return made;
  }
}
