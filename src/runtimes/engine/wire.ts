/** Requests to an Engine as they go over its socket. They know no version of its API, and set no limit of time. */
import { type ClientRequest, request as http, type IncomingHttpHeaders, type IncomingMessage } from 'node:http';
import { request as https, type RequestOptions } from 'node:https';
import type { Socket } from 'node:net';
import type { Endpoint } from './endpoint.ts';
import { Refusal } from './failures.ts';

/** Bytes of an answer. An engine may belong to a job, which answers what it wants; a list of a thousand containers has 2 MiB. */
const longestAnswer = 64 * 2 ** 20;

/** The body of an answer. @throws what Node throws */
export async function textOf(answer: IncomingMessage): Promise<string> {
  const pieces: Buffer[] = [];
  let size = 0;
  for await (const piece of answer as AsyncIterable<Buffer>) {
    size += piece.length;
    if (size > longestAnswer) throw new Error(`its answer is longer than ${longestAnswer / 2 ** 20} MiB`);
    pieces.push(piece);
  }
  return Buffer.concat(pieces).toString();
}

/** One GET on its own connection. @throws what Node throws */
export function get(endpoint: Endpoint, path: string, signal: AbortSignal): Promise<EngineAnswer> {
  return new Promise((resolve, reject) => {
    const sent = open(endpoint, { method: 'GET', path, signal }, (answer) => whole(answer).then(resolve, reject));
    sent.on('error', reject);
    sent.end();
  });
}

export interface EngineAnswer {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly body: string;
}

async function whole(answer: IncomingMessage): Promise<EngineAnswer> {
  return { status: answer.statusCode ?? 0, headers: answer.headers, body: await textOf(answer) };
}

/** Opens a raw connection, as attach and exec need it. @throws Refusal if the Engine does not upgrade, and what Node throws */
export function upgrade(endpoint: Endpoint, path: string, signal: AbortSignal, body?: object): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const json = body === undefined ? undefined : JSON.stringify(body);
    const headers = {
      Connection: 'Upgrade',
      Upgrade: 'tcp',
      ...(json !== undefined && { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(json) }),
    };
    const refused = ({ status, body: content }: EngineAnswer): void => reject(new Refusal(status, content));
    const sent = open(endpoint, { method: 'POST', path, headers, signal }, (answer) => whole(answer).then(refused, reject));
    sent.on('upgrade', (_answer, socket: Socket, head: Buffer) => {
      // The program may have spoken already.
      if (head.length > 0) socket.unshift(head);
      resolve(socket);
    });
    sent.on('error', reject);
    sent.end(json);
  });
}

/** Sends a request. Without an `agent` in `options` it has its own connection. */
export function open(endpoint: Endpoint, options: RequestOptions, answered: (answer: IncomingMessage) => void): ClientRequest {
  const own = { agent: false, ...options } as const;
  if (endpoint.kind === 'unix') return http({ ...own, socketPath: endpoint.path, host: 'localhost' }, answered);
  const { host, port, tls } = endpoint;
  if (tls === null) return http({ ...own, host, port }, answered);
  const { ca, cert, key, verify } = tls;
  const material = { ...(ca !== null && { ca }), ...(cert !== null && { cert }), ...(key !== null && { key }) };
  return https({ ...own, ...material, host, port, rejectUnauthorized: verify }, answered);
}
