/**
 * Both sides of the books (S4): registrations that were made and whose agents are gone, and entries with our mark that no book knows.
 * What the service refuses to give up, as it runs a job as far as it knows, is tried again until its lock has run out.
 */
import type { AgentId } from '../../core/slot.ts';
import type { Log } from '../../log.ts';
import type { AzureClient } from './client.ts';
import type { Marks } from './marks.ts';
import type { Registrar } from './registrar.ts';
import type { Seen } from './watch.ts';

export interface SweepParts {
  readonly log: Log;
  readonly client: AzureClient;
  readonly registrar: Registrar;
  readonly marks: Marks;
  /** Whether a slot still has this agent, in whatever lane. */
  readonly isLive: (agent: AgentId) => boolean;
  /** Called before an entry is removed whose agent may have had a job. */
  readonly before: (pool: number, id: number, agent: AgentId, signal: AbortSignal) => Promise<unknown>;
  /** Core clock, ms. */
  readonly now: () => number;
}

const [first, longest] = [10_000, 300_000];
/** Removals in one look, so that a long list does not use up what the service allows. */
const atOnce = 20;

export function createSweep({ log, client, registrar, marks, isLive, before, now }: SweepParts) {
  const waits = new Map<AgentId, { readonly at: number; readonly ms: number }>();
  /** Entries without a book, by name: only one that is there twice is not being made right now. */
  let strangers: ReadonlySet<string> = new Set();

  const later = (agent: AgentId): void => {
    const ms = Math.min(longest, (waits.get(agent)?.ms ?? first / 2) * 2);
    waits.set(agent, { at: now() + ms, ms });
  };

  /** Registrations whose agents are gone. */
  async function books(signal: AbortSignal): Promise<void> {
    const due = registrar
      .open()
      .filter((one) => !one.placeholder && !isLive(one.agent) && (waits.get(one.agent)?.at ?? 0) <= now());
    for (const one of due.slice(0, atOnce)) {
      const remote = registrar.remoteOf(one.agent);
      if (remote !== null) await before(remote.pool, remote.id, one.agent, signal);
      if ((await registrar.remove(one, signal)) === 'removed') waits.delete(one.agent);
      else later(one.agent);
    }
  }

  /** Entries that this installation made, by their names, and has no book of: of a state directory that was lost. */
  async function world({ pool, agents }: Seen, signal: AbortSignal): Promise<void> {
    const open = new Set(registrar.open().map(({ name }) => name));
    const unknown = agents.filter(({ name, status, assignedRequest }) => {
      const agent = marks.agentOf(name);
      return agent !== null && !open.has(name) && !isLive(agent) && status === 'offline' && assignedRequest === null;
    });
    for (const { id, name } of unknown.filter((one) => strangers.has(one.name)).slice(0, atOnce)) {
      log.warn('removing an orphan', { service: pool.name, agent: name });
      await client.deleteAgent(pool.id, id, signal);
    }
    strangers = new Set(unknown.map(({ name }) => name));
  }

  return {
    async after(seen: Seen, signal: AbortSignal): Promise<void> {
      await books(signal);
      await world(seen, signal);
    },
  };
}
