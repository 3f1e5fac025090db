import { describe, expect, it } from 'vitest';
import { awsBench } from '../../../test/kit/aws.ts';

const subnet = (last: number, zone: string, free: number) => ({
  id: `subnet-0c0000000000000${last}`,
  region: 'us-west-2',
  zone,
  isDefault: false,
  free,
});
const own = [subnet(1, 'us-west-2b', 5), subnet(2, 'us-west-2a', 5), subnet(3, 'us-west-2b', 50), subnet(4, 'us-west-2d', 5)];

function withSubnets() {
  const bench = awsBench({ config: { subnets: own.map(({ id }) => id), securityGroup: 'sg-0e00000000000000' } });
  bench.aws.account.subnets.push(...own);
  return bench;
}

describe('zones', () => {
  it('begin with the choice of the cloud', async () => {
    const { cloud, never } = awsBench();
    expect(await cloud.zones('g6.xlarge', never)).toEqual([null, 'us-west-2a', 'us-west-2b', 'us-west-2c']);
  });

  it('are those of the subnets that offer the type, each with its emptiest subnet', async () => {
    const { aws, cloud, never, order } = withSubnets();
    const zones = await cloud.zones('g6.xlarge', never);
    expect(zones).toEqual(['us-west-2a', 'us-west-2b']);
    for (const zone of zones) await cloud.create(order({ offer: { type: 'g6.xlarge', spot: false, zone } }), never);
    expect(aws.alive().map(({ subnet: id, groups }) => [id, groups])).toEqual([
      [own[1]?.id, ['sg-0e00000000000000']],
      [own[2]?.id, ['sg-0e00000000000000']],
    ]);
  });

  it('are looked up for a create after a restart', async () => {
    const { aws, cloud, never, order, error } = withSubnets();
    await cloud.create(order({ offer: { type: 'g4dn.xlarge', spot: false, zone: 'us-west-2d' } }), never);
    expect(aws.alive()).toMatchObject([{ subnet: own[3]?.id }]);
    const elsewhere = order({ offer: { type: 'g4dn.xlarge', spot: false, zone: 'us-west-2c' } });
    expect(await error(cloud.create(elsewhere, never))).toMatchObject({ code: 'E_CLOUD_REQUEST', isAmbiguous: false });
  });

  it('that do not exist are an error', async () => {
    const { cloud, never, error } = awsBench();
    expect(await error(cloud.zones('g9.xlarge', never))).toMatchObject({
      code: 'E_CLOUD_REQUEST',
      message: 'Cannot use g9.xlarge: EC2 does not offer it in us-west-2.',
    });
    const bench = withSubnets();
    bench.aws.account.offered['p4d.24xlarge'] = ['us-west-2c'];
    expect(await bench.error(bench.cloud.zones('p4d.24xlarge', never))).toMatchObject({
      message: expect.stringContaining('only in us-west-2c'),
    });
  });
});

describe('prices', () => {
  it('are of a table, or of today for spot, asked once a day', async () => {
    const { aws, cloud, never, clock } = awsBench();
    expect(await cloud.price({ type: 'g5.xlarge', spot: false }, never)).toEqual({
      perHour: 1.006,
      asOf: expect.stringMatching(/^\d{4}-\d\d-\d\d$/),
    });
    expect(aws.calls).toEqual([]);
    const spot = { type: 'g5.xlarge', spot: true };
    expect(await cloud.price(spot, never)).toEqual({ perHour: 0.48, asOf: '2027-01-01' });
    await cloud.price(spot, never);
    expect(aws.calls).toHaveLength(1);
    clock.advance(86_400_000);
    aws.faults.push({ how: 'lost' });
    expect(await cloud.price(spot, never)).toMatchObject({ perHour: 1.006 });
    expect(await cloud.price({ type: 'x9.large', spot: true }, never)).toBeNull();
  });
});

describe('the console', () => {
  it('is the end of what the machine printed, or empty', async () => {
    const { aws, cloud, never, order } = awsBench();
    const made = await cloud.create(order(), never);
    expect(await cloud.console(made, never)).toBe('');
    const [machine] = aws.alive();
    if (machine !== undefined) machine.console = `${'x'.repeat(70_000)}cloud-init failed: ü\n`;
    const found = await cloud.console(made, never);
    expect(found).toMatch(/cloud-init failed: ü\n$/);
    expect(found.length).toBeLessThanOrEqual(65_536);
  });
});

describe('an image', () => {
  it('is an AMI or a parameter of SSM, and is looked up once for many machines', async () => {
    const { aws, cloud, never, order, error } = awsBench();
    const image = { from: 'ami-0123456789abcdef0', has: 'everything' } as const;
    for (let made = 0; made < 3; made += 1) await cloud.create(order({ image, disk: 20 }), never);
    expect(aws.calls.filter(({ action }) => action === 'DescribeImages')).toHaveLength(1);
    // Not smaller than the image.
    expect([...aws.world.volumes.values()].map(({ size }) => size)).toEqual([75, 75, 75]);
    const fails = async (from: string) => error(cloud.create(order({ image: { from, has: 'nothing' } }), never));
    expect(await fails('ubuntu')).toMatchObject({ code: 'E_CLOUD_REQUEST', message: expect.stringContaining('begins with "/"') });
    expect(await fails('/aws/service/no')).toMatchObject({ reason: 'ParameterNotFound', hint: expect.stringContaining('"image"') });
    expect(await fails('ami-0123456789abcdef1')).toMatchObject({ code: 'E_CLOUD_REQUEST', reason: 'InvalidAMIID.NotFound' });
  });
});
