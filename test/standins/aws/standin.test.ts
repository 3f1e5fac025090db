/** What the stand-in refuses, and what time does to what it has. Requests are signed by a client that others wrote. */
import { AwsV4Signer } from 'aws4fetch';
import { describe, expect, it } from 'vitest';
import { handClock } from '../../kit/core.ts';
import { type AwsOptions, createAws, schedulerRole, testKey, usualAmi } from './standin.ts';

function account(options: Omit<AwsOptions, 'clock'> = {}) {
  const clock = handClock(Date.UTC(2027, 0, 1));
  const aws = createAws({ clock, ...options });
  const stampOf = (ms: number): string => new Date(ms).toISOString().replace(/[:-]|\.\d{3}/g, '');
  async function sign(
    service: string,
    method: string,
    path: string,
    body: string,
    of: { at?: number; secret?: string; region?: string } = {},
  ) {
    const { at = clock.wall(), secret = testKey.secret, region = 'us-west-2' } = of;
    return new AwsV4Signer({
      method,
      url: `https://${service}.${region}.amazonaws.com${path}`,
      accessKeyId: testKey.id,
      secretAccessKey: secret,
      service,
      region,
      datetime: stampOf(at),
      ...(body !== '' && { body }),
    }).sign();
  }
  const said = async (signed: Awaited<ReturnType<typeof sign>>, body = signed.body) => {
    const answer = await aws.fetch(signed.url, { method: signed.method, headers: signed.headers, ...(body != null && { body }) });
    const text = await answer.text();
    const code = /<Code>(.*?)<\/Code>/.exec(text)?.[1] ?? answer.headers.get('x-amzn-ErrorType')?.split(':')[0] ?? null;
    return { status: answer.status, code, text };
  };
  const form = (action: string, params: Readonly<Record<string, string>> = {}): string =>
    new URLSearchParams({ Action: action, Version: '2016-11-15', ...params }).toString();
  const ec2 = async (action: string, params: Readonly<Record<string, string>> = {}) =>
    said(await sign('ec2', 'POST', '/', form(action, params)));
  const schedule = async (name: string, input: object) =>
    said(await sign('scheduler', 'POST', `/schedules/${name}`, JSON.stringify(input)));
  return { aws, clock, sign, said, form, ec2, schedule };
}

const run = { ImageId: usualAmi, InstanceType: 'g4dn.xlarge', MinCount: '1', MaxCount: '1' };
const idIn = (text: string): string => /<instanceId>(.*?)<\/instanceId>/.exec(text)?.[1] ?? '';

describe('a request', () => {
  it('needs a signature, of a known key, over the body, of these minutes', async () => {
    const { aws, clock, sign, said, form } = account();
    const body = form('DescribeRegions');
    expect((await said(await sign('ec2', 'POST', '/', body))).status).toBe(200);
    const plain = await aws.fetch('https://ec2.us-west-2.amazonaws.com/', { method: 'POST', body });
    expect([plain.status, await plain.text()]).toEqual([400, expect.stringContaining('MissingAuthenticationToken')]);
    expect(await said(await sign('ec2', 'POST', '/', body, { secret: 'wrong' }))).toMatchObject({
      status: 401,
      code: 'AuthFailure',
    });
    expect(await said(await sign('ec2', 'POST', '/', body), `${body}&DryRun=true`)).toMatchObject({ code: 'AuthFailure' });
    for (const minutes of [-6, 6]) {
      const at = clock.wall() + minutes * 60_000;
      expect(await said(await sign('ec2', 'POST', '/', body, { at }))).toMatchObject({ status: 400, code: 'RequestExpired' });
      expect(await said(await sign('scheduler', 'GET', '/schedules', '', { at }))).toMatchObject({
        status: 403,
        code: 'InvalidSignatureException',
      });
    }
    expect(await said(await sign('ec2', 'POST', '/', body, { region: 'mars-1' }))).toMatchObject({ code: 'AuthFailure' });
  });

  it.each([
    [{ ...run, Typo: 'x' }, 'UnknownParameter'],
    [{ ...run, 'MetadataOptions.HttpToken': 'required' }, 'UnknownParameter'],
    [{ ...run, 'MetadataOptions.HttpTokens': 'always' }, 'InvalidParameterValue'],
    [{ ImageId: usualAmi, InstanceType: 'g4dn.xlarge', MinCount: '1' }, 'MissingParameter'],
    [{ ...run, ImageId: 'ubuntu' }, 'InvalidAMIID.Malformed'],
    [{ ...run, ImageId: 'ami-0123456789abcdef1' }, 'InvalidAMIID.NotFound'],
    [{ ...run, InstanceType: 'g99.xlarge' }, 'InvalidParameterValue'],
    [{ ...run, InstanceInitiatedShutdownBehavior: 'delete' }, 'InvalidParameterValue'],
    [
      { ...run, 'BlockDeviceMapping.1.DeviceName': '/dev/sda1', 'BlockDeviceMapping.1.Ebs.VolumeSize': '8' },
      'InvalidBlockDeviceMapping',
    ],
    [
      {
        ...run,
        'TagSpecification.1.ResourceType': 'spot-instances-request',
        'TagSpecification.1.Tag.1.Key': 'a',
        'TagSpecification.1.Tag.1.Value': 'b',
      },
      'InvalidParameterValue',
    ],
    [{ ...run, 'Placement.AvailabilityZone': 'eu-central-1a' }, 'InvalidParameterValue'],
    [{ ...run, SubnetId: 'subnet-0123456789abcdef1' }, 'InvalidSubnetID.NotFound'],
    [{ ...run, 'SecurityGroupId.1': 'sg-0123456789abcdef1' }, 'InvalidGroup.NotFound'],
    [{ ...run, UserData: Buffer.alloc(16_385).toString('base64') }, 'InvalidParameterValue'],
    [{ ...run, UserData: '#cloud-config' }, 'InvalidParameterValue'],
    [{ ...run, ClientToken: 'x'.repeat(65) }, 'InvalidParameterValue'],
    [{ ...run, InstanceType: 'p5.48xlarge' }, 'VcpuLimitExceeded'],
    [{ ...run, DryRun: 'true' }, 'DryRunOperation'],
  ])('to make a machine is refused: %j', async (params, code) => {
    const { aws, ec2 } = account();
    expect(await ec2('RunInstances', params)).toMatchObject({ code });
    expect(aws.leftovers()).toEqual([]);
  });

  it.each([
    ['DescribeInstances', { MaxResults: '4' }, 'InvalidParameterValue'],
    ['DescribeInstances', { 'Filter.1.Name': 'no-such', 'Filter.1.Value.1': 'x' }, 'InvalidParameterValue'],
    ['RebootInstances', {}, 'InvalidAction'],
  ])('%s %j is refused', async (action, params, code) => {
    const { aws, ec2 } = account();
    await ec2('RunInstances', run);
    expect(aws.alive()).toHaveLength(1);
    expect(await ec2(action, params)).toMatchObject({ code });
  });
});

describe('the token of a request', () => {
  it('counts for one zone, and for the region only when neither zone nor subnet is named', async () => {
    const { ec2 } = account();
    const made = async (params: Readonly<Record<string, string>>) =>
      idIn((await ec2('RunInstances', { ...run, ClientToken: 't', ...params })).text);
    const zone = (last: string) => ({ 'Placement.AvailabilityZone': `us-west-2${last}` });
    const first = await made({});
    expect(await made({})).toBe(first);
    const inA = await made(zone('a'));
    expect(inA).not.toBe(first);
    expect(await made(zone('a'))).toBe(inA);
    expect(await made({ SubnetId: 'subnet-0a00000000000000' })).not.toBe(inA);
    expect(new Set([first, inA, await made(zone('b'))]).size).toBe(3);
    expect(await ec2('RunInstances', { ...run, ...zone('a'), ClientToken: 't', InstanceType: 'g5.xlarge' })).toMatchObject({
      code: 'IdempotentParameterMismatch',
    });
  });
});

describe('a machine', () => {
  it('boots, ends and is remembered for an hour, and tells a test of it', async () => {
    const seen: string[] = [];
    const { aws, clock, ec2 } = account({
      hooks: { onBoot: ({ userData }) => seen.push(`boot ${userData}`), onEnd: () => seen.push('end') },
    });
    const id = idIn((await ec2('RunInstances', { ...run, UserData: Buffer.from('hello').toString('base64') })).text);
    const state = async () => /<instanceState><code>\d+<\/code><name>(.*?)</.exec((await ec2('DescribeInstances')).text)?.[1];
    expect(await state()).toBe('pending');
    clock.advance(5_000);
    expect([await state(), seen]).toEqual(['running', ['boot hello']]);
    await ec2('TerminateInstances', { 'InstanceId.1': id });
    expect([await state(), seen]).toEqual(['shutting-down', ['boot hello', 'end']]);
    clock.advance(30_000);
    expect([await state(), aws.leftovers()]).toEqual(['terminated', []]);
    clock.advance(3_600_000);
    expect(await state()).toBeUndefined();
  });

  it('among others is not ended when one of the ids is wrong', async () => {
    const { aws, ec2 } = account();
    const id = idIn((await ec2('RunInstances', run)).text);
    expect(await ec2('TerminateInstances', { 'InstanceId.1': id, 'InstanceId.2': 'i-0123456789abcdef1' })).toMatchObject({
      code: 'InvalidInstanceID.NotFound',
    });
    expect(aws.alive()).toHaveLength(1);
  });

  it('that shuts itself down only stops, unless it was made to terminate', async () => {
    const { aws, clock, ec2 } = account();
    await ec2('RunInstances', run);
    clock.advance(5_000);
    const [machine] = aws.alive();
    if (machine !== undefined) aws.world.guestShutdown(machine);
    clock.advance(60_000);
    expect(aws.alive()).toMatchObject([{ state: 'stopped' }]);
    expect(aws.leftovers()).toHaveLength(3);
  });
});

describe('a schedule', () => {
  const good = {
    ScheduleExpression: 'at(2027-01-01T01:00:00)',
    FlexibleTimeWindow: { Mode: 'OFF' },
    Target: { Arn: 'arn:aws:scheduler:::aws-sdk:ec2:terminateInstances', RoleArn: schedulerRole, Input: '{"InstanceIds":[]}' },
  };

  it('stays when it has fired, unless it was made to go', async () => {
    const { aws, clock, schedule } = account();
    expect((await schedule('stays', good)).status).toBe(200);
    await schedule('goes', { ...good, ActionAfterCompletion: 'DELETE' });
    clock.advance(3_600_000);
    expect(aws.leftovers()).toEqual(['stays']);
  });

  it.each([
    [{ ...good, Tags: [] }, 'ValidationException'],
    [{ ...good, ScheduleExpression: 'at(tomorrow)' }, 'ValidationException'],
    [{ ...good, ScheduleExpression: 'at(2026-01-01T00:00:00)' }, 'ValidationException'],
    [{ ...good, Target: { ...good.Target, RoleArn: 'arn:aws:iam::123456789012:role/another' } }, 'ValidationException'],
    [{ Target: good.Target, FlexibleTimeWindow: { Mode: 'OFF' } }, 'ValidationException'],
  ])('is refused: %j', async (input, code) => {
    const { aws, schedule } = account();
    expect(await schedule('x', input)).toMatchObject({ status: 400, code });
    expect(aws.leftovers()).toEqual([]);
  });

  it('may be late, and may not be allowed to end what is not ours', async () => {
    const { aws, clock, ec2, schedule } = account({ times: { late: 60_000 } });
    const tag = {
      'TagSpecification.1.ResourceType': 'instance',
      'TagSpecification.1.Tag.1.Key': 'onejob-owner',
      'TagSpecification.1.Tag.1.Value': 'x',
    };
    const ours = idIn((await ec2('RunInstances', { ...run, ...tag })).text);
    const others = idIn((await ec2('RunInstances', run)).text);
    await schedule('x', { ...good, Target: { ...good.Target, Input: JSON.stringify({ InstanceIds: [ours, others] }) } });
    clock.advance(3_600_000);
    expect(aws.alive()).toHaveLength(2);
    clock.advance(60_000);
    clock.advance(30_000);
    expect(aws.alive()).toMatchObject([{ id: others }]);
  });
});
