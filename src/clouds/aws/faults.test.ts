/** Bad days of AWS: what the adapter says of them, and that it does nothing twice. */
import { describe, expect, it } from 'vitest';
import { awsBench } from '../../../test/kit/aws.ts';

const minute = 60_000;

describe('no capacity', () => {
  it('comes with HTTP 500, is one request, and says which zones have some', async () => {
    const { aws, cloud, order, error, never } = awsBench();
    aws.exhaust('g5.xlarge', 'on-demand', 'us-west-2a');
    const found = await error(cloud.create(order({ offer: { type: 'g5.xlarge', spot: false, zone: 'us-west-2a' } }), never));
    expect(found).toMatchObject({
      code: 'E_CLOUD_CAPACITY',
      reason: 'InsufficientInstanceCapacity',
      isAmbiguous: false,
      retry: true,
      zones: ['us-west-2b', 'us-west-2c'],
      message: expect.stringMatching(
        /^Cannot create machine onejob-\w+ \(g5\.xlarge in us-west-2a\): EC2 in us-west-2 answered InsufficientInstanceCapacity \(HTTP 500\): We currently do not have sufficient g5\.xlarge/,
      ),
    });
    expect(aws.calls.filter(({ action }) => action === 'RunInstances')).toHaveLength(1);
    expect(aws.leftovers()).toEqual([]);
  });

  it('without a zone, or as spot, names none', async () => {
    const { aws, cloud, order, error, never } = awsBench();
    aws.exhaust('g5.xlarge', 'on-demand');
    aws.exhaust('g5.xlarge', 'spot');
    for (const spot of [false, true])
      expect(await error(cloud.create(order({ offer: { type: 'g5.xlarge', spot, zone: null } }), never))).toMatchObject({
        code: 'E_CLOUD_CAPACITY',
        zones: [],
        isAmbiguous: false,
      });
  });

  it('is also a zone that does not offer the type', async () => {
    const { cloud, order, error, never } = awsBench();
    const found = await error(cloud.create(order({ offer: { type: 'g6.xlarge', spot: false, zone: 'us-west-2d' } }), never));
    expect(found).toMatchObject({
      code: 'E_CLOUD_CAPACITY',
      reason: 'Unsupported',
      zones: ['us-west-2a', 'us-west-2b', 'us-west-2c'],
    });
  });
});

describe('a quota', () => {
  it('is named, with its limit and what is needed', async () => {
    const { aws, cloud, order, error, never } = awsBench();
    aws.account.quotas['L-DB2E81BA'] = 0;
    const found = await error(cloud.create(order(), never));
    expect(found).toMatchObject({ code: 'E_CLOUD_QUOTA', reason: 'VcpuLimitExceeded', retry: false, isAmbiguous: false });
    expect(found.message).toContain(
      'g4dn.xlarge needs 4 vCPUs of quota "Running On-Demand G and VT instances" (L-DB2E81BA) in us-west-2; its limit is 0.',
    );
    expect(found.hint).toContain('L-DB2E81BA');
    expect(aws.calls.filter(({ action }) => action === 'RunInstances')).toHaveLength(1);
  });

  it('of spot is another one', async () => {
    const { aws, cloud, order, error, never } = awsBench();
    aws.account.quotas['L-3819A6DF'] = 3;
    const found = await error(cloud.create(order({ offer: { type: 'g4dn.xlarge', spot: true, zone: null } }), never));
    expect(found).toMatchObject({ code: 'E_CLOUD_QUOTA', reason: 'MaxSpotInstanceCountExceeded' });
    expect(found.message).toContain('"All G and VT Spot Instance Requests" (L-3819A6DF)');
  });
});

describe('a create whose fate is unknown', () => {
  it.each(['lost', 'broken'] as const)('says so, and the list shows the machine (%s)', async (how) => {
    const { aws, cloud, order, error, never, list } = awsBench();
    aws.faults.push({ action: 'RunInstances', how, times: 1 });
    const wanted = order();
    expect(await error(cloud.create(wanted, never))).toMatchObject({ code: 'E_CLOUD_UNREACHABLE', isAmbiguous: true, retry: true });
    expect(aws.calls.filter(({ action }) => action === 'RunInstances')).toHaveLength(1);
    expect((await list()).things.filter(({ run }) => run === wanted.run).map(({ kind }) => kind)).toContain('machine');
  });

  it('is one that EC2 never answers', async () => {
    const { aws, cloud, order, error, never, clock } = awsBench();
    aws.faults.push({ action: 'RunInstances', how: 'silent', times: 1 });
    const found = error(cloud.create(order(), never));
    await expect.poll(() => aws.alive()).toHaveLength(1);
    clock.advance(30_000);
    expect(await found).toMatchObject({ code: 'E_CLOUD_UNREACHABLE', isAmbiguous: true });
  });

  it('is not one whose image or zone could not even be looked up', async () => {
    const { aws, cloud, order, error, never } = awsBench();
    aws.faults.push({ service: 'ssm', how: 'lost', times: 1 });
    expect(await error(cloud.create(order(), never))).toMatchObject({ code: 'E_CLOUD_UNREACHABLE', isAmbiguous: false });
    aws.faults.push({ action: 'DescribeImages', how: { status: 503, code: 'RequestLimitExceeded' }, times: 1 });
    expect(await error(cloud.create(order(), never))).toMatchObject({ code: 'E_CLOUD_THROTTLED', isAmbiguous: false });
    expect(aws.leftovers()).toEqual([]);
  });

  it('may show late in lists', async () => {
    const { cloud, order, never, list, clock } = awsBench({ times: { visible: 30_000 } });
    await cloud.create(order(), never);
    const machines = async () => (await list()).things.filter(({ kind }) => kind === 'machine');
    expect(await machines()).toEqual([]);
    clock.advance(30_000);
    expect(await machines()).toHaveLength(1);
  });

  it('may have made a machine when its token was used with other values', async () => {
    const { cloud, order, error, never } = awsBench();
    const first = order();
    await cloud.create(first, never);
    const second = { ...order(), token: first.token };
    expect(await error(cloud.create(second, never))).toMatchObject({
      code: 'E_CLOUD_REQUEST',
      reason: 'IdempotentParameterMismatch',
      isAmbiguous: true,
    });
  });
});

describe('the token of a create', () => {
  it('protects only in one zone', async () => {
    const { aws, cloud, order, never } = awsBench();
    const one = order({ offer: { type: 'g5.xlarge', spot: false, zone: 'us-west-2a' } });
    expect((await cloud.create(one, never)).id).toBe((await cloud.create(one, never)).id);
    await cloud.create({ ...one, offer: { ...one.offer, zone: 'us-west-2b' } }, never);
    expect(aws.alive()).toHaveLength(2);
  });
});

describe('a list', () => {
  it.each([
    [
      'volumes',
      { action: 'DescribeVolumes', how: { status: 403, code: 'UnauthorizedOperation' } },
      'volumes in us-west-2 (UnauthorizedOperation)',
    ],
    [
      'machines',
      { action: 'DescribeInstances', how: { status: 503, code: 'RequestLimitExceeded' } },
      'instances in us-west-2 (RequestLimitExceeded)',
    ],
    ['schedules', { service: 'scheduler', how: 'lost' as const }, 'schedules in us-west-2 (no answer)'],
  ])('without the %s is not complete, but has the rest', async (_, fault, unknown) => {
    const { aws, cloud, order, never, list } = awsBench();
    const wanted = order();
    await cloud.setEnd(wanted, await cloud.create(wanted, never), never);
    aws.faults.push(fault);
    const found = await list();
    expect(found.unknown).toEqual([unknown]);
    expect(found.things).toHaveLength(3);
  });

  it('has all pages, or is not complete', async () => {
    const { aws, cloud, order, never, list } = awsBench();
    aws.pagesOf(2);
    for (let made = 0; made < 5; made += 1) {
      const wanted = order();
      await cloud.setEnd(wanted, await cloud.create(wanted, never), never);
    }
    const whole = await list();
    expect(whole.unknown).toEqual([]);
    expect(whole.things).toHaveLength(20);
    aws.faults.push({ action: 'DescribeInstances', isNextPage: true, how: { status: 503, code: 'RequestLimitExceeded' } });
    const partial = await list();
    expect(partial.unknown).toEqual(['instances in us-west-2 (RequestLimitExceeded)']);
    expect(partial.things).toHaveLength(15);
  });

  it('looks in other regions when told, and one of them may refuse', async () => {
    const { aws, cloud, order, never, list, everywhere } = awsBench();
    const abroad = awsBench({ config: { region: 'eu-central-1' }, parts: { fetch: aws.fetch } });
    const made = await abroad.cloud.create(order(), never);
    expect(made.place).toBe('eu-central-1');
    expect((await list()).things).toEqual([]);
    const kinds = ['disk', 'interface', 'machine'];
    expect((await everywhere()).things.map(({ kind }) => kind).toSorted()).toEqual(kinds);
    const known = await cloud.list('box-1', { places: ['eu-central-1'], everywhere: false }, never);
    expect(known.things.map(({ place }) => place)).toEqual(Array(3).fill('eu-central-1'));
    aws.denied.add('eu-central-1/ec2:DescribeInstances');
    expect((await everywhere()).unknown).toEqual(['instances in eu-central-1 (UnauthorizedOperation)']);
    const own = awsBench({ config: { regions: ['us-west-2'] }, parts: { fetch: aws.fetch } });
    expect(await own.everywhere()).toEqual({ things: [], unknown: [] });
    aws.denied.add('ec2:DescribeRegions');
    expect((await everywhere()).unknown).toEqual(['other regions (UnauthorizedOperation)']);
  });

  it('does not wait for STS', async () => {
    const { aws, cloud, list } = awsBench();
    aws.faults.push({ service: 'sts', how: 'silent' });
    expect(await list()).toEqual({ things: [], unknown: [] });
    await list();
    expect(aws.calls.filter(({ service }) => service === 'sts')).toHaveLength(1);
    expect(cloud.credential).toBe('the usual credential of AWS');
  });

  it('does not claim what looks like ours', async () => {
    const { aws, cloud, order, never, list } = awsBench();
    await cloud.create(order({ run: 'my-own-machine' }), never);
    expect((await list()).things.map(({ run }) => run)).toEqual([null, null, null]);
    aws.world.addSchedule('us-west-2', 'default', 'onejob-0123456789abcdef-something', schedule(), null);
    expect((await list('other')).things).toEqual([]);
  });
});

const schedule = () => ({
  ...({ ActionAfterCompletion: 'NONE', State: 'ENABLED', ScheduleExpression: 'at(2028-01-01T00:00:00)' } as const),
  Target: { Arn: 'arn:aws:scheduler:::aws-sdk:ec2:terminateInstances', RoleArn: 'arn:aws:iam::123456789012:role/x' },
});

describe('the end of life that the cloud does not hold', () => {
  it.each([
    ['lost', 'E_CLOUD_END', /it is not there/],
    ['off', 'E_CLOUD_END', /State is "DISABLED" instead of "ENABLED"/],
  ] as const)('is an error (%s)', async (how, code, message) => {
    const { aws, cloud, order, error, never } = awsBench();
    const wanted = order();
    const made = await cloud.create(wanted, never);
    aws.world.flaws.schedules = how;
    expect(await error(cloud.setEnd(wanted, made, never))).toMatchObject({ code, message: expect.stringMatching(message) });
  });

  it('is not the one of another machine', async () => {
    const { cloud, order, error, never } = awsBench();
    const wanted = order();
    await cloud.setEnd(wanted, { id: 'i-0000000000000000a', place: 'us-west-2', zone: null }, never);
    const made = await cloud.create(wanted, never);
    expect(await error(cloud.setEnd(wanted, made, never))).toMatchObject({
      code: 'E_CLOUD_END',
      message: expect.stringContaining('Input'),
    });
  });

  it('counts when only the answer was lost', async () => {
    const { aws, cloud, order, error, never } = awsBench();
    const wanted = order();
    const made = await cloud.create(wanted, never);
    aws.faults.push({ action: 'CreateSchedule', how: 'lost', times: 1 });
    expect(await error(cloud.setEnd(wanted, made, never))).toMatchObject({ code: 'E_CLOUD_UNREACHABLE' });
    expect(await cloud.setEnd(wanted, made, never)).toMatch(/^schedule /);
  });

  it('needs a role that Scheduler may take, and that may end it', async () => {
    const { aws, cloud, order, error, never, clock } = awsBench();
    const wanted = order();
    const made = await cloud.create(wanted, never);
    aws.roles.clear();
    expect(await error(cloud.setEnd(wanted, made, never))).toMatchObject({
      code: 'E_CLOUD_REQUEST',
      message: expect.stringContaining('execution role'),
      hint: expect.stringContaining('scheduler_role'),
    });
    aws.roles.set('arn:aws:iam::123456789012:role/onejob-scheduler', () => false);
    await cloud.setEnd(wanted, made, never);
    clock.advance(120 * minute);
    expect(aws.alive()).toHaveLength(1);
  });

  it('without a role no machine is made, unless the config says so', async () => {
    const bare = awsBench({ config: { schedulerRole: null } });
    expect(await bare.error(bare.cloud.create(bare.order(), bare.never))).toMatchObject({
      code: 'E_CLOUD_REQUEST',
      message: expect.stringContaining('"scheduler_role"'),
    });
    expect(bare.aws.calls).toEqual([]);
    const alone = awsBench({ config: { schedulerRole: null, deathDate: 'manager-only' } });
    const wanted = alone.order();
    const made = await alone.cloud.create(wanted, alone.never);
    expect(await alone.cloud.setEnd(wanted, made, alone.never)).toContain('manager-only');
    expect(alone.aws.world.schedules.size).toBe(0);
  });
});

describe('a machine that does not go', () => {
  it('is listed as it is, and goes when asked again', async () => {
    const { aws, cloud, order, never, list, clock } = awsBench();
    const made = await cloud.create(order(), never);
    aws.world.flaws.undead = 1;
    const thing = { kind: 'machine', ...made } as const;
    await cloud.destroy(thing, never);
    clock.advance(10 * minute);
    expect((await list()).things.find(({ kind }) => kind === 'machine')?.state).toBe('running');
    await cloud.destroy(thing, never);
    clock.advance(minute);
    expect((await list()).things).toEqual([]);
  });

  it('may leave its disk, which is found and removed alone', async () => {
    const { aws, cloud, order, error, never, list, clock } = awsBench();
    const made = await cloud.create(order(), never);
    aws.world.flaws.stayingDisks = 1;
    const disk = (await list()).things.find(({ kind }) => kind === 'disk');
    const card = (await list()).things.find(({ kind }) => kind === 'interface');
    if (disk === undefined || card === undefined) throw new Error('no disk or interface is listed');
    for (const thing of [disk, card]) expect(await error(cloud.destroy(thing, never))).toMatchObject({ retry: true });
    await cloud.destroy({ kind: 'machine', ...made }, never);
    clock.advance(minute);
    expect((await list()).things).toEqual([disk]);
    await cloud.destroy(disk, never);
    expect((await list()).things).toEqual([]);
  });

  it('ends by a shutdown inside, and by a spot interruption', async () => {
    const { aws, cloud, order, never, list, clock } = awsBench();
    await cloud.create(order(), never);
    await cloud.create(order({ offer: { type: 'g5.xlarge', spot: true, zone: null } }), never);
    clock.advance(minute);
    const [first, second] = aws.alive();
    if (first === undefined || second === undefined) throw new Error('no machines');
    aws.world.guestShutdown(first);
    aws.world.preempt(second);
    clock.advance(2 * minute);
    clock.advance(minute);
    expect(await list()).toEqual({ things: [], unknown: [] });
    expect(aws.leftovers()).toEqual([]);
  });
});

describe('the clock', () => {
  it.each([10, -10])('of the cloud may differ by %d minutes', async (minutes) => {
    const { aws, cloud, order, never, clock } = awsBench();
    aws.world.skew = minutes * minute;
    const { unknown } = await cloud.list('box-1', { places: [], everywhere: false }, never);
    expect(unknown).toEqual([]);
    expect(cloud.skew()).toBe(minutes * minute);
    const wanted = order();
    await cloud.setEnd(wanted, await cloud.create(wanted, never), never);
    clock.advance(60 * minute);
    clock.advance(minute);
    expect(aws.alive()).toEqual([]);
  });
});

describe('a credential', () => {
  it('that AWS does not know, or that has expired, is named', async () => {
    const { aws, cloud, order, error, never, clock, list } = awsBench();
    const made = await cloud.create(order(), never);
    aws.keys.splice(0, 1, { id: 'AKIAIOSFODNN7EXAMPLE', secret: 'another' });
    expect(await error(cloud.destroy({ kind: 'machine', ...made }, never))).toMatchObject({
      code: 'E_CLOUD_CREDENTIAL',
      reason: 'AuthFailure',
    });
    expect((await list()).unknown).toHaveLength(6);
    aws.keys.splice(0, 1, {
      id: 'AKIAIOSFODNN7EXAMPLE',
      secret: 'wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY',
      until: clock.wall() + 1,
    });
    await cloud.console(made, never);
    clock.advance(2);
    expect(await error(cloud.destroy({ kind: 'machine', ...made }, never))).toMatchObject({
      code: 'E_CLOUD_CREDENTIAL',
      reason: 'RequestExpired',
    });
    expect(aws.alive()).toMatchObject([{ id: made.id }]);
  });

  it('that may not do it learns which permission is missing, without the encoded text', async () => {
    const { aws, cloud, order, error, never } = awsBench();
    aws.denied.add('ec2:CreateTags');
    const found = await error(cloud.create(order(), never));
    expect(found).toMatchObject({
      code: 'E_CLOUD_DENIED',
      reason: 'UnauthorizedOperation',
      hint: expect.stringContaining('ec2:RunInstances, ec2:CreateTags'),
    });
    expect(found.message).toContain('not authorized to perform: ec2:CreateTags');
    expect(found.message).not.toContain('xxx');
  });

  it('is in no message', async () => {
    const { aws, cloud, order, error, never } = awsBench();
    const secret = 'wJalrXUtnFEMI';
    for (const how of ['lost', 'reset', { status: 400, code: 'InvalidParameterValue' }] as const) {
      aws.faults.splice(0, aws.faults.length, { service: 'ec2', how });
      const { message, hint } = await error(cloud.create(order(), never));
      expect(`${message} ${hint}`).not.toContain(secret);
    }
    expect(cloud.credential).not.toContain(secret);
  });
});

describe('an account', () => {
  it.each([
    ['PendingVerification', 'E_CLOUD_ACCOUNT', true],
    ['OptInRequired', 'E_CLOUD_ACCOUNT', false],
    ['InvalidAMIID.NotFound', 'E_CLOUD_REQUEST', false],
    ['SomethingNew', 'E_CLOUD_REQUEST', false],
  ] as const)('that answers %s', async (reason, code, retry) => {
    const { aws, cloud, order, error, never } = awsBench();
    aws.faults.push({ action: 'RunInstances', how: { status: 400, code: reason, message: 'no' } });
    expect(await error(cloud.create(order(), never))).toMatchObject({ code, reason, retry, isAmbiguous: false });
  });

  it('has spot only with its role', async () => {
    const { aws, cloud, order, error, never } = awsBench();
    aws.state.hasSpotRole = false;
    const found = await error(cloud.create(order({ offer: { type: 'g5.xlarge', spot: true, zone: null } }), never));
    expect(found).toMatchObject({ code: 'E_CLOUD_DENIED', hint: expect.stringContaining('create-service-linked-role') });
  });
});
