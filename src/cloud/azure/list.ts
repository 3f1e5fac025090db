/**
 * Everything of one owner in the subscription: groups and what has their tags. Azure's list of resources by tag leaves the tags out, so
 * machines come from Compute's own list, and what else is there is told by its group's name or asked for one by one.
 */
import { z } from 'zod';
import { CloudError, type CloudErrorCode, type Listing, type Thing, tagKeys } from '../cloud.ts';
import type { Arm, Call } from './arm.ts';
import { groupPath, parseResource, type ResourceKind, resourcePath, runName } from './id.ts';

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

/** Why a list is not complete. No other error comes from Azure. */
const mayHappen: ReadonlySet<CloudErrorCode> = new Set([
  ...(['E_CLOUD_UNREACHABLE', 'E_CLOUD_THROTTLED', 'E_CLOUD_DENIED', 'E_CLOUD_ANSWER', 'E_CLOUD_REQUEST'] as const),
  ...(['E_CLOUD_ACCOUNT', 'E_CLOUD_CREDENTIAL'] as const),
]);

export async function listThings(
  { subscription, arm }: { readonly subscription: string; readonly arm: Arm },
  owner: string,
  signal: AbortSignal,
): Promise<Listing> {
  const things: Thing[] = [];
  const unknown: string[] = [];
  let listed = 0;
  let refused: CloudError | null = null;
  const base = `/subscriptions/${subscription}`;
  const isOurs = (found: Tags): boolean => found?.[tagKeys.owner] === owner;
  const byOwner = { $filter: `tagName eq '${tagKeys.owner}' and tagValue eq '${owner}'` };

  /** What is missing is named in `unknown`. */
  const attempt = async (what: string, work: () => Promise<void>): Promise<void> => {
    try {
      await work();
      listed += 1;
    } catch (error) {
      if (!(error instanceof CloudError) || !mayHappen.has(error.code)) throw error;
      if (error.code === 'E_CLOUD_CREDENTIAL') refused = error;
      unknown.push(`${what} of subscription ${subscription} (${error.reason ?? 'no answer'})`);
    }
  };

  const groups = new Map<string, Tags>();
  let hasGroups = false;
  const machines = new Map<string, Machine>();
  const power = new Map<string, string>();

  await attempt('resource groups', async () => {
    const call = {
      method: 'GET',
      path: `${base}/resourcegroups`,
      version: 'resources',
      needs: 'listGroups',
      query: byOwner,
    } as const;
    const take = (found: z.output<typeof groupShape>[]): void => {
      for (const { name, location, tags: its, properties } of found) {
        if (!isOurs(its)) continue;
        const group = name.toLowerCase();
        groups.set(group, its);
        things.push({
          ...{
            kind: 'group',
            id: groupPath(subscription, group),
            place: location,
            ...told(its, (run) => group === run),
            offer: null,
          },
          state: isEnding(properties?.provisioningState) ? 'ending' : 'running',
        });
      }
    };
    await arm.pages(groupShape, { ...call, doing: 'list resource groups' }, take, signal);
    hasGroups = true;
  });

  const compute = { method: 'GET', path: `${base}/providers/Microsoft.Compute/virtualMachines`, version: 'compute' } as const;
  const all: Call = { ...compute, needs: 'listMachines', doing: 'list machines' };
  await attempt('machines', async () => {
    const take = (found: Machine[]): void => {
      for (const one of found) {
        const place = parseResource(one.id);
        if (place === null || !(isOurs(one.tags) || groups.has(place.group))) continue;
        machines.set(one.id.toLowerCase(), one);
      }
    };
    await arm.pages(machineShape, all, take, signal);
  });
  if (machines.size > 0) {
    await attempt('states of machines', async () => {
      const take = (found: Machine[]): void => {
        for (const { id, properties } of found) {
          const codes = properties?.instanceView?.statuses?.map(({ code }) => code ?? '') ?? [];
          power.set(id.toLowerCase(), codes.find((code) => code.startsWith('PowerState/'))?.slice('PowerState/'.length) ?? '');
        }
      };
      await arm.pages(machineShape, { ...all, query: { statusOnly: 'true' } }, take, signal);
    });
  }
  for (const one of machines.values()) {
    const { group = '', name = '' } = parseResource(one.id) ?? {};
    const { hardwareProfile, priority, provisioningState } = one.properties ?? {};
    const its = isOurs(one.tags) ? one.tags : groups.get(group);
    things.push({
      ...{ kind: 'machine', id: resourcePath({ kind: 'machine', subscription, group, name }), place: one.location },
      ...told(its, (run) => group === run || name === run),
      state: stateOf(provisioningState ?? '', power.get(one.id.toLowerCase()) ?? ''),
      offer:
        hardwareProfile?.vmSize == null
          ? null
          : { type: hardwareProfile.vmSize, spot: priority?.toLowerCase() === 'spot', zone: one.zones?.[0] ?? null },
    });
  }

  await attempt('resources with tags', async () => {
    const strays: { readonly kind: ResourceKind; readonly id: string; readonly location: string; tags: Tags }[] = [];
    const take = (found: z.output<typeof resourceShape>[]): void => {
      for (const { id, location, tags: its } of found) {
        const resource = parseResource(id);
        if (resource === null || machines.has(id.toLowerCase())) continue;
        // What is in a group of ours ends with it.
        const isInOurs = groups.has(resource.group) || (!hasGroups && runName.test(resource.group));
        if (resource.kind !== 'machine' && isInOurs) continue;
        strays.push({ kind: resource.kind, id, location: location ?? '', tags: its });
      }
    };
    const call: Call = {
      ...{ method: 'GET', path: `${base}/resources`, version: 'resources', needs: 'listResources', query: byOwner },
      doing: 'list resources by tag',
    };
    await arm.pages(resourceShape, call, take, signal);
    for (const stray of strays) {
      const { group = '', name = '' } = parseResource(stray.id) ?? {};
      const id = resourcePath({ kind: stray.kind, subscription, group, name });
      const known = stray.tags ?? groups.get(group) ?? (await tagsOf(id, stray.kind, stray.location));
      if (known === null) continue;
      things.push({
        ...{ kind: stray.kind, id, place: stray.location, offer: null },
        ...told(known, (run) => group === run || name.startsWith(run)),
        state: 'running',
      });
    }
  });

  /** null: it does not exist any more, or is not ours. */
  async function tagsOf(id: string, kind: ResourceKind, place: string): Promise<Tags | null> {
    const version = kind === 'machine' ? 'compute' : kind === 'disk' ? 'disks' : 'network';
    const needs = ({ machine: 'listMachines', disk: 'readDisk', interface: 'readInterface', address: 'readAddress' } as const)[
      kind
    ];
    const call: Call = { method: 'GET', path: id, version, needs, doing: `read the tags of ${id} in ${place}` };
    const answer = await arm.ask(call, signal);
    if (answer.status === 404) return null;
    if (!answer.ok) throw arm.refuse(call, answer);
    const found = arm.bodyAs(resourceShape, call, answer).tags;
    return isOurs(found) ? found : null;
  }

  if (listed === 0 && refused !== null) throw refused;
  return { things, unknown };
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
