/**
 * The parts of the Engine's API that onejob needs. `call.ts` sends the calls, zod checks each answer, and every error becomes an
 * OnejobError, or null for something that does not exist.
 */
import { IncomingMessage } from 'node:http';
import type { Readable } from 'node:stream';
import { finished } from 'node:stream/promises';
import { z } from 'zod';
import { messageOf } from '../../base/errors.ts';
import type { Clock } from '../../core/clock.ts';
import { systemClock } from '../../system/system-clock.ts';
import { connect, type Limits, type Query, usualLimits } from './call.ts';
import type { Endpoint } from './endpoint.ts';
import { statusOf, translate } from './failures.ts';
import { infoAnswer, lenient, versionAnswer } from './probe.ts';

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

const listAnswer = z.array(z.object({ Id: z.string(), State: z.string(), Labels: z.record(z.string(), z.string()).nullish() }));
const imageAnswer = z.object({
  Id: z.string(),
  Config: z
    .object({
      User: z.string().nullish(),
      Env: z.array(z.string()).nullish(),
      Labels: z.record(z.string(), z.string()).nullish(),
    })
    .nullish(),
});
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
const volumesAnswer = z.object({ Volumes: z.array(z.object({ Name: z.string() })).nullish() });
/** Content of `X-Docker-Container-Path-Stat`. The mode is Go's, with the kind of file in its upper bits. */
const pathAnswer = z.object({ mode: z.number() });
const modeDirectory = 31;
const modeLink = 27;
const idAnswer = z.object({ Id: z.string() });
/** `ExitCode` is null while it runs. */
const execAnswer = z.object({ Running: z.boolean(), ExitCode: z.number().nullish() });
const imagesAnswer = z.array(z.object({ Id: z.string(), Labels: z.record(z.string(), z.string()).nullish() }));

export type Engine = ReturnType<typeof connectEngine>;

/** A client with its own connections, which `close` ends. */
export function connectEngine(endpoint: Endpoint, limits: Limits = usualLimits, clock: Clock = systemClock) {
  const { raw, ask, flow, lines, close } = connect(endpoint, limits, clock);

  type Look = { readonly query?: Query; readonly signal?: AbortSignal | undefined };
  const look = async <T extends z.ZodType>(answer: T, path: string, doing: string, more: Look): Promise<z.infer<T>> =>
    answer.parse(await ask({ method: 'GET', path, doing, limit: 'soon', ...more }));
  /** null if it does not exist. */
  const find = async <T extends z.ZodType>(answer: T, path: string, doing: string, signal?: AbortSignal) => {
    const found = await ask({ method: 'GET', path, doing, limit: 'soon', signal, nothing: [404] });
    return found === null ? null : answer.parse(found);
  };
  const getArchive = (id: string, path: string, signal: AbortSignal): Promise<Readable | null> => {
    const doing = `get files out of container ${short(id)}`;
    const call = { method: 'GET', path: `/containers/${id}/archive`, query: { path }, doing, limit: 'late', signal } as const;
    return flow({ ...call, nothing: [404] });
  };

  return {
    endpoint,
    clock,
    limits,
    close,

    version: (signal?: AbortSignal) => look(versionAnswer, '/version', 'get the version', { signal }),
    info: (signal?: AbortSignal) => look(infoAnswer, '/info', 'get information about the Engine', { signal }),

    /** @throws foreign errors, too: the meaning of a refusal depends on the recipe. Has no signal, see `prepare` */
    create: async (name: string, body: object): Promise<string> => {
      const doing = `create container ${name}`;
      return idAnswer.parse(await raw({ method: 'POST', path: '/containers/create', query: { name }, body, doing, limit: 'late' }))
        .Id;
    },
    /** Succeeds also if it already runs. @throws foreign errors, too */
    start: async (id: string): Promise<void> => {
      await raw({ method: 'POST', path: `/containers/${id}/start`, doing: `start container ${short(id)}`, limit: 'late' });
    },
    inspect: (id: string, signal?: AbortSignal) =>
      find(containerAnswer, `/containers/${id}/json`, `inspect container ${short(id)}`, signal),
    /** Containers with all of `labels`, including ended ones. */
    containers: (labels: readonly string[], signal?: AbortSignal) =>
      look(listAnswer, '/containers/json', 'list containers', { query: { all: true, filters: { label: labels } }, signal }),
    /** A container that is unknown or does not run is not an error. */
    kill: async (id: string, signal: string): Promise<void> => {
      const doing = `send ${signal} to container ${short(id)}`;
      try {
        await raw({ method: 'POST', path: `/containers/${id}/kill`, query: { signal }, doing, limit: 'soon' });
      } catch (error) {
        if (!isNotRunning(error)) throw translate(error, doing, endpoint);
      }
    },
    /** Ends and removes a container with its anonymous volumes. False if a removal is already under way. */
    remove: async (id: string): Promise<boolean> => {
      const call = { method: 'DELETE', path: `/containers/${id}`, query: { force: true, v: true }, limit: 'late' } as const;
      try {
        await raw({ ...call, doing: `remove container ${short(id)}` });
      } catch (error) {
        const status = statusOf(error);
        if (status === 409) return false;
        if (status !== 404) throw translate(error, `remove container ${short(id)}`, endpoint);
      }
      return true;
    },

    image: async (reference: string, signal?: AbortSignal) => {
      const found = await find(imageAnswer, `/images/${reference}/json`, `inspect image "${reference}"`, signal);
      if (found === null) return null;
      const { User: user, Env: env, Labels: labels } = found.Config ?? {};
      const path = env?.findLast((each) => each.startsWith('PATH='))?.slice('PATH='.length) ?? null;
      return { id: found.Id, user: user ?? '', path, labels: labels ?? {} };
    },
    images: (label: string, signal: AbortSignal) =>
      look(imagesAnswer, '/images/json', 'list images', { query: { filters: { label: [label] } }, signal }),
    /** By name or id. An unknown one is not an error. @throws OnejobError E_ENGINE_FAILED (retry) for one in use */
    removeImage: async (image: string): Promise<void> => {
      await ask({ method: 'DELETE', path: `/images/${image}`, doing: `remove image ${image}`, limit: 'late', nothing: [404] });
    },
    /**
     * Makes an image of a container's files, with its config and these labels in addition. Replaces an earlier one. Takes as long as
     * the files are many. After an abort the Engine may still finish it.
     */
    commit: async (
      id: string,
      { repo, tag, labels }: { readonly repo: string; readonly tag: string; readonly labels: Readonly<Record<string, string>> },
      signal: AbortSignal,
    ): Promise<void> => {
      const query = { container: id, repo, tag, pause: false };
      const doing = `make an image of container ${short(id)}`;
      await ask({ method: 'POST', path: '/commit', query, body: { Labels: labels }, doing, limit: 'work', signal });
    },
    /** Prepares a program in a running container, with its input and output; its id. null if there is no such container, or it does not run. */
    exec: async (id: string, command: readonly string[], signal: AbortSignal): Promise<string | null> => {
      const body = { Cmd: command, AttachStdin: true, AttachStdout: true, AttachStderr: true };
      const doing = `run a program in container ${short(id)}`;
      try {
        return idAnswer.parse(await raw({ method: 'POST', path: `/containers/${id}/exec`, body, doing, limit: 'late', signal })).Id;
      } catch (error) {
        signal.throwIfAborted();
        if (isNotRunning(error)) return null;
        throw translate(error, doing, endpoint);
      }
    },
    /** The exit code of such a program; null while it runs, or if it is unknown. */
    execEnded: async (exec: string, signal: AbortSignal): Promise<number | null> => {
      const found = await find(execAnswer, `/exec/${exec}/json`, 'look for the end of a program in a container', signal);
      return found === null || found.Running ? null : (found.ExitCode ?? null);
    },
    /** Terminal size of a running container. */
    resize: async (id: string, { columns, rows }: { readonly columns: number; readonly rows: number }): Promise<void> => {
      const doing = `resize the terminal of container ${short(id)}`;
      await ask({ method: 'POST', path: `/containers/${id}/resize`, query: { h: rows, w: columns }, doing, limit: 'soon' });
    },

    /** The pull's progress as JSON lines. @throws foreign errors, too */
    pull: (query: { fromImage: string; tag: string }, auth: object | null, signal: AbortSignal) => {
      const doing = `pull ${query.fromImage}:${query.tag}`;
      return lines({ method: 'POST', path: '/images/create', query, auth, doing, limit: 'idle', signal });
    },
    /** Asks the registry for the description of an image. @throws foreign errors, too */
    distribution: async (reference: string, auth: object | null, signal: AbortSignal): Promise<void> => {
      const call = { method: 'GET', path: `/distribution/${reference}/json`, auth, limit: 'soon', signal } as const;
      await raw({ ...call, doing: `ask for ${reference}` });
    },

    network: (name: string, signal?: AbortSignal) => find(networkAnswer, `/networks/${name}`, `inspect network "${name}"`, signal),
    /** An existing network of that name is not an error. */
    createNetwork: async (body: { readonly Name: string } & Query): Promise<void> => {
      const doing = `create network "${body.Name}"`;
      await ask({ method: 'POST', path: '/networks/create', body, doing, limit: 'late', nothing: [409] });
    },
    networks: (label: string, signal?: AbortSignal) =>
      look(z.array(networkAnswer), '/networks', 'list networks', { query: { filters: { label: [label] } }, signal }),
    /** False if it is in use, or gone. */
    removeNetwork: async (id: string): Promise<boolean> => {
      const doing = `remove network ${short(id)}`;
      return (await ask({ method: 'DELETE', path: `/networks/${id}`, doing, limit: 'soon', nothing: [403, 404, 409] })) !== null;
    },
    /** Disconnects a container, by name because it may be gone. Succeeds also if it is not connected. */
    disconnect: async (id: string, name: string): Promise<void> => {
      const doing = `disconnect container "${name}" from network ${short(id)}`;
      const body = { Container: name, Force: true };
      await ask({ method: 'POST', path: `/networks/${id}/disconnect`, body, doing, limit: 'soon', nothing: [403, 404, 409] });
    },
    /** Volumes with all of `labels` that no container uses. */
    danglingVolumes: async (labels: readonly string[], signal?: AbortSignal): Promise<string[]> => {
      const query = { filters: { dangling: ['true'], label: labels } };
      const { Volumes } = await look(volumesAnswer, '/volumes', 'list volumes', { query, signal });
      return (Volumes ?? []).map((volume) => volume.Name);
    },
    /** Succeeds also if the volume is in use or gone. */
    removeVolume: async (name: string): Promise<void> => {
      const doing = `remove volume ${short(name)}`;
      await ask({ method: 'DELETE', path: `/volumes/${name}`, doing, limit: 'soon', nothing: [404, 409] });
    },

    /** Unpacks a tar at `path` in the container. Takes as long as `file`, which is destroyed on failure. */
    putArchive: async (id: string, path: string, file: Readable | Buffer, signal: AbortSignal): Promise<void> => {
      const doing = `put files into container ${short(id)}`;
      await ask({ method: 'PUT', path: `/containers/${id}/archive`, query: { path }, file, doing, limit: 'idle', signal });
    },
    getArchive,
    /**
     * A folder named by the end of `path`, which is the first entry. null if it does not exist, or the Engine reports a link or
     * anything else. Podman follows links, and its archive may not show that.
     */
    getFolder: async (id: string, path: string, signal: AbortSignal): Promise<Readable | null> => {
      const answer = await getArchive(id, path, signal).catch((error: unknown) => {
        // The answer for a link that leads to itself, and with Podman also for one that leaves the volume of an ended container.
        if (/too many (levels of symbolic )?links/.test(messageOf(error))) return null;
        throw error;
      });
      if (answer === null || isFolder(answer)) return answer;
      answer.destroy();
      return null;
    },
    /** null if there is no such container. `since` in the Engine's format: seconds, a dot, nine digits. */
    logs: (id: string, since: string, signal: AbortSignal): Promise<Readable | null> => {
      const query = { follow: true, stdout: true, stderr: true, timestamps: true, since };
      const doing = `follow the log of container ${short(id)}`;
      return flow({ method: 'GET', path: `/containers/${id}/logs`, query, doing, limit: 'late', signal, nothing: [404] });
    },
    /** Resolves when the container does not run and its log is complete. */
    ended: async (id: string, signal: AbortSignal): Promise<void> => {
      const doing = `wait for container ${short(id)}`;
      const answer = await flow({ method: 'POST', path: `/containers/${id}/wait`, doing, limit: 'late', signal, nothing: [404] });
      if (answer !== null) await finished(answer.resume(), { signal });
    },
    /** `since` in seconds since the epoch. The Engine keeps its last 256 events. */
    events: (filters: Query, since: number, signal: AbortSignal): Promise<Readable | null> =>
      flow({ method: 'GET', path: '/events', query: { filters, since }, doing: 'follow events', limit: 'soon', signal }),
  };
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

/** Whether an archive is of a folder, according to its header. */
function isFolder(answer: Readable): boolean {
  const head = answer instanceof IncomingMessage ? answer.headers['x-docker-container-path-stat'] : undefined;
  if (typeof head !== 'string') return false;
  const { mode } = pathAnswer.parse(JSON.parse(Buffer.from(head, 'base64').toString()));
  return ((mode >>> modeDirectory) & 1) === 1 && ((mode >>> modeLink) & 1) === 0;
}
