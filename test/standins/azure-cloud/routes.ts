/**
 * What Azure Resource Manager answers, call by call, with the permissions that it asks for. Shapes are those of the REST
 * specifications; where they are silent, of what the official Python clients read.
 */
import type { z } from 'zod';
import { groupBody, isGoodKey, machineBody, machinePatch, statusBody, submitBody } from './bodies.ts';
import { type End, type Group, location, type Machine, type Resource, subscription, types, type World } from './world.ts';

export interface Reply {
  readonly status: number;
  readonly json?: unknown;
  readonly text?: string;
  readonly headers?: Readonly<Record<string, string>>;
}

export interface Asked {
  readonly method: string;
  readonly url: URL;
  readonly body: unknown;
  /** What the path's pattern found, decoded. */
  readonly found: readonly string[];
}

export interface Facts {
  readonly world: World;
  /** `https://host:port` under which it is reached. */
  origin(): string;
  /** Seconds that clients are asked to wait between two looks. */
  readonly retryAfter: number;
  /** Entries of a page. */
  pageSize(): number;
  /** Names of providers that are registered. */
  readonly registered: Set<string>;
  readonly sizes: ReadonlyMap<string, Size>;
  /** By name as usages have it. */
  readonly quotas: Map<string, { readonly title: string; limit: number }>;
  readonly images: ReadonlySet<string>;
  /** Of the one network. */
  readonly subnets: Map<string, object>;
  networkLocation(): string;
  readonly securityGroups: Map<string, { readonly location: string; readonly rules: readonly object[] }>;
  readonly consoles: Map<string, string>;
  /** Patterns of actions that the credential may use. */
  granted(): readonly string[];
}

export interface Size {
  readonly family: string;
  readonly cores: number;
  readonly isRestricted?: boolean;
}

interface Route {
  readonly method: string;
  /** Below `/subscriptions/ID`. */
  readonly path: RegExp;
  readonly versions: readonly string[];
  /** Query parameters that it takes, besides the version. */
  readonly query?: readonly string[];
  /** For this request. */
  needs(asked: Asked, facts: Facts): readonly string[];
  answer(asked: Asked, facts: Facts): Reply;
}

export const failure = (status: number, code: string, message: string, details?: readonly object[]): Reply => ({
  status,
  json: { error: { code, message, ...(details !== undefined && { details }) } },
});

const ok = (json: unknown): Reply => ({ status: 200, json });
const notFound = (what: string): Reply =>
  failure(404, 'ResourceNotFound', `The Resource '${what}' under resource group was not found.`);
const always =
  (...permissions: readonly string[]) =>
  () =>
    permissions;

function checked<T extends z.ZodType>(schema: T, body: unknown): { readonly value: z.output<T> } | { readonly refused: Reply } {
  const found = schema.safeParse(body);
  if (found.success) return { value: found.data };
  const issue = found.error.issues[0];
  const message = `The request content was invalid: ${issue?.path.join('.')}: ${issue?.message}`;
  return { refused: failure(400, 'InvalidRequestContent', message) };
}

/** One page and where the next one is. */
function paged({ url }: Asked, { origin, pageSize }: Facts, all: readonly object[]): Reply {
  const from = Number(url.searchParams.get('$skiptoken') ?? 0);
  const size = pageSize();
  const next = new URL(url.pathname + url.search, origin());
  next.searchParams.set('$skiptoken', String(from + size));
  return ok({ value: all.slice(from, from + size), ...(from + size < all.length && { nextLink: next.href }) });
}

const shownGroup = ({ name, location: where, tags, state }: Group) => ({
  id: `/subscriptions/${subscription}/resourceGroups/${name}`,
  name,
  type: 'Microsoft.Resources/resourceGroups',
  location: where,
  tags,
  properties: { provisioningState: state },
});

function shownMachine(machine: Machine, world: World) {
  const { id, name, location: where, tags, provisioning, body, zone } = machine;
  const { osProfile, ...properties } = body.properties;
  const { customData: _secret, ...profile } = osProfile;
  const interfaces = world.of(machine.group).filter(({ kind, goesWith }) => kind === 'interface' && goesWith === id);
  return {
    id,
    name,
    type: types.machine,
    location: where,
    tags,
    ...(zone !== null && { zones: [zone] }),
    properties: {
      ...properties,
      osProfile: profile,
      networkProfile: { networkInterfaces: interfaces.map((one) => ({ id: one.id, properties: { deleteOption: 'Delete' } })) },
      provisioningState: provisioning,
      vmId: '0b1e2f3a-0000-4000-8000-000000000000',
    },
  };
}

const viewOf = ({ provisioning, power }: Machine) => ({
  statuses: [
    { code: `ProvisioningState/${provisioning.toLowerCase()}`, level: 'Info', displayStatus: provisioning },
    ...(power === null ? [] : [{ code: `PowerState/${power}`, level: 'Info', displayStatus: `VM ${power}` }]),
  ],
});

/** As Azure's general list has it: groups in capital letters, and no tags when it was asked by tag. */
const shownResource = ({ id, name, kind, location: where }: Resource) => ({
  id: id.replace(/(resourceGroups\/)([^/]+)/, (_, before, group) => before + String(group).toUpperCase()),
  name,
  type: types[kind],
  location: where,
});

/** `tagName eq 'a' and tagValue eq 'b'`: nothing else may be in a filter by tag. */
function tagFilter(url: URL): ((one: { readonly tags: Readonly<Record<string, string>> }) => boolean) | null {
  const found = /^tagName eq '([^']+)' and tagValue eq '([^']*)'$/.exec(url.searchParams.get('$filter') ?? '');
  const [, name = '', value = ''] = found ?? [];
  return found === null ? null : ({ tags }) => tags[name] === value;
}

function operationReply({ origin, retryAfter }: Facts, id: string, status: number, json?: unknown): Reply {
  const where = `${origin()}/subscriptions/${subscription}/providers/Microsoft.Compute/locations/${location}/operations/${id}`;
  const headers = {
    'Azure-AsyncOperation': `${where}?api-version=2025-04-01`,
    'Retry-After': String(retryAfter),
    ...(json === undefined && { Location: `${where}?monitor=true&api-version=2025-04-01` }),
  };
  return { status, headers, ...(json !== undefined && { json }) };
}

const shownEnd = ({ operationId, resourceId, state, text, deadline }: End) => ({
  resourceId,
  operation: {
    operationId,
    resourceId,
    opType: 'Deallocate',
    subscriptionId: subscription,
    deadlineType: 'InitiateAt',
    state,
    deadline: Number.isNaN(deadline) ? text : new Date(deadline).toISOString(),
    timezone: 'UTC',
  },
});

const group = '/resource[gG]roups/([^/]+)';
/** The second is what Microsoft's clients of today ask for. */
const compute = ['2025-04-01', '2026-04-01'];
const machinePath = new RegExp(`^${group}/providers/Microsoft\\.Compute/virtualMachines/([^/]+)$`);
const scheduleAt = (what: string): RegExp => new RegExp(`^/providers/Microsoft\\.ComputeSchedule/locations/([^/]+)/${what}$`);

const findMachine = ({ found }: Asked, { world }: Facts): Machine | null => {
  const [its, name] = found.map((one) => one.toLowerCase());
  return world.machines().find((one) => one.group.toLowerCase() === its && one.name.toLowerCase() === name) ?? null;
};

/** What of `quota` is used: what cannot be allocated counts, too. */
function usedOf({ world, sizes }: Facts, name: string): number {
  return world.machines().reduce((sum, { size, spot, provisioning, power }) => {
    const { family = '', cores = 0 } = sizes.get(size) ?? {};
    const counts = power !== 'deallocated' && provisioning !== 'Failed' && (name === 'lowPriorityCores' ? spot : !spot);
    return counts && (name === family || name === 'cores' || name === 'lowPriorityCores') ? sum + cores : sum;
  }, 0);
}

function quotaProblem(facts: Facts, size: Size, isSpot: boolean): Reply | null {
  for (const name of isSpot ? ['lowPriorityCores'] : [size.family, 'cores']) {
    const limit = facts.quotas.get(name)?.limit ?? 0;
    const used = usedOf(facts, name);
    if (used + size.cores <= limit) continue;
    const message =
      `Operation could not be completed as it results in exceeding approved ${name} Cores quota. Additional details - Deployment Model: Resource Manager, ` +
      `Location: ${location}, Current Limit: ${limit}, Current Usage: ${used}, Additional Required: ${size.cores}, (Minimum) New Limit Required: ${used + size.cores}. ` +
      'Submit a request for Quota increase by specifying parameters listed in the Details section for deployment to succeed. Please read more about quota limits.';
    return failure(409, 'OperationNotAllowed', message);
  }
  return null;
}

function putMachine(asked: Asked, facts: Facts): Reply {
  const { world } = facts;
  const [its = '', name = ''] = asked.found;
  const parent = world.groups.get(its.toLowerCase());
  if (parent === undefined) return failure(404, 'ResourceGroupNotFound', `Resource group '${its}' could not be found.`);
  if (parent.state === 'Deleting')
    return failure(
      409,
      'ResourceGroupBeingDeleted',
      `The resource group '${its}' is in deprovisioning state and cannot perform this operation.`,
    );
  const found = checked(machineBody, asked.body);
  if ('refused' in found) return found.refused;
  const body = found.value;
  const { hardwareProfile, storageProfile, osProfile, networkProfile, priority } = body.properties;
  const before = findMachine(asked, facts);
  if (before !== null) return failure(409, 'PropertyChangeNotAllowed', "Changing property 'osProfile.customData' is not allowed.");
  if (body.location !== location)
    return failure(400, 'LocationNotAvailableForResourceType', `The provided location '${body.location}' is not available.`);
  const size = facts.sizes.get(hardwareProfile.vmSize);
  if (size === undefined)
    return failure(400, 'InvalidParameter', `The value ${hardwareProfile.vmSize} provided for the VM size is not valid.`);
  for (const { keyData } of osProfile.linuxConfiguration.ssh.publicKeys)
    if (!isGoodKey(keyData))
      return failure(400, 'InvalidParameter', 'The value of parameter linuxConfiguration.ssh.publicKeys.keyData is invalid.');
  const { imageReference } = storageProfile;
  const image = 'id' in imageReference ? imageReference.id.toLowerCase() : Object.values(imageReference).join(':');
  if (!facts.images.has(image)) return failure(404, 'PlatformImageNotFound', `The platform image '${image}' is not available.`);
  for (const one of networkProfile.networkInterfaceConfigurations) {
    const { networkSecurityGroup, ipConfigurations } = one.properties;
    for (const { properties } of ipConfigurations) {
      if (!facts.subnets.has(properties.subnet.id.toLowerCase()) || facts.networkLocation() !== location)
        return failure(400, 'InvalidResourceReference', `Resource ${properties.subnet.id} was not found.`);
      const address = properties.publicIPAddressConfiguration;
      if (address?.sku?.name === 'Standard' && address.properties?.publicIPAllocationMethod !== 'Static')
        return failure(
          400,
          'StandardSkuPublicIPAddressesMustBeStatic',
          'Standard sku publicIp must have AllocationMethod set to Static.',
        );
    }
    if (
      networkSecurityGroup !== undefined &&
      facts.securityGroups.get(networkSecurityGroup.id.toLowerCase())?.location !== location
    )
      return failure(400, 'InvalidResourceReference', `Resource ${networkSecurityGroup.id} was not found.`);
  }
  if (size.isRestricted === true || world.faults.notOffered.has(hardwareProfile.vmSize)) {
    const message = `The requested VM size for resource 'Following SKUs have failed for Capacity Restrictions: ${hardwareProfile.vmSize}' is currently not available in location '${location}'. Please try another size or deploy to a different location or different zone.`;
    return failure(409, 'SkuNotAvailable', message);
  }
  const tooMuch = quotaProblem(facts, size, priority === 'Spot');
  if (tooMuch !== null) return tooMuch;
  const { machine, done } = world.makeMachine(its, name, body);
  return operationReply(facts, done.id, 201, shownMachine(machine, world));
}

function deleteGroup({ found, url }: Asked, facts: Facts): Reply {
  const { world } = facts;
  const its = world.groups.get(found[0]?.toLowerCase() ?? '');
  if (its === undefined) return failure(404, 'ResourceGroupNotFound', `Resource group '${found[0]}' could not be found.`);
  const forced = url.searchParams.get('forceDeletionTypes');
  if (forced !== null && !/^Microsoft\.Compute\/(virtualMachines|virtualMachineScaleSets)$/.test(forced))
    return failure(400, 'InvalidForceDeletionTypes', `'${forced}' cannot be deleted by force.`);
  if (forced !== null && !world.of(its.name).some(({ kind }) => kind === 'machine')) {
    const message = `The resource types '${forced}' in the query string are not supported for force deletion.`;
    return failure(400, 'UnsupportedForceDeletionResourceTypeInQueryString', message);
  }
  if (its.state === 'Deleting')
    return failure(409, 'ResourceGroupBeingDeleted', `The resource group '${its.name}' is already being deleted.`);
  const done = world.removeGroup(its);
  const where = `${facts.origin()}/subscriptions/${subscription}/operationresults/${done.id}?api-version=2021-04-01`;
  return { status: 202, headers: { Location: where, 'Retry-After': String(facts.retryAfter) } };
}

function submitEnd({ body, found }: Asked, { world, registered }: Facts): Reply {
  const parsed = checked(submitBody, body);
  if ('refused' in parsed) return parsed.refused;
  if (!registered.has('Microsoft.ComputeSchedule'))
    return failure(
      409,
      'MissingSubscriptionRegistration',
      "The subscription is not registered to use namespace 'Microsoft.ComputeSchedule'.",
    );
  const { schedule, resources, correlationid } = parsed.value;
  const deadline = Date.parse(schedule.deadline);
  if (deadline <= world.now()) return failure(400, 'InvalidDeadline', 'The deadline is in the past.');
  if (deadline > world.now() + 14 * 86_400_000) return failure(400, 'InvalidDeadline', 'The deadline is more than 14 days ahead.');
  const results = resources.ids.map((id) => {
    const machine = world.machines().find((one) => one.id.toLowerCase() === id.toLowerCase());
    if (machine === undefined || machine.location !== found[0])
      return { resourceId: id, errorCode: 'ResourceNotFound', errorDetails: 'The virtual machine was not found.' };
    if (world.faults.end === 'refused')
      return { resourceId: id, errorCode: 'OperationNotAllowed', errorDetails: 'Scheduling is not possible now.' };
    return shownEnd(world.setEnd(machine, deadline, schedule.deadline, correlationid));
  });
  return ok({ description: 'Deallocate Resource request', type: 'VirtualMachines', location: found[0], results });
}

function endStatus({ body }: Asked, { world }: Facts): Reply {
  const parsed = checked(statusBody, body);
  if ('refused' in parsed) return parsed.refused;
  const results = parsed.value.operationIds.map((id) => {
    const end = world.ends.get(id);
    return end === undefined ? { errorCode: 'OperationNotFound', errorDetails: `Operation ${id} was not found.` } : shownEnd(end);
  });
  return ok({ results });
}

export const routes: readonly Route[] = [
  {
    method: 'GET',
    path: /^$/,
    versions: ['2022-12-01'],
    needs: always('Microsoft.Resources/subscriptions/read'),
    answer: () => ok({ id: `/subscriptions/${subscription}`, subscriptionId: subscription, displayName: 'Lab', state: 'Enabled' }),
  },
  {
    method: 'GET',
    path: /^\/providers\/Microsoft\.Authorization\/permissions$/,
    versions: ['2022-04-01'],
    needs: always('Microsoft.Authorization/permissions/read'),
    answer: (_, facts) => ok({ value: [{ actions: facts.granted(), notActions: [], dataActions: [], notDataActions: [] }] }),
  },
  {
    method: 'GET',
    path: /^\/providers\/([^/]+)$/,
    versions: ['2021-04-01'],
    needs: always('Microsoft.Resources/subscriptions/providers/read'),
    answer: ({ found: [namespace = ''] }, { registered }) =>
      ok({ namespace, registrationState: registered.has(namespace) ? 'Registered' : 'NotRegistered', resourceTypes: [] }),
  },
  {
    method: 'PUT',
    path: new RegExp(`^${group}$`),
    versions: ['2021-04-01'],
    needs: always('Microsoft.Resources/subscriptions/resourceGroups/write'),
    answer({ body, found: [name = ''] }, { world }) {
      const parsed = checked(groupBody, body);
      if ('refused' in parsed) return parsed.refused;
      if (!/^[\w().-]{1,90}$/.test(name) || name.endsWith('.'))
        return failure(400, 'InvalidResourceGroup', `The name '${name}' is not valid.`);
      const { location: where, tags = {} } = parsed.value;
      if (where !== location)
        return failure(400, 'LocationNotAvailableForResourceGroup', `The provided location '${where}' is not available.`);
      const before = world.groups.get(name.toLowerCase());
      if (before?.state === 'Deleting')
        return failure(409, 'ResourceGroupBeingDeleted', `The resource group '${name}' is in deprovisioning state.`);
      const { group: made, isNew } = world.makeGroup(name, where, tags);
      return { status: isNew ? 201 : 200, json: shownGroup(made) };
    },
  },
  {
    method: 'GET',
    path: new RegExp(`^${group}$`),
    versions: ['2021-04-01'],
    needs: always('Microsoft.Resources/subscriptions/resourceGroups/read'),
    answer({ found: [name = ''] }, { world }) {
      const its = world.groups.get(name.toLowerCase());
      return its === undefined
        ? failure(404, 'ResourceGroupNotFound', `Resource group '${name}' could not be found.`)
        : ok(shownGroup(its));
    },
  },
  {
    method: 'DELETE',
    path: new RegExp(`^${group}$`),
    versions: ['2021-04-01'],
    query: ['forceDeletionTypes'],
    needs: always('Microsoft.Resources/subscriptions/resourceGroups/delete'),
    answer: deleteGroup,
  },
  {
    method: 'GET',
    path: /^\/resource[gG]roups$/,
    versions: ['2021-04-01'],
    query: ['$filter', '$top'],
    needs: always('Microsoft.Resources/subscriptions/resourceGroups/read'),
    answer(asked, facts) {
      const fits = tagFilter(asked.url);
      if (asked.url.searchParams.has('$filter') && fits === null)
        return failure(400, 'InvalidFilterInQueryString', 'Invalid $filter.');
      const { groups, isListed } = facts.world;
      const all = [...groups.values()].filter((one) => isListed(one) && (fits === null || fits(one)));
      return paged(asked, facts, all.map(shownGroup));
    },
  },
  {
    method: 'GET',
    path: /^\/resources$/,
    versions: ['2021-04-01'],
    query: ['$filter', '$expand', '$top'],
    needs: always('Microsoft.Resources/subscriptions/resources/read'),
    answer(asked, facts) {
      const fits = tagFilter(asked.url);
      if (fits === null) return failure(400, 'InvalidFilterInQueryString', 'Invalid $filter.');
      const all = [...facts.world.resources.values()].filter((one) => facts.world.isListed(one) && fits(one));
      return paged(asked, facts, all.map(shownResource));
    },
  },
  {
    method: 'GET',
    path: /^\/operationresults\/([^/]+)$/,
    versions: ['2021-04-01'],
    needs: always(),
    answer({ found: [id = ''] }, { world, retryAfter }) {
      const one = world.operations.get(id);
      if (one === undefined) return failure(404, 'NotFound', 'The operation was not found.');
      if (one.state === 'InProgress') return { status: 202, headers: { 'Retry-After': String(retryAfter) } };
      return one.error === null ? { status: 200 } : failure(409, one.error.code, one.error.message, one.error.details);
    },
  },
  {
    method: 'PUT',
    path: machinePath,
    versions: compute,
    answer: putMachine,
    needs({ body }) {
      const { properties } = machineBody.safeParse(body).data ?? {};
      const inline = properties?.networkProfile.networkInterfaceConfigurations ?? [];
      const hasAddress = inline.some((one) =>
        one.properties.ipConfigurations.some((ip) => ip.properties.publicIPAddressConfiguration !== undefined),
      );
      const image = properties?.storageProfile.imageReference ?? {};
      return [
        ...['Microsoft.Compute/virtualMachines/write', 'Microsoft.Compute/disks/write'],
        ...['Microsoft.Network/networkInterfaces/write', 'Microsoft.Network/networkInterfaces/join/action'],
        'Microsoft.Network/virtualNetworks/subnets/join/action',
        ...(inline.some((one) => one.properties.networkSecurityGroup !== undefined)
          ? ['Microsoft.Network/networkSecurityGroups/join/action']
          : []),
        ...(hasAddress ? ['Microsoft.Network/publicIPAddresses/write', 'Microsoft.Network/publicIPAddresses/join/action'] : []),
        ...('id' in image ? imageNeeds(String(image.id)) : []),
      ];
    },
  },
  {
    method: 'GET',
    path: machinePath,
    versions: compute,
    query: ['$expand'],
    needs: always('Microsoft.Compute/virtualMachines/read'),
    answer(asked, facts) {
      const machine = findMachine(asked, facts);
      return machine === null ? notFound(asked.url.pathname) : ok(shownMachine(machine, facts.world));
    },
  },
  {
    method: 'PATCH',
    path: machinePath,
    versions: compute,
    needs: always('Microsoft.Compute/virtualMachines/write'),
    answer(asked, facts) {
      const machine = findMachine(asked, facts);
      if (machine === null) return notFound(asked.url.pathname);
      const parsed = checked(machinePatch, asked.body);
      if ('refused' in parsed) return parsed.refused;
      machine.shown = parsed.value.properties.userData;
      return ok(shownMachine(machine, facts.world));
    },
  },
  {
    method: 'GET',
    path: new RegExp(`${machinePath.source.slice(0, -1)}/instanceView$`),
    versions: compute,
    needs: always('Microsoft.Compute/virtualMachines/read'),
    answer(asked, facts) {
      const machine = findMachine(asked, facts);
      return machine === null ? notFound(asked.url.pathname) : ok(viewOf(machine));
    },
  },
  {
    method: 'DELETE',
    path: machinePath,
    versions: compute,
    query: ['forceDeletion'],
    needs: always('Microsoft.Compute/virtualMachines/delete'),
    answer(asked, facts) {
      const machine = findMachine(asked, facts);
      // Removing what is not there is a success for Compute.
      return machine === null ? { status: 204 } : operationReply(facts, facts.world.removeMachine(machine).id, 202);
    },
  },
  {
    method: 'GET',
    path: /^\/providers\/Microsoft\.Compute\/virtualMachines$/,
    versions: compute,
    query: ['statusOnly'],
    needs: always('Microsoft.Compute/virtualMachines/read'),
    answer(asked, facts) {
      const onlyStatus = asked.url.searchParams.get('statusOnly') === 'true';
      const all = facts.world.machines().filter(facts.world.isListed);
      const status = (one: Machine) => {
        const { id, name, type, location: where } = shownMachine(one, facts.world);
        return { id, name, type, location: where, properties: { instanceView: viewOf(one) } };
      };
      return paged(asked, facts, onlyStatus ? all.map(status) : all.map((one) => shownMachine(one, facts.world)));
    },
  },
  {
    method: 'POST',
    path: new RegExp(`${machinePath.source.slice(0, -1)}/retrieveBootDiagnosticsData$`),
    versions: compute,
    query: ['sasUriExpirationTimeInMinutes'],
    needs: always('Microsoft.Compute/virtualMachines/retrieveBootDiagnosticsData/action'),
    answer(asked, facts) {
      const machine = findMachine(asked, facts);
      if (machine === null) return notFound(asked.url.pathname);
      if (machine.body.properties.diagnosticsProfile?.bootDiagnostics.enabled !== true)
        return failure(409, 'OperationNotAllowed', 'Boot diagnostics is not enabled.');
      const where = `${facts.origin()}/bootdiagnostics/${machine.name}`;
      return ok({
        consoleScreenshotBlobUri: `${where}.screenshot.bmp?sig=s3cret`,
        serialConsoleLogBlobUri: `${where}.serialconsole.log?sig=s3cret`,
      });
    },
  },
  {
    method: 'GET',
    path: /^\/providers\/Microsoft\.Compute\/locations\/[^/]+\/operations\/([^/]+)$/,
    versions: compute,
    query: ['monitor'],
    needs: always('Microsoft.Compute/locations/operations/read'),
    answer({ found: [id = ''], url }, { world, retryAfter }) {
      const one = world.operations.get(id);
      if (one === undefined) return failure(404, 'NotFound', 'The operation was not found.');
      const headers = { 'Retry-After': String(retryAfter) };
      if (url.searchParams.has('monitor')) return one.state === 'InProgress' ? { status: 202, headers } : { status: 200 };
      return { status: 200, headers, json: { name: id, status: one.state, ...(one.error !== null && { error: one.error }) } };
    },
  },
  ...(['disk', 'interface', 'address'] as const).flatMap((kind): Route[] => {
    const path = new RegExp(`^${group}/providers/${types[kind].replace('.', '\\.')}/([^/]+)$`);
    const versions = [kind === 'disk' ? '2024-03-02' : '2024-05-01'];
    const find = ({ found }: Asked, { world }: Facts): Resource | undefined =>
      world.resources.get(
        `/subscriptions/${subscription}/resourceGroups/${found[0]}/providers/${types[kind]}/${found[1]}`.toLowerCase(),
      );
    return [
      {
        method: 'GET',
        path,
        versions,
        needs: always(`${types[kind]}/read`),
        answer(asked, facts) {
          const one = find(asked, facts);
          if (one === undefined) return notFound(asked.url.pathname);
          const { id, name, location: where, tags } = one;
          return ok({ id, name, type: types[kind], location: where, tags, properties: {} });
        },
      },
      {
        method: 'DELETE',
        path,
        versions,
        needs: always(`${types[kind]}/delete`),
        answer(asked, facts) {
          const one = find(asked, facts);
          if (one === undefined) return { status: 204 };
          facts.world.removeResource(one);
          return { status: 202 };
        },
      },
    ];
  }),
  {
    method: 'GET',
    path: /^\/providers\/Microsoft\.Compute\/skus$/,
    versions: ['2021-07-01'],
    query: ['$filter'],
    needs: always('Microsoft.Compute/skus/read'),
    answer(asked, facts) {
      if (asked.url.searchParams.get('$filter') !== `location eq '${location}'`)
        return failure(400, 'InvalidFilter', 'Invalid $filter.');
      const all = [...facts.sizes].map(([name, { family, cores, isRestricted = false }]) => ({
        resourceType: 'virtualMachines',
        name,
        family,
        locations: [location],
        capabilities: [
          { name: 'vCPUs', value: String(cores) },
          { name: 'CpuArchitectureType', value: 'x64' },
          { name: 'LowPriorityCapable', value: 'True' },
        ],
        restrictions: isRestricted ? [{ type: 'Location', values: [location], reasonCode: 'NotAvailableForSubscription' }] : [],
      }));
      return paged(asked, facts, [{ resourceType: 'disks', name: 'Premium_LRS', locations: [location] }, ...all]);
    },
  },
  {
    method: 'GET',
    path: /^\/providers\/Microsoft\.Compute\/locations\/([^/]+)\/usages$/,
    versions: compute,
    needs: always('Microsoft.Compute/locations/usages/read'),
    answer: (asked, facts) =>
      paged(
        asked,
        facts,
        [...facts.quotas].map(([value, { title, limit }]) => ({
          unit: 'Count',
          currentValue: usedOf(facts, value),
          limit,
          name: { value, localizedValue: title },
        })),
      ),
  },
  {
    method: 'GET',
    path: /^\/providers\/Microsoft\.Compute\/locations\/([^/]+)\/publishers\/([^/]+)\/artifacttypes\/vmimage\/offers\/([^/]+)\/skus\/([^/]+)\/versions$/,
    versions: compute,
    query: ['$top', '$orderby'],
    needs: always('Microsoft.Compute/locations/publishers/artifacttypes/offers/skus/versions/read'),
    answer({ found: [, ...parts] }, { images }) {
      const has = images.has([...parts, 'latest'].join(':'));
      return has
        ? ok([{ id: 'x', name: '24.04.202611010', location }])
        : failure(404, 'NotFound', `Artifact: VMImage was not found.`);
    },
  },
  {
    method: 'GET',
    path: new RegExp(`^${group}/providers/Microsoft\\.Compute/(images/[^/]+|galleries/.+)$`),
    versions: ['2024-03-03', '2025-04-01'],
    needs: ({ url }) => imageNeeds(url.pathname),
    answer: ({ url }, { images }) =>
      images.has(url.pathname.toLowerCase()) ? ok({ id: url.pathname, location }) : notFound(url.pathname),
  },
  {
    method: 'GET',
    path: new RegExp(`^${group}/providers/Microsoft\\.Network/virtualNetworks/([^/]+)$`),
    versions: ['2024-05-01'],
    needs: always('Microsoft.Network/virtualNetworks/read'),
    answer({ url }, { subnets, networkLocation }) {
      const prefix = `${url.pathname.toLowerCase()}/subnets/`;
      const own = [...subnets].filter(([id]) => id.startsWith(prefix));
      if (!prefix.endsWith('/virtualnetworks/onejob/subnets/')) return notFound(url.pathname);
      const shown = own.map(([id, properties]) => ({ id, name: id.slice(prefix.length), properties }));
      return ok({ id: url.pathname, location: networkLocation(), properties: { subnets: shown } });
    },
  },
  {
    method: 'GET',
    path: new RegExp(`^${group}/providers/Microsoft\\.Network/networkSecurityGroups/([^/]+)$`),
    versions: ['2024-05-01'],
    needs: always('Microsoft.Network/networkSecurityGroups/read'),
    answer({ url }, { securityGroups }) {
      const found = securityGroups.get(url.pathname.toLowerCase());
      return found === undefined
        ? notFound(url.pathname)
        : ok({ id: url.pathname, location: found.location, properties: { securityRules: found.rules } });
    },
  },
  {
    method: 'POST',
    path: scheduleAt('virtualMachinesSubmitDeallocate'),
    versions: ['2025-05-01'],
    answer: submitEnd,
    needs: always(
      'Microsoft.ComputeSchedule/locations/virtualMachinesSubmitDeallocate/action',
      'Microsoft.Compute/virtualMachines/deallocate/action',
    ),
  },
  {
    method: 'POST',
    path: scheduleAt('virtualMachinesGetOperationStatus'),
    versions: ['2025-05-01'],
    answer: endStatus,
    needs: always('Microsoft.ComputeSchedule/locations/virtualMachinesGetOperationStatus/action'),
  },
];

function imageNeeds(id: string): readonly string[] {
  if (/\/images\/[^/]+\/versions\//i.test(id)) return ['Microsoft.Compute/galleries/images/versions/read'];
  return [/\/galleries\//i.test(id) ? 'Microsoft.Compute/galleries/images/read' : 'Microsoft.Compute/images/read'];
}
