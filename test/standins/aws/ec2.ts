/** The calls of EC2, on the world of the stand-in. */
import { createHash } from 'node:crypto';
import { type Ec2Action, type Ec2Input, ec2Calls, parse } from './schema.ts';
import { type Node, Refused, type Tree } from './wire.ts';
import type { Machine, Tags, World } from './world.ts';

export interface Subnet {
  readonly id: string;
  readonly region: string;
  readonly zone: string;
  readonly isDefault: boolean;
  free: number;
}

export interface Group {
  readonly id: string;
  readonly region: string;
  readonly name: string;
  /** `self`: its own members; else a block of addresses. */
  readonly incoming: readonly string[];
}

/** What the account is made of. */
export interface Account {
  readonly id: string;
  /** Zones of each region. */
  readonly regions: Readonly<Record<string, readonly string[]>>;
  /** Zones that have a type; every zone of every region when left out. */
  readonly offered: Record<string, readonly string[] | 'everywhere'>;
  readonly images: Record<
    string,
    { readonly name: string; readonly device: string; readonly disk: number; readonly region: string | null }
  >;
  readonly subnets: Subnet[];
  readonly groups: Group[];
  /** vCPUs by the code of the quota. */
  readonly quotas: Record<string, number>;
  readonly spotPrices: Record<string, number>;
  /** `type/zone/spot` or `type/zone/on-demand` without capacity. */
  readonly exhausted: Set<string>;
}

const vcpus = (type: string): number => {
  const times = /\.(\d*)xlarge$/.exec(type)?.[1];
  return times === undefined ? 2 : 4 * Number(times === '' ? 1 : times);
};

const quotaCodes = {
  gpu: ['L-DB2E81BA', 'L-3819A6DF'],
  p: ['L-417A185B', 'L-7212CCBC'],
  other: ['L-1216C47A', 'L-34B43A08'],
} as const;
const quotaFor = (type: string, isSpot: boolean): string =>
  quotaCodes[/^(g|vt)/.test(type) ? 'gpu' : type.startsWith('p') ? 'p' : 'other'][isSpot ? 1 : 0];

const tagSet = (tags: Tags): Node => Object.entries(tags).map(([key, value]) => ({ key, value }));
const iso = (ms: number): string => new Date(ms).toISOString();

interface Filter {
  readonly Name: string;
  readonly Value: readonly string[];
}

/** `of`: values of a thing by the names of filters that its list knows. */
function fits(filters: readonly Filter[], tags: Tags, of: Readonly<Record<string, string>> = {}): boolean {
  return filters.every(({ Name: name, Value: values }) => {
    const value = name.startsWith('tag:') ? tags[name.slice(4)] : of[name];
    if (!name.startsWith('tag:') && name !== 'tag-key' && !Object.hasOwn(of, name))
      throw new Refused(400, 'InvalidParameterValue', `The filter '${name}' is invalid`);
    if (name === 'tag-key') return values.some((key) => Object.hasOwn(tags, key));
    return value !== undefined && values.some((pattern) => matches(pattern, value));
  });
}

const matches = (pattern: string, value: string): boolean =>
  new RegExp(
    `^${pattern
      .replace(/[.+^${}()|[\]\\]/g, '\\$&')
      .replaceAll('*', '.*')
      .replaceAll('?', '.')}$`,
  ).test(value);

export function createEc2(world: World, account: Account, spotRole: () => boolean) {
  /** By region, zone (empty: the request named neither zone nor subnet) and token: EC2 compares no further. */
  const tokens = new Map<string, { readonly hash: string; readonly machine: Machine }>();

  const page = <T>(
    all: readonly T[],
    { MaxResults: most, NextToken: token }: { MaxResults?: number | undefined; NextToken?: string | undefined },
  ) => {
    const from = token === undefined ? 0 : Number(/^page-(\d+)$/.exec(token)?.[1] ?? Number.NaN);
    if (Number.isNaN(from)) throw new Refused(400, 'InvalidParameterValue', 'The token is invalid');
    const size = Math.min(most ?? Number.POSITIVE_INFINITY, calls.pageSize);
    const to = from + size;
    return { items: all.slice(from, to), nextToken: to < all.length ? `page-${to}` : null };
  };

  const zonesWith = (region: string, type: string): readonly string[] => {
    const all = account.regions[region] ?? [];
    const offered = account.offered[type];
    return offered === undefined ? [] : offered === 'everywhere' ? all : all.filter((zone) => offered.includes(zone));
  };

  function machineNode(machine: Machine): Node {
    const disks = [...world.volumes.values()].filter((one) => one.machine === machine.id);
    const codes = { pending: 0, running: 16, 'shutting-down': 32, terminated: 48, stopping: 64, stopped: 80 };
    return {
      instanceId: machine.id,
      imageId: machine.image,
      instanceType: machine.type,
      launchTime: iso(machine.launched),
      instanceState: { code: codes[machine.state], name: machine.state },
      placement: { availabilityZone: machine.zone, tenancy: 'default' },
      amiLaunchIndex: 0,
      architecture: 'x86_64',
      rootDeviceType: 'ebs',
      rootDeviceName: disks[0]?.device ?? '/dev/sda1',
      subnetId: machine.subnet,
      groupSet: machine.groups.map((groupId) => ({ groupId })),
      instanceLifecycle: machine.spot === null ? null : 'spot',
      spotInstanceRequestId: machine.spot,
      clientToken: machine.token ?? '',
      metadataOptions: {
        httpTokens: machine.metadata.tokens,
        httpPutResponseHopLimit: machine.metadata.hops,
        httpEndpoint: 'enabled',
        instanceMetadataTags: machine.metadata.tags,
      },
      blockDeviceMapping: disks.map((one) => ({
        deviceName: one.device,
        ebs: { volumeId: one.id, status: 'attached', deleteOnTermination: one.goes },
      })),
      stateReason: machine.reason,
      tagSet: tagSet(machine.tags),
    };
  }

  function run(input: Ec2Input<'RunInstances'>, region: string): Node {
    const { DryRun: isDry, ClientToken: token, Placement: placement, ...rest } = input;
    const isSpot = input.InstanceMarketOptions !== undefined;
    const type = input.InstanceType;
    const subnet =
      input.SubnetId === undefined ? null : account.subnets.find((one) => one.id === input.SubnetId && one.region === region);
    if (subnet === undefined)
      throw new Refused(400, 'InvalidSubnetID.NotFound', `The subnet ID '${input.SubnetId}' does not exist`);
    const asked = subnet?.zone ?? placement.AvailabilityZone ?? null;
    if (asked !== null && !account.regions[region]?.includes(asked))
      throw new Refused(400, 'InvalidParameterValue', `Invalid availability zone: [${asked}]`);
    const image = account.images[input.ImageId];
    if (image === undefined || (image.region !== null && image.region !== region))
      throw new Refused(400, 'InvalidAMIID.NotFound', `The image id '[${input.ImageId}]' does not exist`);
    if (!Object.hasOwn(account.offered, type))
      throw new Refused(400, 'InvalidParameterValue', `Invalid value '${type}' for InstanceType.`);
    for (const group of input.SecurityGroupId ?? [])
      if (!account.groups.some((one) => one.id === group && one.region === region))
        throw new Refused(400, 'InvalidGroup.NotFound', `The security group '${group}' does not exist`);
    const userData = Buffer.from(input.UserData, 'base64');
    if (userData.length > 16_384) throw new Refused(400, 'InvalidParameterValue', 'User data is limited to 16384 bytes');
    if (input.MaxCount !== 1) throw new Refused(400, 'InvalidParameterCombination', 'The stand-in makes one machine at a time');
    const spotTags = input.TagSpecification.some(({ ResourceType: kind }) => kind === 'spot-instances-request');
    if (spotTags && !isSpot)
      throw new Refused(
        400,
        'InvalidParameterValue',
        "The tag specification resource type 'spot-instances-request' needs a spot request",
      );
    const root = input.BlockDeviceMapping.find((one) => one.DeviceName === image.device);
    const size = root?.Ebs.VolumeSize ?? image.disk;
    if (size < image.disk)
      throw new Refused(
        400,
        'InvalidBlockDeviceMapping',
        `Volume of size ${size}GB is smaller than snapshot, expect size >= ${image.disk}GB`,
      );
    if (isDry) throw new Refused(412, 'DryRunOperation', 'Request would have succeeded, but DryRun flag is set.');
    const hash = createHash('sha256').update(JSON.stringify(rest)).digest('hex');
    const key = `${region}/${asked ?? ''}/${token}`;
    const before = token === undefined ? undefined : tokens.get(key);
    if (before !== undefined) {
      if (before.hash === hash) return reservation(before.machine);
      throw new Refused(
        400,
        'IdempotentParameterMismatch',
        'The parameters of this request are not those of the earlier one with this token',
      );
    }
    if (isSpot && !spotRole())
      throw new Refused(
        403,
        'AuthFailure.ServiceLinkedRoleCreationNotPermitted',
        'The provided credentials do not have permission to create the service-linked role for EC2 Spot Instances.',
      );
    const code = quotaFor(type, isSpot);
    const used = [...world.machines.values()].filter(
      (one) => one.region === region && one.state !== 'terminated' && quotaFor(one.type, one.spot !== null) === code,
    );
    const limit = account.quotas[code] ?? 0;
    if (used.reduce((sum, one) => sum + vcpus(one.type), 0) + vcpus(type) > limit)
      throw isSpot
        ? new Refused(400, 'MaxSpotInstanceCountExceeded', 'Max spot instance count exceeded')
        : new Refused(
            400,
            'VcpuLimitExceeded',
            `You have requested more vCPU capacity than your current vCPU limit of ${limit} allows for the instance bucket that the specified instance type belongs to. Please visit http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit.`,
          );
    const offered = zonesWith(region, type);
    const free = offered.filter((zone) => !account.exhausted.has(`${type}/${zone}/${isSpot ? 'spot' : 'on-demand'}`));
    if (asked !== null && !offered.includes(asked))
      throw new Refused(
        400,
        'Unsupported',
        `Your requested instance type (${type}) is not supported in your requested Availability Zone (${asked}). Please retry your request by not specifying an Availability Zone or choosing ${offered.join(', ')}.`,
      );
    const zone = asked === null ? free[0] : free.find((one) => one === asked);
    // EC2 says this with 500.
    if (zone === undefined)
      throw new Refused(
        500,
        'InsufficientInstanceCapacity',
        isSpot
          ? 'There is no Spot capacity available that matches your request.'
          : asked === null || free.length === 0
            ? `We currently do not have sufficient ${type} capacity in the Availability Zones you requested. Our system will be working on provisioning additional capacity.`
            : `We currently do not have sufficient ${type} capacity in the Availability Zone you requested (${asked}). Our system will be working on provisioning additional capacity. You can currently get ${type} capacity by not specifying an Availability Zone in your request or choosing ${free.join(', ')}.`,
      );
    const where = subnet ?? account.subnets.find((one) => one.region === region && one.zone === zone && one.isDefault);
    if (where === undefined)
      throw new Refused(400, 'MissingInput', `No subnets found for the default VPC in '${zone}'. Please specify a subnet.`);
    const tags = (kind: string): Tags =>
      Object.fromEntries(
        input.TagSpecification.filter((one) => one.ResourceType === kind).flatMap((one) =>
          one.Tag.map((tag) => [tag.Key, tag.Value]),
        ),
      );
    const mappings = [{ DeviceName: image.device, Ebs: {} }, ...input.BlockDeviceMapping];
    const machine = world.make({
      region,
      zone,
      subnet: where.id,
      type,
      image: input.ImageId,
      token: token ?? null,
      userData,
      isSpot,
      groups:
        input.SecurityGroupId ??
        account.groups.filter((one) => one.region === region && one.name === 'default').map((one) => one.id),
      shutdown: input.InstanceInitiatedShutdownBehavior,
      metadata: {
        tokens: input.MetadataOptions.HttpTokens ?? 'optional',
        hops: input.MetadataOptions.HttpPutResponseHopLimit ?? 1,
        tags: input.MetadataOptions.InstanceMetadataTags ?? 'disabled',
      },
      // One device may be in both: what was sent counts.
      disks: [...new Map(mappings.map((one) => [one.DeviceName, one.Ebs]))].map(
        ([device, ebs]: [string, (typeof input.BlockDeviceMapping)[number]['Ebs']]) => ({
          device,
          size: ebs.VolumeSize ?? image.disk,
          kind: ebs.VolumeType ?? 'gp2',
          encrypted: ebs.Encrypted ?? false,
          goes: ebs.DeleteOnTermination ?? device === image.device,
        }),
      ),
      tags: {
        instance: tags('instance'),
        volume: tags('volume'),
        'network-interface': tags('network-interface'),
        'spot-instances-request': tags('spot-instances-request'),
      },
    });
    if (token !== undefined) tokens.set(key, { hash, machine });
    return reservation(machine);
  }

  const reservation = (machine: Machine): Node => ({
    reservationId: `r-${machine.id.slice(2)}`,
    ownerId: account.id,
    groupSet: [],
    instancesSet: [machineNode(machine)],
  });

  const dryIf = (isDry: boolean): void => {
    if (isDry) throw new Refused(412, 'DryRunOperation', 'Request would have succeeded, but DryRun flag is set.');
  };
  const machineOf = (id: string, region: string): Machine => {
    const found = world.machines.get(id);
    if (found?.region === region) return found;
    throw new Refused(400, 'InvalidInstanceID.NotFound', `The instance ID '${id}' does not exist`);
  };

  const actions: { readonly [A in Ec2Action]: (input: Ec2Input<A>, region: string) => Node } = {
    RunInstances: run,
    DescribeInstances(input, region) {
      const ids = input.InstanceId?.map((id) => machineOf(id, region).id);
      const found = [...world.machines.values()].filter(
        (one) =>
          one.region === region &&
          one.visible <= calls.clockNow() &&
          (ids === undefined || ids.includes(one.id)) &&
          fits(input.Filter, one.tags, { 'instance-state-name': one.state, 'instance-type': one.type, 'instance-id': one.id }),
      );
      const { items, nextToken } = page(found, input);
      return { reservationSet: items.map(reservation), nextToken };
    },
    DescribeVolumes(input, region) {
      const found = [...world.volumes.values()].filter(
        (one) =>
          one.region === region &&
          (input.VolumeId?.includes(one.id) ?? true) &&
          fits(input.Filter, one.tags, { status: one.machine === null ? 'available' : 'in-use', 'volume-id': one.id }),
      );
      const { items, nextToken } = page(found, input);
      return {
        volumeSet: items.map((one) => ({
          volumeId: one.id,
          size: one.size,
          availabilityZone: one.zone,
          volumeType: one.kind,
          encrypted: one.encrypted,
          status: one.machine === null ? 'available' : 'in-use',
          createTime: iso(world.now()),
          attachmentSet:
            one.machine === null
              ? []
              : [
                  {
                    volumeId: one.id,
                    instanceId: one.machine,
                    device: one.device,
                    status: 'attached',
                    deleteOnTermination: one.goes,
                  },
                ],
          tagSet: tagSet(one.tags),
        })),
        nextToken,
      };
    },
    DescribeNetworkInterfaces(input, region) {
      const found = [...world.interfaces.values()].filter(
        (one) => one.region === region && fits(input.Filter, one.tags, { 'network-interface-id': one.id }),
      );
      const { items, nextToken } = page(found, input);
      return {
        networkInterfaceSet: items.map((one) => ({
          networkInterfaceId: one.id,
          subnetId: one.subnet,
          availabilityZone: one.zone,
          status: one.machine === null ? 'available' : 'in-use',
          groupSet: one.groups.map((groupId) => ({ groupId })),
          attachment:
            one.machine === null
              ? null
              : { instanceId: one.machine, status: 'attached', deviceIndex: 0, deleteOnTermination: true },
          tagSet: tagSet(one.tags),
        })),
        nextToken,
      };
    },
    DescribeAddresses(input, region) {
      const found = [...world.addresses.values()].filter((one) => one.region === region && fits(input.Filter, one.tags));
      return {
        addressesSet: found.map((one) => ({ allocationId: one.id, publicIp: one.ip, domain: 'vpc', tagSet: tagSet(one.tags) })),
      };
    },
    DescribeSpotInstanceRequests(input, region) {
      const found = [...world.spots.values()].filter(
        (one) => one.region === region && fits(input.Filter, one.tags, { state: one.state }),
      );
      const { items, nextToken } = page(found, input);
      return {
        spotInstanceRequestSet: items.map((one) => ({
          spotInstanceRequestId: one.id,
          state: one.state,
          type: 'one-time',
          instanceId: one.machine,
          status: { code: one.status, message: one.status },
          tagSet: tagSet(one.tags),
        })),
        nextToken,
      };
    },
    DescribeRegions: () => ({
      regionInfo: Object.keys(account.regions).map((name) => ({
        regionName: name,
        regionEndpoint: `ec2.${name}.amazonaws.com`,
        optInStatus: 'opt-in-not-required',
      })),
    }),
    DescribeInstanceTypeOfferings(input, region) {
      if (input.LocationType !== 'availability-zone')
        throw new Refused(400, 'InvalidParameterValue', 'The stand-in knows zones only');
      const all = Object.keys(account.offered).flatMap((type) => zonesWith(region, type).map((zone) => ({ type, zone })));
      const found = all.filter(({ type, zone }) => fits(input.Filter, {}, { 'instance-type': type, location: zone }));
      const { items, nextToken } = page(found, input);
      return {
        instanceTypeOfferingSet: items.map(({ type, zone }) => ({
          instanceType: type,
          locationType: 'availability-zone',
          location: zone,
        })),
        nextToken,
      };
    },
    DescribeImages(input, region) {
      const ids = input.ImageId ?? [];
      const known = Object.entries(account.images).filter(([, one]) => one.region === null || one.region === region);
      const missing = ids.find((id) => !known.some(([one]) => one === id));
      if (missing !== undefined) throw new Refused(400, 'InvalidAMIID.NotFound', `The image id '[${missing}]' does not exist`);
      return {
        imagesSet: known
          .filter(([id]) => ids.length === 0 || ids.includes(id))
          .map(([id, one]) => ({
            imageId: id,
            name: one.name,
            imageState: 'available',
            architecture: 'x86_64',
            imageOwnerId: '898082745236',
            isPublic: true,
            rootDeviceName: one.device,
            rootDeviceType: 'ebs',
            virtualizationType: 'hvm',
            blockDeviceMapping: [
              { deviceName: one.device, ebs: { volumeSize: one.disk, volumeType: 'gp3', deleteOnTermination: true } },
            ],
          })),
      };
    },
    DescribeSubnets(input, region) {
      const ids = input.SubnetId;
      const missing = ids?.find((id) => !account.subnets.some((one) => one.id === id && one.region === region));
      if (missing !== undefined) throw new Refused(400, 'InvalidSubnetID.NotFound', `The subnet ID '${missing}' does not exist`);
      const found = account.subnets.filter((one) => one.region === region && (ids?.includes(one.id) ?? true));
      const { items, nextToken } = page(found, input);
      return {
        subnetSet: items.map((one) => ({
          subnetId: one.id,
          availabilityZone: one.zone,
          availableIpAddressCount: one.free,
          state: 'available',
          defaultForAz: one.isDefault,
        })),
        nextToken,
      };
    },
    DescribeSecurityGroups(input, region) {
      const ids = input.GroupId;
      const missing = ids?.find((id) => !account.groups.some((one) => one.id === id && one.region === region));
      if (missing !== undefined) throw new Refused(400, 'InvalidGroup.NotFound', `The security group '${missing}' does not exist`);
      const found = account.groups.filter(
        (one) =>
          one.region === region &&
          (ids?.includes(one.id) ?? true) &&
          fits(input.Filter, {}, { 'group-name': one.name, 'group-id': one.id }),
      );
      const { items, nextToken } = page(found, input);
      const everything = { ipProtocol: '-1', ipRanges: [{ cidrIp: '0.0.0.0/0' }] };
      return {
        securityGroupInfo: items.map((one) => ({
          groupId: one.id,
          groupName: one.name,
          groupDescription: one.name,
          vpcId: 'vpc-0a1b2c3d4e5f67890',
          ownerId: account.id,
          ipPermissions: one.incoming.map((from) => ({
            ipProtocol: '-1',
            groups: from === 'self' ? [{ groupId: one.id }] : [],
            ipRanges: from === 'self' ? [] : [{ cidrIp: from }],
          })),
          ipPermissionsEgress: [everything],
        })),
        nextToken,
      };
    },
    DescribeSpotPriceHistory(input, region) {
      const types = input.InstanceType ?? Object.keys(account.spotPrices);
      const found = types.flatMap((type) => {
        const price = account.spotPrices[type];
        return price === undefined ? [] : zonesWith(region, type).map((zone, at) => ({ type, zone, price: price * (1 + at / 10) }));
      });
      const { items, nextToken } = page(found, input);
      return {
        spotPriceHistorySet: items.map(({ type, zone, price }) => ({
          instanceType: type,
          productDescription: 'Linux/UNIX',
          spotPrice: price.toFixed(6),
          timestamp: iso(world.now()),
          availabilityZone: zone,
        })),
        nextToken,
      };
    },
    TerminateInstances({ InstanceId: ids, DryRun: isDry }, region) {
      // One bad id terminates none.
      const found = ids.map((id) => machineOf(id, region));
      dryIf(isDry);
      return {
        instancesSet: found.map((machine) => {
          const before = machine.state;
          world.end(machine, 'Client.UserInitiatedShutdown', 'Client.UserInitiatedShutdown: User initiated shutdown');
          const now = machine.state === 'terminated' ? { code: 48, name: 'terminated' } : { code: 32, name: 'shutting-down' };
          const codes = { pending: 0, running: 16, 'shutting-down': 32, terminated: 48, stopping: 64, stopped: 80 };
          return { instanceId: machine.id, currentState: now, previousState: { code: codes[before], name: before } };
        }),
      };
    },
    CreateTags({ ResourceId: ids, Tag: given, DryRun: isDry }, region) {
      const found = ids.map((id) => machineOf(id, region));
      const tags = Object.fromEntries(given.map(({ Key, Value }) => [Key, Value]));
      for (const { metadata, tags: before } of found) {
        if (Object.keys({ ...before, ...tags }).length > 50) throw new Refused(400, 'TagLimitExceeded', 'More than 50 tags');
        const bad = Object.keys(tags).find((key) => !/^(?!\.{1,2}$|_index$)[A-Za-z0-9+=.,_:@-]+$/.test(key));
        if (metadata.tags === 'enabled' && bad !== undefined)
          throw new Refused(400, 'InvalidParameterValue', `'${bad}' is not a valid tag key while tags are in the metadata.`);
      }
      dryIf(isDry);
      for (const machine of found) world.setTags(machine, tags);
      return { return: true };
    },
    GetConsoleOutput({ InstanceId: id, DryRun: isDry }, region) {
      const machine = machineOf(id, region);
      dryIf(isDry);
      const output = machine.console === '' ? null : Buffer.from(machine.console).subarray(-65_536).toString('base64');
      return { instanceId: id, timestamp: iso(world.now()), output };
    },
    DeleteVolume({ VolumeId: id, DryRun: isDry }, region) {
      const volume = world.volumes.get(id);
      if (volume?.region !== region) throw new Refused(400, 'InvalidVolume.NotFound', `The volume '${id}' does not exist.`);
      dryIf(isDry);
      if (volume.machine !== null) throw new Refused(400, 'VolumeInUse', `Volume ${id} is currently attached to ${volume.machine}`);
      world.volumes.delete(id);
      return { return: true };
    },
    DeleteNetworkInterface({ NetworkInterfaceId: id, DryRun: isDry }, region) {
      const card = world.interfaces.get(id);
      if (card?.region !== region)
        throw new Refused(400, 'InvalidNetworkInterfaceID.NotFound', `The networkInterface ID '${id}' does not exist`);
      dryIf(isDry);
      if (card.machine !== null) throw new Refused(400, 'InvalidParameterValue', `Network interface '${id}' is currently in use.`);
      world.interfaces.delete(id);
      return { return: true };
    },
    CancelSpotInstanceRequests({ SpotInstanceRequestId: ids, DryRun: isDry }, region) {
      const found = ids.map((id) => {
        const spot = world.spots.get(id);
        if (spot?.region === region) return spot;
        throw new Refused(400, 'InvalidSpotInstanceRequestID.NotFound', `The spot instance request ID '${id}' does not exist`);
      });
      dryIf(isDry);
      for (const spot of found)
        if (spot.state === 'open' || spot.state === 'active') {
          spot.status = spot.state === 'active' ? 'request-canceled-and-instance-running' : 'canceled-before-fulfillment';
          spot.state = 'cancelled';
        }
      return { spotInstanceRequestSet: found.map((spot) => ({ spotInstanceRequestId: spot.id, state: spot.state })) };
    },
    ReleaseAddress({ AllocationId: id, DryRun: isDry }, region) {
      if (world.addresses.get(id)?.region !== region)
        throw new Refused(400, 'InvalidAllocationID.NotFound', `The allocation ID '${id}' does not exist`);
      dryIf(isDry);
      world.addresses.delete(id);
      return { return: true };
    },
  };

  const calls = {
    /** Most items of a page, whatever was asked for. */
    pageSize: 1000,
    /** ms, as machines count when they are visible. */
    clockNow: (): number => 0,
    answer(action: string, tree: Record<string, Tree>, region: string): Node {
      if (!isAction(action)) throw new Refused(400, 'InvalidAction', `The action ${action} is not valid for this web service.`);
      return act(action, tree, region);
    },
  };

  function act<A extends Ec2Action>(action: A, tree: Record<string, Tree>, region: string): Node {
    return actions[action](parse(ec2Calls[action], tree) as Ec2Input<A>, region);
  }
  return calls;
}

const isAction = (action: string): action is Ec2Action => Object.hasOwn(ec2Calls, action);
