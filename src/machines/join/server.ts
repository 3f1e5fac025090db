/**
 * Takes the calls of machines, see protocol.ts. Anybody may reach this port: nothing is told or stored without a secret of the run,
 * and everything has bounds. No secret is in a log or an error.
 */
import { timingSafeEqual } from 'node:crypto';
import { open as openFile } from 'node:fs/promises';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import type { z } from 'zod';
import { messageOf, toFailure } from '../../base/errors.ts';
import { deadline } from '../../core/clock.ts';
import { bytesOf } from '../../http/exchange.ts';
import { Inbound, type InboundParts, type NoPort } from '../../http/inbound.ts';
import { isReachable } from '../../system/file-server.ts';
import { jsonOf } from '../../system/json.ts';
import type { MachineHandler } from './handler.ts';
import { beatCall, early, hashOf, joinCall, plain, runName, stageCall, tunnelProtocol } from './protocol.ts';

export interface JoinServerParts extends Pick<InboundParts, 'listen' | 'tls' | 'key' | 'clock' | 'log' | 'ports'> {
  readonly handler: MachineHandler;
}

const limits = {
  /** Bytes of a body. */
  body: 64 * 1024,
  /** ms for a whole request. */
  request: 30_000,
  /** ms for a whole package: 60 MB at 1 Mbit/s. */
  package: 600_000,
};
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
  readonly #inbound: Inbound;
  readonly #routes: Readonly<Record<string, Route>> = {
    '/cloud/stage': { method: 'POST', act: (request, response) => this.#stage(request, response) },
    '/cloud/join': { method: 'POST', act: (request, response) => this.#join(request, response) },
    '/cloud/beat': { method: 'POST', act: (request, response) => this.#beat(request, response) },
    '/cloud/onejob.tgz': { method: 'GET', act: (request, response, query) => this.#package(request, response, query) },
  };

  constructor(parts: JoinServerParts) {
    this.#parts = parts;
    this.#inbound = new Inbound({
      ...parts,
      request: limits.request,
      says: { opened: 'machines can join', failed: 'machines cannot join', fields: {} },
      handle: (request, response) => this.#handle(request, response),
      upgrade: (request, pipe, head) => void this.#tunnel(request, pipe, head),
    });
  }

  /** Why machines cannot join; null if they can. */
  get problem(): NoPort | null {
    return this.#inbound.problem;
  }

  /** null while it does not listen. */
  get port(): number | null {
    return this.#inbound.port;
  }

  /** Resolves once it listens, or it is known that it cannot; it then tries again by itself. */
  open(): Promise<void> {
    return this.#inbound.open();
  }

  /** Reads the certificate again, after it was renewed. */
  refresh(): void {
    this.#inbound.refresh();
  }

  close(): Promise<void> {
    return this.#inbound.close();
  }

  #handle(request: IncomingMessage, response: ServerResponse): void {
    response.setHeader('cache-control', 'no-store');
    this.#answer(request, response).catch((error: unknown) => {
      this.#inbound.complain('a call of a machine was not answered', { reason: messageOf(error) });
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
        this.#inbound.complain('a call of a machine failed', { reason: toFailure(error).message });
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
    if (found === null)
      this.#inbound.complain('a call of a machine was refused', { run, reason: 'the run or its secret is not known' });
    else this.#inbound.known(request, run, answer);
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
      this.#inbound.complain('a join was refused', { run, reason: 'the run or its token is not known' });
      return refused;
    }
    this.#inbound.known(request, run, response);
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
      this.#inbound.complain('a tunnel of a machine was not opened', { reason: messageOf(error) });
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
