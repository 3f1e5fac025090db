/** Removes one thing at a time: one bad id in a call would save all others in it. */
import { CloudError, type Thing, type ThingKind } from '../cloud.ts';
import type { Call, Calls, Params } from './calls.ts';
import { deleteSchedule } from './schedule.ts';

/** By kind: the action of EC2, and its parameter. */
const actions: Readonly<Partial<Record<ThingKind, readonly [action: string, params: (id: string) => Params]>>> = {
  machine: ['TerminateInstances', (id) => ({ InstanceId: [id] })],
  'spot-request': ['CancelSpotInstanceRequests', (id) => ({ SpotInstanceRequestId: [id] })],
  disk: ['DeleteVolume', (id) => ({ VolumeId: id })],
  interface: ['DeleteNetworkInterface', (id) => ({ NetworkInterfaceId: id })],
  address: ['ReleaseAddress', (id) => ({ AllocationId: id })],
};

/** Codes that say that there is no such thing. */
export const absent = /NotFound$|^InvalidSpotInstanceRequestID|^ResourceNotFoundException$/;

/** What `ec2:…` calls a kind needs; used by the preflight too. */
export function removalOf(kind: ThingKind, id: string): { readonly action: string; readonly params: Params } | null {
  const found = actions[kind];
  return found === undefined ? null : { action: found[0], params: found[1](id) };
}

/** @throws CloudError, also if something still uses the thing: then it goes later */
export async function destroyThing(
  calls: Calls,
  { kind, id, place }: Pick<Thing, 'kind' | 'id' | 'place'>,
  signal: AbortSignal,
): Promise<void> {
  const call: Call = { doing: `remove ${kind} ${id}`, region: place, changes: true, permissions: [] };
  try {
    if (kind === 'schedule') return await deleteSchedule(calls, id, { ...call, permissions: ['scheduler:DeleteSchedule'] }, signal);
    const removal = removalOf(kind, id);
    if (removal === null) throw new CloudError('E_CLOUD_REQUEST', `Cannot ${call.doing}: AWS has no such kind.`);
    await calls.ec2(removal.action, removal.params, { ...call, permissions: [`ec2:${removal.action}`] }, signal);
  } catch (error) {
    if (!(error instanceof CloudError) || error.reason === null || !absent.test(error.reason)) throw error;
  }
}
