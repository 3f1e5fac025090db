/** The calls of Compute Engine that there are, each with the permissions that it takes. */
import type { Catalog } from './catalog.ts';
import type { Faults } from './faults.ts';
import { partOf } from './fields.ts';
import { metadataOf, Refused, wantedOf } from './insert-body.ts';
import { createLimits } from './limits.ts';
import { createLists } from './lists.ts';
import type { Machine, Times, World } from './machines.ts';
import { refused, type Said } from './refused.ts';
import { fingerprintOf, instanceView, type Operation, operationView } from './views.ts';

export interface Asked {
  readonly method: string;
  readonly url: URL;
  /** Version of the API that the caller asks for; null: the one before versions had dates. */
  readonly version: string | null;
  readonly body: unknown;
}

export interface RouteParts {
  readonly project: string;
  readonly catalog: Catalog;
  readonly faults: Faults;
  readonly times: Times;
  readonly world: World;
  readonly pageSize: number;
  /** Gets the permissions that were needed. */
  readonly used: Set<string>;
  now(): number;
}

export function createRoutes(parts: RouteParts): (asked: Asked) => Said {
  const { project, catalog, faults, times, world, used, now } = parts;
  const operations = new Map<string, Operation>();
  const byRequest = new Map<string, Operation>();
  const { whyNone } = createLimits(parts);
  const { list } = createLists({ ...parts, needs });

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
  function shown(operation: Operation): Said {
    return {
      status: 200,
      json: operationView(project, operation, isUndone(operation) ? Math.min(now(), operation.ends - 1) : now()),
    };
  }
  /** The clock passes an operation's end a moment before the timer comes that removes the machine. */
  function isUndone({ type, target, scope, targetId }: Operation): boolean {
    if (type !== 'delete' || !target.startsWith('instances/') || faults.deleteLies) return false;
    return world.machine(scope.slice(scope.indexOf('/') + 1), targetId) !== undefined;
  }

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
        kind: 'compute#image',
        name: full,
        selfLink,
        architecture,
        diskSizeGb: String(sizeGb),
        status: 'READY',
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
      ...(['POST', below(`/zones/${id}/instances/${id}/setMetadata`), ['requestId']] as const),
      ([zone = '', name = ''], { body, url }) => {
        needs('compute.instances.setMetadata');
        const machine = theMachine(zone, name);
        const { fingerprint, metadata } = metadataOf(body);
        if (fingerprint !== fingerprintOf(machine.metadata))
          throw new Refused('Supplied fingerprint does not match current metadata fingerprint.', 412, 'conditionNotMet');
        machine.metadata = metadata;
        const of = { scope: `zones/${zone}`, type: 'setMetadata', target: `instances/${name}`, targetId: machine.id } as const;
        return shown(begin({ ...of, requestId: url.searchParams.get('requestId'), error: null }, 1_000));
      },
    ],
    [
      ...(['GET', below(`/zones/${id}/instances/${id}/serialPort`), ['port', 'start']] as const),
      ([zone = '', name = ''], { url }) => {
        needs('compute.instances.getSerialPortOutput');
        const { console: all } = theMachine(zone, name);
        const start = Number(url.searchParams.get('start') ?? 0);
        const contents = all.slice(start);
        const from = all.length - contents.length;
        const places = { start: String(from), next: String(all.length) };
        return { status: 200, json: { kind: 'compute#serialPortOutput', contents, ...places } };
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
      ([what = ''], { url, version }) => list(what, url.searchParams, version),
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

  return (asked) => {
    const { method, url } = asked;
    for (const [how, path, query, act] of routes) {
      const found = how === method ? path.exec(url.pathname) : null;
      if (found === null) continue;
      const strange = [...url.searchParams.keys()].find(
        (key) => !query.includes(key) && !/^(alt|\$alt|prettyPrint|fields)$/.test(key),
      );
      if (strange !== undefined)
        return refused(400, 'badRequest', `Invalid JSON payload received. Unknown name "${strange}": Cannot bind query parameter.`);
      try {
        const said = act(found.slice(1), asked);
        return { ...said, json: partOf(said.json, url.searchParams.get('fields')) };
      } catch (error) {
        if (error instanceof Refused) return refused(error.status, error.reason, error.message);
        throw error;
      }
    }
    return refused(404, 'notFound', `Not found: ${method} ${url.pathname}`);
  };
}
