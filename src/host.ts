/**
 * One manager of one host, assembled on a store and runtimes: services, the loop, housekeeping, and the way it ends. The daemon
 * adds the command line, the choice of runtimes and the API; tests run it in virtual time.
 */

import { messageOf } from './base/errors.ts';
import { coded, type Finding } from './base/finding.ts';
import { type CiServices, createCiServices } from './ci/index.ts';
import type { Job } from './ci/own-queue/job.ts';
import type { OwnQueue } from './ci/own-queue/own-queue.ts';
import { tellLost } from './ci/own-queue/tell.ts';
import type { CiParts, ThisOnejob } from './ci/parts.ts';
import type { Config } from './config/config.ts';
import { weakenedFindings } from './config/findings.ts';
import type { PeopleTable } from './config/people.ts';
import { type Changes, createChanges } from './contract/changes.ts';
import type { Manager } from './contract/manager.ts';
import type { ToolRunner } from './gpu/run.ts';
import type { Ports } from './http/ports.ts';
import { createLogFolder } from './logs/log-file.ts';
import { outputTail } from './logs/select.ts';
import type { Machines } from './machines/open.ts';
import { createStateRoom, type StateRoom } from './manager/caches/state-room.ts';
import { conditions, isOfHost, lineOf, stateOf } from './manager/conditions.ts';
import { epollFindings } from './manager/epoll-watches.ts';
import { type House, keepHouse } from './manager/housekeeping.ts';
import { renewImages } from './manager/images/pool-images.ts';
import { keepChoosing } from './manager/loop/choose-again.ts';
import { type Loop, openLoop } from './manager/loop/loop.ts';
import type { LoopParts } from './manager/loop/parts.ts';
import { foreignTo, forgetServices, Shutdown, tellLeft } from './manager/loop/shutdown.ts';
import { createManager, type HostReport } from './manager/manager.ts';
import { createMetrics, type Metrics } from './manager/metrics/metrics.ts';
import type { ReadingParts } from './manager/metrics/readings.ts';
import { followServices, slotFacts } from './manager/services/ci-events.ts';
import { waitingReason } from './manager/status.ts';
import type { Notices } from './notices/notices.ts';
import type { CiService } from './ports/ci-service.ts';
import { choiceNow, isolationNotes } from './runtimes/choose.ts';
import { subdirectory } from './store/directory.ts';
import { machinePlace } from './store/machine.ts';

export interface HostParts extends Pick<LoopParts, 'config' | 'env' | 'store' | 'runtimes' | 'clock' | 'log'> {
  readonly program: Pick<ThisOnejob, 'version' | 'self'>;
  readonly outside?: Outside;
  /** null (default): who may open the socket may do everything. */
  readonly people?: PeopleTable | null;
  /** They outlive the host. */
  readonly ports?: Ports | undefined;
  /** A sentence that says that the config has changed since it was loaded; null if it has not. */
  readonly configChanged: () => Promise<string | null>;
  /** Findings for `doctor` in addition to the manager's own. */
  readonly findings: () => Finding[];
  /** Problems in addition to the manager's own, one sentence each. */
  readonly problems?: () => string[];
}

/** Replaces what lies outside of onejob, for tests. */
export interface Outside extends Partial<Pick<CiParts, 'variables' | 'fetch' | 'filter'>> {
  readonly runner?: ToolRunner;
}

/** What a host consists of, in the order in which it is opened. */
interface Opened {
  readonly metrics: Metrics;
  readonly services: CiServices;
  /** All services but the own queue. */
  readonly others: readonly CiService[];
  readonly changes: Changes;
  readonly room: StateRoom;
  /** Aborts when nobody waits any more for the artifacts and logs of ended jobs. */
  readonly hurry: AbortController;
  readonly loop: Loop;
  readonly house: House;
  /** null without `notify`, and for a temporary manager, which has somebody who waits for it. */
  readonly notices: Notices | null;
  /** Why services cannot serve pools of hosts; null: they can. */
  readonly away: Map<string, string | null>;
  readonly machines: Machines | null;
  readonly shutdown: Shutdown;
  readonly report: HostReport;
  /** Resolved once everything was looked at, and what is wanted has begun. */
  readonly started: PromiseWithResolvers<void>;
  readonly manager: Manager;
}

/** An open manager. Disposing of it closes everything in reverse, and leaves what runs to the next manager. */
export interface Host extends Pick<Opened, 'manager' | 'loop' | 'services' | 'shutdown' | 'metrics' | 'machines'>, AsyncDisposable {
  /** Which waiting jobs would never start with another config, a line for each pool. */
  strandedWith(other: Config): string[];
  /** Looks at everything once, then lets the loop decide and act. */
  start(): Promise<void>;
  /** Runs until the manager has ended, and closes connections to services. */
  finish(): Promise<'drain' | 'end' | 'leave'>;
}

/** A host of which these parts are open. Others may be asked for later, once something has begun: nothing begins before all is open. */
type With<K extends keyof Opened> = Partial<Opened> & Pick<Opened, K>;
type Base = 'metrics' | 'services' | 'others' | 'changes' | 'room' | 'hurry';
type Upkeep = 'house' | 'notices' | 'away' | 'machines';

/** @throws OnejobError E_STATE_CORRUPT, E_SOCKET_PATH, E_BUG; everything is closed again then */
export async function openHost(given: HostParts): Promise<Host> {
  await using stack = new AsyncDisposableStack();
  const host: Partial<Opened> = {};
  const based = Object.assign(host, await openServices(given, host, stack));
  const looping = Object.assign(based, { loop: stack.use(await openHostLoop(given, based)) });
  const kept = Object.assign(looping, await openUpkeep(given, looping, stack));
  const parts: Opened = Object.assign(kept, openFaces(given, kept));
  const watching = new AbortController();
  stack.defer(() => watching.abort());
  stack.defer(() => parts.loop.deviceManager?.close(true));
  const opened = stack.move();
  return {
    ...parts,
    strandedWith: (other) => strandedWith(parts.services.own, other),
    start: () => start(given, parts, opened, watching.signal),
    finish: () => finish(given, parts),
    [Symbol.asyncDispose]: () => opened.disposeAsync(),
  };
}

async function openServices(given: HostParts, host: Partial<Opened>, stack: AsyncDisposableStack): Promise<Pick<Opened, Base>> {
  const { config, env, store, clock, log, ports } = given;
  const { runner: _, ...outside } = given.outside ?? {};
  const metrics = createMetrics({
    clock,
    store,
    version: given.program.version,
    serviceNames: config.services.map(({ name }) => name),
    problems: () => host.report?.problems() ?? [],
    state: () => readingsOf(host),
  });
  stack.defer(metrics.close);
  const services = await createCiServices({
    // Machines in clouds have the slots of these pools; here they only show how many jobs wait.
    config: { ...config, pools: [...config.pools, ...config.hosts.flatMap((host) => host.pools)] },
    env,
    store,
    clock,
    log,
    onejob: { ...given.program, temporary: store.temporary },
    ports,
    people: given.people ?? null,
    ...outside,
    slots: {
      ...slotFacts(() => open(host.loop).reconciler, clock),
      reasonFor: (pool) => host.machines?.waitsFor(pool) ?? waitingReason(open(host.loop).reconciler, pool, open(host.loop).noteOf),
    },
    called: metrics.called,
  });
  const queue = services.own;
  stack.defer(() => queue.close());
  const changes = createChanges();
  stack.defer(queue.onChange(({ id }) => changes.mark(`job ${id}`)));
  const others = [...new Set(services.byName.values())].filter((service) => service !== queue);
  const room = createStateRoom({ dir: store.dir, now: clock.now });
  return { metrics, services, others, changes, room, hurry: new AbortController() };
}

function openHostLoop(given: HostParts, host: With<Base>): Promise<Loop> {
  const { config, store } = given;
  const { changes, hurry, metrics, room, services } = host;
  return openLoop({
    ...given,
    runner: given.outside?.runner,
    logs: createLogFolder(subdirectory(store.dir, 'logs'), { limit: config.logLimit, noRoom: room.noRoom }),
    services: services.byName,
    end: { emptied: () => host.shutdown?.look(), hurry: hurry.signal },
    heldChanged: (job) => changes.mark(`job ${job}`),
    changed: (before, after) => {
      changes.mark(`slot ${after.key}`);
      // The proof may have changed the verdict of its job.
      if (before.agent.kind === 'proving' && after.agent.kind !== 'proving')
        for (const { job } of store.outcomes.ofAgent(before.agent.agent)) changes.mark(`job ${job}`);
      metrics.slotChanged(before, after);
    },
  });
}

async function openUpkeep(given: HostParts, host: With<Base | 'loop'>, stack: AsyncDisposableStack): Promise<Pick<Opened, Upkeep>> {
  const { config, env, store, clock, log, outside = {} } = given;
  const { loop, services } = host;
  const queue = services.own;
  const notify = store.temporary ? null : config.notify;
  let notices: Notices | null = null;
  const checked = () => notices?.look();
  const house = await keepHouse({ clock, log, store, queue, config, caches: loop.cacheDesk, checked });
  stack.defer(() => house.close());
  if (notify !== null) {
    const [{ createOutbound }, { causesOf }, { createNotices }, { send, targetOf }] = await Promise.all([
      import('./http/outbound.ts'),
      import('./manager/causes.ts'),
      import('./notices/notices.ts'),
      import('./notices/send.ts'),
    ]);
    const outbound = createOutbound(env.proxies);
    stack.defer(() => outbound.close());
    const { reconciler, observer, deviceManager } = loop;
    const sending = { notify, env, clock, fetch: outside.fetch ?? outbound.fetch, variables: outside.variables };
    notices = createNotices({
      clock,
      log,
      store,
      host: config.host,
      target: targetOf(notify),
      see: () =>
        causesOf({
          reconciler,
          observer,
          deviceManager,
          secrets: house.troubles,
          stateDisk: host.room.problem(),
          conditions: conditions(stateOf({ queue, others: host.others, reconciler, deviceManager })),
        }),
      send: (message, signal) => send(message, sending, signal),
    });
  }
  stack.defer(() => notices?.close());
  const away = new Map(config.hosts.flatMap(({ pools }) => pools.map(({ name }) => [name, null as string | null] as const)));
  // Machines of hosts that the config no longer has still end, and so do their jobs.
  const isOnMachine = ({ progress: { agent } }: Job): boolean => agent !== null && machinePlace(agent) !== null;
  const hasMachines = config.hosts.length > 0 || store.machines.live().length > 0 || queue.elsewhere.open().some(isOnMachine);
  const machines = hasMachines && !store.temporary ? await openCloudHosts(given, host, away, stack) : null;
  stack.defer(() => machines?.close());
  return { house, notices, away, machines };
}

async function openCloudHosts(
  { clock, config, env, log, outside = {}, ports, program, store }: HostParts,
  host: With<Base | 'loop'>,
  away: ReadonlyMap<string, string | null>,
  stack: AsyncDisposableStack,
): Promise<Machines> {
  const [{ openMachines }, { createOutbound }] = await Promise.all([import('./machines/open.ts'), import('./http/outbound.ts')]);
  const outbound = createOutbound(env.proxies);
  stack.defer(() => outbound.close());
  const { fetch = outbound.fetch, variables = process.env } = outside;
  const { loop, services } = host;
  return openMachines({
    config,
    store,
    clock,
    log,
    fetch,
    variables,
    version: program.version,
    own: {
      queue: services.own,
      logs: loop.followers,
      history: store.history,
      mayStart: () => host.shutdown?.decided === null && !loop.reconciler.pause.any,
      recount: (pool) => countWaiting(config, services, host.machines, pool),
    },
    away,
    ports,
    services: [...services.byName.values()],
  });
}

/** How the manager ends, and what it says of itself. */
function openFaces(
  given: HostParts,
  host: With<Base | Upkeep | 'loop'>,
): Pick<Opened, 'shutdown' | 'report' | 'started' | 'manager'> {
  const { config, store, clock, log } = given;
  const { loop, services, others, hurry, changes } = host;
  const { reconciler, observer } = loop;
  const queue = services.own;
  const { temporary } = store;
  const shutdown = new Shutdown({
    reconciler,
    log,
    clock,
    temporary,
    unreachable: (runtime) => observer.unreachable(runtime),
    unsettled: loop.unsettled,
    busy: () => queue.unfinished > 0,
    hurry: (why) => hurry.abort(why),
    forget: (instead) => forgetServices({ services: others, registrations: store.registrations, clock, log }, instead),
    ...foreignTo(queue, reconciler),
  });
  const started = Promise.withResolvers<void>();
  const report = reportOf(given, host);
  const manager = createManager({
    clock,
    loop,
    shutdown,
    queue,
    store,
    changes,
    services: others,
    facts: {
      version: given.program.version,
      pid: process.pid,
      owner: store.owner,
      config: config.path,
      stateDir: store.dir,
      hostName: config.host,
      temporary,
    },
    host: report,
    failed: (error) => log.error('failed to look for changes', { error }),
    started: started.promise,
  });
  return { shutdown, report, started, manager };
}

/** What is known of the host as a whole. */
function reportOf(given: HostParts, host: With<Base | Upkeep | 'loop'>): HostReport {
  const { room, services, loop, house, notices, machines } = host;
  const { config, env, runtimes } = given;
  const { reconciler, observer, fingerprints, caches, deviceManager, held } = loop;
  const wrong = () => conditions(stateOf({ queue: services.own, others: host.others, reconciler, deviceManager }));
  const chosen = () => choiceNow(runtimes, observer.unreachable(runtimes.best.name) !== null);
  return {
    chosen: () => ({ runtimeReason: chosen().reason, weaker: runtimes.best.capabilities.weaker }),
    findings: () => [
      ...coded('access', given.findings()),
      ...coded('runtime', chosen().findings),
      ...coded('weak-sandbox', weakenedFindings(config)),
      ...coded('runtime', epollFindings(config.pools, { best: runtimes.best.name, root: env.uid === 0 })),
      ...coded('images', fingerprints.findings()),
      ...coded('caches', caches.findings()),
      ...coded('held-jobs', held.findings()),
      ...coded('notify', notices?.findings() ?? []),
    ],
    hostFindings: async (signal) => [
      ...coded('disk', await room.findings()),
      ...coded('secret', await house.findings()),
      ...coded('gpu-host', (await deviceManager?.doctor(signal)) ?? []),
    ],
    problems: () => [
      ...[room.problem(), notices?.problem ?? null].filter((one) => one !== null),
      ...observer.problems,
      ...house.problems,
      ...wrong().flatMap((one) => (isOfHost(one) ? [lineOf(one)] : [])),
      ...(machines?.problems() ?? []),
      ...(given.problems?.() ?? []),
    ],
    notesOf(pool) {
      const { runtime, service } = pool.config;
      const reason = runtime === null ? chosen().reason : null;
      return [
        ...isolationNotes(reason, pool.runtime.capabilities, pool.config.recipe),
        ...(pool.away === null ? [] : [pool.away]),
        ...services.own.plan([pool.config.name]).map(({ intent, because }) => `${intent}: ${because}`),
        ...house.problemsOf(service),
      ];
    },
    conditions: wrong,
    configChanged: given.configChanged,
    machines: machines?.service,
  };
}

function readingsOf({ loop, others, services }: Partial<Opened>): ReadingParts {
  const { reconciler, deviceManager: devices } = open(loop);
  const { own } = open(services);
  return {
    reconciler,
    devices,
    services: open(others),
    waitingSince: () => own.waitingSince(),
    stranded: () => own.stranded(),
  };
}

function open<T>(part: T | undefined): T {
  if (part === undefined) throw new RangeError('the host is not open yet');
  return part;
}

/** Tells how many jobs wait for machines of each host that has the pool; all hosts without one. */
function countWaiting(
  { hosts }: Pick<Config, 'hosts'>,
  { byName }: Pick<CiServices, 'byName'>,
  machines: Machines | null | undefined,
  pool?: string,
): void {
  for (const { host, pools } of hosts) {
    if (pool !== undefined && !pools.some(({ name }) => name === pool)) continue;
    const jobs = pools.map(({ name, service }) => byName.get(service)?.waiting?.(name) ?? 0);
    const sum = jobs.reduce((all, one) => all + one, 0);
    machines?.controller.setWaiting(host, sum);
  }
}

function strandedWith(queue: OwnQueue, { hosts, pools }: Config): string[] {
  const takers = [...pools, ...hosts.flatMap((one) => one.pools)].filter(({ service }) => service === queue.name);
  const state = { queue: { ...queue.stranded(), pools: new Set(takers.map(({ name }) => name)) }, pools: [], unfit: [] };
  return conditions(state).flatMap((one) => (one.kind === 'stranded jobs' ? [lineOf(one)] : []));
}

async function start(given: HostParts, parts: Opened, opened: AsyncDisposableStack, signal: AbortSignal): Promise<void> {
  const { clock, config, log, runtimes, store } = given;
  const { loop, services, machines, notices, shutdown, started } = parts;
  const { reconciler, observer } = loop;
  follow(given, parts, signal);
  await observer.start();
  loop.held.start();
  // The next permanent daemon handles what a previous one left at services.
  if (!store.temporary) void services.endStrays(signal);
  void loop.deviceManager?.start();
  countWaiting(config, services, machines);
  await machines?.start();
  opened.defer(renewImages(loop.images, { clock, log }));
  loop.caches.start();
  // A temporary manager ends with its jobs, which were told where they run.
  if (!store.temporary) opened.defer(keepChoosing({ clock, log, runtimes, reconciler, observer }));
  reconciler.pause.release('starting');
  reconciler.start();
  started.resolve();
  shutdown.look();
  // What the previous manager could not send any more is not left waiting.
  notices?.look();
}

/** Hears services and the own queue. */
function follow({ clock, config, log }: HostParts, parts: Opened, signal: AbortSignal): void {
  const { loop, services, machines, shutdown, away } = parts;
  const { reconciler, deviceManager, followers } = loop;
  const demanded = (pool: string): void => {
    deviceManager?.registry.demandChanged(pool);
    reconciler.withdraw(pool);
    // A job that a machine takes now waits no more.
    machines?.jobs?.look();
    countWaiting(config, services, machines, pool);
  };
  followServices(
    new Set(services.byName.values()),
    { reconciler, clock, log, demanded, away, outputTail: (agent) => outputTail(followers.read(agent)) },
    signal,
  );
  // The queue drops a job right after it has reported its end.
  services.own.onChange((job) => {
    const { pool } = job;
    tellLost(job, log);
    // The cancellation of a job that waited for devices lets the next one ask.
    queueMicrotask(() => {
      demanded(pool);
      // It may have moved here from a pool of machines.
      countWaiting(config, services, machines);
      shutdown.look();
    });
  });
}

/** Also of runtimes that only an earlier config has used. */
async function sweepAll({ log, runtimes, store }: Pick<HostParts, 'log' | 'runtimes' | 'store'>, loop: Loop): Promise<void> {
  const ours = runtimes.all;
  const earlier = store.runtimes.all().filter((name) => !ours.some((runtime) => runtime.name === name));
  for (const name of earlier) {
    await runtimes.make(name).catch((error: unknown) => {
      log.warn('failed to remove what an earlier config has left', { runtime: name, reason: messageOf(error) });
    });
  }
  const swept = await Promise.all(
    runtimes.all.map(async (runtime) => ((await loop.observer.sweep(runtime)) ? runtime.name : null)),
  );
  store.runtimes.remove(earlier.filter((name) => swept.includes(name)));
}

async function finish({ log, runtimes, store }: HostParts, { loop, others, shutdown }: Opened): Promise<'drain' | 'end' | 'leave'> {
  const how = await shutdown.finished;
  // Those who wait for a job's end are notified before the API is closed.
  loop.reconciler.flush();
  if (how !== 'leave') await loop.held.removeAll();
  if (how !== 'leave') await sweepAll({ log, runtimes, store }, loop);
  loop.deviceManager?.close(how === 'leave');
  await Promise.all(others.map((service) => service.close?.(how === 'leave')));
  if (how !== 'leave') tellLeft({ registrations: store.registrations, log });
  return how;
}
