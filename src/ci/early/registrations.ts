/**
 * Both sides of the books (S4): agents are made known to the service, and it is made to forget them. The intent is written first; an
 * answer that was lost is found by its name. Nothing waits for a refusal: what the service does not give up yet is left to the sweep.
 */
import { createHash } from 'node:crypto';
import { sleep } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import { OnejobError, toFailure } from '../../errors.ts';
import type { StoredRegistration } from '../../store/registrations.ts';
import type { EarlyParts, Registry, Remote, Shown } from './port.ts';

/**
 * Names by which onejob knows its own at the service. An agent's name is never used again: services refuse one that comes back while
 * its old session lives. Only names with this installation's mark are ever touched. `owner`: its id, at least 8 hex digits.
 */
export function createAgentNames(owner: string) {
  const mark = owner.slice(0, 8);
  const own = new RegExp(`-${mark}-([0-9a-z]+)$`);
  const placeholders = `onejob-placeholder-${mark}-`;
  return {
    /** Of one agent: its name in the config, the installation, itself. */
    agentName: (name: string, agent: AgentId) => `${name}-${mark}-${agent}`,
    /** Whose name that is; null for any that is not an agent of this installation. */
    agentOf: (name: string): AgentId | null => (name.startsWith(placeholders) ? null : (own.exec(name)?.[1] ?? null)),
    /** Of the registration that stands for a set of capabilities and never goes online. */
    placeholderName: (set: string) => `${placeholders}${createHash('sha256').update(set).digest('hex').slice(0, 8)}`,
    isPlaceholder: (name: string) => name.startsWith(placeholders),
  };
}

export interface RegistrationsParts extends Pick<EarlyParts, 'service' | 'store' | 'opened' | 'clock'> {
  readonly registry: () => Pick<Registry, 'find' | 'remove' | 'disable'>;
}

export type Registrations = ReturnType<typeof createRegistrations>;

export function createRegistrations({ service, store, registry, opened, clock }: RegistrationsParts) {
  const wall = () => clock.wall();
  const { registrations } = store;
  /** Being made right now: what a look saw of them may be an entry that is on its way out. */
  const making = new Set<AgentId>();
  const write = (change: () => void): void => store.transaction({ durable: false }, change);

  const byName = async (place: string, name: string, signal: AbortSignal): Promise<Remote | null> => {
    const found = await registry().find({ place, name }, signal);
    return found === null ? null : { place, id: found.id };
  };

  /** @throws OnejobError E_CI_* when the service cannot be asked */
  const remove = async (registration: StoredRegistration, signal: AbortSignal): Promise<'removed' | 'refused'> => {
    const { agent, place, name, remote: id } = registration;
    const remote = id === null ? await byName(place, name, signal) : { place, id };
    if (remote !== null && (await registry().remove(remote, signal)) === 'busy') {
      // Until its session runs out the service takes it for one that is there: the next job would be lost on it, too.
      await registry()
        .disable?.(remote, true, signal)
        .catch(() => signal.throwIfAborted());
      return 'refused';
    }
    write(() => registrations.removed(agent, wall()));
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
      throw new OnejobError(
        'E_CI_NAME_TAKEN',
        `Cannot register agent ${before.name} again: the service reports that it runs a job.`,
        {
          hint: 'onejob tries again.',
          retry: true,
        },
      );
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

  /** An entry was removed of which at most a service knew that config does not name any more. */
  const gaveUp = (place: string, name: string): void => {
    const left = registrations.services().filter((one) => !opened.has(one));
    for (const one of left.flatMap((each) => registrations.open(each)))
      if (one.name === name && one.place === place) write(() => registrations.removed(one.agent, wall()));
  };

  const add = async <T>(of: { place: string; name: string }, create: () => Promise<T>, signal: AbortSignal): Promise<T> => {
    try {
      return await create();
    } catch (error) {
      if (!(error instanceof OnejobError) || error.code !== 'E_CI_NAME_TAKEN') throw error;
      // No other has a name with our mark and this agent's id: the answer to an earlier try was lost.
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

  /** Its entry at the service; null when there is none, or it has yet to be seen. */
  const remoteOf = (agent: AgentId): Remote | null => {
    const found = own(agent);
    if (found === null || found.state !== 'made' || found.remote === null) return null;
    return { place: found.place, id: found.remote };
  };

  return {
    marks: createAgentNames(store.owner),
    /**
     * Makes an entry known; one of the same agent, of a manager that is gone, is forgotten first. What makes itself known has no id
     * yet, and is `seen` later. @throws OnejobError E_CI_*
     */
    async register<T extends { readonly id: string | null }>(
      of: Pick<StoredRegistration, 'agent' | 'place' | 'name' | 'placeholder'>,
      create: (signal: AbortSignal) => Promise<T>,
      signal: AbortSignal,
    ): Promise<T> {
      const { agent, place, name, placeholder } = of;
      making.add(agent);
      try {
        await clearAway(agent, signal);
        write(() => registrations.intend({ agent, service, place, name, placeholder }, wall()));
        const made = await add({ place, name }, () => create(signal), signal);
        if (made.id !== null) write(() => registrations.made(agent, made.id, wall()));
        return made;
      } finally {
        making.delete(agent);
      }
    },
    remoteOf,
    /** The same, looked for by its name where it has yet to be seen. @throws OnejobError E_CI_* */
    async locate(agent: AgentId, signal: AbortSignal): Promise<Remote | null> {
      const found = own(agent);
      return found?.state === 'intent' ? byName(found.place, found.name, signal) : remoteOf(agent);
    },
    /** One that made itself known was seen. */
    seen(agent: AgentId, id: string): void {
      if (making.has(agent) || own(agent)?.state !== 'intent') return;
      write(() => registrations.made(agent, id, wall()));
    },
    remove,
    /** An agent was made that is of the kind that this placeholder stands for. */
    used(agent: AgentId): void {
      const { usedAt } = own(agent) ?? {};
      if (usedAt != null && wall() - usedAt > 3_600_000) write(() => registrations.used(agent, wall()));
    },
    gaveUp,
    /** Of whatever service. */
    find: (agent: AgentId) => registrations.get(agent),
    open: () => registrations.open(service),
    /**
     * Names of all registrations that are not removed, of the other services of this host too, which may share a queue. What a service
     * left behind that config does not name any more protects nothing.
     */
    names: (): ReadonlySet<string> => new Set([...opened].flatMap((one) => registrations.open(one).map(({ name }) => name))),
  };
}

export interface SweepParts extends Pick<EarlyParts, 'clock' | 'log' | 'slots'> {
  readonly registry: Pick<Registry, 'remove'>;
  readonly books: Registrations;
  /** Called before an entry is removed whose agent may have had a job. */
  readonly before: (remote: Remote, agent: AgentId, signal: AbortSignal) => Promise<unknown>;
}

const [first, longest] = [10_000, 300_000];
/** Removals in one look, so that a long list does not use up what the service allows. */
const atOnce = 20;

/**
 * Registrations that were made and whose agents are gone, and entries with our mark that no book knows. What the service refuses to
 * give up, as it runs a job as far as it knows, is tried again until its lock has run out.
 */
export function createSweep({ clock, log, registry, books, before, slots }: SweepParts) {
  const now = () => clock.now();
  /** Whether a slot still has this agent, in whatever lane. */
  const isLive = (agent: AgentId): boolean => slots.poolOf(agent) !== null;
  const waits = new Map<AgentId, { readonly at: number; readonly ms: number }>();
  /** Entries without a book, by place and name: only one that is there twice is not being made right now. */
  const strangers = new Map<string, ReadonlySet<string>>();

  const later = (agent: AgentId): void => {
    const ms = Math.min(longest, (waits.get(agent)?.ms ?? first / 2) * 2);
    waits.set(agent, { at: now() + ms, ms });
  };

  const left = () => books.open().filter((one) => !one.placeholder);

  /** Registrations whose agents are gone. */
  async function ours(signal: AbortSignal): Promise<void> {
    const over = left().filter((one) => !isLive(one.agent));
    const agents = new Set(over.map(({ agent }) => agent));
    for (const agent of waits.keys()) if (!agents.has(agent)) waits.delete(agent);
    const dueAt = ({ agent }: { readonly agent: AgentId }): number => waits.get(agent)?.at ?? 0;
    const due = over.filter((one) => dueAt(one) <= now()).sort((a, b) => dueAt(a) - dueAt(b));
    for (const one of due.slice(0, atOnce)) {
      // Counted before it is tried, so that one that cannot be removed comes after the others the next time.
      later(one.agent);
      const remote = books.remoteOf(one.agent);
      try {
        if (remote !== null) await before(remote, one.agent, signal);
        if ((await books.remove(one, signal)) === 'removed') waits.delete(one.agent);
      } catch (error) {
        signal.throwIfAborted();
        const { message, retry } = toFailure(error);
        log.warn('registration not removed yet', { agent: one.agent, entry: one.name, reason: message });
        // What is about the whole service would only be the same for the others.
        if (retry) return;
      }
    }
  }

  /** Entries that this installation made, by their names, and that no book of it knows. */
  async function theirs({ place, title, entries }: Shown, signal: AbortSignal): Promise<void> {
    const booked = books.names();
    const unknown = entries.filter(({ name, status, job }) => {
      const agent = books.marks.agentOf(name);
      const isOurs = books.marks.isPlaceholder(name) || (agent !== null && !isLive(agent));
      return isOurs && !booked.has(name) && status === 'offline' && job === null;
    });
    const before = strangers.get(place);
    strangers.set(place, new Set(unknown.map(({ name }) => name)));
    for (const one of unknown.filter(({ name }) => before?.has(name)).slice(0, atOnce)) {
      log.warn('removing an orphan', { place: title, agent: one.name });
      if ((await registry.remove(one, signal)) !== 'busy') books.gaveUp(place, one.name);
    }
  }

  return {
    /** For a service that no pool uses any more, until what it made of agents is gone. Its placeholders stay until they are forgotten. */
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

    /** What cannot be removed now is tried again after another look. */
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
