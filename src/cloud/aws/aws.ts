/** AWS: machines of EC2, each with a schedule of EventBridge Scheduler that ends it. */
import { type Cloud, CloudError, type Offer, type Price } from '../cloud.ts';
import { type CloudParts, createCaller } from '../kit/caller.ts';
import { type Call, createCalls } from './calls.ts';
import type { AwsConfig } from './config.ts';
import { createMachine } from './create.ts';
import { createCredentials } from './credentials.ts';
import { deliverByTags } from './deliver.ts';
import { destroyThing } from './destroy.ts';
import { createImages, usualImage } from './image.ts';
import { listThings } from './list.ts';
import { createNetwork } from './network.ts';
import { preflight } from './preflight.ts';
import { createPrices } from './price.ts';
import { setSchedule } from './schedule.ts';
import { textAt } from './xml.ts';

/** Bytes of console output that EC2 keeps. */
const mostConsole = 64 * 1024;

export function createAws(config: AwsConfig, parts: CloudParts): Cloud {
  const { name, region } = config;
  const caller = createCaller(parts);
  const credentials = createCredentials(config.credentials, parts, caller);
  const calls = createCalls(config, caller, credentials);
  const images = createImages(calls, region, caller.now);
  const network = createNetwork(calls, config);
  const prices = createPrices(calls, region, caller.now);
  /** Of the account, once known. */
  let arn: string | null = null;
  let isAsking = false;

  /** Needs no permission. @throws CloudError */
  async function identity(signal: AbortSignal): Promise<string> {
    const call: Call = { doing: 'sign in', region, changes: false, permissions: [] };
    arn = textAt(await calls.sts('GetCallerIdentity', call, signal), 'GetCallerIdentityResult/Arn') ?? 'an unnamed identity';
    return arn;
  }

  return {
    name,
    type: 'aws',
    capabilities: { guestEnds: true, endRemoves: true },
    usualImage,
    skew: caller.skew,
    get credential() {
      return arn === null ? credentials.name : `${credentials.name} (${arn})`;
    },
    zones: network.zones,
    async create(order, signal) {
      if (config.deathDate === 'cloud' && config.schedulerRole === null) {
        throw new CloudError('E_CLOUD_REQUEST', `Cannot create a machine: cloud ${name} has no "scheduler_role".`, {
          hint: 'docs/cloud/aws.md says how to make one; "death_date: manager-only" does without.',
        });
      }
      const ami = await images.resolve(order.image, signal);
      const subnet = await network.subnetIn(order.offer.zone, signal);
      return createMachine(calls, config, order, { ami, subnet }, signal);
    },
    async setEnd(birth, made, signal) {
      if (config.deathDate === 'manager-only' || config.schedulerRole === null) return 'nothing at AWS (death_date: manager-only)';
      return setSchedule(calls, config.schedulerRole, birth, made, signal);
    },
    async list(owner, scope, signal) {
      // For receipts. No list waits for it: STS may be out of reach where EC2 is not.
      if (arn === null && !isAsking) {
        isAsking = true;
        void identity(signal)
          .catch(() => {})
          .finally(() => {
            isAsking = false;
          });
      }
      return listThings(calls, config, owner, scope, signal);
    },
    destroy: (thing, signal) => destroyThing(calls, thing, signal),
    async console({ id, place }, signal) {
      const call: Call = {
        ...{ doing: `read the console of machine ${id}`, region: place, changes: false, permissions: ['ec2:GetConsoleOutput'] },
      };
      const found = await calls.ec2('GetConsoleOutput', { InstanceId: id, Latest: true }, call, signal);
      return Buffer.from(textAt(found, 'output') ?? '', 'base64')
        .subarray(-mostConsole)
        .toString();
    },
    deliver: (made, text, signal) => deliverByTags(calls, made, text, signal),
    price: (offer: Pick<Offer, 'type' | 'spot'>, signal: AbortSignal): Promise<Price | null> => prices.price(offer, signal),
    preflight: (plan, signal) =>
      preflight({ config, calls, images, network, prices, identity, credential: credentials.name }, plan, signal),
  };
}
