/**
 * One call to an Engine: dockerode carries it, and it ends in time. Silence of one call is told apart from an Engine that
 * is not there, because a volume on a dead file server holds up one call for ever and no other (E_ENGINE_SILENT).
 */

import { Agent as HttpAgent } from 'node:http';
import { Agent as HttpsAgent } from 'node:https';
import { PassThrough, pipeline, Readable } from 'node:stream';
import { inspect } from 'node:util';
import type { Clock } from '../../core/clock.ts';
import { OnejobError } from '../../errors.ts';
import type { Endpoint } from './endpoint.ts';
import { stalled, statusOf, translate } from './failures.ts';
import { silence } from './wire.ts';

/** In ms. */
export interface Limits {
  /** How long an Engine may take over a look. */
  readonly soon: number;
  /** Over making or removing something. */
  readonly late: number;
  /** How long something that may take any time, such as a pull, may stand still. */
  readonly idle: number;
  /** How long an Engine that is silent has to answer a ping. */
  readonly ping: number;
}

export const usualLimits: Limits = { soon: 30_000, late: 120_000, idle: 300_000, ping: 5_000 };

export type Query = Readonly<Record<string, unknown>>;

export interface Call {
  readonly method: 'GET' | 'POST' | 'PUT' | 'DELETE';
  readonly path: string;
  /** In words, for messages: `Cannot <doing>: …`. */
  readonly doing: string;
  readonly query?: Query;
  readonly body?: object;
  readonly file?: Readable | Buffer;
  readonly auth?: object | null;
  /** Until the answer has come, or with `stream` until it has begun; `idle` begins anew with each piece either way. */
  readonly limit: 'soon' | 'late' | 'idle';
  readonly signal?: AbortSignal | undefined;
  /** Statuses to be answered with null instead of an error. */
  readonly nothing?: readonly number[];
  readonly stream?: true;
}

const success = { 200: true, 201: true, 204: true, 304: true } as const;

/** Loads dockerode and makes a client with connections of its own; `close` ends them. */
export async function connect(endpoint: Endpoint, limits: Limits, clock: Clock) {
  const { default: Docker } = await import('dockerode');
  const agent = connections(endpoint);
  const { modem } = withoutCertPath(() => new Docker(clientOptions(endpoint, agent)));

  /** @throws what dockerode throws, but for silence and aborts: what a refusal means is the caller's to say. */
  const raw = async (call: Call): Promise<unknown> => {
    call.signal?.throwIfAborted();
    const ms = limits[call.limit];
    const abort = new AbortController();
    const stop = () => abort.abort();
    call.signal?.addEventListener('abort', stop, { once: true });
    let isLate = false;
    let isOver = false;
    let giveUp = stop;
    const late = (): void => {
      isLate = true;
      giveUp();
    };
    let callOff = clock.after(ms, late);
    const refresh = (): void => {
      callOff();
      // A slow reader takes the last pieces when the Engine has long hung up.
      if (!isOver) callOff = clock.after(ms, late);
    };
    const end = () => {
      isOver = true;
      callOff();
      call.signal?.removeEventListener('abort', stop);
    };
    const isIdle = call.limit === 'idle';
    const file = call.file instanceof Readable ? counted(call.file, () => isIdle && refresh()) : call.file;
    let unread: unknown = null;
    if (call.file instanceof Readable) {
      call.file.once('error', (error) => {
        unread ??= error;
      });
    }
    const answer = new Promise<unknown>((resolve, reject) => {
      const options = {
        path: `${call.path}?`,
        method: call.method,
        options: { _query: call.query ?? {}, _body: call.body ?? {} },
        statusCodes: success,
        abortSignal: abort.signal,
        ...(call.auth != null && { authconfig: call.auth }),
        ...(file !== undefined && { file }),
        ...(call.stream && { isStream: true }),
      };
      modem.dial(options, (error, said) => (error == null ? resolve(said) : reject(error)));
    });
    try {
      const said = await answer;
      if (!call.stream || !(said instanceof Readable)) {
        end();
        return said;
      }
      // A stream goes on; ending it with its caller is then the stream's own matter.
      said.once('close', end);
      if (!isIdle) {
        callOff();
        return said;
      }
      const flow = counted(said, refresh);
      giveUp = () => flow.destroy(stalled(call.doing, endpoint, ms));
      return flow;
    } catch (error) {
      end();
      call.signal?.throwIfAborted();
      if (isLate) {
        throw isIdle && file !== undefined
          ? stalled(call.doing, endpoint, ms)
          : await silence(call.doing, endpoint, ms, limits.ping, call.signal, clock);
      }
      throw unread === null ? error : unreadable(call.doing, unread);
    } finally {
      // An Engine that refuses, or is given up, leaves the rest of what was to be sent.
      if (file instanceof Readable) file.destroy();
    }
  };
  const ask = async (call: Call): Promise<unknown> => {
    try {
      return (await raw(call)) ?? '';
    } catch (error) {
      if (call.signal?.aborted) throw error;
      const status = statusOf(error);
      if (status !== null && call.nothing?.includes(status)) return null;
      throw translate(error, call.doing, endpoint);
    }
  };
  const flow = async (call: Call): Promise<Readable | null> => {
    const answer = await ask({ ...call, stream: true });
    return answer instanceof Readable ? answer : null;
  };
  return { raw, ask, flow, close: () => agent.destroy() };
}

/** The same stream; `seen` is called with each piece that is taken from it. Each ends the other. */
function counted(stream: Readable, seen: () => void): Readable {
  const through = new PassThrough();
  const { push } = through;
  through.push = (...pieces) => {
    seen();
    return push.apply(through, pieces);
  };
  pipeline(stream, through, () => {});
  return through;
}

/** What was to be sent could not be read: no fault of the Engine's. */
function unreadable(doing: string, cause: unknown): OnejobError {
  if (cause instanceof OnejobError) return cause;
  const why = cause instanceof Error ? cause.message : String(cause);
  return new OnejobError('E_FILES', `Cannot ${doing}: reading them failed (${why}).`, { retry: true, cause });
}

/** Kept open between calls. */
export function connections(endpoint: Endpoint): HttpAgent {
  const options = { keepAlive: true, maxFreeSockets: 4 };
  const agent =
    endpoint.kind === 'unix' || endpoint.tls === null
      ? new HttpAgent(options)
      : new HttpsAgent({ ...options, rejectUnauthorized: endpoint.tls.verify });
  // dockerode writes out every request for a log that nobody reads, its agent with all sockets and their buffers included:
  // measured, nine tenths of the daemon's work.
  return Object.assign(agent, { [inspect.custom]: () => 'connections to the Engine' });
}

/** dockerode reads the files of DOCKER_CERT_PATH while it is made, whatever it is told, and fails where one is missing. */
function withoutCertPath<T>(make: () => T): T {
  const path = process.env.DOCKER_CERT_PATH;
  delete process.env.DOCKER_CERT_PATH;
  try {
    return make();
  } finally {
    if (path !== undefined) process.env.DOCKER_CERT_PATH = path;
  }
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
