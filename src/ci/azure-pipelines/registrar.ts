/**
 * Makes agents known to the service and makes it forget them (S4). The intent is written first; an answer that was lost is found by
 * its name. Nothing here waits for a refusal: what the service does not give up yet is left to the sweep.
 */
import type { AgentId } from '../../core/slot.ts';
import { OnejobError } from '../../errors.ts';
import type { StoredRegistration } from '../../store/registrations.ts';
import type { Store } from '../../store/store.ts';
import type { AzureClient } from './client.ts';
import type { NewAgent, RegisteredAgent } from './wire.ts';

export interface RegistrarParts {
  /** Name of the service in the config. */
  readonly service: string;
  readonly store: Pick<Store, 'registrations' | 'transaction'>;
  readonly client: AzureClient;
  /** Wall clock, ms since the epoch. */
  readonly wall: () => number;
}

export type Removal = 'removed' | 'refused';

export interface Registrar {
  /** Makes the agent known; one of the same id, of a manager that is gone, is forgotten first. @throws OnejobError E_CI_* */
  register(
    of: { agent: AgentId; pool: number; placeholder: boolean },
    body: NewAgent,
    signal: AbortSignal,
  ): Promise<RegisteredAgent>;
  /** For an agent that makes itself known under this name. */
  expect(of: { agent: AgentId; pool: number; name: string }, signal: AbortSignal): Promise<void>;
  /** Its id at the service; null when there is none, or it has yet to be seen. */
  remoteOf(agent: AgentId): { readonly pool: number; readonly id: number } | null;
  /** One that made itself known was seen. */
  seen(agent: AgentId, id: number): void;
  /** @throws OnejobError E_CI_* when the service cannot be asked */
  remove(registration: StoredRegistration, signal: AbortSignal): Promise<Removal>;
  find(agent: AgentId): StoredRegistration | null;
  open(): StoredRegistration[];
}

export function createRegistrar({ service, store, client, wall }: RegistrarParts): Registrar {
  const { registrations } = store;
  const write = (change: () => void): void => store.transaction({ durable: false }, change);

  const byName = async (pool: number, name: string, signal: AbortSignal): Promise<number | null> =>
    (await client.agents(pool, { name }, signal)).find((one) => one.name === name)?.id ?? null;

  const remove = async (registration: StoredRegistration, signal: AbortSignal): Promise<Removal> => {
    const pool = Number(registration.place);
    const id = registration.remote === null ? await byName(pool, registration.name, signal) : Number(registration.remote);
    const answer = id === null ? 'absent' : await client.deleteAgent(pool, id, signal);
    if (typeof answer === 'object') return 'refused';
    write(() => registrations.removed(registration.agent, wall()));
    return 'removed';
  };

  /** Whatever a former manager made of the same agent: its key is gone, so it is of no use. */
  const clearAway = async (agent: AgentId, signal: AbortSignal): Promise<void> => {
    const before = registrations.get(agent);
    if (before === null || before.state === 'removed') return;
    if ((await remove(before, signal)) === 'removed') {
      write(() => registrations.forget(agent));
      return;
    }
    throw new OnejobError('E_CI_NAME_TAKEN', `Cannot register agent ${before.name} anew: the service says that it runs a job.`, {
      hint: 'onejob tries again.',
      retry: true,
    });
  };

  const add = async (pool: number, body: NewAgent, signal: AbortSignal): Promise<RegisteredAgent> => {
    try {
      return await client.addAgent(pool, body, signal);
    } catch (error) {
      if (!(error instanceof OnejobError) || error.code !== 'E_CI_NAME_TAKEN') throw error;
      // No other has a name with our mark and this agent's id: the answer to an earlier try was lost.
      const id = await byName(pool, body.name, signal);
      if (id === null) throw error;
      await client.deleteAgent(pool, id, signal);
      return client.addAgent(pool, body, signal);
    }
  };

  return {
    async register({ agent, pool, placeholder }, body, signal) {
      await clearAway(agent, signal);
      write(() => registrations.intend({ agent, service, place: String(pool), name: body.name, placeholder }, wall()));
      const made = await add(pool, body, signal);
      write(() => registrations.made(agent, String(made.id), wall()));
      return made;
    },
    async expect({ agent, pool, name }, signal) {
      await clearAway(agent, signal);
      write(() => registrations.intend({ agent, service, place: String(pool), name, placeholder: false }, wall()));
    },
    remoteOf(agent) {
      const found = registrations.get(agent);
      if (found === null || found.state !== 'made' || found.remote === null) return null;
      return { pool: Number(found.place), id: Number(found.remote) };
    },
    seen(agent, id) {
      if (registrations.get(agent)?.state === 'intent') write(() => registrations.made(agent, String(id), wall()));
    },
    remove,
    find: (agent) => registrations.get(agent),
    open: () => registrations.open(service),
  };
}
