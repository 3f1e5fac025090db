/** For tests: a small service of agents and jobs, without a network and without time of its own. */
import { gunzipSync } from 'node:zlib';
import { OnejobError } from '../../../errors.ts';
import type { Called, Upstream } from './upstream.ts';

export interface ServiceAgent {
  readonly id: string;
  readonly name: string;
  readonly metaData: readonly string[];
  readonly registered: Readonly<Record<string, unknown>>;
  state: 'registered' | 'connected' | 'gone';
  beats: number;
  pings: number;
}

export interface ServiceJob {
  readonly id: string;
  state: 'scheduled' | 'assigned' | 'accepted' | 'running' | 'finished' | 'lost' | 'canceling';
  agent: string | null;
  readonly env: Readonly<Record<string, string>>;
  log: string;
  /** Body of its `finish`. */
  finish: Readonly<Record<string, unknown>> | null;
  starts: number;
}

export interface Request {
  readonly method: string;
  /** Without a query, ids decoded. */
  readonly path: string;
  readonly query: URLSearchParams;
  readonly token: string;
  readonly body: unknown;
}

export type Fault = number | 'cut' | 'cut after' | null;

export interface TestService {
  readonly agents: Map<string, ServiceAgent>;
  readonly jobs: Map<string, ServiceJob>;
  /** As `POST ping`. */
  readonly seen: string[];
  /** What it answers instead; `cut after`: it is done, and the answer is lost. */
  fault: (request: Request) => Fault;
  /** ms that its faults ask to be left alone for; null: they do not say. */
  retryAfter: number | null;
  /** More of the next answers to ping. */
  pingMore: Readonly<Record<string, unknown>>;
  intervals: { ping: number; status: number; heartbeat: number };
  token: string;
  add(id: string, env?: Readonly<Record<string, string>>): ServiceJob;
  /** Forgets the agent: its session is worth nothing any more. */
  kick(agent: ServiceAgent): void;
  answer(request: Request): { status: number; body: unknown } | 'cut';
  /** It, reached without a network. */
  readonly upstream: Upstream;
}

export const serviceToken = 'bkct_registration-canary';

export function testService(): TestService {
  const agents = new Map<string, ServiceAgent>();
  const jobs = new Map<string, ServiceJob>();
  const seen: string[] = [];
  let count = 0;

  const no = (status: number, message: string) => ({ status, body: { message } });
  const yes = (body: unknown = {}) => ({ status: 200, body });

  const ofJob = (job: ServiceJob, verb: string, { method, body, query }: Request): { status: number; body: unknown } => {
    if (verb === '' && method === 'GET') return yes({ state: job.state });
    if (verb === 'start') {
      if (job.state !== 'accepted' && job.state !== 'canceling') return no(422, 'cannot start');
      if (job.state === 'accepted') job.state = 'running';
      job.starts += 1;
      return yes();
    }
    if (verb === 'chunks') {
      const text = gunzipSync(body as Uint8Array).toString();
      const offset = Number(query.get('offset'));
      job.log = job.log.slice(0, offset) + text + job.log.slice(offset + text.length);
      return yes();
    }
    if (verb === 'finish') {
      if (job.state !== 'running' && job.state !== 'canceling') return no(422, 'not running');
      job.state = 'finished';
      job.finish = body as Record<string, unknown>;
      return yes();
    }
    return no(404, 'no such call');
  };

  const serve = (request: Request): { status: number; body: unknown } => {
    const { path, token } = request;
    if (path === 'register') {
      if (token !== service.token) return no(401, 'invalid token');
      const body = request.body as { name: string; meta_data: string[] };
      count += 1;
      const session = `bkaa_session-canary-${count}`;
      agents.set(session, {
        ...{ id: `agent-${count}`, name: body.name, metaData: body.meta_data, registered: body },
        ...{ state: 'registered', beats: 0, pings: 0 },
      });
      const { ping, status, heartbeat } = service.intervals;
      const intervals = { ping_interval: ping, job_status_interval: status, heartbeat_interval: heartbeat };
      return yes({ id: `agent-${count}`, name: body.name, access_token: session, endpoint: '', ...intervals });
    }
    const [, id = '', verb = ''] = /^jobs\/([^/]+)\/?([a-z]*)$/.exec(path) ?? [];
    const job = jobs.get(id);
    const byJob = job !== undefined && token === `bkaj_job-canary-${id}`;
    if (byJob) {
      if (job.state === 'finished' || job.state === 'lost') return no(401, 'the job is over');
      return ofJob(job, verb, request);
    }
    const agent = agents.get(token);
    if (agent === undefined || agent.state === 'gone') return no(401, 'no such agent');
    if (job !== undefined && verb === 'accept') {
      if (job.state !== 'assigned' || job.agent !== token) return no(422, 'not yours to accept');
      job.state = 'accepted';
      return yes({ id, env: job.env, token: `bkaj_job-canary-${id}`, chunks_max_size_bytes: 102400, step: { command: 'true' } });
    }
    if (job !== undefined) return job.agent === token ? ofJob(job, verb, request) : no(403, 'not yours');
    switch (path) {
      case 'connect':
        agent.state = 'connected';
        return yes();
      case 'heartbeat':
        agent.beats += 1;
        return yes({ sent_at: '', received_at: '' });
      case 'ping': {
        agent.pings += 1;
        if (agent.state !== 'connected') return no(422, 'not connected');
        const own = [...jobs.values()].find((each) => each.agent === token && each.state === 'assigned');
        const isBusy = [...jobs.values()].some((each) => each.agent === token && ['accepted', 'running'].includes(each.state));
        const next = own ?? (isBusy ? undefined : [...jobs.values()].find(({ state }) => state === 'scheduled'));
        if (next === undefined || service.pingMore.action !== undefined) return yes(service.pingMore);
        Object.assign(next, { state: 'assigned', agent: token });
        return yes({ ...service.pingMore, job: { id: next.id } });
      }
      case 'disconnect':
        agent.state = 'gone';
        for (const each of jobs.values()) {
          if (each.agent !== token) continue;
          if (each.state === 'assigned') Object.assign(each, { state: 'scheduled', agent: null });
          else if (each.state !== 'finished') each.state = 'lost';
        }
        return yes();
      default:
        return no(404, 'no such call');
    }
  };

  const service: TestService = {
    agents,
    jobs,
    seen,
    fault: () => null,
    retryAfter: null,
    pingMore: {},
    intervals: { ping: 1, status: 1, heartbeat: 5 },
    token: serviceToken,
    add(id, env = {}) {
      const job: ServiceJob = { id, state: 'scheduled', agent: null, env, log: '', finish: null, starts: 0 };
      jobs.set(id, job);
      return job;
    },
    kick(agent) {
      agent.state = 'gone';
    },
    answer(request) {
      seen.push(`${request.method} ${request.path}`);
      const fault = service.fault(request);
      if (fault === 'cut') return 'cut';
      if (typeof fault === 'number') return no(fault, 'a fault');
      const answer = serve(request);
      return fault === 'cut after' ? 'cut' : answer;
    },
    upstream: {
      async call({ method, path, token, body, gzip, doing }, signal): Promise<Called> {
        await new Promise((resolve) => setImmediate(resolve));
        signal.throwIfAborted();
        const url = new URL(path, 'http://service/');
        const answer = service.answer({
          method,
          path: url.pathname.slice(1).split('/').map(decodeURIComponent).join('/'),
          query: url.searchParams,
          token,
          body: gzip ?? body,
        });
        await new Promise((resolve) => setImmediate(resolve));
        signal.throwIfAborted();
        if (answer !== 'cut' && answer.status < 300) return { ok: true, headers: {}, ...answer };
        const status = answer === 'cut' ? null : answer.status;
        const error = new OnejobError('E_CI_UNREACHABLE', `Cannot ${doing}: ${status ?? 'cut'}.`, { retry: true });
        const retry = status === null || status === 429 || status >= 500;
        return {
          ok: false,
          status,
          body: answer === 'cut' ? null : answer.body,
          retry,
          retryAfter: retry ? service.retryAfter : null,
          error,
        };
      },
      close() {},
    },
  };
  return service;
}
