/** Things of EC2 by kind: how everything of one owner is listed, region by region, and how one of them is removed. */

import { isServiceId } from '../../http/service-id.ts';
import { CloudError, type Listing, type ListScope, type Offer, type Thing, type ThingKind, tagKeys } from '../../ports/cloud.ts';
import { told } from '../kit/things.ts';
import type { AwsApiCall, AwsCalls, Params } from './calls.ts';
import type { AwsConfig } from './config.ts';
import { deleteSchedule, listSchedules } from './schedule.ts';
import { itemsAt, textAt, type Xml } from './xml.ts';

type State = Thing['state'];

/** One kind of thing. Each has its own list: a leftover may be all that is left of a machine. */
interface Kind {
  readonly kind: ThingKind;
  readonly title: string;
  readonly list: string;
  /** Where its items are in the answer, and the most that one page has; null: the call knows no pages. */
  readonly set: string;
  readonly page: number | null;
  readonly id: string;
  /** Where its state is, and what that means: `running` for all others, since what EC2 may invent is alive. null: gone, and only remembered. */
  readonly state: string;
  readonly states: Readonly<Record<string, State | null>>;
  /** The call that removes it, and the parameter for its id. */
  readonly remove: readonly [action: string, parameter: string];
  /** An id that nothing has. */
  readonly none: string;
}

const kinds: readonly Kind[] = [
  {
    kind: 'machine',
    title: 'instances',
    list: 'DescribeInstances',
    set: 'reservationSet',
    page: 1000,
    id: 'instanceId',
    state: 'instanceState/name',
    remove: ['TerminateInstances', 'InstanceId.1'],
    none: 'i-00000000000000000',
    states: { pending: 'starting', 'shutting-down': 'ending', stopped: 'stopped', terminated: null },
  },
  {
    kind: 'spot-request',
    title: 'spot requests',
    list: 'DescribeSpotInstanceRequests',
    set: 'spotInstanceRequestSet',
    page: 1000,
    id: 'spotInstanceRequestId',
    remove: ['CancelSpotInstanceRequests', 'SpotInstanceRequestId.1'],
    none: 'sir-00000000',
    state: 'state',
    states: { open: 'starting', closed: null, cancelled: null, failed: null },
  },
  {
    kind: 'disk',
    title: 'volumes',
    list: 'DescribeVolumes',
    set: 'volumeSet',
    page: 500,
    id: 'volumeId',
    remove: ['DeleteVolume', 'VolumeId'],
    none: 'vol-00000000000000000',
    state: 'status',
    states: { deleting: 'ending', deleted: null },
  },
  {
    kind: 'interface',
    title: 'network interfaces',
    list: 'DescribeNetworkInterfaces',
    set: 'networkInterfaceSet',
    page: 1000,
    id: 'networkInterfaceId',
    remove: ['DeleteNetworkInterface', 'NetworkInterfaceId'],
    none: 'eni-00000000000000000',
    state: 'status',
    states: { detaching: 'ending' },
  },
  {
    kind: 'address',
    title: 'addresses',
    list: 'DescribeAddresses',
    set: 'addressesSet',
    page: null,
    id: 'allocationId',
    remove: ['ReleaseAddress', 'AllocationId'],
    none: 'eipalloc-00000000000000000',
    state: 'none',
    states: {},
  },
];

function offerOf(xml: Xml): Offer | null {
  const type = textAt(xml, 'instanceType');
  if (type === null) return null;
  return { type, spot: textAt(xml, 'instanceLifecycle') === 'spot', zone: textAt(xml, 'placement/availabilityZone') };
}

const paramsOf = (owner: string, page: number | null): Params => ({
  Filter: [{ Name: `tag:${tagKeys.owner}`, Value: [owner] }],
  ...(page !== null && { MaxResults: page }),
});

/** Calls that show what a credential may do with each kind, and do nothing for an owner that nobody has. */
export const harmless = (owner: string): { readonly action: string; readonly params: Params }[] =>
  kinds.flatMap(({ list, page, remove: [action, parameter], none }) => [
    { action: list, params: paramsOf(owner, page) },
    { action, params: { [parameter]: none, DryRun: true } },
  ]);

async function listKind(calls: AwsCalls, owner: string, region: string, kind: Kind, signal: AbortSignal): Promise<Thing[]> {
  const call: AwsApiCall = { doing: `list ${kind.title}`, region };
  const items = await calls.ec2List(kind.list, kind.set, paramsOf(owner, kind.page), call, signal);
  const isMachine = kind.kind === 'machine';
  return (isMachine ? items.flatMap((one) => itemsAt(one, 'instancesSet')) : items).flatMap((xml): Thing[] => {
    const { [textAt(xml, kind.state) ?? '']: state = 'running' } = kind.states;
    if (state === null) return [];
    const id = textAt(xml, kind.id);
    if (id === null || !isServiceId(id))
      throw new CloudError('E_CLOUD_ANSWER', `Cannot ${call.doing}: one of them has no valid id.`, { retry: true });
    const tags = itemsAt(xml, 'tagSet').map((tag) => [textAt(tag, 'key'), textAt(tag, 'value') ?? undefined]);
    const offer = isMachine ? offerOf(xml) : null;
    return [{ kind: kind.kind, id, place: region, state, offer, ...told(Object.fromEntries(tags)) }];
  });
}

/** Regions of the account that are turned on. @throws CloudError */
async function regionsOf(calls: AwsCalls, region: string, signal: AbortSignal): Promise<string[]> {
  const found = itemsAt(await calls.ec2('DescribeRegions', {}, { doing: 'list regions', region }, signal), 'regionInfo');
  return found.flatMap((one) => textAt(one, 'regionName') ?? []);
}

export async function listAwsThings(
  calls: AwsCalls,
  { region, regions: named }: Pick<AwsConfig, 'region' | 'regions'>,
  owner: string,
  { places, everywhere }: ListScope,
  signal: AbortSignal,
): Promise<Listing> {
  const things: Thing[] = [];
  const unknown: string[] = [];
  let complete = 0;
  let refused: CloudError | null = null;
  /** What failed is unknown, never empty. */
  const attempt = async <T>(what: string, list: () => Promise<readonly T[]>): Promise<readonly T[]> => {
    try {
      const found = await list();
      complete += 1;
      return found;
    } catch (error) {
      signal.throwIfAborted();
      if (!(error instanceof CloudError)) throw error;
      if (!error.retry) refused ??= error;
      unknown.push(`${what} (${error.reason ?? (error.code === 'E_CLOUD_UNREACHABLE' ? 'no answer' : error.code)})`);
      return [];
    }
  };
  const others = everywhere ? (named ?? (await attempt('other regions', () => regionsOf(calls, region, signal)))) : [];
  const ofRegion = async (one: string): Promise<void> => {
    const found = await Promise.all([
      ...kinds.map((kind) => attempt(`${kind.title} in ${one}`, () => listKind(calls, owner, one, kind, signal))),
      attempt(`schedules in ${one}`, () => listSchedules(calls, owner, { doing: 'list schedules', region: one }, signal)),
    ]);
    things.push(...found.flat());
  };
  // A few regions at a time: EC2 limits requests.
  const waiting = [...new Set([region, ...places, ...others])];
  const workers = Array.from({ length: 4 }, async () => {
    for (let one = waiting.shift(); one !== undefined; one = waiting.shift()) await ofRegion(one);
  });
  await Promise.all(workers);
  return { things, unknown, ...(complete === 0 && refused !== null && { refused }) };
}

/** Codes that say that there is no such thing. */
export const absent = /NotFound$|^InvalidSpotInstanceRequestID|^ResourceNotFoundException$/;

/**
 * Removes one thing at a time: one bad id in a call would save all others in it.
 * @throws CloudError, also if something still uses the thing: then it goes later
 */
export async function destroyThing(
  calls: AwsCalls,
  { kind, id, place }: Pick<Thing, 'kind' | 'id' | 'place'>,
  signal: AbortSignal,
): Promise<void> {
  const call: AwsApiCall = { doing: `remove ${kind} ${id}`, region: place, changes: true };
  try {
    if (kind === 'schedule') return await deleteSchedule(calls, id, call, signal);
    const found = kinds.find((one) => one.kind === kind);
    if (found === undefined) throw new CloudError('E_CLOUD_REQUEST', `Cannot ${call.doing}: AWS has no resource of that kind.`);
    const [action, parameter] = found.remove;
    await calls.ec2(action, { [parameter]: id }, call, signal);
  } catch (error) {
    if (!(error instanceof CloudError) || error.reason === null || !absent.test(error.reason)) throw error;
  }
}
