/**
 * Asks AWS about each permission without making anything: lists of an owner that nobody has, `DryRun`, and removals of ids that
 * nothing has. There is no way to ask about scheduler:CreateSchedule and iam:PassRole.
 */
import { CloudError, type HostPlan, type ThingKind } from '../cloud.ts';
import type { Call, Calls } from './calls.ts';
import type { AwsConfig } from './config.ts';
import { createPermissions, runParams } from './create.ts';
import { absent, removalOf } from './destroy.ts';
import type { Ami } from './image.ts';
import { ec2Lists } from './list.ts';
import { listSchedules } from './schedule.ts';

/** What AWS says of the right to a call. `unclear`: it failed for another reason, which `why` is. */
export interface Right {
  readonly permission: string;
  readonly is: 'allowed' | 'denied' | 'unclear';
  readonly why: string;
}

const nobody = 'onejob-preflight';
const noThings = {
  ...{ machine: 'i-00000000000000000', 'spot-request': 'sir-00000000', disk: 'vol-00000000000000000' },
  ...{ interface: 'eni-00000000000000000', address: 'eipalloc-00000000000000000' },
} as const satisfies Partial<Record<ThingKind, string>>;
const noSchedule = `/schedules/${nobody}?groupName=default`;

/** Permissions of things by their tags: AWS may refuse them for an id before it says that there is no such thing. */
export const isByTag = (permission: string): boolean =>
  /^ec2:(Terminate|Delete|Cancel|Release|GetConsole|CreateTags)/.test(permission);

export async function askPermissions(
  calls: Calls,
  { region, securityGroup }: Pick<AwsConfig, 'region' | 'securityGroup'>,
  plan: Pick<HostPlan, 'host' | 'types' | 'spot' | 'disk'>,
  on: { readonly ami: Ami | null; readonly subnet: string | null },
  signal: AbortSignal,
): Promise<Right[]> {
  const ask = async (permission: string, act: (call: Call) => Promise<unknown>): Promise<Right> => {
    const call = { doing: `ask about ${permission}`, region, changes: false, permissions: [permission] };
    try {
      await act(call);
      return { permission, is: 'allowed', why: '' };
    } catch (error) {
      if (!(error instanceof CloudError)) throw error;
      const { reason, code, message: why } = error;
      if (reason !== null && (reason === 'DryRunOperation' || absent.test(reason))) return { permission, is: 'allowed', why: '' };
      return { permission, is: code === 'E_CLOUD_DENIED' ? 'denied' : 'unclear', why };
    }
  };
  const { ami, subnet } = on;
  const runs = (ami === null ? [] : plan.types).map((type) => {
    const order = {
      ...{ owner: nobody, run: 'onejob-0000000000000000', host: plan.host, born: 0, expires: 0, disk: plan.disk, userData: '' },
      offer: { type, spot: plan.spot !== 'never', zone: null },
    };
    return ask(createPermissions.join(' and '), (call) => {
      const params = runParams(order, { ami: ami as Ami, subnet, group: securityGroup });
      return calls.ec2('RunInstances', { ...params, DryRun: true }, call, signal);
    });
  });
  const removals = Object.entries(noThings).flatMap(([kind, id]) => removalOf(kind as ThingKind, id) ?? []);
  const dry = [
    ...removals,
    { action: 'GetConsoleOutput', params: { InstanceId: noThings.machine } },
    { action: 'CreateTags', params: { ResourceId: [noThings.machine], Tag: [{ Key: 'onejob-mail', Value: '' }] } },
  ];
  return Promise.all([
    ...runs,
    ...ec2Lists(nobody).map(({ action, params }) => ask(`ec2:${action}`, (call) => calls.ec2(action, params, call, signal))),
    ...dry.map(({ action, params }) =>
      ask(`ec2:${action}`, (call) => calls.ec2(action, { ...params, DryRun: true }, call, signal)),
    ),
    ask('ec2:DescribeRegions', (call) => calls.ec2('DescribeRegions', {}, call, signal)),
    ask('scheduler:ListSchedules', (call) => listSchedules(calls, nobody, call, signal)),
    ask('scheduler:GetSchedule', (call) => calls.scheduler('GET', noSchedule, undefined, call, signal)),
    ask('scheduler:DeleteSchedule', (call) => calls.scheduler('DELETE', noSchedule, undefined, call, signal)),
  ]);
}
