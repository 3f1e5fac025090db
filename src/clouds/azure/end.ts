/**
 * The machine's end of life, held by Azure: Microsoft.ComputeSchedule deallocates it at a time, up to 14 days ahead (REST API
 * 2025-05-01). That ends the price of the machine; its disk and address stay until its group is removed.
 */
import { hash } from 'node:crypto';
import { z } from 'zod';
import { brief } from '../../http/exchange.ts';
import { type Birth, CloudError, type Made } from '../../ports/cloud.ts';
import type { Arm, ArmCall } from './arm.ts';
import type { AzureConfig } from './config.ts';

/** ms; the longest time ahead. */
export const longestAhead = 14 * 86_400_000;
/** ms between the end that was asked for and the one that Azure holds. */
const tolerance = 60_000;

const operation = z.object({
  resourceId: z.string().nullish(),
  errorCode: z.string().nullish(),
  errorDetails: z.string().nullish(),
  operation: z
    .object({
      operationId: z.string(),
      opType: z.string().nullish(),
      deadline: z.string().nullish(),
      state: z.string().nullish(),
      resourceOperationError: z.object({ errorCode: z.string().nullish(), errorDetails: z.string().nullish() }).nullish(),
    })
    .nullish(),
});
const results = z.object({ results: z.array(operation).nullish() });

/** Azure will do it, or does it now. It may also be waiting for nothing but its time. */
const held: ReadonlySet<string> = new Set(['PendingScheduling', 'Scheduled', 'PendingExecution', 'Executing']);

/** @throws CloudError E_CLOUD_END if it is not confirmed; others if Azure does not answer */
export async function setMachineEnd(
  { config, arm, now }: { readonly config: AzureConfig; readonly arm: Arm; now(): number },
  { run, expires }: Birth,
  { id }: Made,
  signal: AbortSignal,
): Promise<string> {
  if (config.deathDate === 'manager-only') return 'nothing at Azure (death_date: manager-only)';
  const at = new Date(expires * 1000).toISOString();
  const doing = `have Azure deallocate ${run} at ${at}`;
  const fail = (why: string, hint: string | null = null): CloudError =>
    new CloudError('E_CLOUD_END', `Cannot ${doing}: ${why}.`, { hint, retry: true });
  const ahead = expires * 1000 - now();
  if (ahead > longestAhead) throw fail('that is more than 14 days ahead', 'Write a shorter "lifetime".');
  if (ahead <= 0) throw fail("that time has passed by Azure's clock");

  const path = `/subscriptions/${config.subscription}/providers/Microsoft.ComputeSchedule/locations/${config.location}`;
  // The same for the same end, so that a second request can be told from another one.
  const digits = hash('sha256', `${run} ${expires}`);
  const correlationid = digits.replace(/^(.{8})(.{4}).(.{3}).(.{3})(.{12}).*$/, '$1-$2-5$3-a$4-$5');
  const submit: ArmCall = {
    method: 'POST',
    path: `${path}/virtualMachinesSubmitDeallocate`,
    version: 'schedule',
    needs: 'setEnd',
    doing,
    body: {
      schedule: { deadline: at, timezone: 'UTC', deadlineType: 'InitiateAt' },
      executionParameters: { retryPolicy: { retryCount: 5, retryWindowInMinutes: 60 } },
      resources: { ids: [id] },
      correlationid,
    },
  };
  const confirmed = async (call: ArmCall) => {
    const answer = await arm.ask(call, signal);
    if (!answer.ok) {
      const refused = arm.refuse(call, answer);
      // Not an answer about the end: the caller asks again.
      if (refused.code === 'E_CLOUD_THROTTLED' || refused.code === 'E_CLOUD_UNREACHABLE') throw refused;
      const { message, hint, reason } = refused;
      throw new CloudError('E_CLOUD_END', message, { hint, reason, retry: true });
    }
    const [found, ...more] = arm.bodyAs(results, call, answer).results ?? [];
    if (found === undefined || more.length > 0)
      throw fail(`Azure answered with ${more.length === 0 ? 'no' : 'more than one'} operation`);
    const inner = found.operation?.resourceOperationError;
    const code = found.errorCode ?? inner?.errorCode ?? null;
    if (code !== null && code !== '')
      throw fail(`Azure answered ${code}: ${brief(found.errorDetails ?? inner?.errorDetails ?? '')}`);
    if (found.operation == null) throw fail('Azure answered without an operation');
    return { ...found.operation, resource: found.resourceId ?? null };
  };
  const { operationId } = await confirmed(submit);
  const status: ArmCall = {
    method: 'POST',
    path: `${path}/virtualMachinesGetOperationStatus`,
    version: 'schedule',
    needs: 'readEnd',
    doing,
    body: { operationIds: [operationId], correlationid },
  };
  const read = await confirmed(status);
  const state = read.state ?? 'no state';
  const deadline = Date.parse(read.deadline ?? '');
  if (read.operationId !== operationId)
    throw fail(`Azure showed operation ${brief(read.operationId)} instead of ${brief(operationId)}`);
  if (!held.has(state)) throw fail(`Azure says that its operation is "${brief(state)}"`);
  if (read.opType != null && read.opType !== 'Deallocate')
    throw fail(`Azure holds "${brief(read.opType)}" instead of a deallocation`);
  if (read.resource !== null && read.resource.toLowerCase() !== id.toLowerCase())
    throw fail('Azure holds the end of another machine');
  if (Number.isNaN(deadline) || deadline > expires * 1000 + tolerance)
    throw fail(`Azure holds ${Number.isNaN(deadline) ? 'no time' : new Date(deadline).toISOString()}`);
  return `Microsoft.ComputeSchedule operation ${operationId} at ${new Date(deadline).toISOString()}`;
}
