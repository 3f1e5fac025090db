/**
 * GitHub in memory: the REST API about runners and jobs, what runners speak, and scale sets. Each REST answer is checked against
 * GitHub's own description, and one that does not fit fails the test. How it behaves beyond that was seen live by others, or is read
 * from clients' sources; nothing here has been compared with the real service.
 *
 *     const github = memoryGitHub({ clock });
 *     const client = createClient({ url: github.api, fetch: github.fetch });
 *     const job = github.queue({ labels: ['gpu'] });
 *     const runner = github.connect(encodedJitConfig);
 *     runner.take();
 *     runner.finish('success');
 */
import { createHash, createHmac, randomUUID } from 'node:crypto';
import type { Clock } from '../../src/core/clock.ts';
import { systemClock } from '../../src/system/system-clock.ts';
import { appCalls, createAccess, grants, rateView } from './github-access.ts';
import { jitFiles, PlayedRunner } from './github-player.ts';
import { type Answer, absent, type RestCall, refusal, restOperations } from './github-rest.ts';
import { isOlder, runnerServices, type ServiceCall } from './github-runner.ts';
import { scaleSets } from './github-scale-set.ts';
import { checkAnswer, checkJobEvent } from './github-schema.ts';
import { createWorld, type Job, type Runner } from './github-world.ts';

export interface GitHubOptions {
  readonly clock?: Clock;
  /** Where people and programs reach it. */
  readonly origin?: string;
  /** Version of a GitHub Enterprise Server, which has its API under `/api/v3`; null: github.com. */
  readonly enterpriseServer?: string | null;
  /** A key for each runner, not one for all: costs 100 ms each. */
  readonly ownKeys?: boolean;
  /** What to do about an answer that GitHub would never give, besides throwing it; default: fails the test run. */
  readonly broken?: (error: Error) => void;
}

export interface Faults {
  /** How long after its making an installation token is still refused with 401, ms; the real service needs up to 3 s. */
  unusableFor: number;
  /** How long lists do not show a new runner, ms. */
  hiddenFor: number;
  /** Each DELETE of a runner answers that it is still running a job. */
  busyStays: boolean;
  /** Runners that execute a job are `offline` in lists. */
  offlineWhileBusy: boolean;
  /** Older runners get no messages. */
  oldestVersion: string | null;
  /** What the next acquisitions find: the job was cancelled meanwhile, and the runner stays; or its registration goes with it. */
  lostAcquire: 'idle' | 'gone' | null;
  /** Creating a scale set is refused, as it was for others on free plans. */
  noScaleSets: boolean;
}

/** What becomes of a call: nothing arrives; an answer is lost or never comes, `after` the work is done or without it. */
export type Trouble =
  | { readonly how: 'refused' }
  | { readonly how: 'lost' | 'silent'; readonly after: boolean }
  | { readonly how: 'answer'; readonly after: boolean; readonly answer: Answer };

/** A call's end: an answer, or the way in which the connection broke. */
export type Outcome = Answer | 'refused' | 'reset';

export interface RawCall {
  readonly method: string;
  readonly url: string;
  readonly headers: Headers;
  readonly text: string;
  readonly signal: AbortSignal | null;
}

/** GitHub's secondary limit: wait so many seconds. */
export const slowDown = (seconds: number, status: 403 | 429 = 403): Trouble => {
  const answer = refusal(status, 'You have exceeded a secondary rate limit.', { 'retry-after': String(seconds) });
  return { how: 'answer', after: false, answer };
};

/** Fails the test run, whoever catches the error that the caller gets. */
const failRun = (error: Error): void =>
  queueMicrotask(() => {
    throw error;
  });
export type MemoryGitHub = ReturnType<typeof memoryGitHub>;

export function memoryGitHub(options: GitHubOptions = {}) {
  const {
    clock = systemClock,
    origin = 'https://github.test',
    enterpriseServer = null,
    ownKeys = false,
    broken = failRun,
  } = options;
  const base = enterpriseServer === null ? '' : '/api/v3';
  const world = createWorld(clock, ownKeys);
  const faults: Faults = {
    unusableFor: 0,
    hiddenFor: 0,
    busyStays: false,
    offlineWhileBusy: false,
    oldestVersion: null,
    lostAcquire: null,
    noScaleSets: false,
  };
  const troubles: { readonly on: RegExp; left: number; readonly trouble: Trouble }[] = [];
  const calls: string[] = [];
  const registrations = new Map<string, string>();
  const enterprise = 'big';

  world.repository('acme/demo');
  world.group('Default');
  const access = createAccess(clock, world, faults);
  const registrationToken = (scope: string): string => {
    const token = `AREG${registrations.size + 1}`;
    registrations.set(token, scope);
    return token;
  };
  const services = runnerServices({ world, origin, faults });
  const { jitConfig } = services;
  const sets = scaleSets({ world, origin, faults, registrations, jitConfig });
  const { operations, sees, jobEvent } = restOperations({ world, site: origin, enterprise, faults, registrationToken, jitConfig });
  const routes = [...Object.keys(operations), ...appCalls, 'GET /rate_limit'].map((name) => {
    const [method, path = ''] = name.split(' ');
    return { name, method, pattern: new RegExp(`^${path.replaceAll(/\{(\w+)\}/g, '(?<$1>[^/]+)')}$`) };
  });

  const allowed = (name: string, call: RestCall): Answer => {
    const { needs, answer } = operations[name] ?? { needs: null, answer: absent };
    if (!sees(call)) return absent();
    if (grants(call.credential, needs)) return answer(call);
    const who = call.credential.kind === 'user' ? 'personal access token' : 'integration';
    return refusal(403, `Resource not accessible by ${who}`, { 'x-accepted-github-permissions': needs ?? '' });
  };
  const paid = (name: string, call: Omit<RestCall, 'credential'>, bearer: string, known: string | null): Answer => {
    const token = access.tokenAt(bearer);
    if (token === null) return refusal(401, 'Bad credentials');
    const { credential, payer } = token;
    if (name === 'GET /rate_limit') return { status: 200, body: rateView(access.pay(payer, 0).headers) };
    const { isOver, headers } = access.pay(payer, 1);
    if (isOver) return refusal(403, `API rate limit exceeded for ${payer}.`, headers);
    const said = allowed(name, { ...call, credential });
    if (!name.startsWith('GET') || said.status !== 200) return { ...said, headers: { ...headers, ...said.headers } };
    const etag = `W/"${createHash('sha256').update(JSON.stringify(said.body)).digest('hex')}"`;
    // What the caller has already costs nothing.
    if (known === etag) return { status: 304, headers: { ...access.pay(payer, -1).headers, etag } };
    return { ...said, headers: { ...headers, etag, ...said.headers } };
  };
  const rest = ({ method, url, text, headers }: RawCall, path: string): Answer => {
    const route = routes.find((one) => one.method === method && one.pattern.test(path));
    if (route === undefined) throw new Error(`The stand-in has no ${method} ${path}.`);
    const { origin, pathname, searchParams: query } = new URL(url);
    const names = Object.entries(route.pattern.exec(path)?.groups ?? {}).map(([key, value]) => [key, decodeURIComponent(value)]);
    const call = { path: Object.fromEntries(names), query, body: text === '' ? {} : JSON.parse(text), url: `${origin}${pathname}` };
    const bearer = /^(?:bearer|token) (.+)$/i.exec(headers.get('authorization') ?? '')?.[1] ?? '';
    const isApp = appCalls.includes(route.name);
    const answer = isApp ? access.ofApp(route.name, call, bearer) : paid(route.name, call, bearer, headers.get('if-none-match'));
    checkAnswer(route.name, answer.status, answer.body);
    return answer;
  };

  const serve = (call: RawCall): Answer | Promise<Answer> => {
    const { method, text, signal } = call;
    const { pathname, searchParams: query } = new URL(call.url);
    const authorization = call.headers.get('authorization') ?? '';
    const isRegistration = pathname === `${base}/actions/runner-registration`;
    if (!/^\/_(?:services|apis)\//.test(pathname) && !isRegistration) return rest(call, pathname.slice(base.length));
    const json = text.startsWith('{') ? JSON.parse(text) : {};
    const path = pathname.replace(/^\/(?:_services\/)?/, '');
    const of: ServiceCall = { method, path, query, text, json, signal, bearer: authorization.replace(/^bearer /i, '') };
    if (isRegistration) return sets.register(authorization, of);
    const answer = services.answer(of) ?? sets.answer(of);
    if (answer === null) throw new Error(`The stand-in has no ${method} ${pathname}.`);
    return answer;
  };

  const aborted = (signal: AbortSignal | null): Promise<Outcome> =>
    new Promise((resolve) => {
      if (signal?.aborted) resolve('reset');
      signal?.addEventListener('abort', () => resolve('reset'), { once: true });
    });

  /** One call from its first byte to its last. */
  const handle = async (call: RawCall): Promise<Outcome> => {
    const name = `${call.method} ${new URL(call.url).pathname}`;
    calls.push(name);
    const rule = troubles.find(({ on, left }) => left > 0 && on.test(name));
    if (rule !== undefined) rule.left -= 1;
    const trouble = rule?.trouble ?? null;
    if (trouble?.how === 'refused') return 'refused';
    let answer: Answer | null = null;
    try {
      if (trouble === null || trouble.after) answer = await serve(call);
    } catch (error) {
      broken(error as Error);
      throw error;
    }
    if (trouble?.how === 'silent') return aborted(call.signal);
    if (trouble?.how === 'lost') return 'reset';
    const said = trouble?.how === 'answer' ? trouble.answer : (answer ?? absent());
    const version = enterpriseServer === null ? {} : { 'x-github-enterprise-version': enterpriseServer };
    const always = { date: new Date(clock.wall()).toUTCString(), 'x-github-request-id': `0A0B:${calls.length}`, ...version };
    return { ...said, headers: { ...always, ...said.headers } };
  };

  const fetchHere: typeof fetch = async (input, init) => {
    const request = input instanceof Request ? input : null;
    const { signal = request?.signal ?? null, method = request?.method ?? 'GET' } = init ?? {};
    const given = init?.body === undefined || init.body === null ? null : String(init.body);
    const call: RawCall = {
      method,
      url: request?.url ?? String(input),
      headers: new Headers(init?.headers ?? request?.headers ?? {}),
      text: given ?? (request === null ? '' : await request.text()),
      signal: signal ?? null,
    };
    signal?.throwIfAborted();
    const outcome = await (signal ? Promise.race([handle(call), aborted(signal)]) : handle(call));
    signal?.throwIfAborted();
    if (typeof outcome !== 'string') return toResponse(outcome);
    const code = outcome === 'refused' ? 'ECONNREFUSED' : 'ECONNRESET';
    throw new TypeError('fetch failed', { cause: Object.assign(new Error(outcome), { code }) });
  };

  const { app, installations, install, quota, userToken, revokeTokens } = access;
  const { repositories, people, repository, group, groups, jobs, runners, queue, cancel, rerun, approve, watch } = world;
  return {
    fetch: fetchHere,
    handle,
    origin,
    api: `${origin}${base}`,
    enterprise,
    calls,
    faults,
    app,
    installations,
    install,
    quota,
    userToken,
    revokeTokens,
    repositories,
    people,
    repository,
    group,
    groups,
    jobs,
    runners,
    sets: sets.rows,
    queue,
    cancel,
    rerun,
    approve,
    watch,
    /** The next `times` calls whose `METHOD /path` matches `on` end like this. Returns what ends it earlier. */
    fault(on: RegExp, trouble: Trouble, times = 1): () => void {
      const rule = { on, left: times, trouble };
      troubles.push(rule);
      return () => {
        rule.left = 0;
      };
    },
    /** A webhook about a job as it is now, signed with the secret. `delivery`: the same for the same one. */
    webhook(action: 'queued' | 'waiting' | 'in_progress' | 'completed', job: Job, secret: string) {
      const event = jobEvent(job, action);
      checkJobEvent(action, event);
      return signedWebhook('workflow_job', JSON.stringify(event), secret);
    },
    /** Plays the process that was started with this JIT configuration, or a row's. @throws Error when its registration is gone */
    connect(of: string | Runner, version = '2.336.0'): PlayedRunner {
      const id = typeof of === 'string' ? Number(jitFiles(of)['.runner']?.AgentId) : of.id;
      const row = world.runners.get(id);
      if (row === undefined) throw new Error(`Runner ${id} is not registered: GitHub answers "invalid_client".`);
      if (faults.oldestVersion !== null && isOlder(version, faults.oldestVersion))
        throw new Error(`Runner version v${version} is deprecated and cannot receive messages.`);
      return new PlayedRunner(world, row, () => faults.lostAcquire, version);
    },
  };
}

/** A webhook as GitHub sends it (docs, "Validating webhook deliveries"). */
export function signedWebhook(event: string, body: string, secret: string) {
  const signature = createHmac('sha256', secret).update(body).digest('hex');
  const headers = {
    'content-type': 'application/json',
    'x-github-event': event,
    'x-github-delivery': randomUUID(),
    'x-hub-signature-256': `sha256=${signature}`,
  };
  return { method: 'POST', headers, body };
}

function toResponse({ status, body, headers = {} }: Answer): Response {
  const text = body === undefined ? null : JSON.stringify(body);
  return new Response(text, {
    status,
    headers: { ...(text !== null && { 'content-type': 'application/json; charset=utf-8' }), ...headers },
  });
}
