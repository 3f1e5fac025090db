/** The call that makes one machine, with everything that belongs to it. */
import { gzipSync } from 'node:zlib';
import { isServiceId } from '../../http/service-id.ts';
import { CloudError, type Made, type Order } from '../../ports/cloud.ts';
import { tagsOf } from '../kit/things.ts';
import type { AwsApiCall, AwsCalls, Params } from './calls.ts';
import type { AwsConfig } from './config.ts';
import type { Ami } from './image.ts';
import { itemsAt, textAt } from './xml.ts';

/** Bytes of user data, before base64 (EC2 user guide, "Run commands at launch"). */
const mostUserData = 16 * 1024;

/** The text as EC2 takes it. cloud-init unpacks gzip. @throws CloudError E_CLOUD_REQUEST if it is too long even so */
function userDataOf(text: string): string {
  const plain = Buffer.from(text);
  if (plain.length <= mostUserData) return plain.toString('base64');
  const packed = gzipSync(plain, { level: 9 });
  if (packed.length <= mostUserData) return packed.toString('base64');
  throw new CloudError(
    'E_CLOUD_REQUEST',
    `Cannot create a machine: its text for cloud-init has ${packed.length} bytes when packed, but EC2 takes ${mostUserData}.`,
    { hint: 'Make "setup" of the host shorter, such as by a script that it fetches.' },
  );
}

/** Parameters of RunInstances. `subnet` has precedence over the zone, which it is in. */
export function runParams(
  order: Omit<Order, 'token' | 'image'>,
  { ami, subnet, group }: { readonly ami: Ami; readonly subnet: string | null; readonly group: string | null },
): Params {
  const { offer, disk, userData } = order;
  // `Name` is for people who look at the console.
  const tags = Object.entries({ Name: order.run, ...tagsOf(order) }).map(([Key, Value]) => ({ Key, Value }));
  const kinds = ['instance', 'volume', 'network-interface', ...(offer.spot ? ['spot-instances-request'] : [])];
  return {
    ImageId: ami.id,
    InstanceType: offer.type,
    MinCount: 1,
    MaxCount: 1,
    UserData: userDataOf(userData),
    // A shutdown inside the machine ends it for good.
    InstanceInitiatedShutdownBehavior: 'terminate',
    // Containers on a bridge cannot reach the metadata.
    MetadataOptions: {
      HttpTokens: 'required',
      HttpPutResponseHopLimit: 1,
      HttpEndpoint: 'enabled',
      // For mail, see deliver.ts.
      InstanceMetadataTags: 'enabled',
    },
    BlockDeviceMapping: [
      {
        DeviceName: ami.device,
        Ebs: { VolumeSize: Math.max(disk, ami.disk), VolumeType: 'gp3', Encrypted: true, DeleteOnTermination: true },
      },
    ],
    TagSpecification: kinds.map((kind) => ({ ResourceType: kind, Tag: tags })),
    ...(offer.spot && {
      InstanceMarketOptions: {
        MarketType: 'spot',
        SpotOptions: { SpotInstanceType: 'one-time', InstanceInterruptionBehavior: 'terminate' },
      },
    }),
    ...(group !== null && { SecurityGroupId: [group] }),
    ...(subnet !== null ? { SubnetId: subnet } : offer.zone !== null && { Placement: { AvailabilityZone: offer.zone } }),
  };
}

export const createPermissions = ['ec2:RunInstances', 'ec2:CreateTags'];

export async function createMachine(
  calls: AwsCalls,
  { region, securityGroup }: Pick<AwsConfig, 'region' | 'securityGroup'>,
  order: Order,
  on: { readonly ami: Ami; readonly subnet: string | null },
  signal: AbortSignal,
): Promise<Made> {
  const { offer, run, token } = order;
  const where = offer.zone ?? region;
  const call: AwsApiCall = {
    doing: `create ${offer.spot ? 'spot machine' : 'machine'} ${run} (${offer.type} in ${where})`,
    region,
    changes: true,
    needs: createPermissions,
    offer,
  };
  const params = { ...runParams(order, { ...on, group: securityGroup }), ClientToken: token };
  const [made] = itemsAt(await calls.ec2('RunInstances', params, call, signal), 'instancesSet');
  const id = textAt(made, 'instanceId');
  if (id !== null && isServiceId(id)) return { id, place: region, zone: textAt(made, 'placement/availabilityZone') };
  throw new CloudError('E_CLOUD_ANSWER', `Cannot ${call.doing}: EC2 answered without a valid id of a machine.`, {
    isAmbiguous: true,
    retry: true,
  });
}
