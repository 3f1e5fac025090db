import { join } from 'node:path';
import { createClient } from './api/client.ts';
import { startApi } from './api/server.ts';
import { socketFinding } from './api/socket-access.ts';
import type { DaemonOptions, ProcessControl } from './cli/session.ts';
import { systemClock as clock } from './clock.ts';
import { configChange, howToApply } from './config/changed.ts';
import type { Environment } from './config/environment.ts';
import { loadConfig } from './config/load.ts';
import { findConfig, readGroup, sharedSocket } from './config/paths.ts';
import { formatProblem } from './config/problem.ts';
import { openHost } from './host.ts';
import { createImageDesk } from './manager/images/pool-images.ts';
import { storedSlots } from './manager/loop/restore-slots.ts';
import { tellStop } from './manager/loop/shutdown.ts';
import { createSecretPins } from './manager/services/secret-pins.ts';
import { chooseRuntimes } from './runtimes/choose.ts';
import { openWhenFree } from './store/store.ts';
import { notifyReady } from './system/notify.ts';

/** Runs a manager until it has stopped. Returns the exit code. */
export async function runDaemon(options: DaemonOptions, env: Environment, { onSignal, onHangup }: ProcessControl): Promise<number> {
  const { log, version, self, temporary } = options;
  const { config, files, warnings } = await loadConfig({ flags: options, env, instead: options.instead });
  for (const warning of warnings) log.warn('config', { problem: formatProblem(warning) });
  const loaded = { path: config.path, files, at: clock.wall() };
  await using parts = new AsyncDisposableStack();

  const store = await openWhenFree(config.stateDir, {
    temporary,
    tellToLeave: async (socket) => createClient({ socket, version, patience: 5_000 }).down({ how: 'leave' }),
  });
  parts.defer(() => store.close());
  const stored = storedSlots(store, clock);
  const runtimes = await chooseRuntimes({ config, clock, env, owner: store.owner, stateDir: store.dir, stored });
  parts.defer(() => {
    for (const runtime of runtimes.all) runtime.close?.();
  });
  const system = env.uid === 0 && !temporary;
  // The state directory is closed to others, so a shared socket is not in it.
  const isOwn = config.socket === join(config.stateDir, 'onejob.sock');
  const socket = system && isOwn && readGroup() !== null ? sharedSocket(config.stateDir) : config.socket;
  const host = await openHost({
    ...{ config, env, store, runtimes, clock, log, program: { version, self } },
    configChanged: async () =>
      options.instead === undefined ? configChange(loaded, findConfig(options, env, process.cwd()), clock.wall()) : null,
    findings: () => (system ? [socketFinding(socket)] : []),
  });
  parts.use(host);

  const api = await startApi({
    manager: host.manager,
    images: createImageDesk(host.loop.images, config.pools),
    secrets: createSecretPins({ store, clock }),
    socket: { path: socket, access: system ? 'group' : 'owner' },
    version,
    onBug: (error, route) => log.error('request failed', { route, error }),
  });
  parts.defer(() => api.close());
  store.listens(socket);
  parts.defer(() => store.listens(null));

  let signals = 0;
  const { onStop = config.onStop } = options;
  const stop = (): void => {
    tellStop(host.loop.reconciler.slots, onStop, signals++ === 0, log);
    host.shutdown.signal(onStop);
  };
  parts.defer(onSignal(stop));
  parts.defer(
    onHangup(() => {
      log.warn('hangup', { reason: 'onejob does not reload the config while it runs, so SIGHUP stops it', hint: howToApply });
      stop();
    }),
  );
  log.info('onejob is up', { version, pid: process.pid, socket, runtime: runtimes.best.name });
  if (runtimes.reason !== null) log.info('runtime chosen', { reason: runtimes.reason });
  await host.start();
  await using _ready = notifyReady(env, clock, log);
  const how = await host.finish();
  log.info('onejob is down', { left: how === 'leave' ? 'agents go on' : null });
  return 0;
}
