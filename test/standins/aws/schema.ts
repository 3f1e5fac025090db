/** What each call may contain: names and values as the API reference has them. Anything else is refused. */
import { z } from 'zod';
import { Refused } from './wire.ts';

const text = z.string().min(1);
const int = (least: number, most: number) =>
  z
    .string()
    .regex(/^\d+$/)
    .transform(Number)
    .refine((value) => value >= least && value <= most, { message: `must be from ${least} to ${most}` });
const yesNo = z.enum(['true', 'false']).transform((value) => value === 'true');
const id = (prefix: string) => z.string().regex(new RegExp(`^${prefix}-[0-9a-f]{8,17}$`), { message: 'Malformed' });
const filters = z.array(z.strictObject({ Name: text, Value: z.array(z.string()).min(1) })).default([]);
const dry = { DryRun: yesNo.default(false) };
const paged = (most: number) => ({ MaxResults: int(5, most).optional(), NextToken: text.optional(), Filter: filters });

const tag = z.strictObject({ Key: text.max(128), Value: z.string().max(256) });
const resources = ['instance', 'volume', 'network-interface', 'spot-instances-request', 'elastic-gpu'] as const;

const run = z.strictObject({
  ...dry,
  ImageId: id('ami'),
  InstanceType: text,
  MinCount: int(1, 1000),
  MaxCount: int(1, 1000),
  ClientToken: z
    .string()
    .regex(/^[\x21-\x7e]{1,64}$/)
    .optional(),
  UserData: z
    .string()
    .regex(/^[A-Za-z0-9+/]*={0,2}$/)
    .default(''),
  InstanceInitiatedShutdownBehavior: z.enum(['stop', 'terminate']).default('stop'),
  MetadataOptions: z
    .strictObject({
      HttpTokens: z.enum(['optional', 'required']).optional(),
      HttpPutResponseHopLimit: int(1, 64).optional(),
      HttpEndpoint: z.enum(['enabled', 'disabled']).optional(),
      InstanceMetadataTags: z.enum(['enabled', 'disabled']).optional(),
    })
    .default({}),
  BlockDeviceMapping: z
    .array(
      z.strictObject({
        DeviceName: text,
        Ebs: z.strictObject({
          VolumeSize: int(1, 16_384).optional(),
          VolumeType: z.enum(['standard', 'io1', 'io2', 'gp2', 'sc1', 'st1', 'gp3']).optional(),
          Encrypted: yesNo.optional(),
          DeleteOnTermination: yesNo.optional(),
        }),
      }),
    )
    .default([]),
  TagSpecification: z.array(z.strictObject({ ResourceType: z.enum(resources), Tag: z.array(tag).max(50) })).default([]),
  InstanceMarketOptions: z
    .strictObject({
      MarketType: z.literal('spot'),
      SpotOptions: z
        .strictObject({
          SpotInstanceType: z.enum(['one-time', 'persistent']).default('one-time'),
          InstanceInterruptionBehavior: z.enum(['hibernate', 'stop', 'terminate']).default('terminate'),
          MaxPrice: text.optional(),
        })
        .default({ SpotInstanceType: 'one-time', InstanceInterruptionBehavior: 'terminate' }),
    })
    .optional(),
  SecurityGroupId: z.array(id('sg')).optional(),
  SubnetId: id('subnet').optional(),
  Placement: z
    .strictObject({ AvailabilityZone: text.optional(), Tenancy: z.enum(['default', 'dedicated', 'host']).optional() })
    .default({}),
});

/** Calls of EC2, by their action. */
export const ec2Calls = {
  RunInstances: run,
  DescribeInstances: z.strictObject({ ...dry, ...paged(1000), InstanceId: z.array(id('i')).optional() }),
  DescribeVolumes: z.strictObject({ ...dry, ...paged(500), VolumeId: z.array(id('vol')).optional() }),
  DescribeNetworkInterfaces: z.strictObject({ ...dry, ...paged(1000) }),
  DescribeAddresses: z.strictObject({ ...dry, Filter: filters }),
  DescribeSpotInstanceRequests: z.strictObject({ ...dry, ...paged(1000) }),
  DescribeRegions: z.strictObject({ ...dry, AllRegions: yesNo.optional(), Filter: filters }),
  DescribeInstanceTypeOfferings: z.strictObject({
    ...dry,
    ...paged(1000),
    LocationType: z.enum(['region', 'availability-zone', 'availability-zone-id', 'outpost']).default('region'),
  }),
  DescribeImages: z.strictObject({
    ...dry,
    ImageId: z.array(id('ami')).optional(),
    Owner: z.array(text).optional(),
    Filter: filters,
  }),
  DescribeSubnets: z.strictObject({ ...dry, ...paged(1000), SubnetId: z.array(id('subnet')).optional() }),
  DescribeSecurityGroups: z.strictObject({ ...dry, ...paged(1000), GroupId: z.array(id('sg')).optional() }),
  DescribeSpotPriceHistory: z.strictObject({
    ...dry,
    ...paged(1000),
    InstanceType: z.array(text).optional(),
    ProductDescription: z.array(z.enum(['Linux/UNIX', 'Linux/UNIX (Amazon VPC)', 'Windows', 'Windows (Amazon VPC)'])).optional(),
    StartTime: z.iso.datetime().optional(),
  }),
  TerminateInstances: z.strictObject({
    ...dry,
    InstanceId: z.array(id('i')).min(1),
    SkipOsShutdown: yesNo.optional(),
    Force: yesNo.optional(),
  }),
  CreateTags: z.strictObject({ ...dry, ResourceId: z.array(text).min(1), Tag: z.array(tag).min(1).max(50) }),
  GetConsoleOutput: z.strictObject({ ...dry, InstanceId: id('i'), Latest: yesNo.default(false) }),
  DeleteVolume: z.strictObject({ ...dry, VolumeId: id('vol') }),
  DeleteNetworkInterface: z.strictObject({ ...dry, NetworkInterfaceId: id('eni') }),
  CancelSpotInstanceRequests: z.strictObject({
    ...dry,
    SpotInstanceRequestId: z.array(z.string().regex(/^sir-[0-9a-z]{8}$/)).min(1),
  }),
  ReleaseAddress: z.strictObject({ ...dry, AllocationId: id('eipalloc') }),
};

export type Ec2Action = keyof typeof ec2Calls;
export type Ec2Input<A extends Ec2Action> = z.output<(typeof ec2Calls)[A]>;

const oneName = z.string().regex(/^[0-9a-zA-Z-_.]{1,64}$/);

export const createSchedule = z.strictObject({
  ActionAfterCompletion: z.enum(['NONE', 'DELETE']).default('NONE'),
  ClientToken: z
    .string()
    .regex(/^[a-zA-Z0-9-_]{1,64}$/)
    .optional(),
  Description: z.string().max(512).optional(),
  FlexibleTimeWindow: z.discriminatedUnion('Mode', [
    z.strictObject({ Mode: z.literal('OFF') }),
    z.strictObject({ Mode: z.literal('FLEXIBLE'), MaximumWindowInMinutes: z.int().min(1).max(1440) }),
  ]),
  GroupName: oneName.default('default'),
  ScheduleExpression: z
    .string()
    .regex(/^(at\(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\)|rate\(.+\)|cron\(.+\))$/, { message: 'Invalid Schedule Expression' }),
  ScheduleExpressionTimezone: z.string().min(1).max(50).default('UTC'),
  State: z.enum(['ENABLED', 'DISABLED']).default('ENABLED'),
  Target: z.strictObject({
    Arn: z.string().max(1600),
    RoleArn: z.string().regex(/^arn:aws[a-z-]*:iam::\d{12}:role\/[\w+=,.@/-]+$/),
    Input: z.string().min(1).optional(),
    RetryPolicy: z
      .strictObject({
        MaximumEventAgeInSeconds: z.int().min(60).max(86_400).optional(),
        MaximumRetryAttempts: z.int().min(0).max(185).optional(),
      })
      .optional(),
  }),
});

/** @throws Refused: what EC2 says of parameters that it does not know, misses, or cannot read */
export function parse<T extends z.ZodType>(schema: T, input: unknown): z.output<T> {
  const found = schema.safeParse(input);
  if (found.success) return found.data;
  const [issue] = found.error.issues;
  const path = issue?.path.join('.') ?? '';
  if (issue?.code === 'unrecognized_keys')
    throw new Refused(
      400,
      'UnknownParameter',
      `The parameter ${[path, issue.keys[0]].filter(Boolean).join('.')} is not recognized`,
    );
  if (issue?.code === 'invalid_type' && issue.message.endsWith('received undefined'))
    throw new Refused(400, 'MissingParameter', `The request must contain the parameter ${path}`);
  const malformed: Readonly<Record<string, string>> = {
    ImageId: 'InvalidAMIID.Malformed',
    InstanceId: 'InvalidInstanceID.Malformed',
    VolumeId: 'InvalidParameterValue',
  };
  const code =
    issue?.message === 'Malformed' ? (malformed[String(issue.path[0])] ?? 'InvalidParameterValue') : 'InvalidParameterValue';
  throw new Refused(400, code, `Invalid value for parameter ${path}: ${issue?.message}`);
}
