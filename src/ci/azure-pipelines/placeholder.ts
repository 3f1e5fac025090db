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

export function createPlaceholders(
  { config, client, makeKey }: Pick<AzureParts, 'config' | 'client' | 'makeKey'>,
  registrations: Registrations,
) {
  const made = new Map<AgentId, Made>();
  const said = new Map<string, Capabilities>();
  const pools = new Map<string, string>();
  const idOf = (pool: number, set: string): AgentId =>
    `placeholder-${hash('sha256', `${config.name} ${pool} ${set}`).slice(0, 16)}`;
  const nameOf = (pool: number, set: string): string => registrations.agentNames.placeholderName(`${pool} ${set}`);

  const make = async (pool: number, kind: PlaceholderKind, signal: AbortSignal): Promise<void> => {
    const agent = idOf(pool, kind.set);
    // If the answer to an earlier POST was lost, that entry is used, so that there is always one.
    const remote = await registrations.locate(agent, signal);
    const entry = remote === null ? null : await client.agent(pool, Number(remote.id), { capabilities: true }, signal);
    if (entry !== null) {
      registrations.seen(agent, String(entry.id));
      // What an earlier manager learned from an agent stays until another agent says more.
      const says = { ...entry.systemCapabilities, ...entry.userCapabilities };
      const news = Object.entries({ ...kind.shared, ...said.get(kind.set) }).filter(([name, value]) => says[name] !== value);
      if (news.length === 0) return;
      const told = { ...entry.userCapabilities, ...Object.fromEntries(news) };
      if ((await client.setUserCapabilities(pool, entry.id, told, signal)) === 'done') return;
    }
    // Its private half is thrown away: nobody can ever sign in as this one.
    const { publicKey } = await makeKey();
    const name = nameOf(pool, kind.set);
    const osDescription = 'onejob placeholder: keeps jobs waiting while the pool has no agent';
    const systemCapabilities = { ...kind.shared, ...said.get(kind.set) };
    const body = { name, version: kind.inside.version ?? '0.0.0', osDescription, systemCapabilities, publicKey };
    const of = { agent, place: String(pool), name, placeholder: true };
    await registrations.register(of, async (inner) => ({ id: String((await client.addAgent(pool, body, inner)).id) }), signal);
  };

  return {
    /** Makes sure that there is one for this kind, with the kind's capabilities. @throws OnejobError E_CI_* */
    ensure(pool: number, kind: PlaceholderKind, signal: AbortSignal): Promise<void> {
      pools.set(nameOf(pool, kind.set), kind.pool);
      const agent = idOf(pool, kind.set);
      const one = made.get(agent) ?? { versions: new Map(), last: Promise.resolve() };
      made.set(agent, one);
      const version = JSON.stringify(kind.shared);
      const begin = (): Promise<void> => {
        const making = one.last.then(() => make(pool, kind, signal));
        one.versions.set(version, making);
        one.last = making.catch(() => void one.versions.delete(version));
        return making;
      };
      return (one.versions.get(version) ?? begin()).then(() => registrations.used(agent));
    },
    /** Adds what an online agent of this kind said beyond that to its placeholder. */
    async learn(pool: number, set: string, { systemCapabilities }: Pick<Agent, 'systemCapabilities'>, signal: AbortSignal) {
      if (systemCapabilities === null) return;
      const shared = sharedCapabilities(systemCapabilities);
      const remote = registrations.remoteOf(idOf(pool, set));
      if (remote !== null && !isDeepStrictEqual(said.get(set) ?? {}, shared))
        await client.setUserCapabilities(pool, Number(remote.id), shared, signal);
      said.set(set, shared);
    },
    learned: (set: string): Capabilities => said.get(set) ?? {},
    /** The pool of the config that the placeholder stands for; null: unknown. */
    poolOf: (name: string) => pools.get(name) ?? null,
    /** Which of ours the service has: a removed one is made again with the next agent. */
    saw(queue: string, names: ReadonlySet<string>): void {
      for (const { agent, name, state, place, placeholder } of registrations.open())
        if (placeholder && state === 'made' && place === queue && !names.has(name)) made.delete(agent);
    },
    /** Removes all of them. @throws OnejobError E_CI_* of the first that cannot be removed, after trying the others */
    async forget(signal: AbortSignal): Promise<void> {
      const failures: unknown[] = [];
      for (const one of registrations.open().filter(({ placeholder }) => placeholder)) {
        made.delete(one.agent);
        await registrations.remove(one, signal).catch((error: unknown) => failures.push(error));
      }
      if (failures.length > 0) throw failures[0];
    },
  };
}
