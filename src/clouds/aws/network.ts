/** Zones that offer a type of machine, and the subnet for each. */
import { CloudError } from '../../ports/cloud.ts';
import type { Calls } from './calls.ts';
import type { AwsConfig } from './config.ts';
import { itemsAt, textAt } from './xml.ts';

interface Subnet {
  readonly id: string;
  readonly zone: string;
  /** Free addresses. */
  readonly free: number;
}

export function createNetwork(calls: Calls, { region, subnets }: Pick<AwsConfig, 'region' | 'subnets'>) {
  let known: readonly Subnet[] = [];

  /** Those of the config, the emptiest of each zone first. */
  async function look(ids: readonly string[], signal: AbortSignal): Promise<readonly Subnet[]> {
    const call = { doing: `look at subnets ${ids.join(', ')}`, region };
    const found = itemsAt(await calls.ec2('DescribeSubnets', { SubnetId: ids }, call, signal), 'subnetSet').flatMap((one) => {
      const [id, zone] = [textAt(one, 'subnetId'), textAt(one, 'availabilityZone')];
      return id === null || zone === null ? [] : [{ id, zone, free: Number(textAt(one, 'availableIpAddressCount') ?? 0) }];
    });
    const inOrder = found.toSorted((a, b) => b.free - a.free);
    known = ids.flatMap((id) => {
      const zone = found.find((one) => one.id === id)?.zone;
      const best = inOrder.find((one) => one.zone === zone);
      return best?.id === id ? [best] : [];
    });
    return known;
  }

  return {
    /** The cloud's own choice comes first, unless the config names subnets: then a zone is one of theirs. */
    async zones(type: string, signal: AbortSignal): Promise<readonly (string | null)[]> {
      const call = { doing: `find zones with ${type}`, region };
      const filter = { LocationType: 'availability-zone', Filter: [{ Name: 'instance-type', Value: [type] }] };
      const offered = (await calls.ec2List('DescribeInstanceTypeOfferings', 'instanceTypeOfferingSet', filter, call, signal))
        .flatMap((one) => textAt(one, 'location') ?? [])
        .toSorted();
      if (offered.length === 0) {
        throw new CloudError('E_CLOUD_REQUEST', `Cannot use ${type}: EC2 does not offer it in ${region}.`, {
          hint: 'Take another one in "types" of the host, or another region.',
        });
      }
      if (subnets === null) return [null, ...offered];
      const own = (await look(subnets, signal)).map(({ zone }) => zone).filter((zone) => offered.includes(zone));
      if (own.length > 0) return own;
      const message = `Cannot use ${type}: EC2 offers it only in ${offered.join(', ')}, and "subnets" are elsewhere.`;
      throw new CloudError('E_CLOUD_REQUEST', message, { hint: 'Add a subnet in one of these zones to "subnets" of this cloud.' });
    },

    /** Where a machine in that zone goes; null: the zone alone decides. */
    async subnetIn(zone: string | null, signal: AbortSignal): Promise<string | null> {
      if (subnets === null) return null;
      const all = known.length > 0 ? known : await look(subnets, signal);
      const found = zone === null ? all[0] : all.find((one) => one.zone === zone);
      if (found !== undefined) return found.id;
      throw new CloudError('E_CLOUD_REQUEST', `Cannot create a machine in ${zone ?? region}: none of "subnets" is there.`);
    },
  };
}

export type Network = ReturnType<typeof createNetwork>;
