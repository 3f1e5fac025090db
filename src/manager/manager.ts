/** The manager as the API sees it: requests, answered by the loop, the own queue and the logs. */
import { abortable } from '../base/abortable.ts';
import { OnejobError } from '../base/errors.ts';
import type { OwnQueue } from '../ci/own-queue/own-queue.ts';
import type { Changes } from '../contract/changes.ts';
import type { MachineService, Manager } from '../contract/manager.ts';
import type { StatusView } from '../contract/schema.ts';
import type { Clock } from '../core/clock.ts';
import type { CiService } from '../ports/ci-service.ts';
import type { Store } from '../store/store.ts';
import { jobHistory } from '../verdict/history.ts';
import { createDiagnosticSandboxes } from './actions/probe-sandbox.ts';
import { runAttended } from './attended.ts';
import type { DeviceRequests } from './devices/device-views.ts';
import { examine, type HostFindings } from './doctor.ts';
import { EventSource } from './events.ts';
import { createPruneJobs } from './housekeeping.ts';
import { JobViews } from './job-views.ts';
import { Logs } from './logs.ts';
import type { Loop } from './loop/loop.ts';
import type { Pool } from './loop/pool.ts';
import type { Shutdown } from './loop/shutdown.ts';
import { hostPlan, planLines, poolViews } from './status.ts';

export interface ManagerParts {
  readonly clock: Clock;
  readonly loop: Omit<Loop, 'images' | 'caches' | typeof Symbol.asyncDispose>;
  readonly shutdown: Pick<Shutdown, 'begin' | 'clients' | 'forgotten' | 'isEnding'>;
  readonly queue: OwnQueue;
  /** All CI services but the own queue. */
  readonly services: readonly CiService[];
  readonly store: Store;
  readonly changes: Changes;
  /** What never changes while this manager lives. */
  readonly facts: Pick<StatusView, 'version' | 'pid' | 'owner' | 'config' | 'stateDir' | 'hostName' | 'temporary'>;
  readonly host: HostReport;
  /** Called for bugs that no request is told of. */
  readonly failed: (error: Error) => void;
  /** Resolves once everything was looked at, and what is wanted has begun. */
  readonly started: Promise<void>;
}

/** What is known of the host as a whole. */
export interface HostReport extends HostFindings {
  /** The runtime that was chosen for pools that name none. */
  readonly chosen: () => Pick<StatusView, 'runtimeReason' | 'weaker'>;
  /** What keeps the whole host from working, or soon will. */
  readonly problems: () => string[];
  /** What jobs of a pool should know about where they run. */
  readonly notesOf: (pool: Pool) => readonly string[];
  /** Machines in clouds; absent: the config has none. */
  readonly machines?: MachineService | undefined;
}

function refuseDevice(): never {
  throw new OnejobError('E_DEVICE_UNKNOWN', 'No pool of this daemon has devices, so it manages none.', {
    hint: 'Set "devices" in a pool of the config and restart the daemon. "onejob gpus" lists the devices of this host.',
  });
}

/** Where no pool asks for devices: lists are empty, and requests about one device are refused. */
export const noDevices: DeviceRequests = {
  devices: () => [],
  deviceUse: refuseDevice,
  changeDevice: refuseDevice,
  clearDevice: refuseDevice,
  proofs: ({ device }) => (device === null ? [] : refuseDevice()),
};

export function createManager(parts: ManagerParts): Manager {
  const { clock, loop, shutdown, queue, services, store, facts, host } = parts;
  const { reconciler, deviceManager, holds, held } = loop;
  const devices = deviceManager?.requests ?? noDevices;
  const jobs = new JobViews(parts);
  const about = (job: string) => jobs.ofServices.about(job);
  const status = { ...loop, clock, about, conditions: host.conditions, notesOf: host.notesOf };
  const events = new EventSource({
    clock,
    reconciler,
    status,
    changes: parts.changes,
    devices: () => devices.devices(),
    serviceJobs: () => jobs.ofServices.jobs(null),
    job: (id) => jobs.ofEvent(id),
    host: () => ({ problems: host.problems(), stopping: reconciler.stopping }),
    configChanged: host.configChanged,
    failed: parts.failed,
  });
  const logs = new Logs({
    clock,
    reconciler,
    queue,
    services,
    output: loop.followers,
    history: store.history,
    serviceJobs: jobs.ofServices,
    stateDir: facts.stateDir,
  });
  /** People see at once what their request has changed. */
  const shown = <T>(result: T): T => {
    events.look();
    return result;
  };
  const diagnostics = createDiagnosticSandboxes(loop);
  const isStopping = (): boolean => reconciler.stopping || shutdown.isEnding;

  return {
    isStopping,
    async status() {
      const configChanged = await host.configChanged();
      events.look(configChanged);
      return {
        ...facts,
        ...host.chosen(),
        configChanged,
        stopping: reconciler.stopping,
        problems: host.problems(),
        missing: deviceManager?.views.missing() ?? [],
        quarantined: deviceManager?.views.quarantined() ?? [],
        pools: poolViews(status),
        ...(host.machines !== undefined && { hosts: host.machines.hosts() }),
      };
    },
    plan: () => [...planLines(status), ...queue.plan(), ...hostPlan(host.machines?.hosts() ?? [])],
    doctor: (signal) => examine({ ...parts, diagnostics }, signal),
    ...queueRequests(parts, jobs, isStopping),
    jobs: (filter) => {
      events.look();
      return jobs.page(filter);
    },
    endedJobs: (filter) => jobs.ended(filter),
    history: (query) => jobHistory(store.outcomes, query),
    job: (id) => jobs.job(id),
    settled: (id, signal) => jobs.settled(id, signal),
    async shell(id, start, signal) {
      return start.running ? runAttended(loop, queue.attendedBy(id), start, signal) : held.shell(id, start, signal);
    },
    pruneJobs: createPruneJobs({ store, queue, clock, logs: loop.logs }),
    caches: (signal) => loop.cacheDesk.list(signal),
    clearCaches: (request, signal) => loop.cacheDesk.clear(request, signal),
    logs: (source, how, signal) => logs.read(source, how, signal),
    agentLogs: (source, how, signal) => logs.own(source, how, signal),

    ...devices,
    devices: () => shown(devices.devices()),
    changeDevice: (name, change) => shown(devices.changeDevice(name, change)),
    clearDevice: async (name) => shown(await devices.clearDevice(name)),

    pause: (pool, reason) => shown(holds.pause(pool, reason)),
    resume: (pool, reason) => shown(holds.resume(pool, reason)),
    drain: (pool) => shown(holds.drain(pool)),
    down: (request) => shown(shutdown.begin(request)),
    changes: events,
    forgotten: (signal) => abortable(shutdown.forgotten, signal),
    hold: holdsOpen(shutdown),
  };
}

/** What only jobs of the own queue can be asked for. */
function queueRequests({ queue, loop: { held } }: ManagerParts, jobs: JobViews, isStopping: () => boolean) {
  return {
    verify: (request, by) => queue.verify(request, by),
    submit(request, by) {
      if (isStopping()) throw stopping();
      return queue.submit(request, by);
    },
    submitArray(request, by) {
      if (isStopping()) throw stopping();
      return queue.submitArray(request, by);
    },
    arrayJobs: (id) => queue.arrayJobs(id),
    cancel(id, only) {
      jobs.checkOwn(id);
      return queue.cancel(id, only);
    },
    move(id, pool) {
      jobs.checkOwn(id);
      return queue.move(id, pool);
    },
    cancelArray: (id) => queue.cancelArray(id),
    checkShell(id) {
      jobs.checkOwn(id);
      if (queue.attendedBy(id) === null) held.check(id, queue.job(id)?.result);
    },
    async unhold(id) {
      jobs.checkOwn(id);
      await held.unhold(id, queue.job(id)?.result);
      const job = jobs.job(id);
      if (job === null) throw new OnejobError('E_JOB_UNKNOWN', `There is no job ${id}.`);
      return job;
    },
    putWorkspace: (files, signal, by) => queue.putWorkspace(files, signal, by),
    keepFiles: (files, signal) => queue.keepFiles(files, signal),
    joinWorkspace: (request, signal, by) => queue.joinWorkspace(request, signal, by),
    artifacts: (job) => (queue.job(job) === null ? null : queue.artifacts(job)),
  } satisfies Partial<Manager>;
}

function holdsOpen(shutdown: ManagerParts['shutdown']): Manager['hold'] {
  let clients = 0;
  return () => {
    // A temporary manager that is ending accepts no new clients: they find their place with the next one. A daemon that
    // somebody stops may wait for its jobs for hours, and can be queried and hurried meanwhile.
    if (shutdown.isEnding) throw stopping();
    shutdown.clients(++clients);
    let held = true;
    return () => {
      if (!held) return;
      held = false;
      shutdown.clients(--clients);
    };
  };
}

function stopping(): OnejobError {
  return new OnejobError('E_DAEMON_STOPPING', 'This onejob is stopping and accepts no new requests.', {
    hint: 'Try again when it is running again.',
    retry: true,
  });
}
