/**
 * A Compute Engine of one project: the calls that onejob makes, and what exists behind them in time. As a `fetch` for tests in virtual
 * time, and on a port for real clients. What it answers is from the discovery document of Compute v1 and Google's guides; no real cloud
 * was asked.
 */
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { Clock } from '../../../src/core/clock.ts';
import { type Catalog, regionOf, catalog as usualCatalog } from './catalog.ts';
import { filterOf } from './filter.ts';
import { Refused, wantedOf } from './insert-body.ts';
import { createWorld, type Hooks, type Machine, type Times } from './machines.ts';
import { createServiceAccount } from './sign-in.ts';
import { addressView, diskView, instanceView, type Operation, operationView } from './views.ts';

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

/** What goes wrong, until it is put back. */
export interface Faults {
  /** ms by which the cloud's clock is ahead. */
  skew: number;
  /** Zones without capacity for what `type` begins with, and those that the error names as having some. */
  stockout: { readonly zones: readonly string[]; readonly type?: string; readonly available?: readonly string[] } | null;
  /** Boot disks stay when their instance goes. */
  diskSurvives: boolean;
  /** ms until lists contain a new instance. */
  late: number;
  /** The operation of a delete ends, but the instance lives. */
  deleteLies: boolean;
  /** What becomes of an instance's end of life. `stops`: it is stopped instead of deleted. */
  end: 'kept' | 'missing' | 'late' | 'stops';
  /** Zones that lists over all zones cannot reach. */
  unreachable: readonly string[];
  /** Permissions that the caller does not have. */
  denied: readonly string[];
  /** A policy of the organisation that forbids external addresses. */
  noAddresses: boolean;
  /** APIs that are not enabled. */
  disabled: readonly ('compute' | 'cloudresourcemanager')[];
  /** ms for which tokens are valid. */
  tokenLife: number;
}

const good: Faults = {
  ...{ skew: 0, stockout: null, diskSurvives: false, late: 0, deleteLies: false, end: 'kept', unreachable: [], denied: [] },
  ...{ noAddresses: false, disabled: [], tokenLife: 3_600_000 },
};

/** `cut`: not done, no answer; `lost`: done, but no answer; `silent`: not done, and nothing comes. A number: a status, with a reason. */
export type Failure = 'cut' | 'lost' | 'silent' | { readonly status: number; readonly reason?: string; readonly message?: string };

export interface Where {
  readonly method?: string;
  readonly path: RegExp;
  /** How many requests; for good when left out. */
  readonly times?: number;
  /** How many it lets pass first. */
  readonly after?: number;
}

export interface Asked {
  readonly method: string;
  readonly url: URL;
  readonly body: unknown;
}

interface Said {
  readonly status: number;
  readonly json: unknown;
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
  const operations = new Map<string, Operation>();
  const byRequest = new Map<string, Operation>();
  /** Tokens, each with its end. */
  const tokens = new Map<string, number>();
  const requests: Asked[] = [];
  const used = new Set<string>();
  const failures: { readonly where: Where; readonly how: Failure; left: number; skip: number }[] = [];
  let origin = 'http://localhost';

  const refused = (status: number, reason: string, message: string, details?: readonly unknown[]): Said => ({
    status,
    json: {
      error: {
        ...{ code: status, message, errors: [{ message, domain: 'global', reason }] },
        ...(details === undefined ? {} : { details }),
      },
    },
  });

  /** @throws Refused unless the caller may do all of it */
  function needs(...permissions: readonly string[]): void {
    for (const one of permissions) {
      used.add(one);
      if (faults.denied.includes(one))
        throw new Refused(`Required '${one}' permission for 'projects/${project}'`, 403, 'forbidden');
    }
  }

  function begin(of: Pick<Operation, 'scope' | 'type' | 'target' | 'targetId' | 'requestId' | 'error'>, takes: number): Operation {
    const id = world.freshId();
    const operation = { ...of, id, name: `operation-${id}`, begun: now(), ends: now() + takes };
    operations.set(`${of.scope}/${operation.name}`, operation);
    if (of.requestId !== null) byRequest.set(`${of.scope}/${of.requestId}`, operation);
    return operation;
  }
  const shown = (operation: Operation): Said => ({ status: 200, json: operationView(project, operation, now()) });

  function insert(zone: string, body: unknown, requestId: string | null): Said {
    if (requestId !== null && !/^(?!0{8}-0{4}-0{4}-0{4}-0{12}$)[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/.test(requestId))
      throw new Refused(`Invalid value for field 'requestId': '${requestId}'. Must be a UUID.`);
    needs('compute.instances.create');
    const wanted = wantedOf(body, zone, catalog);
    needs('compute.disks.create', 'compute.images.useReadOnly', 'compute.subnetworks.use');
    if (Object.keys(wanted.labels).length > 0) needs('compute.instances.setLabels');
    if (Object.keys(wanted.diskLabels).length > 0) needs('compute.disks.setLabels');
    if (Object.keys(wanted.metadata).length > 0) needs('compute.instances.setMetadata');
    if (wanted.hasAddress) needs('compute.subnetworks.useExternalIp');
    const before = requestId === null ? undefined : byRequest.get(`zones/${zone}/${requestId}`);
    if (before !== undefined) return shown(before);
    if (wanted.hasAddress && faults.noAddresses)
      throw new Refused(
        `Constraint constraints/compute.vmExternalIpAccess violated for project ${project}.`,
        412,
        'conditionNotMet',
      );
    const target = `instances/${wanted.name}`;
    if (world.machine(zone, wanted.name) !== undefined)
      throw new Refused(`The resource 'projects/${project}/zones/${zone}/${target}' already exists`, 409, 'alreadyExists');
    const of = { scope: `zones/${zone}`, type: 'insert', target, requestId } as const;
    const error = whyNone(zone, wanted);
    if (error !== null) return shown(begin({ ...of, targetId: world.freshId(), error }, 5_000));
    const machine = world.make(zone, wanted);
    return shown(begin({ ...of, targetId: machine.id, error: null }, times.start));
  }

  /** What the operation of an insert ends with, if quota or capacity is missing. */
  function whyNone(zone: string, { machineType, accelerator, isSpot }: ReturnType<typeof wantedOf>): Operation['error'] {
    const quota = quotaProblem(zone, machineType, accelerator, isSpot);
    if (quota !== null) return { status: 403, errors: [quota] };
    const { stockout } = faults;
    if (stockout === null || !stockout.zones.includes(zone) || !machineType.startsWith(stockout.type ?? '')) return null;
    const attachment = accelerator === null ? {} : { attachment: `${accelerator.type}:${accelerator.count}` };
    const available = stockout.available === undefined ? {} : { zonesAvailable: stockout.available.join(',') };
    const message = `The zone 'projects/${project}/zones/${zone}' does not have enough resources available to fulfill the request.  '(resource type:compute)'.`;
    const metadatas = { vmType: machineType, ...attachment, zone, ...available };
    const errorDetails = [{ errorInfo: { reason: 'resource_availability', domain: 'compute.googleapis.com', metadatas } }];
    return { status: 503, errors: [{ code: 'ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS', message, errorDetails }] };
  }

  function quotaProblem(
    zone: string,
    machineType: string,
    accelerator: { readonly type: string; readonly count: number } | null,
    isSpot: boolean,
  ): unknown {
    const gpusOf = (type: string, attached: typeof accelerator): readonly [string, number] | null => {
      if (attached !== null) return [attached.type.replace('nvidia-tesla-', 'NVIDIA_').toUpperCase(), attached.count];
      if (type.startsWith('g2-')) return ['NVIDIA_L4', type.endsWith('-24') ? 2 : 1];
      return type.startsWith('a2-') ? ['NVIDIA_A100', 1] : null;
    };
    const wanted = gpusOf(machineType, accelerator);
    if (wanted === null) return null;
    const [gpu, count] = wanted;
    const others = [...world.machines.values()].map((one) => ({
      one,
      gpus: gpusOf(one.wanted.machineType, one.wanted.accelerator),
    }));
    const inUse = (fits: (one: Machine, gpu: string) => boolean): number =>
      others.reduce((sum, { one, gpus }) => sum + (gpus !== null && fits(one, gpus[0]) ? gpus[1] : 0), 0);
    const region = regionOf(zone);
    const metric = `${isSpot ? 'PREEMPTIBLE_' : ''}${gpu}_GPUS`;
    const here = inUse((one, name) => regionOf(one.zone) === region && one.wanted.isSpot === isSpot && name === gpu);
    const problem = (name: string, limit: number, where: string) => ({
      code: 'QUOTA_EXCEEDED',
      message: `Quota '${name}' exceeded.  Limit: ${limit.toFixed(1)} ${where}.`,
      errorDetails: [
        {
          quotaInfo: {
            ...{ metricName: `compute.googleapis.com/${name.toLowerCase()}`, limitName: name.replaceAll('_', '-'), limit },
            dimensions: { region },
          },
        },
      ],
    });
    const all = catalog.quotas.global?.GPUS_ALL_REGIONS ?? 0;
    if (inUse(() => true) + count > all) return problem('GPUS_ALL_REGIONS', all, 'globally');
    const limit = catalog.quotas[region]?.[metric] ?? 0;
    return here + count > limit ? problem(metric, limit, `in region ${region}`) : null;
  }

  function removal(scope: string, what: string, name: string, requestId: string | null): Said {
    const place = scope.slice(scope.indexOf('/') + 1);
    const target = `${what}/${name}`;
    const notFound = (): never => {
      throw new Refused(`The resource 'projects/${project}/${scope}/${target}' was not found`, 404, 'notFound');
    };
    needs(`compute.${what}.delete`);
    const of = { scope, type: 'delete', target, requestId, error: null } as const;
    if (what === 'instances') {
      const machine = world.machine(place, name) ?? notFound();
      if (!faults.deleteLies) world.remove(machine, 'deleted');
      return shown(begin({ ...of, targetId: machine.id }, times.stop));
    }
    const found = (what === 'disks' ? world.disk(place, name) : world.address(place, name)) ?? notFound();
    if (found.user !== null)
      throw new Refused(
        `The ${what} resource '${name}' is already being used by '${found.user}'`,
        400,
        'resourceInUseByAnotherResource',
      );
    if (what === 'disks') world.removeDisk(place, name);
    else world.removeAddress(place, name);
    return shown(begin({ ...of, targetId: found.id }, 1_000));
  }

  /** All scopes that a list over them has, with what is in each. */
  function aggregated(what: string): Map<string, unknown[]> {
    const zones = new Map(Object.keys(catalog.machineTypes).map((zone): [string, unknown[]] => [`zones/${zone}`, []]));
    const regions = new Map(Object.keys(catalog.subnetworks).map((region): [string, unknown[]] => [`regions/${region}`, []]));
    const link = (zone: string, rest: string): string =>
      `https://www.googleapis.com/compute/v1/projects/${project}/zones/${zone}/${rest}`;
    if (what === 'instances')
      for (const machine of world.machines.values())
        if (machine.listedFrom <= now()) zones.get(`zones/${machine.zone}`)?.push(instanceView(project, machine));
    if (what === 'disks') for (const disk of world.disks.values()) zones.get(`zones/${disk.zone}`)?.push(diskView(project, disk));
    if (what === 'machineTypes')
      for (const [zone, types] of Object.entries(catalog.machineTypes))
        for (const [name, guestCpus] of Object.entries(types))
          zones
            .get(`zones/${zone}`)
            ?.push({ kind: 'compute#machineType', name, guestCpus, zone, selfLink: link(zone, `machineTypes/${name}`) });
    if (what === 'acceleratorTypes')
      for (const [zone, types] of Object.entries(catalog.accelerators))
        for (const name of types)
          zones
            .get(`zones/${zone}`)
            ?.push({ kind: 'compute#acceleratorType', name, selfLink: link(zone, `acceleratorTypes/${name}`) });
    if (what !== 'addresses') return zones;
    for (const address of world.addresses.values()) regions.get(`regions/${address.region}`)?.push(addressView(project, address));
    return regions.set('global', []);
  }

  function list(what: string, query: URLSearchParams): Said {
    needs(`compute.${what}.list`);
    const fits = filterOf(query.get('filter') ?? '');
    const size = Math.min(pageSize, Number(query.get('maxResults') ?? 500));
    const from = Number(query.get('pageToken')?.replace('page-', '') ?? 0);
    const hides = query.get('returnPartialSuccess') === 'true' ? faults.unreachable : [];
    if (hides.length < faults.unreachable.length)
      return refused(503, 'backendError', `Zone ${faults.unreachable[0]} cannot be reached.`);
    const scopes = [...aggregated(what)];
    const isHidden = (scope: string): boolean =>
      hides.some((zone) => scope === `zones/${zone}` || scope === `regions/${regionOf(zone)}`);
    const rows = scopes.flatMap(([scope, entries]) =>
      isHidden(scope) ? [] : entries.filter((entry) => fits(entry)).map((entry) => ({ scope, entry })),
    );
    const page = rows.slice(from, from + size);
    const isLast = from + size >= rows.length;
    const items = Object.fromEntries(
      scopes.map(([scope]) => {
        const entries = page.filter((row) => row.scope === scope).map(({ entry }) => entry);
        if (entries.length > 0) return [scope, { [what]: entries }];
        const code = isHidden(scope) ? 'UNREACHABLE' : 'NO_RESULTS_ON_PAGE';
        const message = isHidden(scope)
          ? `Scope '${scope}' is unreachable.`
          : `There are no results for scope '${scope}' on this page.`;
        return [scope, { warning: { code, message, data: [{ key: 'scope', value: scope }] } }];
      }),
    );
    const kind = `compute#${what.replace(/s$/, '').replace('addresse', 'address')}AggregatedList`;
    return {
      status: 200,
      json: {
        kind,
        id: `projects/${project}/aggregated/${what}`,
        items,
        ...(isLast ? {} : { nextPageToken: `page-${from + size}` }),
      },
    };
  }

  function quotaView(place: string) {
    return Object.entries(catalog.quotas[place] ?? {}).map(([metric, limit]) => ({ metric, limit, usage: 0 }));
  }

  function image(owner: string, isFamily: boolean, name: string): Said {
    needs(isFamily ? 'compute.images.getFromFamily' : 'compute.images.get');
    const found = catalog.images[owner]?.find((one) => (isFamily ? one.family : one.name) === name);
    if (found === undefined)
      throw new Refused(`The resource 'projects/${owner}/global/images/${name}' was not found`, 404, 'notFound');
    const { name: full, family, sizeGb, architecture, deprecated } = found;
    const selfLink = `https://www.googleapis.com/compute/v1/projects/${owner}/global/images/${full}`;
    return {
      status: 200,
      json: {
        ...{ kind: 'compute#image', name: full, selfLink, architecture, diskSizeGb: String(sizeGb), status: 'READY' },
        ...(family === null ? {} : { family }),
        ...(deprecated === undefined ? {} : { deprecated: { state: deprecated } }),
      },
    };
  }

  /** Parameters of calls, as the discovery document has them; any other one is refused. */
  const listQuery = ['filter', 'maxResults', 'pageToken', 'orderBy', 'includeAllScopes', 'returnPartialSuccess'];

  type Route = readonly [
    method: string,
    path: RegExp,
    query: readonly string[],
    answer: (params: readonly string[], asked: Asked) => Said,
  ];
  const place = '((?:zones|regions)/[a-z0-9-]+)';
  const id = '([a-z0-9-]+)';
  const below = (rest: string): RegExp => new RegExp(`^/compute/v1/projects/${project}${rest}$`);
  const routes: readonly Route[] = [
    [
      'POST',
      below(`/zones/${id}/instances`),
      ['requestId'],
      ([zone = ''], { url, body }) => insert(zone, body, url.searchParams.get('requestId')),
    ],
    [
      ...(['GET', below(`/zones/${id}/instances/${id}`), []] as const),
      ([zone = '', name = '']) => {
        needs('compute.instances.get');
        return { status: 200, json: instanceView(project, theMachine(zone, name)) };
      },
    ],
    [
      ...(['GET', below(`/zones/${id}/instances/${id}/serialPort`), ['port', 'start']] as const),
      ([zone = '', name = '']) => {
        needs('compute.instances.getSerialPortOutput');
        const { console: contents } = theMachine(zone, name);
        return { status: 200, json: { kind: 'compute#serialPortOutput', contents, start: '0', next: String(contents.length) } };
      },
    ],
    [
      ...(['DELETE', below(`/${place}/(instances|disks|addresses)/${id}`), ['requestId', 'noGracefulShutdown']] as const),
      ([scope = '', what = '', name = ''], { url }) => removal(scope, what, name, url.searchParams.get('requestId')),
    ],
    [
      ...(['GET', below(`/${place}/operations/${id}`), []] as const),
      ([scope = '', name = '']) => {
        needs('compute.zoneOperations.get');
        const operation = operations.get(`${scope}/${name}`);
        if (operation === undefined) throw new Refused(`The resource '${scope}/operations/${name}' was not found`, 404, 'notFound');
        return shown(operation);
      },
    ],
    [
      'GET',
      below('/aggregated/(instances|disks|addresses|machineTypes|acceleratorTypes)'),
      listQuery,
      ([what = ''], { url }) => list(what, url.searchParams),
    ],
    [
      ...(['GET', below(`/regions/${id}`), []] as const),
      ([region = '']) => {
        needs('compute.regions.get');
        if (catalog.subnetworks[region] === undefined)
          throw new Refused(`The resource 'regions/${region}' was not found`, 404, 'notFound');
        return { status: 200, json: { kind: 'compute#region', name: region, status: 'UP', quotas: quotaView(region) } };
      },
    ],
    [
      ...(['GET', below(''), []] as const),
      () => {
        needs('compute.projects.get');
        return { status: 200, json: { kind: 'compute#project', name: project, quotas: quotaView('global') } };
      },
    ],
    [
      ...(['GET', below(`/regions/${id}/subnetworks/${id}`), []] as const),
      ([region = '', name = '']) => {
        needs('compute.subnetworks.get');
        const network = catalog.subnetworks[region]?.[name];
        if (network === undefined)
          throw new Refused(`The resource 'regions/${region}/subnetworks/${name}' was not found`, 404, 'notFound');
        return {
          status: 200,
          json: {
            kind: 'compute#subnetwork',
            name,
            network: `https://www.googleapis.com/compute/v1/projects/${project}/global/networks/${network}`,
          },
        };
      },
    ],
    [
      'GET',
      /^\/compute\/v1\/projects\/([^/]+)\/global\/images\/(family\/)?([a-z0-9-]+)$/,
      [],
      ([owner = '', family, name = '']) => image(owner, family !== undefined, name),
    ],
    [
      ...(['POST', new RegExp(`^/v3/projects/${project}:testIamPermissions$`), []] as const),
      (_, { body }) => {
        const { permissions } = body as { permissions: string[] };
        if (permissions.length > 100) throw new Refused('Too many permissions.');
        return { status: 200, json: { permissions: permissions.filter((one) => !faults.denied.includes(one)) } };
      },
    ],
  ];

  function theMachine(zone: string, name: string): Machine {
    const machine = world.machine(zone, name);
    if (machine !== undefined) return machine;
    throw new Refused(`The resource 'projects/${project}/zones/${zone}/instances/${name}' was not found`, 404, 'notFound');
  }

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
    if (url.pathname === '/computeMetadata/v1/instance/service-accounts/default/token') {
      if (headers.get('Metadata-Flavor') !== 'Google')
        return { status: 403, json: { error: 'Missing Metadata-Flavor:Google header.' } };
      return { status: 200, json: { access_token: issue(), expires_in: 3599, token_type: 'Bearer' } };
    }
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
    for (const [how, path, query, act] of routes) {
      const found = how === method ? path.exec(url.pathname) : null;
      if (found === null) continue;
      const strange = [...url.searchParams.keys()].find(
        (key) => !query.includes(key) && !/^(alt|\$alt|prettyPrint|fields)$/.test(key),
      );
      if (strange !== undefined)
        return refused(400, 'badRequest', `Invalid JSON payload received. Unknown name "${strange}": Cannot bind query parameter.`);
      try {
        return act(found.slice(1), asked);
      } catch (error) {
        if (error instanceof Refused) return refused(error.status, error.reason, error.message);
        throw error;
      }
    }
    return refused(404, 'notFound', `Not found: ${method} ${url.pathname}`);
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
    const asked = { method, url, body: isJson && body !== '' ? JSON.parse(body) : body };
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
      ...{ method: init?.method ?? 'GET', url: String(input), headers: new Headers(init?.headers), signal: init?.signal ?? null },
      body: init?.body == null ? '' : String(init.body),
    };
    const { status, json } = await handle(incoming);
    return new Response(JSON.stringify(json), { status, headers: dated() });
  };

  return {
    ...{ fetch: standinFetch, project, catalog, faults, account, requests, now, issue },
    /** Permissions that requests needed so far. */
    used: used as ReadonlySet<string>,
    machines: (): readonly Machine[] => [...world.machines.values()],
    disks: () => [...world.disks.values()],
    addresses: () => [...world.addresses.values()],
    ...{ guestShutdown: world.guestShutdown, preempt: world.preempt, keepAddress: world.keepAddress },
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
    mend(): void {
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
      const server = createServer(async (incoming, outgoing) => {
        const gone = new AbortController();
        outgoing.once('close', () => gone.abort());
        const pieces: Buffer[] = [];
        for await (const piece of incoming) pieces.push(piece as Buffer);
        const headers = new Headers(Object.entries(incoming.headers).map(([name, value]) => [name, String(value)]));
        const { method = 'GET', url = '/' } = incoming;
        try {
          const { status, json } = await handle({
            method,
            url,
            headers,
            body: Buffer.concat(pieces).toString(),
            signal: gone.signal,
          });
          outgoing.writeHead(status, dated());
          outgoing.end(JSON.stringify(json));
        } catch {
          incoming.socket.destroy();
        }
      }).listen(0, address);
      await once(server, 'listening');
      const at = server.address();
      origin = `http://${address}:${typeof at === 'object' && at !== null ? at.port : 0}`;
      return {
        async [Symbol.asyncDispose]() {
          server.closeAllConnections();
          server.close();
          await once(server, 'close');
        },
      };
    },
  };
}
