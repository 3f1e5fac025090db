/** The daemon: one manager after the other, over the same ports, each with the config that was applied last. */

import { constants } from 'node:os';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { type ApiServer, startApi } from './api/server.ts';
import { peopleFindings, socketFinding } from './api/socket-access.ts';
import { checkListen, portFindings } from './api/web-port.ts';
import { OnejobError, toFailure } from './base/errors.ts';
import { warning } from './base/finding.ts';
import { ownQueue } from './ci/own-queue/type.ts';
import type { DaemonOptions, ProcessControl } from './cli/context.ts';
import { configChange, howToApply, howToFix, type LoadedConfig, whenTemporary } from './config/changed.ts';
import type { Config } from './config/config.ts';
import type { Environment } from './config/environment.ts';
import { lookAtHost } from './config/host-look.ts';
import { listensOf } from './config/listens.ts';
import { type Loaded, loadConfig } from './config/load.ts';
import { findConfig, readGroup, sharedSocket } from './config/paths.ts';
import { People } from './config/people.ts';
import { fixedChanges, type LazyTypes, type Types } from './config/types.ts';
import type { ConfigService } from './contract/manager.ts';
import type { ApplyAnswer, ApplyRequest } from './contract/schema.ts';
import { isEmpty, type Slot } from './core/slot.ts';
import { type Host, openHost } from './host.ts';
import { openPorts, type Ports } from './http/ports.ts';
import { createImageDesk } from './manager/images/pool-images.ts';
import { poolOf } from './manager/loop/pool.ts';
import { storedSlots } from './manager/loop/restore-slots.ts';
import { tellStop } from './manager/loop/shutdown.ts';
import { createSecretPins } from './manager/services/secret-pins.ts';
import { chooseRuntimes } from './runtimes/choose.ts';
import { formatProblem } from './schema/problem.ts';
import { openWhenFree } from './store/store.ts';
import { readAccounts } from './system/accounts.ts';
import { notifyReady } from './system/notify.ts';
import { systemClock as clock } from './system/system-clock.ts';

const types: LazyTypes = {
  few: { services: [ownQueue], clouds: [], runtimes: [] },
  all: async () => (await import('./cli/types.ts')).types,
};

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
    loadConfig({ types, flags: options, env, look: lookAtHost, instead: options.instead, temporary: options.temporary, starting });
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
      const next = await runManager({ loading: current, options, env, running });
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

/** What one manager runs with. */
interface Setting {
  readonly loading: Loaded;
  readonly options: DaemonOptions;
  readonly env: Environment;
  readonly running: Running;
}

/** Returns the config to run with next; null if the daemon is to end. */
async function runManager(setting: Setting): Promise<Loaded | null> {
  const { loading, options, env, running } = setting;
  const { log, version, self, temporary } = options;
  const { config } = loading;
  const { ports } = running;
  for (const warning of loading.warnings) log.warn('config', { problem: formatProblem(warning) });
  const applying = new Applying(setting);
  await using parts = new AsyncDisposableStack();
  const { store, runtimes } = await openStore(setting, parts);
  const system = env.uid === 0 && !temporary;
  // The state directory is closed to others, so a shared socket is not in it.
  const isOwn = config.socket === join(config.stateDir, 'onejob.sock');
  const isShared = system && (config.people !== null || readGroup() !== null);
  const socket = isShared && isOwn ? sharedSocket(config.stateDir) : config.socket;
  const listens = temporary ? [] : listensOf(config);
  ports.want(listens);
  const unheld = env.serviceManager === null ? [] : portFindings(listens, ports, env.uid !== 0);
  const people = system && config.people !== null ? new People(config.people, readAccounts) : null;
  parts.defer(() => people?.close());
  await people?.start(clock, (error) => log.warn('cannot read users and groups', { reason: toFailure(error).message }));
  const host = await openHost({
    config,
    env,
    store,
    runtimes,
    clock,
    log,
    ports,
    people,
    program: { version, self },
    configChanged: () => applying.changed(),
    findings: () => [
      ...unheld,
      ...(system && people === null ? [socketFinding(socket)] : []),
      ...peopleFindings(config.people, people),
      ...applying.webProblems.map((why) => warning('dashboard', why, null, 'dashboard')),
    ],
    problems: () => applying.webProblems,
  });
  parts.use(host);
  const api = await startApi({
    config: applying,
    manager: {
      ...host.manager,
      down(request) {
        applying.mustNotMakeWay();
        host.manager.down(request);
      },
    },
    images: createImageDesk(host.loop.images, config.pools),
    secrets: createSecretPins({ store, clock }),
    metrics: host.metrics,
    ...(host.machines !== null && { machines: host.machines.service }),
    socket: { path: socket, access: system && people === null ? 'group' : system ? 'root' : 'owner' },
    people,
    version,
    onBug: (error, route) => log.error('request failed', { route, error }),
    // A temporary daemon has the jobs of a terminal.
    web: { config: temporary ? null : config.api, stateDir: store.dir, log, ports },
    onCall: (request, { user, role, person }) =>
      log.info(person === null ? 'request over TCP' : 'request of a person', { request, user, role }),
  });
  applying.connect(host, api);
  ports.closeUnused();
  parts.defer(() => api.close({ reloads: applying.next !== null }));
  store.listens(socket);
  parts.defer(() => store.listens(null));
  log.info('onejob is up', { version, pid: process.pid, socket, runtime: runtimes.best.name });
  if (runtimes.reason !== null) log.info('runtime chosen', { reason: runtimes.reason });
  running.hear(hearsOf(setting, host, applying));
  parts.defer(() => running.hear(null));
  await host.start();
  running.up();
  const how = await host.finish();
  if (applying.next === null) log.info('onejob is down', { left: how === 'leave' ? 'agents continue' : null });
  return applying.next;
}

/** The lock and the rows of the state directory, and the runtimes that pools use. `parts` closes them. */
async function openStore({ loading: { config }, options: { temporary, version }, env }: Setting, parts: AsyncDisposableStack) {
  const store = await openWhenFree(config.stateDir, {
    temporary,
    async tellToLeave(socket) {
      const { createClient } = await import('./api/client.ts');
      return createClient({ socket, version, patience: 5_000 }).down({ how: 'leave' });
    },
  });
  parts.defer(() => store.close());
  const runtimes = await chooseRuntimes({
    config,
    clock,
    env,
    owner: store.owner,
    stateDir: store.dir,
    stored: storedSlots(store, clock),
    held: store.held.all(),
    used: store.runtimes.add,
  });
  parts.defer(() => {
    for (const runtime of runtimes.all) runtime.close?.();
  });
  return { store, runtimes };
}

function hearsOf({ loading, options }: Setting, { loop, shutdown }: Host, applying: Applying): Hears {
  const { log, onStop = loading.config.onStop } = options;
  let signals = 0;
  const stop = (): void => {
    tellStop(loop.reconciler.slots, onStop, signals++ === 0, log);
    shutdown.signal(onStop);
  };
  const hangup = (): void => {
    // Of a terminal that was closed, or of somebody who changed the config.
    if (options.reloads !== true) stop();
    else
      applying.applyConfig({ dryRun: false }).catch((error: unknown) => {
        const hint = 'the daemon keeps the config that it has';
        log.error('failed to apply the config', { reason: toFailure(error).message, hint });
      });
  };
  return { stop, hangup };
}

/** The config's files while a manager runs: whether they have changed, and what happens when they are applied. */
class Applying implements ConfigService {
  readonly #setting: Setting;
  #loaded: LoadedConfig;
  #open: { readonly host: Host; readonly api: ApiServer } | null = null;
  #next: Loaded | null = null;

  constructor(setting: Setting) {
    this.#setting = setting;
    this.#loaded = readNow(setting.loading);
  }

  /** Nothing is applied before the manager and its API are open. */
  connect(host: Host, api: ApiServer): void {
    this.#open = { host, api };
  }

  /** The config to run with next; null: this manager is to continue, or the daemon ends with it. */
  get next(): Loaded | null {
    return this.#next;
  }

  get webProblems(): string[] {
    const problem = this.#open?.api.problem ?? null;
    return problem === null ? [] : [problem];
  }

  /** A sentence that says that the files have changed since they were read; null if they have not. */
  async changed(): Promise<string | null> {
    const { options, env, running } = this.#setting;
    if (options.instead !== undefined) return null;
    const found = findConfig(options, env, process.cwd());
    const change = await configChange(this.#loaded, found, clock.wall());
    if (change === null) return null;
    const what = await running.load().then(
      () => (options.temporary ? whenTemporary : howToApply),
      () => howToFix(found),
    );
    return `${change} ${what}`;
  }

  /** @throws OnejobError E_CONFIG, E_DAEMON_STOPPING: nothing has changed then */
  async applyConfig({ dryRun }: ApplyRequest): Promise<ApplyAnswer> {
    const { loading, options, running } = this.#setting;
    const { config } = loading;
    const open = this.#open;
    if (options.instead !== undefined || options.temporary)
      throw new OnejobError('E_CONFIG', 'This daemon has no config file to apply.');
    if (open === null) throw new RangeError('the daemon is not open yet');
    const { host, api } = open;
    // They load the schema of the config, which a daemon without a file does not need.
    const [{ differences }, known] = await Promise.all([import('./config/difference.ts'), types.all()]);
    const read = await running.load();
    const listen = read.config.api?.listen;
    // The daemon would continue without the dashboard, so this is told before anything changes.
    if (listen !== undefined && !isDeepStrictEqual(listen, config.api?.listen) && !running.ports.has(listen))
      await checkListen(listen, api.port);
    if (host.shutdown.decided !== null) throw new OnejobError('E_DAEMON_STOPPING', 'The daemon is stopping.', { retry: true });
    refuseFixed(known, config, read.config, host.loop.reconciler.slots);
    const changes = differences(config, read.config, known);
    const about = { warnings: [...read.warnings], stranded: host.strandedWith(read.config) };
    if (dryRun) return { applied: false, changes, ...about };
    options.log.info('applying the config', { changes });
    if (changes.length === 0) {
      api.refresh();
      this.#loaded = readNow(read);
    } else {
      this.#next = read;
      running.hear(null);
      host.shutdown.begin({ how: 'leave', grace: null, forget: false });
    }
    return { applied: changes.length > 0, changes, ...about };
  }

  /** @throws OnejobError E_DAEMON_STOPPING while this manager makes way for one with another config */
  mustNotMakeWay(): void {
    const hint = 'Try again in a second.';
    if (this.#next !== null) throw new OnejobError('E_DAEMON_STOPPING', 'The daemon is applying a config.', { hint, retry: true });
  }
}

function readNow({ config, files }: Loaded): LoadedConfig {
  return { path: config.path, files, at: clock.wall() };
}

/** Refuses changes that a running daemon cannot make. @throws OnejobError E_CONFIG */
function refuseFixed(known: Types, before: Config, after: Config, slots: readonly Slot[]): void {
  const moved = (['stateDir', 'socket'] as const).filter((key) => after[key] !== before[key]);
  if (moved.length > 0) {
    const hint = 'Type "onejob down --leave", and start the daemon again.';
    throw new OnejobError('E_CONFIG', 'Cannot change "state_dir" or "socket" of a running daemon.', { hint });
  }
  for (const { service, key } of fixedChanges(known, before.services, after.services)) {
    const busy = slots.filter((slot) => slot.service === service && !isEmpty(slot));
    if (busy.length === 0) continue;
    const pools = [...new Set(busy.map((slot) => poolOf(slot.key)))];
    const hint = `Type "onejob drain ${pools[0]}", wait until its jobs have ended, then apply the config and type "onejob resume ${pools[0]}".`;
    throw new OnejobError('E_CONFIG', `Cannot change "${key}" of service ${service} while it has agents, in ${pools.join(', ')}.`, {
      hint,
    });
  }
}
