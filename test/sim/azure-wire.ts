/**
 * The network between a host and the stand-in for Azure DevOps, in virtual time: latency, and everything that goes wrong between
 * a request and its answer. Managers reach it as `fetch`, agents in sandboxes as `ask`.
 */
import type { Fault } from '../standins/azure-devops/faults.ts';
import type { AzureInProcess } from '../standins/azure-devops/in-process.ts';
import type { SimProcess } from './process.ts';
import type { SimTime } from './time.ts';

/** Shares of requests that go wrong, from 0 to 1. */
export interface Weather {
  /** Nothing was done: cut, 500, 429 or 503, a page of something else, refused. */
  readonly fails: number;
  /** Done, and nobody hears of it: cut, half an answer, no answer. */
  readonly lost: number;
  /** Answered after up to 40 s. */
  readonly slow: number;
}

export const fine: Weather = { fails: 0, lost: 0, slow: 0 };

/** How an outage looks: nothing listens, nothing answers, or each answer is 503. */
export type Outage = 'refused' | 'silent' | 'sick';

const failures: readonly Fault[] = [
  { kind: 'reset' },
  { kind: 'broken' },
  { kind: 'garbage' },
  { kind: 'throttled', retryAfter: 5 },
  { kind: 'throttled', retryAfter: null },
  { kind: 'throttled', retryAfter: 20, status: 503 },
  { kind: 'hang' },
];
const losses: readonly Fault[] = [{ kind: 'lost' }, { kind: 'half' }, { kind: 'lost' }, { kind: 'slowed', retryAfter: 10 }];

/** An answer of the service that is not 2xx, as an agent sees it. */
export class Refusal extends Error {
  readonly status: number;
  readonly typeKey: string;

  constructor(status: number, typeKey: string, message: string) {
    super(message);
    this.status = status;
    this.typeKey = typeKey;
  }
}

/** ms for one request and its answer. */
const latency = [5, 80] as const;
/** ms after which an agent gives a request up. */
const patience = 100_000;

export class AzureWire {
  readonly #time: SimTime;
  readonly #random: () => number;
  readonly #service: () => AzureInProcess;
  /** Of managers, and of agents. */
  weather: { readonly managers: Weather; readonly agents: Weather } = { managers: fine, agents: fine };
  #outage: Outage | null = null;
  /** Requests of agents that are under way. */
  readonly #flying = new Set<() => void>();
  /** Requests that went wrong. */
  faults = 0;
  requests = 0;

  constructor(time: SimTime, random: () => number, service: () => AzureInProcess) {
    this.#time = time;
    this.#random = random;
    this.#service = service;
  }

  get outage(): Outage | null {
    return this.#outage;
  }

  /** It begins with every connection cut; null: it is over. */
  set outage(how: Outage | null) {
    this.#outage = how;
    if (how !== null) for (const cut of [...this.#flying]) cut();
  }

  /** What the weather does to a request that has arrived. */
  draw(identity: string): Fault | null {
    const { fails, lost, slow } = identity === 'agent' || identity === 'job' ? this.weather.agents : this.weather.managers;
    if (fails + lost + slow === 0) return null;
    const drawn = this.#random();
    if (drawn >= fails + lost + slow) return null;
    this.faults += 1;
    if (drawn >= fails + lost) return { kind: 'delay', ms: 1_000 + this.#random() * 39_000 };
    const fault = drawn < fails ? this.#one(failures) : this.#one(losses);
    // An agent that sends something reads no more than the status.
    return fault.kind === 'garbage' && identity !== 'pat' ? { kind: 'broken' } : fault;
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
      const headers = Object.fromEntries(
        Object.entries((init?.headers ?? {}) as Record<string, string>).map(([name, value]) => [name.toLowerCase(), value]),
      );
      await pass(this.#time, this.#half(), signal);
      if (manager.isDead) {
        if (this.#random() < 0.5) return await never();
      } else {
        if (this.outage === 'refused') throw noConnection('ECONNREFUSED');
        if (this.outage === 'silent') return await silence(signal);
        manager.point('service');
      }
      this.requests += 1;
      const body = Buffer.from(typeof init?.body === 'string' ? init.body : '');
      const { method = 'GET' } = init ?? {};
      const incoming = { method, url: String(input), headers, from: 'manager', body: async () => body, signal };
      const answer = this.outage === 'sick' ? sick : await this.#service().enter(incoming);
      if (manager.isDead) return await never();
      manager.point('service');
      if (answer === 'silence') return await silence(signal);
      await pass(manager, this.#half(), signal);
      if (answer === 'cut') throw noConnection('ECONNRESET');
      return responseOf(answer, signal);
    };
  }

  /** A request of an agent with its bearer token. @throws Refusal, or an error of the network */
  async ask(
    method: string,
    path: string,
    { token, body, signal }: { readonly token: string; readonly body?: unknown; readonly signal: AbortSignal },
  ): Promise<{ readonly status: number; readonly json: unknown }> {
    const late = new AbortController();
    const stop = (): void => late.abort(new Error('given up'));
    const callOff = this.#time.after(patience, stop);
    signal.addEventListener('abort', stop, { once: true });
    this.#flying.add(stop);
    try {
      await pass(this.#time, this.#half(), late.signal);
      if (this.outage === 'refused') throw noConnection('ECONNREFUSED');
      if (this.outage === 'silent') return await silence(late.signal);
      this.requests += 1;
      const bytes = body === undefined ? none : Buffer.from(JSON.stringify(body));
      const headers = { authorization: `Bearer ${token}`, accept: 'application/json; api-version=7.1-preview' };
      const incoming = { method, url: path, headers, from: 'agent', body: async () => bytes, signal: late.signal };
      const answer = this.outage === 'sick' ? sick : await this.#service().enter(incoming);
      if (answer === 'silence') return await silence(late.signal);
      if (answer !== 'cut' && answer.isHalf) return await silence(late.signal);
      await pass(this.#time, this.#half(), late.signal);
      if (answer === 'cut') throw noConnection('ECONNRESET');
      const isJson = answer.headers['content-type']?.startsWith('application/json') === true;
      const json: unknown = isJson && answer.text !== '' ? JSON.parse(answer.text) : null;
      if (answer.status < 300 && (isJson || answer.text === '')) return { status: answer.status, json };
      const said = (json ?? {}) as { typeKey?: string; message?: string };
      throw new Refusal(answer.status, said.typeKey ?? '', said.message ?? `answered ${answer.status}`);
    } finally {
      this.#flying.delete(stop);
      callOff();
      signal.removeEventListener('abort', stop);
    }
  }
}

const none = Buffer.alloc(0);

type Whole = Exclude<Awaited<ReturnType<AzureInProcess['enter']>>, string>;

const sick: Whole = {
  status: 503,
  headers: { 'content-type': 'text/html' },
  text: '<h1>Service unavailable</h1>',
  file: null,
  isHalf: false,
};

/** What of a `Response` a client of ours reads; a real one costs a hundred times as much. */
function responseOf({ status, headers, text, isHalf }: Whole, signal: AbortSignal): Response {
  async function* pieces(): AsyncGenerator<Uint8Array> {
    const bytes = Buffer.from(text);
    if (!isHalf) yield bytes;
    else {
      yield bytes.subarray(0, Math.ceil(bytes.length / 2));
      await silence(signal);
    }
  }
  return { status, headers: new Headers(headers), body: text === '' ? null : pieces() } as unknown as Response;
}

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
