/** How a cloud of type `aws` is written. */
import { key, token } from '../../schema/key.ts';
import type { Kinds } from '../../schema/strict.ts';
import { address, credentials, deathDate, metadata } from '../kit/keys.ts';

export const awsCredentialKeys = {
  profile: key((v) => v.text('the name of a profile', /^[^\s[\]\p{Cc}]{1,128}$/u), undefined, 'name', {
    description:
      "Profile of the AWS CLI's files. onejob reads static keys and `credential_process` by itself; for any other profile, such as one that signs in with SSO, it runs `aws configure export-credentials`.",
    example: 'ci',
  }),
  access_key_id: key((v) => v.text('the id of an access key', /^[A-Z0-9]{16,128}$/), undefined, 'id', {
    description: 'Id of an access key, with `secret_access_key`.',
    example: 'AKIAIOSFODNN7EXAMPLE',
  }),
  secret_access_key: token('The access key itself. It never leaves the manager.'),
  session_token: token('Session token, for an access key that expires.'),
  command: key((v) => v.command, undefined, 'list', {
    description: 'Program that prints a credential as `credential_process` of the AWS CLI does.',
    example: '[ /usr/local/bin/aws-credential, --role, ci ]',
  }),
  metadata: metadata('Whether to use the role of the EC2 instance that onejob runs on.'),
};

/** Each of the ways to sign in, by the key that chooses it. */
const source = credentials(awsCredentialKeys, ['profile', 'access_key_id', 'command', 'metadata'], (way, has) => {
  if (way !== 'access_key_id' && (has('secret_access_key') || has('session_token')))
    return `has a secret in addition to "${way}", which does not use it; remove one of them`;
  return way === 'access_key_id' && !has('secret_access_key') ? 'has "access_key_id" without "secret_access_key"' : null;
});

const ids = (what: string, prefix: string) => (v: Kinds) =>
  v.text(`the id of ${what} such as "${prefix}-0a1b2c3d4e5f67890"`, new RegExp(`^${prefix}-[0-9a-f]{8,17}$`));

const region = (v: Kinds) => v.text('a region such as "us-west-2"', /^[a-z]{2,3}(-[a-z]+)+-\d{1,2}$/);

export const awsKeys = {
  region: key(region, undefined, 'region', { description: 'Region in which onejob creates machines.', example: 'us-west-2' }),
  regions: key((v) => v.z.array(region(v)), undefined, 'list', {
    description:
      'Regions that a sweep searches in addition to `region`. List the ones you use if your organisation blocks the others.',
    example: '[ us-west-2, us-east-1 ]',
    shown: 'all that are turned on in the account',
  }),
  credentials: key(source, undefined, 'map', {
    description: 'What onejob signs in with.',
    example: '{ profile: ci }',
    shown:
      'the variables `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`, else the profile in `AWS_PROFILE`, else `default`',
  }),
  subnets: key((v) => v.z.array(ids('a subnet', 'subnet')(v)).min(1), undefined, 'list', {
    description: 'Subnets of the machines, preferably one in each zone, all of one network. They need a way out to the internet.',
    example: '[ subnet-0a1b2c3d4e5f67890, subnet-0f1e2d3c4b5a69788 ]',
    shown: "those of the region's default network",
  }),
  security_group: key(ids('a security group', 'sg'), undefined, 'id', {
    description: 'Security group of machines. It must allow outgoing connections, and needs no incoming ones.',
    example: 'sg-0a1b2c3d4e5f67890',
    shown: 'the default group of the network, in which machines reach each other',
  }),
  scheduler_role: key(
    (v) => v.text('the ARN of a role', /^arn:aws[a-z-]*:iam::\d{12}:role\/[\w+=,.@/-]{1,512}$/),
    undefined,
    'ARN',
    {
      description:
        'Role with which EventBridge Scheduler ends machines at their end of life. Required unless `death_date` is `manager-only`.',
      example: 'arn:aws:iam::123456789012:role/onejob-scheduler',
    },
  ),
  death_date: deathDate(
    '`cloud`: AWS itself ends each machine at the end of its `lifetime`, and a machine for which it does not confirm that is removed again. `manager-only`: only the machine and onejob end it.',
  ),
  endpoint: key(address('https://aws.example.org'), undefined, 'address', {
    description: 'Address of all services of AWS, for tests and private endpoints.',
    example: 'https://aws.example.org',
    shown: "AWS's own",
  }),
};
