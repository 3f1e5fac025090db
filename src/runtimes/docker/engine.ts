/**
 * The Engine's API as this runtime needs it: dockerode carries the calls, zod looks at each answer, and every error comes
 * out as an OnejobError or, where a status means something to the caller, as an `EngineAnswer`.
 */
import { Agent as HttpAgent } from 'node:http';
import { Agent as HttpsAgent } from 'node:https';
import { Readable } from 'node:stream';
import { z } from 'zod';
import type { Endpoint } from './endpoint.ts';
import { silent, translate } from './failures.ts';
import { infoAnswer, versionAnswer } from './probe.ts';

const containerState = z.object({
  Status: z.string(),
  Running: z.boolean(),
  OOMKilled: z.boolean().default(false),
  ExitCode: z.number(),
  FinishedAt: z.string().default(''),
});

export const containerAnswer = z.object({
  Id: z.string(),
  Name: z.string(),
  Image: z.string(),
  State: containerState,
  Config: z.object({ User: z.string().default(''), Labels: z.record(z.string(), z.string()).nullish() }),
});
export type ContainerAnswer = z.infer<typeof containerAnswer>;

const listAnswer = z.array(z.object({ Id: z.string(), State: z.string(), Labels: z.record(z.string(), z.string()).nullish() }));
const imageAnswer = z.object({
  Id: z.string(),
  Config: z.object({ User: z.string().nullish() }).nullish(),
});
const networkAnswer = z.object({
  Id: z.string(),
  Created: z.string().default(''),
  Labels: z.record(z.string(), z.string()).nullish(),
});
const volumesAnswer = z.object({ Volumes: z.array(z.object({ Name: z.string() })).nullish() });
const createAnswer = z.object({ Id: z.string() });

/** How long an Engine may take over a look, and over making or removing something, in ms. */
const soon = 30_000;
const late = 120_000;

/** What is asked, in words for messages, and until when. */
interface Ask {
  readonly doing: string;
  readonly limit: number;
  readonly signal?: AbortSignal | undefined;
}

export type Engine = Awaited<ReturnType<typeof connectEngine>>;

/** Loads dockerode and makes a client with connections of its own; `close` ends them. */
export async function connectEngine(endpoint: Endpoint) {
  const { default: Docker } = await import('dockerode');
  const agent = connections(endpoint);
  const docker = new Docker(clientOptions(endpoint, agent));

  /** Errors whose status is in `expected` come back as null. */
  const maybe = async <T>(
    ask: Ask,
    expected: readonly number[],
    call: (abortSignal: AbortSignal) => Promise<T>,
  ): Promise<T | null> => {
    ask.signal?.throwIfAborted();
    const timeout = AbortSignal.timeout(ask.limit);
    try {
      return await call(ask.signal === undefined ? timeout : AbortSignal.any([ask.signal, timeout]));
    } catch (error) {
      ask.signal?.throwIfAborted();
      if (timeout.aborted) throw silent(ask.doing, endpoint, ask.limit);
      const status = z.object({ statusCode: z.number() }).safeParse(error);
      if (status.success && expected.includes(status.data.statusCode)) return null;
      throw translate(error, ask.doing, endpoint);
    }
  };
  const sure = async <T>(ask: Ask, call: (abortSignal: AbortSignal) => Promise<T>): Promise<T> => {
    const answer = await maybe(ask, [], call);
    if (answer === null) throw translate(new Error('it answered nothing'), ask.doing, endpoint);
    return answer;
  };
  /** A stream that may stay open; only its beginning is waited for with a limit. */
  const stream = async (ask: Ask, call: (abortSignal: AbortSignal) => Promise<unknown>): Promise<Readable | null> => {
    const begun = new AbortController();
    const timer = setTimeout(() => begun.abort(), ask.limit);
    try {
      const signal = ask.signal === undefined ? begun.signal : AbortSignal.any([ask.signal, begun.signal]);
      const answer = await call(signal);
      if (!(answer instanceof Readable)) throw new Error('it did not answer with a stream');
      return answer;
    } catch (error) {
      ask.signal?.throwIfAborted();
      if (begun.signal.aborted) throw silent(ask.doing, endpoint, ask.limit);
      const status = z.object({ statusCode: z.number() }).safeParse(error);
      if (status.success && status.data.statusCode === 404) return null;
      throw translate(error, ask.doing, endpoint);
    } finally {
      clearTimeout(timer);
    }
  };

  return {
    endpoint,
    close: () => agent.destroy(),

    version: async (signal?: AbortSignal) =>
      versionAnswer.parse(
        await sure({ doing: 'ask for the version', limit: soon, signal }, (abortSignal) => docker.version({ abortSignal })),
      ),
    info: async (signal?: AbortSignal) =>
      infoAnswer.parse(
        await sure({ doing: 'ask about the Engine', limit: soon, signal }, (abortSignal) => docker.info({ abortSignal })),
      ),

    /** Throws the foreign error itself: what a refusal means depends on the recipe. Not aborted half-way, see `prepare`. */
    create: async (name: string, body: object): Promise<string> => {
      const timeout = AbortSignal.timeout(late);
      try {
        const made: unknown = await docker.createContainer({
          ...body,
          _query: { name },
          _body: body,
          abortSignal: timeout,
        } as object);
        return createAnswer.parse({ Id: z.object({ id: z.string() }).parse(made).id }).Id;
      } catch (error) {
        if (timeout.aborted) throw silent(`create container ${name}`, endpoint, late);
        throw error;
      }
    },
    /** Also when it already runs. Throws the foreign error itself. */
    start: async (id: string): Promise<void> => {
      const timeout = AbortSignal.timeout(late);
      try {
        await docker.getContainer(id).start({ abortSignal: timeout });
      } catch (error) {
        if (z.object({ statusCode: z.literal(304) }).safeParse(error).success) return;
        if (timeout.aborted) throw silent(`start container ${id.slice(0, 12)}`, endpoint, late);
        throw error;
      }
    },
    /** null when there is no such container. */
    inspect: async (id: string, signal?: AbortSignal): Promise<ContainerAnswer | null> => {
      const ask = { doing: `look at container ${id.slice(0, 12)}`, limit: soon, signal };
      const answer = await maybe(ask, [404], (abortSignal) => docker.getContainer(id).inspect({ abortSignal }));
      return answer === null ? null : containerAnswer.parse(answer);
    },
    /** Containers with all of `labels`, ended ones too. */
    containers: async (labels: readonly string[], signal?: AbortSignal) => {
      const filters = { label: [...labels] };
      const ask = { doing: 'list containers', limit: soon, signal };
      return listAnswer.parse(await sure(ask, (abortSignal) => docker.listContainers({ all: true, filters, abortSignal })));
    },
    /** False when there is no such container, or it does not run. */
    kill: async (id: string, signal: string): Promise<boolean> => {
      const ask = { doing: `send ${signal} to container ${id.slice(0, 12)}`, limit: soon };
      // Podman answers 500 for a container that does not run.
      return (
        (await maybe(ask, [404, 409], async (abortSignal) => {
          await docker.getContainer(id).kill({ signal, abortSignal });
          return true;
        })) !== null
      );
    },
    /** Ends and removes it with its anonymous volumes. False when a removal is already under way. */
    remove: async (id: string): Promise<boolean> => {
      const ask = { doing: `remove container ${id.slice(0, 12)}`, limit: late };
      const done = await maybe(ask, [409], async (abortSignal) => {
        await docker
          .getContainer(id)
          .remove({ force: true, v: true, abortSignal })
          .catch((error: unknown) => {
            if (!z.object({ statusCode: z.literal(404) }).safeParse(error).success) throw error;
          });
        return true;
      });
      return done !== null;
    },

    image: async (reference: string, signal?: AbortSignal): Promise<{ id: string; user: string } | null> => {
      const ask = { doing: `look at image "${reference}"`, limit: soon, signal };
      const answer = await maybe(ask, [404], (abortSignal) => docker.getImage(reference).inspect({ abortSignal }));
      if (answer === null) return null;
      const { Id, Config } = imageAnswer.parse(answer);
      return { id: Id, user: Config?.User ?? '' };
    },
    /** The pull's progress as JSON lines. Throws the foreign error itself. */
    pull: async (query: { fromImage: string; tag: string }, authconfig: object | null, signal: AbortSignal): Promise<Readable> => {
      const answer: unknown = await docker.createImage(authconfig ?? undefined, { ...query, abortSignal: signal });
      if (!(answer instanceof Readable)) throw new Error('the pull did not answer with a stream');
      return answer;
    },
    /** Whether the registry has this image for us; throws the foreign error itself. */
    distribution: async (reference: string, authconfig: object | null, signal: AbortSignal): Promise<void> => {
      await docker.getImage(reference).distribution({ ...(authconfig !== null && { authconfig }), abortSignal: signal } as object);
    },

    network: async (name: string, signal?: AbortSignal) => {
      const ask = { doing: `look at network "${name}"`, limit: soon, signal };
      const answer: unknown = await maybe(ask, [404], (abortSignal) => docker.getNetwork(name).inspect({ abortSignal } as object));
      return answer === null ? null : networkAnswer.parse(answer);
    },
    /** False when a network of that name is there. */
    createNetwork: async (body: { Name: string } & Record<string, unknown>): Promise<boolean> => {
      const ask = { doing: `create network "${body.Name}"`, limit: late };
      return (await maybe(ask, [409], (abortSignal) => docker.createNetwork({ ...body, abortSignal }))) !== null;
    },
    networks: async (label: string, signal?: AbortSignal) => {
      const ask = { doing: 'list networks', limit: soon, signal };
      const answer: unknown = await sure(ask, () => docker.listNetworks({ filters: { label: [label] } }));
      return z.array(networkAnswer).parse(answer);
    },
    /** In use, or gone, is no error. */
    removeNetwork: async (id: string): Promise<void> => {
      const ask = { doing: `remove network ${id.slice(0, 12)}`, limit: soon };
      await maybe(ask, [403, 404, 409], (abortSignal) => docker.getNetwork(id).remove({ abortSignal } as object));
    },

    danglingVolumes: async (label: string, signal?: AbortSignal): Promise<string[]> => {
      const ask = { doing: 'list volumes', limit: soon, signal };
      const filters = JSON.stringify({ dangling: ['true'], label: [label] });
      const answer: unknown = await sure(ask, (abortSignal) => docker.listVolumes({ filters, abortSignal } as object));
      return (volumesAnswer.parse(answer).Volumes ?? []).map((volume) => volume.Name);
    },
    removeVolume: async (name: string): Promise<void> => {
      const ask = { doing: `remove volume ${name.slice(0, 12)}`, limit: soon };
      await maybe(ask, [404, 409], (abortSignal) => docker.getVolume(name).remove({ abortSignal } as object));
    },

    /** Unpacks a tar at `path` in the container; takes as long as `files` does. */
    putArchive: async (id: string, path: string, files: Readable | Buffer, signal: AbortSignal): Promise<void> => {
      const ask = { doing: `put files into container ${id.slice(0, 12)}`, limit: 24 * 3_600_000, signal };
      await maybe(ask, [], (abortSignal) => docker.getContainer(id).putArchive(files, { path, abortSignal }));
    },
    /** null when there is no such container or path. */
    getArchive: (id: string, path: string, signal: AbortSignal): Promise<Readable | null> =>
      stream({ doing: `get files out of container ${id.slice(0, 12)}`, limit: soon, signal }, (abortSignal) =>
        docker.getContainer(id).getArchive({ path, abortSignal }),
      ),

    /** null when there is no such container. `since` as the Engine writes times: seconds, a dot, nine digits. */
    logs: (id: string, since: string, signal: AbortSignal): Promise<Readable | null> =>
      stream({ doing: `follow the log of container ${id.slice(0, 12)}`, limit: soon, signal }, (abortSignal) => {
        const query = { follow: true, stdout: true, stderr: true, timestamps: true, since };
        return docker.getContainer(id).logs({ ...query, abortSignal } as { follow: true });
      }),
    events: (filters: Record<string, string[]>, signal: AbortSignal): Promise<Readable | null> =>
      stream({ doing: 'follow events', limit: soon, signal }, (abortSignal) =>
        docker.getEvents({ filters: JSON.stringify(filters), abortSignal }),
      ),
  };
}

function connections(endpoint: Endpoint): HttpAgent {
  const options = { keepAlive: true, maxFreeSockets: 4 };
  if (endpoint.kind === 'unix' || endpoint.tls === null) return new HttpAgent(options);
  return new HttpsAgent({ ...options, rejectUnauthorized: endpoint.tls.verify });
}

/** Every option is named: dockerode fills what is absent from the environment, and would mix two addresses. */
function clientOptions(endpoint: Endpoint, agent: HttpAgent) {
  const none = { host: undefined, port: undefined, socketPath: undefined, ca: undefined, cert: undefined, key: undefined };
  const common = { ...none, protocol: 'http' as const, pathPrefix: '/', timeout: undefined, agent };
  if (endpoint.kind === 'unix') return { ...common, socketPath: endpoint.path };
  const { host, port, tls } = endpoint;
  if (tls === null) return { ...common, host, port };
  const { ca, cert, key } = tls;
  return { ...common, host, port, protocol: 'https' as const, ca: ca ?? undefined, cert: cert ?? undefined, key: key ?? undefined };
}
