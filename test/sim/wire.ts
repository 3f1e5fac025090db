/**
 * The network between a host and a stand-in, in virtual time: latency, and everything that goes wrong between a request and its
 * answer. Managers reach the service as `fetch`; the agents of each service have a way of their own.
 */
import type { Incoming, Passage } from '../standins/kit/door.ts';
import type { InProcess } from '../standins/kit/in-process.ts';
import type { SimProcess } from './process.ts';
import type { Happening } from './scenario.ts';
import type { SimTime } from './time.ts';

/** Shares of requests that go wrong, from 0 to 1. */
export interface Weather {
  /** Nothing was done: cut, 500, 429 or 503, a page of something else, refused, no answer. */
  readonly fails: number;
  /** Done, and nobody hears of it: cut, half an answer, no answer. */
  readonly lost: number;
  /** Answered after up to 40 s. */
  readonly slow: number;
}

export const fine: Weather = { fails: 0, lost: 0, slow: 0 };

/** How an outage looks: nothing listens, nothing answers, or each answer is 503. */
export type Outage = 'refused' | 'silent' | 'sick';

/** An answer that is there, whole or in half. */
export type Answer = Exclude<Passage, string>;

export type Delay = { readonly kind: 'delay'; readonly ms: number };

export interface WireOptions {
  readonly time: SimTime;
  readonly random: () => number;
  readonly service: () => InProcess;
  /** ms after which an agent gives a request up. */
  readonly patience: number;
  /** What an agent sees of half an answer. */
  readonly afterHalf: 'silence' | 'cut';
}

/** ms for one request and its answer. */
const latency = [5, 80] as const;
const none = Buffer.alloc(0);
const sick: Answer = {
  status: 503,
  headers: { 'content-type': 'text/html' },
  text: '<h1>Service unavailable</h1>',
  file: null,
  isHalf: false,
};

export abstract class Wire<Fault> {
  readonly #o: WireOptions;
  /** Of managers, and of agents. */
  weather: { readonly managers: Weather; readonly agents: Weather } = { managers: fine, agents: fine };
  outage: Outage | null = null;
  /** Requests that went wrong. */
  faults = 0;
  requests = 0;

  constructor(o: WireOptions) {
    this.#o = o;
  }

  protected abstract responseOf(answer: Answer, signal: AbortSignal): Response;

  /** What the weather does to a request of these that has arrived. */
  protected drawOf({ fails, lost, slow }: Weather, fail: () => Fault, lose: () => Fault): Fault | Delay | null {
    const { random } = this.#o;
    if (fails + lost + slow === 0) return null;
    const drawn = random();
    if (drawn >= fails + lost + slow) return null;
    this.faults += 1;
    if (drawn >= fails + lost) return { kind: 'delay', ms: 1_000 + random() * 39_000 };
    return drawn < fails ? fail() : lose();
  }

  protected one<T>(of: readonly T[]): T {
    return of[Math.floor(this.#o.random() * of.length)] as T;
  }

  #half(): number {
    return (latency[0] + this.#o.random() * (latency[1] - latency[0])) / 2;
  }

  /** Shares of requests that go wrong from now on, for `ms`; `who`: managers, agents, or both. */
  change({ ms, fails, lost, slow, who = 'both' }: Happening): void {
    const share = (value: unknown): number => (typeof value === 'number' ? value : 0);
    const weather = { fails: share(fails), lost: share(lost), slow: share(slow) };
    this.weather = { managers: who === 'agents' ? fine : weather, agents: who === 'managers' ? fine : weather };
    if (typeof ms === 'number') this.#o.time.after(ms, () => this.clear());
  }

  clear(): void {
    this.weather = { managers: fine, agents: fine };
  }

  /** As `fetch` of one manager: what it has sent arrives also when the manager dies, and then nobody hears the answer. */
  fetchOf(manager: SimProcess): typeof fetch {
    return async (input, init) => {
      const signal = init?.signal ?? new AbortController().signal;
      const headers = Object.fromEntries(
        Object.entries((init?.headers ?? {}) as Record<string, string>).map(([name, value]) => [name.toLowerCase(), value]),
      );
      await pass(this.#o.time, this.#half(), signal);
      if (manager.isDead) {
        if (this.#o.random() < 0.5) return await never();
      } else {
        if (this.outage === 'refused') throw noConnection('ECONNREFUSED');
        if (this.outage === 'silent') return await silence(signal);
        manager.point('service');
      }
      const { method = 'GET', body } = init ?? {};
      const bytes = bytesOf(body);
      const answer = await this.#enter({ method, url: String(input), headers, from: 'manager', body: async () => bytes, signal });
      if (manager.isDead) return await never();
      manager.point('service');
      if (answer === 'silence') return await silence(signal);
      await pass(manager, this.#half(), signal);
      if (answer === 'cut') throw noConnection('ECONNRESET');
      return this.responseOf(answer, signal);
    };
  }

  /** A request of an agent. It ends with the agent's patience, with `signal`, and when anyone calls what `begun` is given. */
  protected async carry(
    { method, url, headers, body }: Pick<Incoming, 'method' | 'url' | 'headers'> & { readonly body?: unknown },
    signal: AbortSignal,
    begun?: (stop: () => void) => () => void,
  ): Promise<Answer> {
    const { time, patience, afterHalf } = this.#o;
    const late = new AbortController();
    const stop = (): void => late.abort(signal.aborted ? signal.reason : new Error('given up'));
    const callOff = time.after(patience, stop);
    if (signal.aborted) stop();
    else signal.addEventListener('abort', stop, { once: true });
    const over = begun?.(stop);
    try {
      await pass(time, this.#half(), late.signal);
      if (this.outage === 'refused') throw noConnection('ECONNREFUSED');
      if (this.outage === 'silent') return await silence(late.signal);
      const bytes = bytesOf(body);
      const answer = await this.#enter({ method, url, headers, from: 'agent', body: async () => bytes, signal: late.signal });
      if (answer === 'silence') return await silence(late.signal);
      const isHalf = answer !== 'cut' && answer.isHalf;
      if (isHalf && afterHalf === 'silence') return await silence(late.signal);
      await pass(time, this.#half(), late.signal);
      if (answer === 'cut' || isHalf) throw noConnection('ECONNRESET');
      return answer;
    } finally {
      over?.();
      callOff();
      signal.removeEventListener('abort', stop);
    }
  }

  async #enter(incoming: Incoming): Promise<Passage> {
    this.requests += 1;
    return this.outage === 'sick' ? sick : await this.#o.service().enter(incoming);
  }
}

function bytesOf(body: unknown): Buffer {
  if (body == null) return none;
  return Buffer.from(typeof body === 'string' || body instanceof Uint8Array ? body : JSON.stringify(body));
}

/** An answer's body, where it is JSON. */
export function jsonOf({ headers, text }: Answer): unknown {
  const isJson = headers['content-type']?.startsWith('application/json') === true;
  return isJson && text !== '' ? JSON.parse(text) : null;
}

export function noConnection(code: string): Error {
  return new TypeError('fetch failed', { cause: Object.assign(new Error(code), { code }) });
}

function never(): Promise<never> {
  return new Promise<never>(() => {});
}

/** Nothing comes, until anyone who waits gives up. */
export function silence(signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => {
    const ended = (): void => reject(signal.reason);
    if (signal.aborted) ended();
    else signal.addEventListener('abort', ended, { once: true });
  });
}

/** Resolves after `ms`; throws what `signal` is aborted with. */
export function pass(clock: Pick<SimTime, 'after'>, ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal.aborted) return reject(signal.reason);
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
