/** The Azure adapter against its stand-in, in virtual time. */
import { createAzure } from '../../src/clouds/azure/azure.ts';
import type { AzureConfig } from '../../src/clouds/azure/config.ts';
import type { CloudParts } from '../../src/clouds/kit/caller.ts';
import { type Cloud, CloudError, type Order } from '../../src/ports/cloud.ts';
import {
  type AzureCloudOptions,
  azureCloud,
  client,
  clientSecret,
  location,
  securityGroup,
  subnet,
  subscription,
  tenant,
} from '../standins/azure-cloud/azure-cloud.ts';
import { handClock } from './core.ts';

export const patient = new AbortController().signal;
export const run = 'onejob-0123456789abcdef';
export const owner = 'lab-1';

export const azureConfig: AzureConfig = {
  name: 'lab',
  type: 'azure',
  subscription,
  location,
  subnet,
  securityGroup,
  publicIp: true,
  deathDate: 'cloud',
  credentials: { kind: 'application', tenant, client, secret: { kind: 'env', variable: 'AZURE_SECRET', expires: null } },
  endpoint: 'https://management.azure.com',
  loginEndpoint: 'https://login.microsoftonline.com',
};

const quickKey = `ssh-rsa ${Buffer.concat([Buffer.from([0, 0, 0, 7]), Buffer.from('ssh-rsa'), Buffer.alloc(270)]).toString('base64')}`;

export interface AzureWorldOptions extends Omit<AzureCloudOptions, 'clock'> {
  readonly config?: Partial<AzureConfig>;
  readonly run?: CloudParts['run'];
  readonly variables?: CloudParts['variables'];
}

export function azureWorld({
  config = {},
  run: runs,
  variables = { AZURE_SECRET: clientSecret },
  ...options
}: AzureWorldOptions = {}) {
  const clock = handClock();
  const azure = azureCloud({ clock, ...options });
  const cloud = createAzure(
    { ...azureConfig, ...config },
    {
      clock,
      fetch: azure.fetch,
      log: silent,
      variables,
      version: '1.2.3',
      ...(runs !== undefined && { run: runs }),
    },
    // Making one takes longer than everything else here.
    async () => quickKey,
  );
  const calm = async (): Promise<void> => {
    for (let turn = 0; turn < 8; turn += 1) await new Promise((resolve) => setImmediate(resolve));
  };
  return {
    clock,
    azure,
    cloud,
    world: azure.world,
    /** Lets time pass until the promise is settled. */
    async settled<T>(promise: Promise<T>): Promise<T> {
      let isOver = false;
      const over = (): void => {
        isOver = true;
      };
      promise.then(over, over);
      for (;;) {
        await calm();
        if (isOver) return promise;
        const next = clock.next();
        if (next !== null) clock.advance(next);
      }
    },
    async pass(ms: number): Promise<void> {
      const end = clock.now() + ms;
      await calm();
      for (let next = clock.next(); next !== null && clock.now() + next <= end; next = clock.next()) {
        clock.advance(next);
        await calm();
      }
      clock.advance(end - clock.now());
      await calm();
    },
    order: (more: Partial<Order> = {}): Order => orderOf(cloud, Math.floor(azure.world.now() / 1000), more),
  };
}

/** `now`: seconds since the epoch by the cloud's clock. */
export function orderOf({ usualImage: image }: Pick<Cloud, 'usualImage'>, now: number, more: Partial<Order> = {}): Order {
  return {
    owner,
    run,
    host: 'burst',
    born: now,
    expires: now + 6 * 3600,
    image,
    disk: 128,
    offer: { type: 'Standard_NC4as_T4_v3', spot: false, zone: null },
    token: '0b8c0c26-94f5-4e0f-8f5a-0f3f0c9d8e7f',
    userData: '#cloud-config\nruncmd: [ "true" ]\n',
    ...more,
  };
}

/** The error of a call. @throws Error if there is none */
export async function cloudErrorOf(promise: Promise<unknown>): Promise<CloudError> {
  const error = await promise.then(
    () => null,
    (found: unknown) => found,
  );
  if (error instanceof CloudError) return error;
  throw error ?? new Error('It succeeded.');
}

export const silent: CloudParts['log'] = { error() {}, warn() {}, info() {} };
