/**
 * The filter's HTTP server: for agents of untrusted jobs, and for all jobs of services that give each job out once. It opens the sealed
 * token of a call, asks the rules whether the job may make it, and forwards it, signed with the service's own token if the rules say so.
 * It keeps no state between calls, so it may be killed and started again at any time. It trusts no input: jobs know the sealed tokens,
 * and every address that their agents can reach.
 */
import http, { type IncomingMessage, type OutgoingHttpHeaders, type ServerResponse } from 'node:http';
import https from 'node:https';
import { pipeline } from 'node:stream';
import type { Dispatcher } from 'undici';
import { messageOf } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { type Clock, sleep } from '../../core/clock.ts';
import { createConnections, oneAtATime } from '../../http/connections.ts';
import { bytesOf } from '../../http/exchange.ts';
import { createOutbound, type Outbound } from '../../http/outbound.ts';
import type { Proxies } from '../../http/proxies.ts';
import { jsonOf } from '../../system/json.ts';
import type { StoredCaches } from '../stored/store.ts';
import { serveCaches } from './cache-calls.ts';
import type { Certificate } from './certificates.ts';
import type { OneTimeFiles } from './one-time-files.ts';
import { type Identity, proveAt } from './proof.ts';
import { createRate } from './rate.ts';
import { type FilterRequest, type Rules, type RuleVerdict, readPath } from './rules.ts';
import { looksSealed, type Seal, type Sealed } from './seal.ts';

const filterLimits = {
  /** ms for a call whose body or answer is read as a whole. */
  wholeMs: 60_000,
  /** Bytes of such a body, and of such an answer. */
  wholeBytes: 64 * 1024,
  answerBytes: 16 * 1024 * 1024,
  /** Such calls of one job at a time, which bounds its memory. */
  reading: 4,
  /** Calls of one job for caches at a time: each may look at thousands of files. */
  caches: 8,
  /** Calls of one job at a time. */
  calls: 96,
  /** Calls of one job per second, and at once after a rest; more calls wait. */
  perSecond: 200,
  burst: 400,
};
export type FilterLimits = Readonly<typeof filterLimits>;

export interface FilterServerParts {
  /** With which it proves itself to the manager. */
  readonly identity: Identity;
  readonly seal: Seal;
  readonly rules: ReadonlyMap<string, Rules>;
  readonly left: Pick<OneTimeFiles, 'take' | 'has'>;
  /** Absent: it keeps none. */
  readonly caches?: StoredCaches;
  readonly proxies: Proxies;
  readonly clock: Clock;
  readonly log: Log;
  readonly limits?: Partial<FilterLimits>;
}

/** A job with calls, and for a while after its last. */
interface Usage {
  calls: number;
  caching: number;
  reading: number;
  readonly rate: ReturnType<typeof createRate>;
  /** Own connections: if service and filter ever read bytes differently, only this job is affected. */
  readonly outbound: Outbound;
  readonly said: Set<string>;
  forget: () => void;
}

interface Call {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly sealed: Sealed;
  readonly rules: Rules;
  /** Path and query below the service's API, as they came. */
  readonly below: string;
  readonly usage: Usage;
  readonly signal: AbortSignal;
}

/** ms after its last call until a job's connections are closed. */
const keepUsage = 60_000;

export class FilterServer {
  readonly #parts: FilterServerParts;
  readonly #limits: FilterLimits;
  readonly #closing = new AbortController();
  readonly #connections = createConnections();
  readonly #usages = new Map<string, Usage>();
  readonly #servers = new Set<http.Server | https.Server>();

  constructor(parts: FilterServerParts) {
    this.#parts = parts;
    this.#limits = { ...filterLimits, ...this.#parts.limits };
  }

  /** A server for one more address. `tls`: the certificate that it needs there. */
  server(tls: Certificate | null = null): http.Server | https.Server {
    const options: http.ServerOptions = {
      // An upload may take hours, so only its head has a deadline. Go's client keeps idle connections for 90 s.
      requestTimeout: 0,
      headersTimeout: 30_000,
      keepAliveTimeout: 120_000,
      maxHeaderSize: 16 * 1024,
      insecureHTTPParser: false,
      requireHostHeader: true,
      noDelay: true,
    };
    // No agent pipelines (Go's net/http does not).
    const answer = oneAtATime((request, response) => this.#handle(request, response));
    const made =
      tls === null
        ? http.createServer(options, answer)
        : https.createServer({ ...options, ...tls, minVersion: 'TLSv1.2', handshakeTimeout: 10_000 }, answer);
    this.#connections.watch(made);
    this.#servers.add(made);
    return made;
  }

  /** Listens no more, and resolves when the calls under way have ended, or after `ms`. Another process has the listeners now. */
  async drain(ms: number): Promise<void> {
    const isOpen = new Set(this.#servers);
    for (const one of this.#servers) one.close(() => isOpen.delete(one));
    for (const until = this.#parts.clock.now() + ms; isOpen.size > 0 && this.#parts.clock.now() < until; ) {
      for (const one of isOpen) one.closeIdleConnections();
      await sleep(this.#parts.clock, 50);
    }
  }

  close(): void {
    this.#closing.abort();
    for (const one of this.#servers) {
      one.close();
      one.closeAllConnections();
    }
    for (const usage of this.#usages.values()) {
      usage.forget();
      usage.outbound.close();
    }
  }

  #handle(request: IncomingMessage, response: ServerResponse): void {
    if (this.#closing.signal.aborted) return void request.socket.destroy();
    const gone = new AbortController();
    const stop = (): void => gone.abort();
    this.#closing.signal.addEventListener('abort', stop, { once: true });
    response.once('close', () => {
      this.#closing.signal.removeEventListener('abort', stop);
      stop();
    });
    this.#serve(request, response, gone.signal).catch((error: unknown) => {
      if (gone.signal.aborted) return void response.destroy();
      if (error instanceof TooLarge) return refuse(response, 413, 'The body of the call is too large.');
      // A broken answer breaks off here too, so that nobody takes half of it for all.
      if (response.headersSent) return void response.destroy();
      refuse(response, 502, `The service cannot be reached, or sent an invalid response: ${messageOf(error)}`);
    });
  }

  #enter(job: string): Usage {
    const usage = this.#usages.get(job) ?? {
      calls: 0,
      caching: 0,
      reading: 0,
      rate: createRate(this.#limits.perSecond, this.#limits.burst),
      outbound: createOutbound(this.#parts.proxies),
      said: new Set<string>(),
      forget: () => {},
    };
    this.#usages.set(job, usage);
    usage.forget();
    usage.calls += 1;
    return usage;
  }

  #leave(job: string, usage: Usage): void {
    usage.calls -= 1;
    if (usage.calls > 0) return;
    if (this.#closing.signal.aborted) {
      usage.outbound.close();
      return;
    }
    usage.forget = this.#parts.clock.after(keepUsage, () => {
      this.#usages.delete(job);
      usage.outbound.close();
    });
  }

  async #stream(call: Call, toldAs: (status: number) => number): Promise<void> {
    const { request, response } = call;
    const hasBody = request.headers['transfer-encoding'] !== undefined || Number(request.headers['content-length'] ?? 0) > 0;
    const answer = await send(call, hasBody ? request : null);
    if (answer.statusCode >= 400)
      return passOn(call, answer, toldAs(answer.statusCode), await read(answer.body, this.#limits.answerBytes));
    response.writeHead(answer.statusCode, cleaned(call, answer));
    response.flushHeaders();
    await new Promise<void>((resolve) => pipeline(answer.body, response, () => resolve()));
  }

  async #whole(call: Call, verdict: Extract<RuleVerdict, { kind: 'whole' }>): Promise<void> {
    const { request, response, usage, sealed } = call;
    if (usage.reading >= this.#limits.reading) return refuse(response, 503, 'Too many concurrent calls of this kind.');
    usage.reading += 1;
    const callOff = this.#parts.clock.after(this.#limits.wholeMs, () => request.destroy());
    try {
      const body = await read(request, this.#limits.wholeBytes);
      const own = verdict.body === undefined ? body : verdict.body(foreignJson(body));
      if (own === null) return this.#deny(call, 403, verdict.why ?? 'This job may not see that.');
      const answer = await send(call, request.method === 'GET' ? null : Buffer.from(own));
      const said = await read(answer.body, this.#limits.answerBytes);
      if (answer.statusCode >= 300 || verdict.answer === undefined) return passOn(call, answer, answer.statusCode, said);
      const host = /^(.*?)(:\d+)?$/.exec(request.headers.host ?? '')?.[1]?.replace(/^\[(.*)\]$/, '$1') ?? '';
      const rewritten = JSON.stringify(verdict.answer(JSON.parse(said.toString()), this.#parts.seal, host));
      // Escaped as in JSON: any text or name may contain the token.
      passOn(call, answer, answer.statusCode, rewritten.replaceAll(JSON.stringify(sealed.token).slice(1, -1), '[token]'));
    } finally {
      callOff();
      usage.reading -= 1;
    }
  }

  /** Answers without asking the service. */
  async #answer(call: Call, verdict: Extract<RuleVerdict, { kind: 'answered' | 'left' }>): Promise<void> {
    const { request, response, sealed } = call;
    const asked = await read(request, this.#limits.wholeBytes);
    const say = (status: number, body: Buffer | null, type = 'application/json'): void => {
      response.writeHead(status, body === null ? {} : { 'content-type': type, 'content-length': body.length });
      response.end(body ?? undefined);
    };
    if (verdict.kind === 'answered') return say(verdict.status, Buffer.from(JSON.stringify(verdict.json)));
    // An agent that a onejob without keys apart released has its key in the sealed token, and shows none. This may go one release after
    // the first one that has keys apart. A newer sealed token has no key, so it opens nothing here.
    const key = verdict.keyIn?.(foreignJson(asked)) ?? sealed.token;
    const found = sealed.file === undefined ? null : await this.#parts.left.take(sealed.file, key);
    if (found === null) return say(verdict.after, null);
    say(verdict.status, found, verdict.type);
  }

  async #caches({ request, response, sealed, usage }: Call, asked: FilterRequest): Promise<void> {
    const { caches: store, left } = this.#parts;
    const { caches, file } = sealed;
    if (store === undefined || caches === undefined) return this.#deny({ response, sealed, usage }, 403, 'This job has no caches.');
    if (file === undefined || !left.has(file))
      return this.#deny({ response, sealed, usage }, 401, 'The agent of this job has ended.');
    if (usage.caching >= this.#limits.caches) return refuse(response, 503, 'Too many concurrent calls for caches.');
    usage.caching += 1;
    await serveCaches({ request, response, sealed, caches, asked, store }).finally(() => {
      usage.caching -= 1;
    });
  }

  /** Refuses, and logs each reason once per job: that shows jobs that try their token elsewhere. */
  #deny({ response, sealed, usage }: Pick<Call, 'response' | 'sealed' | 'usage'>, status: number, why: string): void {
    if (!usage.said.has(why) && usage.said.size < 100) this.#parts.log.warn('call of a job refused', { job: sealed.job, why });
    usage.said.add(why);
    refuse(response, status, why);
  }

  #prove(request: IncomingMessage, response: ServerResponse, { method, query }: FilterRequest): void {
    const proof = method === 'GET' ? proveAt(this.#parts.identity, query, request) : null;
    if (proof === null) {
      refuse(response, 400, 'The call is invalid: it needs a nonce.');
      return;
    }
    const bytes = Buffer.from(JSON.stringify(proof));
    response.writeHead(200, { 'content-type': 'application/json', 'content-length': bytes.length, connection: 'close' });
    response.end(bytes);
  }

  async #serve(request: IncomingMessage, response: ServerResponse, signal: AbortSignal): Promise<void> {
    const asked = readPath(request.method ?? '', request.url ?? '');
    const problem = typeof asked === 'string' ? asked : bodyProblem(request);
    if (typeof asked === 'string' || problem !== null) return refuse(response, 400, `The call is invalid: ${problem}.`);
    if (asked.segments.length === 1 && asked.segments[0] === 'who') return this.#prove(request, response, asked);
    const { scheme, token } = tokenOf(request, asked.segments[1] ?? '');
    const sealed = this.#parts.seal.open(token);
    const rules = sealed === null ? undefined : this.#parts.rules.get(sealed.rules);
    const isGood = sealed !== null && rules?.scheme === scheme && this.#parts.clock.wall() < sealed.until;
    if (sealed === null || rules === undefined || !isGood) return refuse(response, 401, 'The token is invalid or no longer valid.');
    this.#connections.known(request.socket, sealed.job, response);
    const above = scheme === null ? `/${rules.root}/${token}` : `/${rules.root}`;
    const segments = asked.segments.slice(scheme === null ? 2 : 1);
    const url = request.url ?? '';
    if (asked.segments[0] !== rules.root || !url.startsWith(above)) return refuse(response, 404, 'There is no such call.');
    const usage = this.#enter(sealed.job);
    try {
      if (usage.calls > this.#limits.calls) return refuse(response, 503, 'Too many concurrent calls.');
      const wait = usage.rate(this.#parts.clock.now());
      if (wait > 0) await sleep(this.#parts.clock, wait, signal);
      signal.throwIfAborted();
      const verdict = rules.judge(sealed, { ...asked, segments });
      const call: Call = { request, response, sealed, rules, below: url.slice(above.length), usage, signal };
      if (verdict.kind === 'refused') this.#deny(call, verdict.status, verdict.why);
      else if (verdict.kind === 'whole') await this.#whole(call, verdict);
      else if (verdict.kind === 'caches') await this.#caches(call, { ...asked, segments });
      else if (verdict.kind !== 'stream') await this.#answer(call, verdict);
      else await this.#stream(call, verdict.toldAs ?? ((status) => status));
    } finally {
      this.#leave(sealed.job, usage);
    }
  }
}

function passOn(call: Call, answer: Dispatcher.ResponseData, status: number, body: Buffer | string): void {
  const { response } = call;
  if (response.headersSent || response.destroyed) return;
  const headers = cleaned(call, answer);
  const encoding = headers['content-encoding'];
  const isPacked = encoding !== undefined && encoding !== 'identity';
  // A packed body cannot be cleaned, so only its status is passed on.
  const bytes = isPacked ? Buffer.from('{}') : Buffer.from(clean(call, body.toString()));
  delete headers['content-encoding'];
  response.writeHead(status, { ...headers, 'content-length': bytes.length });
  response.end(bytes);
}

function cleaned(call: Call, { headers }: Pick<Dispatcher.ResponseData, 'headers'>): OutgoingHttpHeaders {
  const kept = headersWithout(notToAgents, headers);
  return Object.fromEntries(
    Object.entries(kept).map(([name, value]) => [name, typeof value === 'string' ? clean(call, value) : value]),
  );
}

function clean({ sealed }: Call, text: string): string {
  return [sealed.token, ...Object.values(sealed.signs ?? {})].reduce((said, secret) => said.replaceAll(secret, '[token]'), text);
}

async function send(call: Call, body: Buffer | IncomingMessage | null): Promise<Dispatcher.ResponseData> {
  const { request, sealed, rules, usage, signal } = call;
  const origin = new URL(sealed.endpoint);
  const path = `${origin.pathname.replace(/\/$/, '')}${call.below}`;
  const headers = headersWithout(notFromAgents, request.headersDistinct);
  const length = Buffer.isBuffer(body) ? String(body.length) : request.headers['content-length'];
  return usage.outbound.dispatcherFor(origin).request({
    origin: origin.origin,
    path,
    method: (request.method ?? 'GET') as Dispatcher.HttpMethod,
    signal,
    body,
    headers: {
      ...(headers as Record<string, string | string[]>),
      ...(body !== null && length !== undefined && { 'content-length': length }),
      ...(rules.scheme === runnerToken
        ? sealed.signs
        : rules.scheme !== null && { authorization: `${rules.scheme} ${sealed.token}` }),
    },
  });
}

/** The header in which runners of Gitea send their token (runner 1.0.8, `internal/pkg/client/header.go`). */
const runnerToken = 'x-runner-token';

/** The sealed token of a call, and the scheme before it; null: it was the `segment` after the root. */
function tokenOf(
  { headersDistinct }: IncomingMessage,
  segment: string,
): { readonly scheme: string | null; readonly token: string } {
  if (looksSealed(segment)) return { scheme: null, token: segment };
  const [own = '', ...others] = headersDistinct[runnerToken] ?? [];
  if (others.length === 0 && looksSealed(own)) return { scheme: runnerToken, token: own };
  const values = headersDistinct.authorization ?? [];
  const [, scheme = '', token = ''] = (values.length === 1 && /^(\w+) ([\x21-\x7e]{1,8192})$/.exec(values[0] ?? '')) || [];
  return { scheme, token };
}

class TooLarge extends Error {}

const read = (stream: AsyncIterable<Uint8Array>, limit: number) => bytesOf(stream, limit, () => new TooLarge());

/** In the form of the services. Agents take most 4xx as final, and repeat a call after 5xx. */
function refuse(response: ServerResponse, status: number, message: string): void {
  if (response.headersSent || response.destroyed) return;
  const bytes = Buffer.from(JSON.stringify({ message }));
  // The unread rest of a body must not be taken for another call.
  response.writeHead(status, {
    'content-type': 'application/json',
    'content-length': bytes.length,
    connection: 'close',
    ...(status === 503 && { 'retry-after': '1' }),
  });
  response.end(bytes);
}

/** For one connection only (RFC 9110, 7.6.1), or set again by each sender. */
const ofTheConnection = headers(
  'connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding upgrade',
);

/**
 * Headers with which a job could look like somebody else, or have its call read as another. The filter has answered `expect`, and
 * frames the body itself.
 */
const notFromAgents = headers(
  'authorization content-length expect forwarded host x-forwarded-for x-forwarded-host x-forwarded-port x-forwarded-proto ' +
    'x-http-method x-http-method-override x-method-override x-original-url x-real-ip x-rewrite-url',
);

const notToAgents = headers('set-cookie alt-svc strict-transport-security');

function headers(names: string): ReadonlySet<string> {
  return new Set(names.split(' '));
}

/** Other methods with a body are refused: Node's client would send it without its length, as if another call followed. */
const withBody: ReadonlySet<string> = new Set(['POST', 'PUT', 'PATCH']);

/** Why a call's body is refused, for people; null: it is not. Only the headers are read. */
function bodyProblem({ method = '', headers }: IncomingMessage): string | null {
  const { 'transfer-encoding': encoding, 'content-length': length } = headers;
  if (encoding !== undefined && encoding.toLowerCase() !== 'chunked')
    return 'its body has an encoding that the filter does not forward';
  if (length !== undefined && !/^(0|[1-9]\d*)$/.test(length)) return 'the length of its body is invalid';
  const hasBody = encoding !== undefined || (length !== undefined && length !== '0');
  return hasBody && !withBody.has(method) ? `a ${method} must not have a body` : null;
}

/** Headers to forward, without those of the connection. Names are in lower case; repeated values stay. */
function headersWithout(without: ReadonlySet<string>, headers: Readonly<Record<string, string | string[] | undefined>>) {
  const connection = [headers.connection ?? ''].flat().join(',');
  const named = new Set(connection.split(',').map((name) => name.trim().toLowerCase()));
  return Object.fromEntries(
    Object.entries(headers).flatMap(([name, values]) => {
      if (values === undefined || ofTheConnection.has(name) || without.has(name)) return [];
      // A length stays one even if its sender calls it the connection's.
      if (named.has(name) && name !== 'content-length') return [];
      return [[name, Array.isArray(values) && values.length === 1 ? values[0] : values]];
    }),
  );
}

/** Far deeper than any JSON of an agent. */
const deepest = 64;

/** JSON of a job. Null for anything else, and for JSON so deep that writing it again, which is recursive, would fail. */
function foreignJson(body: Buffer): unknown {
  const text = body.toString();
  return isDeep(text) ? null : (jsonOf(text) ?? null);
}

/** A loop: an expression would backtrack at each quote of an unterminated text. */
function isDeep(text: string): boolean {
  let depth = 0;
  let isQuoted = false;
  for (let at = 0; at < text.length; at += 1) {
    const char = text[at];
    if (char === '"') isQuoted = !isQuoted;
    else if (isQuoted && char === '\\') at += 1;
    else if (!isQuoted && (char === '[' || char === '{')) depth += 1;
    else if (!isQuoted && (char === ']' || char === '}')) depth -= 1;
    if (depth > deepest) return true;
  }
  return false;
}
