/** For tests: small servers that behave as a bad day does. */

import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { AzureClient } from '../../src/ci/azure-pipelines/client.ts';
import { createCredential } from '../../src/ci/azure-pipelines/credential.ts';
import type { Clock } from '../../src/core/clock.ts';
import type { SecretReference } from '../../src/schema/secret-reference.ts';
import type { Credential } from '../../src/secrets/credential.ts';
import { handClock } from './core.ts';

export interface Seen {
  readonly method: string;
  readonly url: string;
  readonly headers: IncomingMessage['headers'];
  readonly body: string;
}

export interface Server extends AsyncDisposable {
  readonly url: string;
  readonly seen: readonly Seen[];
}

export type Reply = (request: Seen, response: ServerResponse, nth: number) => void;

/** Listens on a free port of this host. */
export async function serve(reply: Reply): Promise<Server> {
  const seen: Seen[] = [];
  const server = createServer((request, response) => {
    const pieces: Buffer[] = [];
    request.on('data', (piece: Buffer) => pieces.push(piece));
    request.on('end', () => {
      const { method = '', url = '', headers } = request;
      const one = { method, url, headers, body: Buffer.concat(pieces).toString() };
      seen.push(one);
      reply(one, response, seen.length);
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}`,
    seen,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}

export function json(body: unknown, status = 200, headers: Record<string, string> = {}): Reply {
  return (_, response) => {
    response.writeHead(status, { 'Content-Type': 'application/json; charset=utf-8; api-version=7.1', ...headers });
    response.end(JSON.stringify(body));
  };
}

export function page(status: number, text = '<html><body>a page</body></html>', headers: Record<string, string> = {}): Reply {
  return (_, response) => {
    response.writeHead(status, { 'Content-Type': 'text/html; charset=utf-8', ...headers });
    response.end(text);
  };
}

export const list = (...value: object[]): Reply => json({ count: value.length, value });

/** One after the other, the last one for ever. */
export function inTurn(...replies: readonly Reply[]): Reply {
  return (request, response, nth) => replies[Math.min(nth, replies.length) - 1]?.(request, response, nth);
}

/** The body of a refusal, as the service has it. */
export function refusalOf(typeKey: string, message: string) {
  const typeName = `Microsoft.TeamFoundation.DistributedTask.WebApi.${typeKey}, Microsoft.TeamFoundation.DistributedTask.WebApi`;
  return { $id: '1', innerException: null, message, typeName, typeKey, errorCode: 0, eventId: 3000 };
}

/** 84 characters, as the service makes them (facts: `^.{76}AZDO.{4}$`). */
export const samplePat = `${'Zx9kQ2'.repeat(12)}JKLMAZDO3abc`;

export function memory(value: string | (() => string), expires: number | null = null): SecretReference {
  return { kind: 'memory', name: 'the command line', expires, read: typeof value === 'string' ? () => value : value };
}

/** Never aborted. */
export const patient = new AbortController().signal;

/** What a promise fails with. */
export async function failureOf(promise: Promise<unknown>): Promise<unknown> {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  throw new Error('it did not fail');
}

/** Lets everything happen that needs no time. */
export const settled = () => new Promise<void>((resolve) => setImmediate(resolve));

export const sampleAgent = {
  name: 'gpu-0',
  version: '5.278.0',
  osDescription: 'Linux',
  systemCapabilities: { cuda: '12.4' },
  publicKey: { exponent: 'AQAB', modulus: 'AAAA' },
};

export interface Served extends AsyncDisposable {
  readonly client: AzureClient;
  readonly credential: Credential;
  readonly server: Server;
  /** Method and address of each request. */
  sent(): string[];
}

/** A client with a token, and a server that answers so. */
export async function serveClient(
  reply: Reply,
  { clock = handClock(), path = '/acme', timeout = 20_000 }: { clock?: Clock; path?: string; timeout?: number } = {},
): Promise<Served> {
  const server = await serve(reply);
  const url = server.url + path;
  const credential = createCredential({ kind: 'pat', token: memory(samplePat) }, { clock, url });
  const client = new AzureClient({ url, credential, clock, timeout, version: '1.2.3' });
  const sent = () => server.seen.map(({ method, url: at }) => `${method} ${at}`);
  return { client, server, sent, credential, [Symbol.asyncDispose]: () => server[Symbol.asyncDispose]() };
}
