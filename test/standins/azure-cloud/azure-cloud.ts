/**
 * A stand-in for Azure: Azure Resource Manager, Entra's tokens, the metadata service, the price list and consoles. As a `fetch` for
 * tests in virtual time, and on a port, with TLS for real clients, which send no token without it.
 */
import { randomBytes } from 'node:crypto';
import type { Clock } from '../../../src/core/clock.ts';
import { jsonOf } from '../../../src/system/json.ts';
import { systemClock } from '../../../src/system/system-clock.ts';
import { onPort } from '../kit/port.ts';
import { type Asked, type Facts, failure, type Reply, routes, type Size } from './routes.ts';
import { createWorld, location, subscription, type Timing } from './world.ts';

export { location, subscription };
export const client = '5b1e2a34-7c1f-4d0e-9a2b-0c6d8e1f2a3b';
export const tenant = 'acme.onmicrosoft.com';
export const clientSecret = 'Q~the-secret-of-the-application';
const shared = `/subscriptions/${subscription}/resourceGroups/onejob-shared/providers`;
export const subnet = `${shared}/Microsoft.Network/virtualNetworks/onejob/subnets/machines`;
export const securityGroup = `${shared}/Microsoft.Network/networkSecurityGroups/onejob`;
export const ownImage = `${shared}/Microsoft.Compute/images/gpu`;
export const galleryImage = `${shared}/Microsoft.Compute/galleries/lab/images/gpu`;
export const galleryVersion = `${galleryImage}/versions/1.2.3`;

const sizes: Readonly<Record<string, Size>> = {
  Standard_NC4as_T4_v3: { family: 'Standard NCASv3_T4 Family', cores: 4 },
  Standard_NC8as_T4_v3: { family: 'Standard NCASv3_T4 Family', cores: 8 },
  Standard_NV36ads_A10_v5: { family: 'StandardNVADSA10v5Family', cores: 36 },
  Standard_NC24ads_A100_v4: { family: 'StandardNCADSA100v4Family', cores: 24, isRestricted: true },
  Standard_D2s_v5: { family: 'standardDSv5Family', cores: 2 },
};

/** What happens to the next requests that fit, instead of an answer. */
export interface Fault {
  /** Fits `METHOD /path`. */
  readonly at: RegExp;
  /** `lost`: done, but nobody hears of it. `reset`: not done. `silent`: never answered. */
  readonly how:
    | 'lost'
    | 'reset'
    | 'silent'
    | {
        readonly status: number;
        readonly code: string;
        readonly message?: string;
        /** Whether it is carried out all the same. */
        readonly isDone?: boolean;
        /** Instead of an error. */
        readonly json?: unknown;
        readonly headers?: Readonly<Record<string, string>>;
      };
  readonly times?: number;
}

export interface AzureCloudOptions {
  readonly clock?: Clock;
  readonly timing?: Partial<Timing>;
  /** s that clients are asked to wait between two looks. Default 5. */
  readonly retryAfter?: number;
}

interface Request {
  readonly method: string;
  readonly url: URL;
  readonly headers: Headers;
  readonly body: Buffer;
  readonly signal?: AbortSignal | null | undefined;
}

export type AzureCloud = ReturnType<typeof azureCloud>;

export function azureCloud({ clock = systemClock, timing, retryAfter = 5 }: AzureCloudOptions = {}) {
  const world = createWorld({ clock, ...(timing !== undefined && { timing }) });
  /** Each call: method and path, and what it was answered. */
  const calls: string[] = [];
  /** What was sent, with all secrets. */
  const sent: string[] = [];
  /** Permissions that calls asked for. */
  const used = new Set<string>();
  const tokens = new Map<string, number>();
  const faults: (Fault & { left: number })[] = [];
  const quotas = new Map([
    ['cores', { title: 'Total Regional vCPUs', limit: 100 }],
    ['lowPriorityCores', { title: 'Total Regional Spot vCPUs', limit: 100 }],
    ...Object.values(sizes).map(({ family }) => [family, { title: `${family} vCPUs`, limit: 100 }] as const),
  ]);
  const consoles = new Map<string, string>();
  let granted: readonly string[] = ['*'];
  let pageSize = 100;
  let origin = 'https://management.azure.com';
  let isLocked = false;
  let networkLocation = location;
  /** USD per hour on demand; null: the price list does not answer. */
  let price: number | null = 0.6;

  const facts: Facts = {
    world,
    retryAfter,
    quotas,
    consoles,
    sizes: new Map(Object.entries(sizes)),
    origin: () => origin,
    pageSize: () => pageSize,
    granted: () => granted,
    registered: new Set(['Microsoft.Compute', 'Microsoft.Network', 'Microsoft.ComputeSchedule']),
    images: new Set([
      'Canonical:ubuntu-24_04-lts:server:latest',
      ...[ownImage, galleryImage, galleryVersion].map((id) => id.toLowerCase()),
    ]),
    networkLocation: () => networkLocation,
    subnets: new Map([[subnet.toLowerCase(), {}]]),
    securityGroups: new Map([[securityGroup.toLowerCase(), { location, rules: [] }]]),
  };

  function token(seconds = 3600): string {
    const exp = Math.floor(world.now() / 1000) + seconds;
    const part = (value: object): string => Buffer.from(JSON.stringify(value)).toString('base64url');
    const made = `${part({ alg: 'RS256' })}.${part({ aud: 'https://management.azure.com', exp })}.${randomBytes(12).toString('base64url')}`;
    tokens.set(made, exp * 1000);
    return made;
  }

  function login({ body, url }: Request): Reply {
    const form = new URLSearchParams(body.toString());
    const refused = (error: string, words: string): Reply => ({ status: 401, json: { error, error_description: words } });
    if (url.pathname !== `/${tenant}/oauth2/v2.0/token`)
      return { status: 400, json: { error: 'invalid_request', error_description: 'AADSTS90002' } };
    if (form.get('scope') !== 'https://management.azure.com/.default') return refused('invalid_scope', 'AADSTS70011');
    const isGood = form.get('client_id') === client && form.get('client_secret') === clientSecret;
    if (isLocked || !isGood) return refused('invalid_client', 'AADSTS7000215: Invalid client secret provided.');
    return { status: 200, json: { token_type: 'Bearer', expires_in: 3599, access_token: token() } };
  }

  function identity({ headers, url }: Request): Reply {
    if (headers.get('Metadata') !== 'true') return { status: 400, json: { error: 'invalid_request' } };
    if (url.searchParams.get('resource') !== 'https://management.azure.com/')
      return { status: 400, json: { error: 'invalid_resource' } };
    return {
      status: 200,
      json: { access_token: token(), expires_in: '3599', token_type: 'Bearer', resource: 'https://management.azure.com/' },
    };
  }

  /** The metadata service of each machine at `/machines/NAME`, since one address cannot be that of all of them here. */
  function machineMetadata({ method, url, headers }: Request, name: string): Reply {
    const machine = world.machines().find((one) => one.name === name);
    if (machine === undefined || method !== 'GET') return { status: 404, text: '' };
    if (headers.get('Metadata') !== 'true')
      return { status: 400, json: { error: 'Bad request. Required metadata header not specified' } };
    if (url.searchParams.get('api-version') !== '2021-01-01' || url.searchParams.get('format') !== 'text')
      return { status: 400, json: { error: 'Bad request' } };
    return { status: 200, text: machine.shown };
  }

  function prices({ url, headers }: Request): Reply {
    if (headers.has('Authorization')) return { status: 400, text: 'This address takes no credential.' };
    if (price === null) return { status: 503, text: 'busy' };
    const size = /armSkuName eq '([^']+)'/.exec(url.searchParams.get('$filter') ?? '')?.[1] ?? '';
    const item = (name: string, product: string, unitPrice: number) => ({
      currencyCode: 'USD',
      unitPrice,
      retailPrice: unitPrice,
      armRegionName: location,
      unitOfMeasure: '1 Hour',
      type: 'Consumption',
      armSkuName: size,
      skuName: name,
      meterName: name,
      productName: product,
      serviceName: 'Virtual Machines',
    });
    const Items = [
      item('NC4as T4 v3', 'Virtual Machines NCasT4 v3 Series', price),
      item('NC4as T4 v3 Spot', 'Virtual Machines NCasT4 v3 Series', price / 5),
      item('NC4as T4 v3 Low Priority', 'Virtual Machines NCasT4 v3 Series', price / 4),
      item('NC4as T4 v3', 'Virtual Machines NCasT4 v3 Series Windows', price * 2),
    ];
    return { status: 200, json: { BillingCurrency: 'USD', Items: size in sizes ? Items : [], NextPageLink: null, Count: 4 } };
  }

  function consoleLog({ url, headers }: Request): Reply {
    // A blob refuses a request that has both a signature and a token.
    if (headers.has('Authorization') || url.searchParams.get('sig') !== 's3cret')
      return { status: 403, text: 'AuthenticationFailed' };
    const name = /^\/bootdiagnostics\/(.+)\.serialconsole\.log$/.exec(url.pathname)?.[1] ?? '';
    const text = consoles.get(name);
    return text === undefined ? { status: 404, text: 'BlobNotFound' } : { status: 200, text };
  }

  function arm({ method, url, headers, body }: Request): Reply {
    const bearer = /^Bearer (.+)$/.exec(headers.get('Authorization') ?? '')?.[1] ?? '';
    const end = tokens.get(bearer);
    if (end === undefined) return failure(401, 'InvalidAuthenticationToken', 'The access token is invalid.');
    if (end <= world.now())
      return failure(401, 'ExpiredAuthenticationToken', 'The access token expiry UTC time is earlier than current UTC time.');
    const [, its, rest = ''] = /^\/subscriptions\/([^/]+)(\/.*)?$/.exec(url.pathname) ?? [];
    if (its !== subscription) return failure(404, 'SubscriptionNotFound', `The subscription '${its}' could not be found.`);
    const version = url.searchParams.get('api-version');
    if (version === null)
      return failure(
        400,
        'MissingApiVersionParameter',
        'The api-version query parameter (?api-version=) is required for all requests.',
      );
    const route = routes.find((one) => one.method === method && one.path.test(rest));
    if (route === undefined) return failure(404, 'InvalidResourceType', `There is no ${method} ${url.pathname}.`);
    if (!route.versions.includes(version))
      return failure(400, 'NoRegisteredProviderFound', `No provider for API version '${version}'.`);
    const strange = [...url.searchParams.keys()].find(
      (name) => !['api-version', '$skiptoken', ...(route.query ?? [])].includes(name),
    );
    if (strange !== undefined) return failure(400, 'InvalidQueryParameter', `There is no parameter '${strange}'.`);
    const found = (route.path.exec(rest) ?? []).slice(1).map((part) => decodeURIComponent(part ?? ''));
    const asked: Asked = { method, url, body: body.length === 0 ? undefined : jsonOf(body.toString()), found };
    for (const action of route.needs(asked, facts)) {
      used.add(action);
      if (granted.includes('*') || granted.includes(action)) continue;
      const message = `The client '${client}' with object id '${client}' does not have authorization to perform action '${action}' over scope '${url.pathname}' or the scope is invalid.`;
      return failure(403, 'AuthorizationFailed', message);
    }
    return route.answer(asked, facts);
  }

  function answer(request: Request): Reply {
    const { hostname, pathname } = request.url;
    const [, guest] = /^\/machines\/([\w-]+)\/metadata\/instance\/compute\/userData$/.exec(pathname) ?? [];
    if (guest !== undefined) return machineMetadata(request, guest);
    if (hostname === '169.254.169.254') return identity(request);
    if (hostname === 'prices.azure.com') return { headers: { date: 'Thu, 01 Jan 1970 00:00:00 GMT' }, ...prices(request) };
    if (pathname.endsWith('/oauth2/v2.0/token')) return login(request);
    if (pathname.startsWith('/bootdiagnostics/')) return consoleLog(request);
    return arm(request);
  }

  const cut = (code: string): Error => Object.assign(new Error(code), { code });

  async function handle(request: Request): Promise<Reply> {
    const line = `${request.method} ${request.url.pathname}`;
    sent.push(`${line}${request.url.search}\n${[...request.headers].map((pair) => pair.join(': ')).join('\n')}\n${request.body}`);
    const at = faults.findIndex(({ at: pattern, left }) => left > 0 && pattern.test(`${line}${request.url.search}`));
    const fault = faults[at];
    if (fault !== undefined) fault.left -= 1;
    const how = fault?.how ?? null;
    if (how === 'reset' || how === 'silent') calls.push(`${line} ${how}`);
    if (how === 'reset') throw cut('ECONNREFUSED');
    if (how === 'silent')
      await new Promise((_, reject) => request.signal?.addEventListener('abort', () => reject(cut('ABORT_ERR')), { once: true }));
    if (how !== null && typeof how === 'object' && how.isDone === true) answer(request);
    const said =
      how !== null && typeof how === 'object'
        ? {
            ...failure(how.status, how.code, how.message ?? how.code),
            ...(how.json !== undefined && { json: how.json }),
            ...(how.headers !== undefined && { headers: how.headers }),
          }
        : answer(request);
    calls.push(`${line} ${how === 'lost' ? 'lost' : said.status}`);
    if (how === 'lost') throw cut('ECONNRESET');
    return said;
  }

  const memoryFetch: typeof fetch = async (input, init) => {
    const request: Request = {
      method: init?.method ?? 'GET',
      url: new URL(String(input)),
      headers: new Headers(init?.headers),
      signal: init?.signal,
      body: Buffer.from(String(init?.body ?? '')),
    };
    const said = await handle(request).catch((cause: unknown) => {
      if (init?.signal?.aborted === true) throw init.signal.reason;
      throw new TypeError('fetch failed', { cause });
    });
    const { status, json, text = '', headers } = said;
    const type = json === undefined ? 'text/plain' : 'application/json; charset=utf-8';
    const whole = json === undefined ? text : JSON.stringify(json);
    return new Response(status === 204 ? null : whole, {
      status,
      headers: { 'content-type': type, date: new Date(world.now()).toUTCString(), ...headers },
    });
  };

  return {
    fetch: memoryFetch,
    world,
    calls,
    sent,
    used,
    quotas,
    consoles,
    token,
    registered: facts.registered,
    subnets: facts.subnets,
    securityGroups: facts.securityGroups,
    get url() {
      return origin;
    },
    fail(fault: Fault): void {
      faults.push({ ...fault, left: fault.times ?? 1 });
    },
    grant(...actions: readonly string[]): void {
      granted = actions;
    },
    pages(size: number): void {
      pageSize = size;
    },
    pricesAre(usd: number | null): void {
      price = usd;
    },
    /** All tokens so far are too old. */
    expireTokens(): void {
      for (const one of tokens.keys()) tokens.set(one, 0);
    },
    /** The network is in another location. */
    moveNetwork(where: string): void {
      networkLocation = where;
    },
    /** The secret of the application is not accepted any more. */
    lock(): void {
      isLocked = true;
    },
    close: world.close,
    /** On a port of 127.0.0.1, with TLS when it has an identity. */
    async serve(identity: { readonly key: string; readonly cert: string } | null = null): Promise<AsyncDisposable> {
      const port = await onPort(memoryFetch, { identity });
      origin = port.url;
      return {
        async [Symbol.asyncDispose]() {
          world.close();
          await port[Symbol.asyncDispose]();
        },
      };
    },
  };
}
