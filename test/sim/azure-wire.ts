/** The network between a host and the stand-in for Azure DevOps: what its weather is, and how agents see its answers. */
import type { Fault } from '../standins/azure-devops/faults.ts';
import type { AzureInProcess } from '../standins/azure-devops/in-process.ts';
import type { SimTime } from './time.ts';
import { type Answer, jsonOf, type Outage, silence, Wire } from './wire.ts';

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

export class AzureWire extends Wire<Fault> {
  /** Requests of agents that are under way. */
  readonly #flying = new Set<() => void>();

  constructor(time: SimTime, random: () => number, service: () => AzureInProcess) {
    super({ time, random, service, patience: 100_000, afterHalf: 'silence' });
  }

  /** From now on, and with every connection of an agent cut. */
  begin(outage: Outage): void {
    this.outage = outage;
    for (const cut of [...this.#flying]) cut();
  }

  /** What the weather does to a request that has arrived. */
  draw(identity: string): Fault | null {
    const isAgent = identity === 'agent' || identity === 'job';
    // An agent that sends something reads no more than the status.
    const fail = (): Fault => {
      const fault = this.one(failures);
      return fault.kind === 'garbage' && identity !== 'pat' ? { kind: 'broken' } : fault;
    };
    return this.drawOf(isAgent ? this.weather.agents : this.weather.managers, fail, () => this.one(losses));
  }

  /** What of a `Response` a client of ours reads; a real one costs a hundred times as much. */
  protected override responseOf({ status, headers, text, isHalf }: Answer, signal: AbortSignal): Response {
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

  /** A request of an agent with its bearer token. @throws Refusal, or an error of the network */
  async ask(
    method: string,
    url: string,
    { token, body, signal }: { readonly token: string; readonly body?: unknown; readonly signal: AbortSignal },
  ): Promise<{ readonly status: number; readonly json: unknown }> {
    const headers = { authorization: `Bearer ${token}`, accept: 'application/json; api-version=7.1-preview' };
    const answer = await this.carry({ method, url, headers, body }, signal, (stop) => {
      this.#flying.add(stop);
      return () => this.#flying.delete(stop);
    });
    const json = jsonOf(answer);
    if (answer.status < 300 && (json !== null || answer.text === '')) return { status: answer.status, json };
    const said = (json ?? {}) as { typeKey?: string; message?: string };
    throw new Refusal(answer.status, said.typeKey ?? '', said.message ?? `answered ${answer.status}`);
  }
}
