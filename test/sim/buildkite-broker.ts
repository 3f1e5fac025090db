/**
 * The broker of a host, in virtual time, as thin as can be: it outlives managers, makes agents of sandboxes known to the service
 * under its tokens, and tells managers how far they are. Agents that are the broker itself (`mode: hold`) it has none.
 */
import { type BrokerAgent, type BrokerEvent, type CarryRequest, protocolVersion } from '../../src/ci/buildkite/broker/protocol.ts';
import type { BrokerAccess } from '../../src/ci/buildkite/broker-desk.ts';
import { OnejobError } from '../../src/errors.ts';
import { type Ask, pass, type Reply } from './buildkite-wire.ts';
import type { SimProcess } from './process.ts';
import type { SimTime } from './time.ts';

interface Carried {
  shown: BrokerAgent;
  readonly request: CarryRequest;
  session: string | null;
  jobToken: string | null;
}

interface Listener {
  push(event: BrokerEvent): void;
  end(): void;
}

/** Where agents in sandboxes find it. */
export const brokerPort = 7070;

/** ms between two tries to tell the service what it has to know. */
const again = 5_000;

export class SimBroker {
  readonly #time: SimTime;
  /** The way to the service. */
  readonly #service: Ask;
  /** Told of each agent that is to be carried, with what its job may know. */
  readonly #carries: (request: CarryRequest) => void;
  readonly #book = new Map<string, Carried>();
  readonly #aliases = new Map<string, Carried>();
  readonly #listeners = new Set<Listener>();
  readonly #never = new AbortController().signal;
  #made = 0;
  #isUp = false;
  #isLeaving = false;
  #ended = Promise.withResolvers<string>();

  constructor(time: SimTime, service: Ask, carries: (request: CarryRequest) => void) {
    this.#time = time;
    this.#service = service;
    this.#carries = carries;
  }

  get agents(): readonly BrokerAgent[] {
    return Array.from(this.#book.values(), ({ shown }) => shown);
  }

  /** As one manager sees it. */
  access(manager: SimProcess): BrokerAccess {
    const there = async (signal: AbortSignal): Promise<void> => {
      await pass(this.#time, 1, signal);
      if (manager.isDead) await new Promise<never>(() => {});
      if (!this.#isUp) throw new OnejobError('E_BROKER', 'The simulated broker is not there.', { retry: true });
      manager.point('service');
    };
    return {
      calls: {
        post: async (path, body, answer, signal) => {
          await there(signal);
          const found = this.#answer(path, body);
          manager.point('service');
          await pass(manager, 1, signal);
          return answer.parse(found);
        },
        events: async (each, signal) => {
          await there(signal);
          await this.#follow(manager, each, signal);
        },
      },
      agents: async (signal) => {
        await there(signal);
        return this.agents;
      },
      start: () => {
        if (!this.#isUp) this.#ended = Promise.withResolvers();
        this.#isUp = true;
        this.#isLeaving = false;
        return this.#ended.promise;
      },
    };
  }

  #follow(manager: SimProcess, each: (event: BrokerEvent) => void, signal: AbortSignal): Promise<void> {
    this.#isLeaving = false;
    return new Promise((resolve, reject) => {
      const queue: BrokerEvent[] = [];
      const over = (): void => {
        this.#listeners.delete(listener);
        signal.removeEventListener('abort', abort);
      };
      const abort = (): void => listener.end();
      const listener: Listener = {
        push(event) {
          queue.push(event);
          manager.after(1, () => {
            const next = queue.shift();
            if (next === undefined || signal.aborted) return;
            try {
              each(next);
            } catch (error) {
              over();
              reject(error);
            }
          });
        },
        end() {
          over();
          resolve();
        },
      };
      signal.addEventListener('abort', abort, { once: true });
      this.#listeners.add(listener);
      manager.onKill(() => this.#listeners.delete(listener));
      const about = { protocol: protocolVersion, version: '0.0.0', pid: 1, port: brokerPort, proxy: null, services: [] } as const;
      listener.push({ kind: 'state', ...about, agents: [...this.agents] });
    });
  }

  #put(one: Carried, patch: Partial<BrokerAgent>): void {
    if (!this.#book.has(one.shown.id)) return;
    const isNew = patch.phase !== undefined && patch.phase !== one.shown.phase;
    one.shown = { ...one.shown, ...patch, ...(isNew && { since: this.#time.wall }) };
    if (one.shown.phase === 'gone') {
      this.#book.delete(one.shown.id);
      for (const [alias, { shown }] of this.#aliases) if (shown.id === one.shown.id) this.#aliases.delete(alias);
    }
    for (const listener of this.#listeners) listener.push({ kind: 'agent', agent: one.shown });
    this.#look();
  }

  /** One that was told to leave ends with its last agent. */
  #look(): void {
    if (!this.#isLeaving || this.#book.size > 0) return;
    this.#isLeaving = false;
    this.#isUp = false;
    for (const listener of [...this.#listeners]) listener.end();
    this.#ended.resolve('ended with exit code 0');
  }

  #answer(path: string, body: unknown): unknown {
    const [, id = '', what = ''] = /^\/v1\/agents\/([^/]+)\/(\w+)$/.exec(path) ?? [];
    if (path === '/v1/listen') return { port: brokerPort };
    if (path === '/v1/agents') return this.#carry(body as CarryRequest);
    if (path === '/v1/leave') {
      this.#isLeaving = true;
      const unfinished = this.#book.size;
      this.#time.after(1, () => this.#look());
      return { unfinished };
    }
    const one = this.#book.get(id);
    if (what === 'end' && one !== undefined) this.#end(one, body as { reason: string; signalReason: string });
    return {};
  }

  #carry(request: CarryRequest): unknown {
    const known = [...this.#book.values()].find(({ shown }) => shown.agent === request.agent);
    const one = known ?? this.#new(request);
    return { id: one.shown.id, token: `once-${one.shown.id}`, job: one.shown.job?.id ?? null };
  }

  #new(request: CarryRequest): Carried {
    this.#carries(request);
    this.#made += 1;
    const { agent, service, slot, pool, name } = request;
    const base = { id: `c-${this.#made}`, kind: 'carried', service, slot, pool, name, agent } as const;
    const shown = { ...base, phase: 'expected', job: null, cancelled: false, finished: null, problem: null } as const;
    const one: Carried = { shown: { ...shown, since: this.#time.wall }, request, session: null, jobToken: null };
    this.#book.set(base.id, one);
    this.#aliases.set(`once-${base.id}`, one);
    for (const listener of this.#listeners) listener.push({ kind: 'agent', agent: one.shown });
    return one;
  }

  /** What an agent in a sandbox says, passed on with the service's own tokens. */
  readonly ask: Ask = async (method, path, { token, body, signal }) => {
    const one = this.#aliases.get(token);
    if (one === undefined) return refused(401);
    const [, job, call = ''] = /^jobs\/([^/]+)(?:\/(\w+))?/.exec(path) ?? [];
    const isOfJob = job !== undefined && call !== 'acquire';
    const real = path === 'register' ? (one.request.acquisition?.token ?? null) : isOfJob ? one.jobToken : one.session;
    if (real === null || (job !== undefined && job !== one.request.acquisition?.job)) return refused(401);
    const { finished, phase } = one.shown;
    // The manager has more to say about a job without a result than that its agent has left.
    if (path === 'disconnect' && finished === null && (phase === 'accepted' || phase === 'running')) return refused(200);
    if (call === 'acquire' && phase === 'idle') this.#put(one, { phase: 'accepting', job: { id: job ?? '', env: {} } });
    let reply: Reply;
    try {
      reply = await this.#service(method, path, { token: real, body, signal });
    } catch (error) {
      if (call === 'acquire') this.#put(one, { phase: 'idle' });
      throw error;
    }
    return this.#heard(one, call === '' ? path : call, body, reply);
  };

  #heard(one: Carried, call: string, body: unknown, reply: Reply): Reply {
    const isOk = reply.status < 300;
    const json = (reply.json ?? {}) as Record<string, unknown>;
    const { id, phase } = one.shown;
    switch (call) {
      case 'register': {
        if (!isOk) return reply;
        one.session = String(json.access_token);
        this.#aliases.set(`session-${id}`, one);
        this.#put(one, { phase: 'registered' });
        return { ...reply, json: { ...json, access_token: `session-${id}` } };
      }
      case 'connect':
        if (isOk && phase === 'registered') this.#put(one, { phase: 'idle' });
        return reply;
      case 'acquire': {
        if (!isOk) {
          this.#put(one, { phase: 'idle', job: null });
          return reply;
        }
        const env = json.env as Record<string, string>;
        one.jobToken = String(json.token);
        this.#aliases.set(`job-${id}`, one);
        this.#put(one, { phase: 'accepted', job: { id: String(json.id), env } });
        return { ...reply, json: { ...json, token: `job-${id}` } };
      }
      case 'start':
        if (isOk && phase === 'accepted') this.#put(one, { phase: 'running' });
        return reply;
      case 'finish': {
        const { exit_status, signal, signal_reason } = body as Record<string, string | null>;
        const finished = { exitStatus: exit_status ?? '', signal: signal ?? null, signalReason: signal_reason ?? null };
        if (isOk) this.#put(one, { phase: 'finished', finished });
        return reply;
      }
      case 'disconnect':
        if (isOk || reply.status === 401) this.#put(one, { phase: 'gone' });
        return reply;
      default:
        if (json.state === 'canceling' && !one.shown.cancelled) this.#put(one, { cancelled: true });
        return reply;
    }
  }

  /** Its sandbox is gone: the service is told of its job's end, and that it leaves, however long that takes. */
  #end(one: Carried, { signalReason }: { reason: string; signalReason: string }): void {
    if (one.shown.phase === 'ending') return;
    const { session, jobToken } = one;
    const isUnfinished = one.shown.job !== null && one.shown.finished === null && jobToken !== null;
    this.#put(one, { phase: 'ending' });
    void (async () => {
      const finish = { exit_status: '-1', signal_reason: signalReason, chunks_failed_count: 0 };
      if (isUnfinished) await this.#until('PUT', `jobs/${one.shown.job?.id}/finish`, jobToken, finish);
      if (session !== null) await this.#until('POST', 'disconnect', session);
      this.#put(one, { phase: 'gone' });
    })();
  }

  async #until(method: string, path: string, token: string, body?: unknown): Promise<void> {
    for (;;) {
      const reply = await this.#service(method, path, { token, body, signal: this.#never }).catch(() => null);
      if (reply !== null && reply.status !== 429 && reply.status < 500) return;
      await pass(this.#time, again, this.#never);
    }
  }
}

function refused(status: number): Reply {
  return { status, headers: {}, json: {} };
}
