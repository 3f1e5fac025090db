/** What must be right before the first machine, found out without making anything. */
import { z } from 'zod';
import { type Finding, fine, problem, warning } from '../../base/finding.ts';
import { type Cloud, CloudError, type HostPlan } from '../../ports/cloud.ts';
import { examineAfter, examineAll, managerOnly, priceFindings } from '../kit/preflight.ts';
import { spotsOf } from '../offer.ts';
import type { AwsApiCall, AwsCalls, Params } from './calls.ts';
import type { AwsConfig } from './config.ts';
import { createPermissions, runParams } from './create.ts';
import type { Ami, Images } from './image.ts';
import type { Network } from './network.ts';
import { listSchedules, schedulePath } from './schedule.ts';
import { quotaOf } from './sizes.ts';
import { absent, harmless } from './things.ts';
import { itemsAt, textAt } from './xml.ts';

interface Parts {
  readonly config: AwsConfig;
  readonly calls: AwsCalls;
  readonly images: Images;
  readonly network: Network;
  readonly price: Cloud['price'];
  identity(signal: AbortSignal): Promise<string>;
  /** How people call the credential. */
  readonly credential: string;
}

const policy = 'Attach deploy/cloud/aws-policy.json to the user or role that onejob signs in as.';
const groupHint =
  'Make one without rules for incoming connections, and write it into "security_group"; docs/cloud/aws.md says how.';

export function preflight(parts: Parts, plan: HostPlan, signal: AbortSignal): Promise<Finding[]> {
  const { config, images, credential } = parts;
  const { name } = config;
  return examineAfter(
    [`${name}: credential`, async (of) => [fine(of, `${credential} is ${await parts.identity(signal)}.`)]],
    [
      [`${name}: image`, async (of) => [imageFinding(of, await images(plan.image, signal), plan)]],
      [`${name}: types`, (of) => offers(of, parts, plan, signal)],
      [`${name}: permissions`, (of) => permissions(of, parts, plan, signal)],
      [`${name}: quota`, (of) => quotas(of, parts, plan, signal)],
      [`${name}: network`, (of) => network(of, parts, signal)],
      [`${name}: price`, (of) => priceFindings(of, plan, parts.price, signal)],
    ],
    [[`${name}: end of life`, (of) => [endOfLife(of, config)]]],
  );
}

function imageFinding(subject: string, { id, name, disk }: Ami, plan: HostPlan): Finding {
  const what = plan.image.from === id ? `${id} is "${name}"` : `${plan.image.from} is ${id}, "${name}"`;
  if (plan.disk >= disk) return fine(subject, `${what}.`);
  return warning(subject, `${what}. Its disk has ${disk} GiB, so machines get that instead of ${plan.disk} GiB.`);
}

function offers(subject: string, parts: Parts, { types }: HostPlan, signal: AbortSignal): Promise<Finding[]> {
  const offered = async (type: string): Promise<Finding[]> => {
    const zones = (await parts.network.zones(type, signal)).filter((zone) => zone !== null);
    return [fine(subject, `EC2 offers ${type} in ${zones.join(', ')}.`)];
  };
  return examineAll(types.map((type) => [subject, () => offered(type)]));
}

/** What AWS says of the right to a call. `unclear`: it failed for another reason, which `why` is. */
interface Right {
  readonly permission: string;
  readonly is: 'allowed' | 'denied' | 'unclear';
  readonly why: string;
}

const nobody = 'onejob-preflight';

/** Permissions of things by their tags: AWS may refuse them for an id before it says that there is no such thing. */
const isByTag = (permission: string): boolean => /^ec2:(Terminate|Delete|Cancel|Release|GetConsole|CreateTags)/.test(permission);

/**
 * Asks about each permission without making anything: lists of an owner that nobody has, `DryRun`, and removals of ids that nothing
 * has. There is no way to ask about scheduler:CreateSchedule and iam:PassRole.
 */
async function rights({ calls, config, images, network: subnets }: Parts, plan: HostPlan, signal: AbortSignal): Promise<Right[]> {
  const { region, securityGroup: group } = config;
  const ask = async (permission: string, act: (call: AwsApiCall) => Promise<unknown>): Promise<Right> => {
    try {
      await act({ doing: `ask about ${permission}`, region, needs: [permission] });
      return { permission, is: 'allowed', why: '' };
    } catch (error) {
      if (!(error instanceof CloudError)) throw error;
      const { reason, code, message: why } = error;
      if (reason === 'DryRunOperation' || absent.test(reason ?? '')) return { permission, is: 'allowed', why: '' };
      return { permission, is: code === 'E_CLOUD_DENIED' ? 'denied' : 'unclear', why };
    }
  };
  const ec2 = (action: string, params: Params, permission = `ec2:${action}`) =>
    ask(permission, (call) => calls.ec2(action, params, call, signal));
  const scheduler = (action: string, method: 'GET' | 'DELETE') =>
    ask(`scheduler:${action}`, (call) => calls.scheduler([action, method, schedulePath(nobody)], undefined, call, signal));
  const subnet = await subnets.subnetIn(null, signal);
  // What is wrong with the image is a finding of its own.
  const ami = await images(plan.image, signal).catch(() => null);
  const order = {
    owner: nobody,
    run: 'onejob-0000000000000000',
    host: plan.host,
    born: 0,
    expires: 0,
    disk: plan.disk,
    userData: '',
  };
  const runs = (ami === null ? [] : plan.types).map((type) => {
    const offer = { type, spot: plan.spot !== 'never', zone: null };
    const params = runParams({ ...order, offer }, { ami: ami as Ami, subnet, group });
    return ec2('RunInstances', { ...params, DryRun: true }, createPermissions.join(' and '));
  });
  return Promise.all([
    ...runs,
    ...harmless(nobody).map(({ action, params }) => ec2(action, params)),
    ec2('GetConsoleOutput', { InstanceId: 'i-00000000000000000', DryRun: true }),
    ec2('CreateTags', { ResourceId: ['i-00000000000000000'], Tag: [{ Key: 'onejob-mail', Value: '' }], DryRun: true }),
    ec2('DescribeRegions', {}),
    ask('scheduler:ListSchedules', (call) => listSchedules(calls, nobody, call, signal)),
    scheduler('GetSchedule', 'GET'),
    scheduler('DeleteSchedule', 'DELETE'),
  ]);
}

async function permissions(subject: string, parts: Parts, plan: HostPlan, signal: AbortSignal): Promise<Finding[]> {
  const found = Object.groupBy(await rights(parts, plan, signal), ({ is, permission }) =>
    is === 'denied' && isByTag(permission) ? 'byTag' : is,
  );
  const { allowed = [], denied = [], byTag = [], unclear = [] } = found;
  const names = (of: readonly Right[]): string => [...new Set(of.map(({ permission }) => permission))].join(', ');
  const findings: Finding[] = [];
  if (denied.length > 0) findings.push(problem(subject, `AWS refuses ${names(denied)}.`, policy));
  if (byTag.length > 0) {
    const what = `AWS refuses ${names(byTag)} for ids that nothing has, as a policy with conditions on tags may do.`;
    findings.push(warning(subject, what, `${policy} The checklist in docs/cloud/aws.md shows them at work.`));
  }
  for (const why of new Set(unclear.map((right) => right.why))) findings.push(warning(subject, why));
  const later = 'scheduler:CreateSchedule and iam:PassRole show with the first machine';
  if (allowed.length > 0) findings.push(fine(subject, `AWS allows ${names(allowed)}; ${later}.`));
  return findings;
}

const quotaAnswer = z.object({ Quota: z.object({ Value: z.number() }) });

/** What `max` machines need of each quota that their types count against. */
async function quotas(subject: string, { config, calls }: Parts, plan: HostPlan, signal: AbortSignal): Promise<Finding[]> {
  const { region } = config;
  const found: Finding[] = [];
  /** For each quota the type that needs most. */
  const wanted = new Map<string, { readonly name: string; readonly vcpus: number; readonly type: string }>();
  for (const type of plan.types) {
    const counts = spotsOf(plan).map((spot) => quotaOf(type, spot));
    for (const quota of counts)
      if (quota !== null && quota.vcpus !== null && quota.vcpus > (wanted.get(quota.code)?.vcpus ?? 0))
        wanted.set(quota.code, { name: quota.name, vcpus: quota.vcpus, type });
    if (counts.some((quota) => quota?.vcpus == null)) {
      const message = `onejob does not know which quota ${type} counts against.`;
      found.push(warning(subject, message, 'Look at Service Quotas in the AWS console.'));
    }
  }
  for (const [code, { name, vcpus, type }] of wanted) {
    const input = { ServiceCode: 'ec2', QuotaCode: code };
    const call = { doing: `look at quota ${code}`, region };
    const answer = await calls.json('servicequotas', 'ServiceQuotasV20190624.GetServiceQuota', input, call, signal);
    const limit = quotaAnswer.parse(answer).Quota.Value;
    const need = vcpus * plan.max;
    const what = `Quota "${name}" (${code}) in ${region} is ${limit} vCPUs`;
    const hint = `Ask for at least ${need} in Service Quotas of the AWS console, in ${region}. It often takes a day.`;
    if (limit >= need) found.push(fine(subject, `${what}; ${plan.max} × ${type} needs ${need}.`));
    // The other one of spot and on demand may do.
    else if (limit >= vcpus || wanted.size > 1)
      found.push(warning(subject, `${what}, but ${plan.max} × ${type} needs ${need}.`, hint));
    else found.push(problem(subject, `${what}, but one ${type} needs ${vcpus}.`, hint));
  }
  return found;
}

async function network(subject: string, { config, calls }: Parts, signal: AbortSignal): Promise<Finding[]> {
  const { region, securityGroup, subnets } = config;
  const call = { doing: 'look at the security group', region };
  const params = securityGroup === null ? { Filter: [{ Name: 'group-name', Value: ['default'] }] } : { GroupId: [securityGroup] };
  const groups = await calls.ec2List('DescribeSecurityGroups', 'securityGroupInfo', params, call, signal);
  if (securityGroup === null) {
    if (groups.length === 0 && subnets === null)
      return [problem(subject, `${region} has no network.`, 'Write "subnets" and "security_group" of a network of your own.')];
    const message = 'Machines get the default security group of their network, in which they reach each other.';
    return [warning(subject, message, groupHint)];
  }
  const [group] = groups;
  const incoming = itemsAt(group, 'ipPermissions');
  if (incoming.length > 0) {
    const blocks = incoming.flatMap((one) => [...itemsAt(one, 'ipRanges'), ...itemsAt(one, 'ipv6Ranges')]);
    const from = blocks.flatMap((one) => textAt(one, 'cidrIp') ?? textAt(one, 'cidrIpv6') ?? []).join(', ');
    const message = `Security group ${securityGroup} lets connections in from ${from || 'other machines'}. onejob needs none.`;
    return [warning(subject, message, groupHint)];
  }
  if (itemsAt(group, 'ipPermissionsEgress').length === 0)
    return [problem(subject, `Security group ${securityGroup} lets no connection out.`, 'Allow outgoing HTTPS.')];
  return [fine(subject, `Security group ${securityGroup} lets connections out, and none in.`)];
}

function endOfLife(subject: string, { deathDate, schedulerRole }: AwsConfig): Finding {
  if (deathDate === 'manager-only')
    return managerOnly(subject, 'Make the role of docs/cloud/aws.md, and write "scheduler_role" instead.');
  if (schedulerRole !== null)
    return fine(subject, `EventBridge Scheduler ends each machine as ${schedulerRole}, within a minute after its lifetime.`);
  const message = '"scheduler_role" is missing, so onejob creates no machine.';
  return problem(subject, message, 'docs/cloud/aws.md says how to make the role.');
}
