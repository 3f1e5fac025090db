/**
 * Placeholders: a job whose demands no agent of the pool meets, online or not, fails instead of waiting (azure-container-apps #1064,
 * keda-docs #431). So each kind of agent has one registration that never goes online and stays, also while there is no agent at all.
 */
import { createHash } from 'node:crypto';
import type { Capabilities } from './capabilities.ts';
import { sharedCapabilities } from './capabilities.ts';
import type { AzureClient } from './client.ts';
import { makeAgentKey } from './key.ts';
import type { AgentKind } from './kind.ts';
import type { Marks } from './marks.ts';
import type { Registrar } from './registrar.ts';
import type { Agent } from './wire.ts';

export interface PlaceholderParts {
  readonly service: string;
  readonly client: AzureClient;
  readonly registrar: Registrar;
  readonly marks: Marks;
}

export interface Placeholders {
  /** There is one for this kind when this resolves. @throws OnejobError E_CI_* */
  ensure(pool: number, kind: AgentKind, signal: AbortSignal): Promise<void>;
  /** What an agent of this kind said when it was online, beyond what was known before; the placeholder says it from now on. */
  learn(pool: number, set: string, agent: Pick<Agent, 'systemCapabilities'>, signal: AbortSignal): Promise<void>;
  /** What agents of this kind are known to say. */
  learned(set: string): Capabilities;
  /** Which of ours the service has: one that somebody removed is made again with the next agent. */
  saw(pool: number, names: ReadonlySet<string>): void;
}

export function createPlaceholders({ service, client, registrar, marks }: PlaceholderParts): Placeholders {
  const made = new Map<string, Promise<void>>();
  const said = new Map<string, Capabilities>();
  const keyOf = (pool: number, set: string): string => `${pool} ${set}`;
  const idOf = (pool: number, set: string): string =>
    `placeholder-${createHash('sha256').update(`${service} ${pool} ${set}`).digest('hex').slice(0, 16)}`;

  const make = async (pool: number, kind: AgentKind, signal: AbortSignal): Promise<void> => {
    const agent = idOf(pool, kind.set);
    const known = registrar.find(agent);
    if (known !== null && known.state === 'made') {
      const { id } = registrar.remoteOf(agent) ?? { id: -1 };
      if ((await client.setUserCapabilities(pool, id, { ...kind.shared, ...said.get(kind.set) }, signal)) === 'done') return;
    }
    // Its private half is thrown away: nobody can ever sign in as this one.
    const { publicKey } = await makeAgentKey();
    const body = {
      name: marks.placeholderName(`${pool} ${kind.set}`),
      version: kind.inside.version ?? '0.0.0',
      osDescription: 'onejob placeholder: keeps jobs waiting while no agent is there',
      systemCapabilities: kind.shared,
      publicKey,
    };
    await registrar.register({ agent, pool, placeholder: true }, body, signal);
  };

  return {
    ensure(pool, kind, signal) {
      const key = keyOf(pool, kind.set);
      const known = made.get(key);
      if (known !== undefined) return known;
      const making = make(pool, kind, signal);
      made.set(key, making);
      making.catch(() => made.delete(key));
      return making;
    },
    async learn(pool, set, { systemCapabilities }, signal) {
      if (systemCapabilities === null) return;
      const shared = sharedCapabilities(systemCapabilities);
      const before = said.get(set);
      said.set(set, shared);
      const remote = registrar.remoteOf(idOf(pool, set));
      if (remote === null || JSON.stringify(before) === JSON.stringify(shared)) return;
      await client.setUserCapabilities(pool, remote.id, shared, signal);
    },
    learned: (set) => said.get(set) ?? {},
    saw(pool, names) {
      for (const one of registrar.open()) {
        if (!one.placeholder || one.state !== 'made' || Number(one.place) !== pool || names.has(one.name)) continue;
        for (const key of made.keys()) if (idOf(pool, key.slice(key.indexOf(' ') + 1)) === one.agent) made.delete(key);
      }
    },
  };
}
