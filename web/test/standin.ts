/**
 * A small program that answers as the daemon does over TCP: the dashboard's files with their strict policy, the API's shapes, and
 * its event stream, which a test changes, cuts and silences. `e2e` tests use the real daemon.
 */
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { extname, join } from 'node:path';
import { nonceHeader, parseAuthorization, proofHeader, proofText } from '../../src/api/signed.ts';
import { frame } from '../../src/contract/frames.ts';
import { jobHas } from '../../src/verdict/shown.ts';
import { browserKey } from '../../test/support/browser-login.ts';
import type { Device, Job } from '../src/views.ts';
import type { HostState } from './world.ts';

const files = join(import.meta.dirname, '..', '..', 'dist', 'web');
const types: Readonly<Record<string, string>> = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript',
  '.css': 'text/css',
  '.svg': 'image/svg+xml',
};
const policy = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const session = 'ojs_stand.in';

/** Logs a browser in at the stand-in with this address. */
export function linkTo(url: string): string {
  return `${new URL(url).origin}/login#good`;
}

export interface Standin extends AsyncDisposable {
  readonly url: string;
  readonly state: HostState;
  /** Of everyone who is logged in; null ends all logins. */
  role: 'read' | 'operator' | null;
  /** What was posted but for logins: path and body. */
  readonly posted: { readonly path: string; readonly body: unknown }[];
  /** Paths with queries of everything that was read. */
  readonly read: string[];
  /** Output by job. A function writes it by itself. */
  readonly logs: Map<string, string | ((response: ServerResponse, query: URLSearchParams) => Promise<void>)>;
  findings: { level: string; subject: string; message: string; hint: string | null }[];
  /** Sends an event to every open stream. */
  emit(name: string, data: unknown): void;
  /** Changes a job or device, and reports it. */
  setJob(job: Job): void;
  setDevice(device: Device): void;
  /** Open event streams. */
  readonly streams: number;
  /** Ends all connections and refuses new ones, until `up`. */
  down(): Promise<void>;
  up(): Promise<void>;
}

export async function startStandin(state: HostState): Promise<Standin> {
  const identity = browserKey();
  const streams = new Set<ServerResponse>();
  let sequence = 0;
  const standin: Pick<Standin, 'role' | 'posted' | 'read' | 'logs' | 'findings'> = {
    role: 'operator',
    posted: [],
    read: [],
    logs: new Map(),
    findings: [{ level: 'ok', subject: 'docker', message: 'the Engine answers', hint: null }],
  };

  const routes: Record<string, (request: { url: URL; body: unknown; parts: string[]; response: ServerResponse }) => unknown> = {
    '/v1/status': () => state.status,
    '/v1/doctor': () => standin.findings,
    '/v1/me': () => ({ role: standin.role, user: null }),
    '/v1/devices': () => state.devices,
    '/v1/proofs': () => state.proofs,
    '/v1/history': ({ url }) => state.history[url.searchParams.get('by') ?? ''] ?? [],
    '/v1/jobs': ({ url, response }) => listed(state.jobs, url.searchParams, response),
  };

  async function answer(request: IncomingMessage, response: ServerResponse): Promise<unknown> {
    const url = new URL(request.url ?? '/', 'http://standin');
    const parts = url.pathname.split('/').map(decodeURIComponent);
    response.setHeader('content-security-policy', policy);
    if (parts[1] !== 'v1') return serveFile(url.pathname, response);
    const { port } = server.address() as AddressInfo;
    const nonce = request.headers[nonceHeader];
    const challenge = 'stand-in';
    if (typeof nonce === 'string')
      response.setHeader(proofHeader, `${challenge}.${identity.sign(proofText({ nonce, challenge, port }))}`);
    if (url.pathname === '/v1/challenge') return json(response, { challenge, at: Date.now() });
    const body = request.method === 'POST' ? JSON.parse(await bodyOf(request)) : null;
    if (request.method === 'POST' && url.pathname !== '/v1/login') standin.posted.push({ path: url.pathname, body });
    if (request.method !== 'POST') standin.read.push(url.pathname + url.search);
    if (url.pathname === '/v1/login') {
      const daemon = { key: identity.key, port };
      if ((body as { code?: string }).code === 'good') return json(response, { role: standin.role, user: null, session, daemon });
      return refuse(response, 401, 'E_API_LOGIN', 'Cannot log in: the code was used, or is too old.');
    }
    if (standin.role === null || parseAuthorization(request.headers.authorization ?? '')?.session !== session)
      return refuse(response, 401, 'E_API_LOGIN', 'This needs a login.');
    if (url.pathname === '/v1/events') return stream(request, response);
    if (url.pathname === '/v1/logs') return logs(url.searchParams, response);
    if (request.method === 'POST') return act(parts, body, response);
    if (parts[2] === 'devices' && parts[4] === 'use')
      return json(
        response,
        samples(
          Number(url.searchParams.get('since')),
          state.devices.find(({ uuid }) => uuid === parts[3]),
        ),
      );
    if (parts[2] === 'jobs' && parts[3] !== undefined) {
      const found = state.jobs.find(({ id }) => id === parts[3]);
      return found === undefined ? refuse(response, 404, 'E_JOB_UNKNOWN', `There is no job ${parts[3]}.`) : json(response, found);
    }
    if (parts[2] === 'job-arrays')
      return json(
        response,
        state.jobs.filter(({ array }) => array?.id === parts[3]),
      );
    const route = routes[url.pathname];
    if (route === undefined) return refuse(response, 404, 'E_API_ROUTE', `The daemon does not support ${url.pathname}.`);
    return json(response, route({ url, body, parts, response }));
  }

  function act(parts: string[], body: unknown, response: ServerResponse): unknown {
    const [, , noun, name, what] = parts;
    if (noun === 'pools') {
      const pool = state.status.pools.find((one) => one.name === name);
      if (pool === undefined) return refuse(response, 404, 'E_POOL_UNKNOWN', `There is no pool ${name}.`);
      if (what === 'pause') pool.paused = ['by hand'];
      if (what === 'drain') pool.draining = true;
      if (what === 'resume') Object.assign(pool, { paused: [], draining: false });
      const { slots: _, ...view } = pool;
      emit('pool', view);
      return what === 'resume' ? json(response, { held: [] }) : json(response, undefined);
    }
    if (noun === 'jobs') {
      const found = state.jobs.find(({ id }) => id === name);
      if (found === undefined) return refuse(response, 404, 'E_JOB_UNKNOWN', `There is no job ${name}.`);
      if (what === 'unhold') {
        const { held: _, ...left } = found;
        setJob(left);
        return json(response, left);
      }
      setJob({
        ...found,
        state: 'done',
        result: { kind: 'cancelled' },
        endedAt: Date.now(),
        verdict: { kind: 'cancelled', why: 'somebody cancelled it', evidence: [] },
      });
      return json(response, found);
    }
    const found = state.devices.find((one) => one.uuid === name);
    if (found === undefined) return refuse(response, 404, 'E_DEVICE_UNKNOWN', `There is no device ${name}.`);
    const reason = (body as { reason?: string }).reason ?? '';
    if (what === 'quarantine') setDevice({ ...found, state: 'quarantined', why: reason });
    if (what === 'clear' || what === 'return') setDevice({ ...found, state: 'free', why: null, hint: null, retryAt: null });
    if (what === 'reserve') setDevice({ ...found, state: 'reserved', why: 'reserved' });
    return json(response, { uuid: name, changed: true, device: found });
  }

  function stream(request: IncomingMessage, response: ServerResponse): void {
    response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-store' });
    response.write(`id: 1-${sequence}\nevent: reset\ndata: {"reason":"a new stream"}\n\n`);
    streams.add(response);
    request.once('close', () => streams.delete(response));
    response.once('close', () => streams.delete(response));
  }

  async function logs(query: URLSearchParams, response: ServerResponse): Promise<void> {
    response.setHeader('content-type', 'application/octet-stream');
    const log = standin.logs.get(query.get('job') ?? '') ?? '';
    response.write(frame('stdout'));
    if (typeof log === 'function') {
      await log(response, query);
      return;
    }
    const bytes = Buffer.from(log);
    let from = Number(query.get('stdout') ?? 0);
    const tail = query.get('tail');
    if (tail !== null) {
      const lines = log.split('\n');
      const last = lines.slice(-Number(tail) - (log.endsWith('\n') ? 1 : 0));
      from = bytes.length - Buffer.byteLength(last.join('\n'));
      response.write(
        frame('gap', JSON.stringify({ missing: { stdout: from, stderr: 0 }, after: { stdout: 0, stderr: 0 }, asked: true })),
      );
    }
    for (let at = from; at < bytes.length; at += 60_000) {
      if (!response.write(frame('stdout', bytes.subarray(at, at + 60_000)))) await once(response, 'drain').catch(() => {});
      if (response.destroyed) return;
    }
    response.end(frame('end'));
  }

  const emit: Standin['emit'] = (name, data) => {
    sequence += 1;
    for (const one of streams) one.write(`id: 1-${sequence}\nevent: ${name}\ndata: ${JSON.stringify(data)}\n\n`);
  };
  const setJob: Standin['setJob'] = (job) => {
    state.jobs = [...state.jobs.filter(({ id }) => id !== job.id), job];
    emit('job', job);
  };
  const setDevice: Standin['setDevice'] = (device) => {
    state.devices = state.devices.map((one) => (one.uuid === device.uuid ? device : one));
    emit('device', device);
  };

  const serve = (request: IncomingMessage, response: ServerResponse) => {
    answer(request, response).catch((error: unknown) => {
      if (response.headersSent) response.destroy();
      else refuse(response, 500, 'E_BUG', String(error));
    });
  };
  let server = createServer(serve);
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const { port } = server.address() as AddressInfo;
  const down = async () => {
    const closed = once(server, 'close');
    server.close();
    server.closeAllConnections();
    await closed;
  };
  return Object.assign(standin, {
    url: `http://127.0.0.1:${port}`,
    state,
    emit,
    setJob,
    setDevice,
    get streams() {
      return streams.size;
    },
    down,
    async up() {
      server = createServer(serve);
      await once(server.listen(port, '127.0.0.1'), 'listening');
    },
    async [Symbol.asyncDispose]() {
      if (server.listening) await down();
    },
  });
}

function listed(jobs: readonly Job[], query: URLSearchParams, response: ServerResponse): Job[] {
  if (query.get('all') !== 'true') return jobs.filter(({ state }) => state !== 'done');
  const wanted = (name: string) => query.get(name);
  const fits = jobs.filter(
    (job) =>
      job.state === 'done' &&
      (wanted('pool') === null || job.pool === wanted('pool')) &&
      (wanted('image') === null || job.image === wanted('image')) &&
      (wanted('device') === null || (job.devices ?? []).includes(wanted('device') ?? '')) &&
      (wanted('verdict') === null || job.verdict?.kind === wanted('verdict')) &&
      (wanted('text') === null || jobHas(job, wanted('text') ?? '')) &&
      (wanted('failed') !== 'true' || (job.verdict?.kind !== 'passed' && job.verdict?.kind !== 'cancelled')),
  );
  const sorted = fits.toSorted((a, b) => (a.endedAt ?? 0) - (b.endedAt ?? 0));
  const before = Number(wanted('before') ?? sorted.length);
  const from = Math.max(0, before - Number(wanted('limit') ?? 1_000));
  if (from > 0) response.setHeader('onejob-next', String(from));
  return sorted.slice(from, before);
}

/** What a device may have done until now; one in quarantine worked until a minute before that. */
function samples(since: number, device: Device | undefined): object[] {
  const now = Date.now();
  const { utilization = 0, memoryUsedMiB = 0 } = device?.use ?? {};
  const seed = device?.index ?? 0;
  const lost = device?.state === 'quarantined' ? (device.since ?? now) - 60_000 : null;
  const from = Math.max(since, now - 7_200_000);
  const step = Math.max(5_000, (now - from) / 300);
  return Array.from({ length: Math.floor((now - from) / step) }, (_, n) => {
    const at = from + n * step;
    const wave = Math.sin(n / 7 + seed) * 9 + Math.sin(n / 2.3 + seed) * 5;
    const isBusy = lost === null ? (utilization ?? 0) > 0 && (seed % 2 === 0 || now - at < 300_000) : at < lost;
    const most = lost === null ? (utilization ?? 0) : 84;
    const held = lost === null ? (memoryUsedMiB ?? 0) : 70_000;
    return {
      at,
      memoryUsedMiB: isBusy ? held + wave * 60 : 600,
      utilization: utilization === null ? null : isBusy ? Math.min(100, most + wave) : 0,
    };
  });
}

async function bodyOf(request: IncomingMessage): Promise<string> {
  let text = '';
  for await (const chunk of request) text += chunk;
  return text === '' ? '{}' : text;
}

function json(response: ServerResponse, value: unknown): void {
  if (value === undefined) response.writeHead(204).end();
  else response.writeHead(200, { 'content-type': 'application/json; charset=utf-8' }).end(JSON.stringify(value));
}

function refuse(response: ServerResponse, status: number, code: string, message: string): void {
  response
    .writeHead(status, { 'content-type': 'application/json; charset=utf-8' })
    .end(JSON.stringify({ code, message, hint: null, retry: false }));
}

function serveFile(path: string, response: ServerResponse): void {
  const file = join(files, path);
  const found = path !== '/' && file.startsWith(files) && existsSync(file) ? file : join(files, 'index.html');
  response.writeHead(200, { 'content-type': types[extname(found)] ?? 'application/octet-stream' }).end(readFileSync(found));
}
