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
export class AgentNames {
  readonly #mark: string;
  readonly #own: RegExp;
  readonly #placeholders: string;

  constructor(owner: string) {
    this.#mark = owner.slice(0, 8);
    this.#own = new RegExp(`-${this.#mark}-([0-9a-z]+)$`);
    this.#placeholders = `onejob-placeholder-${this.#mark}-`;
  }

  /** Made of the agent's name in the config, the installation, and the agent's id. */
  agentName(name: string, agent: AgentId): string {
    return `${name}-${this.#mark}-${agent}`;
  }

  /** The agent with that name; null when it is not an agent of this installation. */
  agentOf(name: string): AgentId | null {
    return name.startsWith(this.#placeholders) ? null : (this.#own.exec(name)?.[1] ?? null);
  }

  /** Of the placeholder for a set of capabilities. */
  placeholderName(set: string): string {
    return `${this.#placeholders}${hash('sha256', set).slice(0, 8)}`;
  }

  isPlaceholder(name: string): boolean {
    return name.startsWith(this.#placeholders);
  }
}

/** The mark of the installation that made an agent with this name, or a placeholder; null: it does not look like one of onejob. */
export function markIn(name: string): { readonly mark: string; readonly isPlaceholder: boolean } | null {
  const placeholder = /^onejob-placeholder-([0-9a-f]{8})-[0-9a-f]{8}$/.exec(name)?.[1];
  if (placeholder !== undefined) return { mark: placeholder, isPlaceholder: true };
  const mark = /-([0-9a-f]{8})-[0-9a-z]+$/.exec(name)?.[1];
  return mark === undefined ? null : { mark, isPlaceholder: false };
}

export class Registrations {
  readonly #parts: Pick<EarlyParts, 'service' | 'store' | 'opened' | 'clock'>;
  readonly #registry: () => Pick<Registry, 'find' | 'remove' | 'disable'>;
  readonly agentNames: AgentNames;
  /** Being registered right now: a look may show an older entry that is about to be removed. */
  readonly #making = new Set<AgentId>();

  constructor(
    parts: Pick<EarlyParts, 'service' | 'store' | 'opened' | 'clock'>,
    registry: () => Pick<Registry, 'find' | 'remove' | 'disable'>,
  ) {
    this.#parts = parts;
    this.#registry = registry;
    this.agentNames = new AgentNames(parts.store.owner);
  }

  async remove(registration: StoredRegistration, signal: AbortSignal): Promise<'removed' | 'refused'> {
    const { agent, place, name, remote: id } = registration;
    const remote = id === null ? await this.#byName(place, name, signal) : { place, id };
    if (remote !== null && (await this.#registry().remove(remote, signal)) === 'busy') {
      // Until its session expires the service believes that it is there: the next job would be lost on it, too.
      await this.#registry()
        .disable?.(remote, true, signal)
        .catch(() => signal.throwIfAborted());
      return 'refused';
    }
    this.#write(() => this.#parts.store.registrations.removed(agent, this.#parts.clock.wall()));
    return 'removed';
  }

  /** An entry was removed that belonged at most to a service that config no longer names. */
  gaveUp(place: string, name: string): void {
    const left = this.#parts.store.registrations.services().filter((one) => !this.#parts.opened.has(one));
    for (const one of left.flatMap((each) => this.#parts.store.registrations.open(each)))
      if (one.name === name && one.place === place)
        this.#write(() => this.#parts.store.registrations.removed(one.agent, this.#parts.clock.wall()));
  }

  /** Its entry at the service; null when there is none, or onejob has not seen it yet. */
  remoteOf(agent: AgentId): Remote | null {
    const found = this.#own(agent);
    if (found === null || found.state !== 'made' || found.remote === null) return null;
    return { place: found.place, id: found.remote };
  }

  /** Replaces an earlier entry of the same agent. One that registers itself is `seen` later. @throws OnejobError E_CI_* */
  async register<T extends { readonly id: string | null }>(
    of: Pick<StoredRegistration, 'agent' | 'place' | 'name' | 'placeholder'>,
    create: (signal: AbortSignal) => Promise<T>,
    signal: AbortSignal,
  ): Promise<T> {
    const { agent, place, name, placeholder } = of;
    this.#making.add(agent);
    try {
      await this.#clearAway(agent, signal);
      this.#write(() =>
        this.#parts.store.registrations.intend(
          { agent, service: this.#parts.service, place, name, placeholder },
          this.#parts.clock.wall(),
        ),
      );
      await this.#parts.store.sync();
      const made = await this.#add({ place, name }, () => create(signal), signal);
      if (made.id !== null) this.#write(() => this.#parts.store.registrations.made(agent, made.id, this.#parts.clock.wall()));
      return made;
    } finally {
      this.#making.delete(agent);
    }
  }

  /** The same, found by its name when onejob has not seen it yet. @throws OnejobError E_CI_* */
  async locate(agent: AgentId, signal: AbortSignal): Promise<Remote | null> {
    const found = this.#own(agent);
    return found?.state === 'intent' ? this.#byName(found.place, found.name, signal) : this.remoteOf(agent);
  }

  /** An agent that registered itself was seen. */
  seen(agent: AgentId, id: string): void {
    if (this.#making.has(agent) || this.#own(agent)?.state !== 'intent') return;
    this.#write(() => this.#parts.store.registrations.made(agent, id, this.#parts.clock.wall()));
  }

  /** An agent was made of the kind that this placeholder stands for. */
  used(agent: AgentId): void {
    const { usedAt } = this.#own(agent) ?? {};
    if (usedAt != null && this.#parts.clock.wall() - usedAt > 3_600_000)
      this.#write(() => this.#parts.store.registrations.used(agent, this.#parts.clock.wall()));
  }

  find(agent: AgentId) {
    return this.#parts.store.registrations.get(agent);
  }

  open() {
    return this.#parts.store.registrations.open(this.#parts.service);
  }

  /** Names of all registrations that are not removed, of every opened service of this host: they may share a queue. */
  names(): ReadonlySet<string> {
    return new Set([...this.#parts.opened].flatMap((one) => this.#parts.store.registrations.open(one).map(({ name }) => name)));
  }

  #write(change: () => void): void {
    this.#parts.store.transaction({ durable: false }, change);
  }

  async #byName(place: string, name: string, signal: AbortSignal): Promise<Remote | null> {
    const found = await this.#registry().find({ place, name }, signal);
    return found === null ? null : { place, id: found.id };
  }

  /** Removes what an earlier manager registered for the same agent: its key is lost, so it is useless. */
  async #clearAway(agent: AgentId, signal: AbortSignal): Promise<void> {
    const before = this.#parts.store.registrations.get(agent);
    if (before === null) return;
    if (before.service !== this.#parts.service) {
      this.#leaveTo(before);
      return;
    }
    if (before.state !== 'removed' && (await this.remove(before, signal)) === 'refused') {
      const why = `Cannot register agent ${before.name} again: the service reports that it runs a job.`;
      throw new OnejobError('E_CI_NAME_TAKEN', why, { hint: 'onejob tries again.', retry: true });
    }
    // A removed row never comes back, which is right for agents, but a placeholder may be needed again.
    this.#write(() => this.#parts.store.registrations.forget(agent));
  }

  /** Only the service that made an entry may remove it: its sweep treats it as that of an agent that is gone. */
  #leaveTo(before: StoredRegistration): void {
    const agent = `${before.agent} of ${before.service}`;
    this.#write(() => {
      this.#parts.store.registrations.forget(before.agent);
      if (before.state !== 'made') return;
      this.#parts.store.registrations.intend({ ...before, agent }, this.#parts.clock.wall());
      this.#parts.store.registrations.made(agent, before.remote, this.#parts.clock.wall());
    });
  }

  async #add<T>(of: { place: string; name: string }, create: () => Promise<T>, signal: AbortSignal): Promise<T> {
    try {
      return await create();
    } catch (error) {
      if (!hasCode(error, 'E_CI_NAME_TAKEN')) throw error;
      // Only an earlier try whose answer was lost can have a name with our mark and this agent's id.
      const remote = await this.#byName(of.place, of.name, signal);
      if (remote === null) throw error;
      await this.#registry().remove(remote, signal);
      this.gaveUp(of.place, of.name);
      return create();
    }
  }

  #own(agent: AgentId): StoredRegistration | null {
    const found = this.#parts.store.registrations.get(agent);
    return found?.service === this.#parts.service ? found : null;
  }
}

const [first, longest] = [10_000, 300_000];
/** Removals per look, so that a long list does not use up the service's rate limit. */
const atOnce = 20;

/**
 * Removes registrations whose agents are gone, and entries with our mark that the store does not know. What the service refuses to
 * release, because it believes that the agent runs a job, is tried again until its lock has expired. `before`: called before an entry is
 * removed whose agent may have had a job.
 */
export class Sweep {
  readonly #parts: Pick<EarlyParts, 'clock' | 'log' | 'slots'>;
  readonly #registry: Pick<Registry, 'remove'>;
  readonly #registrations: Registrations;
  readonly #before: (remote: Remote, agent: AgentId, signal: AbortSignal) => Promise<unknown>;
  readonly #waits = new Map<AgentId, { readonly at: number; readonly ms: number }>();
  /** Names of unknown entries, by place: only an entry that two looks in a row show is not being registered right now. */
  readonly #strangers = new Map<string, ReadonlySet<string>>();

  constructor(
    parts: Pick<EarlyParts, 'clock' | 'log' | 'slots'>,
    registry: Pick<Registry, 'remove'>,
    registrations: Registrations,
    before: (remote: Remote, agent: AgentId, signal: AbortSignal) => Promise<unknown>,
  ) {
    this.#parts = parts;
    this.#registry = registry;
    this.#registrations = registrations;
    this.#before = before;
  }

  /** For a service that no pool uses any more, until its agents are removed. Its placeholders stay until they are forgotten. */
  async alone(signal: AbortSignal): Promise<void> {
    while (!signal.aborted && this.#left().length > 0) {
      try {
        await this.#ours(signal);
      } catch (error) {
        if (!signal.aborted) this.#parts.log.warn('registrations not removed yet', { reason: toFailure(error).message });
      }
      await sleep(this.#parts.clock, first, signal);
    }
  }

  /** What cannot be removed now is tried again after the next look. */
  async after(shown: Shown, signal: AbortSignal): Promise<void> {
    try {
      await this.#ours(signal);
      await this.#theirs(shown, signal);
    } catch (error) {
      signal.throwIfAborted();
      this.#parts.log.warn('registrations not removed yet', { place: shown.title, reason: toFailure(error).message });
    }
  }

  /** Whether a slot still has this agent, in any lane. */
  #isLive(agent: AgentId): boolean {
    return this.#parts.slots.poolOf(agent) !== null;
  }

  #later(agent: AgentId): void {
    const ms = Math.min(longest, (this.#waits.get(agent)?.ms ?? first / 2) * 2);
    this.#waits.set(agent, { at: this.#parts.clock.now() + ms, ms });
  }

  #left() {
    return this.#registrations.open().filter((one) => !one.placeholder);
  }

  async #ours(signal: AbortSignal): Promise<void> {
    const over = this.#left().filter((one) => !this.#isLive(one.agent));
    const agents = new Set(over.map(({ agent }) => agent));
    for (const agent of this.#waits.keys()) if (!agents.has(agent)) this.#waits.delete(agent);
    const dueAt = ({ agent }: { readonly agent: AgentId }): number => this.#waits.get(agent)?.at ?? 0;
    const due = over.filter((one) => dueAt(one) <= this.#parts.clock.now()).sort((a, b) => dueAt(a) - dueAt(b));
    for (const one of due.slice(0, atOnce)) {
      // Counted before the try, so that an entry that cannot be removed comes after the others next time.
      this.#later(one.agent);
      const remote = this.#registrations.remoteOf(one.agent);
      try {
        if (remote !== null) await this.#before(remote, one.agent, signal);
        if ((await this.#registrations.remove(one, signal)) === 'removed') this.#waits.delete(one.agent);
      } catch (error) {
        signal.throwIfAborted();
        const { message, retry } = toFailure(error);
        this.#parts.log.warn('registration not removed yet', { agent: one.agent, entry: one.name, reason: message });
        // A problem of the whole service would be the same for the others.
        if (retry) return;
      }
    }
  }

  /** Entries that this installation made, by their names, and that its store does not know. */
  async #theirs({ place, title, entries }: Shown, signal: AbortSignal): Promise<void> {
    const booked = this.#registrations.names();
    const unknown = entries.filter(({ name, status, job }) => {
      const agent = this.#registrations.agentNames.agentOf(name);
      const isOurs = this.#registrations.agentNames.isPlaceholder(name) || (agent !== null && !this.#isLive(agent));
      return isOurs && !booked.has(name) && status === 'offline' && job === null;
    });
    const before = this.#strangers.get(place);
    this.#strangers.set(place, new Set(unknown.map(({ name }) => name)));
    for (const one of unknown.filter(({ name }) => before?.has(name)).slice(0, atOnce)) {
      this.#parts.log.warn('removing an orphan', { place: title, agent: one.name });
      if ((await this.#registry.remove(one, signal)) !== 'busy') this.#registrations.gaveUp(place, one.name);
    }
  }
}
