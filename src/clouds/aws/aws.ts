/** AWS: machines of EC2, each with a schedule of EventBridge Scheduler that ends it. */
import { type Cloud, CloudError, type Offer, type Price } from '../../ports/cloud.ts';
import { type CloudParts, createCaller } from '../kit/caller.ts';
import { ExpiringCache } from '../kit/expiring-cache.ts';
import { AwsCalls } from './calls.ts';
import type { AwsConfig } from './config.ts';
import { createMachine } from './create.ts';
import { createCredentials } from './credentials.ts';
import { deliverByTags } from './deliver.ts';
import { createImages, usualImage } from './image.ts';
import { createNetwork } from './network.ts';
import { preflight } from './preflight.ts';
import { setSchedule } from './schedule.ts';
import { awsPrice } from './sizes.ts';
import { destroyThing, listAwsThings } from './things.ts';
import { textAt } from './xml.ts';

/** Bytes of console output that EC2 keeps. */
const mostConsole = 64 * 1024;
/** ms for which a price, or the lack of one, counts. */
const day = 86_400_000;

export function createAws(config: AwsConfig, parts: CloudParts): Cloud {
  const { name, region } = config;
  const caller = createCaller(parts);
  const credentials = createCredentials(config.credentials, parts, caller);
  const calls = new AwsCalls(config, caller, credentials);
  const images = createImages(calls, region, caller.now);
  const network = createNetwork(calls, config);
  const prices = new ExpiringCache<Price | null>(caller.now);
  const identities = new ExpiringCache<string>(caller.now);
  /** Of the account, once known. */
  let arn: string | null = null;

  /** Needs no permission. @throws CloudError */
  const identity = async (signal: AbortSignal): Promise<string> => {
    const ask = async (shared: AbortSignal) => {
      const found = await calls.sts('GetCallerIdentity', { doing: 'sign in', region, needs: [] }, shared);
      const value = textAt(found, 'GetCallerIdentityResult/Arn') ?? 'an unnamed identity';
      return { value, until: 0 };
    };
    arn = await identities.get('', ask, signal);
    return arn;
  };

  /** The highest of the region's zones, since nobody knows yet which it will be; null: EC2 does not say. */
  async function spotPrice(type: string, signal: AbortSignal): Promise<Price | null> {
    // From now on: the price that holds.
    const StartTime = new Date(caller.now()).toISOString().replace(/\.\d+/, '');
    const params = { InstanceType: [type], ProductDescription: ['Linux/UNIX'], StartTime };
    const call = { doing: `look at the spot price of ${type}`, region };
    const found = await calls.ec2List('DescribeSpotPriceHistory', 'spotPriceHistorySet', params, call, signal).catch((error) => {
      if (error instanceof CloudError) return [];
      throw error;
    });
    const all = found.map((one) => Number(textAt(one, 'spotPrice'))).filter((price) => price > 0);
    return all.length === 0 ? null : { perHour: Math.max(...all), asOf: StartTime.slice(0, 10) };
  }

  /** Spot falls back to the price on demand, which it does not exceed. */
  async function price({ type, spot }: Pick<Offer, 'type' | 'spot'>, signal: AbortSignal): Promise<Price | null> {
    if (!spot) return awsPrice(type);
    const ask = async (shared: AbortSignal) => ({ value: await spotPrice(type, shared), until: caller.now() + day });
    return (await prices.get(type, ask, signal)) ?? awsPrice(type);
  }

  return {
    name,
    type: 'aws',
    capabilities: { holdsEnd: config.deathDate === 'cloud', guestEnds: true, endRemoves: true },
    usualImage,
    skew: caller.skew,
    get credential() {
      return arn === null ? credentials.name : `${credentials.name} (${arn})`;
    },
    zones: network.zones,
    async create(order, signal) {
      if (config.deathDate === 'cloud' && config.schedulerRole === null) {
        throw new CloudError('E_CLOUD_REQUEST', `Cannot create a machine: cloud ${name} has no "scheduler_role".`, {
          hint: 'docs/cloud/aws.md says how to make one; or set "death_date: manager-only", which needs none.',
        });
      }
      const ami = await images(order.image, signal);
      const subnet = await network.subnetIn(order.offer.zone, signal);
      return createMachine(calls, config, order, { ami, subnet }, signal);
    },
    async setEnd(birth, made, signal) {
      if (config.deathDate === 'manager-only' || config.schedulerRole === null) return 'nothing at AWS (death_date: manager-only)';
      return setSchedule(calls, config.schedulerRole, birth, made, signal);
    },
    async list(owner, scope, signal) {
      // For receipts. No list waits for it: STS may be out of reach where EC2 is not.
      if (arn === null) identity(signal).catch(() => {});
      return listAwsThings(calls, config, owner, scope, signal);
    },
    destroy: (thing, signal) => destroyThing(calls, thing, signal),
    async console({ id, place }, signal) {
      const call = { doing: `read the console of machine ${id}`, region: place };
      const found = await calls.ec2('GetConsoleOutput', { InstanceId: id, Latest: true }, call, signal);
      return Buffer.from(textAt(found, 'output') ?? '', 'base64')
        .subarray(-mostConsole)
        .toString();
    },
    deliver: (made, text, signal) => deliverByTags(calls, made, text, signal),
    price,
    preflight: (plan, signal) =>
      preflight({ config, calls, images, network, price, identity, credential: credentials.name }, plan, signal),
  };
}
