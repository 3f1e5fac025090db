/**
 * An AWS account for tests: the calls of EC2, SSM, Scheduler, STS and Service Quotas that onejob makes, in memory and in the time of
 * the given clock. As a `fetch` for tests without sockets, and on a port for clients that others wrote. It checks signatures,
 * parameters and permissions as strictly as the real services, by what their reference says; no real account was asked.
 */
import type { Clock } from '../../../src/core/clock.ts';
import { onPort, type Port } from '../kit/port.ts';
import { type Account, createEc2 } from './ec2.ts';
import { createMetadata } from './metadata.ts';
import { createSchedule, parse } from './schema.ts';
import { type Asked, checkSignature, errorOf, type Key, Refused, type Said, type Signed, scopeOf, treeOf, xmlOf } from './wire.ts';
import { createWorld, type Hooks, newId, type Tags, type Times } from './world.ts';

/** Something that goes wrong with the calls that it fits. */
export interface Fault {
  readonly service?: string;
  readonly action?: string;
  readonly region?: string;
  /** Only calls that continue with a list. */
  readonly isNextPage?: boolean;
  /** Whether only calls with `DryRun`, which change nothing, or only those without. */
  readonly isDry?: boolean;
  /** How many calls it hits; for good when left out. */
  times?: number;
  /** Fitting calls that pass first. */
  after?: number;
  /**
   * `lost`: done, but the connection ends without an answer. `silent`: done, and nothing comes at all. `broken`: done, but the
   * answer is an internal error. `reset`: not done, and the connection ends. An error: not done.
   */
  readonly how:
    | 'lost'
    | 'silent'
    | 'broken'
    | 'reset'
    | { readonly status: number; readonly code: string; readonly message?: string };
}

export interface AwsOptions {
  readonly clock: Clock;
  readonly keys?: Key[];
  readonly hooks?: Partial<Hooks>;
  readonly times?: Partial<Times>;
}

/** One call, for tests. */
export interface Call extends Signed {
  readonly action: string;
  /** As sent: the body of a form or JSON, and of GET the query. */
  readonly body: string;
  /** Actions of IAM that it used. */
  readonly permissions: readonly string[];
  status: number;
}

/** It only asks whether it would be carried out. */
export const isDryRun = ({ body }: Pick<Call, 'body'>): boolean => /\bDryRun=true\b/.test(body);

export const testKey: Key = { id: 'AKIAIOSFODNN7EXAMPLE', secret: 'wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY' };
export const usualAmi = 'ami-0123456789abcdef0';
export const schedulerRole = 'arn:aws:iam::123456789012:role/onejob-scheduler';

function usualAccount(): Account {
  const regions = {
    'us-west-2': ['us-west-2a', 'us-west-2b', 'us-west-2c', 'us-west-2d'],
    'eu-central-1': ['eu-central-1a', 'eu-central-1b', 'eu-central-1c'],
  };
  const zones = Object.entries(regions).flatMap(([region, all]) => all.map((zone, at) => ({ region, zone, at })));
  return {
    id: '123456789012',
    regions,
    offered: {
      'g4dn.xlarge': 'everywhere',
      't3.micro': 'everywhere',
      'p5.48xlarge': ['us-west-2b'],
      'g5.xlarge': ['us-west-2a', 'us-west-2b', 'us-west-2c', 'eu-central-1a'],
      'g6.xlarge': ['us-west-2a', 'us-west-2b', 'us-west-2c'],
    },
    images: {
      [usualAmi]: {
        name: 'Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) 20261101',
        device: '/dev/sda1',
        disk: 75,
        region: null,
      },
    },
    subnets: [
      ...zones.map(({ region, zone, at }) => ({
        id: `subnet-${region === 'us-west-2' ? '0a' : '0b'}0000000000000${at}`,
        region,
        zone,
        isDefault: true,
        free: 4000,
      })),
    ],
    groups: Object.keys(regions).flatMap((region, at) => [
      { id: `sg-0d0000000000000${at}`, region, name: 'default', incoming: ['self'] },
      { id: `sg-0e0000000000000${at}`, region, name: 'onejob', incoming: [] },
    ]),
    quotas: {
      'L-DB2E81BA': 64,
      'L-3819A6DF': 64,
      'L-417A185B': 0,
      'L-7212CCBC': 0,
      'L-C4BD4855': 0,
      'L-1216C47A': 32,
      'L-34B43A08': 32,
    },
    spotPrices: { 'g4dn.xlarge': 0.2, 'g5.xlarge': 0.4, 'g6.xlarge': 0.3 },
    exhausted: new Set(),
  };
}

/** Ends only when the caller gives up. */
function silence(signal: AbortSignal | null | undefined): Promise<never> {
  return new Promise((_, reject) => signal?.addEventListener('abort', () => reject(signal.reason), { once: true }));
}

export type AwsStandin = ReturnType<typeof createAws>;

export function createAws({ clock, keys = [testKey], hooks = {}, times = {} }: AwsOptions) {
  const account = usualAccount();
  const parameters: Record<string, string> = {
    '/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id': usualAmi,
  };
  /** Roles that Scheduler may take, each with whether it may end a machine. */
  const roles = new Map<string, (tags: Tags) => boolean>([[schedulerRole, (tags) => tags['onejob-owner'] !== undefined]]);
  const usual: Times = { boot: 5_000, end: 30_000, remembered: 3_600_000, visible: 0, late: 0, notice: 120_000 };
  const world = createWorld(clock, { ...usual, ...times }, hooks, (role, machine) => roles.get(role)?.(machine.tags) ?? false);
  const state = { hasSpotRole: true };
  const ec2 = createEc2(world, account, () => state.hasSpotRole);
  ec2.clockNow = () => clock.now();
  const metadata = createMetadata((id) => world.machines.get(id), world.now);
  const faults: Fault[] = [];
  /** Actions of IAM that the credential may not use, in all regions or `region/action`. */
  const denied = new Set<string>();
  const calls: Call[] = [];

  /** Which action of which service a request is, and what it needs. */
  function read({ url, headers, body, method }: Asked, service: string): { action: string; permissions: string[]; given: string } {
    if (service === 'ec2' || service === 'sts') {
      const form = new URLSearchParams(method === 'GET' ? url.search : body);
      const action = form.get('Action') ?? '';
      const version = form.get('Version');
      if (version !== (service === 'ec2' ? '2016-11-15' : '2011-06-15'))
        throw new Refused(400, 'NoSuchVersion', `The requested version (${version}) is not valid.`);
      const tags = action === 'RunInstances' && [...form.keys()].some((name) => name.startsWith('TagSpecification.'));
      const permissions = service === 'sts' ? [] : [`ec2:${action}`, ...(tags ? ['ec2:CreateTags'] : [])];
      return { action, permissions, given: body };
    }
    if (service === 'scheduler') {
      const verbs: Readonly<Record<string, string>> = { GET: 'Get', POST: 'Create', DELETE: 'Delete' };
      const action = url.pathname === '/schedules' ? 'ListSchedules' : `${verbs[method] ?? '?'}Schedule`;
      return {
        action,
        permissions: [`scheduler:${action}`, ...(action === 'CreateSchedule' ? ['iam:PassRole'] : [])],
        given: body || url.search,
      };
    }
    const [, prefix = '', action = ''] = /^([A-Za-z0-9]+)\.([A-Za-z]+)$/.exec(headers.get('x-amz-target') ?? '') ?? [];
    const wanted = service === 'ssm' ? 'AmazonSSM' : 'ServiceQuotasV20190624';
    if (prefix !== wanted) throw new Refused(400, 'UnknownOperationException', '');
    return { action, permissions: [`${service}:${action}`], given: body };
  }

  function answer(asked: Asked, { service, region }: Signed, action: string): Said {
    const request = newId('req').slice(4);
    if (service === 'ec2') {
      const form = [...new URLSearchParams(asked.body)].filter(([name]) => name !== 'Action' && name !== 'Version');
      if (!Object.hasOwn(account.regions, region))
        throw new Refused(401, 'AuthFailure', 'AWS was not able to validate the provided access credentials');
      const node = ec2.answer(action, treeOf(form), region);
      const text = `<${action}Response xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>${request}</requestId>${xmlOf(node)}</${action}Response>`;
      return { status: 200, type: 'text/xml;charset=UTF-8', text: `<?xml version="1.0" encoding="UTF-8"?>\n${text}` };
    }
    if (service === 'sts') {
      if (action !== 'GetCallerIdentity') throw new Refused(400, 'InvalidAction', `Could not find operation ${action}`);
      const who = {
        GetCallerIdentityResult: { Arn: `arn:aws:iam::${account.id}:user/onejob`, UserId: 'AIDAEXAMPLE', Account: account.id },
      };
      const text = xmlOf({ ...who, ResponseMetadata: { RequestId: request } });
      return {
        status: 200,
        type: 'text/xml',
        text: `<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">${text}</GetCallerIdentityResponse>`,
      };
    }
    if (service === 'scheduler') return json(scheduler(asked, region, action), 'application/json');
    const input = JSON.parse(asked.body) as Record<string, unknown>;
    if (service === 'ssm' && action === 'GetParameter') {
      const name = String(input.Name);
      const value = parameters[name];
      if (value === undefined) throw new Refused(400, 'ParameterNotFound', '');
      return json({ Parameter: { Name: name, Type: 'String', Value: value, Version: 1 } });
    }
    if (service === 'servicequotas' && action === 'GetServiceQuota') {
      const code = String(input.QuotaCode);
      const value = account.quotas[code];
      if (input.ServiceCode !== 'ec2' || value === undefined)
        throw new Refused(400, 'NoSuchResourceException', 'The request failed because the specified service does not exist.');
      return json({ Quota: { ServiceCode: 'ec2', QuotaCode: code, QuotaName: code, Value: value, Adjustable: true } });
    }
    throw new Refused(400, 'UnknownOperationException', action);
  }

  const json = (value: unknown, type = 'application/x-amz-json-1.1'): Said => ({ status: 200, type, text: JSON.stringify(value) });

  function scheduler({ url, body }: Asked, region: string, action: string): unknown {
    const query = Object.fromEntries(url.searchParams);
    if (action === 'ListSchedules') {
      const { MaxResults: most = '100', NamePrefix: prefix = '', NextToken: token = '0', ScheduleGroup: group } = query;
      const strange = Object.keys(query).find(
        (name) => !['MaxResults', 'NamePrefix', 'NextToken', 'ScheduleGroup', 'State'].includes(name),
      );
      if (strange !== undefined || !(Number(most) >= 1 && Number(most) <= 100))
        throw new Refused(400, 'ValidationException', `Unexpected ${strange ?? most}`);
      const all = [...world.schedules.values()].filter(
        (one) => one.region === region && one.name.startsWith(prefix) && (group === undefined || one.group === group),
      );
      const [from, size] = [Number(token), Math.min(Number(most), ec2.pageSize)];
      return {
        Schedules: all.slice(from, from + size).map((one) => ({
          Arn: arnOf(region, one.group, one.name),
          Name: one.name,
          GroupName: one.group,
          State: one.given.State,
          CreationDate: one.created / 1000,
          LastModificationDate: one.created / 1000,
          Target: { Arn: one.given.Target.Arn },
        })),
        ...(from + size < all.length && { NextToken: String(from + size) }),
      };
    }
    const name = decodeURIComponent(url.pathname.slice('/schedules/'.length));
    if (!/^[0-9a-zA-Z-_.]{1,64}$/.test(name))
      throw new Refused(400, 'ValidationException', `Value '${name}' at 'name' failed to satisfy constraint`);
    if (action === 'CreateSchedule') {
      let given: ReturnType<typeof parse<typeof createSchedule>>;
      try {
        given = parse(createSchedule, JSON.parse(body));
      } catch (error) {
        throw error instanceof Refused ? new Refused(400, 'ValidationException', error.message) : error;
      }
      const { ClientToken: token = null, GroupName: group, ...rest } = given;
      const before = world.scheduleAt(region, group, name);
      if (before !== undefined) {
        if (token !== null && before.token === token) return { ScheduleArn: arnOf(region, group, name) };
        throw new Refused(409, 'ConflictException', `Schedule ${name} already exists.`);
      }
      if (!roles.has(rest.Target.RoleArn))
        throw new Refused(
          400,
          'ValidationException',
          'The execution role you provide must allow AWS EventBridge Scheduler to assume the role.',
        );
      world.addSchedule(region, group, name, rest, token);
      return { ScheduleArn: arnOf(region, group, name) };
    }
    const { groupName: group = 'default' } = query;
    const found = world.scheduleAt(region, group, name);
    if (found === undefined) throw new Refused(404, 'ResourceNotFoundException', `Schedule ${name} does not exist.`);
    if (action === 'DeleteSchedule') {
      world.dropSchedule(region, group, name);
      return {};
    }
    return {
      ...found.given,
      Name: name,
      GroupName: group,
      Arn: arnOf(region, group, name),
      CreationDate: found.created / 1000,
      LastModificationDate: found.created / 1000,
    };
  }

  const arnOf = (region: string, group: string, name: string): string =>
    `arn:aws:scheduler:${region}:${account.id}:schedule/${group}/${name}`;

  function faultFor(call: Call): Fault | null {
    const isNextPage = /NextToken/.test(call.body);
    const isDry = isDryRun(call);
    for (const fault of faults) {
      if ((fault.service ?? call.service) !== call.service || (fault.action ?? call.action) !== call.action) continue;
      if ((fault.region ?? call.region) !== call.region || (fault.isNextPage ?? isNextPage) !== isNextPage) continue;
      if ((fault.isDry ?? isDry) !== isDry) continue;
      if ((fault.after ?? 0) > 0) {
        fault.after = (fault.after ?? 0) - 1;
        continue;
      }
      if (fault.times === undefined) return fault;
      if (fault.times > 0) {
        fault.times -= 1;
        return fault;
      }
    }
    return null;
  }

  /** `cut`: the connection ends; `silence`: nothing comes. */
  function handle(asked: Asked): Said | 'cut' | 'silence' {
    const ofMachine = metadata(asked);
    if (ofMachine !== null) return ofMachine;
    const service = scopeOf(asked.headers)?.service ?? 'ec2';
    const call: Call = { service, region: scopeOf(asked.headers)?.region ?? '', action: '', body: '', permissions: [], status: 0 };
    calls.push(call);
    try {
      const signed = checkSignature(asked, keys, world.now());
      const { action, permissions, given } = read(asked, service);
      Object.assign(call, { action, permissions, body: given });
      const fault = faultFor(call);
      if (fault?.how === 'reset') return 'cut';
      if (fault !== null && typeof fault.how === 'object')
        throw new Refused(fault.how.status, fault.how.code, fault.how.message ?? 'a fault');
      const refused = permissions.find((one) => denied.has(one) || denied.has(`${signed.region}/${one}`));
      if (refused !== undefined)
        throw service === 'ec2'
          ? new Refused(
              403,
              'UnauthorizedOperation',
              `You are not authorized to perform this operation. User: arn:aws:iam::${account.id}:user/onejob is not authorized to perform: ${refused} because no identity-based policy allows it. Encoded authorization failure message: ${'x'.repeat(500)}`,
            )
          : new Refused(
              service === 'scheduler' ? 403 : 400,
              'AccessDeniedException',
              `User: arn:aws:iam::${account.id}:user/onejob is not authorized to perform: ${refused}`,
            );
      const said = answer(asked, signed, action);
      if (fault?.how === 'lost') return 'cut';
      if (fault?.how === 'silent') return 'silence';
      if (fault?.how === 'broken') throw new Refused(500, 'InternalError', 'An internal error has occurred');
      call.status = said.status;
      return said;
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      call.status = error.status;
      return errorOf(error, service, newId('req').slice(4));
    }
  }

  const stamp = (): string => new Date(world.now()).toUTCString();

  /** For the code under test. */
  const fetchAws: typeof fetch = async (input, init = {}) => {
    const url = new URL(String(input instanceof Request ? input.url : input));
    // As a network does it: nothing is answered before the caller continues.
    await Promise.resolve();
    init.signal?.throwIfAborted();
    const headers = new Headers(init.headers);
    const said = handle({ method: init.method ?? 'GET', url, headers, body: String(init.body ?? '') });
    if (said === 'silence') return silence(init.signal);
    if (said === 'cut')
      throw new TypeError('fetch failed', { cause: Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET' }) });
    return new Response(said.text, { status: said.status, headers: { 'content-type': said.type, date: stamp(), ...said.headers } });
  };

  return {
    account,
    parameters,
    roles,
    world,
    state,
    faults,
    denied,
    calls,
    keys,
    fetch: fetchAws,
    /** Of a page, whatever is asked for. */
    pagesOf(most: number): void {
      ec2.pageSize = most;
    },
    /** Machines that are not terminated. */
    alive: () => [...world.machines.values()].filter(({ state: one }) => one !== 'terminated'),
    /** All that costs money or holds a name. */
    leftovers: () => [
      ...[...world.machines.values()].filter(({ state: one }) => one !== 'terminated').map(({ id }) => id),
      ...[...world.volumes.keys(), ...world.interfaces.keys(), ...world.addresses.keys()],
      ...[...world.spots.values()].filter(({ state: one }) => one === 'open' || one === 'active').map(({ id }) => id),
      ...[...world.schedules.values()].map(({ name }) => name),
    ],
    /** Actions of IAM that were used. */
    used: () => [...new Set(calls.flatMap(({ permissions }) => permissions))].toSorted(),
    /** No such machines in a zone; in every one when left out. */
    exhaust(type: string, how: 'on-demand' | 'spot', ...zones: readonly string[]): void {
      const all = zones.length > 0 ? zones : Object.values(account.regions).flat();
      for (const zone of all) account.exhausted.add(`${type}/${zone}/${how}`);
    },
    /** On a port of this address, for programs. */
    serve: (address = '127.0.0.1', port = 0): Promise<Port> => onPort(fetchAws, { address, port }),
    close: () => world.close(),
  };
}
