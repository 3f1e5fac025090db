/** The manager as the API sees it: requests, answered by the loop, the own queue and the logs. */
import { abortable } from '../base/abortable.ts';
import { OnejobError } from '../base/errors.ts';
import type { OwnQueue } from '../ci/own-queue/own-queue.ts';
import { howToApply } from '../config/changed.ts';
import type { Changes } from '../contract/changes.ts';
import { jobPage, newestLast, pagePlace } from '../contract/job-pages.ts';
import { jobsListed, type MachineService, type Manager, pageLimit } from '../contract/manager.ts';
import type { FindingView, JobView, StatusView } from '../contract/schema.ts';
import { type Clock, deadline } from '../core/clock.ts';
import type { CiService } from '../ports/ci-service.ts';
import type { Store } from '../store/store.ts';
import { endedJobs, jobHistory } from '../verdict/history.ts';
import { createDiagnosticSandboxes } from './actions/probe-sandbox.ts';
import { runAttended } from './attended.ts';
import { type Condition, findingOf, isOfHost } from './conditions.ts';
import { createDeviceRequests, missingDevices, quarantinedDevices } from './devices/device-views.ts';
import { createEvents } from './events.ts';
import { deviceFindings, imageFindings, poolFindings, serviceFindings } from './findings.ts';
import { createPruneJobs } from './housekeeping.ts';
import { limitsOf } from './job-limits.ts';
import { createLogs } from './logs.ts';
import type { Loop } from './loop/loop.ts';
import type { Pool } from './loop/pool.ts';
import type { Shutdown } from './loop/shutdown.ts';
import { createServiceJobs, notHere } from './services/service-jobs.ts';
import { createStartEstimate } from './start-estimate.ts';
import { hostPlan, planLines, poolViews, waitingReason } from './status.ts';

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
export interface HostReport {
  /** The runtime that was chosen for pools that name none. */
  readonly chosen: () => Pick<StatusView, 'runtimeReason' | 'weaker'>;
  /** A sentence that says that the config's files have changed since they were loaded; null if they have not. */
  readonly configChanged: () => Promise<string | null>;
  /** What keeps the whole host from working, or soon will. */
  readonly problems: () => string[];
  /** What jobs of a pool should know about where they run. */
  readonly notesOf: (pool: Pool) => readonly string[];
  /** What keeps jobs from starting until a person does something. */
  readonly conditions: () => Condition[];
  readonly findings: () => FindingView[];
  /** Findings about disk, secrets and GPUs. They explain why pools lack devices, too. */
  readonly hostFindings: (signal: AbortSignal) => Promise<FindingView[]>;
  /** Machines in clouds; absent: the config has none. */
  readonly machines?: MachineService | undefined;
}

/** ms for which one look at a pool is good enough for events. */
const estimateLasts = 100;

/** ms that `doctor` waits for a start in progress. */
const startPatience = 5_000;

export function createManager(parts: ManagerParts): Manager {
  const { clock, loop, shutdown, queue, services, store, facts, host } = parts;
  const { reconciler, deviceManager, holds, held, runtimes } = loop;
  const devices = createDeviceRequests(deviceManager, clock, () => reconciler.slots);
  const reasonFor = (pool: string) => waitingReason(reconciler, pool);
  const serviceJobs = createServiceJobs({
    services,
    table: store.serviceJobs,
    outcomes: store.outcomes,
    reconciler,
    reasonFor,
    clock,
  });
  const logs = createLogs({
    ...parts,
    reconciler,
    output: loop.followers,
    history: store.history,
    serviceJobs,
    stateDir: facts.stateDir,
  });
  const estimates = createStartEstimate({ clock, reconciler, outcomes: store.outcomes, reasonFor });
  const shownJob = (job: JobView, estimate = estimates()): JobView => {
    const until = job.state === 'done' ? held.until(job.id) : null;
    return estimate(until === null ? job : { ...job, held: { until } });
  };
  const since = clock.wall();
  const limits = (job: JobView) => {
    const pool = reconciler.pools.find(({ config }) => config.name === job.pool);
    const its = pool === undefined ? null : { config: pool.config, poolTimeout: pool.service.capabilities.poolTimeout };
    return limitsOf({ job, own: queue.asked(job.id), pool: its, since });
  };
  /** As in lists: without what must be read from its output. */
  const listedJob = (id: string, estimate = estimates()): JobView | null => {
    const own = queue.job(id);
    return own === null ? serviceJobs.job(id) : shownJob(own, estimate);
  };
  const jobOf = (id: string, estimate = estimates()) => {
    const job = listedJob(id, estimate);
    if (job === null) return null;
    const limited = { ...job, limits: limits(job) };
    return job.agent === null ? limited : { ...limited, firstOutputAt: loop.logs.firstOutputAt(job.agent) };
  };
  /** Events may tell of thousands of jobs at once. */
  let recent = { at: Number.NEGATIVE_INFINITY, estimate: estimates() };
  const jobOfEvent = (id: string) => {
    const now = clock.now();
    if (now - recent.at > estimateLasts) recent = { at: now, estimate: estimates() };
    return jobOf(id, recent.estimate);
  };
  /** @throws OnejobError E_JOB_ELSEWHERE */
  const ownJob = (id: string): void => {
    const job = queue.job(id) === null ? serviceJobs.job(id) : null;
    if (job !== null) throw notHere(job);
  };
  const status = { ...loop, clock, about: serviceJobs.about, conditions: host.conditions, notesOf: host.notesOf };
  const diagnostics = createDiagnosticSandboxes(loop);
  const events = createEvents({
    clock,
    reconciler,
    status,
    changes: parts.changes,
    devices: () => devices.devices(),
    serviceJobs: () => serviceJobs.jobs(null),
    job: jobOfEvent,
    host: () => ({ problems: host.problems(), stopping: reconciler.stopping }),
    configChanged: host.configChanged,
    failed: parts.failed,
  });
  /** People see at once what their request has changed. */
  const shown = <T>(result: T): T => {
    events.look();
    return result;
  };
  let clients = 0;

  /** Somebody who asks a daemon right after its start wants to know what is wrong, not that it is still starting. */
  const startedSoon = async (signal: AbortSignal): Promise<void> => {
    using limit = deadline(clock, startPatience, signal);
    await abortable(parts.started, limit.signal).catch(() => signal.throwIfAborted());
  };

  return {
    isStopping: () => reconciler.stopping || shutdown.isEnding,
    async status() {
      const changed = await host.configChanged();
      events.look(changed);
      const missing = deviceManager === null ? [] : missingDevices(deviceManager.registry);
      const quarantined = deviceManager === null ? [] : quarantinedDevices(deviceManager.registry);
      const pools = poolViews(status);
      return {
        ...facts,
        ...host.chosen(),
        configChanged: changed,
        stopping: reconciler.stopping,
        problems: host.problems(),
        missing,
        quarantined,
        pools,
        ...(host.machines !== undefined && { hosts: host.machines.hosts() }),
      };
    },
    plan: () => [...planLines(status), ...hostPlan(host.machines?.hosts() ?? [])],
    async doctor(signal) {
      await startedSoon(signal);
      const changed = await host.configChanged();
      const config: FindingView[] =
        changed === null
          ? []
          : [{ level: 'warning', subject: 'config', message: changed, hint: facts.temporary ? null : howToApply }];
      const checks = [
        queue.check(signal, diagnostics),
        serviceFindings({ services, registrations: store.registrations, clock, diagnostics }, signal),
        imageFindings(reconciler.pools, signal),
        ...runtimes.all.map((runtime) => runtime.check(signal)),
      ];
      const wide = await host.hostFindings(signal);
      // A pool's lack of devices is reported once, with its reason.
      const explained = new Set(wide.flatMap(({ subject }) => (subject.startsWith('pool ') ? [subject] : [])));
      const found = deviceManager === null ? [] : deviceFindings(deviceManager, reconciler.slots);
      const lacking = found.filter(({ subject }) => !explained.has(subject));
      const stuck = host.conditions().filter((one) => isOfHost(one) || !explained.has(findingOf(one).subject));
      const pools = poolFindings(reconciler, deviceManager?.watch.fault ?? null);
      const checked = (await Promise.all(checks)).flat();
      const all = [...config, ...stuck.map(findingOf), ...pools, ...lacking, ...wide, ...host.findings(), ...checked];
      // The reason for a runtime is of no use if the runtime cannot be used now.
      const isAway = checked.some(({ level, subject }) => level === 'error' && runtimes.all.some(({ name }) => name === subject));
      return all.filter(({ level, subject }) => !(isAway && level === 'ok' && subject === 'runtime'));
    },

    verify: (request) => queue.verify(request),
    submit(request) {
      if (reconciler.stopping || shutdown.isEnding) throw stopping();
      return queue.submit(request);
    },
    submitArray(request) {
      if (reconciler.stopping || shutdown.isEnding) throw stopping();
      return queue.submitArray(request);
    },
    arrayJobs: (id) => queue.arrayJobs(id),
    jobs(filter) {
      events.look();
      const { all, pool, limit = all ? jobsListed : pageLimit, before = null } = filter;
      const place = pagePlace(before);
      const own = queue.page(all, { pool, limit: limit + 1, before: place.seq });
      const elsewhere = all
        ? serviceJobs.page(place.skip, limit + 1)
        : newestLast(serviceJobs.jobs(null))
            .reverse()
            .slice(place.skip, place.skip + limit + 1);
      const page = jobPage(own, elsewhere, { place, pool, limit });
      const estimate = estimates();
      return { ...page, jobs: page.jobs.map((job) => shownJob(job, estimate)) };
    },
    endedJobs(filter) {
      const estimate = estimates();
      return endedJobs(store.outcomes, (id) => listedJob(id, estimate), filter);
    },
    history: (query) => jobHistory(store.outcomes, query),
    job: (id) => jobOf(id),
    settled: async (id, signal) =>
      queue.job(id) === null ? serviceJobs.settled(id, signal) : shownJob(await queue.settled(id, signal)),
    cancel(id, only) {
      ownJob(id);
      return queue.cancel(id, only);
    },
    move(id, pool) {
      ownJob(id);
      return queue.move(id, pool);
    },
    cancelArray: (id) => queue.cancelArray(id),
    checkShell(id) {
      ownJob(id);
      if (queue.attendedBy(id) === null) held.check(id, queue.job(id)?.result);
    },
    async shell(id, start, signal) {
      return start.running ? runAttended(loop, queue.attendedBy(id), start, signal) : held.shell(id, start, signal);
    },
    async unhold(id) {
      ownJob(id);
      await held.unhold(id, queue.job(id)?.result);
      const job = jobOf(id);
      if (job === null) throw new OnejobError('E_JOB_UNKNOWN', `There is no job ${id}.`);
      return job;
    },
    pruneJobs: createPruneJobs({ store, queue, clock, logs: loop.logs }),
    putWorkspace: (files, signal) => queue.putWorkspace(files, signal),
    artifacts: (job) => (queue.job(job) === null ? null : queue.artifacts(job)),

    logs: logs.read,
    agentLogs: logs.own,

    ...devices,
    devices: () => shown(devices.devices()),
    changeDevice: (name, change) => shown(devices.changeDevice(name, change)),

    pause: (pool, reason) => shown(holds.pause(pool, reason)),
    resume: (pool, reason) => shown(holds.resume(pool, reason)),
    drain: (pool) => shown(holds.drain(pool)),
    down: (request) => shown(shutdown.begin(request)),
    changes: events,
    forgotten: (signal) => abortable(shutdown.forgotten, signal),
    hold() {
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
    },
  };
}

function stopping(): OnejobError {
  return new OnejobError('E_DAEMON_STOPPING', 'This onejob is stopping and accepts no new requests.', {
    hint: 'Try again when it is running again.',
    retry: true,
  });
}
