/**
 * Registrations of agents that bind early, made while their sandboxes wait at the gate, so that a free slot needs no call to the
 * CI service. Script and credential are only in memory: after a restart a new registration replaces the old one.
 */
import { abortable } from '../../base/abortable.ts';
import type { AgentId } from '../../core/slot.ts';
import type { Registration } from '../../ports/ci-service.ts';

type Register = (signal: AbortSignal) => Promise<Registration>;

export class Registrations {
  readonly #held = new Map<AgentId, { readonly abort: AbortController; readonly made: Promise<Registration> }>();

  /** Begins a registration; repeating it for an agent changes nothing. Errors go to the caller of `take`. */
  ahead(agent: AgentId, register: Register): void {
    void this.#begin(agent, register).catch(() => {});
  }

  /** The registration begun ahead, or a new one. A failed one is tried once more. */
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

  /** Forgets the agent, and aborts its registration. Resolves once nothing is running. */
  async drop(agent: AgentId): Promise<void> {
    const held = this.#held.get(agent);
    this.#held.delete(agent);
    held?.abort.abort();
    await held?.made.catch(() => {});
  }

  /** Aborts all registrations. */
  async close(): Promise<void> {
    await Promise.all([...this.#held.keys()].map((agent) => this.drop(agent)));
  }

  #begin(agent: AgentId, register: Register): Promise<Registration> {
    const known = this.#held.get(agent);
    if (known !== undefined) return known.made;
    const abort = new AbortController();
    // An error before its first await goes to the caller of `take`, too.
    const made = (async () => register(abort.signal))();
    this.#held.set(agent, { abort, made });
    return made;
  }
}
