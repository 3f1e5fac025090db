/**
 * Everything of one owner in the subscription: groups and what has their tags. Azure's list of resources by tag leaves the tags out, so
 * machines come from Compute's own list, and what else is there is told by its group's name or asked for one by one.
 */
import { z } from 'zod';
import { CloudError, type Listing, runName, type Thing, tagKeys } from '../../ports/cloud.ts';
import { type Tags, told } from '../kit/things.ts';
import { type Arm, get } from './arm.ts';
import { groupPath, parseResource, type ResourceKind, resourcePath, resources } from './id.ts';

const tags = z.record(z.string(), z.string()).nullish();
const state = z.object({ provisioningState: z.string().nullish() }).nullish();
const groupShape = z.object({ id: z.string(), name: z.string(), location: z.string(), tags, properties: state });
const statuses = z.object({ statuses: z.array(z.object({ code: z.string().nullish() })).nullish() }).nullish();
const machineShape = z.object({
  id: z.string(),
  location: z.string(),
  tags,
  zones: z.array(z.string()).nullish(),
  properties: z
    .object({
      provisioningState: z.string().nullish(),
      priority: z.string().nullish(),
      hardwareProfile: z.object({ vmSize: z.string().nullish() }).nullish(),
      instanceView: statuses,
    })
    .nullish(),
});
const resourceShape = z.object({ id: z.string(), location: z.string().nullish(), tags });

type Machine = z.output<typeof machineShape>;

const isOf = (owner: string, tags: Tags | null | undefined): boolean => tags?.[tagKeys.owner] === owner;

/** What tags say. Anyone can copy tags to a thing of their own, so only what is named as onejob names it has a run, and can be removed. */
function about(tags: Tags | null | undefined, isNamed: (run: string) => boolean): Pick<Thing, 'run' | 'host' | 'born' | 'expires'> {
  const found = told(tags ?? {});
  return { ...found, run: found.run !== null && isNamed(found.run) ? found.run : null };
}

export async function listAzureThings(arm: Arm, subscription: string, owner: string, signal: AbortSignal): Promise<Listing> {
  const things: Thing[] = [];
  const unknown: string[] = [];
  let complete = 0;
  let refused: CloudError | null = null;
  /** What is missing is named in `unknown`; what came before it stays. */
  const attempt = async (what: string, work: () => Promise<void>): Promise<boolean> => {
    try {
      await work();
      complete += 1;
      return true;
    } catch (error) {
      if (!(error instanceof CloudError)) throw error;
      // One that no other try changes says most.
      if (error.code === 'E_CLOUD_CREDENTIAL' || !error.retry) refused = refused?.retry === false ? refused : error;
      unknown.push(`${what} of subscription ${subscription} (${error.reason ?? 'no answer'})`);
      return false;
    }
  };
  const byOwner = { $filter: `tagName eq '${tagKeys.owner}' and tagValue eq '${owner}'` };
  const ofSubscription = `/subscriptions/${subscription}`;
  const machinesCall = get(
    'compute',
    'listMachines',
    `${ofSubscription}/providers/Microsoft.Compute/virtualMachines`,
    'list machines',
  );

  /** Tags of groups, by name in lower case. */
  const groups = new Map<string, Tags>();
  const hasGroups = await attempt('resource groups', () => {
    const call = get('resources', 'listGroups', `${ofSubscription}/resourcegroups`, 'list resource groups');
    const take = (found: readonly z.output<typeof groupShape>[]): void => {
      for (const { name, location, tags: its, properties } of found) {
        if (!isOf(owner, its)) continue;
        const group = name.toLowerCase();
        groups.set(group, its ?? {});
        const state = isEnding(properties?.provisioningState) ? 'ending' : 'running';
        const id = groupPath(subscription, group);
        things.push({ kind: 'group', id, place: location, state, offer: null, ...about(its, (run) => group === run) });
      }
    };
    return arm.pages(groupShape, { ...call, query: byOwner }, take, signal);
  });

  /** By id in lower case. */
  const machines = new Map<string, Machine>();
  await attempt('machines', () => {
    const take = (found: readonly Machine[]): void => {
      for (const one of found) {
        const group = parseResource(one.id)?.group;
        if (group !== undefined && (isOf(owner, one.tags) || groups.has(group))) machines.set(one.id.toLowerCase(), one);
      }
    };
    return arm.pages(machineShape, machinesCall, take, signal);
  });

  /** Of all machines of the subscription, by id in lower case. */
  const power = new Map<string, string>();
  const takePower = (found: readonly Machine[]): void => {
    for (const { id, properties } of found) {
      const codes = properties?.instanceView?.statuses?.map(({ code }) => code ?? '') ?? [];
      power.set(id.toLowerCase(), codes.find((code) => code.startsWith('PowerState/'))?.slice('PowerState/'.length) ?? '');
    }
  };
  const powerCall = { ...machinesCall, query: { statusOnly: 'true' } };
  if (machines.size > 0) await attempt('states of machines', () => arm.pages(machineShape, powerCall, takePower, signal));
  for (const [key, { id, tags: its, location, zones, properties }] of machines) {
    const { group = '', name = '' } = parseResource(id) ?? {};
    const { hardwareProfile, priority, provisioningState } = properties ?? {};
    const type = hardwareProfile?.vmSize ?? null;
    things.push({
      kind: 'machine',
      id: resourcePath({ kind: 'machine', subscription, group, name }),
      place: location,
      ...about(isOf(owner, its) ? its : groups.get(group), (run) => group === run || name === run),
      state: stateOf(provisioningState ?? '', power.get(key) ?? ''),
      offer: type === null ? null : { type, spot: priority?.toLowerCase() === 'spot', zone: zones?.[0] ?? null },
    });
  }

  // What is in a group of ours ends with it.
  const isInside = (group: string): boolean => groups.has(group) || (!hasGroups && runName.test(group));
  await attempt('resources with tags', async () => {
    const call = get('resources', 'listResources', `${ofSubscription}/resources`, 'list resources by tag');
    for (const { id: shown, location, tags: its } of await arm.all(resourceShape, { ...call, query: byOwner }, signal)) {
      const resource = parseResource(shown);
      if (resource === null || machines.has(shown.toLowerCase())) continue;
      const { kind, group, name } = resource;
      if (kind !== 'machine' && isInside(group)) continue;
      const id = resourcePath({ ...resource, subscription });
      const found = its ?? groups.get(group) ?? (await tagsAt(arm, id, kind, signal));
      if (!isOf(owner, found)) continue;
      const isNamed = (run: string): boolean => group === run || name.startsWith(run);
      things.push({ kind, id, place: location ?? '', state: 'running', offer: null, ...about(found, isNamed) });
    }
  });
  if (complete === 0 && refused !== null) throw refused;
  return { things, unknown };
}

/** null: it does not exist any more, or has no tags. */
async function tagsAt(arm: Arm, id: string, kind: ResourceKind, signal: AbortSignal): Promise<Tags | null> {
  const { version, read } = resources[kind];
  const call = get(version, read, id, `read the tags of ${id}`);
  const answer = await arm.ask(call, signal);
  if (answer.status === 404 && /^Resource(Group)?NotFound$/.test(answer.said.code)) return null;
  if (!answer.ok) throw arm.refuse(call, answer);
  return arm.bodyAs(resourceShape, call, answer).tags ?? null;
}

const isEnding = (provisioning: string | null | undefined): boolean => provisioning?.toLowerCase() === 'deleting';

/** `power`: as its instance view says it. One that has shut itself down is billed as before, so it counts as running. */
function stateOf(provisioning: string, power: string): Thing['state'] {
  if (isEnding(provisioning)) return 'ending';
  if (power === 'deallocated') return 'stopped';
  if (power === 'starting' || (provisioning.toLowerCase() === 'creating' && power === '')) return 'starting';
  return 'running';
}
