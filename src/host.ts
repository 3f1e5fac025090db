/**
 * One manager of one host, assembled on a store and runtimes: services, the loop, housekeeping, and the way it ends. The daemon
 * adds the command line, the choice of runtimes and the API; tests run it in virtual time.
 */

import type { Finding } from './base/finding.ts';
import { createCiServices } from './ci/index.ts';
import type { Job } from './ci/own-queue/job.ts';
import { tellLost } from './ci/own-queue/tell.ts';
import type { CiParts, ThisOnejob } from './ci/parts.ts';
import type { Config } from './config/config.ts';
import { weakenedFindings } from './config/findings.ts';
import { createChanges } from './contract/changes.ts';
import type { ToolRunner } from './gpu/run.ts';
import type { Ports } from './http/ports.ts';
import { createLogFolder } from './logs/log-file.ts';
import { outputTail } from './logs/select.ts';
import type { Machines } from './machines/open.ts';
import { createStateRoom } from './manager/caches/state-room.ts';
import { causesOf } from './manager/causes.ts';
import { conditions, isOfHost, lineOf, stateOf } from './manager/conditions.ts';
import { epollFindings } from './manager/epoll-watches.ts';
import { keepHouse } from './manager/housekeeping.ts';
import { renewImages } from './manager/images/pool-images.ts';
import { type Loop, openLoop } from './manager/loop/loop.ts';
import { keepChoosing } from './manager/loop/observe.ts';
import type { LoopParts } from './manager/loop/parts.ts';
import type { Pool } from './manager/loop/pool.ts';
import { createShutdown, foreignTo, forgetServices, tellLeft } from './manager/loop/shutdown.ts';
import { createManager } from './manager/manager.ts';
import { createMetrics } from './manager/metrics/metrics.ts';
import { followServices, slotFacts } from './manager/services/ci-events.ts';
import { waitingReason } from './manager/status.ts';
import { createNotices, type Notices } from './notices/notices.ts';
import { send, targetOf } from './notices/send.ts';
import { choiceNow } from './runtimes/choose.ts';
import { subdirectory } from './store/directory.ts';
import { machinePlace } from './store/machine.ts';

export interface HostParts extends Pick<LoopParts, 'config' | 'env' | 'store' | 'runtimes' | 'clock' | 'log'> {
  readonly program: Pick<ThisOnejob, 'version' | 'self'>;
  readonly outside?: Outside;
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

export type Host = Awaited<ReturnType<typeof openHost>>;

/** @throws OnejobError E_STATE_CORRUPT, E_SOCKET_PATH, E_BUG; everything is closed again then */
export async function openHost(given: HostParts) {
  const { config, env, store, runtimes, clock, log } = given;
  const { temporary } = store;
  const { runner, ...outside } = given.outside ?? {};
  await using parts = new AsyncDisposableStack();
  const reasonFor = (pool: string): string | null => machines?.waitsFor(pool) ?? waitingReason(loop.reconciler, pool);
  // It reads what is made below.
  const metrics = createMetrics({
    clock,
    store,
    version: given.program.version,
    serviceNames: config.services.map(({ name }) => name),
    problems: () => problems(),
    state: () => ({
      reconciler: loop.reconciler,
      devices: loop.deviceManager,
      services: elsewhere,
      waitingSince: () => queue.waitingSince(),
      stranded: () => queue.stranded(),
    }),
  });
  parts.defer(metrics.close);
  const services = await createCiServices({
    // Machines in clouds have the slots of these pools; here they only show how many jobs wait.
    config: { ...config, pools: [...config.pools, ...config.hosts.flatMap((host) => host.pools)] },
    env,
    store,
    clock,
    log,
    onejob: { ...given.program, temporary },
    ports: given.ports,
    ...outside,
    slots: { ...slotFacts(() => loop.reconciler, clock), reasonFor },
    called: metrics.called,
  });
  const queue = services.own;
  let machines: Machines | null = null;
  parts.defer(() => queue.close());

  const changes = createChanges();
  parts.defer(queue.onChange(({ id }) => changes.mark(`job ${id}`)));
  const hurry = new AbortController();
  const room = createStateRoom({ dir: store.dir, now: clock.now });
  const loop: Loop = await openLoop({
    config,
    env,
    store,
    runtimes,
    clock,
    log,
    runner,
    logs: createLogFolder(subdirectory(store.dir, 'logs'), { limit: config.logLimit, noRoom: room.noRoom }),
    services: services.byName,
    end: { emptied: () => shutdown.look(), hurry: hurry.signal },
    heldChanged: (job) => changes.mark(`job ${job}`),
    changed: (before, after) => {
      changes.mark(`slot ${after.key}`);
      // The proof may have changed the verdict of its job.
      if (before.agent.kind === 'proving' && after.agent.kind !== 'proving')
        for (const { job } of store.outcomes.ofAgent(before.agent.agent)) changes.mark(`job ${job}`);
      metrics.slotChanged(before, after);
    },
  });
  parts.use(loop);
  const { reconciler, observer, images, fingerprints, caches, deviceManager, held } = loop;

  const toTell = config.notify === null || temporary ? null : (await import('./http/outbound.ts')).createOutbound(env.proxies);
  parts.defer(() => toTell?.close());
  const house = await keepHouse({ clock, log, store, queue, config, caches, checked: () => notices?.look() });
  parts.defer(() => house.close());
  const notices = tellPeople();
  parts.defer(() => notices?.close());
  const away = new Map(config.hosts.flatMap(({ pools }) => pools.map(({ name }) => [name, null as string | null] as const)));
  // Machines of hosts that the config no longer has still end, and so do their jobs.
  const isOnMachine = ({ progress: { agent } }: Job): boolean => agent !== null && machinePlace(agent) !== null;
  const hasMachines = config.hosts.length > 0 || store.machines.live().length > 0 || queue.elsewhere.open().some(isOnMachine);
  machines = hasMachines && !temporary ? await openCloudHosts() : null;
  parts.defer(() => machines?.close());
  const elsewhere = [...new Set(services.byName.values())].filter((service) => service !== queue);
  const shutdown = createShutdown({
    reconciler,
    log,
    clock,
    temporary,
    unreachable: observer.unreachable,
    busy: () => queue.unfinished > 0,
    hurry: (why) => hurry.abort(why),
    forget: (instead) => forgetServices({ services: elsewhere, registrations: store.registrations, clock, log }, instead),
    ...foreignTo(queue, reconciler),
  });
  const wrong = () => conditions(stateOf({ queue, reconciler, deviceManager }));
  const chosen = () => choiceNow(runtimes, observer.unreachable(runtimes.best.name) !== null);
  const problems = (): string[] => [
    ...[room.problem(), notices?.problem ?? null].filter((one) => one !== null),
    ...observer.problems,
    ...house.problems,
    ...wrong().flatMap((one) => (isOfHost(one) ? [lineOf(one)] : [])),
    ...(machines?.problems() ?? []),
    ...(given.problems?.() ?? []),
  ];
  const notesOf = (pool: Pool): string[] => {
    const { runtime, service } = pool.config;
    const reason = runtime === null ? chosen().reason : null;
    const how = [reason, pool.runtime.capabilities.weaker].filter((one) => one !== null);
    const where = how.length === 0 ? [] : [how.join('. ').replace('.. ', '. ')];
    return [...where, ...(pool.away === null ? [] : [pool.away]), ...house.problemsOf(service)];
  };
  const started = Promise.withResolvers<void>();
  const manager = createManager({
    clock,
    loop,
    shutdown,
    queue,
    store,
    changes,
    services: elsewhere,
    facts: {
      version: given.program.version,
      pid: process.pid,
      owner: store.owner,
      config: config.path,
      stateDir: store.dir,
      hostName: config.host,
      temporary,
    },
    host: {
      chosen: () => ({ runtimeReason: chosen().reason, weaker: runtimes.best.capabilities.weaker }),
      findings: () => [
        ...given.findings(),
        ...chosen().findings,
        ...weakenedFindings(config),
        ...epollFindings(config.pools, { best: runtimes.best.name, root: env.uid === 0 }),
        ...fingerprints.findings(),
        ...caches.findings(),
        ...held.findings(),
        ...(notices?.findings() ?? []),
      ],
      hostFindings: async (signal) => [
        ...(await room.findings()),
        ...(await house.findings()),
        ...((await deviceManager?.doctor(signal)) ?? []),
      ],
      problems,
      notesOf,
      conditions: wrong,
      configChanged: given.configChanged,
      machines: machines?.service,
    },
    failed: (error) => log.error('failed to look for changes', { error }),
    started: started.promise,
  });
  /** null without `notify`. A temporary manager has somebody who waits for it. */
  function tellPeople(): Notices | null {
    const { notify } = config;
    if (notify === null || toTell === null) return null;
    const sending = { notify, env, clock, fetch: outside.fetch ?? toTell.fetch, variables: outside.variables };
    return createNotices({
      clock,
      log,
      store,
      host: config.host,
      target: targetOf(notify),
      see: () =>
        causesOf({ reconciler, observer, deviceManager, secrets: house.troubles, stateDisk: room.problem(), conditions: wrong() }),
      send: (message, signal) => send(message, sending, signal),
    });
  }

  async function openCloudHosts() {
    const [{ openMachines }, { createOutbound }] = await Promise.all([import('./machines/open.ts'), import('./http/outbound.ts')]);
    const outbound = createOutbound(env.proxies);
    parts.defer(() => outbound.close());
    const { fetch = outbound.fetch, variables = process.env } = outside;
    const { version } = given.program;
    const mayStart = () => shutdown.decided === null && !loop.reconciler.pause.any;
    const own = { queue, logs: loop.followers, history: store.history, mayStart, recount: countWaiting };
    return openMachines({
      config,
      store,
      clock,
      log,
      fetch,
      variables,
      version,
      own,
      away,
      ports: given.ports,
      services: [...services.byName.values()],
    });
  }
  /** Tells how many jobs wait for machines of each host that has the pool; all hosts without one. */
  function countWaiting(pool: string | null = null): void {
    for (const { host, pools } of config.hosts) {
      if (pool !== null && !pools.some(({ name }) => name === pool)) continue;
      const jobs = pools.map(({ name, service }) => services.byName.get(service)?.waiting?.(name) ?? 0);
      machines?.controller.setWaiting(
        host,
        jobs.reduce((sum, one) => sum + one, 0),
      );
    }
  }

  const watching = new AbortController();
  parts.defer(() => watching.abort());
  parts.defer(() => deviceManager?.close(true));

  const opened = parts.move();
  return {
    manager,
    loop,
    services,
    shutdown,
    metrics,
    machines,
    /** Which waiting jobs would never start with another config, a line for each pool. */
    strandedWith(other: Config): string[] {
      const ofHosts = other.hosts.flatMap((one) => one.pools);
      const takers = [...other.pools, ...ofHosts].filter(({ service }) => service === queue.name);
      const state = { queue: { ...queue.stranded(), pools: new Set(takers.map(({ name }) => name)) }, pools: [] };
      return conditions(state).flatMap((one) => (one.kind === 'stranded jobs' ? [lineOf(one)] : []));
    },
    /** Looks at everything once, then lets the loop decide and act. */
    async start(): Promise<void> {
      const demanded = (pool: string) => {
        deviceManager?.registry.demanded(pool);
        // A job that a machine takes now waits no more.
        machines?.jobs?.look();
        countWaiting(pool);
      };
      followServices(
        new Set(services.byName.values()),
        { reconciler, clock, log, demanded, away, outputTail: (agent) => outputTail(loop.followers.read(agent)) },
        watching.signal,
      );
      // The queue drops a job right after it has reported its end.
      queue.onChange((job) => {
        const { pool } = job;
        tellLost(job, log);
        // The cancellation of a job that waited for devices lets the next one ask.
        queueMicrotask(() => {
          demanded(pool);
          // It may have moved here from a pool of machines.
          countWaiting();
          shutdown.look();
        });
      });
      await observer.start();
      held.start();
      // The next permanent daemon handles what a previous one left at services.
      if (!temporary) void services.endStrays(watching.signal);
      void deviceManager?.start();
      countWaiting();
      await machines?.start();
      opened.defer(renewImages(images, { clock, log }));
      caches.start();
      // A temporary manager ends with its jobs, which were told where they run.
      if (!temporary) opened.defer(keepChoosing({ clock, log, runtimes, reconciler, observer }));
      reconciler.pause.release('starting');
      reconciler.start();
      started.resolve();
      shutdown.look();
      // What the previous manager could not send any more is not left waiting.
      notices?.look();
    },
    /** Runs until the manager has ended, and closes connections to services. */
    async finish(): Promise<'drain' | 'end' | 'leave'> {
      const how = await shutdown.finished;
      // Those who wait for a job's end are notified before the API is closed.
      reconciler.flush();
      if (how !== 'leave') await held.removeAll();
      if (how !== 'leave') await Promise.all(runtimes.all.map((runtime) => observer.sweep(runtime)));
      deviceManager?.close(how === 'leave');
      await Promise.all(elsewhere.map((service) => service.close?.(how === 'leave')));
      if (how !== 'leave') tellLeft({ registrations: store.registrations, log });
      return how;
    },
    [Symbol.asyncDispose]: (): Promise<void> => opened.disposeAsync(),
  };
}
