/**
 * Everything of one owner in the subscription: groups and what has their tags. Azure's list of resources by tag leaves the tags out, so
 * machines come from Compute's own list, and what else is there is told by its group's name or asked for one by one.
 */
import { z } from 'zod';
import { CloudError, type Listing, type Thing, tagKeys } from '../cloud.ts';
import type { Arm, Call } from './arm.ts';
import { groupPath, parseResource, type Resource, type ResourceKind, resourcePath, runName } from './id.ts';

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

type Tags = z.output<typeof tags>;
type Machine = z.output<typeof machineShape>;

export interface Lister {
  readonly subscription: string;
  readonly arm: Arm;
}

export async function listThings(lister: Lister, owner: string, signal: AbortSignal): Promise<Listing> {
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
      if (error.code === 'E_CLOUD_CREDENTIAL') refused = error;
      unknown.push(`${what} of subscription ${lister.subscription} (${error.reason ?? 'no answer'})`);
      return false;
    }
  };

  /** Tags of groups, by name in lower case. */
  const groups = new Map<string, Tags>();
  /** By id in lower case. */
  const machines = new Map<string, Machine>();
  const power = new Map<string, string>();
  const hasGroups = await attempt('resource groups', () => listGroups(lister, owner, groups, things, signal));
  await attempt('machines', () => listMachines(lister, owner, groups, machines, signal));
  if (machines.size > 0) await attempt('states of machines', () => listPower(lister, power, signal));
  for (const [id, machine] of machines) things.push(machineThing(lister, owner, machine, groups, power.get(id) ?? ''));
  // What is in a group of ours ends with it.
  const isInside = (group: string): boolean => groups.has(group) || (!hasGroups && runName.test(group));
  const isKnown = (id: string, { kind, group }: Resource): boolean =>
    machines.has(id.toLowerCase()) || (kind !== 'machine' && isInside(group));
  await attempt('resources with tags', () => listStrays(lister, owner, { isKnown, groups }, things, signal));
  if (complete === 0 && refused !== null) throw refused;
  return { things, unknown };
}

const isOf = (owner: string, found: Tags): boolean => found?.[tagKeys.owner] === owner;
const byOwner = (owner: string) => ({ $filter: `tagName eq '${tagKeys.owner}' and tagValue eq '${owner}'` });

async function listGroups(
  { subscription, arm }: Lister,
  owner: string,
  groups: Map<string, Tags>,
  things: Thing[],
  signal: AbortSignal,
): Promise<void> {
  const call: Call = {
    ...{ method: 'GET', path: `/subscriptions/${subscription}/resourcegroups`, version: 'resources', needs: 'listGroups' },
    ...{ query: byOwner(owner), doing: 'list resource groups' },
  };
  const take = (found: z.output<typeof groupShape>[]): void => {
    for (const { name, location, tags: its, properties } of found) {
      if (!isOf(owner, its)) continue;
      const group = name.toLowerCase();
      groups.set(group, its);
      const state = isEnding(properties?.provisioningState) ? 'ending' : 'running';
      const about = told(its, (run) => group === run);
      things.push({ kind: 'group', id: groupPath(subscription, group), place: location, ...about, state, offer: null });
    }
  };
  await arm.pages(groupShape, call, take, signal);
}

const machinesCall = (subscription: string): Call => ({
  ...{ method: 'GET', path: `/subscriptions/${subscription}/providers/Microsoft.Compute/virtualMachines`, version: 'compute' },
  ...{ needs: 'listMachines', doing: 'list machines' },
});

async function listMachines(
  { subscription, arm }: Lister,
  owner: string,
  groups: ReadonlyMap<string, Tags>,
  machines: Map<string, Machine>,
  signal: AbortSignal,
): Promise<void> {
  const take = (found: Machine[]): void => {
    for (const one of found) {
      const group = parseResource(one.id)?.group;
      if (group !== undefined && (isOf(owner, one.tags) || groups.has(group))) machines.set(one.id.toLowerCase(), one);
    }
  };
  await arm.pages(machineShape, machinesCall(subscription), take, signal);
}

/** Of all machines of the subscription, by id in lower case. */
async function listPower({ subscription, arm }: Lister, power: Map<string, string>, signal: AbortSignal): Promise<void> {
  const take = (found: Machine[]): void => {
    for (const { id, properties } of found) {
      const codes = properties?.instanceView?.statuses?.map(({ code }) => code ?? '') ?? [];
      power.set(id.toLowerCase(), codes.find((code) => code.startsWith('PowerState/'))?.slice('PowerState/'.length) ?? '');
    }
  };
  await arm.pages(machineShape, { ...machinesCall(subscription), query: { statusOnly: 'true' } }, take, signal);
}

function machineThing(
  { subscription }: Lister,
  owner: string,
  machine: Machine,
  groups: ReadonlyMap<string, Tags>,
  power: string,
): Thing {
  const { group = '', name = '' } = parseResource(machine.id) ?? {};
  const { hardwareProfile, priority, provisioningState } = machine.properties ?? {};
  const type = hardwareProfile?.vmSize ?? null;
  return {
    ...{ kind: 'machine', id: resourcePath({ kind: 'machine', subscription, group, name }), place: machine.location },
    ...told(isOf(owner, machine.tags) ? machine.tags : groups.get(group), (run) => group === run || name === run),
    state: stateOf(provisioningState ?? '', power),
    offer: type === null ? null : { type, spot: priority?.toLowerCase() === 'spot', zone: machine.zones?.[0] ?? null },
  };
}

/** What has the owner's tag and is neither a machine that is known nor in a group of its own. */
async function listStrays(
  { subscription, arm }: Lister,
  owner: string,
  known: { isKnown(id: string, resource: Resource): boolean; readonly groups: ReadonlyMap<string, Tags> },
  things: Thing[],
  signal: AbortSignal,
): Promise<void> {
  const strays: { readonly resource: Resource; readonly place: string; readonly tags: Tags }[] = [];
  const take = (found: z.output<typeof resourceShape>[]): void => {
    for (const { id, location, tags: its } of found) {
      const resource = parseResource(id);
      if (resource !== null && !known.isKnown(id, resource)) strays.push({ resource, place: location ?? '', tags: its });
    }
  };
  const call: Call = {
    ...{ method: 'GET', path: `/subscriptions/${subscription}/resources`, version: 'resources', needs: 'listResources' },
    ...{ query: byOwner(owner), doing: 'list resources by tag' },
  };
  await arm.pages(resourceShape, call, take, signal);
  for (const { resource, place, tags: shown } of strays) {
    const { kind, group, name } = resource;
    const id = resourcePath({ ...resource, subscription });
    const its = shown ?? known.groups.get(group) ?? (await tagsOf(arm, id, kind, signal));
    if (its === null || !isOf(owner, its)) continue;
    const about = told(its, (run) => group === run || name.startsWith(run));
    things.push({ kind, id, place, ...about, state: 'running', offer: null });
  }
}

const reading = {
  machine: { version: 'compute', needs: 'listMachines' },
  disk: { version: 'disks', needs: 'readDisk' },
  interface: { version: 'network', needs: 'readInterface' },
  address: { version: 'network', needs: 'readAddress' },
} as const;

/** null: it does not exist any more, or has no tags. */
async function tagsOf(arm: Arm, id: string, kind: ResourceKind, signal: AbortSignal): Promise<Tags | null> {
  const call: Call = { method: 'GET', path: id, ...reading[kind], doing: `read the tags of ${id}` };
  const answer = await arm.ask(call, signal);
  if (answer.status === 404 && /^Resource(Group)?NotFound$/.test(answer.said.code)) return null;
  if (!answer.ok) throw arm.refuse(call, answer);
  return arm.bodyAs(resourceShape, call, answer).tags ?? null;
}

/**
 * What tags say. Anyone can copy tags to a thing of their own, so only what is named as onejob names it has a run, and can be removed.
 */
function told(found: Tags, isNamed: (run: string) => boolean): Pick<Thing, 'run' | 'host' | 'born' | 'expires'> {
  const run = found?.[tagKeys.run] ?? '';
  const number = (key: string): number | null => (/^\d{1,12}$/.test(found?.[key] ?? '') ? Number(found?.[key]) : null);
  return {
    run: runName.test(run) && isNamed(run) ? run : null,
    host: found?.[tagKeys.host] ?? null,
    born: number(tagKeys.born),
    expires: number(tagKeys.expires),
  };
}

const isEnding = (provisioning: string | null | undefined): boolean => provisioning?.toLowerCase() === 'deleting';

/** `power`: as its instance view says it. One that has shut itself down is billed as before, so it counts as running. */
function stateOf(provisioning: string, power: string): Thing['state'] {
  if (isEnding(provisioning)) return 'ending';
  if (power === 'deallocated') return 'stopped';
  if (power === 'starting' || (provisioning.toLowerCase() === 'creating' && power === '')) return 'starting';
  return 'running';
}
