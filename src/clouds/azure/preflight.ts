/** What `cloud check` examines. It creates nothing. */
import { z } from 'zod';
import { type Finding, fine, problem, warning } from '../../base/finding.ts';
import type { Cloud, HostPlan } from '../../ports/cloud.ts';
import { examineAfter, managerOnly, priceFindings } from '../kit/preflight.ts';
import { type Arm, get } from './arm.ts';
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
  readonly price: Cloud['price'];
}

const text = z.string().nullish();
const subscriptionShape = z.object({ displayName: text, state: text });
const texts = z.array(z.string()).catch([]);
const role = z.object({ actions: texts, notActions: texts });
const providerShape = z.object({ registrationState: z.string() });
const sku = z.object({
  name: z.string(),
  resourceType: z.string(),
  family: text,
  capabilities: z.array(z.object({ name: z.string(), value: z.string() })).nullish(),
  restrictions: z.array(z.object({ type: text, reasonCode: text })).nullish(),
});
const usage = z.object({
  limit: z.number(),
  currentValue: z.number(),
  name: z.object({ value: z.string(), localizedValue: text }),
});
const imageVersions = z.array(z.object({ name: z.string() }));
const ownImage = z.object({ location: text });
const subnetShape = z.object({ natGateway: z.unknown().optional(), networkSecurityGroup: z.unknown().optional() }).nullish();
const networkShape = z.object({
  location: z.string(),
  properties: z.object({ subnets: z.array(z.object({ name: z.string(), properties: subnetShape })) }),
});
const ruleShape = z.object({ direction: z.string(), access: z.string() }).nullish();
const rules = z.array(z.object({ name: text, properties: ruleShape })).nullish();
const groupShape = z.object({ location: z.string(), properties: z.object({ securityRules: rules }).nullish() });

export function preflight(parts: Parts, plan: HostPlan, signal: AbortSignal): Promise<Finding[]> {
  return examineAfter(
    ['credential', async (of) => [await signedIn(of, parts, signal)]],
    [
      ['permission', (of) => allowed(of, parts, plan, signal)],
      ['provider', (of) => providers(of, parts, signal)],
      ['size', (of) => sizes(of, parts, plan, signal)],
      ['image', async (of) => [await image(of, parts, plan, signal)]],
      ['network', (of) => network(of, parts, signal)],
      ['end of life', (of) => [endOfLife(of, parts, plan)]],
      ['price', (of) => priceFindings(of, plan, parts.price, signal)],
    ],
  );
}

async function signedIn(subject: string, { config, arm, credential }: Parts, signal: AbortSignal): Promise<Finding> {
  const { subscription } = config;
  const call = get('subscriptions', 'self', `/subscriptions/${subscription}`, `look at subscription ${subscription}`);
  const { displayName, state } = await arm.read(subscriptionShape, call, signal);
  const where = `subscription ${displayName ?? subscription}`;
  if (state === 'Enabled') return fine(subject, `${credential.title} is accepted for ${where}.`);
  return problem(subject, `${where} is "${state}", not enabled.`, 'Enable it in the Azure portal.');
}

async function allowed(subject: string, { config, arm }: Parts, plan: HostPlan, signal: AbortSignal): Promise<Finding[]> {
  const path = `/subscriptions/${config.subscription}/providers/Microsoft.Authorization/permissions`;
  const roles = await arm.all(role, get('authorization', 'self', path, 'read permissions'), signal);
  const ofOwnImages: readonly string[] = imageId.test(plan.image.from) ? [] : permissions.ownImage;
  return allPermissions
    .filter((one) => !ofOwnImages.includes(one))
    .map((one) =>
      allows(roles, one)
        ? fine(subject, one)
        : problem(subject, `${one} is missing.`, 'Give the credential the role in deploy/cloud/azure-role.json.'),
    );
}

function providers(subject: string, { config, arm }: Parts, signal: AbortSignal): Promise<Finding[]> {
  const names = ['Microsoft.Compute', 'Microsoft.Network', ...(config.deathDate === 'cloud' ? ['Microsoft.ComputeSchedule'] : [])];
  const look = async (name: string): Promise<Finding> => {
    const call = get('resources', 'providers', `/subscriptions/${config.subscription}/providers/${name}`, `look at ${name}`);
    const { registrationState } = await arm.read(providerShape, call, signal);
    if (registrationState === 'Registered') return fine(subject, `${name} is registered.`);
    const hint = `Run "az provider register --namespace ${name}"; it takes some minutes.`;
    return problem(subject, `${name} is "${registrationState}", not registered.`, hint);
  };
  return Promise.all(names.map(look));
}

/** Sizes that exist, that the subscription may use, and whose quotas are enough for `max` of them. */
async function sizes(subject: string, { config, arm }: Parts, plan: HostPlan, signal: AbortSignal): Promise<Finding[]> {
  const { subscription, location } = config;
  const { types, spot, max, image: booted } = plan;
  const compute = `/subscriptions/${subscription}/providers/Microsoft.Compute`;
  const list = get('skus', 'sizes', `${compute}/skus`, `list sizes in ${location}`);
  const skus = await arm.all(sku, { ...list, query: { $filter: `location eq '${location}'` } }, signal);
  const counts = get('compute', 'quotas', `${compute}/locations/${location}/usages`, `list quotas in ${location}`);
  const usages = await arm.all(usage, counts, signal);

  const quota = (type: string, cores: number, name: string, title: string): Finding[] => {
    const one = usages.find(({ name: its }) => its.value.toLowerCase() === name.toLowerCase());
    if (one === undefined || Number.isNaN(cores)) return [];
    const free = one.limit - one.currentValue;
    const message = `${one.name.localizedValue ?? title} in ${location}: ${one.limit}, of which ${one.currentValue} are used; ${max} of ${type} need ${max * cores}.`;
    const hint = `Ask for at least ${one.currentValue + max * cores} in the Azure portal under Quotas.`;
    if (free >= max * cores) return [fine('quota', message)];
    if (free >= cores) return [warning('quota', message, hint)];
    // What uses it now may end.
    return [{ ...problem('quota', message, hint), ...(one.limit >= cores && { mayPass: true }) }];
  };

  return types.flatMap((type): Finding[] => {
    const why = sizeProblem(type);
    if (why !== null) return [problem(subject, why)];
    const found = skus.find((one) => one.resourceType === 'virtualMachines' && one.name.toLowerCase() === type.toLowerCase());
    if (found === undefined) return [problem(subject, `${type} does not exist in ${location}.`, 'Name another size or location.')];
    const { restrictions, family } = found;
    if (restrictions?.some(({ type: what }) => what === 'Location') === true) {
      const reason = restrictions.map(({ reasonCode }) => reasonCode ?? '').find((code) => code !== '') ?? 'restricted';
      const how = 'Ask Azure for access to it in the portal (Quotas, or a support request), or name another location.';
      return [problem(subject, `${type} in ${location} is not open to this subscription (${reason}).`, how)];
    }
    const capability = (name: string): string | null => found.capabilities?.find((one) => one.name === name)?.value ?? null;
    const cores = Number(capability('vCPUs') ?? Number.NaN);
    const findings = [fine(subject, `${type} is offered in ${location}.`)];
    if (needsGrid(type) && booted.has === 'nothing') {
      const message = `${type} works only with NVIDIA's GRID driver, which onejob does not install.`;
      findings.push(warning(subject, message, 'Write an "image" that has it.'));
    }
    if (capability('CpuArchitectureType') === 'Arm64')
      findings.push(warning(subject, `${type} has an Arm processor.`, 'Write an "image" for it.'));
    if (spot === 'only' && capability('LowPriorityCapable') === 'False')
      findings.push(problem(subject, `${type} is not offered as spot.`));
    if (spot !== 'only' && family != null) findings.push(...quota(type, cores, family, family));
    if (spot !== 'only') findings.push(...quota(type, cores, 'cores', 'Total Regional vCPUs'));
    if (spot !== 'never') findings.push(...quota(type, cores, 'lowPriorityCores', 'Total Regional Spot vCPUs'));
    return findings;
  });
}

async function image(
  subject: string,
  { config, arm }: Parts,
  { image: { from } }: HostPlan,
  signal: AbortSignal,
): Promise<Finding> {
  const reference = imageReference(from);
  if ('id' in reference) {
    const version = /\/galleries\//i.test(reference.id) ? 'galleries' : 'compute';
    const { location: where } = await arm.read(ownImage, get(version, 'ownImage', from, `look at image ${from}`), signal);
    return fine(subject, `${from} exists${where == null ? '' : ` in ${where}`}.`);
  }
  const { publisher, offer, sku: name, version } = reference;
  const { subscription, location } = config;
  const path = `/subscriptions/${subscription}/providers/Microsoft.Compute/locations/${location}/publishers/${publisher}/artifacttypes/vmimage/offers/${offer}/skus/${name}/versions`;
  const query = { $orderby: 'name desc', ...(version === 'latest' && { $top: '1' }) };
  const versions = await arm.read(
    imageVersions,
    { ...get('compute', 'publicImage', path, `look for image ${from}`), query },
    signal,
  );
  const found = version === 'latest' ? versions[0] : versions.find((one) => one.name === version);
  if (found !== undefined) return fine(subject, `${from} is version ${found.name} now.`);
  return problem(subject, `${from} does not exist in ${location}.`, 'See "az vm image list --all" for what does.');
}

async function network(subject: string, { config, arm }: Parts, signal: AbortSignal): Promise<Finding[]> {
  const { subnet, securityGroup, publicIp, location } = config;
  const [path = '', name = ''] = subnet.split(/\/subnets\//i);
  const all = await arm.read(networkShape, get('network', 'network', path, `look at network ${path}`), signal);
  if (all.location.toLowerCase() !== location)
    return [problem(subject, `${path} is in ${all.location}, not in ${location}.`, 'Name a subnet of that location.')];
  const found = all.properties.subnets.find((one) => one.name.toLowerCase() === name.toLowerCase());
  if (found === undefined) return [problem(subject, `${path} has no subnet "${name}".`, 'Correct "subnet".')];
  const { properties } = found;
  const findings = [fine(subject, `${subnet} exists.`)];
  if (!publicIp && properties?.natGateway == null) {
    const message = '"public_ip" is false, and the subnet has no NAT gateway: machines may have no way out.';
    findings.push(warning(subject, message, 'Give the subnet another way out.'));
  }
  if (securityGroup === null && properties?.networkSecurityGroup == null) {
    const message = 'Neither the subnet nor machines have a network security group.';
    findings.push(warning(subject, message, 'Write "security_group", with no inbound rules.'));
  }
  if (securityGroup === null) return findings;
  const group = await arm.read(groupShape, get('network', 'securityGroup', securityGroup, `look at ${securityGroup}`), signal);
  if (group.location.toLowerCase() !== location) {
    const message = `${securityGroup} is in ${group.location}, not in ${location}.`;
    findings.push(problem(subject, message, 'Name one of that location.'));
  }
  const open = (group.properties?.securityRules ?? []).filter(
    ({ properties: its }) => its?.direction === 'Inbound' && its.access === 'Allow',
  );
  if (open.length === 0) return [...findings, fine(subject, `${securityGroup} lets nothing in by a rule of its own.`)];
  const message = `${securityGroup} lets something in: ${open.map((one) => one.name).join(', ')}.`;
  return [...findings, warning(subject, message, 'Machines need no inbound connection; remove the rule.')];
}

function endOfLife(subject: string, { config }: Parts, { lifetime }: HostPlan): Finding {
  if (config.deathDate === 'manager-only') return managerOnly(subject);
  if (lifetime > longestAhead) return problem(subject, 'Azure ends machines at most 14 days ahead.', 'Write a shorter "lifetime".');
  return fine(subject, 'Azure deallocates each machine at the end of its lifetime; onejob then removes its disk and address.');
}
