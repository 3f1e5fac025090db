/** Puts together everything about devices, only if a pool asks for devices: on other hosts no GPU tool ever runs. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import type { Finding } from '../../base/finding.ts';
import type { Log } from '../../base/log.ts';
import { fits } from '../../config/conditions.ts';
import type { PoolConfig, RepairCommand } from '../../config/config.ts';
import { choiceFindings } from '../../config/device-findings.ts';
import type { Clock } from '../../core/clock.ts';
import { type AgentId, type DeviceId, emptySlot, isEmpty, type Slot } from '../../core/slot.ts';
import { type EngineFacts, readHostFacts } from '../../gpu/host-facts.ts';
import { createKernelLog, type KernelLog } from '../../gpu/kernel-reader.ts';
import { createLocks, type DeviceLocks, lockDirectory } from '../../gpu/lock.ts';
import { createProbe, type Probe } from '../../gpu/probe.ts';
import { hostFault } from '../../gpu/proof.ts';
import { createRunner, type ToolRunner, vendorFolders } from '../../gpu/run.ts';
import { archOf } from '../../images/request.ts';
import type { Runtime } from '../../ports/runtime.ts';
import { gateNodes } from '../../runtimes/devices.ts';
import { isAgentUid } from '../../runtimes/uids.ts';
import type { Store } from '../../store/store.ts';
import type { Fingerprints } from '../images/fingerprints.ts';
import { isUnused, type Pool } from '../loop/pool.ts';
import type { Reconciler } from '../loop/reconciler.ts';
import { Benchmarks } from './benchmarks.ts';
import { lineOf, nextDemand, type WaitingForDevices } from './demands.ts';
import { Reservations } from './device-reservations.ts';
import { DeviceUses } from './device-use.ts';
import { createDeviceRequests, createDeviceViews, type DeviceRequests, type DeviceViews } from './device-views.ts';
import { DeviceWatch } from './device-watch.ts';
import { gpuDoctor } from './doctor.ts';
import { KnownDevices } from './known-devices.ts';
import { mayLeaseSeveral } from './partition.ts';
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
  readonly benchmarks: Benchmarks;
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
      topology: pools.some(mayLeaseSeveral),
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
      isMeasuring: (key) => this.benchmarks.isMeasuring(key),
      measured: () => this.benchmarks.measured(),
    });
    const registry = this.#openRegistry();
    this.benchmarks = new Benchmarks({ ...parts, registry, use: this.use, runner: this.#tools, sys: this.#at('sys') });
    const { bootId, owner } = store;
    const groupsOf = (slot: Slot, agent: AgentId): readonly string[] => parts.runtime(slot.runtime).groupsOf(agent);
    const recheck = (uuid: DeviceId, signal: AbortSignal): Promise<DeviceCheck> => this.verifier.recheck(uuid, signal);
    const shared = { clock, log, store, registry, slots, bootId, owner, groupsOf, recheck };
    this.registry = registry;
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
          this.benchmarks.looked();
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
      clocks: this.benchmarks,
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
      lineOf: (name) => {
        const pool = this.#poolNamed(name);
        return pool === undefined ? [] : lineOf(pool);
      },
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
    this.benchmarks.slotChanged(slot);
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

  /** Looks once, then regularly. */
  async start(): Promise<void> {
    await this.benchmarks.resetLeft(this.verifier);
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
    this.benchmarks.close();
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
