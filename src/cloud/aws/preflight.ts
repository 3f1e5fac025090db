/** What must be right before the first machine, found out without making anything. */
import { z } from 'zod';
import { messageOf, OnejobError } from '../../errors.ts';
import { type Finding, fine, problem, warning } from '../../finding.ts';
import { CloudError, type HostPlan, type ThingKind } from '../cloud.ts';
import type { Call, Calls } from './calls.ts';
import type { AwsConfig } from './config.ts';
import { createPermissions, runParams } from './create.ts';
import { absent, removalOf } from './destroy.ts';
import type { Ami, Images } from './image.ts';
import { listThings } from './list.ts';
import type { Network } from './network.ts';
import type { Prices } from './price.ts';
import { quotaOf } from './quotas.ts';
import { itemsAt, textAt } from './xml.ts';

interface Parts {
  readonly config: AwsConfig;
  readonly calls: Calls;
  readonly images: Images;
  readonly network: Network;
  readonly prices: Prices;
  identity(signal: AbortSignal): Promise<string>;
  /** How people call the credential. */
  readonly credential: string;
}

const policy = 'Attach deploy/cloud/aws-policy.json to the user or role that onejob signs in as.';
/** Ids that nothing has: what AWS says of them shows whether the call is allowed. */
const nobody: Readonly<Partial<Record<ThingKind, string>>> = {
  ...{ machine: 'i-00000000000000000', 'spot-request': 'sir-00000000', disk: 'vol-00000000000000000' },
  ...{ interface: 'eni-00000000000000000', address: 'eipalloc-00000000000000000' },
};
const noOwner = 'onejob-preflight';
const noSchedule = '/schedules/onejob-preflight?groupName=default';

export async function preflight(parts: Parts, plan: HostPlan, signal: AbortSignal): Promise<Finding[]> {
  const { config } = parts;
  const subject = (what: string): string => `${config.name}: ${what}`;
  /** The findings of one part, or what it failed with. */
  const part = async (what: string, look: (subject: string) => Promise<readonly Finding[]>): Promise<readonly Finding[]> => {
    try {
      return await look(subject(what));
    } catch (error) {
      return [failed(subject(what), error)];
    }
  };
  const credential = await part('credential', async (of) => [fine(of, `${parts.credential} is ${await parts.identity(signal)}`)]);
  // Nothing else can be asked without one.
  if (credential.some(({ level }) => level === 'error')) return [...credential, endOfLife(subject('end of life'), config)];
  let ami: Ami | null = null;
  const image = await part('image', async (of) => {
    ami = await parts.images.resolve(plan.image, signal);
    return [imageFinding(of, ami, plan)];
  });
  const findings = await Promise.all([
    part('types', (of) => offers(of, parts, plan, signal)),
    part('permissions', (of) => permissions(of, parts, plan, ami, signal)),
    part('quota', (of) => quotas(of, parts, plan, signal)),
    part('network', (of) => network(of, parts, signal)),
    part('price', (of) => prices(of, parts, plan, signal)),
  ]);
  return [...credential, ...image, ...findings.flat(), endOfLife(subject('end of life'), config)];
}

function failed(subject: string, error: unknown): Finding {
  return problem(subject, messageOf(error), error instanceof OnejobError ? error.hint : null);
}

function imageFinding(subject: string, { id, name, disk }: Ami, plan: HostPlan): Finding {
  const what = `${plan.image.from} is ${id} (${name})`;
  if (plan.disk >= disk) return fine(subject, what);
  return warning(
    subject,
    `${what}, whose disk has ${disk} GiB: machines get that instead of ${plan.disk} GiB`,
    `Write disk: ${disk}GiB.`,
  );
}

async function offers(subject: string, { network }: Parts, { types }: HostPlan, signal: AbortSignal): Promise<Finding[]> {
  const found: Finding[] = [];
  for (const type of types) {
    try {
      const zones = (await network.zones(type, signal)).filter((zone) => zone !== null);
      found.push(fine(subject, `${type} is offered in ${zones.join(', ')}`));
    } catch (error) {
      found.push(failed(subject, error));
    }
  }
  return found;
}

/** What was asked, and what AWS says of the right to it. */
type Right = { readonly permission: string; readonly is: 'allowed' | 'denied' | 'unclear'; readonly why: string };

/** Each permission on its own. Those of `CreateSchedule` and `PassRole` cannot be asked without making something. */
async function permissions(
  subject: string,
  { config, calls, network }: Parts,
  plan: HostPlan,
  ami: Ami | null,
  signal: AbortSignal,
): Promise<Finding[]> {
  const { region } = config;
  const rights: Right[] = [];
  const ask = async (permission: string, allowed: RegExp | null, act: (call: Call) => Promise<unknown>): Promise<void> => {
    const call = { doing: `ask about ${permission}`, region, changes: false, permissions: [permission] };
    try {
      await act(call);
      rights.push({ permission, is: 'allowed', why: '' });
    } catch (error) {
      if (!(error instanceof CloudError)) throw error;
      const isAllowed = error.reason !== null && allowed?.test(error.reason) === true;
      const is = isAllowed ? 'allowed' : error.code === 'E_CLOUD_DENIED' ? 'denied' : 'unclear';
      rights.push({ permission, is, why: error.reason ?? error.code });
    }
  };
  const dry = /^DryRunOperation$/;
  const dryOrAbsent = new RegExp(`${dry.source}|${absent.source}`);
  const scope = { places: [], everywhere: true } as const;
  const listing = listThings({ ...calls }, region, noOwner, { ...scope, everywhere: false }, signal).then(({ unknown }) => unknown);
  const subnet = await network.subnetIn(null, signal);
  const order = {
    ...{ owner: noOwner, run: 'onejob-0000000000000000', host: plan.host, born: 0, expires: 0, disk: plan.disk, userData: '' },
    offer: { type: plan.types[0] ?? '', spot: plan.spot !== 'never', zone: null },
  };
  const removals = (Object.entries(nobody) as [ThingKind, string][]).flatMap(([kind, id]) => removalOf(kind, id) ?? []);
  await Promise.all([
    ...(ami === null
      ? []
      : [
          ask(createPermissions.join(' and '), dry, (call) =>
            calls.ec2(
              'RunInstances',
              { ...runParams(order, { ami, subnet, group: config.securityGroup }), DryRun: true },
              call,
              signal,
            ),
          ),
        ]),
    ...removals.map(({ action, params }) =>
      ask(`ec2:${action}`, dryOrAbsent, (call) => calls.ec2(action, { ...params, DryRun: true }, call, signal)),
    ),
    ask('ec2:GetConsoleOutput', dryOrAbsent, (call) =>
      calls.ec2('GetConsoleOutput', { InstanceId: nobody.machine, DryRun: true }, call, signal),
    ),
    ask('ec2:DescribeRegions', null, (call) => calls.ec2('DescribeRegions', {}, call, signal)),
    ask('scheduler:GetSchedule', absent, (call) => calls.scheduler('GET', noSchedule, undefined, call, signal)),
    ask('scheduler:DeleteSchedule', absent, (call) => calls.scheduler('DELETE', noSchedule, undefined, call, signal)),
  ]);
  const unlisted = await listing;
  const denied = rights.filter(({ is }) => is === 'denied');
  // AWS may refuse what has no tags before it says that it does not exist.
  const [sure, unsure] = [
    denied.filter(({ permission }) => !isByTag(permission)),
    denied.filter(({ permission }) => isByTag(permission)),
  ];
  const names = (of: readonly Right[]): string => of.map(({ permission }) => permission).join(', ');
  const unclear = rights.filter(({ is }) => is === 'unclear').map(({ permission, why }) => `${permission} (${why})`);
  const allowed = rights.filter(({ is }) => is === 'allowed');
  return [
    ...(sure.length > 0 ? [problem(subject, `AWS refuses ${names(sure)}`, policy)] : []),
    ...(unlisted.length > 0 ? [problem(subject, `AWS does not list ${unlisted.join(', ')}`, policy)] : []),
    ...(unsure.length > 0
      ? [
          warning(
            subject,
            `AWS refuses ${names(unsure)} for things that do not exist, which a policy with tags explains`,
            `${policy} Run "onejob cloud acceptance aws" to see them work.`,
          ),
        ]
      : []),
    ...(unclear.length > 0 ? [warning(subject, `cannot tell about ${unclear.join(', ')}`)] : []),
    ...(allowed.length > 0
      ? [fine(subject, `AWS allows ${names(allowed)}; scheduler:CreateSchedule and iam:PassRole show with the first machine`)]
      : []),
  ];
}

const isByTag = (permission: string): boolean => /^ec2:(Terminate|Delete|Cancel|Release|GetConsole)/.test(permission);

const quotaAnswer = z.object({ Quota: z.object({ Value: z.number() }) });

/** What `max` machines need of each quota that their types count against. */
async function quotas(subject: string, { config, calls }: Parts, plan: HostPlan, signal: AbortSignal): Promise<Finding[]> {
  const spots = plan.spot === 'never' ? [false] : plan.spot === 'only' ? [true] : [true, false];
  const wanted = new Map<string, { readonly name: string; readonly need: number; readonly type: string; readonly spot: boolean }>();
  const found: Finding[] = [];
  for (const type of plan.types)
    for (const spot of spots) {
      const quota = quotaOf(type, spot);
      if (quota === null)
        found.push(warning(subject, `onejob does not know the quota of ${type}`, 'Look at Service Quotas in the AWS console.'));
      else {
        const need = (quota.vcpus ?? 0) * plan.max;
        const before = wanted.get(quota.code);
        if (before === undefined || need > before.need) wanted.set(quota.code, { name: quota.name, need, type, spot });
      }
    }
  for (const [code, { name, need, type, spot }] of wanted) {
    const call: Call = {
      ...{ doing: `look at quota ${code}`, region: config.region, changes: false, permissions: ['servicequotas:GetServiceQuota'] },
    };
    const input = { ServiceCode: 'ec2', QuotaCode: code };
    const answer = quotaAnswer.parse(
      await calls.json('servicequotas', 'ServiceQuotasV20190624.GetServiceQuota', input, call, signal),
    );
    const limit = answer.Quota.Value;
    const what = `"${name}" (${code}) in ${config.region} is ${limit} vCPUs`;
    const hint = `Ask for at least ${need} in Service Quotas of the AWS console, in ${config.region}. It often takes a day.`;
    const each = plan.max === 0 ? 0 : need / plan.max;
    const enough = `${plan.max} × ${type} needs ${need}`;
    if (limit >= need) found.push(fine(subject, `${what}; ${enough}`));
    else if (limit >= each || (spot && spots.length > 1)) found.push(warning(subject, `${what}, but ${enough}`, hint));
    else found.push(problem(subject, `${what}, but one ${type} needs ${each}`, hint));
  }
  return found;
}

async function network(subject: string, { config, calls }: Parts, signal: AbortSignal): Promise<Finding[]> {
  const { region, securityGroup, subnets } = config;
  const call: Call = {
    ...{ doing: 'look at the security group', region, changes: false, permissions: ['ec2:DescribeSecurityGroups'] },
  };
  const make = 'Make one with no rule for incoming connections, and write it into "security_group": see docs/cloud/aws.md.';
  if (securityGroup === null && subnets !== null)
    return [warning(subject, 'machines get the default security group of their network, in which they reach each other', make)];
  const by = securityGroup === null ? { Filter: [{ Name: 'group-name', Value: ['default'] }] } : { GroupId: [securityGroup] };
  const groups = await calls.ec2List('DescribeSecurityGroups', 'securityGroupInfo', by, call, signal);
  const found = securityGroup === null ? null : groups.find((one) => textAt(one, 'groupId') === securityGroup);
  if (securityGroup === null)
    return [
      groups.length === 0
        ? problem(subject, `${region} has no default network`, 'Write "subnets" and "security_group" of a network of your own.')
        : warning(subject, 'machines get the default security group, in which they reach each other', make),
    ];
  const incoming = itemsAt(found ?? undefined, 'ipPermissions');
  const isOpen = incoming.some((one) => itemsAt(one, 'ipRanges').length + itemsAt(one, 'ipv6Ranges').length > 0);
  if (isOpen)
    return [
      warning(
        subject,
        `security group ${securityGroup} lets connections in from outside; onejob needs none`,
        'Remove these rules.',
      ),
    ];
  if (incoming.length > 0)
    return [
      warning(
        subject,
        `security group ${securityGroup} lets connections in from other machines; onejob needs none`,
        'Remove these rules.',
      ),
    ];
  if (itemsAt(found ?? undefined, 'ipPermissionsEgress').length === 0)
    return [problem(subject, `security group ${securityGroup} lets no connection out`, 'Allow outgoing HTTPS.')];
  return [fine(subject, `security group ${securityGroup} lets connections out, and none in`)];
}

async function prices(subject: string, { prices: of }: Parts, { types, spot }: HostPlan, signal: AbortSignal): Promise<Finding[]> {
  const found: Finding[] = [];
  for (const type of types) {
    const isSpot = spot !== 'never';
    const price = await of.price({ type, spot: isSpot }, signal);
    if (price === null) found.push(warning(subject, `onejob knows no price of ${type}, so that no budget counts it`));
    else found.push(fine(subject, `${type}${isSpot ? ' (spot)' : ''} costs about ${price.perHour} USD per hour (${price.asOf})`));
  }
  return found;
}

function endOfLife(subject: string, { deathDate, schedulerRole }: AwsConfig): Finding {
  if (deathDate === 'manager-only')
    return warning(
      subject,
      'nothing at AWS ends a machine when both it and onejob fail (death_date: manager-only)',
      'Make the role of docs/cloud/aws.md and write "scheduler_role" instead.',
    );
  if (schedulerRole === null)
    return problem(subject, '"scheduler_role" is missing, so that no machine is made', 'See docs/cloud/aws.md for the role.');
  return fine(subject, `EventBridge Scheduler ends each machine as ${schedulerRole}, within a minute after its lifetime`);
}
