/**
 * Makes agents known to the service and makes it forget them (S4). The intent is written first; an answer that was lost is found by
 * its name. Nothing here waits for a refusal: what the service does not give up yet is left to the sweep.
 */
import type { AgentId } from '../../core/slot.ts';
import { OnejobError } from '../../errors.ts';
import type { StoredRegistration } from '../../store/registrations.ts';
import type { Store } from '../../store/store.ts';
import type { AzureClient } from './client.ts';
import type { GonePools } from './gone.ts';
import type { NewAgent, RegisteredAgent } from './wire.ts';

export interface RegistrarParts {
  /** Name of the service in the config. */
  readonly service: string;
  readonly store: Pick<Store, 'registrations' | 'transaction'>;
  readonly client: AzureClient;
  readonly gone: GonePools;
  /** Names of the services that this manager has opened, this one among them. */
  readonly opened: ReadonlySet<string>;
  /** Wall clock, ms since the epoch. */
  readonly wall: () => number;
}

export type Removal = 'removed' | 'refused';

/** An entry at the service. */
export interface Remote {
  readonly pool: number;
  readonly id: number;
}

export interface Registrar {
  /** Makes the agent known; one of the same id, of a manager that is gone, is forgotten first. @throws OnejobError E_CI_* */
  register(
    of: { agent: AgentId; pool: number; placeholder: boolean },
    body: NewAgent,
    signal: AbortSignal,
  ): Promise<RegisteredAgent>;
  /** For an agent that makes itself known under this name. */
  expect(of: { agent: AgentId; pool: number; name: string }, signal: AbortSignal): Promise<void>;
  /** Its entry at the service; null when there is none, or it has yet to be seen. */
  remoteOf(agent: AgentId): Remote | null;
  /** The same, looked for by its name where it has yet to be seen. @throws OnejobError E_CI_* */
  locate(agent: AgentId, signal: AbortSignal): Promise<Remote | null>;
  /** One that made itself known was seen. */
  seen(agent: AgentId, id: number): void;
  /** @throws OnejobError E_CI_* when the service cannot be asked */
  remove(registration: StoredRegistration, signal: AbortSignal): Promise<Removal>;
  /** An agent was made that is of the kind that this placeholder stands for. */
  used(placeholder: AgentId): void;
  /** An entry was removed of which at most a service knew that config does not name any more. */
  gaveUp(pool: number, name: string): void;
  /** Of whatever service. */
  find(agent: AgentId): StoredRegistration | null;
  open(): StoredRegistration[];
  /**
   * Names of all registrations that are not removed, of the other services of this host too, which may share an agent pool. What
   * a service left behind that config does not name any more protects nothing.
   */
  names(): ReadonlySet<string>;
}

export function createRegistrar({ service, store, client, gone, opened, wall }: RegistrarParts): Registrar {
  const { registrations } = store;
  /** Being made right now: what a look saw of them may be an entry that is on its way out. */
  const making = new Set<AgentId>();
  const write = (change: () => void): void => store.transaction({ durable: false }, change);

  const byName = async (pool: number, name: string, signal: AbortSignal): Promise<number | null> =>
    (await client.agents(pool, { name }, signal)).find((one) => one.name === name)?.id ?? null;

  const remove = async (registration: StoredRegistration, signal: AbortSignal): Promise<Removal> => {
    const removal = await takeOff(registration, signal).catch(async (error: unknown): Promise<Removal> => {
      if (await gone.explains(error, Number(registration.place), signal)) return 'removed';
      throw error;
    });
    if (removal === 'removed') write(() => registrations.removed(registration.agent, wall()));
    return removal;
  };

  const takeOff = async (registration: StoredRegistration, signal: AbortSignal): Promise<Removal> => {
    const pool = Number(registration.place);
    const id = registration.remote === null ? await byName(pool, registration.name, signal) : Number(registration.remote);
    const answer = id === null ? 'absent' : await client.deleteAgent(pool, id, signal);
    if (id !== null && typeof answer === 'object') {
      // Until its session runs out the service takes it for one that is there: the next job would be lost on it, too.
      await client.setEnabled(pool, id, false, signal).catch(() => signal.throwIfAborted());
      return 'refused';
    }
    return 'removed';
  };

  /** Whatever a former manager made of the same agent: its key is gone, so it is of no use. */
  const clearAway = async (agent: AgentId, signal: AbortSignal): Promise<void> => {
    const before = registrations.get(agent);
    if (before === null) return;
    if (before.service !== service) {
      leaveTo(before);
      return;
    }
    if (before.state !== 'removed' && (await remove(before, signal)) === 'refused') {
      throw new OnejobError('E_CI_NAME_TAKEN', `Cannot register agent ${before.name} anew: the service says that it runs a job.`, {
        hint: 'onejob tries again.',
        retry: true,
      });
    }
    // What is written down as removed never comes back, which is right for agents, while a placeholder may be wanted again.
    write(() => registrations.forget(agent));
  };

  /** Only the service that made an entry may remove it: its sweep does, as of an agent that is gone. */
  const leaveTo = (before: StoredRegistration): void => {
    const agent = `${before.agent} of ${before.service}`;
    write(() => {
      registrations.forget(before.agent);
      if (before.state !== 'made') return;
      registrations.intend({ ...before, agent }, wall());
      registrations.made(agent, before.remote, wall());
    });
  };

  const gaveUp = (pool: number, name: string): void => {
    const left = registrations.services().filter((one) => !opened.has(one));
    for (const one of left.flatMap((each) => registrations.open(each)))
      if (one.name === name && one.place === String(pool)) write(() => registrations.removed(one.agent, wall()));
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
      gaveUp(pool, body.name);
      return client.addAgent(pool, body, signal);
    }
  };

  const own = (agent: AgentId): StoredRegistration | null => {
    const found = registrations.get(agent);
    return found?.service === service ? found : null;
  };

  const remoteOf = (agent: AgentId): Remote | null => {
    const found = own(agent);
    if (found === null || found.state !== 'made' || found.remote === null) return null;
    return { pool: Number(found.place), id: Number(found.remote) };
  };

  return {
    async register({ agent, pool, placeholder }, body, signal) {
      making.add(agent);
      try {
        await clearAway(agent, signal);
        write(() => registrations.intend({ agent, service, place: String(pool), name: body.name, placeholder }, wall()));
        const made = await add(pool, body, signal);
        write(() => registrations.made(agent, String(made.id), wall()));
        return made;
      } finally {
        making.delete(agent);
      }
    },
    async expect({ agent, pool, name }, signal) {
      await clearAway(agent, signal);
      write(() => registrations.intend({ agent, service, place: String(pool), name, placeholder: false }, wall()));
    },
    remoteOf,
    async locate(agent, signal) {
      const found = own(agent);
      if (found === null || found.state !== 'intent') return remoteOf(agent);
      const pool = Number(found.place);
      const id = await byName(pool, found.name, signal);
      return id === null ? null : { pool, id };
    },
    seen(agent, id) {
      if (making.has(agent) || own(agent)?.state !== 'intent') return;
      write(() => registrations.made(agent, String(id), wall()));
    },
    remove,
    used(agent) {
      const { usedAt } = own(agent) ?? {};
      if (usedAt != null && wall() - usedAt > 3_600_000) write(() => registrations.used(agent, wall()));
    },
    gaveUp,
    find: (agent) => registrations.get(agent),
    open: () => registrations.open(service),
    names: () => new Set([...opened].flatMap((one) => registrations.open(one).map(({ name }) => name))),
  };
}
