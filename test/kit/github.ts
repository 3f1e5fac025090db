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
import { createHash } from 'node:crypto';
import { systemClock } from '../../src/clock.ts';
import type { Clock } from '../../src/core/clock.ts';
import { jitFiles, PlayedRunner } from './github-player.ts';
import { type Answer, absent, type Credential, type RestCall, refusal, restOperations } from './github-rest.ts';
import { isOlder, parseJwt, runnerServices } from './github-runner.ts';
import { scaleSets } from './github-scale-set.ts';
import { checkAnswer, filled } from './github-schema.ts';
import { createWorld, type Runner, sharedKey } from './github-world.ts';

export type Permissions = Readonly<Record<string, 'read' | 'write' | 'admin'>>;

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

export interface Installation {
  readonly id: number;
  readonly account: string;
  permissions: Permissions;
  /** Null: all of the account. */
  repositories: readonly string[] | null;
  isSuspended: boolean;
}

interface Token {
  readonly credential: Credential;
  readonly createdAt: number;
  /** ms since the epoch. */
  readonly expiresAt: number;
  /** Whose quota it uses. */
  readonly payer: string;
}

/** GitHub's secondary limit: wait so many seconds. */
export const slowDown = (seconds: number, status: 403 | 429 = 403): Trouble => {
  const answer = refusal(status, 'You have exceeded a secondary rate limit.', { 'retry-after': String(seconds) });
  return { how: 'answer', after: false, answer };
};

const hour = 3_600_000;
const levels = ['read', 'write', 'admin'];

export type MemoryGitHub = ReturnType<typeof memoryGitHub>;

export function memoryGitHub(options: GitHubOptions = {}) {
  const { clock = systemClock, origin = 'https://github.test', enterpriseServer = null, ownKeys = false } = options;
  const {
    broken = (error: Error) =>
      queueMicrotask(() => {
        throw error;
      }),
  } = options;
  const api = `${origin}${enterpriseServer === null ? '' : '/api/v3'}`;
  const world = createWorld(clock, ownKeys);
  const faults: Faults = {
    ...{ unusableFor: 0, hiddenFor: 0, busyStays: false, offlineWhileBusy: false, oldestVersion: null, lostAcquire: null },
    noScaleSets: false,
  };
  const app = {
    ...{ id: 4_711, clientId: 'Iv23liExample', key: sharedKey() },
    /** As a person downloads it. */
    pem: sharedKey().export({ type: 'pkcs1', format: 'pem' }).toString(),
  };
  const installations: Installation[] = [];
  const tokens = new Map<string, Token>();
  const registrations = new Map<string, string>();
  const troubles: { readonly on: RegExp; left: number; readonly trouble: Trouble }[] = [];
  const calls: string[] = [];
  /** Per hour; the smallest that GitHub has for an installation. */
  const quota = { limit: 5_000, used: new Map<string, { count: number; until: number }>() };
  let made = 0;

  world.repository('acme/demo');
  world.group('Default');
  const enterprise = 'big';
  const registrationToken = (scope: string): string => {
    made += 1;
    registrations.set(`AREG${made}`, scope);
    return `AREG${made}`;
  };
  const services = runnerServices({ world, origin, site: origin, faults });
  const sets = scaleSets({ world, origin, faults, registrations, jitConfig: services.jitConfig });
  const { operations, sees } = restOperations({
    ...{ world, site: origin, enterprise, faults, registrationToken, jitConfig: services.jitConfig },
  });
  const routes = Object.keys({ ...operations, ...appCalls }).map((name) => {
    const [method, path = ''] = name.split(' ');
    return { name, method, pattern: new RegExp(`^${path.replaceAll(/\{(\w+)\}/g, '(?<$1>[^/]+)')}$`) };
  });

  const install = (account: string, permissions: Permissions): Installation => {
    const row = { id: 50 + installations.length, account, permissions, repositories: null, isSuspended: false };
    installations.push(row);
    return row;
  };
  install('acme', { metadata: 'read', actions: 'read', administration: 'write', organization_self_hosted_runners: 'write' });

  const addToken = (prefix: string, token: Token): string => {
    made += 1;
    const text = `${prefix}${String(made).padStart(36, '0')}`;
    tokens.set(text, token);
    return text;
  };

  /** What a call of an app itself, by its signed claims, gets to see; a refusal if the claims are no good. */
  const asApp = (bearer: string): Answer | null => {
    const now = clock.wall() / 1000;
    let jwt: ReturnType<typeof parseJwt>;
    try {
      jwt = parseJwt(bearer);
    } catch {
      return refusal(401, 'A JSON web token could not be decoded');
    }
    const { iss, iat, exp } = jwt.claims as { readonly iss: unknown; readonly iat: number; readonly exp: number };
    if (jwt.alg !== 'RS256' || !jwt.isOf(app.key)) return refusal(401, 'A JSON web token could not be decoded');
    if (![String(app.id), app.clientId].includes(String(iss))) return refusal(401, 'Integration not found');
    if (!Number.isInteger(iat) || iat > now)
      return refusal(401, "'Issued at' claim ('iat') must be an Integer representing the time that the assertion was issued");
    if (!Number.isInteger(exp) || exp <= now)
      return refusal(
        401,
        "'Expiration time' claim ('exp') must be a numeric value representing the future time at which the assertion expires",
      );
    return exp > now + 600 ? refusal(401, "'Expiration time' claim ('exp') is too far in the future") : null;
  };

  const installationView = (row: Installation) =>
    filled('installation', {
      ...{ id: row.id, app_id: app.id, client_id: app.clientId, app_slug: 'onejob', permissions: row.permissions },
      ...{ account: filled('simple-user', { login: row.account, type: 'Organization' }), target_type: 'Organization' },
      ...{ repository_selection: row.repositories === null ? 'all' : 'selected', suspended_at: null, events: [] },
    });

  const tokenOf = (row: Installation, body: Readonly<Record<string, unknown>>): Answer => {
    if (row.isSuspended) return refusal(403, 'This installation has been suspended');
    const asked = (body.permissions ?? row.permissions) as Permissions;
    const isMore = Object.entries(asked).some(
      ([name, level]) => levels.indexOf(level) > levels.indexOf(row.permissions[name] ?? ''),
    );
    if (isMore) return refusal(422, 'The permissions requested are not granted to this installation.');
    const some = body.repositories as string[] | undefined;
    const names = some?.map((name) => `${row.account}/${name}`) ?? row.repositories;
    if (names?.some((name) => !world.repositories.has(name.toLowerCase())))
      return refusal(422, 'There is at least one repository that does not exist or is not accessible to the parent installation.');
    const credential: Credential = { kind: 'installation', permissions: asked, account: row.account, repositories: names ?? null };
    const expiresAt = clock.wall() + hour;
    const token = addToken('ghs_', { credential, createdAt: clock.now(), expiresAt, payer: `installation ${row.id}` });
    const selection = { repository_selection: credential.repositories === null ? 'all' : 'selected' };
    return { status: 201, body: { token, expires_at: new Date(expiresAt).toISOString(), permissions: asked, ...selection } };
  };

  const ofApp = (name: string, { path, body }: Pick<RestCall, 'path' | 'body'>, bearer: string): Answer => {
    const refused = asApp(bearer);
    if (refused !== null) return refused;
    const found = installations.find(({ id, account }) =>
      path.installation_id === undefined ? account === (path.org ?? path.owner) : id === Number(path.installation_id),
    );
    if (found === undefined) return absent();
    return name.startsWith('POST') ? tokenOf(found, body) : { status: 200, body: installationView(found) };
  };

  /** Headers about the quota; null when it is used up. */
  const pay = (payer: string, costs: boolean): { readonly headers: Record<string, string>; readonly isOver: boolean } => {
    const now = clock.wall();
    const before = quota.used.get(payer);
    const entry = before === undefined || before.until <= now ? { count: 0, until: now + hour } : before;
    quota.used.set(payer, entry);
    const isOver = costs && entry.count >= quota.limit;
    if (costs && !isOver) entry.count += 1;
    const counts = { limit: quota.limit, remaining: Math.max(0, quota.limit - entry.count), used: entry.count };
    const all = { ...counts, reset: Math.ceil(entry.until / 1000), resource: 'core' };
    return {
      isOver,
      headers: Object.fromEntries(Object.entries(all).map(([key, value]) => [`x-ratelimit-${key}`, String(value)])),
    };
  };

  const rest = (call: RawCall, path: string): Answer => {
    const url = new URL(call.url);
    const bearer = /^(?:bearer|token) (.+)$/i.exec(call.headers.get('authorization') ?? '')?.[1] ?? '';
    const route = routes.find(({ method, pattern }) => method === call.method && pattern.test(path));
    if (route === undefined) throw new Error(`The stand-in has no ${call.method} ${path}.`);
    const { groups = {} } = route.pattern.exec(path) ?? {};
    const body = call.text === '' ? {} : (JSON.parse(call.text) as Record<string, unknown>);
    const pathValues = Object.fromEntries(Object.entries(groups).map(([key, value]) => [key, decodeURIComponent(value)]));
    const answer = ((): Answer => {
      if (route.name in appCalls && route.name !== 'GET /rate_limit') return ofApp(route.name, { path: pathValues, body }, bearer);
      const token = tokens.get(bearer);
      const isEarly = token?.credential.kind === 'installation' && clock.now() - token.createdAt < faults.unusableFor;
      if (token === undefined || token.expiresAt <= clock.wall() || isEarly) return refusal(401, 'Bad credentials');
      const { credential, payer } = token;
      const quotaNow = pay(payer, route.name !== 'GET /rate_limit');
      if (quotaNow.isOver) return refusal(403, `API rate limit exceeded for ${payer}.`, quotaNow.headers);
      const restCall = { path: pathValues, query: url.searchParams, body, url: `${url.origin}${url.pathname}`, credential };
      const said = ((): Answer => {
        if (route.name === 'GET /rate_limit') return { status: 200, body: rateView(quotaNow.headers) };
        const { needs, answer: work } = operations[route.name] ?? { needs: null, answer: absent };
        if (!sees(restCall)) return absent();
        if (!grants(credential, needs)) {
          const who = credential.kind === 'user' ? 'personal access token' : 'integration';
          return refusal(403, `Resource not accessible by ${who}`, { 'x-accepted-github-permissions': needs ?? '' });
        }
        return work(restCall);
      })();
      const tag = `W/"${createHash('sha256')
        .update(JSON.stringify(said.body) ?? '')
        .digest('hex')}"`;
      const isSame = call.method === 'GET' && said.status === 200 && call.headers.get('if-none-match') === tag;
      if (isSame) {
        const entry = quota.used.get(payer);
        // The known version costs nothing.
        if (entry !== undefined && route.name !== 'GET /rate_limit') entry.count -= 1;
        return { status: 304, headers: { ...pay(payer, false).headers, etag: tag } };
      }
      const etag = call.method === 'GET' && said.status === 200 ? { etag: tag } : {};
      return { ...said, headers: { ...quotaNow.headers, ...etag, ...said.headers } };
    })();
    checkAnswer(route.name, answer.status, answer.body);
    return answer;
  };

  const serve = (call: RawCall): Answer | Promise<Answer> => {
    const { pathname, searchParams } = new URL(call.url);
    const bearer = (call.headers.get('authorization') ?? '').replace(/^bearer /i, '');
    const isService = pathname.startsWith('/_services/') || pathname.startsWith('/_apis/');
    const registration = `${new URL(api).pathname.replace(/\/$/, '')}/actions/runner-registration`;
    if (!isService && pathname !== registration) return rest(call, pathname.slice(new URL(api).pathname.replace(/\/$/, '').length));
    const isJson = call.text.startsWith('{');
    const path = pathname.replace(/^\/_services\//, '').replace(/^\/_apis\//, '_apis/');
    const common = { method: call.method, path, query: searchParams, text: call.text, signal: call.signal };
    const of = { ...common, bearer, json: isJson ? (JSON.parse(call.text) as Record<string, unknown>) : {} };
    if (pathname === registration) return sets.register(call.headers.get('authorization') ?? '', of);
    const answer = services.answer(of) ?? sets.answer(of);
    if (answer === null) throw new Error(`The stand-in has no ${call.method} ${pathname}.`);
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
    made += 1;
    const version = enterpriseServer === null ? {} : { 'x-github-enterprise-version': enterpriseServer };
    const always = { date: new Date(clock.wall()).toUTCString(), 'x-github-request-id': `0A0B:${made}`, ...version };
    return { ...said, headers: { ...always, ...said.headers } };
  };

  const fetchHere: typeof fetch = async (input, init) => {
    const request = input instanceof Request ? input : null;
    const { signal = request?.signal ?? null, method = request?.method ?? 'GET' } = init ?? {};
    const given = init?.body === undefined || init.body === null ? null : String(init.body);
    const call: RawCall = {
      ...{ method, url: request?.url ?? String(input), headers: new Headers(init?.headers ?? request?.headers ?? {}) },
      ...{ text: given ?? (request === null ? '' : await request.text()), signal: signal ?? null },
    };
    signal?.throwIfAborted();
    const outcome = await (signal ? Promise.race([handle(call), aborted(signal)]) : handle(call));
    signal?.throwIfAborted();
    if (typeof outcome !== 'string') return toResponse(outcome);
    const code = outcome === 'refused' ? 'ECONNREFUSED' : 'ECONNRESET';
    throw new TypeError('fetch failed', { cause: Object.assign(new Error(outcome), { code }) });
  };

  return {
    ...{ fetch: fetchHere, handle, api, origin, enterprise, app, installations, install, faults, quota, calls },
    ...{
      repository: world.repository,
      people: world.people,
      group: world.group,
      groups: world.groups,
      jobs: world.jobs,
      runners: world.runners,
    },
    ...{ queue: world.queue, cancel: world.cancel, rerun: world.rerun, approve: world.approve, sets: sets.rows },
    /** A person's token; null: it may do everything, the enterprise's runners too. */
    userToken: (permissions: Permissions | null = null): string =>
      addToken('ghp_', {
        credential: { kind: 'user', permissions, account: null, repositories: null },
        ...{ createdAt: clock.now(), expiresAt: Number.POSITIVE_INFINITY, payer: 'user' },
      }),
    /** Someone takes all tokens back. */
    revokeTokens: (): void => tokens.clear(),
    /** The next `times` calls whose `METHOD /path` matches `on` end like this. Returns what ends it earlier. */
    fault(on: RegExp, trouble: Trouble, times = 1): () => void {
      const rule = { on, left: times, trouble };
      troubles.push(rule);
      return () => {
        rule.left = 0;
      };
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

/** Calls that the app itself makes, and the one that costs nothing. */
const appCalls: Readonly<Record<string, true>> = {
  'POST /app/installations/{installation_id}/access_tokens': true,
  'GET /orgs/{org}/installation': true,
  'GET /repos/{owner}/{repo}/installation': true,
  'GET /rate_limit': true,
};

function rateView(headers: Readonly<Record<string, string>>) {
  const [limit, remaining, reset, used] = ['limit', 'remaining', 'reset', 'used'].map((key) =>
    Number(headers[`x-ratelimit-${key}`]),
  );
  const core = { limit, remaining, reset, used };
  return { resources: { core, search: core }, rate: core };
}

/** `needs` as `actions=read`. */
function grants({ kind, permissions }: Credential, needs: string | null): boolean {
  const [name = '', level = ''] = needs?.split('=') ?? [];
  if (name === 'enterprise') return kind === 'user' && permissions === null;
  return needs === null || permissions === null || levels.indexOf(permissions[name] ?? '') >= levels.indexOf(level);
}

export function toResponse({ status, body, headers = {} }: Answer): Response {
  const text = body === undefined ? null : JSON.stringify(body);
  return new Response(text, {
    status,
    headers: { ...(text !== null && { 'content-type': 'application/json; charset=utf-8' }), ...headers },
  });
}
