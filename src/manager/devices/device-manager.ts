/**
 * Everything about devices, put together for one manager: only where a pool asks for devices, so that a host without them never
 * runs a tool for them.
 */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { fits } from '../../config/conditions.ts';
import type { PoolConfig, RepairCommand } from '../../config/config.ts';
import { deviceFindings } from '../../config/device-findings.ts';
import type { Clock } from '../../core/clock.ts';
import { type AgentId, emptySlot, type Slot } from '../../core/slot.ts';
import type { Finding } from '../../finding.ts';
import { type EngineFacts, gpuDoctor } from '../../gpu/doctor.ts';
import { readHostFacts } from '../../gpu/host-facts.ts';
import type { Device } from '../../gpu/inventory.ts';
import { createKernelLog } from '../../gpu/kernel-reader.ts';
import { createLocks, lockDirectory } from '../../gpu/lock.ts';
import { createProbe } from '../../gpu/probe.ts';
import { hostFault } from '../../gpu/proof.ts';
import { createRunner, type ToolRunner, vendorFolders } from '../../gpu/run.ts';
import { cpusNear } from '../../gpu/topology.ts';
import { archOf } from '../../images/request.ts';
import type { Log } from '../../log.ts';
import { gateNodes } from '../../runtimes/devices.ts';
import { isAgentUid } from '../../runtimes/process/uids.ts';
import type { Runtime } from '../../runtimes/runtime.ts';
import type { Store } from '../../store/store.ts';
import type { Fingerprints } from '../images/fingerprints.ts';
import type { Pool } from '../loop/pool.ts';
import type { Reconciler } from '../loop/reconciler.ts';
import { createDeviceWatch } from './device-watch.ts';
import { KnownDevices } from './known-devices.ts';
import { createQuarantine, type Quarantine } from './quarantine.ts';
import { createDeviceRegistry, nextDemand } from './registry.ts';
import { createRepair } from './repair.ts';
import { createReservations } from './reservations.ts';
import { createVerifier } from './verification.ts';

export interface DeviceManagerParts {
  readonly clock: Clock;
  readonly log: Log;
  readonly store: Store;
  readonly reconciler: Reconciler;
  /** Pools whose agents need devices, in the order of the file. */
  readonly pools: readonly PoolConfig[];
  readonly runtime: (name: string) => Runtime;
  /** Told of each look; they know the images of pools. */
  readonly fingerprints: Pick<Fingerprints, 'looked' | 'shownImage'>;
  /** What the owner wants to be run for a device that was put in quarantine; null for nothing. */
  readonly repair: RepairCommand | null;
  /** The Engine that grants the devices of these pools; null when there is none. */
  readonly engine: (signal: AbortSignal) => Promise<EngineFacts | null>;
  /** Folders of the vendors' tools, as `$PATH`. */
  readonly path: string;
  /** Holds `sys`, `proc`, `kmsg` and `locks` of a host that nobody here has; null: this host's own. */
  readonly root: string | null;
  /** Runs the vendors' tools, where no processes are to be started for them. */
  readonly runner?: ToolRunner | undefined;
}

export type DeviceManager = ReturnType<typeof openDeviceManager>;

export function openDeviceManager(parts: DeviceManagerParts) {
  const { clock, log, store, reconciler, pools, runtime, root } = parts;
  const write = (change: () => void): void => store.transaction({ durable: false }, change);
  const poolNamed = (name: string): Pool | undefined => reconciler.pools.find((pool) => pool.config.name === name);
  const groupsOf = (slot: Slot, agent: AgentId): readonly string[] => runtime(slot.runtime).groupsOf(agent);
  const locks = createLocks({
    dir: root === null ? lockDirectory() : join(root, 'locks'),
    owner: store.owner,
    stateDir: store.dir,
    bootId: store.bootId,
    isJob: isAgentUid,
  });
  const known = new KnownDevices({ clock, table: store.devices, write });
  const book = createDeviceRegistry({
    ...{ clock, pools, known, locks },
    slots: () => reconciler.slots,
    waiting: (name) => {
      const pool = poolNamed(name);
      return pool === undefined ? null : nextDemand(pool);
    },
    changed(keys) {
      for (const config of pools) if (config.agents === 'per-device') grow(config);
      for (const key of keys) if (reconciler.slot(key) !== undefined) reconciler.replan(key);
    },
  });
  const tools = parts.runner ?? createRunner({ clock, path: [parts.path, ...vendorFolders].join(':') });
  const probe = createProbe({
    now: clock.now,
    runner: tools,
    path: parts.path,
    topology: pools.some(({ devices: { count } }) => count !== 1),
    ...(root !== null && { sys: join(root, 'sys'), proc: join(root, 'proc') }),
  });
  const at = (folder: string): string => join(root ?? '/', folder);
  const kernel = createKernelLog({
    uptime: () => clock.now() / 1000,
    ...(root !== null && { path: join(root, 'kmsg') }),
    say: ({ message }) => log.warn('kernel log', { reason: message }),
  });
  const watch = createDeviceWatch({
    ...{ clock, log, book, probe, kernel, groupsOf },
    owner: store.owner,
    // A tool that is no process of this host names none of its processes.
    ...(parts.runner !== undefined && root !== null && { proc: join(root, 'proc') }),
    slots: () => reconciler.slots,
    idle: (look, devices) => prover.idle(look, devices),
    looked: (inventory) => parts.fingerprints.looked(inventory),
    hold(why) {
      let changed = false;
      for (const { name } of pools) {
        const pause = poolNamed(name)?.pause;
        if (pause === undefined) continue;
        if (why === null) changed = pause.release('devices') || changed;
        else changed = pause.hold('devices', why) || changed;
      }
      if (changed) reconciler.replanAll();
    },
  });
  const quarantine: Quarantine = createQuarantine({
    ...{ clock, log, book },
    bootId: store.bootId,
    again: (uuid, signal) => prover.again(uuid, signal),
    repair: (uuid, reason) => {
      const pciId = (book.device(uuid) ?? known.get(uuid))?.pciId ?? null;
      repair.put({ uuid, pciId, reason });
    },
  });
  const repair = createRepair({
    ...{ clock, log },
    command: parts.repair,
    path: parts.path,
    again: quarantine.look,
  });
  const prover = createVerifier({
    ...{ clock, log, book, watch, quarantine, write, groupsOf },
    proofs: store.proofs,
    bootId: store.bootId,
    isShared: (key) => reconciler.poolOf(key).config.devices.share > 1,
    isStopping: () => reconciler.stopping,
    missingNodes: (device) => gateNodes([device]).filter((node) => !existsSync(node.replace(/^\/dev/, at('dev')))),
  });
  const reservations = createReservations({
    ...{ clock, log, book, quarantine },
    again: prover.again,
    isBusy: (uuid) =>
      reconciler.slots.some(
        ({ agent, devices }) =>
          agent.kind !== 'free' &&
          agent.kind !== 'proving' &&
          devices.some((held) => held === uuid || book.device(held)?.parent === uuid),
      ),
  });

  let isClosed = false;

  /** Slots for devices that came. */
  function grow(config: PoolConfig): void {
    const pool = poolNamed(config.name);
    if (pool === undefined) return;
    const fresh = book.slotsOf(config).filter((key) => reconciler.slot(key) === undefined);
    if (fresh.length === 0) return;
    reconciler.add(
      pool,
      fresh.map((key) => emptySlot({ key, runtime: pool.runtime.name, grace: config.stopGrace })),
    );
    for (const key of fresh) reconciler.replan(key);
  }

  return {
    ...{ book, watch, prover, quarantine, reservations },
    proofs: store.proofs,
    /** CPUs of the NUMA nodes that these devices hang on; null where the host does not tell. */
    cpusNear: (devices: readonly Pick<Device, 'pciId'>[]): Promise<string | null> =>
      cpusNear(
        devices.map(({ pciId }) => pciId),
        at('sys'),
      ),
    /** For `doctor`: what of this host needs mending, and what pools cannot have here, by what was seen last. */
    doctor: async (signal: AbortSignal): Promise<Finding[]> => {
      const { inventory } = book;
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
      // What holds all GPUs back is said where the pools are held back.
      const fault = hostFault(inventory);
      const host = fault === null ? found : found.filter(({ message }) => !fault.message.endsWith(message));
      return [...host, ...deviceFindings({ pools }, inventory)];
    },
    /** Looks once, then goes on looking. */
    async start(): Promise<void> {
      await watch.start();
      if (isClosed) return;
      const { inventory } = book;
      for (const { subject, message, hint } of inventory === null ? [] : deviceFindings({ pools }, inventory)) {
        log.warn('devices', { what: subject, reason: message, hint });
      }
      quarantine.start();
      reservations.start();
    },
    /** `leave`: agents go on, and so do their locks. */
    close(leave: boolean): void {
      isClosed = true;
      quarantine.close();
      repair.close();
      reservations.close();
      watch.close();
      probe[Symbol.dispose]();
      kernel[Symbol.dispose]();
      if (!leave) locks.keep(new Set(reconciler.slots.flatMap((slot) => (slot.leaving.length > 0 ? slot.devices : []))));
    },
  };
}
