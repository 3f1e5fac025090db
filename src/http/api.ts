/**
 * What calls of every API share: one request, with JSON if it has some, in bounded time and size, and the caller's own error when no
 * answer comes. How a request is signed, what an answer means and whether a call is sent again, each service says itself.
 */
import type { z } from 'zod';
import { jsonOf } from '../system/json.ts';
import { type Answer, type ExchangeParts, exchange, NoAnswer, type Outgoing } from './exchange.ts';

export interface ApiRequest extends Omit<Outgoing, 'body'> {
  /** Sent as JSON. */
  readonly json?: unknown;
  /** Instead of `json`, with its type among the headers. */
  readonly body?: Outgoing['body'] | undefined;
}

/** Sends one request. Whatever status comes is an answer. @throws what `fail` made of the reason for none, and the reason of `signal` */
export type Send<A> = (request: ApiRequest, about: A, signal: AbortSignal) => Promise<Answer>;

/** `version`: of onejob, for the `User-Agent`. `about`: what messages say of a request. */
export function createSend<A>(
  { version, ...parts }: ExchangeParts & { readonly version: string },
  fail: (reason: NoAnswer, about: A, request: ApiRequest) => Error,
): Send<A> {
  return async (request, about, signal) => {
    const { json, body = json === undefined ? json : JSON.stringify(json), headers, ...rest } = request;
    const type = json !== undefined && { 'Content-Type': 'application/json' };
    const own = { 'User-Agent': `onejob/${version}`, ...type, ...headers };
    try {
      return await exchange({ ...rest, headers: own, ...(body !== undefined && { body }) }, parts, signal);
    } catch (error) {
      throw error instanceof NoAnswer ? fail(error, about, request) : error;
    }
  };
}

export const saysJson = ({ headers }: Pick<Answer, 'headers'>): boolean =>
  /^application\/([\w.-]+\+)?json\b/i.test(headers.get('Content-Type') ?? '');

/** undefined: it has no body, or one that says that it is something else. */
export const jsonIn = (answer: Pick<Answer, 'headers' | 'text'>): unknown => (saysJson(answer) ? jsonOf(answer.text) : undefined);

/** What a body says that it is, for people; `other`: if it says nothing. */
export function mediaType({ headers }: Pick<Answer, 'headers'>, other: string): string {
  const type = headers.get('Content-Type')?.split(';')[0]?.trim() ?? '';
  return type === 'text/html' ? 'a page' : type || other;
}

/** The first part of a body that is not as it should be. `whole`: how messages call the body, such as `its response`. */
export function invalidPart({ issues }: z.ZodError, whole: string): string {
  const path = issues[0]?.path ?? [];
  return path.length === 0 ? whole : `"${path.join('.')}" of ${whole}`;
}
