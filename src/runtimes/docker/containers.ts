/**
 * Finds the container of an agent and the owner of its files. Labels identify it, so a new manager finds the containers of the
 * previous one and never a foreign one. Memory only saves requests.
 */
import { text } from 'node:stream/consumers';
import { pipeline } from 'node:stream/promises';
import { extract } from 'tar-stream';
import { OnejobError } from '../../base/errors.ts';
import { sleep } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import { endpointUrl } from '../engine/endpoint.ts';
import type { ContainerAnswer, Engine } from '../engine/engine.ts';
import { translate } from '../engine/failures.ts';
import { labels } from './create.ts';
import type { Owner } from './workspace.ts';

export class Containers {
  readonly #engine: Engine;
  readonly #owner: string;
  readonly #gone: (id: string) => void;
  readonly #known = new Map<AgentId, { readonly id: string; readonly owner: Owner | null }>();
  /** By image and user. */
  readonly #owners = new Map<string, Owner>();

  /** `owner` is the id of this installation. `gone` is called with the id of each removed container. */
  constructor(engine: Engine, owner: string, gone: (id: string) => void) {
    this.#engine = engine;
    this.#owner = owner;
    this.#gone = gone;
  }

  /** Id of the container; null if it does not exist. */
  async find(agent: AgentId, signal?: AbortSignal): Promise<string | null> {
    const id = this.recall(agent);
    if (id !== null) return id;
    const [container] = await this.#engine.containers([`${labels.owner}=${this.#owner}`, `${labels.agent}=${agent}`], signal);
    if (container === undefined) return null;
    this.#known.set(agent, { id: container.Id, owner: null });
    return container.Id;
  }

  /** The container as it is now. @throws OnejobError E_SANDBOX_LOST */
  async sure(agent: AgentId, signal: AbortSignal): Promise<ContainerAnswer> {
    const id = await this.find(agent, signal);
    const container = id === null ? null : await this.#engine.inspect(id, signal);
    if (container !== null) return container;
    this.#known.delete(agent);
    const where = endpointUrl(this.#engine.endpoint);
    throw new OnejobError('E_SANDBOX_LOST', `The sandbox of agent ${agent} is not on the Engine at ${where}.`);
  }

  /** Its id if that is known without asking. */
  recall(agent: AgentId): string | null {
    return this.#known.get(agent)?.id ?? null;
  }

  /** Remembers a container that was created or seen. */
  note(agent: AgentId, id: string): void {
    if (this.recall(agent) !== id) this.#known.set(agent, { id, owner: null });
  }

  /** The owner of files in a container of this image and user. @throws OnejobError E_USER_UNKNOWN */
  async filesOf(agent: AgentId, { id, image, user }: Record<'id' | 'image' | 'user', string>, signal: AbortSignal): Promise<Owner> {
    const key = `${image} ${user}`;
    const files = this.#owners.get(key) ?? (await ownerOf(this.#engine, id, user, signal));
    this.#owners.set(key, files);
    // The container may have been removed meanwhile.
    if (this.recall(agent) === id) this.#known.set(agent, { id, owner: files });
    return files;
  }

  /** The container of an agent and the owner that its files need. @throws OnejobError E_SANDBOX_LOST */
  async home(agent: AgentId, signal: AbortSignal): Promise<{ readonly id: string; readonly owner: Owner }> {
    const own = this.#known.get(agent);
    if (own !== undefined && own.owner !== null) return { id: own.id, owner: own.owner };
    const { Id, Image, Config } = await this.sure(agent, signal);
    return { id: Id, owner: await this.filesOf(agent, { id: Id, image: Image, user: Config.User }, signal) };
  }

  /** Resolves once the container is gone. */
  async remove(agent: AgentId): Promise<void> {
    const engine = this.#engine;
    const id = await this.find(agent);
    if (id === null) return;
    // Another client may have begun to remove it. No event reports the end of that.
    while (!(await engine.remove(id)) && (await engine.inspect(id)) !== null) await sleep(engine.clock, 100);
    this.#known.delete(agent);
    this.#gone(id);
  }
}

/** `user` as Docker takes it: empty, `name`, `uid`, `name:group`, `uid:gid`. */
async function ownerOf(engine: Engine, container: string, user: string, signal: AbortSignal): Promise<Owner> {
  const [name = '', group] = user.split(':');
  if (name === '' || name === 'root' || (name === '0' && group === undefined))
    return { uid: 0, gid: await groupId(engine, container, group, 0, signal) };
  const isNumber = /^\d+$/.test(name);
  if (isNumber && group !== undefined && /^\d+$/.test(group)) return { uid: Number(name), gid: Number(group) };
  const lines = await readLines(engine, container, '/etc/passwd', signal);
  const entry = lines.map((line) => line.split(':')).find((fields) => (isNumber ? fields[2] === name : fields[0] === name));
  if (entry === undefined && !isNumber) {
    const hint = 'Write a uid, or uid:gid, or a user of the image.';
    throw new OnejobError('E_USER_UNKNOWN', `Cannot create a sandbox for user "${user}": the image has no such user.`, { hint });
  }
  return { uid: Number(entry?.[2] ?? name), gid: await groupId(engine, container, group, Number(entry?.[3] ?? 0), signal) };
}

async function groupId(engine: Engine, container: string, group: string | undefined, otherwise: number, signal: AbortSignal) {
  if (group === undefined || group === '') return otherwise;
  if (/^\d+$/.test(group)) return Number(group);
  const lines = await readLines(engine, container, '/etc/group', signal);
  const entry = lines.map((line) => line.split(':')).find((fields) => fields[0] === group);
  if (entry !== undefined) return Number(entry[2]);
  const hint = 'Write a gid, or a group of the image.';
  throw new OnejobError('E_USER_UNKNOWN', `Cannot create a sandbox for group "${group}": the image has no such group.`, { hint });
}

async function readLines(engine: Engine, container: string, path: string, signal: AbortSignal): Promise<string[]> {
  return (await readFile(engine, container, path, signal))?.split('\n') ?? [];
}

/** A file of a container; null if it is not there, has more than `most` bytes, or is anything else, such as a link. */
export async function readFile(engine: Engine, container: string, path: string, signal: AbortSignal, most = Infinity) {
  const archive = await engine.getArchive(container, path, signal);
  if (archive === null) return null;
  const reader = extract();
  // A connection that breaks ends the loop, and the end of the loop the connection.
  pipeline(archive, reader).catch(() => {});
  try {
    for await (const entry of reader)
      return entry.header.type === 'file' && (entry.header.size ?? Infinity) <= most ? await text(entry) : null;
    return null;
  } catch (error) {
    signal.throwIfAborted();
    throw translate(error, `read ${path} in container ${container.slice(0, 12)}`, engine.endpoint);
  }
}
