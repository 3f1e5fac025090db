/** For tests of Google Cloud in virtual time: the stand-in, an adapter that speaks to it, and orders. */
import { randomBytes, randomUUID } from 'node:crypto';
import { setImmediate as turn } from 'node:timers/promises';
import { openGcp } from '../../src/clouds/gcp/cloud.ts';
import type { GcpConfig } from '../../src/clouds/gcp/config.ts';
import { usualImage } from '../../src/clouds/gcp/image.ts';
import type { CloudParts } from '../../src/clouds/kit/caller.ts';
import type { Cloud, HostPlan, Order } from '../../src/ports/cloud.ts';
import { createGcp, type GcpOptions, type GcpStandin } from '../standins/gcp/standin.ts';
import { type HandClock, handClock } from './core.ts';

export const never = new AbortController().signal;

export interface GcpWorld {
  readonly clock: HandClock;
  readonly gcp: GcpStandin;
  readonly cloud: Cloud;
  /** What a call comes to, with all the time that it waits for. */
  done<T>(call: Promise<T>): Promise<T>;
  /** ms pass. */
  pass(ms: number): Promise<void>;
  order(more?: Partial<Order>): Order;
  another(config: Partial<GcpConfig>, parts?: Partial<CloudParts>): Promise<Cloud>;
}

export const gcpConfig: GcpConfig = {
  name: 'google',
  type: 'gcp',
  project: 'acme-ci',
  region: 'us-central1',
  zones: null,
  credential: { kind: 'key', key: { kind: 'env', variable: 'GCP_KEY', expires: null } },
  subnetwork: 'projects/acme-ci/regions/us-central1/subnetworks/default',
  hasExternalAddress: true,
  deathDate: 'cloud',
  endpoint: 'https://compute.googleapis.com',
};

/** What a preflight examines, without its image. */
export const planOf = (type: string, spot: HostPlan['spot']): Omit<HostPlan, 'image'> => ({
  host: 'burst',
  types: [type],
  spot,
  disk: 50,
  max: 1,
  lifetime: 3_600_000,
  budget: null,
  prices: {},
});

export async function gcpWorld(options: Partial<GcpOptions> = {}, config: Partial<GcpConfig> = {}): Promise<GcpWorld> {
  const clock = handClock();
  const gcp = createGcp({ clock, ...options });
  const parts: CloudParts = {
    clock,
    fetch: gcp.fetch,
    log: { info() {}, warn() {}, error() {} },
    variables: { GCP_KEY: gcp.keyFile() },
    version: '1.2.3',
    run: async () => {
      throw new Error('no program here');
    },
  };
  const another = (changed: Partial<GcpConfig>, more: Partial<CloudParts> = {}): Promise<Cloud> =>
    openGcp({ ...gcpConfig, ...changed }, { ...parts, ...more });

  /** Whatever can happen without time has happened. */
  const settle = async (): Promise<void> => {
    for (let turns = 0; turns < 10; turns++) await turn();
  };

  return {
    clock,
    gcp,
    another,
    cloud: await another(config),
    async done(call) {
      let isOver = false;
      const over = (): void => {
        isOver = true;
      };
      call.then(over, over);
      for (let steps = 0; steps < 10_000; steps++) {
        await settle();
        if (isOver) break;
        clock.advance(clock.next() ?? 0);
      }
      return call;
    },
    async pass(ms) {
      const until = clock.now() + ms;
      await settle();
      for (let next = clock.next(); next !== null && clock.now() + next <= until; next = clock.next()) {
        clock.advance(next);
        await settle();
      }
      clock.advance(until - clock.now());
      await settle();
    },
    order: (more = {}) => {
      const born = Math.floor(gcp.now() / 1000);
      const offer = { type: 'n1-standard-4/nvidia-tesla-t4', spot: false, zone: 'us-central1-a' };
      return {
        owner: 'lab-7',
        run: `onejob-${randomBytes(8).toString('hex')}`,
        host: 'burst',
        born,
        expires: born + 6 * 3600,
        offer,
        token: randomUUID(),
        image: usualImage,
        userData: '#cloud-config\n',
        disk: 50,
        ...more,
      };
    },
  };
}
