/**
 * Assembles the loop of one manager: what observes, decides and acts, and how they depend on each other. Once it is open it
 * contains every slot of the previous manager, but does nothing. Its creator looks at everything, releases the pause `starting`,
 * and starts it.
 */

import { randomBytes } from 'node:crypto';
import { toFailure } from '../../base/errors.ts';
import { type Action, type AgentId, isEmpty, type Slot } from '../../core/slot.ts';
import { LogFollowers } from '../../logs/followers.ts';
import type { LogFolder } from '../../logs/log-file.ts';
import type { Runtimes } from '../../runtimes/choose.ts';
import { slotNames } from '../../schema/template.ts';
import { cachesFolder } from '../../schema/volumes.ts';
import { evidenceOf } from '../../verdict/outcomes.ts';
import { createActionRunner } from '../actions/action-runner.ts';
import { type Places, SlotActions } from '../actions/actions.ts';
import { createMountPlaces } from '../actions/places.ts';
import { createSandboxProbe, type SandboxProbe } from '../actions/probe-sandbox.ts';
import { Registrations } from '../actions/registrations.ts';
import { type CacheDesk, createCacheDesk } from '../caches/cache-desk.ts';
import { hasEnded, isIdle, wantedCaches } from '../caches/cache-places.ts';
import { Caches } from '../caches/caches.ts';
import { createDiskWatch } from '../caches/disk-watch.ts';
import type { DeviceManager } from '../devices/device-manager.ts';
import { HeldJobs } from '../held/held-jobs.ts';
import { Fingerprints } from '../images/fingerprints.ts';
import { openPoolImages, type PoolImages } from '../images/pool-images.ts';
import { Holds } from './holds.ts';
import { Observer } from './observe.ts';
import type { LoopParts } from './parts.ts';
import { withoutDevices } from './pool.ts';
import { Reconciler } from './reconciler.ts';
import { restoreSlots } from './restore-slots.ts';
import { tellProgress, writeHistory } from './slot-history.ts';

/** Disposing of it ends what it does, and leaves the sandboxes as they are. */
export interface Loop extends AsyncDisposable {
  readonly reconciler: Reconciler;
  readonly observer: Observer;
  readonly followers: LogFollowers;
  readonly logs: LogFolder;
  readonly runtimes: Runtimes;
  readonly images: PoolImages;
  readonly fingerprints: Fingerprints;
  readonly caches: Caches;
  /** Those of services, too. */
  readonly cacheDesk: CacheDesk;
  readonly probe: SandboxProbe;
  readonly holds: Holds;
  readonly held: HeldJobs;
  /** null if no pool needs devices. It outlives the loop: the caller that starts it closes it. */
  readonly deviceManager: DeviceManager | null;
  /** Name of the slot's agents. */
  readonly nameOf: (key: string) => string;
  /** What a slot is busy with, for people; null if there is nothing to say. */
  readonly noteOf: (key: string) => string | null;
  /** Why the job of an agent that has ended cannot be settled; null: that did not fail. */
  readonly unsettled: (agent: AgentId) => string | null;
}

/** @throws OnejobError E_BUG if a pool names a service or runtime that does not exist; everything is closed again then */
export async function openLoop(parts: LoopParts): Promise<Loop> {
  const { config, env, store, runtimes, services, clock, log, logs } = parts;
  const { pools } = config;
  const nameOf = slotNames(config);
  await using opened = new AsyncDisposableStack();
  const images = await openPoolImages({ config, env, store, services, log });
  const probe = createSandboxProbe(clock, newAgent);
  const registrations = new Registrations();
  const notes = new Map<string, string>();

  // It calls what is made below, once there are slots.
  const reconciler: Reconciler = createReconciler(parts, nameOf, {
    act: (key, action) => dispatcher.start(key, action),
    replanning: (pool) => deviceManager?.registry.demandChanged(pool),
    changed: (before, after) => {
      deviceManager?.slotChanged(after);
      parts.changed?.(before, after);
      if (hasEnded(before, after)) caches.used(after.key);
      if (isEmpty(after)) parts.end.emptied();
    },
  });
  const followers = createFollowers(parts, reconciler);
  opened.defer(() => followers.close());
  const caches = new Caches({
    clock,
    log,
    nameOf,
    folder: cachesFolder(config.stateDir),
    wanted: () => wantedCaches(pools, reconciler.slots, nameOf),
    mayTrim: (place) => isIdle(place, reconciler.slots, nameOf),
    minFree: config.diskMinFree,
  });
  const cacheDesk = createCacheDesk({
    clock,
    stateDir: config.stateDir,
    named: caches,
    services: config.services.map(({ name }) => name),
  });
  const fingerprints = new Fingerprints({ log, reconciler, nameOf, images, proved: (pool) => store.provedImages.of(pool) });
  const deviceManager = await openDevices(parts, reconciler, fingerprints);
  const boundary = (name: string): void => {
    if (name === env.crashAt) process.kill(process.pid, 'SIGKILL');
  };
  const mountPlaces = createMountPlaces(config, env);
  const held = new HeldJobs({
    ...parts,
    pools,
    newAgent,
    boundary,
    placesOf: mountPlaces.of,
    table: store.held,
    transaction: store.transaction,
    temporary: store.temporary,
    runtimes: () => runtimes.all,
    minFree: config.diskMinFree,
    isInSlot: (agent) => reconciler.placeOf(agent) !== undefined,
    changed: (job) => parts.heldChanged?.(job),
  });
  const base = { clock, log, followers, reconciler, probe, held, fingerprints };
  const observer = new Observer({
    ...base,
    runtimes: runtimes.all,
    rebooted: new Set(store.slots.all().flatMap(({ slot, thisBoot }) => (thisBoot ? [] : [slot.key]))),
    minFree: config.diskMinFree,
    makeRoom: async (signal) => {
      await images.prune(signal);
      await cacheDesk.makeRoom(signal);
    },
  });
  const executors = new SlotActions({
    ...base,
    registrations,
    observer,
    deviceManager,
    caches,
    mountPlaces,
    hurry: parts.end.hurry,
    synced: store.sync,
    slots: slotsOf(parts, reconciler, nameOf, notes),
  });
  const dispatcher = createActionRunner({
    clock,
    executors,
    boundary,
    post: (key, event) => reconciler.post(key, event),
    retrying: (slot, { agent, act }, error, ms) =>
      log.warn('trying again', { slot, agent, action: act, seconds: ms / 1000, reason: toFailure(error).message }),
  });
  for (const one of [held, caches, reconciler, dispatcher, registrations, images, fingerprints]) opened.defer(() => one.close());
  // Nothing is released before everything was looked at once.
  reconciler.pause.hold('starting', 'onejob is starting');
  restoreSlots({ ...parts, reconciler, devices: deviceManager?.registry.slotDevices ?? withoutDevices });
  const holds = new Holds({ clock, store, reconciler });
  holds.restore();
  writeProved(parts, () => store.provedImages.keepOnly(pools.map(({ name }) => name)));
  fingerprints.start();
  opened.defer(() => observer.close());
  const diskWatch = createDiskWatch({ clock, log, reconciler, runtime: runtimes.get });
  if (pools.some(({ disk }) => disk !== null)) diskWatch.start();
  opened.defer(() => diskWatch.close());

  const closing = opened.move();
  return {
    reconciler,
    observer,
    followers,
    logs,
    runtimes,
    images,
    fingerprints,
    caches,
    cacheDesk,
    probe,
    holds,
    held,
    deviceManager,
    nameOf,
    noteOf: (key) => notes.get(key) ?? null,
    unsettled: dispatcher.unsettled,
    [Symbol.asyncDispose]: () => closing.disposeAsync(),
  };
}

function newAgent(): AgentId {
  return randomBytes(5).toString('hex');
}

/** The loop itself, over the store. `above`: what its steps start, in this order. */
function createReconciler(
  { clock, log, store }: LoopParts,
  nameOf: (key: string) => string,
  above: {
    readonly act: (key: string, action: Action) => void;
    readonly replanning: (pool: string | null) => void;
    readonly changed: (before: Slot, after: Slot) => void;
  },
): Reconciler {
  const reconciler: Reconciler = new Reconciler({
    clock,
    log,
    newAgent,
    store: {
      transaction: (write) => store.transaction({ durable: false }, write),
      sync: () => store.sync(),
      syncNow: () => store.syncNow(),
      save: (before, after, changes) => {
        store.slots.save(after);
        const { config, runtime } = reconciler.poolOf(after.key);
        const image = runtime.capabilities.images ? config.recipe.image : null;
        const { memory } = config.recipe;
        const about = { pool: config.name, image, memory, name: nameOf(after.key), wall: clock.wall() };
        writeHistory(before, after, changes, store, about);
      },
    },
    act: above.act,
    random: Math.random,
    evidenceOf: (agent) => evidenceOf(store, agent),
    saveProved: (pool, origin) =>
      writeProved({ store, log }, () => store.provedImages.save(pool, { ...origin, equipment: [...origin.equipment] })),
    replanning: (pool) => above.replanning(pool?.config.name ?? null),
    changed: (before, after) => {
      const { binds, standsForSlots } = reconciler.poolOf(after.key).serviceOf(before).capabilities;
      if (before.agent !== after.agent && (binds === 'early' || standsForSlots))
        tellProgress(before, after, log, (id) => store.serviceJobs.get(id));
      above.changed(before, after);
    },
  });
  return reconciler;
}

/** False: that failed. */
function writeProved({ store, log }: Pick<LoopParts, 'store' | 'log'>, write: () => void): boolean {
  // A temporary manager may have another config, with a pool of the same name.
  if (store.temporary) return true;
  try {
    store.transaction({ durable: false }, write);
    return true;
  } catch (error) {
    log.error('failed to write state', { reason: toFailure(error).message });
    return false;
  }
}

function createFollowers({ clock, log, logs }: LoopParts, reconciler: Reconciler): LogFollowers {
  return new LogFollowers({
    clock,
    logs,
    state: (agent, state) => {
      const key = reconciler.placeOf(agent);
      if (state === 'released' && key !== undefined) reconciler.post(key, { kind: 'released', agent });
    },
    listener: (agent) => {
      const slot = reconciler.slotOf(agent);
      return slot === undefined ? null : (reconciler.poolOf(slot.key).serviceOf(slot).listen?.(agent) ?? null);
    },
    failed: (agent, error) => log.error('log incomplete', { agent, reason: toFailure(error).message }),
  });
}

/** null if no pool needs devices. */
async function openDevices(
  { clock, config, env, log, runner, runtimes, store }: LoopParts,
  reconciler: Reconciler,
  fingerprints: Fingerprints,
): Promise<DeviceManager | null> {
  const pools = config.pools.filter((pool) => pool.devices.count !== 0);
  if (pools.length === 0) return null;
  const { DeviceManager: Devices } = await import('../devices/device-manager.ts');
  return new Devices({
    clock,
    log,
    store,
    reconciler,
    fingerprints,
    pools,
    runtime: runtimes.get,
    repair: config.onQuarantine,
    engine: async (signal) => (await import('../../runtimes/docker/check.ts')).engineFacts(config.pools, env.docker, signal, clock),
    host: { path: env.path, root: env.hostRoot, runner },
  });
}

/** What actions see of slots. */
function slotsOf(
  { runtimes, store }: LoopParts,
  reconciler: Reconciler,
  nameOf: (key: string) => string,
  notes: Map<string, string>,
): Places {
  return {
    place(key) {
      const slot = reconciler.slot(key);
      if (slot === undefined) throw new RangeError(`no such slot: ${key}`);
      return { slot, pool: reconciler.poolOf(key), name: nameOf(key), runtime: runtimes.get(slot.runtime) };
    },
    note: (key, line) => void (line === null ? notes.delete(key) : notes.set(key, line)),
    ran: (agent, job) => store.transaction({ durable: false }, () => store.history.ran(agent, job)),
  };
}
