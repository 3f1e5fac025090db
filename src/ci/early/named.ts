/**
 * Removes entries of agents that other installations registered and left behind, by their names: those of machines in clouds that are
 * gone. Only what the service itself calls offline and without a job is removed, and never an entry of this installation: the store
 * knows those, and its sweep removes them.
 */
import { toFailure } from '../../base/errors.ts';
import type { CiService } from '../../ports/ci-service.ts';
import type { Entry, Queue, Registry } from './port.ts';
import { markIn, type Registrations } from './registrations.ts';

/** An entry; of its job only whether there is one. */
export type NamedEntry = Omit<Entry, 'job'> & { readonly job: unknown };

/** How many installations are remembered. */
const remembered = 1_000;

export interface NamedRemover {
  readonly removeNamed: NonNullable<CiService['removeNamed']>;
  /** A look at a queue has shown these. */
  saw(entries: readonly Pick<Entry, 'name'>[]): void;
}

export function createNamedRemover(
  queues: readonly Queue[],
  registry: Pick<Registry, 'remove'> & {
    list(queue: Queue, signal: AbortSignal): Promise<{ readonly entries: readonly NamedEntry[] }>;
  },
  registrations: Pick<Registrations, 'agentNames' | 'names'>,
): NamedRemover {
  /** Name of an agent of each installation, by its mark: a machine may die while only its placeholders are left. */
  const known = new Map<string, string>();

  function saw(entries: readonly Pick<Entry, 'name'>[]): void {
    for (const { name } of entries) {
      const found = markIn(name);
      if (found === null || found.isPlaceholder) continue;
      known.delete(found.mark);
      known.set(found.mark, name);
    }
    for (const old of [...known.keys()].slice(0, -remembered)) known.delete(old);
  }

  const removeNamed: NamedRemover['removeNamed'] = async (isOurs, signal, { dryRun } = { dryRun: false }) => {
    const [removed, left, unknown] = [new Set<string>(), new Set<string>(), new Set<string>()];
    for (const queue of queues)
      try {
        const { entries } = await registry.list(queue, signal);
        saw(entries);
        const { agentNames } = registrations;
        const booked = registrations.names();
        const isOwn = (name: string): boolean =>
          booked.has(name) || agentNames.agentOf(name) !== null || agentNames.isPlaceholder(name);
        const others = entries.filter(({ name }) => !isOwn(name));
        for (const { agents, placeholders } of installations(others, known, isOurs)) await removeAll(agents, placeholders);
      } catch (error) {
        say(error);
      }
    // Two queues may show one entry.
    return { removed: [...removed], left: [...left].filter((name) => !removed.has(name)), unknown: [...unknown] };

    /** Placeholders first, since only names of agents tell whose they are. */
    async function removeAll(agents: readonly NamedEntry[], placeholders: readonly NamedEntry[]): Promise<void> {
      let isAll = true;
      for (const one of placeholders) isAll = (await remove(one)) && isAll;
      for (const one of agents)
        if (isAll) await remove(one);
        else left.add(one.name);
    }

    async function remove(entry: NamedEntry): Promise<boolean> {
      const { name } = entry;
      try {
        const isGone = isIdle(entry) && (dryRun || (await registry.remove(entry, signal)) !== 'busy');
        (isGone ? removed : left).add(name);
        return isGone;
      } catch (error) {
        left.add(name);
        say(error);
        return false;
      }
    }

    function say(error: unknown): void {
      signal.throwIfAborted();
      unknown.add(toFailure(error).message);
    }
  };
  return { removeNamed, saw };
}

/** Whether nobody is there, as far as the service says. */
const isIdle = ({ status, job }: NamedEntry): boolean => status === 'offline' && job === null;

/** Chosen agents by the installation that made them. Its placeholders are left over when all of its agents are. `known`: its last one. */
function installations(entries: readonly NamedEntry[], known: ReadonlyMap<string, string>, isOurs: (name: string) => boolean) {
  const named = entries.flatMap((entry) => {
    const found = markIn(entry.name);
    return found === null ? [] : [{ entry, ...found }];
  });
  return [...Map.groupBy(named, ({ mark }) => mark)].map(([mark, all]) => {
    const agents = all.filter(({ isPlaceholder }) => !isPlaceholder).map(({ entry }) => entry);
    const chosen = agents.filter(({ name }) => isOurs(name));
    const last = known.get(mark);
    const isLeft = last !== undefined && isOurs(last) && chosen.length === agents.length && chosen.every(isIdle);
    return { agents: chosen, placeholders: isLeft ? all.filter((one) => one.isPlaceholder).map(({ entry }) => entry) : [] };
  });
}
