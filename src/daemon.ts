/**
 * One manager, put together: the parts are built in the order the data flows, run until somebody wants it to stop, and
 * are taken apart in the opposite order.
 */
import { randomBytes } from 'node:crypto';
import type { DownRequest } from './api/schema.ts';
import { startApi } from './api/server.ts';
import { createCiServices } from './ci/index.ts';
import type { DaemonOptions } from './cli/context.ts';
import type { Config } from './config/config.ts';
import type { Environment } from './config/environment.ts';
import { loadRunnable } from './config/load.ts';
import { formatProblem } from './config/problem.ts';
import { expandName, expandRecipe } from './config/template.ts';
import { isEmpty } from './core/slot.ts';
import { toFailure } from './errors.ts';
import { Keepers } from './logs/keepers.ts';
import { deleteLog, LogFile, logPath } from './logs/log-file.ts';
import { createExecutors } from './pools/act.ts';
import { systemClock as clock } from './pools/clock.ts';
import { Dispatcher } from './pools/executors.ts';
import { writeHistory } from './pools/history.ts';
import { HostManager } from './pools/manager.ts';
import { Observer } from './pools/observe.ts';
import { populate, rebased } from './pools/populate.ts';
import { Reconciler } from './pools/reconciler.ts';
import { Shutdown } from './pools/shutdown.ts';
import { waitingReason } from './pools/status.ts';
import { chooseRuntimes } from './runtimes/choose.ts';
import { subdirectory } from './store/directory.ts';
import { openStore } from './store/store.ts';

const housekeepingEvery = 60_000;

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
  const { config, warnings } = await loadRunnable({ flags, env });
  for (const warning of warnings) log.warn('config', { problem: formatProblem(warning) });
  await using parts = new AsyncDisposableStack();

  const store = openStore(config.stateDir);
  parts.defer(() => store.close());
  const stored = store.slots.all().map(({ slot, thisBoot }) => (thisBoot ? slot : rebased(slot, clock.now())));
  const runtimes = await chooseRuntimes({ config, env, owner: store.owner, stateDir: store.dir, stored });
  const { pools } = config;
  const reasonFor = (pool: string): string | null => waitingReason(reconciler, pool, observer.problems);
  const services = createCiServices({ config, env, store, reasonFor });
  const queue = services.own;
  parts.defer(() => queue.close());

  const names = new Map(pools.flatMap((pool) => slotNames(pool, config)));
  const notes = new Map<string, string>();
  const nameOf = (key: string): string => names.get(key) ?? key.replace('/', '-');
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
    newAgent: () => randomBytes(5).toString('hex'),
    random: Math.random,
    changed: (_, after) => {
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
      keepers,
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
    }),
  });
  parts.defer(() => reconciler.close());
  parts.defer(() => dispatcher.close());
  // Nothing is released before everything was looked at once.
  reconciler.pause.hold('starting', 'onejob is starting');

  populate({
    reconciler,
    pools,
    stored,
    services: services.byName,
    runtimes,
    keepStandby: !options.temporary,
    forget: (key) => store.slots.remove(key),
  });

  const observer = new Observer({
    clock,
    log,
    keepers,
    reconciler,
    runtimes: runtimes.all,
    minFree: config.diskMinFree,
    refreshFingerprints: async (runtime, signal) => {
      for (const { key } of reconciler.slots) {
        const pool = reconciler.poolOf(key);
        // One slot speaks for all where their recipes are the same.
        if (pool.runtime !== runtime || !(pool.isPerSlot || key.endsWith('/1'))) continue;
        const fingerprint = await runtime.fingerprint(expandRecipe(pool.config, nameOf(key)), signal);
        if (fingerprint !== null) pool.learn(key, fingerprint);
      }
    },
  });
  parts.defer(() => observer.close());

  const shutdown = new Shutdown({
    reconciler,
    log,
    clock,
    unreachable: (runtime) => observer.unreachable(runtime),
    busy: () => queue.unfinished > 0,
    temporary: options.temporary,
  });
  const manager = new HostManager({
    clock,
    reconciler,
    observer,
    keepers,
    queue,
    history: store.history,
    runtimes: runtimes.all,
    logDir,
    nameOf,
    noteOf: (key) => notes.get(key) ?? null,
    waiting: (pool) => (pool.service === queue ? queue.waiting(pool.config.name) : null),
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
    findings: () => [...runtimes.findings],
    down: (request) => shutdown.begin(request),
    held: (clients) => shutdown.clients(clients),
  });

  const system = env.uid === 0 && !options.temporary;
  const api = await startApi({
    manager,
    socket: { path: config.socket, access: system ? 'group' : 'owner' },
    version: options.version,
    onBug: (error, route) => log.error('request failed', { route, error }),
  });
  parts.defer(() => api.close());

  const watching = new AbortController();
  parts.defer(() => watching.abort());
  parts.defer(onSignal(() => shutdown.signal(config.onStop)));
  log.info('onejob is up', { version: options.version, pid: process.pid, socket: config.socket, runtime: runtimes.best.name });
  if (runtimes.reason !== null) log.info('runtime chosen', { reason: runtimes.reason });

  queue.observe((event) => {
    if (event.kind === 'waiting') reconciler.offer(event.pool);
    else if (event.kind === 'cancel') {
      const key = reconciler.placeOf(event.agent);
      const grace = event.grace ?? (key === undefined ? 0 : (reconciler.slot(key)?.grace ?? 0));
      if (key !== undefined) reconciler.post(key, { kind: 'stop', agent: event.agent, why: 'cancelled', grace });
    }
  }, watching.signal);
  // The queue lets go of a job right after it has told of its end.
  queue.onChange(() => queueMicrotask(() => shutdown.look()));
  parts.defer(
    everySoOften(async () => {
      await queue.prune(clock.wall(), config.keepJobs);
      store.checkpoint();
    }),
  );

  await observer.start();
  reconciler.pause.release('starting');
  reconciler.start();
  shutdown.look();
  const how = await shutdown.finished;
  // Whoever waits for a job's end hears of it before the API is closed.
  reconciler.flush();
  if (how !== 'leave') await Promise.allSettled(runtimes.all.map((runtime) => runtime.sweep(watching.signal)));
  log.info('onejob is down', { left: how === 'leave' ? 'agents go on' : null });
  return 0;

  function everySoOften(work: () => Promise<void>): () => void {
    let cancel = (): void => {};
    const next = (): void => {
      cancel = clock.after(housekeepingEvery, () => {
        work()
          .catch((error) => log.warn('housekeeping failed', { reason: toFailure(error).message }))
          .finally(next);
      });
    };
    next();
    return () => cancel();
  }
}

/** Which way a stop was asked for, in the end. */
export type StopWay = DownRequest['how'];

function slotNames(pool: Config['pools'][number], config: Config): [string, string][] {
  const agents = pool.agents === 'per-device' ? 0 : pool.agents;
  return Array.from({ length: agents }, (_, i) => [
    `${pool.name}/${i + 1}`,
    expandName(pool.agentName, { host: config.host, pool: pool.name, n: i + 1 }),
  ]);
}
