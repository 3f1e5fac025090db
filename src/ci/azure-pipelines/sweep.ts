/**
 * Both sides of the books (S4): registrations that were made and whose agents are gone, and entries with our mark that no book knows.
 * What the service refuses to give up, as it runs a job as far as it knows, is tried again until its lock has run out.
 */
import type { Clock } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import { toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import type { AzureClient } from './client.ts';
import type { Marks } from './marks.ts';
import type { Registrar, Remote } from './registrar.ts';
import type { Seen } from './watch.ts';

export interface SweepParts {
  readonly log: Log;
  readonly client: AzureClient;
  readonly registrar: Registrar;
  readonly marks: Marks;
  /** Whether a slot still has this agent, in whatever lane. */
  readonly isLive: (agent: AgentId) => boolean;
  /** Called before an entry is removed whose agent may have had a job. */
  readonly before: (remote: Remote, agent: AgentId, signal: AbortSignal) => Promise<unknown>;
  /** Core clock, ms. */
  readonly now: () => number;
}

const [first, longest] = [10_000, 300_000];
/** Removals in one look, so that a long list does not use up what the service allows. */
const atOnce = 20;

export function createSweep({ log, client, registrar, marks, isLive, before, now }: SweepParts) {
  const waits = new Map<AgentId, { readonly at: number; readonly ms: number }>();
  /** Entries without a book, by agent pool and name: only one that is there twice is not being made right now. */
  const strangers = new Map<number, ReadonlySet<string>>();

  const later = (agent: AgentId): void => {
    const ms = Math.min(longest, (waits.get(agent)?.ms ?? first / 2) * 2);
    waits.set(agent, { at: now() + ms, ms });
  };

  const left = () => registrar.open().filter((one) => !one.placeholder);

  /** Registrations whose agents are gone. */
  async function books(signal: AbortSignal): Promise<void> {
    const over = left().filter((one) => !isLive(one.agent));
    const agents = new Set(over.map(({ agent }) => agent));
    for (const agent of waits.keys()) if (!agents.has(agent)) waits.delete(agent);
    const dueAt = ({ agent }: { readonly agent: AgentId }): number => waits.get(agent)?.at ?? 0;
    const due = over.filter((one) => dueAt(one) <= now()).sort((a, b) => dueAt(a) - dueAt(b));
    for (const one of due.slice(0, atOnce)) {
      // Counted before it is tried, so that one that cannot be removed comes after the others the next time.
      later(one.agent);
      const remote = registrar.remoteOf(one.agent);
      try {
        if (remote !== null) await before(remote, one.agent, signal);
        if ((await registrar.remove(one, signal)) === 'removed') waits.delete(one.agent);
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
  async function world({ pool, agents }: Seen, signal: AbortSignal): Promise<void> {
    const booked = registrar.names();
    const unknown = agents.filter(({ name, status, assignedRequest }) => {
      const agent = marks.agentOf(name);
      const isOurs = marks.isPlaceholder(name) || (agent !== null && !isLive(agent));
      return isOurs && !booked.has(name) && status === 'offline' && assignedRequest === null;
    });
    const before = strangers.get(pool.id);
    strangers.set(pool.id, new Set(unknown.map(({ name }) => name)));
    for (const { id, name } of unknown.filter((one) => before?.has(one.name)).slice(0, atOnce)) {
      log.warn('removing an orphan', { place: pool.name, agent: name });
      if (typeof (await client.deleteAgent(pool.id, id, signal)) === 'string') registrar.gaveUp(pool.id, name);
    }
  }

  return {
    /** For a service that no pool uses any more, until what it made of agents is gone. Its placeholders stay until they are forgotten. */
    alone(clock: Clock, signal: AbortSignal): void {
      let cancel = () => {};
      const again = async (): Promise<void> => {
        if (signal.aborted || left().length === 0) return;
        try {
          await books(signal);
        } catch (error) {
          if (!signal.aborted) log.warn('registrations not removed yet', { reason: toFailure(error).message });
        }
        if (!signal.aborted) cancel = clock.after(first, () => void again());
      };
      signal.addEventListener('abort', () => cancel(), { once: true });
      void again();
    },

    /** What cannot be removed now is tried again after another look. */
    async after(seen: Seen, signal: AbortSignal): Promise<void> {
      try {
        await books(signal);
        await world(seen, signal);
      } catch (error) {
        signal.throwIfAborted();
        log.warn('registrations not removed yet', { place: seen.pool.name, reason: toFailure(error).message });
      }
    },
  };
}
