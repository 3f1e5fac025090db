/** Slots for measurements: the CPUs that only they have, a cool card with locked clocks, and what their jobs' records say of it. */
import { join } from 'node:path';
import { attempt, toFailure } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import type { BenchmarkConfig, PoolConfig } from '../../config/config.ts';
import type { VarianceView } from '../../contract/variance.ts';
import type { Clock } from '../../core/clock.ts';
import type { AgentId, DeviceId, Slot } from '../../core/slot.ts';
import { readText } from '../../gpu/pci.ts';
import type { ToolRunner } from '../../gpu/run.ts';
import { cpusNear } from '../../gpu/topology.ts';
import type { Runtime } from '../../ports/runtime.ts';
import { poolOf, type SlotDevices } from '../loop/pool.ts';
import type { Reconciler } from '../loop/reconciler.ts';
import { ClockLocks } from './benchmark-clocks.ts';
import { Cooling } from './benchmark-cooling.ts';
import { BenchmarkCpus } from './benchmark-cpus.ts';
import type { DeviceUses } from './device-use.ts';
import type { DeviceRegistry } from './registry.ts';
import type { Verifier } from './verification.ts';

interface BenchmarksParts {
  readonly clock: Clock;
  readonly log: Log;
  readonly pools: readonly PoolConfig[];
  readonly reconciler: Reconciler;
  readonly registry: DeviceRegistry;
  readonly runtime: (name: string) => Runtime;
  readonly use: DeviceUses;
  readonly runner: ToolRunner;
  /** `/sys` of the host. */
  readonly sys: string;
}

export class Benchmarks {
  readonly #parts: BenchmarksParts;
  readonly #startedAt: number;
  readonly #closed = new AbortController();
  readonly #locks: ClockLocks;
  /** null if no pool is for measurements. */
  readonly #cpus: BenchmarkCpus | null;
  readonly #cooling: Cooling | null;

  constructor(parts: BenchmarksParts) {
    const { clock, pools, registry, runner } = parts;
    this.#parts = parts;
    this.#startedAt = clock.now();
    this.#locks = new ClockLocks({ clock, runner, known: registry.known });
    const isUsed = pools.some(({ benchmark }) => benchmark !== undefined);
    this.#cpus = isUsed ? this.#createCpus() : null;
    this.#cooling = isUsed ? this.#createCooling() : null;
  }

  isMeasuring(key: string): boolean {
    return this.#configOf(key) !== undefined;
  }

  /** What the loop asks about slots, with what measurements wait for. */
  get slotDevices(): SlotDevices {
    const { slotDevices } = this.#parts.registry;
    const whyNot = (key: string) =>
      this.isMeasuring(key) ? (this.#cpus?.whyNot(key) ?? this.#cooling?.whyNot(key) ?? null) : null;
    return { ...slotDevices, heldBack: (key) => slotDevices.heldBack(key) ?? whyNot(key) };
  }

  /** After a look: devices may have moved to other slots. */
  looked(): void {
    void this.#cpus?.update();
    this.#cooling?.check();
  }

  /** After a sample. */
  measured(): void {
    this.#cooling?.check();
  }

  slotChanged(slot: Slot): void {
    if (this.#cpus !== null && this.#isHere(slot)) this.#cpus.slotChanged(slot);
    if (this.isMeasuring(slot.key)) this.#cooling?.slotChanged(slot);
  }

  /** The only CPUs for a sandbox of this host that is made now; null: all. `numa`: near its devices. */
  async cpusFor({ key, devices }: Slot, agent: AgentId, numa: boolean): Promise<string | null> {
    const near = numa && devices.length > 0 ? await this.#near(devices) : null;
    return this.#cpus === null ? near : this.#cpus.take(key, agent, near);
  }

  /** Locks the clocks that the slot's agents need. @throws OnejobError E_CLOCKS */
  async lock({ key, devices: [uuid] }: Slot, agent: AgentId, signal: AbortSignal): Promise<void> {
    const mhz = this.#configOf(key)?.clock ?? null;
    if (mhz !== null && uuid !== undefined) await this.#locks.lock(uuid, agent, mhz, signal);
  }

  reset: ClockLocks['reset'] = (uuid, signal) => this.#locks.reset(uuid, signal);

  /** Sets back clocks that an earlier manager has locked for agents that are gone. To be called before any device is given to a slot. */
  async resetLeft(verifier: Pick<Verifier, 'resetClocks'>): Promise<void> {
    const { log, reconciler } = this.#parts;
    const { signal } = this.#closed;
    const isAlive = (agent: AgentId): boolean => {
      const lane = reconciler.slotOf(agent)?.agent;
      return lane !== undefined && lane.kind !== 'free' && lane.kind !== 'proving' && lane.agent === agent;
    };
    for (const { uuid, agent } of this.#locks.left) {
      if (isAlive(agent)) continue;
      await verifier.resetClocks(uuid, signal).catch((error: unknown) => {
        if (!signal.aborted) log.error('clocks not set back', { device: uuid, reason: toFailure(error).message });
      });
    }
  }

  /** How the card was during the agent's measurement; null: nobody has asked the card, or the slot is for other jobs. */
  varianceOf({ key, devices: [uuid = ''], agent: lane }: Slot, agent: AgentId): VarianceView | null {
    if (!this.isMeasuring(key)) return null;
    const locked = this.#parts.registry.known.get(uuid)?.locked ?? null;
    const isAdopted = 'since' in lane && lane.since < this.#startedAt;
    const notes = [
      locked === null ? null : `its clock was locked at ${locked.mhz} MHz`,
      isAdopted ? 'onejob was restarted meanwhile, and knows nothing of the time before' : null,
      this.#cooling?.noteOf(key) ?? null,
    ];
    return this.#parts.use.varianceOf(
      agent,
      notes.filter((note) => note !== null),
    );
  }

  close(): void {
    this.#closed.abort();
    this.#cooling?.close();
  }

  #createCpus(): BenchmarkCpus {
    const { reconciler, registry, sys } = this.#parts;
    return new BenchmarkCpus({
      slots: () => reconciler.slots.filter((slot) => this.#isHere(slot)),
      measuring: () =>
        registry.partition.slots.flatMap(({ key, devices }) => {
          const config = this.#configOf(key);
          return config === undefined ? [] : [{ key, devices: devices.map(({ uuid }) => uuid), cpus: config.cpus }];
        }),
      hasOthers: () =>
        reconciler.pools.some(
          ({ config, runtime }) => config.benchmark === undefined && config.agents !== 0 && runtime.capabilities.grants === 'host',
        ),
      near: (devices) => this.#near(devices),
      online: () => readText(join(sys, 'devices/system/cpu/online')),
      post: (key, event) => reconciler.post(key, event),
      changed: () => {
        if (this.#closed.signal.aborted) return;
        for (const { key } of reconciler.slots) if (this.isMeasuring(key)) reconciler.replan(key);
      },
    });
  }

  #createCooling(): Cooling {
    const { clock, log, reconciler, use } = this.#parts;
    const { known, slotDevices } = this.#parts.registry;
    return new Cooling({
      clock,
      log,
      use,
      slots: () =>
        reconciler.slots.flatMap((slot) => {
          const benchmark = this.#configOf(slot.key);
          return benchmark === undefined ? [] : [{ slot, benchmark }];
        }),
      device: (key) => (slotDevices.heldBack(key) === null ? (slotDevices.of(key)?.[0] ?? null) : null),
      idle: (uuid) => known.get(uuid)?.idleTemperature ?? null,
      learn: (uuid, idleTemperature) => {
        const device = known.get(uuid);
        // It is learnt again if it cannot be written.
        if (device !== undefined) attempt(() => known.save([{ ...device, idleTemperature }]));
      },
      cooled: (key) => {
        if (!this.#closed.signal.aborted) reconciler.replan(key);
      },
    });
  }

  /** CPUs of the NUMA nodes of these devices; null where the host does not tell. */
  #near(devices: readonly DeviceId[]): Promise<string | null> {
    const { registry, sys } = this.#parts;
    return cpusNear(
      devices.map((uuid) => registry.device(uuid)?.pciId ?? null),
      sys,
    );
  }

  #isHere({ runtime }: Slot): boolean {
    return this.#parts.runtime(runtime).capabilities.grants === 'host';
  }

  #configOf(key: string): BenchmarkConfig | undefined {
    return this.#parts.pools.find(({ name }) => name === poolOf(key))?.benchmark;
  }
}
