import { constants } from 'node:os';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { createClient } from './api/client.ts';
import { startApi } from './api/server.ts';
import { socketFinding } from './api/socket-access.ts';
import { checkListen, portFindings } from './api/web-port.ts';
import { OnejobError, toFailure } from './base/errors.ts';
import { warning } from './base/finding.ts';
import { fixedChanges } from './ci/types.ts';
import type { DaemonOptions, ProcessControl } from './cli/context.ts';
import { types } from './cli/types.ts';
import { configChange, howToApply, howToFix, whenTemporary } from './config/changed.ts';
import type { Environment } from './config/environment.ts';
import { listensOf } from './config/listens.ts';
import { type Loaded, loadConfig } from './config/load.ts';
import { findConfig, readGroup, sharedSocket } from './config/paths.ts';
import type { ConfigService } from './contract/manager.ts';
import { isEmpty } from './core/slot.ts';
import { openHost } from './host.ts';
import { openPorts, type Ports } from './http/ports.ts';
import { createImageDesk } from './manager/images/pool-images.ts';
import { poolOf } from './manager/loop/pool.ts';
import { storedSlots } from './manager/loop/restore-slots.ts';
import { tellStop } from './manager/loop/shutdown.ts';
import { createSecretPins } from './manager/services/secret-pins.ts';
import { chooseRuntimes } from './runtimes/choose.ts';
import { formatProblem } from './schema/problem.ts';
import { openWhenFree } from './store/store.ts';
import { notifyReady } from './system/notify.ts';
import { systemClock as clock } from './system/system-clock.ts';

/** Runs a manager until it has stopped, and another one whenever a changed config is applied. Returns the exit code. */
export async function runDaemon(options: DaemonOptions, env: Environment, control: ProcessControl): Promise<number> {
  const { log } = options;
  await using ending = new AsyncDisposableStack();
  // Signals may come while one manager has gone and the next is not there yet.
  const missed = { stops: 0, hangups: 0 };
  let hears: Hears | null = null;
  let isUp = false;
  const means = options.reloads === true ? 'reload' : 'end';
  ending.defer(control.onHangup(() => (hears === null ? void missed.hangups++ : hears.hangup()), means));
  ending.defer(
    control.onSignal((signal) => {
      if (hears !== null) hears.stop();
      else if (!isUp || missed.stops++ > 0) control.exit(128 + constants.signals[signal]);
    }),
  );
  const ports = await openPorts(env.sockets, log);
  ending.defer(() => ports.close());
  const load = (starting = false): Promise<Loaded> =>
    loadConfig({ types, flags: options, env, instead: options.instead, temporary: options.temporary, starting });
  const running: Running = {
    load,
    ports,
    hear(by) {
      hears = by;
      for (; by !== null && missed.stops > 0; missed.stops--) by.stop();
      if (by !== null && missed.hangups > 0) {
        missed.hangups = 0;
        by.hangup();
      }
    },
    up() {
      proven = null;
      if (!isUp) ending.use(notifyReady(env, clock, log));
      isUp = true;
    },
  };
  let current = await load(true);
  let proven: Loaded | null = null;
  for (;;) {
    try {
      const next = await runManager(current, options, env, running);
      if (next === null) return 0;
      [proven, current] = [current, next];
    } catch (error) {
      if (proven === null) throw error;
      const hint = 'onejob goes back to the config that it had before';
      log.error('failed to run with the changed config', { reason: toFailure(error).message, hint });
      [current, proven] = [proven, null];
    }
  }
}

/** What signals do. */
interface Hears {
  stop(): void;
  hangup(): void;
}

interface Running {
  readonly load: () => Promise<Loaded>;
  readonly ports: Ports;
  /** Who hears signals; null: the next manager. */
  hear(by: Hears | null): void;
  /** Called once a manager runs. */
  up(): void;
}

/** Returns the config to run with next; null if the daemon is to end. */
async function runManager(
  loading: Loaded,
  options: DaemonOptions,
  env: Environment,
  { load, ports, hear, up }: Running,
): Promise<Loaded | null> {
  const { log, version, self, temporary } = options;
  const { config, files, warnings } = loading;
  for (const warning of warnings) log.warn('config', { problem: formatProblem(warning) });
  let loaded = { path: config.path, files, at: clock.wall() };
  await using parts = new AsyncDisposableStack();

  const store = await openWhenFree(config.stateDir, {
    temporary,
    tellToLeave: async (socket) => createClient({ socket, version, patience: 5_000 }).down({ how: 'leave' }),
  });
  parts.defer(() => store.close());
  const stored = storedSlots(store, clock);
  const runtimes = await chooseRuntimes({
    config,
    clock,
    env,
    owner: store.owner,
    stateDir: store.dir,
    stored,
    held: store.held.all(),
  });
  parts.defer(() => {
    for (const runtime of runtimes.all) runtime.close?.();
  });
  const system = env.uid === 0 && !temporary;
  // The state directory is closed to others, so a shared socket is not in it.
  const isOwn = config.socket === join(config.stateDir, 'onejob.sock');
  const socket = system && isOwn && readGroup() !== null ? sharedSocket(config.stateDir) : config.socket;
  const listens = temporary ? [] : listensOf(config);
  ports.want(listens);
  const unheld = env.serviceManager === null ? [] : portFindings(listens, ports, env.uid !== 0);
  let web: { readonly problem: string | null } | null = null;
  const webProblems = (): string[] => (web?.problem == null ? [] : [web.problem]);
  const host = await openHost({
    config,
    env,
    store,
    runtimes,
    clock,
    log,
    ports,
    program: { version, self },
    async configChanged() {
      if (options.instead !== undefined) return null;
      const found = findConfig(options, env, process.cwd());
      const change = await configChange(loaded, found, clock.wall());
      const next = () =>
        load().then(
          () => (options.temporary ? whenTemporary : howToApply),
          () => howToFix(found),
        );
      return change === null ? null : `${change} ${await next()}`;
    },
    findings: () => [
      ...unheld,
      ...(system ? [socketFinding(socket)] : []),
      ...webProblems().map((why) => warning('dashboard', why)),
    ],
    problems: webProblems,
  });
  parts.use(host);

  let next: Loaded | null = null;
  const applyConfig: ConfigService['applyConfig'] = async ({ dryRun }) => {
    if (options.instead !== undefined || temporary) throw new OnejobError('E_CONFIG', 'This daemon has no config file to apply.');
    // It loads the schema of the config, which a daemon without a file does not need.
    const { differences } = await import('./config/difference.ts');
    const read = await load();
    const listen = read.config.api?.listen;
    // The daemon would go on without the dashboard, so this is told before anything changes.
    if (listen !== undefined && !isDeepStrictEqual(listen, config.api?.listen) && !ports.has(listen))
      await checkListen(listen, api.port);
    const { decided } = host.shutdown;
    if (decided !== null) throw new OnejobError('E_DAEMON_STOPPING', 'The daemon is stopping.', { retry: true });
    const moved = (['stateDir', 'socket'] as const).filter((key) => read.config[key] !== config[key]);
    if (moved.length > 0) {
      const hint = 'Type "onejob down --leave", and start the daemon again.';
      throw new OnejobError('E_CONFIG', 'Cannot change "state_dir" or "socket" of a running daemon.', { hint });
    }
    for (const { service, key } of fixedChanges(config.services, read.config.services)) {
      const busy = host.loop.reconciler.slots.filter((slot) => slot.service === service && !isEmpty(slot));
      if (busy.length === 0) continue;
      const pools = [...new Set(busy.map((slot) => poolOf(slot.key)))];
      const hint = `Type "onejob drain ${pools[0]}", wait until its jobs have ended, then apply the config and type "onejob resume ${pools[0]}".`;
      throw new OnejobError(
        'E_CONFIG',
        `Cannot change "${key}" of service ${service} while it has agents, in ${pools.join(', ')}.`,
        { hint },
      );
    }
    const changes = differences(config, read.config, types);
    const about = { warnings: [...read.warnings], stranded: host.strandedWith(read.config) };
    if (dryRun) return { applied: false, changes, ...about };
    log.info('applying the config', { changes });
    if (changes.length === 0) {
      api.refresh();
      loaded = { path: read.config.path, files: read.files, at: clock.wall() };
    } else {
      next = read;
      hear(null);
      host.shutdown.begin({ how: 'leave', grace: null, forget: false });
    }
    return { applied: changes.length > 0, changes, ...about };
  };
  const down: typeof host.manager.down = (request) => {
    const hint = 'Try again in a second.';
    if (next !== null) throw new OnejobError('E_DAEMON_STOPPING', 'The daemon is applying a config.', { hint, retry: true });
    host.manager.down(request);
  };
  const api = await startApi({
    config: { applyConfig },
    manager: { ...host.manager, down },
    images: createImageDesk(host.loop.images, config.pools),
    secrets: createSecretPins({ store, clock }),
    metrics: host.metrics,
    ...(host.machines !== null && { machines: host.machines.service }),
    socket: { path: socket, access: system ? 'group' : 'owner' },
    version,
    onBug: (error, route) => log.error('request failed', { route, error }),
    // A temporary daemon has the jobs of a terminal.
    web: { config: temporary ? null : config.api, stateDir: store.dir, log, ports },
    onCall: (request, { user, role }) => log.info('request over TCP', { request, user, role }),
  });
  web = api;
  ports.closeUnused();
  parts.defer(() => api.close({ reloads: next !== null }));
  store.listens(socket);
  parts.defer(() => store.listens(null));

  let signals = 0;
  const { onStop = config.onStop } = options;
  const stop = (): void => {
    tellStop(host.loop.reconciler.slots, onStop, signals++ === 0, log);
    host.shutdown.signal(onStop);
  };
  const hangup = (): void => {
    // Of a terminal that was closed, or of somebody who changed the config.
    if (options.reloads !== true) stop();
    else
      applyConfig({ dryRun: false }).catch((error: unknown) => {
        const hint = 'the daemon keeps the config that it has';
        log.error('failed to apply the config', { reason: toFailure(error).message, hint });
      });
  };
  log.info('onejob is up', { version, pid: process.pid, socket, runtime: runtimes.best.name });
  if (runtimes.reason !== null) log.info('runtime chosen', { reason: runtimes.reason });
  hear({ stop, hangup });
  parts.defer(() => hear(null));
  await host.start();
  up();
  const how = await host.finish();
  if (next === null) log.info('onejob is down', { left: how === 'leave' ? 'agents go on' : null });
  return next;
}
