/**
 * One manager of one host, put together on a store and on runtimes that are there: services, the loop, house-keeping, and the way
 * it ends. The daemon adds the command line, the choice of runtimes and the API; tests run it in virtual time.
 */
import type { Manager } from './api/manager.ts';
import { type CiServices, createCiServices } from './ci/index.ts';
import { tellLost } from './ci/own-queue/tell.ts';
import type { CiParts, ThisOnejob } from './ci/parts.ts';
import { weakenedFindings } from './config/findings.ts';
import { slotNames } from './config/template.ts';
import type { Finding } from './finding.ts';
import { createDiagnosticSandboxes } from './manager/actions/probe-sandbox.ts';
import { createStateRoom } from './manager/caches/state-room.ts';
import { createPruneJobs, keepHouse } from './manager/housekeeping.ts';
import { renewImages } from './manager/images/pool-images.ts';
import { type Loop, type LoopParts, openLoop } from './manager/loop/loop.ts';
import { keepChoosing } from './manager/loop/observe.ts';
import { createShutdown, foreignTo, forgetServices, type Shutdown, tellLeft } from './manager/loop/shutdown.ts';
import { createManager } from './manager/manager.ts';
import { followServices, slotFacts } from './manager/services/ci-events.ts';
import { waitingReason } from './manager/status.ts';
import { choiceNow } from './runtimes/choose.ts';
import { subdirectory } from './store/directory.ts';

export interface HostParts
  extends Pick<CiParts, 'variables' | 'fetch' | 'filter'>,
    Pick<ThisOnejob, 'version' | 'self'>,
    Pick<LoopParts, 'config' | 'env' | 'store' | 'stored' | 'runtimes' | 'clock' | 'log' | 'temporary' | 'runner'> {
  /** Why the config in use is not the one that is written down by now; null while it is. */
  readonly configChanged: () => Promise<string | null>;
  /** What `doctor` says beside what the manager finds itself. */
  readonly findings: () => Finding[];
}

export interface Host extends AsyncDisposable {
  readonly manager: Manager;
  readonly loop: Loop;
  readonly services: CiServices;
  readonly shutdown: Shutdown;
  /** Looks at everything once, then lets the loop decide and act. */
  start(): Promise<void>;
  /** Runs until the manager has come to its end, and closes what is open at services. */
  finish(): Promise<'drain' | 'end' | 'leave'>;
}

/** @throws OnejobError E_STATE_CORRUPT, E_SOCKET_PATH, E_BUG; what was opened is closed again. */
export async function openHost(given: HostParts): Promise<Host> {
  const { config, env, store, stored, runtimes, clock, log, temporary } = given;
  await using parts = new AsyncDisposableStack();
  const reasonFor = (pool: string): string | null => waitingReason(loop.reconciler, pool, loop.observer.problems);
  const services = createCiServices({
    ...{ config, env, store, clock, log, onejob: { version: given.version, self: given.self, temporary } },
    ...(given.variables !== undefined && { variables: given.variables }),
    ...(given.fetch !== undefined && { fetch: given.fetch }),
    ...(given.filter !== undefined && { filter: given.filter }),
    slots: { ...slotFacts(() => loop.reconciler, clock), reasonFor },
  });
  const queue = services.own;
  parts.defer(() => queue.close());

  const nameOf = slotNames(config);
  const logDir = subdirectory(store.dir, 'logs');
  const hurry = new AbortController();
  const room = createStateRoom({ dir: store.dir, now: clock.now });
  const loop: Loop = await openLoop({
    noRoom: room.noRoom,
    ...{ config, env, store, stored, runtimes, clock, log, nameOf, logDir, temporary },
    services: services.byName,
    runner: given.runner,
    emptied: () => shutdown.look(),
    hurry: hurry.signal,
  });
  parts.use(loop);
  const { reconciler, observer, images, fingerprints, caches, fleet } = loop;

  const house = await keepHouse({ clock, log, store, queue, config, caches });
  parts.defer(() => house.close());
  const elsewhere = [...new Set(services.byName.values())].filter((service) => service !== queue);
  const shutdown = createShutdown({
    ...{ reconciler, log, clock, temporary },
    unreachable: observer.unreachable,
    busy: () => queue.unfinished > 0,
    hurry: (why) => hurry.abort(why),
    forget: (instead) => forgetServices({ services: elsewhere, registrations: store.registrations, clock, log }, instead),
    ...foreignTo(queue, reconciler),
  });
  const chosen = () => choiceNow(runtimes, observer.unreachable(runtimes.best.name) !== null);
  const started = Promise.withResolvers<void>();
  const manager = createManager({
    ...{ clock, loop, shutdown, queue, store, logDir, nameOf },
    services: elsewhere,
    trial: createDiagnosticSandboxes({ nameOf, asker: loop.asker, reconciler, fingerprints }),
    runtimes: () => runtimes.all,
    facts: {
      version: given.version,
      pid: process.pid,
      owner: store.owner,
      config: config.path,
      stateDir: store.dir,
      temporary,
    },
    chosen: () => ({ runtimeReason: chosen().reason, weaker: runtimes.best.capabilities.weaker }),
    findings: () => [
      ...given.findings(),
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
    configChanged: given.configChanged,
    started: started.promise,
    pruneJobs: createPruneJobs({ store, queue, clock, logDir }),
  });
  const watching = new AbortController();
  parts.defer(() => watching.abort());
  parts.defer(() => fleet?.close(true));

  const opened = parts.move();
  return {
    ...{ manager, loop, services, shutdown },
    async start() {
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
      if (!temporary) void services.endStrays(watching.signal);
      void fleet?.start();
      opened.defer(renewImages(images, { clock, log }));
      caches.start();
      // A temporary one ends with its jobs, and they were told where they run.
      if (!temporary) opened.defer(keepChoosing({ clock, log, runtimes, reconciler, observer }));
      reconciler.pause.release('starting');
      reconciler.start();
      started.resolve();
      shutdown.look();
    },
    async finish() {
      const how = await shutdown.finished;
      // Whoever waits for a job's end hears of it before the API is closed.
      reconciler.flush();
      if (how !== 'leave') await Promise.all(runtimes.all.map((runtime) => observer.sweep(runtime)));
      fleet?.close(how === 'leave');
      await Promise.all(elsewhere.map((service) => service.close?.(how === 'leave')));
      if (how !== 'leave') tellLeft({ registrations: store.registrations, log });
      return how;
    },
    [Symbol.asyncDispose]: () => opened.disposeAsync(),
  };
}
