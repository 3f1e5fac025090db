import { describe, expect, it } from 'vitest';
import { strict } from '../../schema/strict.ts';
import { awsKeys } from './schema.ts';
import { quotaOf } from './sizes.ts';
import { aws } from './type.ts';

const parsed = (keys: object) => strict(awsKeys).safeParse(keys);
const messages = (keys: object) => parsed(keys).error?.issues.map(({ path, message }) => `${path.join('.')}: ${message}`) ?? [];
const resolved = (keys: object) => aws.resolve('us', parsed(keys).data ?? {});

describe('an entry', () => {
  it('needs only its region, and has defaults', () => {
    expect(resolved({ region: 'us-west-2' })).toEqual({
      name: 'us',
      type: 'aws',
      region: 'us-west-2',
      regions: null,
      credentials: { kind: 'usual' },
      subnets: null,
      securityGroup: null,
      schedulerRole: null,
      deathDate: 'cloud',
      endpoint: null,
    });
    expect(resolved({})).toBeNull();
  });

  it('names its secrets', () => {
    const secret = { env: 'AWS_SECRET' };
    const cloud = resolved({
      region: 'us-gov-west-1',
      credentials: { access_key_id: 'AKIAIOSFODNN7EXAMPLE', secret_access_key: secret },
    });
    expect(cloud?.credentials).toMatchObject({ kind: 'keys', id: 'AKIAIOSFODNN7EXAMPLE' });
    expect(cloud && aws.secrets(cloud).map(([key]) => key)).toEqual(['credentials.secret_access_key']);
    expect(resolved({ region: 'us-west-2', credentials: { metadata: true } })?.credentials).toEqual({ kind: 'metadata' });
    expect(resolved({ region: 'us-west-2', credentials: { command: ['/bin/x'] } })?.credentials).toEqual({
      kind: 'command',
      command: ['/bin/x'],
    });
  });

  it.each([
    [{ region: 'Oregon' }, 'region: "Oregon" is not a region such as "us-west-2"'],
    [{ credentials: {} }, 'credentials: write one of profile, access_key_id, command, metadata'],
    [{ credentials: { metadata: false } }, 'credentials: write one of profile, access_key_id, command, metadata'],
    [
      { credentials: { profile: 'a', metadata: true } },
      'credentials: write one of profile, access_key_id, command, metadata, not both profile and metadata',
    ],
    [{ credentials: { access_key_id: 'AKIAIOSFODNN7EXAMPLE' } }, 'credentials: has "access_key_id" without "secret_access_key"'],
    [
      { credentials: { profile: 'a', session_token: { env: 'X' } } },
      'credentials: has a secret in addition to "profile", which does not use it; remove one of them',
    ],
    [{ subnets: ['vpc-1'] }, 'subnets.0: "vpc-1" is not the id of a subnet such as "subnet-0a1b2c3d4e5f67890"'],
    [{ scheduler_role: 'onejob' }, 'scheduler_role: "onejob" is not the ARN of a role'],
    [{ endpoint: 'http://aws.example.org' }, 'endpoint: must begin with https: credentials would leave this host in clear text'],
    [{ endpoint: 'https://a/b' }, 'endpoint: expected an address such as "https://aws.example.org"'],
  ])('refuses %j', (keys, message) => {
    expect(messages({ region: 'us-west-2', ...keys })).toContain(message);
  });

  it('takes an endpoint on this host', () => {
    expect(resolved({ region: 'us-west-2', endpoint: 'http://127.0.0.1:4566/' })?.endpoint).toBe('http://127.0.0.1:4566');
  });
});

describe('what does not fit together', () => {
  const role = 'arn:aws:iam::123456789012:role/onejob-scheduler';
  it.each([
    [{}, 'scheduler_role'],
    [{ scheduler_role: role, subnets: ['subnet-0a1b2c3d4e5f67890'] }, 'subnets'],
    [{ scheduler_role: role }, null],
    [{ death_date: 'manager-only' }, null],
  ])('%j', (keys, path) => {
    const cloud = resolved({ region: 'us-west-2', ...keys });
    expect(cloud && aws.problems?.(cloud).map(([keyPath]) => keyPath.join('.'))).toEqual(path === null ? [] : [path]);
  });
});

it.each([
  'p3.2xlarge',
  'p3dn.24xlarge',
  'p2.xlarge',
  'g3.4xlarge',
  'g3s.xlarge',
  'g2.2xlarge',
  'g4ad.xlarge',
  'g6',
  'Standard_NC4as_T4_v3',
])('refuses %s', (type) => {
  expect(aws.typeProblem(type)).toMatch(/^.*\.$/);
});

it.each(['g4dn.xlarge', 'g5.48xlarge', 'g6e.xlarge', 'gr6.4xlarge', 'p4d.24xlarge', 'p5.48xlarge', 'p6-b200.48xlarge', 't3.micro'])(
  'takes %s',
  (type) => {
    expect(aws.typeProblem(type)).toBeNull();
  },
);

it.each([
  ['g4dn.metal', false, 'L-DB2E81BA', 96],
  ['gr6.8xlarge', true, 'L-3819A6DF', 32],
  ['p5.48xlarge', true, 'L-C4BD4855', 192],
  ['p4d.24xlarge', true, 'L-7212CCBC', 96],
  ['p6-b300.48xlarge', false, 'L-417A185B', 192],
  ['t3.micro', false, 'L-1216C47A', null],
  ['p6-b300.48xlarge', true, undefined, undefined],
  ['inf2.xlarge', false, undefined, undefined],
])('%s (spot: %s) counts against %s', (type, spot, code, vcpus) => {
  const quota = quotaOf(type, spot);
  expect([quota?.code, quota?.vcpus]).toEqual([code, vcpus]);
});
