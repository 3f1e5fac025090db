/** What every call at the gateway is served with, and what all of them have in common. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { OnejobError } from '../../../errors.ts';
import type { Log } from '../../../log.ts';
import type { UploadAddresses } from './artifacts.ts';
import { cleaned } from './forward.ts';
import { type Answer, callWhole } from './forward-call.ts';
import { requestHeaders } from './forward-headers.ts';
import type { Target } from './forward-upstreams.ts';
import type { GatewayLimits } from './gateway-limits.ts';
import type { AgentMemory, Lane, Memories } from './gateway-memory.ts';
import type { Reads } from './gateway-reads.ts';
import { refuse } from './local-answers.ts';
import type { ServiceDesired } from './protocol.ts';
import type { AgentBook, AgentRecord, Aliases, AliasKind } from './record.ts';
import type { Sign } from './signs.ts';

export interface Desk {
  readonly book: AgentBook;
  readonly aliases: Aliases;
  readonly log: Log;
  service(name: string): ServiceDesired | null;
  /** Of onejob. */
  readonly version: string;
  /** ms since the epoch. */
  wall(): number;
  heard(id: string, sign: Sign): void;
  readonly limits: GatewayLimits;
  readonly memories: Memories;
  readonly reads: Reads;
  readonly uploads: UploadAddresses;
  /** Ends when the gateway closes. */
  readonly signal: AbortSignal;
}

export interface Call {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly kind: AliasKind;
  /** As it was when the call came. */
  readonly record: AgentRecord;
  readonly memory: AgentMemory;
  readonly lane: Lane;
  /** Ends when the agent has gone away, or the gateway closes. */
  readonly signal: AbortSignal;
}

export interface ToService {
  readonly record: AgentRecord;
  readonly method: string;
  /** After the endpoint, such as `/ping`; byte for byte. */
  readonly path: string;
  readonly token: string;
  /** Whose headers go along; null: none do. */
  readonly request: IncomingMessage | null;
  /** Beside those. */
  readonly headers?: Readonly<Record<string, string>>;
}

/** A call to the agent's service, with the service's own token and headers in the place of the agent's. */
export function targetOf(desk: Desk, { record, method, path, token, request, headers }: ToService): Target {
  const base = new URL(record.endpoint);
  const theirs = request === null ? { 'user-agent': `onejob/${desk.version}` } : requestHeaders(request);
  const wanted = Object.fromEntries(Object.entries(record.requestHeaders).map(([name, value]) => [name.toLowerCase(), value]));
  return {
    method,
    origin: base,
    path: `${base.pathname.replace(/\/+$/, '')}${path}`,
    headers: { ...theirs, ...wanted, ...headers, authorization: `Token ${token}` },
  };
}

/** @throws OnejobError as `callWhole` does */
export function ask(
  desk: Desk,
  call: ToService & { readonly body?: Buffer; readonly signal: AbortSignal; readonly again?: boolean },
): Promise<Answer> {
  const { limits } = desk;
  const body = call.body ?? Buffer.alloc(0);
  const target = targetOf(desk, call);
  return callWhole({
    upstreams: desk.memories.upstreams(call.record.shown.id),
    target,
    body,
    limit: limits.answerBytes,
    timeoutMs: limits.wholeMs,
    signal: call.signal,
    again: call.again ?? true,
  });
}

/** Takes the service's tokens out of a text, should it ever repeat one. */
export function cleaner(desk: Desk, record: AgentRecord, ...more: readonly string[]): (text: string) => string {
  const { session, jobToken, acquisition } = record.sealed;
  const known = [session, jobToken, acquisition?.token, desk.service(record.shown.service)?.token, ...more];
  const tokens = known.filter((token): token is string => typeof token === 'string' && token !== '');
  return (text) => tokens.reduce((clean, token) => clean.replaceAll(token, '[token]'), text);
}

/** The service's own answer, or `body` in its place, to the agent. */
export function passOn(desk: Desk, { response, record }: Call, answer: Answer, body: string = answer.body.toString()): void {
  if (response.headersSent || response.destroyed) return;
  const clean = cleaner(desk, record);
  const bytes = Buffer.from(clean(body));
  response.writeHead(answer.status, { ...cleaned(answer.headers, clean), 'content-length': bytes.length });
  response.end(bytes);
}

export function isOk({ status }: Answer): boolean {
  return status >= 200 && status < 300;
}

/** Whether asking the same again cannot help. */
export function isFinal({ status }: Answer): boolean {
  return status >= 400 && status < 500 && status !== 423 && status !== 429;
}

/** Whether nobody can be told at the moment. */
export function isAway({ status }: Answer): boolean {
  return status >= 500 || status === 429;
}

/** @throws OnejobError E_CI_ANSWER when it is no JSON */
export function jsonOf(answer: Answer, what: string): unknown {
  try {
    return JSON.parse(answer.body.toString());
  } catch (error) {
    throw badAnswer(what, error);
  }
}

export function badAnswer(what: string, cause?: unknown): OnejobError {
  return new OnejobError('E_CI_ANSWER', `The service's answer to ${what} is none.`, { retry: true, cause });
}

/** Of one agent, more than there are kinds of what is said of it. */
const mostSaid = 100;

/** Whether the log has not been told this of the agent yet: its job can make it happen as often as it likes. */
export function isNews({ said }: AgentMemory, what: string): boolean {
  if (said.has(what) || said.size >= mostSaid) return false;
  said.add(what);
  return true;
}

/** Refuses, and says so in the log once per agent and reason: that is how a job that tries its token elsewhere is seen. */
export function deny(desk: Desk, { response, record, memory }: Call, status: 401 | 403 | 404 | 422, why: string): void {
  if (isNews(memory, why)) {
    desk.log.warn('call of an agent refused', { agent: record.shown.agent ?? record.shown.id, slot: record.shown.slot, why });
  }
  refuse(response, status, why);
}

/** For what has happened already, so that the agent hears of it whether or not it can be written down. */
export function note(desk: Desk, id: string, change: () => void): void {
  try {
    if (desk.book.get(id) !== null) change();
  } catch (error) {
    desk.log.error('cannot write down what an agent did', { agent: id, error });
  }
}

/** Serves a call of a running job, which is cut a while after the job's end: nothing of it goes on for ever. */
export async function untilOver(
  desk: Desk,
  id: string,
  signal: AbortSignal,
  serve: (signal: AbortSignal) => Promise<void>,
): Promise<void> {
  const abort = new AbortController();
  const stop = (): void => abort.abort();
  let timer: NodeJS.Timeout | undefined;
  const unwatch = desk.book.watch(id, ({ shown }) => {
    if (shown.phase === 'gone') stop();
    else if (shown.phase !== 'running') timer ??= setTimeout(stop, desk.limits.afterJobMs);
  });
  if (signal.aborted) stop();
  signal.addEventListener('abort', stop, { once: true });
  try {
    await serve(abort.signal);
  } finally {
    unwatch();
    clearTimeout(timer);
    signal.removeEventListener('abort', stop);
  }
}
