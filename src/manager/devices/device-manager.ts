/** Puts together everything about devices, only if a pool asks for devices: on other hosts no GPU tool ever runs. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { attempt, toFailure } from '../../base/errors.ts';
import type { Finding } from '../../base/finding.ts';
import type { Log } from '../../base/log.ts';
import { fits } from '../../config/conditions.ts';
import type { BenchmarkConfig, PoolConfig, RepairCommand } from '../../config/config.ts';
import { choiceFindings } from '../../config/device-findings.ts';
import type { VarianceView } from '../../contract/variance.ts';
import type { Clock } from '../../core/clock.ts';
import { type AgentId, type DeviceId, emptySlot, isEmpty, type Slot } from '../../core/slot.ts';
import { type EngineFacts, readHostFacts } from '../../gpu/host-facts.ts';
import { createKernelLog, type KernelLog } from '../../gpu/kernel-reader.ts';
import { createLocks, type DeviceLocks, lockDirectory } from '../../gpu/lock.ts';
import { readText } from '../../gpu/pci.ts';
import { createProbe, type Probe } from '../../gpu/probe.ts';
import { hostFault } from '../../gpu/proof.ts';
import { createRunner, type ToolRunner, vendorFolders } from '../../gpu/run.ts';
import { cpusNear } from '../../gpu/topology.ts';
import { archOf } from '../../images/request.ts';
import type { Runtime } from '../../ports/runtime.ts';
import { gateNodes } from '../../runtimes/devices.ts';
import { isAgentUid } from '../../runtimes/process/uids.ts';
import type { Store } from '../../store/store.ts';
import type { Fingerprints } from '../images/fingerprints.ts';
import { isUnused, type Pool, poolOf, type SlotDevices } from '../loop/pool.ts';
import type { Reconciler } from '../loop/reconciler.ts';
import { ClockLocks } from './benchmark-clocks.ts';
import { Cooling } from './benchmark-cooling.ts';
import { BenchmarkCpus } from './benchmark-cpus.ts';
import { nextDemand, type WaitingForDevices } from './demands.ts';
import { Reservations } from './device-reservations.ts';
import { DeviceUses } from './device-use.ts';
import { createDeviceRequests, createDeviceViews, type DeviceRequests, type DeviceViews } from './device-views.ts';
import { DeviceWatch } from './device-watch.ts';
import { gpuDoctor } from './doctor.ts';
import { KnownDevices } from './known-devices.ts';
import { type DeviceCheck, Quarantine } from './quarantine.ts';
import { createDeviceRegistry, type DeviceRegistry } from './registry.ts';
import { createRepair, type Repair } from './repair.ts';
import { Verifier } from './verification.ts';

interface DeviceManagerParts {
  readonly clock: Clock;
  readonly log: Log;
  readonly store: Store;
  readonly reconciler: Reconciler;
  /** Pools whose agents need devices, in the order of the file. */
  readonly pools: readonly PoolConfig[];
  readonly runtime: (name: string) => Runtime;
  /** Called after each look; it knows the images of pools. */
  readonly fingerprints: Pick<Fingerprints, 'looked' | 'shownImage'>;
  /** The owner's command for a device in quarantine; null for none. */
  readonly repair: RepairCommand | null;
  /** The Engine that grants the devices of these pools; null when there is none. */
  readonly engine: (signal: AbortSignal) => Promise<EngineFacts | null>;
  readonly host: DeviceHost;
}

/** Where the devices and the vendors' tools are. */
export interface DeviceHost {
  readonly path: string;
  /** Contains `sys`, `proc`, `kmsg` and `locks` of a simulated host; null: this host's own. */
  readonly root: string | null;
  /** Runs the vendors' tools, where no processes are to be started for them. */
  readonly runner: ToolRunner | undefined;
}

export class DeviceManager {
  readonly registry: DeviceRegistry;
  readonly watch: DeviceWatch;
  readonly verifier: Verifier;
  readonly quarantine: Quarantine;
  readonly reservations: Reservations;
  readonly use: DeviceUses;
  readonly views: DeviceViews;
  /** What the loop asks about its slots. */
  readonly slotDevices: SlotDevices;
  /** null if no pool is for measurements. */
  readonly #cpus: BenchmarkCpus | null;
  readonly #cooling: Cooling | null;
  readonly #clocks: ClockLocks;
  readonly #startedAt: number;
  readonly #closed = new AbortController();
  /** People's requests. */
  readonly requests: DeviceRequests;
  readonly proofs: Store['proofs'];
  readonly #parts: DeviceManagerParts;
  readonly #locks: DeviceLocks;
  readonly #tools: ToolRunner;
  readonly #probe: Probe;
  readonly #kernel: KernelLog;
  readonly #repair: Repair;
  #isClosed = false;

  constructor(parts: DeviceManagerParts) {
    const { clock, log, store, reconciler, pools } = parts;
    const { path, root, runner } = parts.host;
    this.#parts = parts;
    this.proofs = store.proofs;
    this.#locks = createLocks({
      dir: root === null ? lockDirectory() : join(root, 'locks'),
      owner: store.owner,
      stateDir: store.dir,
      bootId: store.bootId,
      isJob: isAgentUid,
    });
    this.#tools = runner ?? createRunner({ clock, path: [path, ...vendorFolders].join(':') });
    this.#probe = createProbe({
      now: clock.now,
      runner: this.#tools,
      path,
      topology: pools.some(({ devices: { count } }) => count !== 1),
      ...(root !== null && { sys: join(root, 'sys'), proc: join(root, 'proc') }),
    });
    this.#kernel = createKernelLog({
      uptime: () => clock.now() / 1000,
      ...(root !== null && { path: join(root, 'kmsg') }),
      say: ({ message }) => log.warn('kernel log', { reason: message }),
    });
    const slots = (): readonly Slot[] => reconciler.slots;
    this.use = new DeviceUses({
      clock,
      slots,
      runner: this.#tools,
      isLooking: () => this.#probe.isLooking,
      isMeasuring: (key) => this.#isMeasuring(key),
    });
    const registry = this.#openRegistry();
    const { bootId, owner } = store;
    const groupsOf = (slot: Slot, agent: AgentId): readonly string[] => parts.runtime(slot.runtime).groupsOf(agent);
    const recheck = (uuid: DeviceId, signal: AbortSignal): Promise<DeviceCheck> => this.verifier.recheck(uuid, signal);
    const shared = { clock, log, store, registry, slots, bootId, owner, groupsOf, recheck };
    this.registry = registry;
    const isBench = pools.some(({ benchmark }) => benchmark !== undefined);
    this.#cpus = isBench ? this.#createCpus() : null;
    this.#cooling = isBench ? this.#createCooling() : null;
    this.#clocks = new ClockLocks({ clock, runner: this.#tools, known: registry.known });
    this.slotDevices = {
      ...registry.slotDevices,
      heldBack: (key) => registry.slotDevices.heldBack(key) ?? (this.#isMeasuring(key) ? this.#whyNot(key) : null),
    };
    this.views = createDeviceViews({ registry, use: this.use }, slots);
    this.watch = new DeviceWatch({
      ...shared,
      probe: this.#probe,
      kernel: this.#kernel,
      // The processes that a simulated tool reports are not this host's.
      ...(runner !== undefined && root !== null && { proc: join(root, 'proc') }),
      listener: {
        idle: (look, devices) => this.verifier.idle(look, devices),
        looked: (inventory) => {
          this.use.looked(inventory);
          void this.#cpus?.update();
          this.#cooling?.check();
          parts.fingerprints.looked(inventory);
        },
        hold: (why) => this.#hold(why),
      },
    });
    this.quarantine = new Quarantine({
      ...shared,
      repair: (uuid, reason) => {
        const { pciId = null } = registry.device(uuid) ?? registry.known.get(uuid) ?? {};
        this.#repair.put({ uuid, pciId, reason });
      },
    });
    this.#repair = createRepair({ clock, log, path, command: parts.repair, recheck: (uuid) => this.quarantine.look(uuid) });
    this.verifier = new Verifier({
      ...shared,
      watch: this.watch,
      quarantine: this.quarantine,
      isShared: (key) => reconciler.poolOf(key).config.devices.share > 1,
      isStopping: () => reconciler.stopping,
      clocks: {
        lock: async ({ key, devices: [uuid] }, agent, signal) => {
          const mhz = this.#benchmarkOf(key)?.clock ?? null;
          if (mhz !== null && uuid !== undefined) await this.#clocks.lock(uuid, agent, mhz, signal);
        },
        reset: (uuid, signal) => this.#clocks.reset(uuid, signal),
      },
      missingNodes: (device) => gateNodes([device]).filter((node) => !existsSync(node.replace(/^\/dev/, this.#at('dev')))),
    });
    this.reservations = new Reservations({
      ...shared,
      quarantine: this.quarantine,
      isBusy: (uuid) =>
        slots()
          .filter(({ agent }) => agent.kind !== 'free' && agent.kind !== 'proving')
          .some(({ devices }) => devices.some((held) => held === uuid || registry.device(held)?.parent === uuid)),
    });
    this.requests = createDeviceRequests(this, clock);
  }

  #openRegistry(): DeviceRegistry {
    const { clock, pools, reconciler, store } = this.#parts;
    return createDeviceRegistry({
      clock,
      pools,
      known: new KnownDevices({ clock, store }),
      locks: this.#locks,
      slots: () => reconciler.slots,
      waiting: (name) => this.#waiting(name),
      changed: (keys) => {
        for (const config of pools) if (config.agents === 'per-device') this.#grow(config);
        for (const key of keys) if (reconciler.slot(key) !== undefined) reconciler.replan(key);
      },
    });
  }

  /** Keeps the pools from new agents, with the reason; null lets them continue. */
  #hold(why: string | null): void {
    const { pools, reconciler } = this.#parts;
    const pauses = pools.flatMap(({ name }) => this.#poolNamed(name)?.pause ?? []);
    const changed = pauses.filter((pause) => (why === null ? pause.release('devices') : pause.hold('devices', why)));
    if (changed.length > 0) reconciler.replanAll();
  }

  #poolNamed(name: string): Pool | undefined {
    return this.#parts.reconciler.pools.find((pool) => pool.config.name === name);
  }

  /** A folder of the host. */
  #at(folder: string): string {
    return join(this.#parts.host.root ?? '/', folder);
  }

  /** The next job that a pool without standbys needs devices for. */
  #waiting(name: string): WaitingForDevices | null {
    const { clock, reconciler } = this.#parts;
    const pool = this.#poolNamed(name);
    if (pool === undefined || !pool.mayStart(clock.now()) || reconciler.pause.any || reconciler.stopping) return null;
    const slots = reconciler.slots.filter((slot) => reconciler.poolOf(slot.key) === pool);
    const next = slots.find(isEmpty);
    // It tries an image that has failed, and waits.
    if (next !== undefined && pool.rollout.isOwnImageOnly(next.key, clock.now())) return null;
    return nextDemand(pool, slots.filter(isUnused).length);
  }

  /** Adds the slots that a pool with one for each device gets by devices that came. */
  #grow(config: PoolConfig): void {
    const { reconciler } = this.#parts;
    const pool = this.#poolNamed(config.name);
    if (pool === undefined) return;
    const fresh = this.registry.slotsOf(config).filter((key) => reconciler.slot(key) === undefined);
    if (fresh.length === 0) return;
    const slots = fresh.map((key) => emptySlot({ key, runtime: pool.runtime.name, grace: config.stopGrace }));
    reconciler.add(pool, slots);
    for (const key of fresh) reconciler.replan(key);
  }

  slotChanged(slot: Slot): void {
    this.registry.slotChanged(slot);
    this.use.slotChanged(slot);
    if (this.#isHere(slot)) this.#cpus?.slotChanged(slot);
    if (this.#isMeasuring(slot.key)) this.#cooling?.slotChanged(slot);
  }

  /** How the card was during the agent's measurement; null: it is none, or the card was not asked. */
  varianceOf({ key, devices, agent: lane }: Slot, agent: AgentId): VarianceView | null {
    if (!this.#isMeasuring(key)) return null;
    const locked = this.registry.known.get(devices[0] ?? '')?.locked ?? null;
    const isAdopted = 'since' in lane && lane.since < this.#startedAt;
    return this.use.varianceOf(agent, [
      ...(locked === null ? [] : [`its clock was locked at ${locked.mhz} MHz`]),
      ...(isAdopted ? ['onejob was restarted meanwhile, and knows nothing of the time before'] : []),
      ...[this.#cooling?.noteOf(key) ?? []].flat(),
    ]);
  }

  /** The only CPUs for a sandbox of this host that is made now; null: all. `numa`: near its devices. */
  async cpusFor({ key, devices }: Slot, agent: AgentId, numa: boolean): Promise<string | null> {
    const near = numa && devices.length > 0 ? await this.#cpusNear(devices) : null;
    return this.#cpus === null ? near : this.#cpus.take(key, agent, near);
  }

  /** CPUs of the NUMA nodes of these devices; null where the host does not tell. */
  #cpusNear(devices: readonly DeviceId[]): Promise<string | null> {
    const pciIds = devices.map((uuid) => this.registry.device(uuid)?.pciId ?? null);
    return cpusNear(pciIds, this.#at('sys'));
  }

  #createCpus(): BenchmarkCpus {
    const { reconciler } = this.#parts;
    return new BenchmarkCpus({
      slots: () => reconciler.slots.filter((slot) => this.#isHere(slot)),
      measuring: () =>
        this.registry.partition.slots.flatMap(({ key, pool, devices }) => {
          const { benchmark } = this.#parts.pools.find(({ name }) => name === pool) ?? {};
          return benchmark === undefined ? [] : [{ key, devices: devices.map(({ uuid }) => uuid), cpus: benchmark.cpus }];
        }),
      hasOthers: () =>
        reconciler.pools.some(
          ({ config, runtime }) => config.benchmark === undefined && config.agents !== 0 && runtime.capabilities.grants === 'host',
        ),
      near: (devices) => this.#cpusNear(devices),
      online: () => readText(join(this.#at('sys'), 'devices/system/cpu/online')),
      post: (key, event) => reconciler.post(key, event),
      changed: () => this.#replanMeasuring(),
    });
  }

  #createCooling(): Cooling {
    const { clock, log, reconciler } = this.#parts;
    const { known, slotDevices } = this.registry;
    return new Cooling({
      clock,
      log,
      use: this.use,
      slots: () =>
        reconciler.slots.flatMap((slot) => {
          const benchmark = this.#benchmarkOf(slot.key);
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
        if (!this.#isClosed && reconciler.slot(key) !== undefined) reconciler.replan(key);
      },
    });
  }

  #isHere({ runtime }: Slot): boolean {
    return this.#parts.runtime(runtime).capabilities.grants === 'host';
  }

  #isMeasuring(key: string): boolean {
    return this.#benchmarkOf(key) !== undefined;
  }

  #benchmarkOf(key: string): BenchmarkConfig | undefined {
    return this.#parts.pools.find(({ name }) => name === poolOf(key))?.benchmark;
  }

  /** Why a slot for measurements must not start now; null if it may. */
  #whyNot(key: string): string | null {
    return this.#cpus?.whyNot(key) ?? this.#cooling?.whyNot(key) ?? null;
  }

  #replanMeasuring(): void {
    const { reconciler } = this.#parts;
    if (this.#isClosed) return;
    for (const pool of reconciler.pools) if (pool.config.benchmark !== undefined) reconciler.replanAll(pool);
  }

  /** For `doctor`: what is wrong with this host, and what pools cannot get here, according to the last look. */
  async doctor(signal: AbortSignal): Promise<Finding[]> {
    const { engine, fingerprints, pools } = this.#parts;
    const { inventory } = this.registry;
    if (inventory === null) return [];
    const [facts, engineFacts] = await Promise.all([
      readHostFacts({ runner: this.#tools, sys: this.#at('sys'), proc: this.#at('proc'), etc: this.#at('etc'), signal }),
      engine(signal),
    ]);
    signal.throwIfAborted();
    const images = pools.flatMap((pool) => {
      const image = fingerprints.shownImage(pool.name);
      const devices = inventory.devices.filter((device) => fits(device, pool.devices));
      return image === null ? [] : [{ pool: pool.name, image, devices }];
    });
    const findings = gpuDoctor(inventory, { ...facts, engine: engineFacts, images, arch: archOf(process.arch) });
    // A fault that holds all pools back is reported with the pools.
    const fault = hostFault(inventory);
    const host = fault === null ? findings : findings.filter(({ message }) => !fault.message.endsWith(message));
    return [...host, ...choiceFindings({ pools }, inventory)];
  }

  /** Sets back clocks that an earlier manager has locked for agents that are gone. No card is given to anybody before a look. */
  async #resetClocks(): Promise<void> {
    const { log, reconciler } = this.#parts;
    const isAlive = (agent: AgentId): boolean => {
      const lane = reconciler.slotOf(agent)?.agent;
      return lane !== undefined && lane.kind !== 'free' && lane.kind !== 'proving' && lane.agent === agent;
    };
    for (const { uuid, agent } of this.#clocks.left) {
      if (isAlive(agent)) continue;
      await this.verifier.resetClocks(uuid, this.#closed.signal).catch((error: unknown) => {
        if (!this.#isClosed) log.error('failed to set clocks back', { device: uuid, reason: toFailure(error).message });
      });
    }
  }

  /** Looks once, then regularly. */
  async start(): Promise<void> {
    await this.#resetClocks();
    if (this.#isClosed) return;
    await this.watch.start();
    if (this.#isClosed) return;
    const { log, pools } = this.#parts;
    const { inventory } = this.registry;
    for (const { subject, message, hint } of inventory === null ? [] : choiceFindings({ pools }, inventory))
      log.warn('devices', { what: subject, reason: message, hint });
    this.quarantine.start();
    this.reservations.start();
  }

  /** `leave`: agents keep running, and keep their locks. */
  close(leave: boolean): void {
    this.#isClosed = true;
    this.#closed.abort();
    this.#cooling?.close();
    this.quarantine.close();
    this.#repair.close();
    this.reservations.close();
    this.watch.close();
    this.use.close();
    this.#probe[Symbol.dispose]();
    this.#kernel[Symbol.dispose]();
    const { slots } = this.#parts.reconciler;
    if (!leave) this.#locks.keep(new Set(slots.flatMap((slot) => (slot.leaving.length > 0 ? slot.devices : []))));
  }
}
