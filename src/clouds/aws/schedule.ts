/**
 * The end of life of a machine: one schedule of EventBridge Scheduler, in the region of the machine and the group `default`, whose
 * target is TerminateInstances. A list of schedules has neither tags nor descriptions, so the name says whose it is:
 * `onejob-` + 16 digits of the owner's hash + 16 of the run + the end in seconds.
 */
import { hash } from 'node:crypto';
import { isDeepStrictEqual } from 'node:util';
import { z } from 'zod';
import { type Birth, CloudError, type Made, type Thing } from '../../ports/cloud.ts';
import type { AwsApiCall, AwsCalls } from './calls.ts';
import type { AwsConfig } from './config.ts';

const group = 'default';
/** Of one schedule. */
export const schedulePath = (name: string): string => `/schedules/${encodeURIComponent(name)}?groupName=${group}`;

const prefixOf = (owner: string): string => `onejob-${hash('sha256', owner).slice(0, 16)}-`;
const nameOf = ({ owner, run, expires }: Birth): string => `${prefixOf(owner)}${run.slice('onejob-'.length)}-${expires}`;
const partitionOf = (region: string): string =>
  region.startsWith('cn-') ? 'aws-cn' : region.startsWith('us-gov-') ? 'aws-us-gov' : 'aws';

/** What must be read back, by the names of the API. */
const schedule = z.object({
  State: z.string(),
  ScheduleExpression: z.string(),
  ScheduleExpressionTimezone: z.string(),
  ActionAfterCompletion: z.string(),
  FlexibleTimeWindow: z.object({ Mode: z.string() }),
  Target: z.object({ Arn: z.string(), RoleArn: z.string(), Input: z.string() }),
});

/** Sets it and reads it back. Scheduler begins within the minute of that time. @throws CloudError */
export async function setSchedule(
  calls: AwsCalls,
  role: NonNullable<AwsConfig['schedulerRole']>,
  birth: Birth,
  made: Made,
  signal: AbortSignal,
): Promise<string> {
  const name = nameOf(birth);
  const region = made.place;
  const wanted = {
    State: 'ENABLED',
    // Without an offset: the time zone stands next to it.
    ScheduleExpression: `at(${new Date(birth.expires * 1000).toISOString().slice(0, 19)})`,
    ScheduleExpressionTimezone: 'UTC',
    ActionAfterCompletion: 'DELETE',
    FlexibleTimeWindow: { Mode: 'OFF' },
    // Scheduler calls EC2 by itself.
    Target: {
      Arn: `arn:${partitionOf(region)}:scheduler:::aws-sdk:ec2:terminateInstances`,
      RoleArn: role,
      Input: JSON.stringify({ InstanceIds: [made.id] }),
    },
  };
  const doing = (what: string): string => `${what} the end of life of machine ${made.id}`;
  const set: AwsApiCall = { doing: doing('set'), region, changes: true, needs: ['scheduler:CreateSchedule', 'iam:PassRole'] };
  const Description = `Ends ${birth.run} of onejob (owner ${birth.owner}, host ${birth.host}).`;
  const input = { ...wanted, GroupName: group, Description };
  // It may have been set by an earlier call, whose answer was lost: what counts is what can be read.
  await unless('ConflictException', calls.scheduler(['CreateSchedule', 'POST', `/schedules/${name}`], input, set, signal));
  const read: AwsApiCall = { doing: doing('read back'), region };
  const get = calls.scheduler(['GetSchedule', 'GET', schedulePath(name)], undefined, read, signal);
  const found = await unless('ResourceNotFoundException', get);
  const whole = schedule.safeParse(found);
  const differs = whole.success ? differenceOf(whole.data, wanted) : found === null ? 'it is not there' : 'a part of it is missing';
  if (differs === null) return `schedule ${name} in ${region}`;
  throw new CloudError('E_CLOUD_END', `AWS does not confirm the end of life of machine ${made.id}: ${differs}.`, {
    hint: `Look at schedule ${name} in EventBridge Scheduler, in ${region}.`,
    retry: true,
  });
}

/** null: AWS refuses it for that reason. */
async function unless(reason: string, answer: Promise<unknown>): Promise<unknown> {
  try {
    return await answer;
  } catch (error) {
    if (error instanceof CloudError && error.reason === reason) return null;
    throw error;
  }
}

/** The first value that is not as wanted, as a sentence's end. */
function differenceOf(found: Readonly<Record<string, unknown>>, wanted: Readonly<Record<string, unknown>>): string | null {
  const [key, value] = Object.entries(wanted).find(([name, one]) => !isDeepStrictEqual(found[name], one)) ?? [];
  return key === undefined ? null : `${key} is ${JSON.stringify(found[key])} instead of ${JSON.stringify(value)}`;
}

const page = z.object({
  NextToken: z.string().nullish(),
  Schedules: z.array(z.object({ Name: z.string(), CreationDate: z.number().optional() })),
});

/** All of an owner in a region. @throws CloudError */
export async function listSchedules(calls: AwsCalls, owner: string, call: AwsApiCall, signal: AbortSignal): Promise<Thing[]> {
  const prefix = prefixOf(owner);
  const things: Thing[] = [];
  let token: string | null | undefined;
  do {
    const query = new URLSearchParams({ MaxResults: '100', NamePrefix: prefix, ScheduleGroup: group });
    if (token != null) query.set('NextToken', token);
    const answer = await calls.scheduler(['ListSchedules', 'GET', `/schedules?${query}`], undefined, call, signal);
    const found = page.safeParse(answer);
    if (!found.success) {
      const message = `Cannot ${call.doing}: EventBridge Scheduler sent an unexpected list.`;
      throw new CloudError('E_CLOUD_ANSWER', message, { retry: true });
    }
    for (const { Name: name, CreationDate: born } of found.data.Schedules) {
      const [, run, expires] = /^-?([0-9a-f]{16})-(\d{1,12})$/.exec(name.slice(prefix.length)) ?? [];
      if (!name.startsWith(prefix) || run === undefined) continue;
      things.push({
        kind: 'schedule',
        id: name,
        place: call.region,
        run: `onejob-${run}`,
        host: null,
        state: 'running',
        offer: null,
        born: born === undefined ? null : Math.floor(born),
        expires: Number(expires),
      });
    }
    token = found.data.NextToken;
  } while (token != null && token !== '');
  return things;
}

export async function deleteSchedule(calls: AwsCalls, name: string, call: AwsApiCall, signal: AbortSignal): Promise<void> {
  await calls.scheduler(['DeleteSchedule', 'DELETE', schedulePath(name)], undefined, call, signal);
}
