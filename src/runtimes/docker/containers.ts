/**
 * Which container is an agent's, and whose its files are. Told by the labels that it was made with, so that a new manager
 * finds what the one before has made, and nobody else's is ever found; what is remembered only saves questions.
 */
import { sleep } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import { OnejobError } from '../../errors.ts';
import type { Owner } from './archive.ts';
import { labels } from './create.ts';
import { endpointUrl } from './endpoint.ts';
import type { ContainerAnswer, Engine } from './engine.ts';
import { ownerOf } from './users.ts';

export interface ContainerParts {
  readonly engine: Engine;
  /** Id of this installation. */
  readonly owner: string;
  /** Told the id of each container that was removed. */
  readonly gone: (id: string) => void;
}

interface Known {
  readonly id: string;
  readonly owner: Owner | null;
}

export type Containers = ReturnType<typeof createContainers>;

export function createContainers({ engine, owner, gone }: ContainerParts) {
  const known = new Map<AgentId, Known>();
  const owners = new Map<string, Owner>();

  const find = async (agent: AgentId, signal?: AbortSignal): Promise<string | null> => {
    const id = known.get(agent)?.id;
    if (id !== undefined) return id;
    const [found] = await engine.containers([`${labels.owner}=${owner}`, `${labels.agent}=${agent}`], signal);
    if (found === undefined) return null;
    known.set(agent, { id: found.Id, owner: null });
    return found.Id;
  };
  const sure = async (agent: AgentId, signal: AbortSignal): Promise<ContainerAnswer> => {
    const id = await find(agent, signal);
    const container = id === null ? null : await engine.inspect(id, signal);
    if (container !== null) return container;
    known.delete(agent);
    const where = endpointUrl(engine.endpoint);
    throw new OnejobError('E_SANDBOX_LOST', `The sandbox of agent ${agent} is not on the Engine at ${where}.`);
  };
  const filesOf = async (
    agent: AgentId,
    { id, image, user }: { readonly id: string; readonly image: string; readonly user: string },
    signal: AbortSignal,
  ): Promise<Owner> => {
    const key = `${image} ${user}`;
    const files = owners.get(key) ?? (await ownerOf(engine, id, user, signal));
    owners.set(key, files);
    // It may have been removed meanwhile.
    if (known.get(agent)?.id === id) known.set(agent, { id, owner: files });
    return files;
  };

  return {
    /** Its id, if the container is there. */
    find,
    /** The container as it is now. @throws OnejobError E_SANDBOX_LOST */
    sure,
    /** Its id as far as it is known without asking. */
    recall: (agent: AgentId): string | null => known.get(agent)?.id ?? null,
    /** It was made, or seen. */
    note(agent: AgentId, id: string): void {
      const before = known.get(agent);
      if (before?.id !== id) known.set(agent, { id, owner: null });
    },
    /** Who owns the files of a container of this image and user. @throws OnejobError E_USER_UNKNOWN */
    filesOf,
    /** Where an agent's files go, and whose they are to be there. @throws OnejobError E_SANDBOX_LOST */
    async home(agent: AgentId, signal: AbortSignal): Promise<{ readonly id: string; readonly owner: Owner }> {
      const own = known.get(agent);
      if (own !== undefined && own.owner !== null) return { id: own.id, owner: own.owner };
      const { Id, Image, Config } = await sure(agent, signal);
      return { id: Id, owner: await filesOf(agent, { id: Id, image: Image, user: Config.User }, signal) };
    },
    /** Returns once the container is gone. */
    async remove(agent: AgentId): Promise<void> {
      const id = await find(agent);
      if (id === null) return;
      // A removal that somebody else began is waited for; nothing tells when it is done.
      while (!(await engine.remove(id)) && (await engine.inspect(id)) !== null) await sleep(engine.clock, 100);
      known.delete(agent);
      gone(id);
    },
  };
}
