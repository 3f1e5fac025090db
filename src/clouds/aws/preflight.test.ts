import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { awsBench } from '../../../test/kit/aws.ts';
import { usualAmi } from '../../../test/standins/aws/standin.ts';
import type { Finding } from '../../base/finding.ts';
import type { HostPlan } from '../../ports/cloud.ts';
import { usualImage } from './image.ts';
import { aws as type } from './type.ts';

const plan: HostPlan = {
  host: 'burst',
  types: ['g6.xlarge', 'g4dn.xlarge'],
  spot: 'never',
  image: usualImage,
  disk: 100,
  max: 2,
  lifetime: 3_600_000,
  budget: null,
  prices: {},
};
const group = 'sg-0e00000000000000';
const of = (findings: readonly Finding[], what: string) => findings.filter(({ subject }) => subject === `aws: ${what}`);
const levels = (findings: readonly Finding[]) =>
  findings.filter(({ level }) => level !== 'ok').map(({ subject, message }) => `${subject}: ${message}`);

describe('preflight', () => {
  it('of a sound account finds everything well, and makes nothing', async () => {
    const { aws, cloud, never } = awsBench({ config: { securityGroup: group } });
    const found = await cloud.preflight(plan, never);
    expect(levels(found)).toEqual([]);
    expect(of(found, 'credential')[0]?.message).toBe('the usual credential of AWS is arn:aws:iam::123456789012:user/onejob.');
    expect(of(found, 'image')[0]?.message).toContain(`${usualImage.from} is ${usualAmi}, "Deep Learning Base OSS`);
    expect(of(found, 'types').map(({ message }) => message)).toEqual([
      'EC2 offers g6.xlarge in us-west-2a, us-west-2b, us-west-2c.',
      'EC2 offers g4dn.xlarge in us-west-2a, us-west-2b, us-west-2c, us-west-2d.',
    ]);
    expect(of(found, 'quota')[0]?.message).toBe(
      'Quota "Running On-Demand G and VT instances" (L-DB2E81BA) in us-west-2 is 64 vCPUs; 2 × g6.xlarge needs 8.',
    );
    expect(of(found, 'price')[0]?.message).toMatch(
      /^g6\.xlarge costs about 0\.\d+ USD per hour \(estimate, as of \d{4}-\d\d-\d\d\)\.$/,
    );
    expect(aws.leftovers()).toEqual([]);
    expect(cloud.credential).toBe('the usual credential of AWS (arn:aws:iam::123456789012:user/onejob)');
  });

  it.each(type.permissions)('shows that %s is missing', async (permission) => {
    const { aws, cloud, never } = awsBench({ config: { securityGroup: group, subnets: ['subnet-0a00000000000000'] } });
    aws.account.subnets.splice(0, 1, {
      id: 'subnet-0a00000000000000',
      region: 'us-west-2',
      zone: 'us-west-2a',
      isDefault: false,
      free: 10,
    });
    aws.denied.add(permission);
    const found = levels(await cloud.preflight({ ...plan, spot: 'prefer' }, never));
    // Only a machine shows these.
    if (/CreateSchedule|PassRole|SpotPriceHistory/.test(permission)) expect(found).toEqual([]);
    else expect(found.join('\n')).toContain(permission);
  });

  it('says what is wrong with types, quota, image, network and end of life', async () => {
    const { aws, cloud, never } = awsBench({ config: { schedulerRole: null } });
    aws.account.quotas['L-DB2E81BA'] = 0;
    const found = levels(await cloud.preflight({ ...plan, types: ['g9.xlarge', 'g4dn.xlarge'], disk: 50 }, never));
    expect(found).toEqual(
      expect.arrayContaining([
        expect.stringContaining('aws: image:'),
        'aws: types: Cannot use g9.xlarge: EC2 does not offer it in us-west-2.',
        'aws: quota: Quota "Running On-Demand G and VT instances" (L-DB2E81BA) in us-west-2 is 0 vCPUs, but one g9.xlarge needs 4.',
        'aws: network: Machines get the default security group of their network, in which they reach each other.',
        'aws: price: The price of g9.xlarge is unknown.',
        'aws: end of life: "scheduler_role" is missing, so onejob creates no machine.',
      ]),
    );
  });

  it('tells a security group that is open', async () => {
    const { aws, cloud, never } = awsBench({ config: { securityGroup: group } });
    aws.account.groups.unshift({ id: group, region: 'us-west-2', name: 'x', incoming: ['0.0.0.0/0'] });
    expect(levels(await cloud.preflight(plan, never))).toEqual([
      `aws: network: Security group ${group} lets connections in from 0.0.0.0/0. onejob needs none.`,
    ]);
  });

  it('without a credential asks nothing else, and never throws', async () => {
    const { aws, cloud, never } = awsBench({ parts: { variables: { HOME: '/nonexistent' } } });
    const found = await cloud.preflight(plan, never);
    expect(levels(found)).toEqual(['aws: credential: Cannot sign in to AWS: there is no profile "default".']);
    expect(aws.calls).toEqual([]);
    aws.faults.push({ how: 'lost' });
    const silent = awsBench({ parts: { fetch: aws.fetch } });
    expect(levels(await silent.cloud.preflight(plan, never))[0]).toContain('gave no answer');
  });
});

it('every call that the adapter makes is in its list of permissions, and no other', async () => {
  const { aws, cloud, order, never, clock, everywhere } = awsBench({
    config: { securityGroup: group, subnets: ['subnet-0a00000000000000'] },
  });
  aws.account.subnets.unshift({
    id: 'subnet-0a00000000000000',
    region: 'us-west-2',
    zone: 'us-west-2a',
    isDefault: false,
    free: 10,
  });
  const offer = { type: 'g5.xlarge', spot: true, zone: (await cloud.zones('g5.xlarge', never))[0] ?? null };
  const wanted = order({ offer });
  const made = await cloud.create(wanted, never);
  await cloud.setEnd(wanted, made, never);
  await cloud.console(made, never);
  await cloud.deliver(made, 'stay 1 -', never);
  await cloud.price(offer, never);
  aws.world.flaws.stayingDisks = 1;
  aws.world.addresses.set('eipalloc-01', {
    id: 'eipalloc-0a1b2c3d4',
    region: 'us-west-2',
    ip: '192.0.2.1',
    tags: { 'onejob-owner': 'box-1', 'onejob-run': wanted.run },
  });
  for (const thing of (await everywhere()).things) {
    await cloud.destroy(thing, never).catch(() => {});
    if (thing.kind === 'machine') clock.advance(60_000);
  }
  await cloud.preflight(plan, never);
  expect(aws.used()).toEqual(type.permissions);
});

it('the policy in deploy allows these, and no other', () => {
  const policy = JSON.parse(readFileSync(join(import.meta.dirname, '../../../deploy/cloud/aws-policy.json'), 'utf8'));
  const actions = policy.Statement.flatMap(({ Action: action }: { Action: string | string[] }) => action);
  expect([...new Set(actions)].toSorted()).toEqual(type.permissions);
});
