/** A host with everything in it that `/metrics` can report, over a real store and real devices' records; the loop is its slots. */

import { emptySlot, type Slot } from '../../src/core/slot.ts';
import { Pause } from '../../src/manager/loop/pause.ts';
import type { Pool } from '../../src/manager/loop/pool.ts';
import { createMetrics, type Metrics } from '../../src/manager/metrics/metrics.ts';
import { type Reading, type ReadingParts, readings } from '../../src/manager/metrics/readings.ts';
import type { ServiceJob } from '../../src/ports/service-job.ts';
import { poolLike } from '../kit/pool.ts';
import { DeviceHost, devicePool } from './device-host.ts';
import { gpu } from './devices.ts';

export interface MetricsWorldOptions {
  /** Default: `lab`. The first one has the devices. */
  readonly pools?: readonly string[];
  /** Slots of each pool that has no devices; default 2. */
  readonly slots?: number;
  /** Default 2. */
  readonly cards?: number;
  /** Job of a slot's agent. */
  readonly jobOf?: (key: string) => string;
}

export class MetricsWorld implements Disposable {
  readonly host: DeviceHost;
  readonly metrics: Metrics;
  pools: readonly Pool[];
  readonly pause = new Pause();
  readonly cards: readonly string[];
  /** Jobs of the service `ci`. */
  serviceJobs: ServiceJob[] = [];
  readonly waitingSince = new Map<string, number>();
  /** Jobs that wait in pools that the config no longer has. */
  readonly stranded = new Map<string, number>();
  problems: string[] = [];
  readonly #state: ReadingParts;

  constructor({ pools = ['lab'], slots = 2, cards = 2, jobOf = (key) => `job-${key}` }: MetricsWorldOptions = {}) {
    const [lab = 'lab'] = pools;
    this.host = new DeviceHost({ pools: [devicePool(lab, { agents: cards })] });
    this.cards = Array.from({ length: cards }, (_, n) => `GPU-5eed0000-0000-4000-8000-${n.toString(16).padStart(12, '0')}`);
    this.host.sees(this.cards.map((uuid, n) => gpu(n, { uuid })));
    this.pools = pools.map((name) => poolNamed(name));
    for (const uuid of this.cards) {
      const key = this.host.registry.slotOf(uuid);
      if (key !== null) this.host.runs(key, `agent-${key}`);
    }
    const rest = pools.slice(1).flatMap((pool) => Array.from({ length: slots }, (_, n) => busy(`${pool}/${n + 1}`)));
    this.host.slots = [...this.host.slots, ...rest].map((slot) =>
      slot.agent.kind === 'busy' ? { ...slot, agent: { ...slot.agent, job: jobOf(slot.key) } } : slot,
    );
    const { host, pause } = this;
    const poolsNow = () => this.pools;
    this.#state = {
      reconciler: {
        get pools() {
          return poolsNow();
        },
        get slots() {
          return host.slots;
        },
        pause,
      },
      devices: host.devices,
      services: [{ serviceJobs: () => this.serviceJobs }],
      waitingSince: () => this.waitingSince,
      stranded: () => ({ pools: new Set(this.pools.map(({ config }) => config.name)), waiting: this.stranded }),
    };
    this.metrics = createMetrics({
      clock: host.clock,
      store: host.store,
      version: '1.2.3',
      serviceNames: ['ci'],
      problems: () => this.problems,
      state: () => this.#state,
    });
  }

  /** The config no longer has the pool, and each of its slots is one until it is empty. */
  leaves(name: string): void {
    const left = this.host.slots.filter(({ key }) => key.startsWith(`${name}/`));
    const others = this.pools.filter(({ config }) => config.name !== name);
    this.pools = [...others, ...left.map(({ key }) => poolNamed(`${key} (leaving)`, true))];
  }

  /** What the gauges say now. */
  readings(): Reading[] {
    return readings(this.#state, this.host.wall);
  }

  /** A job that ended now, after a minute in the queue and two at work. */
  ended(
    job: string,
    kind: 'passed' | 'cancelled' | 'code' | 'infrastructure' | 'unknown',
    pool = 'lab',
    devices: string[] = [],
  ): void {
    const { store, wall } = this.host;
    const ending = { result: null, exit: null, memoryLimited: false, ownRecipe: false, ownImage: false };
    const verdict = { kind, why: 'it was so', evidence: [] };
    const about = { job, service: 'own', pool, agent: `agent-${job}`, image: null, devices };
    store.transaction({ durable: false }, () =>
      store.outcomes.save({ ...about, verdict, ending, wait: 60_000, run: 120_000, endedAt: wall }),
    );
  }

  proved(verdict: string, took: number, agent = 'a'): void {
    const { store, wall } = this.host;
    const [device = ''] = this.cards;
    store.transaction({ durable: false }, () =>
      store.proofs.add({ device, slot: 'lab/1', agent, verdict, evidence: {}, took, at: wall }),
    );
  }

  /** Everything of which there can be a series. */
  async fill(): Promise<void> {
    const { host, metrics } = this;
    metrics.called('ci', 'ok');
    for (const pool of this.pools) this.ended(`done-${pool.config.name}`, 'passed', pool.config.name);
    this.proved('clean', 250);
    this.pools[0]?.pause.hold('devices');
    const [slot] = host.slots;
    if (slot !== undefined) metrics.slotChanged(slot, { ...slot, agent: { kind: 'free' }, standby: standing });
    host.devices.use.asked();
    host.usePrinted = this.cards.map((uuid) => `${uuid}, 512, 80, 44, 120.5, 1410, 1215, 0x0\n`).join('');
    await host.advance(1_000);
  }

  text(): Promise<string> {
    return this.metrics.read();
  }

  [Symbol.dispose](): void {
    this.metrics.close();
    this.host[Symbol.dispose]();
  }
}

export const standing: Slot['standby'] = { kind: 'standby', agent: 'next', reserved: null, fingerprint: 'f', since: 0 };

function poolNamed(name: string, leaving = false): Pool {
  const capabilities = { binds: 'late' };
  return poolLike(devicePool(name, { service: 'own' }), {
    service: { name: 'own', capabilities, jobs: { next: () => null }, waiting: () => 3 },
    runtime: { name: 'sim', capabilities: { images: true } },
    leaving,
  });
}

function busy(key: string): Slot {
  const slot = emptySlot({ key, runtime: 'sim', grace: 0 });
  return { ...slot, standby: standing, agent: { kind: 'busy', agent: `agent-${key}`, job: key, since: 0, due: null } };
}
