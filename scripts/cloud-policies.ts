/** The smallest policies of each cloud for `deploy/cloud`, made from the calls of its adapter. */
import { aws } from '../src/clouds/aws/type.ts';
import { allPermissions } from '../src/clouds/azure/permissions.ts';
import { permissions as gcpPermissions } from '../src/clouds/gcp/permissions.ts';
import { tagKeys } from '../src/ports/cloud.ts';

type Condition = Readonly<Record<string, Readonly<Record<string, string | readonly string[]>>>>;
interface Statement {
  readonly Sid: string;
  readonly Effect: 'Allow';
  readonly Action: string | readonly string[];
  readonly Resource: string | readonly string[];
  readonly Condition?: Condition;
}

const ownerTag = (where: 'Request' | 'Resource'): Condition => ({ Null: { [`aws:${where}Tag/${tagKeys.owner}`]: 'false' } });
const ec2 = (...kinds: readonly string[]): string[] => kinds.map((kind) => `arn:aws:ec2:*:*:${kind}/*`);
/** What RunInstances makes, and what it uses. */
const made = ec2('instance', 'volume', 'network-interface', 'spot-instances-request');
const usedByRun = [...ec2('subnet', 'security-group'), 'arn:aws:ec2:*::image/*', 'arn:aws:ec2:*::snapshot/*'];
const schedules = 'arn:aws:scheduler:*:*:schedule/default/onejob-*';

/** Statements with conditions; all other actions only look. */
const narrow: readonly Statement[] = [
  { Sid: 'Create', Effect: 'Allow', Action: 'ec2:RunInstances', Resource: made, Condition: ownerTag('Request') },
  { Sid: 'CreateFrom', Effect: 'Allow', Action: 'ec2:RunInstances', Resource: usedByRun },
  {
    Sid: 'TagWhatIsCreated',
    Effect: 'Allow',
    Action: 'ec2:CreateTags',
    Resource: made,
    Condition: { StringEquals: { 'ec2:CreateAction': 'RunInstances' } },
  },
  {
    Sid: 'MailToOwn',
    Effect: 'Allow',
    Action: 'ec2:CreateTags',
    Resource: ec2('instance'),
    Condition: { ...ownerTag('Resource'), 'ForAllValues:StringLike': { 'aws:TagKeys': 'onejob-mail*' } },
  },
  {
    Sid: 'RemoveOwn',
    Effect: 'Allow',
    Action: [
      ...['ec2:CancelSpotInstanceRequests', 'ec2:DeleteNetworkInterface', 'ec2:DeleteVolume'],
      ...['ec2:GetConsoleOutput', 'ec2:ReleaseAddress', 'ec2:TerminateInstances'],
    ],
    Resource: [...made, ...ec2('elastic-ip')],
    Condition: ownerTag('Resource'),
  },
  {
    Sid: 'EndOfLife',
    Effect: 'Allow',
    Resource: schedules,
    Action: ['scheduler:CreateSchedule', 'scheduler:DeleteSchedule', 'scheduler:GetSchedule'],
  },
  {
    Sid: 'EndOfLifeRole',
    Effect: 'Allow',
    Action: 'iam:PassRole',
    Resource: 'arn:aws:iam::*:role/onejob-scheduler',
    Condition: { StringEquals: { 'iam:PassedToService': 'scheduler.amazonaws.com' } },
  },
  { Sid: 'ImageNames', Effect: 'Allow', Action: 'ssm:GetParameter', Resource: 'arn:aws:ssm:*::parameter/aws/service/*' },
];

/** For the user or role that onejob signs in as. */
export function awsPolicy(): string {
  const conditioned = new Set(narrow.flatMap(({ Action: action }) => action));
  const look = aws.permissions.filter((action) => !conditioned.has(action));
  return text([{ Sid: 'Look', Effect: 'Allow', Action: look, Resource: '*' }, ...narrow]);
}

/** For the role that EventBridge Scheduler takes: it ends machines of onejob, and does nothing else. */
export function awsSchedulerPolicy(): string {
  return text([
    {
      Sid: 'EndMachines',
      Effect: 'Allow',
      Action: 'ec2:TerminateInstances',
      Resource: ec2('instance'),
      Condition: { ...ownerTag('Resource'), StringLike: { [`aws:ResourceTag/${tagKeys.run}`]: 'onejob-*' } },
    },
  ]);
}

export function awsSchedulerTrust(): string {
  const Principal = { Service: 'scheduler.amazonaws.com' };
  return text([{ Effect: 'Allow', Principal, Action: 'sts:AssumeRole' }]);
}

/** As IAM takes it. */
const text = (statements: readonly object[]): string =>
  `${JSON.stringify({ Version: '2012-10-17', Statement: statements }, null, 2)}\n`;

/** The role that onejob needs in a project, as `gcloud iam roles create --file` reads it. */
export function gcpRole(): string {
  return [
    '# Generated from the calls of onejob. docs/cloud/gcp.md says how to use it.',
    'title: onejob',
    'description: Makes, lists and deletes machines for CI jobs.',
    'stage: GA',
    'includedPermissions:',
    ...gcpPermissions.map((one) => `  - ${one}`),
    '',
  ].join('\n');
}

/** As `az role definition create --role-definition` takes it, once its scope is the subscription. */
export function azureRole(): string {
  const role = {
    Name: 'onejob',
    IsCustom: true,
    Description: 'Makes and removes GPU machines of onejob, each in a resource group of its own.',
    Actions: allPermissions,
    NotActions: [],
    DataActions: [],
    NotDataActions: [],
    AssignableScopes: ['/subscriptions/SUBSCRIPTION'],
  };
  // As the formatter of this repository has it: a list of one in one line.
  return `${JSON.stringify(role, null, 2).replace(/\[\n\s+("[^"\n]+")\n\s+\]/g, '[$1]')}\n`;
}
