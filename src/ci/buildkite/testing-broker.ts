/**
 * For tests of the manager's side: a broker in memory. What is posted to it is kept, what its agents do is said by hand, and it
 * comes and goes like a process. What it answers is what the real one answers.
 */
import { OnejobError } from '../../errors.ts';
import {
  type BrokerAgent,
  type BrokerEvent,
  type BrokerState,
  type CarryRequest,
  type EndRequest,
  type HandRequest,
  type OffersRequest,
  protocolVersion,
  type RefuseRequest,
  type ServiceHealth,
} from './broker/protocol.ts';
import type { BrokerCalls } from './broker-calls.ts';

export interface Posted {
  readonly path: string;
  readonly body: unknown;
}

export interface FakeBroker {
  readonly calls: BrokerCalls;
  /** As `startBroker`: notes it, and resolves when `exit` says so. */
  readonly start: () => Promise<string>;
  /** How often one was started. */
  readonly started: number;
  /** The process that was started last has ended. */
  exit(how: string): void;
  /** It listens; who asks for its events hears of `state`. */
  up(state?: Partial<BrokerState>): void;
  /** As by a kill. Its agents stay in its book. */
  down(): void;
  /** What it says of an agent from now on. */
  put(agent: BrokerAgent): BrokerAgent;
  /** Takes it out of the book without a word, as a broker that lost its disk. */
  lose(id: string): void;
  agent(id: string): BrokerAgent | undefined;
  health(health: ServiceHealth): void;
  readonly posts: readonly Posted[];
  /** Bodies of what was posted to a path; the last piece of it is enough. */
  posted(path: string): unknown[];
  readonly offers: OffersRequest[];
  readonly refused: (RefuseRequest & { readonly id: string })[];
  readonly ended: (EndRequest & { readonly id: string })[];
  /** What it does instead of answering; null: it answers. */
  instead: ((path: string) => Promise<unknown>) | null;
}

export function away(why = 'cannot be reached (ECONNREFUSED)'): OnejobError {
  return new OnejobError('E_BROKER', `The broker, which carries what Buildkite agents say, ${why}.`, { retry: true });
}

export function fakeBroker(): FakeBroker {
  const book = new Map<string, BrokerAgent>();
  const posts: Posted[] = [];
  const streams = new Set<{ readonly each: (event: BrokerEvent) => void; readonly end: (error?: unknown) => void }>();
  let state: BrokerState | null = null;
  let process: { readonly promise: Promise<string>; readonly resolve: (how: string) => void } | null = null;
  let started = 0;

  /** A stream that throws ends with what it threw, as one that is read line by line. */
  const tell = (event: BrokerEvent): void => {
    for (const { each, end } of [...streams]) {
      try {
        each(event);
      } catch (error) {
        end(error);
      }
    }
  };
  const put = (agent: BrokerAgent): BrokerAgent => {
    if (agent.phase === 'gone') book.delete(agent.id);
    else book.set(agent.id, agent);
    if (state !== null) tell({ kind: 'agent', agent });
    return agent;
  };

  function answer(path: string, body: unknown): unknown {
    const [, id = '', what = ''] = /^\/v1\/agents\/([^/]+)\/(\w+)$/.exec(path) ?? [];
    const agent = book.get(decodeURIComponent(id));
    if (path === '/v1/offers') fake.offers.push(body as OffersRequest);
    if (path === '/v1/listen') return { port: state?.port ?? 0 };
    if (path === '/v1/leave') return { unfinished: 0 };
    if (path === '/v1/agents') {
      const { agent: of, service, slot, pool, name } = body as CarryRequest;
      const known = [...book.values()].find((one) => one.agent === of);
      const carried = known ?? put(carriedAgent(of, { service, slot, pool, name }));
      return { id: carried.id, token: `once-${of}`, job: carried.job?.id ?? null };
    }
    if (what === 'retire') return { job: agent?.job?.id ?? null };
    if (what === 'hand' && agent?.kind === 'carried') return { token: `once-${agent.agent}`, job: agent.job?.id ?? null };
    if (what === 'hand') {
      if (agent === undefined) throw new OnejobError('E_BROKER', `The broker has no agent "${id}".`);
      put({ ...agent, phase: 'handed', agent: (body as HandRequest).agent });
      return { token: `once-${(body as HandRequest).agent}`, job: agent.job?.id ?? null };
    }
    if (what === 'refuse') fake.refused.push({ id, ...(body as RefuseRequest) });
    if (what === 'end') fake.ended.push({ id, ...(body as EndRequest) });
    if ((what === 'refuse' || what === 'end') && agent !== undefined) put({ ...agent, phase: 'ending' });
    return {};
  }

  const fake: FakeBroker = {
    calls: {
      async post(path, body, schema, signal) {
        signal.throwIfAborted();
        if (state === null) throw away();
        // What is sent is what stands there now.
        posts.push({ path, body: structuredClone(body) });
        // Never at once, as over any socket.
        await new Promise<void>((resolve) => setImmediate(resolve));
        const found = fake.instead === null ? answer(path, structuredClone(body)) : await fake.instead(path);
        return schema.parse(found);
      },
      events: (each, signal) =>
        new Promise((resolve, reject) => {
          if (state === null) {
            reject(away());
            return;
          }
          const stream = {
            each,
            end(error?: unknown) {
              streams.delete(stream);
              signal.removeEventListener('abort', over);
              if (error === undefined) resolve();
              else reject(error);
            },
          };
          const over = (): void => stream.end(signal.reason);
          signal.addEventListener('abort', over, { once: true });
          streams.add(stream);
          queueMicrotask(() => {
            if (state === null || !streams.has(stream)) return;
            try {
              each({ kind: 'state', ...state, agents: [...book.values()] });
            } catch (error) {
              stream.end(error);
            }
          });
        }),
    },
    start() {
      started += 1;
      process = Promise.withResolvers<string>();
      return process.promise;
    },
    get started() {
      return started;
    },
    exit: (how) => process?.resolve(how),
    up(more = {}) {
      state = {
        protocol: protocolVersion,
        version: '1.0.0',
        pid: 4711,
        port: 7070,
        proxy: null,
        agents: [],
        services: [],
        ...more,
      };
    },
    down() {
      state = null;
      for (const { end } of [...streams]) end();
    },
    put,
    lose: (id) => void book.delete(id),
    agent: (id) => book.get(id),
    health: (health) => tell({ kind: 'service', health }),
    posts,
    posted: (path) => posts.filter((one) => one.path.endsWith(path)).map(({ body }) => body),
    offers: [],
    refused: [],
    ended: [],
    instead: null,
  };
  return fake;
}

/** An agent of the slot `ci/1` of the service `bk`, idle; with a job where `job` names one. */
export function heldAgent(
  id: string,
  more: Partial<BrokerAgent> & { readonly env?: Readonly<Record<string, string>> } = {},
): BrokerAgent {
  const { env, ...rest } = more;
  const base = { kind: 'held', service: 'bk', slot: 'ci/1', pool: 'ci', name: 'box-ci-1', agent: null } as const;
  const job = env === undefined ? null : { id: `job-${id}`, env };
  return {
    ...base,
    id,
    phase: job === null ? 'idle' : 'accepted',
    job,
    cancelled: false,
    finished: null,
    problem: null,
    since: 0,
    ...rest,
  };
}

/** One that registers itself from the sandbox of `agent`, in the slot `ci/1`, and has not done so yet. */
export function carriedAgent(agent: string, more: Parameters<typeof heldAgent>[1] = {}): BrokerAgent {
  return heldAgent(`c-${agent}`, { kind: 'carried', agent, phase: 'expected', ...more });
}
