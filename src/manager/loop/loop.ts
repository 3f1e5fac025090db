/**
 * Assembles the loop of one manager: what observes, decides and acts, and how they depend on each other. Once it is open it
 * contains every slot of the previous manager, but does nothing. Its creator looks at everything, releases the pause `starting`,
 * and starts it.
 */

import { randomBytes } from 'node:crypto';
import { toFailure } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { type AgentLane, type Change, type Exit, isEmpty, type JobId, type JobResult, type Slot } from '../../core/slot.ts';
import { LogFollowers } from '../../logs/followers.ts';
import type { ServiceJob } from '../../ports/service-job.ts';
import { slotNames } from '../../schema/template.ts';
import { cachesFolder } from '../../schema/volumes.ts';
import { agentEnded, evidenceOf, type OutcomeStore } from '../../verdict/outcomes.ts';
import { createActionRunner } from '../actions/action-runner.ts';
import { SlotActions } from '../actions/actions.ts';
import { createMountPlaces } from '../actions/places.ts';
import { createSandboxProbe } from '../actions/probe-sandbox.ts';
import { Registrations } from '../actions/registrations.ts';
import { hasEnded, isIdle, wantedCaches } from '../caches/cache-places.ts';
import { Caches } from '../caches/caches.ts';
import { createDiskWatch } from '../caches/disk-watch.ts';
import type { DeviceManager } from '../devices/device-manager.ts';
import { HeldJobs } from '../held/held-jobs.ts';
import { Fingerprints } from '../images/fingerprints.ts';
import { openPoolImages } from '../images/pool-images.ts';
import { createHolds } from './holds.ts';
import { Observer } from './observe.ts';
import type { LoopParts } from './parts.ts';
import { withoutDevices } from './pool.ts';
import { Reconciler } from './reconciler.ts';
import { restoreSlots } from './restore-slots.ts';

export type Loop = Awaited<ReturnType<typeof openLoop>>;

/** @throws OnejobError E_BUG if a pool names a service or runtime that does not exist; everything is closed again then */
export async function openLoop(parts: LoopParts) {
  const { config, env, store, runtimes, services, clock, log, logs } = parts;
  const { pools } = config;
  const nameOf = slotNames(config);
  await using opened = new AsyncDisposableStack();

  const newAgent = () => randomBytes(5).toString('hex');
  const probe = createSandboxProbe(clock, newAgent);
  const registrations = new Registrations();
  const notes = new Map<string, string>();
  const images = await openPoolImages({ config, env, store, services, log });

  /** False: that failed. */
  const writeProved = (write: () => void): boolean => {
    // A temporary manager may have another config, with a pool of the same name.
    if (store.temporary) return true;
    try {
      store.transaction({ durable: false }, write);
      return true;
    } catch (error) {
      log.error('failed to write state', { reason: toFailure(error).message });
      return false;
    }
  };

  const followers = new LogFollowers({
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
  opened.defer(() => followers.close());

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
        const { config: pool, runtime } = reconciler.poolOf(after.key);
        const image = runtime.capabilities.images ? pool.recipe.image : null;
        const { memory } = pool.recipe;
        writeHistory(before, after, changes, store, {
          pool: pool.name,
          image,
          memory,
          name: nameOf(after.key),
          wall: clock.wall(),
        });
      },
    },
    act: (key, action) => dispatcher.start(key, action),
    random: Math.random,
    evidenceOf: (agent) => evidenceOf(store, agent),
    saveProved: (pool, origin) => writeProved(() => store.provedImages.save(pool, { ...origin, equipment: [...origin.equipment] })),
    replanning: (pool) => deviceManager?.registry.demanded(pool?.config.name ?? null),
    changed: (before, after) => {
      const { binds, standsForSlots } = reconciler.poolOf(after.key).serviceOf(before).capabilities;
      if (before.agent !== after.agent && (binds === 'early' || standsForSlots))
        tellProgress(before, after, log, (id) => store.serviceJobs.get(id));
      deviceManager?.slotChanged(after);
      parts.changed?.(before, after);
      if (hasEnded(before, after)) caches.used(after.key);
      if (isEmpty(after)) parts.end.emptied();
    },
  });

  const caches = new Caches({
    clock,
    log,
    nameOf,
    folder: cachesFolder(config.stateDir),
    wanted: () => wantedCaches(pools, reconciler.slots, nameOf),
    mayTrim: (place) => isIdle(place, reconciler.slots, nameOf),
    minFree: config.diskMinFree,
  });
  const fingerprints = new Fingerprints({
    log,
    reconciler,
    nameOf,
    images,
    proved: (pool) => store.provedImages.of(pool),
  });
  const needy = pools.filter((pool) => pool.devices.count !== 0);
  const deviceManager: DeviceManager | null =
    needy.length === 0
      ? null
      : (await import('../devices/device-manager.ts')).openDeviceManager({
          clock,
          log,
          store,
          reconciler,
          fingerprints,
          pools: needy,
          runtime: runtimes.get,
          repair: config.onQuarantine,
          engine: async (signal) => (await import('../../runtimes/docker/check.ts')).engineFacts(pools, env.docker, signal, clock),
          host: { path: env.path, root: env.hostRoot, runner: parts.runner },
        });
  const boundary = (name: string): void => {
    if (name === env.crashAt) process.kill(process.pid, 'SIGKILL');
  };
  const mountPlaces = createMountPlaces(config, env);
  const held = new HeldJobs({
    clock,
    log,
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
  const observer = new Observer({
    clock,
    log,
    followers,
    reconciler,
    probe,
    held,
    fingerprints,
    runtimes: runtimes.all,
    rebooted: new Set(store.slots.all().flatMap(({ slot, thisBoot }) => (thisBoot ? [] : [slot.key]))),
    minFree: config.diskMinFree,
    makeRoom: async (signal) => {
      await images.prune(signal);
      await caches.makeRoom(signal);
    },
  });
  const dispatcher = createActionRunner({
    clock,
    post: (key, event) => reconciler.post(key, event),
    boundary,
    retrying: (key, action, error, ms) =>
      log.warn('trying again', {
        slot: key,
        agent: action.agent,
        action: action.act,
        seconds: ms / 1000,
        reason: toFailure(error).message,
      }),
    executors: new SlotActions({
      clock,
      followers,
      registrations,
      observer,
      deviceManager,
      fingerprints,
      caches,
      probe,
      held,
      hurry: parts.end.hurry,
      mountPlaces,
      synced: store.sync,
      slots: {
        place: (key) => {
          const slot = reconciler.slot(key);
          if (slot === undefined) throw new RangeError(`no such slot: ${key}`);
          return { slot, pool: reconciler.poolOf(key), name: nameOf(key), runtime: runtimes.get(slot.runtime) };
        },
        note: (key, line) => (line === null ? notes.delete(key) : notes.set(key, line)),
        ran: (agent, job) => store.transaction({ durable: false }, () => store.history.ran(agent, job)),
      },
    }),
  });
  opened.defer(() => held.close());
  opened.defer(() => caches.close());
  opened.defer(() => reconciler.close());
  opened.defer(() => dispatcher.close());
  opened.defer(() => registrations.close());
  opened.defer(() => images.close());
  opened.defer(() => fingerprints.close());
  // Nothing is released before everything was looked at once.
  reconciler.pause.hold('starting', 'onejob is starting');
  restoreSlots({
    reconciler,
    config,
    services,
    runtimes,
    store,
    clock,
    devices: deviceManager?.registry.slotDevices ?? withoutDevices,
  });
  const holds = createHolds({ clock, store, reconciler });
  holds.restore();
  writeProved(() => store.provedImages.keepOnly(pools.map(({ name }) => name)));
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
    probe,
    holds,
    held,
    /** null if no pool needs devices. It outlives the loop: the caller that starts it closes it. */
    deviceManager,
    nameOf,
    /** What a slot is busy with, for people; null if there is nothing to say. */
    noteOf: (key: string): string | null => notes.get(key) ?? null,
    [Symbol.asyncDispose]: (): Promise<void> => closing.disposeAsync(),
  };
}

/** Records what a step of a slot says about its agents, in the same commit. Standbys that were never released leave no trace. */
function writeHistory(
  before: Slot,
  after: Slot,
  changes: readonly Change[],
  store: OutcomeStore,
  about: {
    readonly pool: string;
    readonly image: string | null;
    readonly memory: number | null;
    readonly name: string;
    readonly wall: number;
  },
): void {
  if (before.agent === after.agent) return;
  const { wall, ...place } = about;
  const left = before.agent.kind === 'free' ? null : before.agent.agent;
  const here = after.agent.kind === 'free' ? null : after.agent.agent;
  const table = store.history;
  if (left !== null && (left !== here || after.agent.kind === 'proving')) {
    table.ended(left, exitOf(left, after, changes), wall);
    agentEnded(store, left);
  }
  if (here === null || after.agent.kind === 'proving') return;
  if (left !== here) table.made({ agent: here, slot: after.key, devices: after.devices, madeAt: wall, ...place });
  if (after.agent.kind === 'busy') table.released(here, after.agent.job, wall);
}

/** How its job ended, if by the agent's own end; else how the agent ended, if its slot knows. */
function exitOf(agent: string, { leaving }: Slot, changes: readonly Change[]): Exit | null {
  const ended = changes.find((change) => change.change === 'ended' && change.agent === agent);
  if (ended?.change === 'ended' && isExit(ended.result)) return ended.result;
  return leaving.find((one) => one.agent === agent)?.exit ?? null;
}

function isExit(result: JobResult): result is Exit {
  return result.kind === 'code' || result.kind === 'signal' || result.kind === 'oom' || result.kind === 'lost';
}

/** Logs the progress of an agent whose service keeps its own jobs: nobody else reports it on this host. */
export function tellProgress(before: Slot, after: Slot, log: Log, jobOf: (id: JobId) => ServiceJob | null): void {
  const [was, is] = [before.agent, after.agent];
  const slot = after.key;
  const title = (job: JobId | null): string | null => (job === null ? null : (jobOf(job)?.title ?? job));
  if (is.kind === 'idle' && is.online && !(was.kind === 'idle' && was.online)) log.info('agent online', { slot, agent: is.agent });
  if (is.kind === 'busy' && was.kind !== 'busy') log.info('job began', { slot, agent: is.agent, job: title(is.job) });
  if ('agent' in was && hasBegun(was) && !('agent' in is && is.agent === was.agent && is.kind !== 'proving'))
    log.info('agent ended', { slot, agent: was.agent, job: 'job' in was ? title(was.job) : null });
}

function hasBegun(lane: AgentLane): boolean {
  if (lane.kind === 'ending') return lane.released;
  return lane.kind === 'busy' || lane.kind === 'idle';
}
