/** What `cloud check` examines. It creates nothing. */
import { z } from 'zod';
import { messageOf, OnejobError } from '../../errors.ts';
import { type Finding, fine, problem, warning } from '../../finding.ts';
import { type HostPlan, needsPrice, type Offer, type Price } from '../cloud.ts';
import type { Arm, Call } from './arm.ts';
import type { AzureConfig } from './config.ts';
import type { ArmCredential } from './credential.ts';
import { longestAhead } from './end.ts';
import { imageId } from './id.ts';
import { imageReference } from './machine.ts';
import { allows, allPermissions, permissions } from './permissions.ts';
import { needsGrid, sizeProblem } from './sizes.ts';

interface Parts {
  readonly config: AzureConfig;
  readonly arm: Arm;
  readonly credential: ArmCredential;
  price(offer: Pick<Offer, 'type' | 'spot'>, signal: AbortSignal): Promise<Price | null>;
}

const texts = z.array(z.string()).catch([]);
const role = z.object({ actions: texts, notActions: texts });
const sku = z.object({
  name: z.string(),
  resourceType: z.string(),
  family: z.string().nullish(),
  capabilities: z.array(z.object({ name: z.string(), value: z.string() })).nullish(),
  restrictions: z.array(z.object({ type: z.string().nullish(), reasonCode: z.string().nullish() })).nullish(),
});
const usage = z.object({
  limit: z.number(),
  currentValue: z.number(),
  name: z.object({ value: z.string(), localizedValue: z.string().nullish() }),
});
const imageVersions = z.array(z.object({ name: z.string() }));
const networkShape = z.object({
  location: z.string(),
  properties: z.object({
    subnets: z.array(
      z.object({
        name: z.string(),
        properties: z.object({ natGateway: z.unknown().optional(), networkSecurityGroup: z.unknown().optional() }).nullish(),
      }),
    ),
  }),
});
const groupShape = z.object({
  location: z.string(),
  properties: z
    .object({
      securityRules: z
        .array(
          z.object({ name: z.string().nullish(), properties: z.object({ direction: z.string(), access: z.string() }).nullish() }),
        )
        .nullish(),
    })
    .nullish(),
});

export async function preflight(parts: Parts, plan: HostPlan, signal: AbortSignal): Promise<Finding[]> {
  const { config, arm, credential } = parts;
  const { subscription, location } = config;
  const base = `/subscriptions/${subscription}`;
  const findings: Finding[] = [];

  /** One examination; what keeps it from its answer is a finding, too. */
  const examine = async (subject: string, work: () => Promise<Finding[]>): Promise<boolean> => {
    try {
      findings.push(...(await work()));
      return true;
    } catch (error) {
      findings.push(problem(subject, messageOf(error), error instanceof OnejobError ? error.hint : null));
      return false;
    }
  };

  const isIn = await examine('credential', async () => {
    const call: Call = {
      method: 'GET',
      path: base,
      version: 'subscriptions',
      needs: 'self',
      doing: `look at subscription ${subscription}`,
    };
    const shape = z.object({ displayName: z.string().nullish(), state: z.string().nullish() });
    const { displayName, state } = await arm.read(shape, call, signal);
    const where = `subscription ${displayName ?? subscription}`;
    if (state !== 'Enabled')
      return [problem('credential', `${where} is "${state}", not enabled.`, 'Enable it in the Azure portal.')];
    return [fine('credential', `${credential.title} is accepted for ${where}.`)];
  });
  if (!isIn) return findings;

  await examine('permissions', async () => {
    const roles: z.output<typeof role>[] = [];
    const path = `${base}/providers/Microsoft.Authorization/permissions`;
    const call: Call = { method: 'GET', path, version: 'authorization', needs: 'self', doing: 'read permissions' };
    await arm.pages(role, call, (found) => roles.push(...found), signal);
    const ofOwnImages: readonly string[] = imageId.test(plan.image.from) ? [] : permissions.ownImage;
    const needed = allPermissions.filter((one) => !ofOwnImages.includes(one));
    return needed.map((permission) =>
      allows(roles, permission)
        ? fine('permission', permission)
        : problem('permission', `${permission} is missing.`, 'Give the credential the role in deploy/cloud/azure-role.json.'),
    );
  });

  await examine('providers', async () => {
    const names = [
      'Microsoft.Compute',
      'Microsoft.Network',
      ...(config.deathDate === 'cloud' ? ['Microsoft.ComputeSchedule'] : []),
    ];
    const found: Finding[] = [];
    for (const name of names) {
      const call: Call = {
        method: 'GET',
        path: `${base}/providers/${name}`,
        version: 'resources',
        needs: 'providers',
        doing: `look at ${name}`,
      };
      const { registrationState } = await arm.read(z.object({ registrationState: z.string() }), call, signal);
      const hint = `Run "az provider register --namespace ${name}"; it takes some minutes.`;
      found.push(
        registrationState === 'Registered'
          ? fine('provider', `${name} is registered.`)
          : problem('provider', `${name} is "${registrationState}", not registered.`, hint),
      );
    }
    return found;
  });

  await examine('sizes', () => sizes(parts, plan, signal));
  await examine('image', async () => [await image(parts, plan, signal)]);
  await examine('network', () => network(parts, signal));

  if (config.deathDate === 'manager-only') {
    const how = 'Remove "death_date" to have Azure end machines, too.';
    findings.push(warning('end of life', 'Only onejob ends machines: "death_date" is manager-only.', how));
  } else if (plan.lifetime > longestAhead) {
    findings.push(problem('end of life', 'Azure ends machines at most 14 days ahead.', 'Write a shorter "lifetime".'));
  } else
    findings.push(
      fine('end of life', 'Azure deallocates each machine at the end of its lifetime; onejob then removes its disk and address.'),
    );

  await examine('price', async () => {
    const found: Finding[] = [];
    for (const type of plan.types) {
      for (const spot of plan.spot === 'never' ? [false] : plan.spot === 'only' ? [true] : [true, false]) {
        const what = `${type}${spot ? ' (spot)' : ''} in ${location}`;
        const price = await parts.price({ type, spot }, signal);
        found.push(
          price === null
            ? warning('price', `The price of ${what} is not known.`, needsPrice)
            : fine('price', `${what} costs about ${price.perHour} USD per hour (as of ${price.asOf}).`),
        );
      }
    }
    return found;
  });
  return findings;
}

/** Sizes that exist, that the subscription may use, and whose quotas are enough for `max` of them. */
async function sizes(
  { config, arm }: Parts,
  { types, spot, max, image: { has } }: HostPlan,
  signal: AbortSignal,
): Promise<Finding[]> {
  const { subscription, location } = config;
  const compute = `/subscriptions/${subscription}/providers/Microsoft.Compute`;
  const known = new Map<string, z.output<typeof sku>>();
  const list: Call = {
    method: 'GET',
    path: `${compute}/skus`,
    version: 'skus',
    needs: 'sizes',
    doing: `list sizes in ${location}`,
  };
  const query = { $filter: `location eq '${location}'` };
  const take = (found: z.output<typeof sku>[]): void => {
    for (const one of found) if (one.resourceType === 'virtualMachines') known.set(one.name.toLowerCase(), one);
  };
  await arm.pages(sku, { ...list, query }, take, signal);
  const usages = new Map<string, z.output<typeof usage>>();
  const counts: Call = {
    method: 'GET',
    path: `${compute}/locations/${location}/usages`,
    version: 'compute',
    needs: 'quotas',
    doing: `list quotas in ${location}`,
  };
  const keep = (found: z.output<typeof usage>[]): void => {
    for (const one of found) usages.set(one.name.value.toLowerCase(), one);
  };
  await arm.pages(usage, counts, keep, signal);

  return types.flatMap((type): Finding[] => {
    const why = sizeProblem(type);
    if (why !== null) return [problem('size', why)];
    const found = known.get(type.toLowerCase());
    if (found === undefined) return [problem('size', `${type} does not exist in ${location}.`, 'Name another size or location.')];
    if (found.restrictions?.some(({ type: what }) => what === 'Location') === true) {
      const reason = found.restrictions.map(({ reasonCode }) => reasonCode ?? '').find((code) => code !== '') ?? 'restricted';
      const how = 'Ask Azure for access to it in the portal (Quotas, or a support request), or name another location.';
      return [problem('size', `${type} in ${location} is not open to this subscription (${reason}).`, how)];
    }
    const capability = (name: string): string | null => found.capabilities?.find((one) => one.name === name)?.value ?? null;
    const cores = Number(capability('vCPUs') ?? Number.NaN);
    const grid =
      needsGrid(type) && has === 'nothing'
        ? [
            warning(
              'size',
              `${type} works only with NVIDIA's GRID driver, which onejob does not install.`,
              'Write an "image" that has it.',
            ),
          ]
        : [];
    const arm64 =
      capability('CpuArchitectureType') === 'Arm64'
        ? [warning('size', `${type} has an Arm processor.`, 'Write an "image" for it.')]
        : [];
    const noSpot =
      spot === 'only' && capability('LowPriorityCapable') === 'False' ? [problem('size', `${type} is not offered as spot.`)] : [];
    const quota = (name: string, title: string): Finding[] => {
      const one = usages.get(name.toLowerCase());
      if (one === undefined || Number.isNaN(cores)) return [];
      const free = one.limit - one.currentValue;
      const text = `${one.name.localizedValue ?? title} in ${location}: ${one.limit}, of which ${one.currentValue} are used; ${max} of ${type} need ${max * cores}.`;
      const hint = `Ask for at least ${one.currentValue + max * cores} in the Azure portal under Quotas.`;
      if (free >= max * cores) return [fine('quota', text)];
      return [free >= cores ? warning('quota', text, hint) : problem('quota', text, hint)];
    };
    const own = found.family == null ? [] : quota(found.family, found.family);
    return [
      ...[fine('size', `${type} is offered in ${location}.`), ...grid, ...arm64, ...noSpot],
      ...(spot === 'only' ? [] : [...own, ...quota('cores', 'Total Regional vCPUs')]),
      ...(spot === 'never' ? [] : quota('lowPriorityCores', 'Total Regional Spot vCPUs')),
    ];
  });
}

async function image({ config, arm }: Parts, plan: HostPlan, signal: AbortSignal): Promise<Finding> {
  const { from } = plan.image;
  const reference = imageReference(from);
  if ('id' in reference) {
    const version = /\/galleries\//i.test(reference.id) ? 'galleries' : 'compute';
    const call: Call = {
      method: 'GET',
      path: reference.id,
      version,
      needs: 'ownImage',
      doing: `look at image ${reference.id}`,
    };
    const { location } = await arm.read(z.object({ location: z.string().nullish() }), call, signal);
    return fine('image', `${reference.id} exists${location == null ? '' : ` in ${location}`}.`);
  }
  const { publisher, offer, sku: name, version } = reference;
  const { subscription, location } = config;
  const path = `/subscriptions/${subscription}/providers/Microsoft.Compute/locations/${location}/publishers/${publisher}/artifacttypes/vmimage/offers/${offer}/skus/${name}/versions`;
  const query = { $orderby: 'name desc', ...(version === 'latest' && { $top: '1' }) };
  const call: Call = { method: 'GET', path, version: 'compute', query, needs: 'publicImage', doing: `look for image ${from}` };
  const versions = await arm.read(imageVersions, call, signal);
  const found = version === 'latest' ? versions[0] : versions.find((one) => one.name === version);
  if (found !== undefined) return fine('image', `${from} is version ${found.name} now.`);
  return problem('image', `${from} does not exist in ${location}.`, 'See "az vm image list --all" for what does.');
}

async function network({ config, arm }: Parts, signal: AbortSignal): Promise<Finding[]> {
  const { subnet, securityGroup, publicIp, location } = config;
  const [path = '', name = ''] = subnet.split(/\/subnets\//i);
  const call: Call = { method: 'GET', path, version: 'network', needs: 'network', doing: `look at network ${path}` };
  const all = await arm.read(networkShape, call, signal);
  if (all.location.toLowerCase() !== location)
    return [problem('network', `${path} is in ${all.location}, not in ${location}.`, 'Name a subnet of that location.')];
  const found = all.properties.subnets.find((one) => one.name.toLowerCase() === name.toLowerCase());
  if (found === undefined) return [problem('network', `${path} has no subnet "${name}".`, 'Correct "subnet".')];
  const { properties } = found;
  const findings = [fine('network', `${subnet} exists.`)];
  if (!publicIp && properties?.natGateway == null)
    findings.push(
      warning(
        'network',
        '"public_ip" is false, and the subnet has no NAT gateway: machines may have no way out.',
        'Give the subnet another way out.',
      ),
    );
  if (securityGroup === null) {
    if (properties?.networkSecurityGroup == null)
      findings.push(
        warning(
          'network',
          'Neither the subnet nor machines have a network security group.',
          'Write "security_group", with no inbound rules.',
        ),
      );
    return findings;
  }
  const look: Call = {
    method: 'GET',
    path: securityGroup,
    version: 'network',
    needs: 'securityGroup',
    doing: `look at ${securityGroup}`,
  };
  const group = await arm.read(groupShape, look, signal);
  if (group.location.toLowerCase() !== location)
    findings.push(
      problem('network', `${securityGroup} is in ${group.location}, not in ${location}.`, 'Name one of that location.'),
    );
  const open = (group.properties?.securityRules ?? []).filter(
    (one) => one.properties?.direction === 'Inbound' && one.properties.access === 'Allow',
  );
  findings.push(
    open.length === 0
      ? fine('network', `${securityGroup} lets nothing in by a rule of its own.`)
      : warning(
          'network',
          `${securityGroup} lets something in: ${open.map(({ name }) => name).join(', ')}.`,
          'Machines need no inbound connection; remove the rule.',
        ),
  );
  return findings;
}
