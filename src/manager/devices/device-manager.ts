/** Puts together everything about devices, only if a pool asks for devices: on other hosts no GPU tool ever runs. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import type { Finding } from '../../base/finding.ts';
import type { Log } from '../../base/log.ts';
import { fits } from '../../config/conditions.ts';
import type { PoolConfig, RepairCommand } from '../../config/config.ts';
import { choiceFindings } from '../../config/device-findings.ts';
import type { Clock } from '../../core/clock.ts';
import { type AgentId, emptySlot, isEmpty, type Slot } from '../../core/slot.ts';
import { type EngineFacts, readHostFacts } from '../../gpu/host-facts.ts';
import type { Device } from '../../gpu/inventory.ts';
import { createKernelLog } from '../../gpu/kernel-reader.ts';
import { createLocks, lockDirectory } from '../../gpu/lock.ts';
import { createProbe } from '../../gpu/probe.ts';
import { hostFault } from '../../gpu/proof.ts';
import { createRunner, type ToolRunner, vendorFolders } from '../../gpu/run.ts';
import { cpusNear } from '../../gpu/topology.ts';
import { archOf } from '../../images/request.ts';
import type { Runtime } from '../../ports/runtime.ts';
import { gateNodes } from '../../runtimes/devices.ts';
import { isAgentUid } from '../../runtimes/process/uids.ts';
import type { Store } from '../../store/store.ts';
import type { Fingerprints } from '../images/fingerprints.ts';
import type { Pool } from '../loop/pool.ts';
import type { Reconciler } from '../loop/reconciler.ts';
import { createDeviceReservations } from './device-reservations.ts';
import { createDeviceUses } from './device-use.ts';
import { createDeviceWatch } from './device-watch.ts';
import { gpuDoctor } from './doctor.ts';
import { KnownDevices } from './known-devices.ts';
import { createQuarantine, type Quarantine } from './quarantine.ts';
import { createDeviceRegistry, isUnused, nextDemand } from './registry.ts';
import { createRepair } from './repair.ts';
import { createVerifier } from './verification.ts';

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

export type DeviceManager = ReturnType<typeof openDeviceManager>;

export function openDeviceManager(parts: DeviceManagerParts) {
  const { clock, log, store, reconciler, pools, runtime } = parts;
  const { path, root, runner } = parts.host;
  const poolNamed = (name: string): Pool | undefined => reconciler.pools.find((pool) => pool.config.name === name);
  const groupsOf = (slot: Slot, agent: AgentId): readonly string[] => runtime(slot.runtime).groupsOf(agent);
  const locks = createLocks({
    dir: root === null ? lockDirectory() : join(root, 'locks'),
    owner: store.owner,
    stateDir: store.dir,
    bootId: store.bootId,
    isJob: isAgentUid,
  });
  const known = new KnownDevices({ clock, store });
  const registry = createDeviceRegistry({
    clock,
    pools,
    known,
    locks,
    slots: () => reconciler.slots,
    waiting: (name) => {
      const pool = poolNamed(name);
      if (pool === undefined || !pool.mayStart(clock.now()) || reconciler.pause.any || reconciler.stopping) return null;
      const next = reconciler.slots.find((slot) => reconciler.poolOf(slot.key) === pool && isEmpty(slot));
      // It tries an image that has failed, and waits.
      if (next !== undefined && pool.rollout.isOwnImageOnly(next.key, clock.now())) return null;
      const unused = reconciler.slots.filter((slot) => reconciler.poolOf(slot.key) === pool && isUnused(slot)).length;
      return nextDemand(pool, unused);
    },
    changed(keys) {
      for (const config of pools) if (config.agents === 'per-device') grow(config);
      for (const key of keys) if (reconciler.slot(key) !== undefined) reconciler.replan(key);
    },
  });
  const tools = runner ?? createRunner({ clock, path: [path, ...vendorFolders].join(':') });
  const probe = createProbe({
    now: clock.now,
    runner: tools,
    path,
    topology: pools.some(({ devices: { count } }) => count !== 1),
    ...(root !== null && { sys: join(root, 'sys'), proc: join(root, 'proc') }),
  });
  const at = (folder: string): string => join(root ?? '/', folder);
  const kernel = createKernelLog({
    uptime: () => clock.now() / 1000,
    ...(root !== null && { path: join(root, 'kmsg') }),
    say: ({ message }) => log.warn('kernel log', { reason: message }),
  });
  const use = createDeviceUses({ clock, runner: tools, isLooking: () => probe.isLooking, slots: () => reconciler.slots });
  const watch = createDeviceWatch({
    clock,
    log,
    registry,
    probe,
    kernel,
    groupsOf,
    owner: store.owner,
    // The processes that a simulated tool reports are not this host's.
    ...(runner !== undefined && root !== null && { proc: join(root, 'proc') }),
    slots: () => reconciler.slots,
    listener: {
      idle: (look, devices) => verifier.idle(look, devices),
      looked(inventory) {
        use.looked(inventory);
        parts.fingerprints.looked(inventory);
      },
      hold(why) {
        const pauses = pools.flatMap(({ name }) => poolNamed(name)?.pause ?? []);
        const changed = pauses.filter((pause) => (why === null ? pause.release('devices') : pause.hold('devices', why)));
        if (changed.length > 0) reconciler.replanAll();
      },
    },
  });
  const quarantine: Quarantine = createQuarantine({
    clock,
    log,
    registry,
    bootId: store.bootId,
    again: (uuid, signal) => verifier.again(uuid, signal),
    repair: (uuid, reason) => repair.put({ uuid, pciId: (registry.device(uuid) ?? known.get(uuid))?.pciId ?? null, reason }),
  });
  const repair = createRepair({ clock, log, path, command: parts.repair, again: quarantine.look });
  const verifier = createVerifier({
    clock,
    log,
    registry,
    store,
    watch,
    quarantine,
    groupsOf,
    isShared: (key) => reconciler.poolOf(key).config.devices.share > 1,
    isStopping: () => reconciler.stopping,
    missingNodes: (device) => gateNodes([device]).filter((node) => !existsSync(node.replace(/^\/dev/, at('dev')))),
  });
  const reservations = createDeviceReservations({
    clock,
    log,
    registry,
    quarantine,
    again: verifier.again,
    isBusy: (uuid) =>
      reconciler.slots
        .filter(({ agent }) => agent.kind !== 'free' && agent.kind !== 'proving')
        .some(({ devices }) => devices.some((held) => held === uuid || registry.device(held)?.parent === uuid)),
  });

  let isClosed = false;

  function grow(config: PoolConfig): void {
    const pool = poolNamed(config.name);
    if (pool === undefined) return;
    const fresh = registry.slotsOf(config).filter((key) => reconciler.slot(key) === undefined);
    if (fresh.length === 0) return;
    const slots = fresh.map((key) => emptySlot({ key, runtime: pool.runtime.name, grace: config.stopGrace }));
    reconciler.add(pool, slots);
    for (const key of fresh) reconciler.replan(key);
  }

  return {
    registry,
    watch,
    verifier,
    quarantine,
    reservations,
    use,
    proofs: store.proofs,
    slotChanged(slot: Slot): void {
      registry.slotChanged(slot);
      use.changed(slot);
    },
    /** CPUs of the NUMA nodes of these devices; null where the host does not tell. */
    cpusNear(devices: readonly Pick<Device, 'pciId'>[]): Promise<string | null> {
      const pciIds = devices.map(({ pciId }) => pciId);
      return cpusNear(pciIds, at('sys'));
    },
    /** For `doctor`: what is wrong with this host, and what pools cannot get here, according to the last look. */
    doctor: async (signal: AbortSignal): Promise<Finding[]> => {
      const { inventory } = registry;
      if (inventory === null) return [];
      const [facts, engine] = await Promise.all([
        readHostFacts({ runner: tools, sys: at('sys'), proc: at('proc'), etc: at('etc'), signal }),
        parts.engine(signal),
      ]);
      signal.throwIfAborted();
      const images = pools.flatMap((pool) => {
        const image = parts.fingerprints.shownImage(pool.name);
        const devices = inventory.devices.filter((device) => fits(device, pool.devices));
        return image === null ? [] : [{ pool: pool.name, image, devices }];
      });
      const found = gpuDoctor(inventory, { ...facts, engine, images, arch: archOf(process.arch) });
      // A fault that holds all pools back is reported with the pools.
      const fault = hostFault(inventory);
      const host = fault === null ? found : found.filter(({ message }) => !fault.message.endsWith(message));
      return [...host, ...choiceFindings({ pools }, inventory)];
    },
    /** Looks once, then regularly. */
    async start(): Promise<void> {
      await watch.start();
      if (isClosed) return;
      const { inventory } = registry;
      for (const { subject, message, hint } of inventory === null ? [] : choiceFindings({ pools }, inventory))
        log.warn('devices', { what: subject, reason: message, hint });
      quarantine.start();
      reservations.start();
    },
    /** `leave`: agents keep running, and keep their locks. */
    close(leave: boolean): void {
      isClosed = true;
      quarantine.close();
      repair.close();
      reservations.close();
      watch.close();
      use.close();
      probe[Symbol.dispose]();
      kernel[Symbol.dispose]();
      if (!leave) locks.keep(new Set(reconciler.slots.flatMap((slot) => (slot.leaving.length > 0 ? slot.devices : []))));
    },
  };
}
