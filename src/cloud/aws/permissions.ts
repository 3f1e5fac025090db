/**
 * Asks AWS about each permission without making anything: lists of an owner that nobody has, `DryRun`, and removals of ids that
 * nothing has. There is no way to ask about scheduler:CreateSchedule and iam:PassRole.
 */
import { CloudError, type HostPlan } from '../cloud.ts';
import type { Call, Calls, Params } from './calls.ts';
import { createPermissions, runParams } from './create.ts';
import type { Ami } from './image.ts';
import { listSchedules, schedulePath } from './schedule.ts';
import { absent, harmless } from './things.ts';
import type { AwsConfig } from './type.ts';

/** What AWS says of the right to a call. `unclear`: it failed for another reason, which `why` is. */
export interface Right {
  readonly permission: string;
  readonly is: 'allowed' | 'denied' | 'unclear';
  readonly why: string;
}

const nobody = 'onejob-preflight';
const noMachine = 'i-00000000000000000';
const noSchedule = schedulePath(nobody);

/** Permissions of things by their tags: AWS may refuse them for an id before it says that there is no such thing. */
export const isByTag = (permission: string): boolean => /^ec2:(Terminate|Delete|Cancel|Release|GetConsole)/.test(permission);

export async function askPermissions(
  calls: Calls,
  { region, securityGroup }: Pick<AwsConfig, 'region' | 'securityGroup'>,
  plan: Pick<HostPlan, 'host' | 'types' | 'spot' | 'disk'>,
  on: { readonly ami: Ami | null; readonly subnet: string | null },
  signal: AbortSignal,
): Promise<Right[]> {
  const ask = async (permission: string, act: (call: Call) => Promise<unknown>): Promise<Right> => {
    try {
      await act({ doing: `ask about ${permission}`, region, permissions: [permission] });
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
  const ec2 = (action: string, params: Params) => ask(`ec2:${action}`, (call) => calls.ec2(action, params, call, signal));
  const scheduler = (action: string, method: 'GET' | 'DELETE') =>
    ask(`scheduler:${action}`, (call) => calls.scheduler([action, method, noSchedule], undefined, call, signal));
  return Promise.all([
    ...runs,
    ...harmless(nobody).map(({ action, params }) => ec2(action, params)),
    ec2('GetConsoleOutput', { InstanceId: noMachine, DryRun: true }),
    ec2('DescribeRegions', {}),
    ask('scheduler:ListSchedules', (call) => listSchedules(calls, nobody, call, signal)),
    scheduler('GetSchedule', 'GET'),
    scheduler('DeleteSchedule', 'DELETE'),
  ]);
}
