/**
 * The parts of the Engine's API that onejob needs. `call.ts` sends the calls, zod checks each answer, and every error becomes an
 * OnejobError, or null for something that does not exist.
 */
import { IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import type { Readable } from 'node:stream';
import { z } from 'zod';
import { messageOf, OnejobError } from '../../base/errors.ts';
import type { Clock } from '../../core/clock.ts';
import { jsonOf } from '../../system/json.ts';
import { systemClock } from '../../system/system-clock.ts';
import { type Connection, connect, type EngineCall, type Limits, type Query, usualLimits } from './call.ts';
import type { Endpoint } from './endpoint.ts';
import { statusOf, translate } from './failures.ts';
import { type EngineVersion, type InfoAnswer, infoAnswer, lenient, versionAnswer } from './probe.ts';

const containerAnswer = z.object({
  Id: z.string(),
  Name: z.string(),
  Image: z.string(),
  State: z.object({
    Status: z.string(),
    Running: z.boolean(),
    OOMKilled: z.boolean().default(false),
    ExitCode: z.number(),
    /** Pid of its first process on the Engine's host; 0 while it does not run. */
    Pid: z.number().default(0),
  }),
  Config: z.object({ User: z.string().default(''), Labels: z.record(z.string(), z.string()).nullish() }),
  /** `overlay2` reports where the container's files are; containerd's image store does not. */
  GraphDriver: lenient(z.object({ Data: z.object({ UpperDir: z.string().optional() }).nullish() })),
  Mounts: lenient(
    z.array(z.object({ Type: z.string(), Name: z.string().default(''), Source: z.string().default(''), Destination: z.string() })),
  ),
});
export type ContainerAnswer = z.infer<typeof containerAnswer>;

const labelled = z.object({ Id: z.string(), Labels: z.record(z.string(), z.string()).nullish() });
type Labelled = z.infer<typeof labelled>;
const listAnswer = z.array(labelled.extend({ State: z.string() }));
export type ContainerListed = z.infer<typeof listAnswer>[number];
const imagesAnswer = z.array(labelled);
const imageAnswer = z.object({
  Id: z.string(),
  Size: z.number().default(0),
  RepoTags: z.array(z.string()).nullish(),
  Config: z
    .object({
      User: z.string().nullish(),
      Env: z.array(z.string()).nullish(),
      Labels: z.record(z.string(), z.string()).nullish(),
    })
    .nullish(),
});
const distributionAnswer = z.object({ Descriptor: z.object({ digest: z.string().regex(/^sha256:[a-f0-9]{64}$/) }) });
const waitAnswer = z.object({ StatusCode: z.int().min(0).max(255) });
const networkAnswer = z.object({
  Id: z.string(),
  Name: z.string().default(''),
  Created: z.string().default(''),
  Labels: z.record(z.string(), z.string()).nullish(),
  Options: z.record(z.string(), z.string()).nullish(),
  Driver: z.string().default(''),
  IPAM: z
    .object({ Config: z.array(z.object({ Subnet: z.string().default(''), Gateway: z.string().default('') })).nullish() })
    .nullish(),
  /** By the container's id, or another word if it is gone. Only when one network is inspected. */
  Containers: z.record(z.string(), z.object({ Name: z.string().default('') })).nullish(),
});
export type NetworkAnswer = z.infer<typeof networkAnswer>;
const volumeAnswer = z.object({ Name: z.string(), Labels: z.record(z.string(), z.string()).nullish() });
const volumesAnswer = z.object({ Volumes: z.array(volumeAnswer).nullish() });
/** Content of `X-Docker-Container-Path-Stat`. The mode is Go's, with the kind of file in its upper bits. */
const pathAnswer = z.object({ mode: z.number() });
const modeDirectory = 31;
const modeLink = 27;
const idAnswer = z.object({ Id: z.string() });
/** `ExitCode` is null while it runs. */
const execAnswer = z.object({ Running: z.boolean(), ExitCode: z.number().nullish() });

export interface ImageAnswer {
  readonly id: string;
  /** The image's own user; empty for root. */
  readonly user: string;
  /** Its PATH; null for the Engine's own. */
  readonly path: string | null;
  readonly labels: Readonly<Record<string, string>>;
  /** Bytes on the Engine's disk. */
  readonly size: number;
  readonly tags: readonly string[];
}

/** A client with its own connections, which `close` ends. */
export class Engine {
  readonly endpoint: Endpoint;
  readonly clock: Clock;
  readonly limits: Limits;
  readonly #connection: Connection;

  constructor(endpoint: Endpoint, limits: Limits = usualLimits, clock: Clock = systemClock) {
    this.endpoint = endpoint;
    this.limits = limits;
    this.clock = clock;
    this.#connection = connect(endpoint, limits, clock);
  }

  close(): void {
    this.#connection.close();
  }

  /** To be called when its connections ended: it was stopped, and another one may answer from now on. */
  interrupted(): void {
    this.#connection.forget();
  }

  async version(signal?: AbortSignal): Promise<EngineVersion> {
    const podman = await this.isPodman(signal);
    return { ...(await this.#look(versionAnswer, '/version', 'get the version', { signal })), podman };
  }

  info(signal?: AbortSignal): Promise<InfoAnswer> {
    return this.#look(infoAnswer, '/info', 'get information about the Engine', { signal });
  }

  /** Whether it is Podman with its Docker-compatible socket. */
  async isPodman(signal?: AbortSignal): Promise<boolean> {
    const doing = 'ask which Engine it is';
    return (
      await this.#connection.spoken(doing, signal).catch((error: unknown) => Promise.reject(translate(error, doing, this.endpoint)))
    ).podman;
  }

  /** A raw connection to a container or a program in it. @throws foreign errors, too */
  upgrade(path: string, doing: string, signal: AbortSignal, body?: object): Promise<Socket> {
    return this.#connection.upgrade(path, doing, signal, body);
  }

  /** The id of a new container. @throws foreign errors, too: the meaning of a refusal depends on the recipe. Has no signal, see `prepare` */
  async create(name: string, body: object): Promise<string> {
    const doing = `create container ${name}`;
    return idOf(await this.#raw({ method: 'POST', path: '/containers/create', query: { name }, body, doing, limit: 'late' }));
  }

  /** Succeeds also if it already runs. @throws foreign errors, too */
  async start(id: string): Promise<void> {
    await this.#raw({ method: 'POST', path: `/containers/${id}/start`, doing: `start container ${short(id)}`, limit: 'late' });
  }

  inspect(id: string, signal?: AbortSignal): Promise<ContainerAnswer | null> {
    return this.#find(containerAnswer, `/containers/${id}/json`, `inspect container ${short(id)}`, signal);
  }

  /** Containers with all of `labels`, including ended ones. */
  async containers(labels: readonly string[], signal?: AbortSignal): Promise<ContainerListed[]> {
    const query = { all: true, filters: { label: labels } };
    const all = await this.#look(listAnswer, '/containers/json', 'list containers', { query, signal });
    return all.filter(({ Labels }) => carries(labels, Labels));
  }

  /** A container that is unknown or does not run is not an error. */
  async kill(id: string, signal: string): Promise<void> {
    const doing = `send ${signal} to container ${short(id)}`;
    try {
      await this.#raw({ method: 'POST', path: `/containers/${id}/kill`, query: { signal }, doing, limit: 'soon' });
    } catch (error) {
      if (!isNotRunning(error)) throw translate(error, doing, this.endpoint);
    }
  }

  /** Ends and removes a container with its anonymous volumes. False if a removal is already under way. */
  async remove(id: string): Promise<boolean> {
    const query = { force: true, v: true };
    const doing = `remove container ${short(id)}`;
    try {
      await this.#raw({ method: 'DELETE', path: `/containers/${id}`, query, doing, limit: 'late' });
    } catch (error) {
      const status = statusOf(error);
      if (status === 409) return false;
      if (status !== 404) throw translate(error, doing, this.endpoint);
    }
    return true;
  }

  async image(reference: string, signal?: AbortSignal): Promise<ImageAnswer | null> {
    const image = await this.#find(imageAnswer, `/images/${reference}/json`, `inspect image "${reference}"`, signal);
    if (image === null) return null;
    const { User: user, Env: env, Labels: labels } = image.Config ?? {};
    const path = env?.findLast((each) => each.startsWith('PATH='))?.slice('PATH='.length) ?? null;
    return { id: image.Id, user: user ?? '', path, labels: labels ?? {}, size: image.Size, tags: image.RepoTags ?? [] };
  }

  async images(label: string, signal: AbortSignal): Promise<Labelled[]> {
    const query = { filters: { label: [label] } };
    const all = await this.#look(imagesAnswer, '/images/json', 'list images', { query, signal });
    return all.filter(({ Labels }) => carries([label], Labels));
  }

  /** By name or id. An unknown one is not an error. @throws OnejobError E_ENGINE_FAILED (retry) for one in use */
  async removeImage(image: string): Promise<void> {
    await this.#ask({ method: 'DELETE', path: `/images/${image}`, doing: `remove image ${image}`, limit: 'late', nothing: [404] });
  }

  /**
   * Makes an image of a container's files, with its config and these labels in addition. Replaces an earlier one. Takes as long as
   * the files are many. After an abort the Engine may still finish it.
   */
  async commit(
    id: string,
    { repo, tag, labels }: { readonly repo: string; readonly tag: string; readonly labels: Readonly<Record<string, string>> },
    signal: AbortSignal,
  ): Promise<void> {
    const query = { container: id, repo, tag, pause: false };
    const doing = `make an image of container ${short(id)}`;
    await this.#ask({ method: 'POST', path: '/commit', query, body: { Labels: labels }, doing, limit: 'work', signal });
  }

  /** Prepares a program in a running container, with its input and output; its id. null if there is no such container, or it does not run. */
  async exec(id: string, command: readonly string[], signal: AbortSignal): Promise<string | null> {
    const body = { Cmd: command, AttachStdin: true, AttachStdout: true, AttachStderr: true };
    const doing = `run a program in container ${short(id)}`;
    try {
      return idOf(await this.#raw({ method: 'POST', path: `/containers/${id}/exec`, body, doing, limit: 'late', signal }));
    } catch (error) {
      signal.throwIfAborted();
      if (isNotRunning(error)) return null;
      throw translate(error, doing, this.endpoint);
    }
  }

  /** The exit code of such a program; null while it runs, or if it is unknown. */
  async execEnded(exec: string, signal: AbortSignal): Promise<number | null> {
    const doing = 'look for the end of a program in a container';
    const program = await this.#find(execAnswer, `/exec/${exec}/json`, doing, signal);
    return program === null || program.Running ? null : (program.ExitCode ?? null);
  }

  /** Terminal size of a running container. */
  async resize(id: string, { columns, rows }: { readonly columns: number; readonly rows: number }): Promise<void> {
    const doing = `resize the terminal of container ${short(id)}`;
    await this.#ask({ method: 'POST', path: `/containers/${id}/resize`, query: { h: rows, w: columns }, doing, limit: 'soon' });
  }

  /** The pull's progress as JSON lines. @throws foreign errors, too */
  pull(query: { fromImage: string; tag: string }, auth: object | null, signal: AbortSignal): AsyncGenerator<string, void> {
    const doing = `pull ${query.fromImage}:${query.tag}`;
    return this.#connection.lines({ method: 'POST', path: '/images/create', query, auth, doing, limit: 'idle', signal });
  }

  /** An image as `docker save` writes it; null if it does not exist. */
  saveImage(id: string, signal: AbortSignal): Promise<Readable | null> {
    const doing = `read image ${id}`;
    return this.#connection.flow({ method: 'GET', path: `/images/${id}/get`, doing, limit: 'late', signal, nothing: [404] });
  }

  /** Asks the registry for the description of an image: its digest, null if the Engine does not say. @throws foreign errors, too */
  async distribution(reference: string, auth: object | null, signal: AbortSignal): Promise<string | null> {
    const path = `/distribution/${reference}/json`;
    const answer = await this.#raw({ method: 'GET', path, auth, doing: `ask for ${reference}`, limit: 'soon', signal });
    return distributionAnswer.safeParse(answer).data?.Descriptor.digest ?? null;
  }

  network(name: string, signal?: AbortSignal): Promise<NetworkAnswer | null> {
    return this.#find(networkAnswer, `/networks/${name}`, `inspect network "${name}"`, signal);
  }

  /** An existing network of that name is not an error. */
  async createNetwork(body: { readonly Name: string } & Query): Promise<void> {
    const doing = `create network "${body.Name}"`;
    await this.#ask({ method: 'POST', path: '/networks/create', body, doing, limit: 'late', nothing: [409] });
  }

  async networks(label: string, signal?: AbortSignal): Promise<NetworkAnswer[]> {
    const query = { filters: { label: [label] } };
    const all = await this.#look(z.array(networkAnswer), '/networks', 'list networks', { query, signal });
    return all.filter(({ Labels }) => carries([label], Labels));
  }

  /** False if it is in use, or gone. */
  async removeNetwork(id: string): Promise<boolean> {
    const doing = `remove network ${short(id)}`;
    return (
      (await this.#ask({ method: 'DELETE', path: `/networks/${id}`, doing, limit: 'soon', nothing: [403, 404, 409] })) !== null
    );
  }

  /** Disconnects a container, by name because it may be gone. Succeeds also if it is not connected. */
  async disconnect(id: string, name: string): Promise<void> {
    const doing = `disconnect container "${name}" from network ${short(id)}`;
    const body = { Container: name, Force: true };
    await this.#ask({ method: 'POST', path: `/networks/${id}/disconnect`, body, doing, limit: 'soon', nothing: [403, 404, 409] });
  }

  /** Volumes with all of `labels` that no container uses. */
  async danglingVolumes(labels: readonly string[], signal?: AbortSignal): Promise<string[]> {
    const query = { filters: { dangling: ['true'], label: labels } };
    const { Volumes } = await this.#look(volumesAnswer, '/volumes', 'list volumes', { query, signal });
    return (Volumes ?? []).filter(({ Labels }) => carries(labels, Labels)).map(({ Name }) => Name);
  }

  /** Whether it has all of `labels`, too. */
  async hasVolume(name: string, labels: readonly string[], signal: AbortSignal): Promise<boolean> {
    const found = await this.#find(volumeAnswer, `/volumes/${name}`, `inspect volume ${name}`, signal);
    return found !== null && carries(labels, found.Labels);
  }

  /** Succeeds also if the volume is in use or gone. */
  async removeVolume(name: string): Promise<void> {
    const doing = `remove volume ${short(name)}`;
    await this.#ask({ method: 'DELETE', path: `/volumes/${name}`, doing, limit: 'soon', nothing: [404, 409] });
  }

  /** Unpacks a tar at `path` in the container. Takes as long as `file`, which is destroyed on failure. */
  async putArchive(id: string, path: string, file: Readable | Buffer, signal: AbortSignal): Promise<void> {
    const doing = `put files into container ${short(id)}`;
    await this.#ask({ method: 'PUT', path: `/containers/${id}/archive`, query: { path }, file, doing, limit: 'idle', signal });
  }

  /** A path of a container as a tar; null if it does not exist. */
  getArchive(id: string, path: string, signal: AbortSignal): Promise<Readable | null> {
    const doing = `get files out of container ${short(id)}`;
    const call = { method: 'GET', path: `/containers/${id}/archive`, query: { path }, doing, limit: 'late', signal } as const;
    return this.#connection.flow({ ...call, nothing: [404] });
  }

  /**
   * A folder named by the end of `path`, which is the first entry. null if it does not exist, or the Engine reports a link or
   * anything else. Podman follows links, and its archive may not show that.
   */
  async getFolder(id: string, path: string, signal: AbortSignal): Promise<Readable | null> {
    const answer = await this.getArchive(id, path, signal).catch((error: unknown) => {
      // The answer for a link that leads to itself, and with Podman also for one that leaves the volume of an ended container.
      if (/too many (levels of symbolic )?links/.test(messageOf(error))) return null;
      throw error;
    });
    const is = answer === null ? null : isFolder(answer);
    if (is === true) return answer;
    answer?.destroy();
    if (answer === null || is === false) return null;
    const message = `Cannot get files out of container ${short(id)}: the Engine does not tell a folder from a link (it sent no X-Docker-Container-Path-Stat).`;
    throw new OnejobError('E_ENGINE_FAILED', message, {
      hint: 'Is something between onejob and the Engine that leaves headers out?',
    });
  }

  /** null if there is no such container. `since` in the Engine's format: seconds, a dot, nine digits. */
  logs(id: string, since: string, signal: AbortSignal): Promise<Readable | null> {
    const query = { follow: true, stdout: true, stderr: true, timestamps: true, since };
    const doing = `follow the log of container ${short(id)}`;
    const call = { method: 'GET', path: `/containers/${id}/logs`, query, doing, limit: 'late', signal } as const;
    return this.#connection.flow({ ...call, nothing: [404] });
  }

  /** Resolves when the container does not run and its log is complete: with its exit code, or null if the Engine tells none. */
  async ended(id: string, signal: AbortSignal): Promise<number | null> {
    const call = {
      method: 'POST',
      path: `/containers/${id}/wait`,
      doing: `wait for container ${short(id)}`,
      limit: 'late',
    } as const;
    const answer = await this.#connection.flow({ ...call, signal, nothing: [404] });
    let said = '';
    // What answers may be a job's.
    for await (const piece of answer ?? []) if (said.length < 4096) said += piece;
    signal.throwIfAborted();
    return waitAnswer.safeParse(jsonOf(said)).data?.StatusCode ?? null;
  }

  /** `since` in seconds since the epoch. The Engine keeps its last 256 events. */
  events(filters: Query, since: number, signal: AbortSignal): Promise<Readable | null> {
    const query = { filters, since };
    return this.#connection.flow({ method: 'GET', path: '/events', query, doing: 'follow events', limit: 'soon', signal });
  }

  /** Whether the memory limit of a running container has ended something in it, as far as the Engine's last events say. */
  async hasExceededMemory(id: string, signal: AbortSignal): Promise<boolean> {
    const query = { filters: { container: [id], event: ['oom'] }, since: 1, until: Math.ceil(this.clock.wall() / 1000) };
    const doing = `ask what container ${short(id)} ran out of`;
    return (await this.#ask({ method: 'GET', path: '/events', query, doing, limit: 'soon', signal })) !== '';
  }

  #raw(call: EngineCall): Promise<unknown> {
    return this.#connection.raw(call);
  }

  #ask(call: EngineCall): Promise<unknown> {
    return this.#connection.ask(call);
  }

  async #look<T extends z.ZodType>(
    answer: T,
    path: string,
    doing: string,
    more: Pick<EngineCall, 'query' | 'signal'>,
  ): Promise<z.infer<T>> {
    return answer.parse(await this.#ask({ method: 'GET', path, doing, limit: 'soon', ...more }));
  }

  /** null if it does not exist. */
  async #find<T extends z.ZodType>(answer: T, path: string, doing: string, signal?: AbortSignal): Promise<z.infer<T> | null> {
    const body = await this.#ask({ method: 'GET', path, doing, limit: 'soon', signal, nothing: [404] });
    return body === null ? null : answer.parse(body);
  }
}

/**
 * Whether something carries all of these labels (`name` or `name=value`). The Engine was asked for nothing else, but one that ignored a
 * filter would hand out what belongs to others, and what is listed here may be removed.
 */
export function carries(labels: readonly string[], has: Readonly<Record<string, string>> | null | undefined): boolean {
  return labels.every((label) => {
    const [name = '', ...value] = label.split('=');
    return value.length === 0 ? has?.[name] !== undefined : has?.[name] === value.join('=');
  });
}

function idOf(answer: unknown): string {
  return idAnswer.parse(answer).Id;
}

/** Whether a refusal says that there is no such container, or that it does not run. */
function isNotRunning(error: unknown): boolean {
  const status = statusOf(error);
  // Podman answers 500 where Docker answers 409.
  return (
    status === 404 || status === 409 || (status === 500 && /not running|only kill running|state improper/i.test(messageOf(error)))
  );
}

function short(id: string): string {
  return id.slice(0, 12);
}

/** Whether an archive is of a folder, according to its header; null without one. */
function isFolder(answer: Readable): boolean | null {
  const head = answer instanceof IncomingMessage ? answer.headers['x-docker-container-path-stat'] : undefined;
  if (typeof head !== 'string') return null;
  const { mode } = pathAnswer.parse(JSON.parse(Buffer.from(head, 'base64').toString()));
  return ((mode >>> modeDirectory) & 1) === 1 && ((mode >>> modeLink) & 1) === 0;
}
