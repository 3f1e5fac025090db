/** A gateway on a port of its own, before a service that a test writes, with a book in memory. */
import { once } from 'node:events';
import { createServer, type IncomingMessage, type RequestListener, type Server } from 'node:http';
import { Writable } from 'node:stream';
import { noProxies } from '../../../config/proxies.ts';
import { createLog, type Log } from '../../../log.ts';
import { createAliases } from './aliases.ts';
import { createUploadAddresses } from './artifacts.ts';
import { createGateway, type Gateway } from './gateway.ts';
import { type GatewayLimits, gatewayServerOptions } from './gateway-limits.ts';
import type { AgentBook, AgentRecord, Aliases, AliasKind, RecordPatch, Sealed } from './record.ts';
import { createSeal } from './seal.ts';

/** The service's own; none of them may ever be seen by an agent. */
export const serviceTokens = { registration: 'bkct_registration', session: 'bkaa_session', job: 'bkaj_job' } as const;

const nothingSealed: Sealed = {
  session: null,
  registerAnswer: null,
  jobAnswer: null,
  jobToken: null,
  secrets: [],
  acquisition: null,
};

const registerAnswer = {
  id: 'service-agent-id',
  name: 'gpu0',
  access_token: serviceTokens.session,
  endpoint: 'https://elsewhere.example/v3',
  ping_interval: 10,
  job_status_interval: 0,
  heartbeat_interval: 60,
  meta_data: ['queue=gpu'],
};

/** Of the job that `heldAgent` has. */
export const jobId = '01935a4b-0000-4000-8000-000000000001';

const jobAnswer = {
  id: jobId,
  state: 'accepted',
  token: serviceTokens.job,
  endpoint: 'https://elsewhere.example/v3',
  env: { BUILDKITE_JOB_ID: jobId, BUILDKITE_COMMAND: 'true' },
  chunks_max_size_bytes: 102_400,
  chunks_interval_seconds: 1,
  unknown: { kept: [1] },
};

function memoryBook(): AgentBook & { add(record: AgentRecord): AgentRecord } {
  const records = new Map<string, AgentRecord>();
  const listeners = new Map<string, Set<(record: AgentRecord) => void>>();
  return {
    get: (id) => records.get(id) ?? null,
    all: () => [...records.values()],
    add(record) {
      records.set(record.shown.id, record);
      return record;
    },
    update(id, { shown, sealed, ...rest }: RecordPatch) {
      const before = records.get(id);
      if (before === undefined) throw new Error(`no agent ${id}`);
      const after = { ...before, ...rest, shown: { ...before.shown, ...shown }, sealed: { ...before.sealed, ...sealed } };
      if (after.shown.phase === 'gone') records.delete(id);
      else records.set(id, after);
      for (const listener of [...(listeners.get(id) ?? [])]) listener(after);
      return after;
    },
    watch(id, listener) {
      const set = listeners.get(id) ?? new Set();
      listeners.set(id, set.add(listener));
      return () => set.delete(listener);
    },
  };
}

function heldPatch(patch: RecordPatch): RecordPatch {
  const { token: _, endpoint: __, ...job } = jobAnswer;
  const { session, job: jobToken } = serviceTokens;
  return {
    ...patch,
    shown: { job, ...patch.shown },
    sealed: { session, registerAnswer, jobAnswer, jobToken, ...patch.sealed },
  };
}

function testRecord(kind: 'held' | 'carried', id: string, endpoint: string, { shown, sealed, ...rest }: RecordPatch): AgentRecord {
  return {
    shown: {
      id,
      kind,
      service: 'buildkite',
      slot: 'gpu-0',
      pool: 'gpu',
      name: 'gpu0',
      phase: kind === 'held' ? 'handed' : 'expected',
      agent: `gpu-0-${id}`,
      job: null,
      cancelled: false,
      finished: null,
      problem: null,
      since: 0,
      ...shown,
    },
    sealed: { ...nothingSealed, ...sealed },
    metaData: ['queue=gpu', 'cuda'],
    priority: 3,
    base: endpoint,
    endpoint,
    requestHeaders: {},
    log: { sequence: 0, offset: 0 },
    livesAlone: false,
    allowed: false,
    trusted: true,
    retired: false,
    why: null,
    finishing: null,
    ending: null,
    ...rest,
  };
}

export interface GatewayBench extends AsyncDisposable {
  readonly book: ReturnType<typeof memoryBook>;
  readonly aliases: Aliases;
  readonly gateway: Gateway;
  /** As if the broker had been killed and another had taken its place: every call is cut, and nothing but the book is left. */
  restart(): Promise<void>;
  /** `http://127.0.0.1:PORT`, without `/v3`. */
  readonly url: string;
  readonly port: number;
  /** Base of the service behind it, with `/v3`. */
  readonly service: string;
  readonly log: readonly string[];
  /** What its calls said of an agent, as `ID SIGN`. */
  readonly signs: readonly string[];
  token(kind: AliasKind, id: string): string;
  /** Registered, with a job, and a sandbox has its one-time token. */
  held(id: string, patch?: RecordPatch): AgentRecord;
  /** Expected to register itself. */
  carried(id: string, patch?: RecordPatch): AgentRecord;
  /** A call with an alias; null: without any. */
  call(method: string, path: string, token: string | null, body?: unknown, headers?: Record<string, string>): Promise<Reply>;
}

export interface Reply {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
  /** Null for what is no JSON. */
  readonly json: unknown;
}

export async function listening(
  handler: RequestListener,
  options = {},
): Promise<{ readonly server: Server; readonly port: number }> {
  const server = createServer(options, handler);
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  return { server, port: typeof address === 'object' && address !== null ? address.port : 0 };
}

export async function stopped(server: Server): Promise<void> {
  server.closeAllConnections();
  server.close();
  await once(server, 'close');
}

export async function gatewayBench(
  handler: RequestListener,
  limits: Partial<GatewayLimits> = {},
  proxies = noProxies,
): Promise<GatewayBench> {
  const upstream = await listening(handler);
  const service = `http://127.0.0.1:${upstream.port}/v3`;
  const book = memoryBook();
  const key = Buffer.alloc(32, 7);
  const aliases = createAliases(book, createSeal(key));
  const lines: string[] = [];
  const signs: string[] = [];
  const make = (): Gateway =>
    createGateway({
      book,
      aliases,
      log: logInto(lines),
      service: (name) => ({ name, endpoint: service, token: serviceTokens.registration }),
      version: '0.0.0',
      wall: () => 0,
      key,
      proxies,
      limits,
      heard: (id, sign) => void signs.push(`${id} ${sign}`),
    });
  let gateway = make();
  const { server, port } = await listening((request, response) => gateway.handle(request, response), gatewayServerOptions);
  const url = `http://127.0.0.1:${port}`;
  return {
    book,
    aliases,
    gateway,
    async restart() {
      const closed = gateway.close();
      server.closeAllConnections();
      await closed;
      gateway = make();
    },
    url,
    port,
    service,
    log: lines,
    signs,
    token(kind, id) {
      const found = book.get(id);
      if (found === null) throw new Error(`no agent ${id}`);
      return aliases.make(kind, found);
    },
    held: (id, patch = {}) => book.add(testRecord('held', id, service, heldPatch(patch))),
    carried: (id, patch = {}) => book.add(testRecord('carried', id, service, patch)),
    async call(method, path, token, body, headers = {}) {
      const response = await fetch(`${url}${path}`, {
        method,
        redirect: 'manual',
        headers: {
          ...(token === null ? {} : { authorization: `Token ${token}` }),
          ...(body === undefined ? {} : { 'content-type': 'application/json' }),
          ...headers,
        },
        ...(body === undefined ? {} : { body: typeof body === 'string' ? body : JSON.stringify(body) }),
      });
      const text = await response.text();
      return { status: response.status, headers: response.headers, text, json: parsed(text) };
    },
    async [Symbol.asyncDispose]() {
      await gateway.close();
      await stopped(server);
      await stopped(upstream.server);
    },
  };
}

const benchKey = Buffer.alloc(32, 9);
/** Of the one job behind `gatewayFor`. */
export const benchJob = jobId;
/** What its agent calls with; the service behind it takes anything. */
export const benchToken = 'benchmark';

/** A path of the gateway that uploads to `origin`. */
export function benchUpload(origin: string): string {
  return `/upload/${createUploadAddresses(benchKey).seal({ agent: 'bench', origin, path: '/bucket' })}`;
}

/** A gateway before `service`, with one running job; not listening yet. */
export function gatewayFor(service: string): Server {
  const record = testRecord('held', 'bench', service, heldPatch({ shown: { phase: 'running' } }));
  const book = memoryBook();
  book.add(record);
  const gateway = createGateway({
    book,
    aliases: { make: () => benchToken, find: (token) => (token === benchToken ? { kind: 'job', record } : null) },
    log: logInto([]),
    service: () => null,
    version: '0.0.0',
    wall: () => 0,
    key: benchKey,
    proxies: noProxies,
    // It is measured, not its bounds.
    limits: { perSecond: Number.POSITIVE_INFINITY },
  });
  return createServer(gatewayServerOptions, gateway.handle);
}

function logInto(lines: string[]): Log {
  const stream = new Writable({
    write(bytes, _, done) {
      lines.push(String(bytes));
      done();
    },
  });
  return createLog({ json: true, stream });
}

export async function bodyOf(request: IncomingMessage): Promise<string> {
  let text = '';
  for await (const part of request) text += String(part);
  return text;
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
