/** Plain HTTP to an Engine. */

import { type ClientRequest, request as http, type IncomingMessage } from 'node:http';
import { request as https, type RequestOptions } from 'node:https';
import type { Socket } from 'node:net';
import { text } from 'node:stream/consumers';
import { systemClock } from '../../clock.ts';
import { type Clock, deadline } from '../../core/clock.ts';
import type { OnejobError } from '../../errors.ts';
import type { Endpoint } from './endpoint.ts';
import { mute, silent, unreachable } from './failures.ts';

export interface Answer {
  readonly status: number;
  readonly body: string;
}

/** One GET on a connection of its own. Throws what Node throws. */
export function get(endpoint: Endpoint, path: string, signal: AbortSignal): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const sent = open(endpoint, { method: 'GET', path, signal }, (answer) => {
      text(answer).then((body) => resolve({ status: answer.statusCode ?? 0, body }), reject);
    });
    sent.on('error', reject);
    sent.end();
  });
}

/** What it means that a call got no answer within `limit` ms: asks on another connection, for at most `patience` ms. */
export async function silence(
  doing: string,
  endpoint: Endpoint,
  limit: number,
  patience: number,
  signal?: AbortSignal,
  clock: Clock = systemClock,
): Promise<OnejobError> {
  using timeout = deadline(clock, patience, ...(signal === undefined ? [] : [signal]));
  try {
    await get(endpoint, '/_ping', timeout.signal);
    return silent(doing, endpoint, limit);
  } catch (error) {
    signal?.throwIfAborted();
    return timeout.passed ? mute(doing, endpoint, limit) : unreachable(error, doing, endpoint);
  }
}

/** Asks for a raw connection, as attach gives it. An answer that is no upgrade comes as `Answer`. */
export function upgrade(endpoint: Endpoint, path: string, signal: AbortSignal): Promise<Socket | Answer> {
  return new Promise((resolve, reject) => {
    const headers = { Connection: 'Upgrade', Upgrade: 'tcp' };
    const sent = open(endpoint, { method: 'POST', path, headers, signal }, (answer) => {
      text(answer).then((body) => resolve({ status: answer.statusCode ?? 0, body }), reject);
    });
    sent.on('upgrade', (_answer, socket: Socket) => resolve(socket));
    sent.on('error', reject);
    sent.end();
  });
}

/** `agent` in `options`: whose connections are kept; else the call has one of its own. */
export function open(endpoint: Endpoint, options: RequestOptions, answered: (answer: IncomingMessage) => void): ClientRequest {
  const own = { agent: false, ...options } as const;
  if (endpoint.kind === 'unix') return http({ ...own, socketPath: endpoint.path, host: 'localhost' }, answered);
  const { host, port, tls } = endpoint;
  if (tls === null) return http({ ...own, host, port }, answered);
  const { ca, cert, key, verify } = tls;
  const material = { ...(ca !== null && { ca }), ...(cert !== null && { cert }), ...(key !== null && { key }) };
  return https({ ...own, ...material, host, port, rejectUnauthorized: verify }, answered);
}
