/**
 * One manager, put together: the parts are built in the order the data flows, run until somebody wants it to stop, and
 * are taken apart in the opposite order.
 */
import { randomBytes } from 'node:crypto';
import type { DownRequest } from './api/schema.ts';
import { startApi } from './api/server.ts';
import { createCiServices } from './ci/index.ts';
import type { DaemonOptions } from './cli/context.ts';
import { cachesFolder } from './config/caches.ts';
import type { Environment } from './config/environment.ts';
import { loadConfig } from './config/load.ts';
import { formatProblem } from './config/problem.ts';
import { slotNames } from './config/slot-names.ts';
import { weakenedFindings } from './config/weakened-findings.ts';
import { isEmpty } from './core/slot.ts';
import { toFailure } from './errors.ts';
import { Keepers } from './logs/keepers.ts';
import { deleteLog, LogFile, logPath } from './logs/log-file.ts';
import { createExecutors } from './pools/act.ts';
import { Asker } from './pools/ask.ts';
import { hasEnded, isIdle, wantedCaches } from './pools/cache-slots.ts';
import { type Caches, createCaches } from './pools/caches.ts';
import { followServices, slotFacts } from './pools/ci-events.ts';
import { systemClock as clock } from './pools/clock.ts';
import { Dispatcher } from './pools/executors.ts';
import { Fingerprints } from './pools/fingerprints.ts';
import type { Fleet } from './pools/fleet.ts';
import { foreignTo } from './pools/foreign.ts';
import { forgetServices, tellLeft } from './pools/forget.ts';
import { writeHistory } from './pools/history.ts';
import { keepHouse } from './pools/housekeeping.ts';
import { createImageDesk } from './pools/image-desk.ts';
import { renewImages } from './pools/image-renewal.ts';
import { lastWords } from './pools/last-words.ts';
import { HostManager } from './pools/manager.ts';
import { Observer } from './pools/observe.ts';
import { openPoolImages } from './pools/open-images.ts';
import { noDevices, type Pool } from './pools/pool.ts';
import { populate, rebased } from './pools/populate.ts';
import { Reconciler } from './pools/reconciler.ts';
import { Registrations } from './pools/registrations.ts';
import { createSecretDesk } from './pools/secret-desk.ts';
import { Shutdown } from './pools/shutdown.ts';
import { waitingReason } from './pools/status.ts';
import { tellProgress } from './pools/tell.ts';
import { tellStop } from './pools/tell-stop.ts';
import { createTrial } from './pools/trial.ts';
import { chooseRuntimes } from './runtimes/choose.ts';
import { subdirectory } from './store/directory.ts';
import { openWhenFree } from './store/open-when-free.ts';

/** Runs a manager until it has stopped; the exit code. */
export async function runDaemon(
  options: DaemonOptions,
  env: Environment,
  onSignal: (handler: () => void) => () => void,
): Promise<number> {
  const { log } = options;
  const flags = {
    config: options.config ?? undefined,
    stateDir: options.stateDir ?? undefined,
    socket: options.socket ?? undefined,
  };
  const { config, warnings } = await loadConfig({ flags, env, instead: options.instead });
  for (const warning of warnings) log.warn('config', { problem: formatProblem(warning) });
  await using parts = new AsyncDisposableStack();

  const store = await openWhenFree(config.stateDir, options);
  parts.defer(() => store.close());
  const stored = store.slots.all().map(({ slot, thisBoot }) => (thisBoot ? slot : rebased(slot, clock.now())));
  const runtimes = await chooseRuntimes({ config, env, owner: store.owner, stateDir: store.dir, stored });
  parts.defer(() => {
    for (const runtime of runtimes.all) runtime.close?.();
  });
  const { pools } = config;
  const reasonFor = (pool: string): string | null => waitingReason(reconciler, pool, observer.problems);
  const services = createCiServices({
    ...{ config, env, store, reasonFor, clock, log },
    version: options.version,
    ...{ self: options.self, temporary: options.temporary },
    slots: slotFacts(() => reconciler, clock),
  });
  const queue = services.own;
  parts.defer(() => queue.close());

  const newAgent = () => randomBytes(5).toString('hex');
  const asker = new Asker(newAgent);
  const registrations = new Registrations();
  const notes = new Map<string, string>();
  const nameOf = slotNames(config);
  const logDir = subdirectory(store.dir, 'logs');

  const keepers = new Keepers({
    clock,
    open: (agent) => new LogFile(logPath(logDir, agent), config.logLimit),
    forget: (agent) => deleteLog(logPath(logDir, agent)),
    state: (agent, state) => {
      const key = reconciler.placeOf(agent);
      if (state === 'released' && key !== undefined) reconciler.post(key, { kind: 'released', agent });
    },
    failed: (agent, error) => log.error('log incomplete', { agent, reason: toFailure(error).message }),
  });
  parts.defer(() => keepers.close());
  const said = (agent: string) => lastWords(keepers, logDir, agent);

  const reconciler: Reconciler = new Reconciler({
    clock,
    log,
    store: {
      transaction: (write) => store.transaction({ durable: false }, write),
      sync: () => store.sync(),
      syncNow: () => store.syncNow(),
      save: (before, after, changes) => {
        store.slots.save(after);
        const pool = reconciler.poolOf(after.key).config.name;
        writeHistory(before, after, changes, { table: store.history, pool, name: nameOf(after.key), wall: clock.wall() });
      },
    },
    act: (key, action) => dispatcher.start(key, action),
    newAgent,
    random: Math.random,
    changed: (before, after) => {
      const { binds, standsForSlots } = reconciler.poolOf(after.key).serviceOf(before).capabilities;
      if (before.agent !== after.agent && (binds === 'early' || standsForSlots))
        tellProgress(before, after, log, (id) => store.serviceJobs.get(id));
      fleet?.book.slotChanged(after);
      if (hasEnded(before, after)) caches.used(after.key);
      if (isEmpty(after)) shutdown.look();
    },
  });

  const dispatcher = new Dispatcher({
    clock,
    post: (key, event) => reconciler.post(key, event),
    boundary: (name) => {
      if (name === env.crashAt) process.kill(process.pid, 'SIGKILL');
    },
    retrying: (key, action, error, ms) =>
      log.warn('trying again', {
        slot: key,
        agent: action.agent,
        action: action.act,
        seconds: ms / 1000,
        reason: toFailure(error).message,
      }),
    executors: createExecutors({
      clock,
      keepers,
      registrations,
      place: (key) => {
        const slot = reconciler.slot(key);
        if (slot === undefined) throw new RangeError(`no such slot: ${key}`);
        return { slot, pool: reconciler.poolOf(key), name: nameOf(key) };
      },
      runtime: runtimes.get,
      startedAt: clock.now(),
      isAway: (runtime) => observer.unreachable(runtime.name) !== null,
      unreachable: (runtime, why) => observer.cannotReach(runtime, why),
      note: (key, line) => (line === null ? notes.delete(key) : notes.set(key, line)),
      devices: (uuids) => (uuids.length === 0 ? [] : (fleet?.book.leased(uuids) ?? [])),
      imageOf: (...asked) => fingerprints.imageOf(...asked),
      cpuset: async (pool, devices) =>
        pool.config.recipe.grant.numa && devices.length > 0 ? ((await fleet?.cpusNear(devices)) ?? null) : null,
      ensureCaches: (mounts) => caches.ensure(mounts),
      stamp: (pool, fingerprint) => fingerprints.stamp(pool, fingerprint),
      before: async (slot, agent, signal) => fleet?.prover.before(slot, agent, signal) ?? true,
      cuda: () => fleet?.book.inventory?.cuda ?? null,
      asker,
      lastWords: said,
      ran: (agent, job) => store.transaction({ durable: false }, () => store.history.ran(agent, job)),
      prove: async (slot, agent, note, signal) => fleet?.prover.prove(slot, agent, note, signal) ?? [{ kind: 'proved', agent }],
    }),
  });
  const caches: Caches = createCaches({
    clock,
    log,
    nameOf,
    folder: cachesFolder(config.stateDir),
    wanted: () => wantedCaches(pools, reconciler.slots, nameOf),
    mayTrim: (place) => isIdle(place, { slots: reconciler.slots, nameOf }),
    minFree: config.diskMinFree,
  });
  parts.defer(() => caches.close());
  parts.defer(() => reconciler.close());
  parts.defer(() => dispatcher.close());
  parts.defer(() => registrations.close());
  // Nothing is released before everything was looked at once.
  reconciler.pause.hold('starting', 'onejob is starting');

  const images = await openPoolImages({ config, env, store, services: services.byName, log });
  parts.defer(() => images.close());
  const fingerprints = new Fingerprints({ log, reconciler, nameOf, images });
  parts.defer(() => fingerprints.close());
  const needy = pools.filter((pool) => pool.devices.count !== 0);
  const fleet: Fleet | null =
    needy.length === 0
      ? null
      : (await import('./pools/fleet.ts')).openFleet({
          clock,
          log,
          store,
          reconciler,
          pools: needy,
          runtime: runtimes.get,
          waiting: (pool) => waitingDevices(pool),
          looked: (inventory) => fingerprints.looked(inventory),
          repair: config.onQuarantine,
          engine: async (signal) => (await import('./runtimes/docker/facts.ts')).engineFacts(pools, env.docker, signal),
          imageOf: (pool) => fingerprints.shownImage(pool),
          path: env.path,
          root: env.hostRoot,
        });
  populate({
    reconciler,
    devices: fleet?.book.slotDevices ?? noDevices,
    pools,
    stored,
    services: services.byName,
    runtimes,
    keepStandby: !options.temporary,
    forget: (key) => store.slots.remove(key),
  });
  fingerprints.start();

  const observer = new Observer({
    clock,
    log,
    keepers,
    reconciler,
    runtimes: runtimes.all,
    minFree: config.diskMinFree,
    makeRoom: async (signal) => {
      await images.prune(signal);
      await caches.makeRoom(signal);
    },
    isGuest: (agent) => asker.isGuest(agent),
    refreshFingerprints: (runtime, signal) => fingerprints.refresh(runtime, signal),
  });
  parts.defer(() => observer.close());

  const house = await keepHouse({ clock, log, store, queue, config, caches });
  parts.defer(() => house.close());
  const elsewhere = [...new Set(services.byName.values())].filter((service) => service !== queue);
  const shutdown = new Shutdown({
    reconciler,
    log,
    clock,
    unreachable: (runtime) => observer.unreachable(runtime),
    busy: () => queue.unfinished > 0,
    forget: (instead) => forgetServices({ services: elsewhere, registrations: store.registrations, log }, instead),
    temporary: options.temporary,
    ...foreignTo(queue, reconciler),
  });
  const manager = new HostManager({
    clock,
    reconciler,
    observer,
    keepers,
    queue,
    services: elsewhere,
    store,
    trial: createTrial({
      ...{ nameOf, asker },
      pools: () => reconciler.pools,
      imageOf: (pool) => fingerprints.madeFrom(pool),
    }),
    runtimes: runtimes.all,
    logDir,
    nameOf,
    noteOf: (key) => notes.get(key) ?? null,
    fleet,
    waiting: (pool) => pool.service.waiting(pool.config.name),
    facts: {
      version: options.version,
      pid: process.pid,
      owner: store.owner,
      config: config.path,
      stateDir: store.dir,
      temporary: options.temporary,
      runtimeReason: runtimes.reason,
      weaker: runtimes.best.capabilities.weaker,
    },
    findings: () => [...runtimes.findings, ...weakenedFindings(config), ...fingerprints.findings(), ...caches.findings()],
    hostFindings: async (signal) => [...(await house.findings()), ...((await fleet?.doctor(signal)) ?? [])],
    problems: () => [...observer.problems, ...house.problems],
    down: (request) => shutdown.begin(request),
    forgotten: shutdown.forgotten,
    held: (clients) => shutdown.clients(clients),
  });

  const system = env.uid === 0 && !options.temporary;
  const api = await startApi({
    manager,
    images: createImageDesk(images, pools),
    secrets: createSecretDesk({ store, clock }),
    socket: { path: config.socket, access: system ? 'group' : 'owner' },
    version: options.version,
    onBug: (error, route) => log.error('request failed', { route, error }),
  });
  parts.defer(() => api.close());

  const watching = new AbortController();
  parts.defer(() => watching.abort());
  let signals = 0;
  parts.defer(
    onSignal(() => {
      tellStop(reconciler.slots, config.onStop, signals++ === 0, log);
      shutdown.signal(config.onStop);
    }),
  );
  log.info('onejob is up', { version: options.version, pid: process.pid, socket: config.socket, runtime: runtimes.best.name });
  if (runtimes.reason !== null) log.info('runtime chosen', { reason: runtimes.reason });

  const demanded = (pool: string) => fleet?.book.demanded(pool);
  followServices(new Set(services.byName.values()), { reconciler, log, demanded, lastWords: said }, watching.signal);
  // The queue lets go of a job right after it has told of its end.
  queue.onChange(({ pool }) => {
    // One that waited for devices and was cancelled lets the next one ask.
    queueMicrotask(() => {
      demanded(pool);
      shutdown.look();
    });
  });
  await observer.start();
  // What a daemon before a temporary one has left at services is the next one's to judge.
  if (!options.temporary) void services.endStrays(watching.signal);
  parts.defer(() => fleet?.close(true));
  void fleet?.start();
  parts.defer(renewImages(images, { clock, log }));
  caches.start();
  reconciler.pause.release('starting');
  reconciler.start();
  shutdown.look();
  const how = await shutdown.finished;
  // Whoever waits for a job's end hears of it before the API is closed.
  reconciler.flush();
  if (how !== 'leave') await Promise.allSettled(runtimes.all.map((runtime) => runtime.sweep(watching.signal)));
  fleet?.close(how === 'leave');
  await Promise.all(elsewhere.map((service) => service.close(how === 'leave')));
  if (how !== 'leave') tellLeft({ registrations: store.registrations, log });
  log.info('onejob is down', { left: how === 'leave' ? 'agents go on' : null });
  return 0;
}

/** Which way a stop was asked for, in the end. */
export type StopWay = DownRequest['how'];

/** The next job of a pool that leases for each job, and how many devices it needs. */
function waitingDevices({ service, config }: Pool): { job: string; devices: number | 'all' } | null {
  const next = service.next(config.name, null);
  return next === null ? null : { job: next.job, devices: service.devicesFor(next.job) ?? config.devices.count };
}
