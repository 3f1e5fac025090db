/** The network between a host and the stand-in for Buildkite: what its weather is, and how agents see its answers. */
import type { Fault } from '../standins/buildkite/faults.ts';
import type { BuildkiteInProcess } from '../standins/buildkite/in-process.ts';
import type { LoggedRequest } from '../standins/buildkite/types.ts';
import type { SimTime } from './time.ts';
import { type Answer, jsonOf, noConnection, Wire } from './wire.ts';

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

export class BuildkiteWire extends Wire<Fault> {
  readonly #random: () => number;

  constructor(time: SimTime, random: () => number, service: () => BuildkiteInProcess) {
    super({ time, random, service, patience: 60_000, afterHalf: 'cut' });
    this.#random = random;
  }

  /** What the weather does to a request that has arrived. */
  draw({ token }: Pick<LoggedRequest, 'token'>): Fault | null {
    const isManagers = token === 'registration' || token === 'metrics' || token === 'unknown';
    // Anyone who is told that a result was taken believes it, so an agent is told no nonsense.
    const fail = (): Fault => (isManagers && this.#random() < 0.1 ? { kind: 'garbage' } : this.one(failures));
    return this.drawOf(isManagers ? this.weather.managers : this.weather.agents, fail, () => this.one(losses));
  }

  /** What of a `Response` our client reads; a real one costs a hundred times as much. */
  protected override responseOf({ status, headers, text, isHalf }: Answer): Response {
    if (isHalf) throw noConnection('ECONNRESET');
    return { status, headers: new Headers(headers), text: async () => text } as unknown as Response;
  }

  readonly ask: Ask = async (method, path, { token, body, signal }) => {
    const headers = { authorization: `Token ${token}`, 'user-agent': 'buildkite-agent/3.137.0.1 (linux; amd64)' };
    const answer = await this.carry({ method, url: `/v3/${path}`, headers, body }, signal);
    return { status: answer.status, headers: answer.headers, json: jsonOf(answer) };
  };
}
