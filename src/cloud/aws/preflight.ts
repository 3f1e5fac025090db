/** What must be right before the first machine, found out without making anything. */
import { z } from 'zod';
import { messageOf, OnejobError } from '../../errors.ts';
import { type Finding, fine, problem, warning } from '../../finding.ts';
import { type HostPlan, needsPrice } from '../cloud.ts';
import type { Call, Calls } from './calls.ts';
import type { AwsConfig } from './config.ts';
import type { Ami, Images } from './image.ts';
import type { Network } from './network.ts';
import { askPermissions, isByTag, type Right } from './permissions.ts';
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
const groupHint =
  'Make one without rules for incoming connections, and write it into "security_group"; docs/cloud/aws.md says how.';

export async function preflight(parts: Parts, plan: HostPlan, signal: AbortSignal): Promise<Finding[]> {
  const { config } = parts;
  /** The findings of one part, or what it failed with. */
  const part = async (what: string, look: (subject: string) => Promise<readonly Finding[]>): Promise<readonly Finding[]> => {
    const subject = `${config.name}: ${what}`;
    try {
      return await look(subject);
    } catch (error) {
      return [failed(subject, error)];
    }
  };
  const end = endOfLife(`${config.name}: end of life`, config);
  const credential = await part('credential', async (of) => [fine(of, `${parts.credential} is ${await parts.identity(signal)}.`)]);
  // Nothing else can be asked without one.
  if (credential.some(({ level }) => level === 'error')) return [...credential, end];
  let ami: Ami | null = null;
  const image = await part('image', async (of) => {
    ami = await parts.images.resolve(plan.image, signal);
    return [imageFinding(of, ami, plan)];
  });
  const findings = await Promise.all([
    part('types', (of) => offers(of, parts, plan, signal)),
    part('permissions', async (of) => {
      const subnet = await parts.network.subnetIn(null, signal);
      return rightFindings(of, await askPermissions(parts.calls, config, plan, { ami, subnet }, signal));
    }),
    part('quota', (of) => quotas(of, parts, plan, signal)),
    part('network', (of) => network(of, parts, signal)),
    part('price', (of) => prices(of, parts, plan, signal)),
  ]);
  return [...credential, ...image, ...findings.flat(), end];
}

function failed(subject: string, error: unknown): Finding {
  return problem(subject, messageOf(error), error instanceof OnejobError ? error.hint : null);
}

function imageFinding(subject: string, { id, name, disk }: Ami, plan: HostPlan): Finding {
  const what = plan.image.from === id ? `${id} is "${name}"` : `${plan.image.from} is ${id}, "${name}"`;
  if (plan.disk >= disk) return fine(subject, `${what}.`);
  return warning(subject, `${what}. Its disk has ${disk} GiB, so machines get that instead of ${plan.disk} GiB.`, null);
}

async function offers(subject: string, { network }: Parts, { types }: HostPlan, signal: AbortSignal): Promise<Finding[]> {
  const found: Finding[] = [];
  for (const type of types) {
    try {
      const zones = (await network.zones(type, signal)).filter((zone) => zone !== null);
      found.push(fine(subject, `EC2 offers ${type} in ${zones.join(', ')}.`));
    } catch (error) {
      found.push(failed(subject, error));
    }
  }
  return found;
}

function rightFindings(subject: string, rights: readonly Right[]): Finding[] {
  const names = (of: readonly Right[]): string => [...new Set(of.map(({ permission }) => permission))].join(', ');
  const those = (is: Right['is']) => rights.filter((right) => right.is === is);
  const denied = those('denied');
  const [sure, unsure] = [
    denied.filter(({ permission }) => !isByTag(permission)),
    denied.filter(({ permission }) => isByTag(permission)),
  ];
  const found: Finding[] = [];
  if (sure.length > 0) found.push(problem(subject, `AWS refuses ${names(sure)}.`, policy));
  if (unsure.length > 0) {
    const what = `AWS refuses ${names(unsure)} for ids that nothing has, as a policy with conditions on tags may do.`;
    found.push(warning(subject, what, `${policy} The checklist in docs/cloud/aws.md shows them at work.`));
  }
  for (const why of new Set(those('unclear').map((right) => right.why))) found.push(warning(subject, why));
  const allowed = those('allowed');
  const later = 'scheduler:CreateSchedule and iam:PassRole show with the first machine';
  if (allowed.length > 0) found.push(fine(subject, `AWS allows ${names(allowed)}; ${later}.`));
  return found;
}

const quotaAnswer = z.object({ Quota: z.object({ Value: z.number() }) });

/** What `max` machines need of each quota that their types count against. */
async function quotas(subject: string, { config, calls }: Parts, plan: HostPlan, signal: AbortSignal): Promise<Finding[]> {
  const { region } = config;
  const spots = { never: [false], only: [true], prefer: [true, false] }[plan.spot];
  const found: Finding[] = [];
  /** For each quota the type that needs most. */
  const wanted = new Map<string, { readonly name: string; readonly vcpus: number; readonly type: string }>();
  for (const type of plan.types)
    for (const spot of spots) {
      const quota = quotaOf(type, spot);
      if (quota === null || quota.vcpus === null) {
        found.push(
          warning(
            subject,
            `onejob does not know which quota ${type} counts against.`,
            'Look at Service Quotas in the AWS console.',
          ),
        );
        break;
      }
      if (quota.vcpus > (wanted.get(quota.code)?.vcpus ?? 0))
        wanted.set(quota.code, { name: quota.name, vcpus: quota.vcpus, type });
    }
  for (const [code, { name, vcpus, type }] of wanted) {
    const call: Call = { doing: `look at quota ${code}`, region, changes: false, permissions: ['servicequotas:GetServiceQuota'] };
    const input = { ServiceCode: 'ec2', QuotaCode: code };
    const answer = quotaAnswer.parse(
      await calls.json('servicequotas', 'ServiceQuotasV20190624.GetServiceQuota', input, call, signal),
    );
    const limit = answer.Quota.Value;
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
  const call: Call = {
    ...{ doing: 'look at the security group', region, changes: false, permissions: ['ec2:DescribeSecurityGroups'] },
  };
  const params = securityGroup === null ? { Filter: [{ Name: 'group-name', Value: ['default'] }] } : { GroupId: [securityGroup] };
  const groups = await calls.ec2List('DescribeSecurityGroups', 'securityGroupInfo', params, call, signal);
  if (securityGroup === null) {
    if (groups.length === 0 && subnets === null)
      return [problem(subject, `${region} has no network.`, 'Write "subnets" and "security_group" of a network of your own.')];
    return [
      warning(subject, 'Machines get the default security group of their network, in which they reach each other.', groupHint),
    ];
  }
  const [group] = groups;
  const incoming = itemsAt(group, 'ipPermissions');
  const blocks = incoming.flatMap((one) => [...itemsAt(one, 'ipRanges'), ...itemsAt(one, 'ipv6Ranges')]);
  if (incoming.length > 0) {
    const from = blocks.flatMap((one) => textAt(one, 'cidrIp') ?? textAt(one, 'cidrIpv6') ?? []).join(', ');
    const whom = from === '' ? 'other machines' : from;
    return [warning(subject, `Security group ${securityGroup} lets connections in from ${whom}. onejob needs none.`, groupHint)];
  }
  if (itemsAt(group, 'ipPermissionsEgress').length === 0)
    return [problem(subject, `Security group ${securityGroup} lets no connection out.`, 'Allow outgoing HTTPS.')];
  return [fine(subject, `Security group ${securityGroup} lets connections out, and none in.`)];
}

async function prices(subject: string, { prices: of }: Parts, { types, spot }: HostPlan, signal: AbortSignal): Promise<Finding[]> {
  const found: Finding[] = [];
  for (const type of types) {
    const isSpot = spot !== 'never';
    const price = await of.price({ type, spot: isSpot }, signal);
    if (price === null) found.push(warning(subject, `onejob knows no price of ${type}.`, needsPrice));
    else found.push(fine(subject, `${type}${isSpot ? ' as spot' : ''} costs about ${price.perHour} USD per hour (${price.asOf}).`));
  }
  return found;
}

function endOfLife(subject: string, { deathDate, schedulerRole }: AwsConfig): Finding {
  if (deathDate === 'manager-only') {
    const what = 'AWS does not end a machine when both it and onejob fail, because of "death_date: manager-only".';
    return warning(subject, what, 'Make the role of docs/cloud/aws.md, and write "scheduler_role" instead.');
  }
  if (schedulerRole === null)
    return problem(
      subject,
      '"scheduler_role" is missing, so that onejob makes no machine.',
      'docs/cloud/aws.md says how to make the role.',
    );
  return fine(subject, `EventBridge Scheduler ends each machine as ${schedulerRole}, within a minute after its lifetime.`);
}
