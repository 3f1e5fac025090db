/** Everything of one owner, region by region. Each kind has its own list: a leftover may be all that is left of a machine. */
import { CloudError, type Listing, type ListScope, type Offer, type Thing, type ThingKind } from '../cloud.ts';
import type { Call, Calls, Params } from './calls.ts';
import type { AwsConfig } from './config.ts';
import { listSchedules } from './schedule.ts';
import { ofOwner, thingOf } from './tags.ts';
import { itemsAt, textAt, type Xml } from './xml.ts';

type State = Thing['state'];

/** One kind of thing of EC2: how it is listed, and what it is when it is there at all. */
interface Kind {
  readonly kind: ThingKind;
  readonly action: string;
  /** Its list in the answer, and the most that one page has; null: the call knows no pages. */
  readonly set: string;
  readonly page: number | null;
  readonly title: string;
  readonly id: string;
  /** null: it is gone, and only remembered. */
  stateOf(xml: Xml): State | null;
  offerOf?(xml: Xml): Offer | null;
}

const machineStates: Readonly<Record<string, State | null>> = {
  ...{ pending: 'starting', running: 'running', 'shutting-down': 'ending', stopping: 'running', stopped: 'stopped' },
  terminated: null,
};
const over = (state: string | null, ...gone: readonly string[]): boolean => state !== null && gone.includes(state);

const machines: Kind = {
  ...{ kind: 'machine', action: 'DescribeInstances', set: 'reservationSet', page: 1000, title: 'instances', id: 'instanceId' },
  // A state that EC2 may invent is alive.
  stateOf: (xml) => {
    const state = machineStates[textAt(xml, 'instanceState/name') ?? ''];
    return state === undefined ? 'running' : state;
  },
  offerOf(xml) {
    const type = textAt(xml, 'instanceType');
    if (type === null) return null;
    return { type, spot: textAt(xml, 'instanceLifecycle') === 'spot', zone: textAt(xml, 'placement/availabilityZone') };
  },
};

const kinds: readonly Kind[] = [
  machines,
  {
    ...{ kind: 'spot-request', action: 'DescribeSpotInstanceRequests', set: 'spotInstanceRequestSet', page: 1000 },
    ...{ title: 'spot requests', id: 'spotInstanceRequestId' },
    stateOf(xml) {
      const state = textAt(xml, 'state');
      if (over(state, 'closed', 'cancelled', 'failed')) return null;
      return state === 'open' ? 'starting' : 'running';
    },
  },
  {
    ...{ kind: 'disk', action: 'DescribeVolumes', set: 'volumeSet', page: 500, title: 'volumes', id: 'volumeId' },
    stateOf(xml) {
      const state = textAt(xml, 'status');
      if (over(state, 'deleted')) return null;
      return state === 'deleting' ? 'ending' : 'running';
    },
  },
  {
    ...{ kind: 'interface', action: 'DescribeNetworkInterfaces', set: 'networkInterfaceSet', page: 1000 },
    ...{ title: 'network interfaces', id: 'networkInterfaceId' },
    stateOf: (xml) => (textAt(xml, 'status') === 'detaching' ? 'ending' : 'running'),
  },
  {
    ...{ kind: 'address', action: 'DescribeAddresses', set: 'addressesSet', page: null, title: 'addresses', id: 'allocationId' },
    stateOf: () => 'running',
  },
];

/** The calls of EC2 that a list of an owner makes. */
export function ec2Lists(owner: string): { readonly action: string; readonly params: Params }[] {
  return kinds.map(({ action, page }) => ({ action, params: paramsOf(owner, page) }));
}

const paramsOf = (owner: string, page: number | null): Params => ({
  Filter: ofOwner(owner),
  ...(page !== null && { MaxResults: page }),
});

async function listKind(calls: Calls, owner: string, region: string, kind: Kind, signal: AbortSignal): Promise<Thing[]> {
  const call: Call = { doing: `list ${kind.title}`, region, changes: false, permissions: [`ec2:${kind.action}`] };
  const items = await calls.ec2List(kind.action, kind.set, paramsOf(owner, kind.page), call, signal);
  const things = kind === machines ? items.flatMap((one) => itemsAt(one, 'instancesSet')) : items;
  return things.flatMap((xml) => {
    const state = kind.stateOf(xml);
    if (state === null) return [];
    const id = textAt(xml, kind.id);
    if (id === null) throw new CloudError('E_CLOUD_ANSWER', `Cannot ${call.doing}: one of them has no id.`, { retry: true });
    return [thingOf(xml, { kind: kind.kind, id, place: region, state, offer: kind.offerOf?.(xml) ?? null })];
  });
}

/** Regions of the account that are turned on. @throws CloudError */
async function regionsOf(calls: Calls, region: string, signal: AbortSignal): Promise<string[]> {
  const call: Call = { doing: 'list regions', region, changes: false, permissions: ['ec2:DescribeRegions'] };
  const found = itemsAt(await calls.ec2('DescribeRegions', {}, call, signal), 'regionInfo');
  return found.flatMap((one) => textAt(one, 'regionName') ?? []);
}

export async function listThings(
  calls: Calls,
  { region, regions: named }: Pick<AwsConfig, 'region' | 'regions'>,
  owner: string,
  { places, everywhere }: ListScope,
  signal: AbortSignal,
): Promise<Listing> {
  const things: Thing[] = [];
  const unknown: string[] = [];
  /** What failed is unknown, never empty. */
  const collect = async (what: string, list: Promise<Thing[]>): Promise<void> => {
    try {
      things.push(...(await list));
    } catch (error) {
      signal.throwIfAborted();
      unknown.push(`${what} (${whyOf(error)})`);
    }
  };
  const regions = new Set([region, ...places]);
  if (everywhere) {
    await collect(
      'other regions',
      (named === null ? regionsOf(calls, region, signal) : Promise.resolve(named)).then((all) => {
        for (const one of all) regions.add(one);
        return [];
      }),
    );
  }
  const ofRegion = async (one: string): Promise<void> => {
    const schedules: Call = { doing: 'list schedules', region: one, changes: false, permissions: ['scheduler:ListSchedules'] };
    await Promise.all([
      ...kinds.map((kind) => collect(`${kind.title} in ${one}`, listKind(calls, owner, one, kind, signal))),
      collect(`schedules in ${one}`, listSchedules(calls, owner, schedules, signal)),
    ]);
  };
  // A few regions at a time: EC2 limits requests.
  const waiting = [...regions];
  const workers = Array.from({ length: 4 }, async () => {
    for (let one = waiting.shift(); one !== undefined; one = waiting.shift()) await ofRegion(one);
  });
  await Promise.all(workers);
  return { things, unknown };
}

function whyOf(error: unknown): string {
  if (error instanceof CloudError) return error.reason ?? (error.code === 'E_CLOUD_UNREACHABLE' ? 'no answer' : error.code);
  throw error;
}
