/**
 * How a client reaches a daemon: one connection for each request, over a socket or another way. It turns every failure into an
 * `OnejobError`: daemon absent, silent, cut off or of another version, permission denied.
 */
import type http from 'node:http';
import type { Duplex } from 'node:stream';
import type { z } from 'zod';
import { codeOf, messageOf, OnejobError } from '../base/errors.ts';
import { fromErrorView } from '../contract/http-errors.ts';
import { systemClock } from '../system/system-clock.ts';
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

/** What is sent. */
export interface Sending {
  readonly method: string;
  /** With its query. */
  readonly path: string;
  readonly body?: unknown;
  /** ms to wait for the answer; null: without limit. Default: as of all. */
  readonly patience?: number | null | undefined;
  readonly signal?: AbortSignal | undefined;
}

// Importing it would also load Node's fetch and WebSocket, since its exports are read: tens of ms in every command.
const { Agent, request: sendRequest } = process.getBuiltinModule('node:http');

/** Bytes of an answer of another host, which is not trusted. */
const mostFromAfar = 256 * 2 ** 20;
/** Informational answers (1xx) to one request. */
const mostHints = 4;
/** ms to wait for an answer that should come at once. */
const usualPatience = 60_000;

export class Transport {
  readonly #options: ApiClientOptions;
  // A new connection for each request: a kept one may turn out to be dead only after the request was sent.
  readonly #agent = new Agent({ keepAlive: false });

  /** @throws OnejobError E_SOCKET_PATH */
  constructor(options: ApiClientOptions) {
    const { socket, dial } = options;
    if (dial === undefined) checkSocketPath(socket);
    else this.#agent.createConnection = dial;
    this.#options = options;
  }

  /** The answer, unread. @throws the error that the daemon answered */
  async send(sending: Sending): Promise<http.IncomingMessage> {
    return this.succeeded(await this.open(sending));
  }

  /** The answer, unread, which may be an error. `write` sends the body, and ends the request. */
  open(sending: Sending, write?: (request: http.ClientRequest) => void): Promise<http.IncomingMessage> {
    const { socket } = this.#options;
    return new Promise((resolve, reject) => {
      const request = this.#begin(sending);
      const silence = this.#silence(sending, request);
      request.once('response', (response) => {
        silence.end();
        resolve(response);
      });
      request.once('error', (error: NodeJS.ErrnoException) => {
        silence.end();
        reject(sending.signal?.aborted ? sending.signal.reason : connectionError(error, socket));
      });
      if (write === undefined) request.end(sending.body === undefined ? undefined : JSON.stringify(sending.body));
      else write(request);
    });
  }

  /** The connection of a request for a shell, upgraded, without limit from then on. @throws the error that the daemon answered */
  upgrade(path: string): Promise<Duplex> {
    return new Promise((resolve, reject) => {
      const sending = { method: 'POST', path };
      const answer = this.open({ ...sending, patience: null }, (request) => {
        const silence = this.#silence(sending, request);
        request.once('close', silence.end);
        request.setHeader('connection', 'Upgrade');
        request.setHeader('upgrade', 'onejob-shell');
        request.once('upgrade', (_response, connection, head) => {
          silence.end();
          connection.unshift(head);
          resolve(connection);
        });
        request.end();
      });
      answer.then((response) => this.succeeded(response)).then((response) => reject(this.foreign(response.resume())), reject);
    });
  }

  /** @throws the error that the daemon answered */
  async succeeded(response: http.IncomingMessage): Promise<http.IncomingMessage> {
    if ((response.statusCode ?? 500) < 400) return response;
    const { errorView } = await import('../contract/schema.ts');
    const view = errorView.safeParse(await this.#read(response));
    if (!view.success) throw this.foreign(response);
    const error = fromErrorView(view.data);
    throw error.code === 'E_API_ROUTE' || error.code === 'E_API_REQUEST' ? (this.#otherVersion(response) ?? error) : error;
  }

  /**
   * The JSON of an answer, checked by the schema that `load` brings, unless the daemon is trusted; undefined where the schema is that, or a
   * trusted daemon sent none.
   */
  async json(response: http.IncomingMessage, load: () => Promise<z.ZodType | undefined>): Promise<unknown> {
    const { trusting = false, dial } = this.#options;
    const isTrusted = trusting && dial === undefined && this.#isSameVersion(response);
    const loading = isTrusted ? null : load();
    const isEmpty = isTrusted ? hasNothing(response) : (await loading) === undefined;
    if (isEmpty) return void response.resume();
    const value = await this.#read(response);
    if (value === undefined) throw this.foreign(response);
    const result = (await loading)?.safeParse(value);
    if (result === undefined) return value;
    if (result.success) return result.data;
    throw this.foreign(response, result.error.issues[0]);
  }

  /** Breaks off all requests. */
  close(): void {
    this.#agent.destroy();
  }

  /** The error of an answer that cannot be read: of another version, or a bug. */
  foreign(response: http.IncomingMessage, issue?: { readonly path: PropertyKey[]; readonly message: string }): OnejobError {
    const where = issue === undefined ? '' : ` (${issue.path.map(String).join('.')}: ${issue.message})`;
    const message = `Cannot read the answer of the daemon at ${this.#options.socket}: status ${response.statusCode}${where}.`;
    return this.#otherVersion(response) ?? new OnejobError('E_API_ANSWER', message);
  }

  #begin({ method, path, body, signal }: Sending): http.ClientRequest {
    const { socket, dial } = this.#options;
    try {
      if (dial === undefined) checkSocketOwner(socket);
    } catch (error) {
      throw connectionError(error, socket);
    }
    const length = body === undefined ? null : Buffer.byteLength(JSON.stringify(body));
    const request = sendRequest({
      ...(dial === undefined && { socketPath: socket }),
      agent: this.#agent,
      method,
      path,
      headers: length === null ? {} : { 'content-type': 'application/json', 'content-length': length },
      ...(signal !== undefined && { signal }),
    });
    // A daemon sends none, and each costs as much as an answer.
    let hints = 0;
    request.on('information', () => {
      hints += 1;
      if (hints > mostHints) request.destroy(new Error('it sent informational answers without end'));
    });
    return request;
  }

  /** Ends a request that is not answered in time. */
  #silence(sending: Sending, request: http.ClientRequest): { readonly end: () => void } {
    const { socket, patience: usual = usualPatience } = this.#options;
    const { patience = usual } = sending;
    if (patience === null) return { end: () => {} };
    return { end: systemClock.after(patience, () => request.destroy(silent(socket, sending, patience))) };
  }

  /** The JSON of an answer; undefined if it cannot be parsed. */
  async #read(response: http.IncomingMessage): Promise<unknown> {
    const { socket, dial, mostAnswer } = this.#options;
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

  #isSameVersion(response: http.IncomingMessage): boolean {
    return response.headers['onejob-version'] === this.#options.version;
  }

  #otherVersion(response: http.IncomingMessage): OnejobError | null {
    if (this.#isSameVersion(response)) return null;
    const { version, socket } = this.#options;
    const theirs = response.headers['onejob-version'];
    const who =
      theirs === undefined
        ? 'The program that listens there is not a onejob daemon'
        : `The daemon is onejob ${theirs}, this is ${version}`;
    return new OnejobError('E_API_VERSION', `Cannot understand the daemon at ${socket}. ${who}.`, {
      hint: 'Restart the daemon ("onejob down --leave", then "onejob up"): running jobs continue.',
    });
  }
}

function hasNothing({ statusCode, headers }: http.IncomingMessage): boolean {
  return statusCode === 204 || headers['content-length'] === '0';
}

/** The error of a broken request; an OnejobError stays as it is. */
export function connectionError(error: unknown, socket: string): OnejobError {
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
function silent(socket: string, { method, path }: Sending, patience: number): OnejobError {
  const seconds = Math.round(patience / 1000);
  const message = `The daemon at ${socket} did not answer ${method} ${path} within ${seconds} s.`;
  const hint = 'It may be stopped or overloaded: check that its process runs, and what it last logged.';
  return new OnejobError('E_DAEMON_SILENT', message, { hint, retry: true });
}
