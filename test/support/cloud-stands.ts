/** Stand-ins of clouds on a port of this host, as a config of onejob names them. */
import { gunzipSync } from 'node:zlib';
import { systemClock } from '../../src/system/system-clock.ts';
import { createAws, schedulerRole, testKey } from '../standins/aws/standin.ts';
import {
  azureCloud,
  client,
  clientSecret,
  location,
  securityGroup,
  subnet,
  subscription,
  tenant,
} from '../standins/azure-cloud/azure-cloud.ts';

export interface CloudStand extends AsyncDisposable {
  /** Its entry in `clouds`, as JSON. */
  readonly entry: string;
  /** Types for `hosts`, as JSON. */
  readonly types: string;
  /** The value of the variable that the entry names, `CLOUD_SECRET`. */
  readonly secret: string;
  /** How many requests for a machine came. */
  creations(): number;
  /** What exists, of any kind. */
  leftovers(): number;
}

/** What happens to machines there. `userData`: as cloud-init reads it. */
export interface StandHooks {
  onBoot(id: string, userData: string): void;
  onEnd(id: string): void;
}

const secret = { env: 'CLOUD_SECRET' };

async function aws({ onBoot, onEnd }: StandHooks): Promise<CloudStand> {
  const text = (userData: Buffer): string => (userData[0] === 0x1f ? gunzipSync(userData) : userData).toString();
  const stand = createAws({
    clock: systemClock,
    times: { boot: 200, end: 200 },
    hooks: { onBoot: ({ id, userData }) => onBoot(id, text(userData)), onEnd: ({ id }) => onEnd(id) },
  });
  const served = await stand.serve();
  const entry = {
    type: 'aws',
    region: 'us-west-2',
    endpoint: served.url,
    scheduler_role: schedulerRole,
    security_group: 'sg-0e00000000000000',
    credentials: { access_key_id: testKey.id, secret_access_key: secret },
  };
  return {
    entry: JSON.stringify(entry),
    types: JSON.stringify(['g6.xlarge', 'g5.xlarge']),
    secret: testKey.secret,
    creations: () => stand.calls.filter(({ action }) => action === 'RunInstances').length,
    leftovers: () => stand.leftovers().length,
    async [Symbol.asyncDispose]() {
      stand.close();
      await served[Symbol.asyncDispose]();
    },
  };
}

async function azure({ onBoot, onEnd }: StandHooks): Promise<CloudStand> {
  const timing = { allocate: 100, boot: 200, report: 100, removeMachine: 200, removeGroup: 300, late: 100 };
  const stand = azureCloud({ timing, retryAfter: 1 });
  stand.world.hooks.onBoot = ({ id, userData }) => onBoot(id, userData);
  stand.world.hooks.onEnd = ({ id }) => onEnd(id);
  const served = await stand.serve();
  const entry = {
    type: 'azure',
    subscription,
    location,
    subnet,
    security_group: securityGroup,
    endpoint: stand.url,
    login_endpoint: stand.url,
    credentials: { tenant, client, secret },
  };
  return {
    entry: JSON.stringify(entry),
    types: JSON.stringify(['Standard_NC4as_T4_v3', 'Standard_NC8as_T4_v3']),
    secret: clientSecret,
    creations: () => stand.calls.filter((call) => /^PUT \S+virtualMachines/.test(call)).length,
    leftovers: () => stand.world.groups.size + stand.world.resources.size,
    [Symbol.asyncDispose]: () => served[Symbol.asyncDispose](),
  };
}

/** By type of cloud. */
export const cloudStands = { aws, azure };
