/** What a list over all zones contains, as things of the owner. */
import { type Offer, type Thing, type ThingKind, tagKeys } from '../../ports/cloud.ts';
import { told } from '../kit/things.ts';
import { typeText } from './machine-type.ts';
import { needs } from './permissions.ts';
import { type Instance, instance, type Leftover, lastOf, leftover, type Page } from './wire.ts';

/** Instances in a life that has no end of its own are not `ending`, so that they are destroyed again. */
const states: Readonly<Record<string, Thing['state']>> = {
  PENDING: 'starting',
  PROVISIONING: 'starting',
  STAGING: 'starting',
  RUNNING: 'running',
  REPAIRING: 'running',
  PENDING_STOP: 'running',
  STOPPING: 'ending',
  DEPROVISIONING: 'ending',
  SUSPENDING: 'stopped',
  SUSPENDED: 'stopped',
  STOPPED: 'stopped',
  TERMINATED: 'stopped',
};

const leftoverStates: Readonly<Record<string, Thing['state']>> = {
  CREATING: 'starting',
  RESERVING: 'starting',
  DELETING: 'ending',
};

/** What is listed: at which key of a scope, as what kind, what is read of it, and what listing and removing it needs. */
export const lists = [
  {
    what: 'instances',
    kind: 'machine',
    needs: needs.instances,
    remove: needs.deleteInstance,
    fields:
      'name,status,labels,machineType,guestAccelerators,scheduling(provisioningModel,instanceTerminationAction),resourceStatus/scheduling',
  },
  { what: 'disks', kind: 'disk', needs: needs.disks, remove: needs.deleteDisk, fields: 'name,status,labels' },
  { what: 'addresses', kind: 'address', needs: needs.addresses, remove: needs.deleteAddress, fields: 'name,status,labels' },
] as const;
export const instanceFields = lists[0].fields;

/**
 * Things of one scope with the owner's label. Whatever the filter of the list did, others are left out. An entry that cannot be read
 * goes to `unknown`, since it may be ours.
 */
export function thingsOf(
  { what, kind }: (typeof lists)[number],
  scope: string,
  part: Page['items'][string],
  owner: string,
  unknown: string[],
): Thing[] {
  const entries = part[what];
  if (!Array.isArray(entries)) return [];
  return entries.flatMap((entry: unknown): Thing[] => {
    const found = (kind === 'machine' ? instance : leftover).safeParse(entry);
    if (!found.success) {
      unknown.push(`${what} in ${lastOf(scope)} (an entry that cannot be read)`);
      return [];
    }
    return found.data.labels[tagKeys.owner] === owner ? [thingOf(kind, lastOf(scope), found.data)] : [];
  });
}

function thingOf(kind: ThingKind, place: string, found: Instance | Leftover): Thing {
  const { name, labels, status } = found;
  return {
    kind,
    id: name,
    place,
    ...told(labels),
    state: (kind === 'machine' ? states : leftoverStates)[status] ?? 'running',
    offer: 'scheduling' in found ? offerOf(found, place) : null,
  };
}

function offerOf({ machineType: machine, guestAccelerators: [first], scheduling }: Instance, zone: string): Offer | null {
  if (machine === undefined) return null;
  // GPUs that are built in are listed as accelerators too.
  const attached =
    first === undefined || !machine.startsWith('n1-') ? null : { type: first.acceleratorType, count: first.acceleratorCount };
  return { type: typeText({ machine, attached }), spot: scheduling.provisioningModel === 'SPOT', zone };
}
