/**
 * Registers agents with the service, and removes them again (S4). The intent is written first, and a lost answer is found by the entry's
 * name. Nothing waits for a refusal: what the service does not release yet is left to the sweep.
 */
import { hash } from 'node:crypto';
import { hasCode, OnejobError, toFailure } from '../../base/errors.ts';
import { sleep } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import type { StoredRegistration } from '../../store/registrations.ts';
import type { EarlyParts, Registry, Remote, Shown } from './port.ts';

/**
 * Names by which onejob finds its own entries at the service. An agent's name is never used again: services refuse a name whose old
 * session still lives. onejob only touches names with this installation's mark. `owner`: its id, at least 8 hex digits.
 */
export function createAgentNames(owner: string) {
  const mark = owner.slice(0, 8);
  const own = new RegExp(`-${mark}-([0-9a-z]+)$`);
  const placeholders = `onejob-placeholder-${mark}-`;
  return {
    /** Made of the agent's name in the config, the installation, and the agent's id. */
    agentName: (name: string, agent: AgentId) => `${name}-${mark}-${agent}`,
    /** The agent with that name; null when it is not an agent of this installation. */
    agentOf: (name: string): AgentId | null => (name.startsWith(placeholders) ? null : (own.exec(name)?.[1] ?? null)),
    /** Of the placeholder for a set of capabilities. */
    placeholderName: (set: string) => `${placeholders}${hash('sha256', set).slice(0, 8)}`,
    isPlaceholder: (name: string) => name.startsWith(placeholders),
  };
}

/** The mark of the installation that made an agent with this name, or a placeholder; null: it does not look like one of onejob. */
export function markIn(name: string): { readonly mark: string; readonly isPlaceholder: boolean } | null {
  const placeholder = /^onejob-placeholder-([0-9a-f]{8})-[0-9a-f]{8}$/.exec(name)?.[1];
  if (placeholder !== undefined) return { mark: placeholder, isPlaceholder: true };
  const mark = /-([0-9a-f]{8})-[0-9a-z]+$/.exec(name)?.[1];
  return mark === undefined ? null : { mark, isPlaceholder: false };
}

export type Registrations = ReturnType<typeof createRegistrations>;

export function createRegistrations(
  { service, store, opened, clock }: Pick<EarlyParts, 'service' | 'store' | 'opened' | 'clock'>,
  registry: () => Pick<Registry, 'find' | 'remove' | 'disable'>,
) {
  const { registrations } = store;
  /** Being registered right now: a look may show an older entry that is about to be removed. */
  const making = new Set<AgentId>();
  const write = (change: () => void): void => store.transaction({ durable: false }, change);

  const byName = async (place: string, name: string, signal: AbortSignal): Promise<Remote | null> => {
    const found = await registry().find({ place, name }, signal);
    return found === null ? null : { place, id: found.id };
  };

  const remove = async (registration: StoredRegistration, signal: AbortSignal): Promise<'removed' | 'refused'> => {
    const { agent, place, name, remote: id } = registration;
    const remote = id === null ? await byName(place, name, signal) : { place, id };
    if (remote !== null && (await registry().remove(remote, signal)) === 'busy') {
      // Until its session expires the service believes that it is there: the next job would be lost on it, too.
      await registry()
        .disable?.(remote, true, signal)
        .catch(() => signal.throwIfAborted());
      return 'refused';
    }
    write(() => registrations.removed(agent, clock.wall()));
    return 'removed';
  };

  /** Removes what an earlier manager registered for the same agent: its key is lost, so it is useless. */
  const clearAway = async (agent: AgentId, signal: AbortSignal): Promise<void> => {
    const before = registrations.get(agent);
    if (before === null) return;
    if (before.service !== service) {
      leaveTo(before);
      return;
    }
    if (before.state !== 'removed' && (await remove(before, signal)) === 'refused') {
      const why = `Cannot register agent ${before.name} again: the service reports that it runs a job.`;
      throw new OnejobError('E_CI_NAME_TAKEN', why, { hint: 'onejob tries again.', retry: true });
    }
    // A removed row never comes back, which is right for agents, but a placeholder may be needed again.
    write(() => registrations.forget(agent));
  };

  /** Only the service that made an entry may remove it: its sweep treats it as that of an agent that is gone. */
  const leaveTo = (before: StoredRegistration): void => {
    const agent = `${before.agent} of ${before.service}`;
    write(() => {
      registrations.forget(before.agent);
      if (before.state !== 'made') return;
      registrations.intend({ ...before, agent }, clock.wall());
      registrations.made(agent, before.remote, clock.wall());
    });
  };

  /** An entry was removed that belonged at most to a service that config no longer names. */
  const gaveUp = (place: string, name: string): void => {
    const left = registrations.services().filter((one) => !opened.has(one));
    for (const one of left.flatMap((each) => registrations.open(each)))
      if (one.name === name && one.place === place) write(() => registrations.removed(one.agent, clock.wall()));
  };

  const add = async <T>(of: { place: string; name: string }, create: () => Promise<T>, signal: AbortSignal): Promise<T> => {
    try {
      return await create();
    } catch (error) {
      if (!hasCode(error, 'E_CI_NAME_TAKEN')) throw error;
      // Only an earlier try whose answer was lost can have a name with our mark and this agent's id.
      const remote = await byName(of.place, of.name, signal);
      if (remote === null) throw error;
      await registry().remove(remote, signal);
      gaveUp(of.place, of.name);
      return create();
    }
  };

  const own = (agent: AgentId): StoredRegistration | null => {
    const found = registrations.get(agent);
    return found?.service === service ? found : null;
  };

  /** Its entry at the service; null when there is none, or onejob has not seen it yet. */
  const remoteOf = (agent: AgentId): Remote | null => {
    const found = own(agent);
    if (found === null || found.state !== 'made' || found.remote === null) return null;
    return { place: found.place, id: found.remote };
  };

  return {
    agentNames: createAgentNames(store.owner),
    /** Replaces an earlier entry of the same agent. One that registers itself is `seen` later. @throws OnejobError E_CI_* */
    async register<T extends { readonly id: string | null }>(
      of: Pick<StoredRegistration, 'agent' | 'place' | 'name' | 'placeholder'>,
      create: (signal: AbortSignal) => Promise<T>,
      signal: AbortSignal,
    ): Promise<T> {
      const { agent, place, name, placeholder } = of;
      making.add(agent);
      try {
        await clearAway(agent, signal);
        write(() => registrations.intend({ agent, service, place, name, placeholder }, clock.wall()));
        await store.sync();
        const made = await add({ place, name }, () => create(signal), signal);
        if (made.id !== null) write(() => registrations.made(agent, made.id, clock.wall()));
        return made;
      } finally {
        making.delete(agent);
      }
    },
    remoteOf,
    /** The same, found by its name when onejob has not seen it yet. @throws OnejobError E_CI_* */
    async locate(agent: AgentId, signal: AbortSignal): Promise<Remote | null> {
      const found = own(agent);
      return found?.state === 'intent' ? byName(found.place, found.name, signal) : remoteOf(agent);
    },
    /** An agent that registered itself was seen. */
    seen(agent: AgentId, id: string): void {
      if (making.has(agent) || own(agent)?.state !== 'intent') return;
      write(() => registrations.made(agent, id, clock.wall()));
    },
    remove,
    /** An agent was made of the kind that this placeholder stands for. */
    used(agent: AgentId): void {
      const { usedAt } = own(agent) ?? {};
      if (usedAt != null && clock.wall() - usedAt > 3_600_000) write(() => registrations.used(agent, clock.wall()));
    },
    gaveUp,
    find: (agent: AgentId) => registrations.get(agent),
    open: () => registrations.open(service),
    /** Names of all registrations that are not removed, of every opened service of this host: they may share a queue. */
    names: (): ReadonlySet<string> => new Set([...opened].flatMap((one) => registrations.open(one).map(({ name }) => name))),
  };
}

const [first, longest] = [10_000, 300_000];
/** Removals per look, so that a long list does not use up the service's rate limit. */
const atOnce = 20;

/**
 * Removes registrations whose agents are gone, and entries with our mark that the store does not know. What the service refuses to
 * release, because it believes that the agent runs a job, is tried again until its lock has expired. `before`: called before an entry is
 * removed whose agent may have had a job.
 */
export function createSweep(
  { clock, log, slots }: Pick<EarlyParts, 'clock' | 'log' | 'slots'>,
  registry: Pick<Registry, 'remove'>,
  registrations: Registrations,
  before: (remote: Remote, agent: AgentId, signal: AbortSignal) => Promise<unknown>,
) {
  /** Whether a slot still has this agent, in any lane. */
  const isLive = (agent: AgentId): boolean => slots.poolOf(agent) !== null;
  const waits = new Map<AgentId, { readonly at: number; readonly ms: number }>();
  /** Names of unknown entries, by place: only an entry that two looks in a row show is not being registered right now. */
  const strangers = new Map<string, ReadonlySet<string>>();

  const later = (agent: AgentId): void => {
    const ms = Math.min(longest, (waits.get(agent)?.ms ?? first / 2) * 2);
    waits.set(agent, { at: clock.now() + ms, ms });
  };

  const left = () => registrations.open().filter((one) => !one.placeholder);

  async function ours(signal: AbortSignal): Promise<void> {
    const over = left().filter((one) => !isLive(one.agent));
    const agents = new Set(over.map(({ agent }) => agent));
    for (const agent of waits.keys()) if (!agents.has(agent)) waits.delete(agent);
    const dueAt = ({ agent }: { readonly agent: AgentId }): number => waits.get(agent)?.at ?? 0;
    const due = over.filter((one) => dueAt(one) <= clock.now()).sort((a, b) => dueAt(a) - dueAt(b));
    for (const one of due.slice(0, atOnce)) {
      // Counted before the try, so that an entry that cannot be removed comes after the others next time.
      later(one.agent);
      const remote = registrations.remoteOf(one.agent);
      try {
        if (remote !== null) await before(remote, one.agent, signal);
        if ((await registrations.remove(one, signal)) === 'removed') waits.delete(one.agent);
      } catch (error) {
        signal.throwIfAborted();
        const { message, retry } = toFailure(error);
        log.warn('registration not removed yet', { agent: one.agent, entry: one.name, reason: message });
        // A problem of the whole service would be the same for the others.
        if (retry) return;
      }
    }
  }

  /** Entries that this installation made, by their names, and that its store does not know. */
  async function theirs({ place, title, entries }: Shown, signal: AbortSignal): Promise<void> {
    const booked = registrations.names();
    const unknown = entries.filter(({ name, status, job }) => {
      const agent = registrations.agentNames.agentOf(name);
      const isOurs = registrations.agentNames.isPlaceholder(name) || (agent !== null && !isLive(agent));
      return isOurs && !booked.has(name) && status === 'offline' && job === null;
    });
    const before = strangers.get(place);
    strangers.set(place, new Set(unknown.map(({ name }) => name)));
    for (const one of unknown.filter(({ name }) => before?.has(name)).slice(0, atOnce)) {
      log.warn('removing an orphan', { place: title, agent: one.name });
      if ((await registry.remove(one, signal)) !== 'busy') registrations.gaveUp(place, one.name);
    }
  }

  return {
    /** For a service that no pool uses any more, until its agents are removed. Its placeholders stay until they are forgotten. */
    async alone(signal: AbortSignal): Promise<void> {
      while (!signal.aborted && left().length > 0) {
        try {
          await ours(signal);
        } catch (error) {
          if (!signal.aborted) log.warn('registrations not removed yet', { reason: toFailure(error).message });
        }
        await sleep(clock, first, signal);
      }
    },
    /** What cannot be removed now is tried again after the next look. */
    async after(shown: Shown, signal: AbortSignal): Promise<void> {
      try {
        await ours(signal);
        await theirs(shown, signal);
      } catch (error) {
        signal.throwIfAborted();
        log.warn('registrations not removed yet', { place: shown.title, reason: toFailure(error).message });
      }
    },
  };
}
