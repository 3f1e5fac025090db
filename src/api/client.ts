/**
 * Client of a daemon, over its socket. It checks answers, and turns every failure into an `OnejobError`: daemon absent, silent, cut
 * off or of another version, permission denied.
 */
import type http from 'node:http';
import { createInterface } from 'node:readline';
import { type Duplex, type Readable, Transform } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import type { z } from 'zod';
import { codeOf, messageOf, OnejobError } from '../base/errors.ts';
import { readFrames } from '../contract/frames.ts';
import { type Counts, none } from '../contract/gap.ts';
import type { EndedFilter, HistoryQuery } from '../contract/history.ts';
import { fromErrorView, reloading } from '../contract/http-errors.ts';
import type { arrayRequest, jobRequest } from '../contract/job.ts';
import {
  type ImageService,
  type JobsFilter,
  jobsListed,
  type LogPiece,
  type LogSource,
  type Manager,
  pageLimit,
  type SecretPins,
} from '../contract/manager.ts';
import type * as Schemas from '../contract/schema.ts';
import type { DeviceChange, ImageOutcome, JobView } from '../contract/schema.ts';
import type { ShellStart } from '../contract/shell-frames.ts';
import { jsonOf } from '../system/json.ts';
import type { RemoteShell } from './shell-client.ts';
import { socketDenied } from './socket-access.ts';
import { checkSocketOwner, checkSocketPath } from './sockets.ts';

export interface ApiClientOptions {
  /** Path of the socket; with `dial`, what people call it. */
  readonly socket: string;
  /** Opens a connection in another way, such as to another host. */
  readonly dial?: () => Duplex;
  /** Version of this client, to explain an answer that it cannot read. */
  readonly version: string;
  /** ms to wait for an answer that should come at once; default 60 s. */
  readonly patience?: number;
  /** Bytes of an answer that is read as a whole; default 256 MiB with `dial`, else no limit. */
  readonly mostAnswer?: number;
  /**
   * Takes answers of a daemon of this very version as they are. Commands start much faster, since loading the schemas takes longer
   * than most answers. Only for a socket of this host. Default false.
   */
  readonly trusting?: boolean;
}

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

/** All methods throw OnejobError: E_DAEMON_ABSENT, _SILENT, _CUT, _STOPPING, E_SOCKET_DENIED, _FOREIGN, or what the daemon said. */
export type Client = ReturnType<typeof createClient>;

type Pick<T extends z.ZodType> = (schemas: typeof Schemas) => T;

interface Call {
  readonly method: 'GET' | 'POST' | 'PUT';
  readonly path: string;
  readonly body?: unknown;
  /** null: without limit. */
  readonly patience?: number | null;
  readonly signal?: AbortSignal | undefined;
}

// Importing it would also load Node's fetch and WebSocket, since its exports are read: tens of ms in every command.
const { Agent, request: sendRequest } = process.getBuiltinModule('node:http');

/** Bytes of an answer of another host, which is not trusted. */
const mostFromAfar = 256 * 2 ** 20;
/** Informational answers (1xx) to one request, and bytes while a daemon is held, which sends one. */
const [mostHints, mostWhileHeld] = [4, 64];
/** ms that an Engine may take to remove images. */
const slow = 600_000;

/** @throws OnejobError E_SOCKET_PATH */
export function createClient(options: ApiClientOptions) {
  const { socket, dial } = options;
  if (dial === undefined) checkSocketPath(socket);

  // A new connection for each request: a kept one may turn out to be dead only after the request was sent.
  const agent = new Agent({ keepAlive: false });
  if (dial !== undefined) agent.createConnection = dial;

  const open = (call: Call, files?: (request: http.ClientRequest) => void) =>
    new Promise<http.IncomingMessage>((resolve, reject) => {
      try {
        if (dial === undefined) checkSocketOwner(socket);
      } catch (error) {
        throw connectionError(error, socket);
      }
      const patience = call.patience === undefined ? (options.patience ?? 60_000) : call.patience;
      const body = call.body === undefined ? null : JSON.stringify(call.body);
      const request = sendRequest({
        ...(dial === undefined && { socketPath: socket }),
        agent,
        method: call.method,
        path: call.path,
        headers: body === null ? {} : { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) },
        ...(call.signal === undefined ? {} : { signal: call.signal }),
      });
      const silence = patience === null ? null : setTimeout(() => request.destroy(silent(socket, call, patience)), patience);
      // A daemon sends none, and each costs as much as an answer.
      let hints = 0;
      request.on('information', () => {
        hints += 1;
        if (hints > mostHints) request.destroy(new Error('it sent informational answers without end'));
      });
      request.once('response', (response) => {
        if (silence !== null) clearTimeout(silence);
        resolve(response);
      });
      request.once('error', (error: NodeJS.ErrnoException) => {
        if (silence !== null) clearTimeout(silence);
        reject(call.signal?.aborted ? call.signal.reason : connectionError(error, socket));
      });
      if (files === undefined) request.end(body ?? undefined);
      else files(request);
    });

  /** The answer, unread. @throws the error that the daemon answered */
  const succeeded = async (response: http.IncomingMessage): Promise<http.IncomingMessage> => {
    if ((response.statusCode ?? 500) < 400) return response;
    const { errorView } = await import('../contract/schema.ts');
    const view = errorView.safeParse(await read(response, options));
    if (!view.success) throw foreign(response, options);
    const error = fromErrorView(view.data);
    throw error.code === 'E_API_ROUTE' || error.code === 'E_API_REQUEST' ? (otherVersion(response, options) ?? error) : error;
  };

  const parse = async <T extends z.ZodType>(pick: Pick<T>, response: http.IncomingMessage): Promise<z.output<T>> => {
    const isTrusted = options.trusting === true && dial === undefined && isSameVersion(response, options);
    const loading = isTrusted ? null : import('../contract/schema.ts');
    const value = await read(response, options);
    if (value === undefined) throw foreign(response, options);
    if (loading === null) return value as z.output<T>;
    const result = pick(await loading).safeParse(value);
    if (result.success) return result.data;
    throw foreign(response, options, result.error.issues[0]);
  };

  const ask = async <T extends z.ZodType>(pick: Pick<T>, call: Call): Promise<z.output<T>> => {
    return parse(pick, await succeeded(await open(call)));
  };
  /** Page after page, until there are no more, or `limit`; `isLimited`: there is one by default. */
  const jobPages = async (query: object, limit: number | undefined, isLimited: boolean): Promise<JobView[]> => {
    const found = new Map<string, JobView>();
    const most = limit ?? (isLimited ? jobsListed : Number.POSITIVE_INFINITY);
    const pages: JobView[][] = [];
    for (let before: string | null = null; ; ) {
      const asked = Math.min(pageLimit, most - found.size);
      const response = await succeeded(await open(get(`/v1/jobs?${queryOf({ ...query, limit: asked, before })}`)));
      const jobs = (await parse((schemas) => schemas.jobView.array(), response)).filter(({ id }) => !found.has(id));
      for (const job of jobs) found.set(job.id, job);
      pages.unshift(jobs);
      const next = response.headers['onejob-next']?.toString() ?? null;
      if (next === null || next === before || found.size >= most) return pages.flat();
      before = next;
    }
  };
  const tell = async (call: Call): Promise<void> => {
    (await succeeded(await open(call))).resume();
  };
  /** The connection of a request for a shell, upgraded. */
  const upgraded = (path: string): Promise<Duplex> =>
    new Promise((resolve, reject) => {
      const call: Call = { method: 'POST', path, patience: null };
      const answer = open(call, (request) => {
        const patience = options.patience ?? 60_000;
        const silence = setTimeout(() => request.destroy(silent(socket, call, patience)), patience);
        request.once('close', () => clearTimeout(silence));
        request.setHeader('connection', 'Upgrade');
        request.setHeader('upgrade', 'onejob-shell');
        request.once('upgrade', (_response, connection, head) => {
          clearTimeout(silence);
          connection.unshift(head);
          resolve(connection);
        });
        request.end();
      });
      answer.then(succeeded).then((response) => reject(foreign(response.resume(), options)), reject);
    });
  const get = (path: string): Call => ({ method: 'GET', path });
  const post = (path: string, body?: unknown): Call => ({ method: 'POST', path, body });
  const jobPath = (id: string) => `/v1/jobs/${encodeURIComponent(id)}`;
  const pinPath = (fingerprint: string, act: string) => `/v1/secret-pins/${encodeURIComponent(fingerprint)}/${act}`;
  const poolPath = (pool: string | null) => (pool === null ? '/v1' : `/v1/pools/${encodeURIComponent(pool)}`);

  return {
    socket,
    status: () => ask((schemas) => schemas.statusView, get('/v1/status')),
    plan: () => ask((schemas) => schemas.planLine.array(), get('/v1/plan')),
    applyConfig: (request: Schemas.ApplyRequest) => ask((schemas) => schemas.applyAnswer, post('/v1/config/apply', request)),
    doctor: () => ask((schemas) => schemas.findingView.array(), { ...get('/v1/doctor'), patience: 180_000 }),
    submit: (request: z.input<typeof jobRequest>) => ask((schemas) => schemas.jobView, post('/v1/jobs', request)),
    submitArray: (request: z.input<typeof arrayRequest>) =>
      ask((schemas) => schemas.jobView.array(), post('/v1/job-arrays', request)),
    arrayJobs: (id: string) => ask((schemas) => schemas.jobView.array(), get(`/v1/job-arrays/${encodeURIComponent(id)}`)),
    /** Throws what `submit` would, except for the workspace, which need not be sent yet. */
    check: (request: z.input<typeof jobRequest>) => tell(post('/v1/jobs/check', request)),
    /** The newest last; all of them without a limit, but of `all` the newest 1,000. */
    jobs: ({ all, limit, ...rest }: Omit<JobsFilter, 'before'>) => jobPages({ all, ...rest }, limit, all),
    /** Jobs that have ended, the newest last, by default the newest 1,000. */
    endedJobs: ({ kind: verdict, since = 0, limit, ...rest }: Partial<Omit<EndedFilter, 'before'>>) =>
      jobPages({ all: true, verdict, since, ...rest }, limit, true),
    history: (query: HistoryQuery) => ask((schemas) => schemas.historyView.array(), get(`/v1/history?${queryOf(query)}`)),
    job: (id: string) => ask((schemas) => schemas.jobView, get(jobPath(id))),
    /** Waits for the end of the job, however long it takes. */
    settled: (id: string, signal?: AbortSignal) =>
      ask((schemas) => schemas.jobView, { ...get(`${jobPath(id)}/settled`), patience: null, signal }),
    pruneJobs: (request: Schemas.PruneRequest) => ask((schemas) => schemas.prunedView, post('/v1/jobs/prune', request)),
    unhold: (id: string) => ask((schemas) => schemas.jobView, { ...post(`${jobPath(id)}/unhold`), patience: slow }),
    /** Starts a shell in the files of a held job, or with `running` in an attended one. */
    async shell(id: string, start: ShellStart): Promise<RemoteShell> {
      const [{ startShell }, connection] = await Promise.all([import('./shell-client.ts'), upgraded(`${jobPath(id)}/shell`)]);
      return startShell(connection, start);
    },
    cancel: (id: string, only?: z.input<typeof Schemas.cancelRequest>) =>
      ask((schemas) => schemas.jobView, post(`${jobPath(id)}/cancel`, only)),
    move: (id: string, pool: string) => ask((schemas) => schemas.jobView, post(`${jobPath(id)}/move`, { pool })),
    /** All jobs of an array that had not ended. */
    cancelArray: (id: string) => ask((schemas) => schemas.jobView.array(), post(`/v1/job-arrays/${encodeURIComponent(id)}/cancel`)),
    devices: () => ask((schemas) => schemas.deviceView.array(), get('/v1/devices')),
    deviceUse: (name: string, since = 0) =>
      ask((schemas) => schemas.useView.array(), get(`/v1/devices/${encodeURIComponent(name)}/use?since=${since}`)),
    changeDevice(name: string, { act, ...body }: DeviceChange) {
      const call = post(`/v1/devices/${encodeURIComponent(name)}/${act}`, body);
      return ask((schemas) => schemas.deviceAnswer, call);
    },
    proofs: (filter: Parameters<Manager['proofs']>[0]) =>
      ask((schemas) => schemas.proofView.array(), get(`/v1/proofs?${queryOf(filter)}`)),
    machines: () => ask((schemas) => schemas.cloudHostView.array(), get('/v1/machines')),
    receipts: (limit: number) => ask((schemas) => schemas.machineView.array(), get(`/v1/receipts?limit=${limit}`)),
    /** `wait`: ms. The daemon first checks whether the cloud would make a machine, so it takes longer than other calls. */
    machineUp: (host: string, wait?: number, signal?: AbortSignal) =>
      ask((schemas) => schemas.cloudHostView, {
        ...post(`/v1/machines/${encodeURIComponent(host)}/up`, { wait }),
        patience: slow,
        signal,
      }),
    machineDown: (host: string, now: boolean) =>
      ask((schemas) => schemas.cloudHostView, post(`/v1/machines/${encodeURIComponent(host)}/down`, { now })),
    pause: (pool: string | null, reason: string) => tell(post(`${poolPath(pool)}/pause`, { reason })),
    resume: (pool: string | null, reason: string) =>
      ask((schemas) => schemas.resumeView, post(`${poolPath(pool)}/resume`, { reason })),
    /** Breaks off all requests. */
    close: () => agent.destroy(),
    drain: (pool: string | null) => tell(post(`${poolPath(pool)}/drain`)),
    down: (request: z.input<typeof Schemas.downRequest>) => tell(post('/v1/down', request)),
    loginLink: (request: z.input<typeof Schemas.linkRequest>) =>
      ask((schemas) => schemas.linkView, post('/v1/login-links', request)),
    /** Waits until a daemon that ends with `forget` has done so, however long it takes. */
    forgotten: () => ask((schemas) => schemas.forgottenView.array(), { ...get('/v1/forgotten'), patience: null }),

    async putWorkspace(files: Readable, sent: (bytes: number) => void = () => {}): Promise<string> {
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
      const call: Call = { method: 'PUT', path: '/v1/workspaces', patience: null };
      const answer = open(call, (request) => {
        request.setHeader('content-type', 'application/x-tar');
        packing = pipeline(files, counted, request, { signal: stop.signal });
        // If files cannot be read, that is the error to report.
        packing.catch(() => {
          if (files.errored) failed.reject(files.errored);
        });
      });
      try {
        const response = await Promise.race([answer, failed.promise]);
        return (await parse((schemas) => schemas.workspaceView, await succeeded(response))).id;
      } finally {
        // An early answer is a refusal.
        stop.abort();
        files.destroy();
        await Promise.allSettled([packing, answer]);
      }
    },

    /** The tar of a done job's artifacts; null when it has none. */
    async artifacts(id: string): Promise<Readable | null> {
      const response = await succeeded(await open(get(`${jobPath(id)}/artifacts`)));
      if (response.statusCode !== 204) return response;
      response.resume();
      return null;
    },

    async *logs(
      source: LogSource,
      { follow, from = none, tail = null, own = false, signal }: LogsRequest,
    ): AsyncGenerator<LogPiece> {
      const query = queryOf({ follow, ...from, tail, own, ...source });
      const response = await succeeded(await open({ ...get(`/v1/logs?${query}`), signal }));
      try {
        for await (const piece of readFrames(response)) {
          if (piece.stream !== 'error') yield piece;
          else {
            const { errorView } = await import('../contract/schema.ts');
            const view = errorView.safeParse(jsonOf(Buffer.from(piece.bytes).toString()));
            throw view.success ? fromErrorView(view.data) : foreign(response, options);
          }
        }
      } catch (error) {
        throw signal?.aborted ? signal.reason : error instanceof OnejobError ? error : connectionError(error, socket);
      } finally {
        response.destroy();
      }
    },

    /**
     * Keeps a temporary daemon alive. `signal` aborts only the request. `ended` resolves with the daemon, with whether it reads a new
     * config and will be back at once; it never rejects.
     */
    async hold(signal?: AbortSignal) {
      const response = await succeeded(await open({ ...get('/v1/hold'), signal }));
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
    },

    images: {
      list: (signal) => ask((schemas) => schemas.imageView.array(), { ...get('/v1/images'), signal }),

      async make(what, pools, progress, signal) {
        const call = { ...post(`/v1/images/${what}`, { pools }), patience: null, signal };
        const response = await succeeded(await open(call));
        const { imageEvent } = await import('../contract/schema.ts');
        const outcomes: ImageOutcome[] = [];
        try {
          for await (const line of createInterface({ input: response })) {
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
      },

      async prune(signal) {
        const call = { ...post('/v1/images/prune'), patience: slow, signal };
        return (await ask((schemas) => schemas.removedView, call)).removed;
      },
    } satisfies ImageService,

    secrets: {
      pins: () => ask((schemas) => schemas.pinnedView.array(), get('/v1/secret-pins')),
      allow: (fingerprint, pipelines) =>
        ask((schemas) => schemas.pinnedView, post(pinPath(fingerprint, 'allow'), { pipelines: [...pipelines] })),
      forget: (fingerprint, pipeline) => ask((schemas) => schemas.forgetAnswer, post(pinPath(fingerprint, 'forget'), { pipeline })),
    } satisfies SecretPins,
  };
}

/** Without what is null or undefined. */
function queryOf(values: object): URLSearchParams {
  const given = Object.entries(values).filter(([, value]) => value !== null && value !== undefined);
  return new URLSearchParams(Object.fromEntries(given.map(([name, value]) => [name, String(value)])));
}

function imagesCut(cause?: unknown): OnejobError {
  return new OnejobError('E_DAEMON_CUT', 'The daemon ended before the images were built.', {
    hint: 'Type the same command again; what was built is kept.',
    retry: true,
    cause,
  });
}

async function read(response: http.IncomingMessage, { socket, dial, mostAnswer }: ApiClientOptions): Promise<unknown> {
  const most = mostAnswer ?? (dial === undefined ? Number.POSITIVE_INFINITY : mostFromAfar);
  const pieces: Uint8Array[] = [];
  let size = 0;
  try {
    for await (const piece of response as AsyncIterable<Uint8Array>) {
      size += piece.byteLength;
      const message = `The daemon at ${socket} answered more than ${most / 1024 / 1024} MiB.`;
      if (size > most) throw new OnejobError('E_API_ANSWER', message);
      pieces.push(piece);
    }
    return JSON.parse(Buffer.concat(pieces).toString());
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw connectionError(error, socket);
  }
}

/** An answer that cannot be read: another version, or a bug. */
function foreign(
  response: http.IncomingMessage,
  options: ApiClientOptions,
  issue?: { readonly path: PropertyKey[]; readonly message: string },
): OnejobError {
  const where = issue === undefined ? '' : ` (${issue.path.map(String).join('.')}: ${issue.message})`;
  const message = `Cannot read the answer of the daemon at ${options.socket}: status ${response.statusCode}${where}.`;
  return otherVersion(response, options) ?? new OnejobError('E_API_ANSWER', message);
}

function isSameVersion(response: http.IncomingMessage, { version }: ApiClientOptions): boolean {
  return response.headers['onejob-version'] === version;
}

function otherVersion(response: http.IncomingMessage, options: ApiClientOptions): OnejobError | null {
  if (isSameVersion(response, options)) return null;
  const { version, socket } = options;
  const theirs = response.headers['onejob-version'];
  const who =
    theirs === undefined
      ? 'The program that listens there is not a onejob daemon'
      : `The daemon is onejob ${theirs}, this is ${version}`;
  return new OnejobError('E_API_VERSION', `Cannot understand the daemon at ${socket}. ${who}.`, {
    hint: 'Restart the daemon ("onejob down --leave", then "onejob up"): running jobs go on.',
  });
}

/** The error of a broken request; an OnejobError stays as it is. */
function connectionError(error: unknown, socket: string): OnejobError {
  if (error instanceof OnejobError) return error;
  const code = codeOf(error);
  if (code === 'EACCES' || code === 'EPERM') return socketDenied(socket);
  if (code === 'ENOENT' || code === 'ECONNREFUSED' || code === 'ENOTDIR') {
    return new OnejobError('E_DAEMON_ABSENT', `Cannot reach the daemon: nothing listens on ${socket}.`, {
      hint: 'Start it with "onejob up".',
      retry: true,
      cause: error,
    });
  }
  const message = `The connection to the daemon at ${socket} was cut: ${messageOf(error)}.`;
  return new OnejobError('E_DAEMON_CUT', message, { retry: true, cause: error });
}

/** `patience`: ms that were waited. */
function silent(socket: string, call: { readonly method: string; readonly path: string }, patience: number): OnejobError {
  const seconds = Math.round(patience / 1000);
  const message = `The daemon at ${socket} did not answer ${call.method} ${call.path} within ${seconds} s.`;
  const hint = 'It may be stopped or overloaded: check that its process runs, and what it last logged.';
  return new OnejobError('E_DAEMON_SILENT', message, { hint, retry: true });
}
