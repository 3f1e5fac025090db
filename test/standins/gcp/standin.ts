/**
 * A Compute Engine of one project: the calls that onejob makes, and what exists behind them in time. As a `fetch` for tests in virtual
 * time, and on a port for real clients. What it answers is from the discovery document of Compute v1 and Google's guides; no real cloud
 * was asked.
 */
import type { Clock } from '../../../src/core/clock.ts';
import { onPort } from '../kit/port.ts';
import { type Catalog, catalog as usualCatalog } from './catalog.ts';
import { type Failure, type Faults, good, type Where } from './faults.ts';
import { wantedOf } from './insert-body.ts';
import { createWorld, type Hooks, type Machine, type Times } from './machines.ts';
import { metadataOf } from './metadata.ts';
import { bodyOf, refused, type Said } from './refused.ts';
import { type Asked, createRoutes } from './routes.ts';
import { createServiceAccount } from './sign-in.ts';

export interface GcpOptions {
  readonly clock: Clock;
  readonly project?: string;
  readonly catalog?: Catalog;
  readonly times?: Partial<Times>;
  readonly hooks?: Hooks;
  /** Whether calls need a token; official clients may have none. */
  readonly asksForToken?: boolean;
  /** Resources on a page of a list, at most. */
  readonly pageSize?: number;
}

interface Incoming {
  readonly method: string;
  readonly url: string;
  readonly headers: Headers;
  readonly body: string;
  readonly signal?: AbortSignal | null;
}

export type GcpStandin = ReturnType<typeof createGcp>;

export function createGcp({ clock, project = 'acme-ci', asksForToken = true, pageSize = 500, ...options }: GcpOptions) {
  const catalog = options.catalog ?? usualCatalog();
  const faults: Faults = { ...good };
  const now = (): number => clock.wall() + faults.skew;
  const times: Times = { start: 20_000, stop: 30_000, notice: 30_000, ...options.times };
  const world = createWorld({ clock, times, hooks: options.hooks ?? {}, faults, now });
  const account = createServiceAccount(project);
  /** Tokens, each with its end. */
  const tokens = new Map<string, number>();
  const requests: (Asked & { answer?: Said })[] = [];
  const used = new Set<string>();
  const answerOf = createRoutes({ project, catalog, faults, times, world, pageSize, used, now });
  const failures: { readonly where: Where; readonly how: Failure; left: number; skip: number }[] = [];
  let origin = 'http://localhost';

  function signIn(form: URLSearchParams): Said {
    const why = account.problem(form, origin, now());
    if (why !== null) return { status: 400, json: { error: 'invalid_grant', error_description: why } };
    const token = `ya29.stand-in-${tokens.size + 1}-${'x'.repeat(40)}`;
    tokens.set(token, now() + faults.tokenLife);
    return { status: 200, json: { access_token: token, expires_in: Math.round(faults.tokenLife / 1000), token_type: 'Bearer' } };
  }

  function answer(asked: Asked, headers: Headers): Said {
    const { method, url, body } = asked;
    if (method === 'POST' && url.pathname === '/token') return signIn(new URLSearchParams(String(body)));
    const machine = (name: string) => [...world.machines.values()].find((one) => one.name === name);
    const metadata = metadataOf(url.pathname, headers.get('Metadata-Flavor'), { project, machine, issue });
    if (metadata !== null) return metadata;
    const given = /^Bearer (.+)$/.exec(headers.get('Authorization') ?? '')?.[1] ?? '';
    if (asksForToken && !((tokens.get(given) ?? 0) > now()))
      return refused(401, 'authError', 'Request had invalid authentication credentials. Expected OAuth 2 access token.');
    const api = url.pathname.startsWith('/v3/') ? 'cloudresourcemanager' : 'compute';
    if (faults.disabled.includes(api)) {
      const message = `${api} API has not been used in project ${project} before or it is disabled.`;
      return refused(403, 'accessNotConfigured', message, [
        { '@type': 'type.googleapis.com/google.rpc.ErrorInfo', reason: 'SERVICE_DISABLED' },
      ]);
    }
    return answerOf(asked);
  }

  function failureOf({ method, url }: Asked): Failure | null {
    for (const one of failures) {
      if (one.left === 0 || (one.where.method ?? method) !== method || !one.where.path.test(url.pathname + url.search)) continue;
      if (one.skip > 0) {
        one.skip -= 1;
        continue;
      }
      one.left -= 1;
      return one.how;
    }
    return null;
  }

  const network = (code: string): TypeError => new TypeError('fetch failed', { cause: Object.assign(new Error(code), { code }) });

  async function handle({ method, url: address, headers, body, signal }: Incoming): Promise<Said> {
    const url = new URL(address, origin);
    const isJson = (headers.get('Content-Type') ?? '').includes('json');
    const version = headers.get('X-Goog-Api-Version');
    const asked: Asked & { answer?: Said } = { method, url, version, body: isJson && body !== '' ? JSON.parse(body) : body };
    requests.push(asked);
    const failure = failureOf(asked);
    if (failure === 'cut') throw network('ECONNRESET');
    if (failure === 'silent') {
      const gone = Promise.withResolvers<never>();
      signal?.addEventListener('abort', () => gone.reject(signal.reason), { once: true });
      return gone.promise;
    }
    if (failure !== null && failure !== 'lost') {
      const { status, reason = 'backendError', message = 'Something is wrong.' } = failure;
      return refused(status, reason, message);
    }
    const said = answer(asked, headers);
    asked.answer = said;
    if (failure === 'lost') throw network('ECONNRESET');
    return said;
  }

  function issue(): string {
    const token = `ya29.issued-${tokens.size + 1}-${'x'.repeat(40)}`;
    tokens.set(token, now() + faults.tokenLife);
    return token;
  }

  const dated = () => ({ 'content-type': 'application/json; charset=UTF-8', date: new Date(now()).toUTCString() });

  const standinFetch: typeof fetch = async (input, init) => {
    const incoming = {
      method: init?.method ?? 'GET',
      url: String(input),
      headers: new Headers(init?.headers),
      signal: init?.signal ?? null,
      body: init?.body == null ? '' : String(init.body),
    };
    const said = await handle(incoming);
    return new Response(bodyOf(said), { status: said.status, headers: dated() });
  };

  return {
    fetch: standinFetch,
    project,
    catalog,
    faults,
    account,
    requests,
    now,
    issue,
    /** Permissions that requests needed so far. */
    used: used as ReadonlySet<string>,
    machines: (): readonly Machine[] => [...world.machines.values()],
    disks: () => [...world.disks.values()],
    addresses: () => [...world.addresses.values()],
    guestShutdown: world.guestShutdown,
    preempt: world.preempt,
    keepAddress: world.keepAddress,
    /** Makes an instance that is not onejob's, or only looks like it. */
    foreign: (zone: string, body: unknown): Machine => world.make(zone, wantedOf(body, zone, catalog)),
    /** Calls fail so, until what it returns is called. */
    fail(where: Where, how: Failure): () => void {
      const one = { where, how, left: where.times ?? Number.POSITIVE_INFINITY, skip: where.after ?? 0 };
      failures.push(one);
      return () => {
        one.left = 0;
      };
    },
    /** All is well again. */
    clearFaults(): void {
      failures.length = 0;
      Object.assign(faults, good);
    },
    /** No token is valid any more. */
    revoke: (): void => tokens.clear(),
    keyFile: (): string => account.keyFile(origin),
    get origin() {
      return origin;
    },
    /** On a port of this address, for clients. */
    async serve(address = '127.0.0.1'): Promise<AsyncDisposable> {
      const port = await onPort(standinFetch, { address });
      origin = port.url;
      return port;
    },
  };
}
