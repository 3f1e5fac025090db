/**
 * What every stand-in does with a request: it finds the route, logs who came, lets faults and the credential have their say, and
 * answers. It knows no socket: a request may as well come from the same process (`in-process.ts`).
 */
import type { IncomingHttpHeaders } from 'node:http';
import { type CommonFault, isCommon } from './faults.ts';
import type { Found } from './routing.ts';

/** A request, whatever carried it. */
export interface Incoming {
  readonly method: string;
  /** Path and query, or a whole URL. */
  readonly url: string;
  readonly headers: IncomingHttpHeaders;
  /** Read once; null when the other side hung up, or sends too much. */
  body(): Promise<Buffer | null>;
  /** Address of the other side. */
  readonly from: string;
  /** Aborts when the other side hangs up. */
  readonly signal: AbortSignal;
}

/** What a route answers. */
export interface Reply {
  readonly status: number;
  readonly json?: unknown;
  readonly text?: string;
  readonly type?: string;
  /** A file's path, served as it is. */
  readonly file?: string;
  readonly headers?: Readonly<Record<string, string>>;
}

/** What goes back over the network. */
export interface Answered {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly text: string;
  /** A file's path, whose bytes come instead of the text. */
  readonly file: string | null;
  /** Only the first half of it comes. */
  readonly isHalf: boolean;
}

/** A request of which route and caller are known. */
export interface Asked<Route, Caller> {
  readonly request: Incoming;
  readonly url: URL;
  readonly found: Found<Route> | null;
  readonly caller: Caller;
}

/** What the layers of every stand-in work on. `Entry`: a line of its log. */
export interface Surroundings<Entry> {
  /** `http://host:port`. */
  readonly origin: string;
  /** `skew`: the service's clock minus the real one, ms. */
  readonly faults: { skew: number };
  now(): number;
  /** Calls `fn` once after `ms`; what it returns calls that off. */
  after(ms: number, fn: () => void): () => void;
  emit(event: { readonly kind: 'answered'; readonly request: Entry }): void;
}

/** What one service makes of requests. */
export interface Service<Route, Caller, Entry extends { status: number }, Fault extends { readonly kind: string }> {
  readonly world: Surroundings<Entry>;
  readonly log: { push(entry: Entry): void };
  /** Lets everything run out that has. */
  sweep(): void;
  find(method: string, path: string): Found<Route> | null;
  callerOf(request: Incoming): Caller;
  /** A line of the log, written before the body has come. */
  entryOf(asked: Asked<Route, Caller>): Entry;
  /** The body has come: what the log says of it. */
  bodyCame(entry: Entry, asked: Asked<Route, Caller>, body: Buffer): void;
  pick(entry: Entry): Fault | CommonFault | null;
  /** What a fault answers in place of the route. */
  instead(fault: Fault | CommonFault, asked: Asked<Route, Caller>): Reply | null;
  readonly notFound: Reply;
  refusal(found: Found<Route>, asked: Asked<Route, Caller>): Reply | null;
  answer(found: Found<Route>, asked: Asked<Route, Caller>, body: Buffer, fault: Fault | CommonFault | null): Promise<Reply>;
  written(reply: Reply, fault: Fault | CommonFault | null): Answered;
}

/** `cut`: the connection ends without an answer; `silence`: nothing comes at all. */
export type Passage = Answered | 'cut' | 'silence';

export async function enter<Route, Caller, Entry extends { status: number }, Fault extends { readonly kind: string }>(
  service: Service<Route, Caller, Entry, Fault>,
  request: Incoming,
): Promise<Passage> {
  const { world } = service;
  service.sweep();
  const url = new URL(request.url, world.origin);
  const found = service.find(request.method, url.pathname);
  const asked = { request, url, found, caller: service.callerOf(request) };
  const entry = service.entryOf(asked);
  service.log.push(entry);
  const body = await request.body();
  if (body === null) return 'silence';
  service.bodyCame(entry, asked, body);
  const fault = service.pick(entry);
  const done = (reply: Reply): Answered | 'cut' => {
    if (fault?.kind === 'lost') return 'cut';
    entry.status = reply.status;
    const answer = service.written(reply, fault);
    world.emit({ kind: 'answered', request: entry });
    return answer;
  };
  if (fault?.kind === 'hang') return 'silence';
  if (fault?.kind === 'reset') return 'cut';
  if (fault !== null && isCommon(fault) && fault.kind === 'delay' && !(await passed(world, fault.ms, request.signal)))
    return 'silence';
  const instead = fault === null ? null : service.instead(fault, asked);
  if (instead !== null) return done(instead);
  if (found === null) return done(service.notFound);
  const refused = service.refusal(found, asked);
  if (refused !== null) return done(refused);
  return done(await service.answer(found, asked, body, fault));
}

/** False when the other side hung up before `ms` had passed. */
export function passed(world: { after(ms: number, fn: () => void): () => void }, ms: number, gone: AbortSignal): Promise<boolean> {
  return new Promise((resolve) => {
    const callOff = world.after(ms, () => resolve(true));
    const leave = (): void => {
      callOff();
      resolve(false);
    };
    gone.addEventListener('abort', leave, { once: true });
  });
}

/** Timers of a stand-in that has none of its own. */
export function afterRealTime(ms: number, fn: () => void): () => void {
  const timer = setTimeout(fn, ms);
  return () => clearTimeout(timer);
}
