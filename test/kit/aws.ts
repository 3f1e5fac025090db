/** An adapter of AWS at its stand-in, in virtual time. */
import { randomBytes, randomUUID } from 'node:crypto';
import { createAws as createAdapter } from '../../src/clouds/aws/aws.ts';
import type { AwsConfig } from '../../src/clouds/aws/config.ts';
import { usualImage } from '../../src/clouds/aws/image.ts';
import type { CloudParts } from '../../src/clouds/kit/caller.ts';
import { type Cloud, CloudError, type Order } from '../../src/ports/cloud.ts';
import { type AwsOptions, createAws, schedulerRole, testKey } from '../standins/aws/standin.ts';
import { handClock } from './core.ts';

export const owner = 'box-1';
const silent = { info: () => {}, warn: () => {}, error: () => {} };

export const awsConfig: AwsConfig = {
  name: 'aws',
  type: 'aws',
  region: 'us-west-2',
  regions: null,
  credentials: { kind: 'usual' },
  subnets: null,
  securityGroup: null,
  schedulerRole,
  deathDate: 'cloud',
  endpoint: null,
};

export interface AwsBenchOptions extends Omit<AwsOptions, 'clock'> {
  readonly config?: Partial<AwsConfig>;
  readonly parts?: Partial<CloudParts>;
}

export function awsBench({ config = {}, parts = {}, ...options }: AwsBenchOptions = {}) {
  const clock = handClock(Date.UTC(2027, 0, 1));
  const aws = createAws({ clock, ...options });
  const variables = { AWS_ACCESS_KEY_ID: testKey.id, AWS_SECRET_ACCESS_KEY: testKey.secret };
  const cloud: Cloud = createAdapter(
    { ...awsConfig, ...config },
    { clock, fetch: aws.fetch, log: silent, variables, version: '0.0.0', ...parts },
  );
  const never = new AbortController().signal;
  return {
    clock,
    aws,
    cloud,
    never,
    /** What to make next. */
    order(of: Partial<Order> = {}): Order {
      const born = Math.floor((clock.wall() + (cloud.skew() ?? 0)) / 1000);
      return {
        owner,
        run: `onejob-${randomBytes(8).toString('hex')}`,
        host: 'burst',
        born,
        expires: born + 3600,
        offer: { type: 'g4dn.xlarge', spot: false, zone: null },
        token: randomUUID(),
        image: usualImage,
        userData: '#cloud-config\n{}\n',
        disk: 100,
        ...of,
      };
    },
    list: (of = owner) => cloud.list(of, { places: [], everywhere: false }, never),
    everywhere: (of = owner) => cloud.list(of, { places: [], everywhere: true }, never),
    /** What a call fails with. */
    async error(call: Promise<unknown>) {
      const found = await call.then(
        (value) => new Error(`it succeeded: ${JSON.stringify(value)}`),
        (error: unknown) => error,
      );
      if (found instanceof CloudError) return found;
      throw found;
    },
  };
}

/** Counts calls: signatures are made in threads, which take time that a clock by hand does not know of. It must not advance meanwhile. */
export function counted(cloud: Cloud) {
  let calls = 0;
  const over = (): void => {
    calls -= 1;
  };
  const counting = new Proxy(cloud, {
    get(target, key) {
      const value: unknown = Reflect.get(target, key);
      if (typeof value !== 'function') return value;
      return (...given: unknown[]) => {
        const result: unknown = value(...given);
        if (!(result instanceof Promise)) return result;
        calls += 1;
        result.then(over, over);
        return result;
      };
    },
  });
  return { cloud: counting, isBusy: () => calls > 0 };
}
