/**
 * Placeholders: a job whose demands no agent of the pool meets fails instead of waiting (azure-container-apps #1064, keda-docs
 * #431). So each kind of agent has one registration that never goes online, and stays while there is no agent.
 */
import { hash } from 'node:crypto';
import { isDeepStrictEqual } from 'node:util';
import type { AgentId } from '../../core/slot.ts';
import type { Registrations } from '../early/registrations.ts';
import { type AgentInside, type AgentKind, type Capabilities, sharedCapabilities } from './capabilities.ts';
import type { AzureParts } from './parts.ts';
import type { Agent } from './wire.ts';

/** What a placeholder stands for. */
export type PlaceholderKind = Pick<AgentKind, 'set' | 'shared' | 'pool'> & { readonly inside: Pick<AgentInside, 'version'> };

interface Made {
  /** By the capabilities of its kind. */
  readonly versions: Map<string, Promise<void>>;
  last: Promise<void>;
}

export class Placeholders {
  readonly #parts: Pick<AzureParts, 'config' | 'client' | 'makeKey'>;
  readonly #registrations: Registrations;
  readonly #made = new Map<AgentId, Made>();
  readonly #said = new Map<string, Capabilities>();
  readonly #pools = new Map<string, string>();

  constructor(parts: Pick<AzureParts, 'config' | 'client' | 'makeKey'>, registrations: Registrations) {
    this.#parts = parts;
    this.#registrations = registrations;
  }

  /** Makes sure that there is one for this kind, with the kind's capabilities. @throws OnejobError E_CI_* */
  ensure(pool: number, kind: PlaceholderKind, signal: AbortSignal): Promise<void> {
    this.#pools.set(this.#nameOf(pool, kind.set), kind.pool);
    const agent = this.#idOf(pool, kind.set);
    const one = this.#made.get(agent) ?? { versions: new Map(), last: Promise.resolve() };
    this.#made.set(agent, one);
    const version = JSON.stringify(kind.shared);
    const begin = (): Promise<void> => {
      const making = one.last.then(() => this.#make(pool, kind, signal));
      one.versions.set(version, making);
      one.last = making.catch(() => void one.versions.delete(version));
      return making;
    };
    return (one.versions.get(version) ?? begin()).then(() => this.#registrations.used(agent));
  }

  /** Adds what an online agent of this kind said beyond that to its placeholder. */
  async learn(pool: number, set: string, { systemCapabilities }: Pick<Agent, 'systemCapabilities'>, signal: AbortSignal) {
    if (systemCapabilities === null) return;
    const shared = sharedCapabilities(systemCapabilities);
    const remote = this.#registrations.remoteOf(this.#idOf(pool, set));
    if (remote !== null && !isDeepStrictEqual(this.#said.get(set) ?? {}, shared))
      await this.#parts.client.setUserCapabilities(pool, Number(remote.id), shared, signal);
    this.#said.set(set, shared);
  }

  learned(set: string): Capabilities {
    return this.#said.get(set) ?? {};
  }

  /** The pool of the config that the placeholder stands for; null: unknown. */
  poolOf(name: string) {
    return this.#pools.get(name) ?? null;
  }

  /** Which of ours the service has: a removed one is made again with the next agent. */
  saw(queue: string, names: ReadonlySet<string>): void {
    for (const { agent, name, state, place, placeholder } of this.#registrations.open())
      if (placeholder && state === 'made' && place === queue && !names.has(name)) this.#made.delete(agent);
  }

  /** Removes all of them. @throws OnejobError E_CI_* of the first that cannot be removed, after trying the others */
  async forget(signal: AbortSignal): Promise<void> {
    const failures: unknown[] = [];
    for (const one of this.#registrations.open().filter(({ placeholder }) => placeholder)) {
      this.#made.delete(one.agent);
      await this.#registrations.remove(one, signal).catch((error: unknown) => failures.push(error));
    }
    if (failures.length > 0) throw failures[0];
  }

  #idOf(pool: number, set: string): AgentId {
    return `placeholder-${hash('sha256', `${this.#parts.config.name} ${pool} ${set}`).slice(0, 16)}`;
  }

  #nameOf(pool: number, set: string): string {
    return this.#registrations.agentNames.placeholderName(`${pool} ${set}`);
  }

  async #make(pool: number, kind: PlaceholderKind, signal: AbortSignal): Promise<void> {
    const agent = this.#idOf(pool, kind.set);
    // If the answer to an earlier POST was lost, that entry is used, so that there is always one.
    const remote = await this.#registrations.locate(agent, signal);
    const entry = remote === null ? null : await this.#parts.client.agent(pool, Number(remote.id), { capabilities: true }, signal);
    if (entry !== null) {
      this.#registrations.seen(agent, String(entry.id));
      // What an earlier manager learned from an agent stays until another agent says more.
      const says = { ...entry.systemCapabilities, ...entry.userCapabilities };
      const news = Object.entries({ ...kind.shared, ...this.#said.get(kind.set) }).filter(([name, value]) => says[name] !== value);
      if (news.length === 0) return;
      const told = { ...entry.userCapabilities, ...Object.fromEntries(news) };
      if ((await this.#parts.client.setUserCapabilities(pool, entry.id, told, signal)) === 'done') return;
    }
    // Its private half is thrown away: nobody can ever sign in as this one.
    const { publicKey } = await this.#parts.makeKey();
    const name = this.#nameOf(pool, kind.set);
    const osDescription = 'onejob placeholder: keeps jobs waiting while the pool has no agent';
    const systemCapabilities = { ...kind.shared, ...this.#said.get(kind.set) };
    const body = { name, version: kind.inside.version ?? '0.0.0', osDescription, systemCapabilities, publicKey };
    const of = { agent, place: String(pool), name, placeholder: true };
    await this.#registrations.register(
      of,
      async (inner) => ({ id: String((await this.#parts.client.addAgent(pool, body, inner)).id) }),
      signal,
    );
  }
}
