/** For tests: the filter in this process, between a client and a service that is acted out. */
import { once } from 'node:events';
import { request as ask, createServer, type IncomingMessage, type RequestListener, type Server } from 'node:http';
import { buildkiteRules, buildkiteRulesOf } from '../../src/ci/buildkite/agent/filter-rules.ts';
import { OneTimeFiles } from '../../src/ci/filter/one-time-files.ts';
import type { Rules } from '../../src/ci/filter/rules.ts';
import { Seal, type Sealed } from '../../src/ci/filter/seal.ts';
import { type FilterLimits, FilterServer } from '../../src/ci/filter/server.ts';
import type { StoredCaches } from '../../src/ci/stored/store.ts';
import { noProxies } from '../../src/http/proxies.ts';
import { systemClock } from '../../src/system/system-clock.ts';
import { scratch } from '../support/scratch.ts';

export const [jobId, buildId] = ['01935a4b-0000-4000-8000-000000000001', 'b0000000-0000-4000-8000-000000000001'];

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

export async function bodyOf(request: IncomingMessage): Promise<string> {
  let body = '';
  for await (const part of request) body += String(part);
  return body;
}

export interface FilterBench extends AsyncDisposable {
  readonly port: number;
  readonly seal: Seal;
  readonly left: OneTimeFiles;
  /** As it was said to the service: method, address and body. */
  readonly seen: string[];
  /** The headers of those calls. */
  readonly heads: IncomingMessage['headers'][];
  readonly said: string[];
  /** Of the job, unless said otherwise. */
  token(use: string, more?: Partial<Sealed>): string;
  call(method: string, path: string, token: string, body?: unknown): Promise<{ readonly status: number; readonly json: unknown }>;
}

/** `answer`: how the service answers; by default with an empty object. */
export async function filterBench(
  answer: (request: IncomingMessage, body: string) => { readonly status?: number; readonly json?: unknown } = () => ({}),
  limits: Partial<FilterLimits> = {},
  more: Readonly<Record<string, Rules>> = {},
  caches?: StoredCaches,
): Promise<FilterBench> {
  const seen: string[] = [];
  const heads: IncomingMessage['headers'][] = [];
  const service = await listening(async (request, response) => {
    const body = await bodyOf(request);
    heads.push(request.headers);
    seen.push(`${request.method} ${request.url} ${request.headers.authorization} ${body}`);
    const { status = 200, json = {} } = answer(request, body);
    response.writeHead(status, { 'content-type': 'application/json' });
    response.end(JSON.stringify(json));
  });
  const seal = new Seal(Buffer.alloc(32, 7));
  const dir = scratch();
  const left = new OneTimeFiles(dir.path);
  const said: string[] = [];
  const say = (event: string): void => void said.push(event);
  const filter = new FilterServer({
    seal,
    left,
    proxies: noProxies,
    clock: systemClock,
    limits,
    ...(caches !== undefined && { caches }),
    identity: { key: Buffer.alloc(32, 9), version: '1' },
    rules: new Map([[buildkiteRulesOf, buildkiteRules], ...Object.entries(more)]),
    log: { info: say, warn: say, error: say },
  });
  const server = filter.server().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  const port = typeof address === 'object' && address !== null ? address.port : 0;
  return {
    port,
    seal,
    left,
    seen,
    heads,
    said,
    token: (use, more = {}) =>
      seal.close({
        rules: buildkiteRulesOf,
        endpoint: `http://127.0.0.1:${service.port}/v3`,
        token: `real-${use}`,
        use,
        job: jobId,
        build: buildId,
        until: Date.now() + 60_000,
        ...more,
      }),
    async call(method, path, token, body) {
      const text = body === undefined || typeof body === 'string' ? (body ?? null) : JSON.stringify(body);
      const headers = { authorization: `Token ${token}` };
      const response = await fetch(`http://127.0.0.1:${port}${path}`, { method, headers, body: text });
      const found = await response.text();
      return { status: response.status, json: found === '' ? null : JSON.parse(found) };
    },
    async [Symbol.asyncDispose]() {
      filter.close();
      await stopped(service.server);
      dir[Symbol.dispose]();
    },
  };
}

/** A man in the middle: listens at an address, and forwards everything to the same port of another one. */
export async function relayAt(
  address: string,
  port: number,
  to: string,
): Promise<AsyncDisposable & { readonly seen: readonly string[] }> {
  const seen: string[] = [];
  const server = createServer((request, response) => {
    seen.push(`${request.method} ${request.url}`);
    const { method, url: path, headers } = request;
    const forwarded = ask({ host: to, port, method, path, headers, agent: false }, (answer) => {
      response.writeHead(answer.statusCode ?? 502, answer.headers);
      answer.pipe(response);
    });
    forwarded.on('error', () => response.writeHead(502).end());
    request.pipe(forwarded);
  });
  // The port may be that of a program that is just ending.
  for (let isOpen = false; !isOpen; ) {
    isOpen = await new Promise<boolean>((resolve) => {
      const failed = () => setTimeout(() => resolve(false), 1);
      server.once('error', failed).listen({ host: address, port, exclusive: true }, () => {
        server.off('error', failed);
        resolve(true);
      });
    });
  }
  return { seen, [Symbol.asyncDispose]: () => stopped(server) };
}
