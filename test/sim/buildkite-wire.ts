/**
 * The network between a host and the stand-in for Buildkite, in virtual time: latency, and everything that goes wrong between a
 * request and its answer. Managers reach it as `fetch`, agents in sandboxes as `ask`.
 */
import type { Fault } from '../standins/buildkite/faults.ts';
import type { BuildkiteInProcess } from '../standins/buildkite/in-process.ts';
import type { LoggedRequest } from '../standins/buildkite/types.ts';
import type { SimProcess } from './process.ts';
import type { SimTime } from './time.ts';

/** Shares of requests that go wrong, from 0 to 1. */
export interface Weather {
  /** Nothing was done: cut, 500, 429 or 503, a page of something else, no answer. */
  readonly fails: number;
  /** Done, and nobody hears of it: cut, half an answer. */
  readonly lost: number;
  /** Answered after up to 40 s. */
  readonly slow: number;
}

export const fine: Weather = { fails: 0, lost: 0, slow: 0 };

/** How an outage looks: nothing listens, nothing answers, or each answer is 503. */
export type Outage = 'refused' | 'silent' | 'sick';

/** An answer as an agent sees it. */
export interface Reply {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  /** null: it was not JSON. */
  readonly json: unknown;
}

/** What agents call, by any route. @throws an error of the network, or the reason of `signal` */
export type Ask = (
  method: string,
  path: string,
  about: { readonly token: string; readonly body?: unknown; readonly signal: AbortSignal },
) => Promise<Reply>;

const failures: readonly Fault[] = [
  { kind: 'reset' },
  { kind: 'error', status: 500 },
  { kind: 'error', status: 503, retryAfter: 20 },
  { kind: 'error', status: 429, retryAfter: 5 },
  { kind: 'error', status: 429 },
  { kind: 'hang' },
];
const losses: readonly Fault[] = [{ kind: 'lost' }, { kind: 'half' }];

/** ms for one request and its answer. */
const latency = [5, 80] as const;
/** ms after which an agent gives a request up. */
const patience = 60_000;

export class BuildkiteWire {
  readonly #time: SimTime;
  readonly #random: () => number;
  readonly #service: () => BuildkiteInProcess;
  /** Of managers, and of agents. */
  weather: { readonly managers: Weather; readonly agents: Weather } = { managers: fine, agents: fine };
  outage: Outage | null = null;
  /** Requests that went wrong. */
  faults = 0;
  requests = 0;

  constructor(time: SimTime, random: () => number, service: () => BuildkiteInProcess) {
    this.#time = time;
    this.#random = random;
    this.#service = service;
  }

  /** What the weather does to a request that has arrived. */
  draw({ token }: Pick<LoggedRequest, 'token'>): Fault | null {
    const isManagers = token === 'registration' || token === 'metrics' || token === 'unknown';
    const { fails, lost, slow } = isManagers ? this.weather.managers : this.weather.agents;
    if (fails + lost + slow === 0) return null;
    const drawn = this.#random();
    if (drawn >= fails + lost + slow) return null;
    this.faults += 1;
    if (drawn >= fails + lost) return { kind: 'delay', ms: 1_000 + this.#random() * 39_000 };
    if (drawn >= fails) return this.#one(losses);
    // Anyone who is told that a result was taken believes it, so an agent is told no nonsense.
    return isManagers && this.#random() < 0.1 ? { kind: 'garbage' } : this.#one(failures);
  }

  #one<T>(of: readonly T[]): T {
    return of[Math.floor(this.#random() * of.length)] as T;
  }

  #half(): number {
    return (latency[0] + this.#random() * (latency[1] - latency[0])) / 2;
  }

  /** As `fetch` of one manager: what it has sent arrives also when the manager dies, and then nobody hears the answer. */
  fetchOf(manager: SimProcess): typeof fetch {
    return async (input, init) => {
      const signal = init?.signal ?? new AbortController().signal;
      await pass(this.#time, this.#half(), signal);
      if (manager.isDead) {
        if (this.#random() < 0.5) return await never();
      } else {
        if (this.outage === 'refused') throw noConnection('ECONNREFUSED');
        if (this.outage === 'silent') return await silence(signal);
        manager.point('service');
      }
      this.requests += 1;
      const headers = Object.fromEntries(
        Object.entries((init?.headers ?? {}) as Record<string, string>).map(([name, value]) => [name.toLowerCase(), value]),
      );
      const bytes = init?.body == null ? none : Buffer.from(init.body as string);
      const { pathname, search } = new URL(String(input));
      const incoming = { method: init?.method ?? 'GET', url: `${pathname}${search}`, headers, from: 'manager', signal };
      const answer = this.outage === 'sick' ? sick : await this.#service().enter({ ...incoming, body: async () => bytes });
      if (manager.isDead) return await never();
      manager.point('service');
      if (answer === 'silence') return await silence(signal);
      await pass(manager, this.#half(), signal);
      if (answer === 'cut' || answer.isHalf) throw noConnection('ECONNRESET');
      // What of a `Response` our client reads; a real one costs a hundred times as much.
      return {
        status: answer.status,
        headers: new Headers(answer.headers),
        text: async () => answer.text,
      } as unknown as Response;
    };
  }

  readonly ask: Ask = async (method, path, { token, body, signal }) => {
    const late = new AbortController();
    const stop = (): void => late.abort(signal.reason);
    const callOff = this.#time.after(patience, () => late.abort(new Error('given up')));
    if (signal.aborted) stop();
    else signal.addEventListener('abort', stop, { once: true });
    try {
      await pass(this.#time, this.#half(), late.signal);
      if (this.outage === 'refused') throw noConnection('ECONNREFUSED');
      if (this.outage === 'silent') return await silence(late.signal);
      this.requests += 1;
      const bytes = body === undefined ? none : Buffer.from(typeof body === 'string' ? body : JSON.stringify(body));
      const headers = { authorization: `Token ${token}`, 'user-agent': 'buildkite-agent/3.137.0.1 (linux; amd64)' };
      const incoming = { method, url: `/v3/${path}`, headers, from: 'agent', body: async () => bytes, signal: late.signal };
      const answer = this.outage === 'sick' ? sick : await this.#service().enter(incoming);
      if (answer === 'silence') return await silence(late.signal);
      await pass(this.#time, this.#half(), late.signal);
      if (answer === 'cut' || answer.isHalf) throw noConnection('ECONNRESET');
      const { status, text } = answer;
      const isJson = answer.headers['content-type']?.startsWith('application/json') === true;
      return { status, headers: answer.headers, json: isJson ? (JSON.parse(text) as unknown) : null };
    } finally {
      callOff();
      signal.removeEventListener('abort', stop);
    }
  };
}

const none = Buffer.alloc(0);

type Whole = Exclude<Awaited<ReturnType<BuildkiteInProcess['enter']>>, string>;

const sick: Whole = {
  status: 503,
  headers: { 'content-type': 'text/html' },
  text: '<h1>Service unavailable</h1>',
  file: null,
  isHalf: false,
};

function noConnection(code: string): Error {
  return new TypeError('fetch failed', { cause: Object.assign(new Error(code), { code }) });
}

function never(): Promise<never> {
  return new Promise<never>(() => {});
}

/** Nothing comes, until anyone who waits gives up. */
function silence(signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => {
    const ended = (): void => reject(signal.reason);
    if (signal.aborted) ended();
    else signal.addEventListener('abort', ended, { once: true });
  });
}

/** Resolves after `ms`; throws what `signal` is aborted with. */
export function pass(clock: Pick<SimTime, 'after'>, ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal.aborted) {
      reject(signal.reason);
      return;
    }
    const ended = (): void => {
      callOff();
      reject(signal.reason);
    };
    const callOff = clock.after(ms, () => {
      signal.removeEventListener('abort', ended);
      resolve();
    });
    signal.addEventListener('abort', ended, { once: true });
  });
}
