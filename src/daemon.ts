import { join } from 'node:path';
import { createClient } from './api/client.ts';
import { startApi } from './api/server.ts';
import { socketFinding } from './api/socket-access.ts';
import { createCiServices } from './ci/index.ts';
import { tellLost } from './ci/own-queue/tell.ts';
import type { CliContext, DaemonOptions } from './cli/context.ts';
import { configChange, howToApply } from './config/changed.ts';
import type { Environment } from './config/environment.ts';
import { readGroup } from './config/group.ts';
import { loadConfig } from './config/load.ts';
import { findConfig, sharedSocket } from './config/paths.ts';
import { formatProblem } from './config/problem.ts';
import { slotNames } from './config/slot-names.ts';
import { weakenedFindings } from './config/weakened-findings.ts';
import { keepChoosing } from './pools/choose-again.ts';
import { followServices, slotFacts } from './pools/ci-events.ts';
import { systemClock as clock } from './pools/clock.ts';
import { foreignTo } from './pools/foreign.ts';
import { forgetServices, tellLeft } from './pools/forget.ts';
import { keepHouse } from './pools/housekeeping.ts';
import { createImageDesk } from './pools/image-desk.ts';
import { renewImages } from './pools/image-renewal.ts';
import { type Loop, openLoop } from './pools/loop.ts';
import { HostManager } from './pools/manager.ts';
import { rebased } from './pools/populate.ts';
import { createPruneJobs } from './pools/prune-jobs.ts';
import { createSecretDesk } from './pools/secret-desk.ts';
import { Shutdown } from './pools/shutdown.ts';
import { createStateRoom } from './pools/state-room.ts';
import { waitingReason } from './pools/status.ts';
import { tellStop } from './pools/tell-stop.ts';
import { createTrial } from './pools/trial.ts';
import { choiceNow, chooseRuntimes } from './runtimes/choose.ts';
import { subdirectory } from './store/directory.ts';
import { openWhenFree } from './store/open-when-free.ts';

/** Runs a manager until it has stopped; the exit code. */
export async function runDaemon(
  options: DaemonOptions,
  env: Environment,
  { onSignal, onHangup }: Pick<CliContext, 'onSignal' | 'onHangup'>,
): Promise<number> {
  const { log } = options;
  const flags = {
    config: options.config ?? undefined,
    stateDir: options.stateDir ?? undefined,
    socket: options.socket ?? undefined,
  };
  const { config, files, warnings } = await loadConfig({ flags, env, instead: options.instead });
  for (const warning of warnings) log.warn('config', { problem: formatProblem(warning) });
  const loaded = { path: config.path, files, at: clock.wall() };
  const changed = async () =>
    options.instead === undefined ? configChange(loaded, findConfig(flags, env, process.cwd()), clock.wall()) : null;
  await using parts = new AsyncDisposableStack();

  const store = await openWhenFree(config.stateDir, {
    temporary: options.temporary,
    tellToLeave: async (socket) => createClient({ socket, version: options.version, patience: 5_000 }).down({ how: 'leave' }),
  });
  parts.defer(() => store.close());
  const stored = store.slots.all().map(({ slot, thisBoot }) => (thisBoot ? slot : rebased(slot, clock.now())));
  const runtimes = await chooseRuntimes({ config, env, owner: store.owner, stateDir: store.dir, stored });
  parts.defer(() => {
    for (const runtime of runtimes.all) runtime.close?.();
  });
  const { pools } = config;
  const reasonFor = (pool: string): string | null => waitingReason(loop.reconciler, pool, loop.observer.problems);
  const services = createCiServices({
    ...{ config, env, store, reasonFor, clock, log },
    version: options.version,
    ...{ self: options.self, temporary: options.temporary },
    slots: slotFacts(() => loop.reconciler, clock),
  });
  const queue = services.own;
  parts.defer(() => queue.close());

  const nameOf = slotNames(config);
  const logDir = subdirectory(store.dir, 'logs');
  const hurry = new AbortController();
  const room = createStateRoom({ dir: store.dir, now: clock.now });
  const loop: Loop = await openLoop({
    noRoom: room.noRoom,
    ...{ config, env, store, stored, runtimes, clock, log, nameOf, logDir },
    services: services.byName,
    temporary: options.temporary,
    emptied: () => shutdown.look(),
    hurry: hurry.signal,
  });
  parts.use(loop);
  const { reconciler, observer, keepers, images, fingerprints, caches, fleet } = loop;

  const house = await keepHouse({ clock, log, store, queue, config, caches });
  parts.defer(() => house.close());
  const elsewhere = [...new Set(services.byName.values())].filter((service) => service !== queue);
  const shutdown = new Shutdown({
    reconciler,
    log,
    clock,
    unreachable: (runtime) => observer.unreachable(runtime),
    busy: () => queue.unfinished > 0,
    hurry: (why) => hurry.abort(why),
    forget: (instead) => forgetServices({ services: elsewhere, registrations: store.registrations, log }, instead),
    temporary: options.temporary,
    ...foreignTo(queue, reconciler),
  });
  const chosen = () => choiceNow(runtimes, observer.unreachable(runtimes.best.name) !== null);
  const system = env.uid === 0 && !options.temporary;
  // The state directory lets nobody else in, so what is shared is not in it.
  const isOwn = config.socket === join(config.stateDir, 'onejob.sock');
  const socket = system && isOwn && readGroup() !== null ? sharedSocket(config.stateDir) : config.socket;
  const started = Promise.withResolvers<void>();
  const manager = new HostManager({
    clock,
    reconciler,
    observer,
    keepers,
    holds: loop.holds,
    queue,
    services: elsewhere,
    store,
    trial: createTrial({
      ...{ nameOf, asker: loop.asker },
      pools: () => reconciler.pools,
      imageOf: (pool) => fingerprints.madeFrom(pool),
    }),
    runtimes: () => runtimes.all,
    logDir,
    nameOf,
    noteOf: loop.noteOf,
    fleet,
    waiting: (pool) => pool.service.waiting(pool.config.name),
    facts: {
      version: options.version,
      pid: process.pid,
      owner: store.owner,
      config: config.path,
      stateDir: store.dir,
      temporary: options.temporary,
    },
    chosen: () => ({ runtimeReason: chosen().reason, weaker: runtimes.best.capabilities.weaker }),
    findings: () => [
      ...(system ? [socketFinding(socket)] : []),
      ...chosen().findings,
      ...weakenedFindings(config),
      ...fingerprints.findings(),
      ...caches.findings(),
    ],
    hostFindings: async (signal) => [
      ...(await room.findings()),
      ...(await house.findings()),
      ...((await fleet?.doctor(signal)) ?? []),
    ],
    problems: () => [...[room.problem()].filter((one) => one !== null), ...observer.problems, ...house.problems, ...queue.problems],
    configChanged: changed,
    started: started.promise,
    pruneJobs: createPruneJobs({ store, queue, clock, logDir }),
    down: (request) => shutdown.begin(request),
    forgotten: shutdown.forgotten,
    held: (clients) => shutdown.clients(clients),
    isEnding: () => shutdown.isEnding,
  });

  const api = await startApi({
    manager,
    images: createImageDesk(images, pools),
    secrets: createSecretDesk({ store, clock }),
    socket: { path: socket, access: system ? 'group' : 'owner' },
    version: options.version,
    onBug: (error, route) => log.error('request failed', { route, error }),
  });
  parts.defer(() => api.close());
  store.listens(socket);
  parts.defer(() => store.listens(null));

  const watching = new AbortController();
  parts.defer(() => watching.abort());
  let signals = 0;
  const stop = (): void => {
    tellStop(reconciler.slots, config.onStop, signals++ === 0, log);
    shutdown.signal(config.onStop);
  };
  parts.defer(onSignal(stop));
  parts.defer(
    onHangup(() => {
      log.warn('hangup', { reason: 'the config is not read again while onejob runs, so this stops it', hint: howToApply });
      stop();
    }),
  );
  log.info('onejob is up', { version: options.version, pid: process.pid, socket, runtime: runtimes.best.name });
  if (runtimes.reason !== null) log.info('runtime chosen', { reason: runtimes.reason });

  const demanded = (pool: string) => fleet?.book.demanded(pool);
  followServices(
    new Set(services.byName.values()),
    { reconciler, clock, log, demanded, lastWords: loop.lastWords },
    watching.signal,
  );
  // The queue lets go of a job right after it has told of its end.
  queue.onChange((job) => {
    const { pool } = job;
    tellLost(job, log);
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
  // A temporary one ends with its jobs, and they were told where they run.
  if (!options.temporary) parts.defer(keepChoosing({ clock, log, runtimes, reconciler, observer }));
  reconciler.pause.release('starting');
  reconciler.start();
  started.resolve();
  shutdown.look();
  const how = await shutdown.finished;
  // Whoever waits for a job's end hears of it before the API is closed.
  reconciler.flush();
  if (how !== 'leave') await Promise.all(runtimes.all.map((runtime) => observer.sweep(runtime)));
  fleet?.close(how === 'leave');
  await Promise.all(elsewhere.map((service) => service.close(how === 'leave')));
  if (how !== 'leave') tellLeft({ registrations: store.registrations, log });
  log.info('onejob is down', { left: how === 'leave' ? 'agents go on' : null });
  return 0;
}
