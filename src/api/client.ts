/** Client of a daemon: the calls of the contract, checked, and what takes more than one call. */

import type http from 'node:http';
import { type Readable, Transform } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import type { z } from 'zod';
import { OnejobError } from '../base/errors.ts';
import { linesOf } from '../base/lines.ts';
import type { Answered, Call, CallName, Request } from '../contract/calls.ts';
import { readFrames } from '../contract/frames.ts';
import { type Counts, none } from '../contract/gap.ts';
import type { EndedFilter, HistoryQuery } from '../contract/history.ts';
import { fromErrorView, reloading } from '../contract/http-errors.ts';
import {
  type ImageService,
  type JobsFilter,
  jobsListed,
  type LogPiece,
  type LogSource,
  pageLimit,
  type SecretPins,
} from '../contract/manager.ts';
import type { DeviceAnswer, DeviceChange, ImageOutcome, JobView } from '../contract/schema.ts';
import type { ShellStart } from '../contract/shell-frames.ts';
import { jsonOf } from '../system/json.ts';
import type { RemoteShell } from './shell-client.ts';
import { type ApiClientOptions, connectionError, type Sending, Transport } from './transport.ts';

interface LogsRequest {
  readonly follow: boolean;
  /** Bytes of each stream that the caller has, or knows to be missing; default none. */
  readonly from?: Counts;
  /** Only so many of the last lines so far, of both streams together; null or omitted: all. */
  readonly tail?: number | null;
  /** The logs that the agent itself keeps, instead of its output; default false. */
  readonly own?: boolean;
  readonly signal?: AbortSignal;
}

/** ms that an Engine may take to remove images. */
const slow = 600_000;

/** Calls that may take longer than others to answer, in ms; null: however long it takes. */
const patienceOf: { readonly [N in CallName]?: number | null } = {
  'GET /v1/doctor': 180_000,
  'GET /v1/forgotten': null,
  'GET /v1/jobs/:id/settled': null,
  // Large folders may have to be counted first.
  'GET /v1/caches': slow,
  'POST /v1/caches/clear': slow,
  'POST /v1/images/build': null,
  'POST /v1/images/prune': slow,
  'POST /v1/images/refresh': null,
  'POST /v1/jobs/:id/unhold': slow,
  // The daemon first checks whether the cloud would make one.
  'POST /v1/machines/:host/up': slow,
  'POST /v1/workspaces': slow,
  'PUT /v1/sent-files': null,
  'PUT /v1/workspaces': null,
};

/** Bytes while a daemon is held, which sends one. */
const mostWhileHeld = 64;

type CallArguments<N extends CallName> =
  object extends Request<N> ? [request?: Request<N>, signal?: AbortSignal] : [request: Request<N>, signal?: AbortSignal];

/** @throws OnejobError E_SOCKET_PATH */
export function createClient(options: ApiClientOptions): Client {
  return new Client(options);
}

/** All methods throw OnejobError: E_DAEMON_ABSENT, _SILENT, _CUT, _STOPPING, E_SOCKET_DENIED, _FOREIGN, or what the daemon said. */
export class Client {
  readonly socket: string;
  readonly #transport: Transport;

  constructor(options: ApiClientOptions) {
    this.socket = options.socket;
    this.#transport = new Transport(options);
  }

  /** One call of the API, such as `call('GET /v1/jobs/:id', { params: { id } })`: its answer, or undefined if it has none. */
  async call<N extends CallName>(name: N, ...[request, signal]: CallArguments<N>): Promise<Answered<N>> {
    return this.#answer(name, await this.#transport.send(sendingOf(name, request, signal)));
  }

  readonly status = () => this.call('GET /v1/status');
  readonly submit = (body: Request<'POST /v1/jobs'>['body']) => this.call('POST /v1/jobs', { body });
  readonly arrayJobs = (id: string) => this.call('GET /v1/job-arrays/:id', { params: { id } });
  readonly job = (id: string) => this.call('GET /v1/jobs/:id', { params: { id } });
  /** Waits for the end of the job, however long it takes. */
  readonly settled = (id: string, signal?: AbortSignal) => this.call('GET /v1/jobs/:id/settled', { params: { id } }, signal);
  readonly unhold = (id: string) => this.call('POST /v1/jobs/:id/unhold', { params: { id } });
  readonly cancel = (id: string, body?: { readonly onlyWaiting: boolean }) =>
    this.call('POST /v1/jobs/:id/cancel', { params: { id }, body });
  /** All jobs of an array that had not ended. */
  readonly cancelArray = (id: string) => this.call('POST /v1/job-arrays/:id/cancel', { params: { id } });
  readonly history = (query: HistoryQuery) => this.call('GET /v1/history', { query });
  readonly devices = () => this.call('GET /v1/devices');
  readonly proofs = (query: Request<'GET /v1/proofs'>['query']) => this.call('GET /v1/proofs', { query });
  readonly machines = () => this.call('GET /v1/machines');
  readonly down = (body: Request<'POST /v1/down'>['body']) => this.call('POST /v1/down', { body });
  /** Waits until a daemon that ends with `forget` has done so, however long it takes. */
  readonly forgotten = () => this.call('GET /v1/forgotten');

  changeDevice(device: string, { act, ...body }: DeviceChange): Promise<DeviceAnswer> {
    // The type of a change has the body of its act.
    return this.call(`POST /v1/devices/:device/${act}`, { params: { device }, body } as never);
  }

  /** Null pool: all pools, also below. */
  pause(pool: string | null, reason: string) {
    const body = { reason };
    return pool === null
      ? this.call('POST /v1/pause', { body })
      : this.call('POST /v1/pools/:pool/pause', { params: { pool }, body });
  }

  resume(pool: string | null, reason: string) {
    const body = { reason };
    return pool === null
      ? this.call('POST /v1/resume', { body })
      : this.call('POST /v1/pools/:pool/resume', { params: { pool }, body });
  }

  drain(pool: string | null) {
    return pool === null ? this.call('POST /v1/drain') : this.call('POST /v1/pools/:pool/drain', { params: { pool } });
  }

  /** The newest last; all of them without a limit, but of `all` the newest 1,000. */
  jobs({ all, limit, ...rest }: Omit<JobsFilter, 'before'>): Promise<JobView[]> {
    return this.#jobPages({ all, ...rest }, limit ?? (all ? jobsListed : Number.POSITIVE_INFINITY));
  }

  /** Jobs that have ended, the newest last, by default the newest 1,000. */
  endedJobs({ kind: verdict, since = 0, limit = jobsListed, ...rest }: Partial<Omit<EndedFilter, 'before'>>): Promise<JobView[]> {
    return this.#jobPages({ all: true, verdict, since, ...rest }, limit);
  }

  /** Starts a shell in the files of a held job, or with `running` in an attended one. */
  async shell(id: string, start: ShellStart): Promise<RemoteShell> {
    const { path } = sendingOf('POST /v1/jobs/:id/shell', { params: { id } });
    const [{ RemoteShell: Shell }, connection] = await Promise.all([import('./shell-client.ts'), this.#transport.upgrade(path)]);
    return new Shell(connection, start);
  }

  /** Stores the tar of a workspace; its id. `sent` hears how many bytes are on their way. @throws also what `files` throws */
  async putWorkspace(files: Readable, sent?: (bytes: number) => void): Promise<string> {
    return (await this.#put('PUT /v1/workspaces', files, sent)).id;
  }

  /** Sends files for `POST /v1/workspaces`, or a part of them; their name. */
  async keepFiles(files: Readable, sent?: (bytes: number) => void): Promise<string> {
    return (await this.#put('PUT /v1/sent-files', files, sent)).name;
  }

  async #put<N extends 'PUT /v1/workspaces' | 'PUT /v1/sent-files'>(
    name: N,
    files: Readable,
    sent: (bytes: number) => void = () => {},
  ): Promise<Answered<N>> {
    let bytes = 0;
    const counted = new Transform({
      transform(chunk: Uint8Array, _encoding, done) {
        bytes += chunk.length;
        sent(bytes);
        done(null, chunk);
      },
    });
    const stop = new AbortController();
    let packing: Promise<void> | null = null;
    const failed = Promise.withResolvers<never>();
    const answer = this.#transport.open(sendingOf<'PUT /v1/workspaces' | 'PUT /v1/sent-files'>(name), (request) => {
      request.setHeader('content-type', 'application/x-tar');
      packing = pipeline(files, counted, request, { signal: stop.signal });
      // If files cannot be read, that is the error to report.
      packing.catch(() => {
        if (files.errored) failed.reject(files.errored);
      });
    });
    try {
      const response = await Promise.race([answer, failed.promise]);
      return await this.#answer(name, await this.#transport.succeeded(response));
    } finally {
      // An early answer is a refusal.
      stop.abort();
      files.destroy();
      await Promise.allSettled([packing, answer]);
    }
  }

  /** The tar of a done job's artifacts; null when it has none. */
  async artifacts(id: string): Promise<Readable | null> {
    const response = await this.#transport.send(sendingOf('GET /v1/jobs/:id/artifacts', { params: { id } }));
    if (response.statusCode !== 204) return response;
    response.resume();
    return null;
  }

  async *logs(source: LogSource, { follow, from = none, tail = null, own = false, signal }: LogsRequest): AsyncGenerator<LogPiece> {
    const query = { follow, ...from, tail, own, ...source };
    const response = await this.#transport.send(sendingOf('GET /v1/logs', { query }, signal));
    try {
      for await (const piece of readFrames(response)) {
        if (piece.stream !== 'error') yield piece;
        else {
          const { errorView } = await import('../contract/schema.ts');
          const view = errorView.safeParse(jsonOf(Buffer.from(piece.bytes).toString()));
          throw view.success ? fromErrorView(view.data) : this.#transport.foreign(response);
        }
      }
    } catch (error) {
      throw signal?.aborted ? signal.reason : error instanceof OnejobError ? error : connectionError(error, this.socket);
    } finally {
      response.destroy();
    }
  }

  /**
   * Keeps a temporary daemon alive. `signal` aborts only the request. `ended` resolves with the daemon, with whether it reads a new
   * config and will be back at once; it never rejects.
   */
  async hold(signal?: AbortSignal) {
    const response = await this.#transport.send(sendingOf('GET /v1/hold', {}, signal));
    let reloads = false;
    let read = 0;
    const ended = new Promise<{ readonly reloads: boolean }>((resolve) => response.once('close', () => resolve({ reloads })));
    response
      .on('error', () => {})
      .on('data', (bytes: Buffer) => {
        reloads ||= bytes.includes(reloading);
        read += bytes.length;
        if (read > mostWhileHeld) response.destroy();
      });
    return { ended, release: () => response.destroy() };
  }

  readonly images: ImageService = {
    list: (signal) => this.call('GET /v1/images', {}, signal),
    make: (what, pools, progress, signal) => this.#makeImages(what, pools, progress, signal),
    prune: async (signal) => (await this.call('POST /v1/images/prune', {}, signal)).removed,
  };

  readonly secrets: SecretPins = {
    pins: () => this.call('GET /v1/secret-pins'),
    allow: (fingerprint, pipelines) =>
      this.call('POST /v1/secret-pins/:fingerprint/allow', { params: { fingerprint }, body: { pipelines: [...pipelines] } }),
    forget: (fingerprint, pipeline) =>
      this.call('POST /v1/secret-pins/:fingerprint/forget', { params: { fingerprint }, body: { pipeline } }),
  };

  /** Breaks off all requests. */
  close(): void {
    this.#transport.close();
  }

  async #answer<N extends CallName>(name: N, response: http.IncomingMessage): Promise<Answered<N>> {
    // A command whose daemon is trusted starts without the schemas.
    const answer = await this.#transport.json(response, async () => {
      const { calls } = await import('../contract/calls.ts');
      return answerOf(calls[name]);
    });
    return answer as Answered<N>;
  }

  /** Page after page, until there are no more, or `limit` jobs. */
  async #jobPages(query: Request<'GET /v1/jobs'>['query'], limit: number): Promise<JobView[]> {
    const found = new Map<string, JobView>();
    const pages: JobView[][] = [];
    for (let before: string | null = null; ; ) {
      const asked = Math.min(pageLimit, limit - found.size);
      const response = await this.#transport.send(sendingOf('GET /v1/jobs', { query: { ...query, limit: asked, before } }));
      const jobs = (await this.#answer('GET /v1/jobs', response)).filter(({ id }) => !found.has(id));
      for (const job of jobs) found.set(job.id, job);
      pages.unshift(jobs);
      const next = response.headers['onejob-next']?.toString() ?? null;
      if (next === null || next === before || found.size >= limit) return pages.flat();
      before = next;
    }
  }

  async #makeImages(...[what, pools, progress, signal]: Parameters<ImageService['make']>): Promise<ImageOutcome[]> {
    const response = await this.#transport.send(sendingOf(`POST /v1/images/${what}`, { body: { pools: [...pools] } }, signal));
    const { imageEvent } = await import('../contract/schema.ts');
    const outcomes: ImageOutcome[] = [];
    try {
      for await (const line of linesOf(response)) {
        const event = imageEvent.parse(JSON.parse(line));
        if (event.kind === 'progress') progress(event.pool, event.line);
        else if (event.kind === 'done') outcomes.push(event.outcome);
        else if (event.kind === 'error') throw fromErrorView(event.error);
        else return outcomes;
      }
    } catch (error) {
      signal.throwIfAborted();
      throw error instanceof OnejobError ? error : imagesCut(error);
    } finally {
      response.destroy();
    }
    signal.throwIfAborted();
    throw imagesCut();
  }
}

function sendingOf<N extends CallName>(name: N, request?: Request<N>, signal?: AbortSignal): Sending {
  const {
    params = {},
    query = {},
    body,
  } = (request ?? {}) as {
    readonly params?: Readonly<Record<string, string>>;
    readonly query?: object;
    readonly body?: unknown;
  };
  const [method = '', pattern = ''] = name.split(' ');
  const path = pattern.replaceAll(/:([a-z]+)/g, (_, part: string) => encodeURIComponent(params[part] ?? ''));
  const asked = queryOf(query).toString();
  return { method, path: asked === '' ? path : `${path}?${asked}`, body, patience: patienceOf[name], signal };
}

/** Without what is null or undefined. */
function queryOf(values: object): URLSearchParams {
  const given = Object.entries(values).filter(([, value]) => value !== null && value !== undefined);
  return new URLSearchParams(Object.fromEntries(given.map(([name, value]) => [name, String(value)])));
}

function answerOf({ answer }: Call): z.ZodType | undefined {
  return answer !== undefined && 'media' in answer ? undefined : answer;
}

function imagesCut(cause?: unknown): OnejobError {
  return new OnejobError('E_DAEMON_CUT', 'The daemon ended before the images were built.', {
    hint: 'Type the same command again; what was built is kept.',
    retry: true,
    cause,
  });
}
