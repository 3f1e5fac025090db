/**
 * The AWS stand-in, and clients that others wrote against the real one: what they read and send is how it has to behave. And the
 * other way round: what onejob sends, at moto, which plays EC2, and by botocore's model of each service.
 */
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { createAws as createAdapter } from '../../src/clouds/aws/aws.ts';
import { systemClock } from '../../src/system/system-clock.ts';
import { awsBench, awsConfig } from '../kit/aws.ts';
import { createAws, testKey, usualAmi } from '../standins/aws/standin.ts';
import { awsClients, sdk } from '../support/aws-clients.ts';
import { type Child, startChild } from '../support/child.ts';
import { lacks } from '../support/require.ts';

const credentials = { accessKeyId: testKey.id, secretAccessKey: testKey.secret };
const variables = { AWS_ACCESS_KEY_ID: testKey.id, AWS_SECRET_ACCESS_KEY: testKey.secret };
const silent = { info: () => {}, warn: () => {}, error: () => {} };
const never = new AbortController().signal;

/** An image that moto has. */
async function imageOf(endpoint: string): Promise<string> {
  const { EC2Client, DescribeImagesCommand } = sdk('client-ec2') as Sdk;
  if (EC2Client === undefined || DescribeImagesCommand === undefined) throw new Error('the SDK has no clients');
  const client = new EC2Client({ region: 'us-west-2', endpoint, credentials, maxAttempts: 1 });
  const found = await client.send(new DescribeImagesCommand({ Owners: ['099720109477'] }));
  client.destroy();
  return (found as { Images: { ImageId: string }[] }).Images[0]?.ImageId ?? '';
}

/** What the SDK offers, as far as it is used here. */
type Sdk = Record<string, new (input: unknown) => { send(command: unknown): Promise<never>; destroy(): void }>;

describe.skipIf(lacks('awsClients'))('with real clients of AWS', () => {
  const children: Child[] = [];
  afterAll(async () => {
    for (const child of children) if (child.running) await child.kill();
  });
  const python = (...args: string[]): Child => {
    const env = { PATH: process.env.PATH, PYTHONPATH: awsClients.python };
    const child = startChild('python3', args, { cwd: '/', env });
    children.push(child);
    return child;
  };
  const deploy = join(import.meta.dirname, '../../deploy/cloud');
  const script = join(import.meta.dirname, '../support/aws_boto.py');

  test("AWS's own SDK reads and drives the stand-in", async () => {
    const aws = createAws({ clock: systemClock, times: { boot: 1, end: 1 } });
    await using server = await aws.serve();
    const { EC2Client, ...ec2 } = sdk('client-ec2') as Sdk;
    const { SchedulerClient, ...scheduler } = sdk('client-scheduler') as Sdk;
    if (EC2Client === undefined || SchedulerClient === undefined) throw new Error('the SDK has no clients');
    const settings = { region: 'us-west-2', endpoint: server.url, credentials, maxAttempts: 1 };
    const [one, two] = [new EC2Client(settings), new SchedulerClient(settings)];
    const ask = (name: string, input: unknown): Promise<Record<string, never>> => {
      const Command = ec2[name] ?? scheduler[name];
      if (Command === undefined) throw new Error(`the SDK has no ${name}`);
      return (name in ec2 ? one : two).send(new Command(input));
    };
    const tags = [{ Key: 'onejob-owner', Value: 'sdk' }];
    const order = {
      ImageId: usualAmi,
      InstanceType: 'g5.xlarge',
      MinCount: 1,
      MaxCount: 1,
      ClientToken: 'x',
      TagSpecifications: ['instance', 'volume', 'network-interface'].map((ResourceType) => ({ ResourceType, Tags: tags })),
      BlockDeviceMappings: [
        { DeviceName: '/dev/sda1', Ebs: { VolumeSize: 90, VolumeType: 'gp3', Encrypted: true, DeleteOnTermination: true } },
      ],
    };
    const made = await ask('RunInstancesCommand', order);
    expect(made.Instances).toEqual([
      expect.objectContaining({ State: { Code: 0, Name: 'pending' }, Tags: tags, ClientToken: 'x' }),
    ]);
    const id = (made.Instances as unknown as { InstanceId: string }[])[0]?.InstanceId;
    expect(await ask('RunInstancesCommand', order)).toMatchObject({ Instances: [{ InstanceId: id }] });
    const Filters = [{ Name: 'tag:onejob-owner', Values: ['sdk'] }];
    await expect
      .poll(() => ask('DescribeInstancesCommand', { Filters, MaxResults: 5 }))
      .toMatchObject({
        Reservations: [
          {
            Instances: [
              {
                InstanceId: id,
                State: { Name: 'running' },
                LaunchTime: expect.any(Date),
                Placement: { AvailabilityZone: 'us-west-2a' },
              },
            ],
          },
        ],
      });
    expect(await ask('DescribeVolumesCommand', { Filters })).toMatchObject({
      Volumes: [
        {
          Size: 90,
          Encrypted: true,
          VolumeType: 'gp3',
          State: 'in-use',
          Attachments: [{ InstanceId: id, DeleteOnTermination: true }],
        },
      ],
    });
    expect(await ask('DescribeNetworkInterfacesCommand', { Filters })).toMatchObject({ NetworkInterfaces: [{ Status: 'in-use' }] });
    aws.exhaust('g6.xlarge', 'on-demand');
    await expect(ask('RunInstancesCommand', { ...order, ClientToken: 'y', InstanceType: 'g6.xlarge' })).rejects.toMatchObject({
      name: 'InsufficientInstanceCapacity',
      $metadata: { httpStatusCode: 500 },
    });
    await expect(ask('RunInstancesCommand', { ...order, DryRun: true })).rejects.toMatchObject({ name: 'DryRunOperation' });
    const Target = { Arn: 'arn:aws:scheduler:::aws-sdk:ec2:terminateInstances', RoleArn: awsConfig.schedulerRole, Input: '{}' };
    const timed = {
      Name: 'onejob-sdk',
      ScheduleExpression: 'at(2099-01-01T00:00:00)',
      FlexibleTimeWindow: { Mode: 'OFF' },
      Target,
    };
    await ask('CreateScheduleCommand', timed);
    expect(await ask('GetScheduleCommand', { Name: 'onejob-sdk' })).toMatchObject({
      Target,
      State: 'ENABLED',
      CreationDate: expect.any(Date),
    });
    expect(await ask('ListSchedulesCommand', { NamePrefix: 'onejob-' })).toMatchObject({ Schedules: [{ Name: 'onejob-sdk' }] });
    await ask('DeleteScheduleCommand', { Name: 'onejob-sdk' });
    await expect(ask('GetScheduleCommand', { Name: 'onejob-sdk' })).rejects.toMatchObject({ name: 'ResourceNotFoundException' });
    await ask('TerminateInstancesCommand', { InstanceIds: [id] });
    await expect.poll(() => aws.leftovers()).toEqual([]);
    for (const client of [one, two]) client.destroy();
    aws.close();
  });

  test('boto3 reads and drives the stand-in', async () => {
    const aws = createAws({ clock: systemClock });
    await using server = await aws.serve();
    const { code, stdout, stderr } = await python(script, 'drive', server.url).ended;
    expect([code, stderr]).toEqual([0, '']);
    const tags = [{ Key: 'onejob-owner', Value: 'boto' }];
    expect(JSON.parse(stdout)).toEqual({
      who: 'arn:aws:iam::123456789012:user/onejob',
      quota: 64,
      same: true,
      other: true,
      image: '/dev/sda1',
      regions: 2,
      machines: ['us-west-2a', 'us-west-2b'].map((zone) => ['pending', 'spot', zone, tags]),
      launched: new Date().getUTCFullYear(),
      disks: ['in-use', 'in-use'],
      cards: ['in-use', 'in-use'],
      spots: ['active', 'active'],
      addresses: [],
      zones: ['us-west-2a', 'us-west-2b', 'us-west-2c'],
      ended: ['pending', 'shutting-down'],
      schedule: ['at(2099-01-01T00:00:00)', 'ENABLED', true, ['onejob-boto'], ['ConflictException', 409]],
      errors: {
        dry: ['DryRunOperation', 412],
        token: ['IdempotentParameterMismatch', 400],
        image: ['InvalidAMIID.NotFound', 400],
        malformed: ['InvalidInstanceID.Malformed', 400],
        absent: ['InvalidInstanceID.NotFound', 400],
        parameter: ['ParameterNotFound', 400],
        schedule: ['ResourceNotFoundException', 404],
      },
    });
    aws.close();
  });

  test("every request of onejob is one by botocore's model of its service", async () => {
    const bench = awsBench({ config: { securityGroup: 'sg-0e00000000000000' } });
    const { aws, cloud, order, never: signal } = bench;
    const plan = {
      host: 'burst',
      types: ['g5.xlarge'],
      spot: 'prefer',
      image: cloud.usualImage,
      disk: 100,
      max: 1,
      lifetime: 1,
      budget: null,
      prices: {},
    } as const;
    await cloud.preflight(plan, signal);
    for (const spot of [true, false]) {
      const [, zone = null] = await cloud.zones('g5.xlarge', signal);
      const wanted = order({ offer: { type: 'g5.xlarge', spot, zone } });
      const made = await cloud.create(wanted, signal);
      await cloud.setEnd(wanted, made, signal);
      await cloud.console(made, signal);
      await cloud.deliver(made, 'stay 1 -', signal);
    }
    aws.pagesOf(1);
    for (const thing of (await bench.everywhere()).things) await cloud.destroy(thing, signal).catch(() => {});
    const requests = aws.calls.map(({ service, action, body }) => ({ service, action, body }));
    expect(requests.length).toBeGreaterThan(50);
    const child = python(script, 'check');
    child.type(JSON.stringify(requests));
    const { code, stdout, stderr } = await child.ended;
    expect([code, stdout, stderr]).toEqual([0, '', '']);
  });

  test('IAM knows every action, resource and condition of the policies', async () => {
    const policy = async (name: string): Promise<[issue: string, detail: string][]> => {
      const { code, stdout, stderr } = await python('-W', 'ignore', script, 'policy', join(deploy, `${name}.json`)).ended;
      expect([code, stderr]).toEqual([0, '']);
      return JSON.parse(stdout);
    };
    expect(await policy('aws-scheduler-policy')).toEqual([]);
    // RunInstances needs what is created and what is used, which are in two statements; public parameters belong to no account.
    const apart = await policy('aws-policy');
    expect(apart.map(([issue]) => issue)).toEqual(['RESOURCE_MISMATCH', 'RESOURCE_MISMATCH', 'RESOURCE_MISMATCH']);
    expect(apart.map(([, detail]) => /'action': '(.*?)'/.exec(detail)?.[1]).toSorted()).toEqual([
      'ec2:RunInstances',
      'ec2:RunInstances',
      'ssm:GetParameter',
    ]);
  });

  test('moto takes our signed requests for those of EC2', async () => {
    const moto = python('-m', 'moto.server', '-H', '127.0.0.1', '-p', '0');
    const [, endpoint = ''] = await moto.says(/Running on (http:\/\/127\.0\.0\.1:\d+)/);
    const config = { ...awsConfig, endpoint, credentials: { kind: 'usual' } } as const;
    const cloud = createAdapter(config, { clock: systemClock, fetch, log: silent, variables, version: '0.0.0' });
    const born = Math.floor(Date.now() / 1000);
    const birth = { owner: 'box-1', run: `onejob-${randomBytes(8).toString('hex')}`, host: 'burst', born, expires: born + 3600 };
    const { owner, ...tags } = birth;
    const zones = await cloud.zones('g4dn.xlarge', never);
    expect(zones).toContain('us-west-2a');
    const made = await cloud.create(
      {
        ...birth,
        offer: { type: 'g4dn.xlarge', spot: false, zone: 'us-west-2a' },
        token: 'x',
        disk: 100,
        userData: '#cloud-config\n',
        image: { from: await imageOf(endpoint), has: 'everything' },
      },
      never,
    );
    expect(made).toMatchObject({ id: expect.stringMatching(/^i-/), zone: 'us-west-2a' });
    expect(await cloud.setEnd(birth, made, never)).toMatch(/^schedule /);
    const scope = { places: [], everywhere: false };
    const found = await cloud.list(owner, scope, never);
    expect(found.unknown).toEqual([]);
    // moto does not tag interfaces.
    expect(found.things.map(({ kind }) => kind).toSorted()).toEqual(['disk', 'machine', 'schedule']);
    expect(found.things.find(({ kind }) => kind === 'machine')).toMatchObject({ ...tags, state: 'running' });
    for (const thing of found.things.filter(({ kind }) => kind !== 'disk')) await cloud.destroy(thing, never);
    expect(await cloud.list(owner, scope, never)).toEqual({ things: [], unknown: [] });
  });
});
