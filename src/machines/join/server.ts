/**
 * Takes the calls of machines, see protocol.ts. Anybody may reach this port: nothing is told or stored without a secret of the run,
 * and everything has bounds. No secret is in a log or an error.
 */
import { timingSafeEqual } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { open as openFile } from 'node:fs/promises';
import http, { type IncomingMessage, type ServerResponse } from 'node:http';
import type https from 'node:https';
import type { Duplex } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import type { z } from 'zod';
import { codeOf, messageOf, toFailure } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { type Clock, deadline } from '../../core/clock.ts';
import type { Listen } from '../../http/address.ts';
import { createConnections, oneAtATime } from '../../http/connections.ts';
import { bytesOf } from '../../http/exchange.ts';
import { addressText, listenAgain, whyNoPort } from '../../http/listen.ts';
import { type Answering, answerAt, type Ports } from '../../http/ports.ts';
import { isReachable } from '../../system/file-server.ts';
import { jsonOf } from '../../system/json.ts';
import type { MachineHandler } from './handler.ts';
import { beatCall, early, hashOf, joinCall, plain, runName, stageCall, tunnelProtocol } from './protocol.ts';

export interface JoinServerParts {
  readonly listen: Listen;
  /** Paths of certificate and key in PEM; null: a proxy in front of it has them, or it listens on loopback only. */
  readonly tls: { readonly cert: string; readonly key: string } | null;
  /** The key of the config that has `listen`, for messages. */
  readonly key: string;
  readonly handler: MachineHandler;
  readonly clock: Clock;
  readonly log: Pick<Log, 'info' | 'warn' | 'error'>;
  /** Those of the daemon, which stay open when this ends. */
  readonly ports?: Ports | undefined;
}

const limits = {
  /** Bytes of a body. */
  body: 64 * 1024,
  /** ms for a whole request. */
  request: 30_000,
  /** ms for a whole package: 60 MB at 1 Mbit/s. */
  package: 600_000,
};
/** ms: how often the log tells of refused calls, which anybody can cause. */
const quiet = 60_000;

/** Why it does not listen, as the end of a sentence, and what a person can do. */
interface NoPort {
  readonly why: string;
  readonly hint: string;
}

/** `body`: an object to send as JSON; a string is the path of a file. */
type Answer = { readonly status: number; readonly body?: object | string };

const refused: Answer = { status: 403 };
const notFound: Answer = { status: 404 };

interface Route {
  readonly method: string;
  act(request: IncomingMessage, response: ServerResponse, query: URLSearchParams): Promise<Answer>;
}

export class JoinServer {
  readonly #parts: JoinServerParts;
  readonly #connections = createConnections();
  readonly #routes: Readonly<Record<string, Route>> = {
    '/cloud/stage': { method: 'POST', act: (request, response) => this.#stage(request, response) },
    '/cloud/join': { method: 'POST', act: (request, response) => this.#join(request, response) },
    '/cloud/beat': { method: 'POST', act: (request, response) => this.#beat(request, response) },
    '/cloud/onejob.tgz': { method: 'GET', act: (request, response, query) => this.#package(request, response, query) },
  };
  #server: http.Server | https.Server | null = null;
  #answering: Answering | null = null;
  #problem: NoPort | null = null;
  #quietUntil = 0;
  #isClosed = false;
  #callOff = (): void => {};

  constructor(parts: JoinServerParts) {
    this.#parts = parts;
  }

  /** Why machines cannot join; null if they can. */
  get problem(): NoPort | null {
    return this.#problem;
  }

  /** null while it does not listen. */
  get port(): number | null {
    return this.#answering?.port ?? null;
  }

  /** Resolves once it listens, or it is known that it cannot; it then tries again by itself. */
  async open(): Promise<void> {
    const { listen, tls, key, clock, log, ports } = this.#parts;
    try {
      const made = await this.#make();
      this.#connections.watch(made);
      made.on('upgrade', (request: IncomingMessage, pipe: Duplex, head: Buffer) => void this.#tunnel(request, pipe, head));
      this.#answering = await answerAt(listen, made, { ports, log });
      this.#server = made;
      this.#problem = null;
      log.info('machines can join', { address: addressText(listen) });
      if (this.#isClosed) await this.#answering.leave();
    } catch (error) {
      const found = tls !== null && codeOf(error) === 'E_TLS' ? noTls(error, key) : whyNoPort(listen, key, error);
      if (this.#problem?.why !== found.why) log.error('machines cannot join', { address: addressText(listen), reason: found.why });
      this.#problem = found;
      if (!this.#isClosed) this.#callOff = clock.after(listenAgain, () => void this.open());
    }
  }

  async #make(): Promise<http.Server | https.Server> {
    const { tls } = this.#parts;
    const options: http.ServerOptions = {
      requestTimeout: limits.request,
      headersTimeout: limits.request,
      connectionsCheckingInterval: 1_000,
      keepAliveTimeout: 72_000,
      maxHeaderSize: 16 * 1024,
    };
    const handle = oneAtATime((request, response) => this.#handle(request, response));
    if (tls === null) return http.createServer(options, handle);
    const { createServer } = await import('node:https');
    return createServer({ ...options, handshakeTimeout: 10_000, ...readTls(tls) }, handle);
  }

  /** Reads the certificate again, after it was renewed. */
  refresh(): void {
    const { tls, log } = this.#parts;
    if (this.#server === null || tls === null || !('setSecureContext' in this.#server)) return;
    try {
      this.#server.setSecureContext(readTls(tls));
    } catch (error) {
      log.error('the certificate for machines was not taken', { reason: messageOf(error) });
    }
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#callOff();
    const left = this.#answering?.leave();
    // Also those whose handshake is not over, which the server does not count yet.
    this.#connections.closeAll();
    await left;
  }

  #complain(text: string, fields: Readonly<Record<string, string>>): void {
    const { clock, log } = this.#parts;
    if (clock.now() < this.#quietUntil) return;
    this.#quietUntil = clock.now() + quiet;
    log.warn(text, fields);
  }

  #handle(request: IncomingMessage, response: ServerResponse): void {
    response.setHeader('cache-control', 'no-store');
    this.#answer(request, response).catch((error: unknown) => {
      this.#complain('a call of a machine was not answered', { reason: messageOf(error) });
      if (response.headersSent) response.destroy();
      else response.writeHead(503, { connection: 'close' }).end();
    });
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = URL.parse(request.url ?? '', 'http://machine');
    const route = this.#routes[url?.pathname ?? ''];
    if (url === null || route === undefined) return send(request, response, notFound);
    if (request.method !== route.method) {
      response.setHeader('allow', route.method);
      return send(request, response, { status: 405 });
    }
    if (Number(request.headers['content-length'] ?? 0) > limits.body) return send(request, response, { status: 413 });
    const found = await route.act(request, response, url.searchParams).catch((error: unknown): Answer => {
      if (error instanceof TooLarge) return { status: 413 };
      if (!request.destroyed || request.complete)
        this.#complain('a call of a machine failed', { reason: toFailure(error).message });
      return { status: 503 };
    });
    return typeof found.body === 'string' ? this.#sendFile(request, response, found.body) : send(request, response, found);
  }

  async #sendFile(request: IncomingMessage, response: ServerResponse, path: string): Promise<void> {
    if (!(await isReachable(path))) return send(request, response, { status: 503 });
    await using file = await openFile(path, 'r');
    const { size } = await file.stat();
    using limit = deadline(this.#parts.clock, limits.package);
    response.writeHead(200, { 'content-type': 'application/gzip', 'content-length': size });
    await pipeline(file.createReadStream({ autoClose: false, start: 0, end: Math.max(0, size - 1) }), response, {
      signal: limit.signal,
    });
  }

  /** Whose secret it is. An unknown run takes as long as a wrong secret. */
  async #whose(run: string, secret: string): Promise<'token' | 'credential' | null> {
    const found = await this.#parts.handler.secretsOf(run);
    const [isToken, isCredential] = [found?.token, found?.credential].map((hash) => isOf(secret, hash ?? null));
    if (found === null) return null;
    if (isCredential) return 'credential';
    return isToken ? 'token' : null;
  }

  /** Calls with a secret in the header. `answer` ends with the call. */
  async #admit(request: IncomingMessage, answer: ServerResponse | Duplex, run: string): Promise<'token' | 'credential' | null> {
    const [, secret = ''] = /^Bearer ([A-Za-z0-9_-]{43})$/.exec(request.headers.authorization ?? '') ?? [];
    const found = await this.#whose(run, secret);
    if (found === null) this.#complain('a call of a machine was refused', { run, reason: 'the run or its secret is not known' });
    else this.#connections.known(request.socket, run, answer);
    return found;
  }

  async #stage(request: IncomingMessage, response: ServerResponse): Promise<Answer> {
    const { handler } = this.#parts;
    const said = await read(request, stageCall);
    if (said === null) return { status: 400 };
    const by = await this.#admit(request, response, said.run);
    if (by === null) return refused;
    if (by === 'token' && (!early.has(said.stage) || (await handler.secretsOf(said.run))?.credential != null)) return refused;
    await handler.stage({ ...said, text: plain(said.text) });
    return { status: 204 };
  }

  async #join(request: IncomingMessage, response: ServerResponse): Promise<Answer> {
    const { handler, log } = this.#parts;
    const said = await read(request, joinCall);
    if (said === null) return { status: 400 };
    const { run, token, credential } = said;
    const found = await handler.secretsOf(run);
    if (!isOf(token, found?.token ?? null) || found === null) {
      this.#complain('a join was refused', { run, reason: 'the run or its token is not known' });
      return refused;
    }
    this.#connections.known(request.socket, run, response);
    const hash = hashOf(credential);
    const isFirst = found.credential === null && (await handler.bind(run, hash));
    const isBound = isFirst || isOf(credential, (await handler.secretsOf(run))?.credential ?? null);
    if (!isBound) {
      const from = request.socket.remoteAddress ?? 'an unknown address';
      log.warn('a used join token came again', { run, from });
      await handler.stolen(run, from);
      return refused;
    }
    if (found.hasJoined) return refused;
    return { status: 200, body: await handler.belongings(run) };
  }

  async #beat(request: IncomingMessage, response: ServerResponse): Promise<Answer> {
    const said = await read(request, beatCall);
    if (said === null) return { status: 400 };
    if ((await this.#admit(request, response, said.run)) !== 'credential') return refused;
    const problem = said.problem === null ? null : plain(said.problem);
    return { status: 200, body: { do: await this.#parts.handler.beat({ ...said, problem }) } };
  }

  async #package(request: IncomingMessage, response: ServerResponse, query: URLSearchParams): Promise<Answer> {
    const run = runName.safeParse(query.get('run'));
    if (!run.success || (await this.#admit(request, response, run.data)) === null) return refused;
    const { package: file } = this.#parts.handler;
    return file === null ? notFound : { status: 200, body: file };
  }

  /** Never fails. A refusal closes the connection. */
  async #tunnel(request: IncomingMessage, pipe: Duplex, head: Buffer): Promise<void> {
    // An error leads to 'close'.
    pipe.on('error', () => {});
    try {
      const url = URL.parse(request.url ?? '', 'http://machine');
      const run = runName.safeParse(url?.searchParams.get('run'));
      const isMeant = url?.pathname === '/cloud/tunnel' && request.headers.upgrade === tunnelProtocol && run.success;
      if (isMeant && (await this.#admit(request, pipe, run.data)) === 'credential') {
        pipe.write(`HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: ${tunnelProtocol}\r\n\r\n`);
        pipe.unshift(head);
        if (this.#parts.handler.tunnel(run.data, pipe)) return;
      }
    } catch (error) {
      this.#complain('a tunnel of a machine was not opened', { reason: messageOf(error) });
    }
    pipe.destroy();
  }
}

/** Whether the secret has this hash, in constant time; false without one, in the same time. */
function isOf(secret: string, hash: string | null): boolean {
  const given = Buffer.from(hashOf(secret), 'hex');
  const stored = Buffer.from(hash ?? '', 'hex');
  const isHash = stored.length === given.length;
  return timingSafeEqual(given, isHash ? stored : Buffer.alloc(given.length)) && isHash;
}

class TooLarge extends Error {}

/** The body; null if it is not understood. */
async function read<T extends z.ZodType>(request: IncomingMessage, schema: T): Promise<z.output<T> | null> {
  const body = await bytesOf(request, limits.body, () => new TooLarge());
  const found = schema.safeParse(jsonOf(body.toString()));
  return found.success ? found.data : null;
}

function send(request: IncomingMessage, response: ServerResponse, { status, body }: Answer): void {
  // What was not read of a body must not be taken for another request.
  if (!request.complete) response.setHeader('connection', 'close');
  if (status === 503) response.setHeader('retry-after', '5');
  if (body === undefined) response.writeHead(status).end();
  else response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
}

/** @throws Error with the code E_TLS */
function readTls({ cert, key }: NonNullable<JoinServerParts['tls']>) {
  try {
    const pair = { cert: readFileSync(cert), key: readFileSync(key), minVersion: 'TLSv1.2' as const };
    process.getBuiltinModule('node:tls').createSecureContext(pair);
    return pair;
  } catch (error) {
    throw Object.assign(new Error(`the certificate ${cert} cannot be used: ${messageOf(error)}`), { code: 'E_TLS' });
  }
}

function noTls(error: unknown, key: string): NoPort {
  const hint = `Correct "tls_cert" and "tls_key" next to "${key}", or these files. onejob tries again every 10 s.`;
  return { why: messageOf(error), hint };
}
