/** AWS as a type of cloud: what config holds of one. How it is written is `schema.ts`. */

import type { WrittenKeys } from '../../schema/key.ts';
import type { CloudType } from '../cloud-type.ts';
import type { AwsConfig, AwsCredentialSource } from './config.ts';
import { awsCredentialKeys, awsKeys } from './schema.ts';

/** Families whose GPUs current drivers do not support, with the GPU. Open kernel modules of NVIDIA begin with Turing. */
const dead: readonly (readonly [family: RegExp, gpu: string])[] = [
  [/^g2\./, 'K520'],
  [/^g3s?\./, 'M60'],
  [/^p2\./, 'K80'],
  [/^p3(dn)?\./, 'V100'],
];

const needsRole =
  'is missing: AWS itself must end each machine, and takes this role for it; docs/cloud/aws.md says how to make one; "death_date: manager-only" needs none';
const needsGroup =
  'are set without "security_group": machines would get the default group of that network, with what it lets in; write one';

export const aws: CloudType<AwsConfig> = {
  type: 'aws',
  title: 'AWS',
  keys: awsKeys,
  maps: { credentials: awsCredentialKeys },
  needs: ['region'],
  longestLifetime: 365 * 24 * 3_600_000,
  cheapType: 'g4dn.xlarge',
  typeProblem(type) {
    if (!/^[a-z][a-z0-9-]*\.[a-z0-9-]+$/.test(type)) return `"${type}" is not a type of EC2, such as g6.xlarge.`;
    const found = dead.find(([family]) => family.test(type));
    if (found !== undefined)
      return `${type} has NVIDIA ${found[1]} GPUs, which NVIDIA's drivers of 2026 do not support; take g4dn.xlarge, g5.xlarge or g6.xlarge.`;
    if (/^g4ad\./.test(type)) return `${type} has AMD GPUs, for which the images of AWS bring no driver; take g4dn.xlarge.`;
    return null;
  },
  resolve(name, written) {
    const keys = written as WrittenKeys<typeof awsKeys>;
    if (keys.region === undefined) return null;
    return {
      name,
      type: 'aws',
      region: keys.region,
      regions: keys.regions ?? null,
      credentials: sourceOf(keys.credentials),
      subnets: keys.subnets ?? null,
      securityGroup: keys.security_group ?? null,
      schedulerRole: keys.scheduler_role ?? null,
      deathDate: keys.death_date ?? 'cloud',
      endpoint: keys.endpoint ?? null,
    };
  },
  problems: ({ deathDate, schedulerRole, subnets, securityGroup }) => [
    ...(deathDate === 'cloud' && schedulerRole === null ? [[['scheduler_role'], needsRole] as const] : []),
    ...(subnets !== null && securityGroup === null ? [[['subnets'], needsGroup] as const] : []),
  ],
  secrets({ credentials: source }) {
    if (source.kind !== 'keys') return [];
    const session = source.session === null ? [] : [['credentials.session_token', source.session] as const];
    return [['credentials.secret_access_key', source.secret], ...session];
  },
  permissions: [
    ...['ec2:CancelSpotInstanceRequests', 'ec2:CreateTags', 'ec2:DeleteNetworkInterface', 'ec2:DeleteVolume'],
    ...['ec2:DescribeAddresses', 'ec2:DescribeImages', 'ec2:DescribeInstanceTypeOfferings', 'ec2:DescribeInstances'],
    ...['ec2:DescribeNetworkInterfaces', 'ec2:DescribeRegions', 'ec2:DescribeSecurityGroups', 'ec2:DescribeSpotInstanceRequests'],
    ...['ec2:DescribeSpotPriceHistory', 'ec2:DescribeSubnets', 'ec2:DescribeVolumes', 'ec2:GetConsoleOutput'],
    ...['ec2:ReleaseAddress', 'ec2:RunInstances', 'ec2:TerminateInstances', 'iam:PassRole'],
    ...['scheduler:CreateSchedule', 'scheduler:DeleteSchedule', 'scheduler:GetSchedule', 'scheduler:ListSchedules'],
    ...['servicequotas:GetServiceQuota', 'ssm:GetParameter'],
  ],
  open: async (cloud, parts) => (await import('./aws.ts')).createAws(cloud, parts),
};

function sourceOf(written: WrittenKeys<typeof awsKeys>['credentials']): AwsCredentialSource {
  const { profile, access_key_id: id, secret_access_key: secret, session_token: session = null, command, metadata } = written ?? {};
  if (profile !== undefined) return { kind: 'profile', profile };
  if (id !== undefined && secret !== undefined) return { kind: 'keys', id, secret, session };
  if (command !== undefined) return { kind: 'command', command };
  return metadata === true ? { kind: 'metadata' } : { kind: 'usual' };
}
