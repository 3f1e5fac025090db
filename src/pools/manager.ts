/** The manager as the API sees it: questions and wishes, answered by the loop, the own queue and the logs. */
import type { Readable } from 'node:stream';
import type { DeviceAnswer, DeviceChange, DeviceView, ProofView } from '../api/device-schema.ts';
import type { LogManner, LogPiece, LogSource, Manager } from '../api/manager.ts';
import type {
  DownRequest,
  FindingView,
  ForgottenView,
  JobRequest,
  JobView,
  PlanLine,
  PrunedView,
  PruneRequest,
  ResumeView,
  StatusView,
} from '../api/schema.ts';
import { jobsListed } from '../api/schema.ts';
import type { CiService } from '../ci/ci-service.ts';
import type { OwnQueue } from '../ci/own-queue/own-queue.ts';
import type { Trial } from '../ci/trial.ts';
import { howToApply } from '../config/changed.ts';
import { OnejobError } from '../errors.ts';
import type { Keepers } from '../logs/keepers.ts';
import type { Runtime } from '../runtimes/runtime.ts';
import type { Store } from '../store/store.ts';
import { until } from '../until.ts';
import { createDeviceRequests, type DeviceRequests, missingDevices, quarantinedDevices } from './device-views.ts';
import { deviceFindings, imageFindings, poolFindings, serviceFindings } from './findings.ts';
import { createLogs, type Logs } from './logs.ts';
import type { Observer } from './observe.ts';
import type { Holds } from './pause.ts';
import type { Reconciler } from './reconciler.ts';
import { createServiceJobs, newestLast, notHere, type ServiceJobs } from './service-jobs.ts';
import { planLines, poolViews, type StatusParts, waitingReason } from './status.ts';

export interface ManagerParts extends Omit<StatusParts, 'about'> {
  readonly reconciler: Reconciler;
  readonly observer: Observer;
  readonly keepers: Keepers;
  readonly queue: OwnQueue;
  /** Those beside the own queue. */
  readonly services: readonly CiService[];
  readonly holds: Holds;
  readonly store: Pick<Store, 'history' | 'serviceJobs' | 'registrations'>;
  /** What services may try out from within a sandbox. */
  readonly trial: Trial;
  readonly runtimes: () => readonly Runtime[];
  readonly logDir: string;
  /** What never changes while this manager lives. */
  readonly facts: Pick<StatusView, 'version' | 'pid' | 'owner' | 'config' | 'stateDir' | 'temporary'>;
  /** Of the pools that name no runtime. */
  readonly chosen: () => Pick<StatusView, 'runtimeReason' | 'weaker'>;
  /** Whether the config's files are not what was loaded, as a sentence; null when they are. */
  readonly configChanged: () => Promise<string | null>;
  /** What keeps the whole host from working, or soon will. */
  readonly problems: () => string[];
  readonly findings: () => FindingView[];
  /** What of a host with GPUs needs mending, and what its pools cannot have; none without pools that have devices. */
  readonly hostFindings: (signal: AbortSignal) => Promise<FindingView[]>;
  readonly pruneJobs: (request: PruneRequest) => Promise<PrunedView>;
  /** Everything was looked at once, and what is wanted is begun. */
  readonly started: Promise<void>;
  readonly down: (request: DownRequest) => void;
  /** What came of forgetting at the end. */
  readonly forgotten: Promise<ForgottenView[]>;
  /** Called whenever a client came or went. */
  readonly held: (clients: number) => void;
  /** Whether a temporary manager ends, also where it leaves agents, and so stops nothing. */
  readonly isEnding: () => boolean;
}

/** ms that `doctor` waits for a start that is under way. */
const startPatience = 5_000;

export class HostManager implements Manager {
  readonly #parts: ManagerParts;
  readonly #devices: DeviceRequests;
  readonly #serviceJobs: ServiceJobs;
  readonly #logs: Logs;
  #clients = 0;

  constructor(parts: ManagerParts) {
    this.#parts = parts;
    const { fleet, clock, reconciler, store, services, observer } = parts;
    this.#devices = createDeviceRequests({ fleet, clock, slots: () => reconciler.slots });
    const reasonFor = (pool: string) => waitingReason(reconciler, pool, observer.problems);
    this.#serviceJobs = createServiceJobs({ services, table: store.serviceJobs, reconciler, reasonFor, clock });
    const { stateDir } = parts.facts;
    this.#logs = createLogs({ ...parts, history: store.history, serviceJobs: this.#serviceJobs, stateDir });
  }

  async status(): Promise<StatusView> {
    const { facts, chosen, reconciler, problems, fleet } = this.#parts;
    const missing = fleet === null ? [] : missingDevices(fleet.book);
    const quarantined = fleet === null ? [] : quarantinedDevices(fleet.book);
    const pools = poolViews(this.#statusParts);
    const changed = await this.#parts.configChanged();
    const configChanged = changed === null ? null : `${changed} ${howToApply}`;
    return {
      ...facts,
      ...chosen(),
      configChanged,
      stopping: reconciler.stopping,
      problems: problems(),
      missing,
      quarantined,
      pools,
    };
  }

  plan(): PlanLine[] {
    return planLines(this.#statusParts);
  }

  async doctor(signal: AbortSignal): Promise<FindingView[]> {
    const { reconciler, fleet, findings, queue, runtimes, services, store, clock, trial } = this.#parts;
    await this.#startedSoon(signal);
    const changed = await this.#parts.configChanged();
    const config: FindingView[] =
      changed === null ? [] : [{ level: 'warning', subject: 'config', message: changed, hint: howToApply }];
    const checks = [
      queue.check(signal, trial),
      serviceFindings({ services, registrations: store.registrations, clock, trial }, signal),
      imageFindings(reconciler.pools, signal),
      ...runtimes().map((runtime) => runtime.check(signal)),
    ];
    const host = await this.#parts.hostFindings(signal);
    // What a pool lacks is said once, where the reason is said, too.
    const explained = new Set(host.flatMap(({ subject }) => (subject.startsWith('pool ') ? [subject] : [])));
    const found = fleet === null ? [] : deviceFindings(fleet, reconciler.slots);
    const devices = found.filter(({ subject }) => !explained.has(subject));
    const pools = poolFindings(reconciler, fleet?.watch.fault ?? null);
    const checked = (await Promise.all(checks)).flat();
    const all = [...config, ...pools, ...devices, ...host, ...findings(), ...checked];
    // Why a runtime was chosen is no comfort where it cannot be used now.
    const isAway = checked.some(({ level, subject }) => level === 'error' && runtimes().some(({ name }) => name === subject));
    return all.filter(({ level, subject }) => !(isAway && level === 'ok' && subject === 'runtime'));
  }

  /** Who asks a daemon that was just started, often for this, wants to hear what is wrong, and not that it is early. */
  async #startedSoon(signal: AbortSignal): Promise<void> {
    const late = Promise.withResolvers<void>();
    const callOff = this.#parts.clock.after(startPatience, late.resolve);
    try {
      await until(Promise.race([this.#parts.started, late.promise]), signal);
    } finally {
      callOff();
    }
  }

  verify(request: JobRequest): void {
    this.#parts.queue.verify(request);
  }

  submit(request: JobRequest): JobView {
    if (this.#parts.reconciler.stopping || this.#parts.isEnding()) throw stopping();
    return this.#parts.queue.submit(request);
  }

  jobs(filter: { readonly all: boolean; readonly pool: string | null; readonly limit?: number | undefined }): JobView[] {
    const { all, pool, limit = all ? jobsListed : undefined } = filter;
    const elsewhere = this.#serviceJobs
      .jobs(all ? (limit ?? jobsListed) : null)
      .filter((job) => pool === null || job.pool === pool);
    const own = this.#parts.queue.list(filter);
    if (elsewhere.length === 0) return own;
    const jobs = newestLast([...own, ...elsewhere]);
    return limit === undefined ? jobs : jobs.slice(-limit);
  }

  job(id: string): JobView | null {
    return this.#parts.queue.job(id) ?? this.#serviceJobs.job(id);
  }

  settled(id: string, signal: AbortSignal): Promise<JobView> {
    const { queue } = this.#parts;
    return queue.job(id) === null ? this.#serviceJobs.settled(id, signal) : queue.settled(id, signal);
  }

  pruneJobs(request: PruneRequest): Promise<PrunedView> {
    return this.#parts.pruneJobs(request);
  }

  cancel(id: string): JobView {
    const job = this.#parts.queue.job(id) === null ? this.#serviceJobs.job(id) : null;
    if (job !== null) throw notHere(job);
    return this.#parts.queue.cancel(id);
  }

  putWorkspace(files: Readable, signal: AbortSignal): Promise<string> {
    return this.#parts.queue.putWorkspace(files, signal);
  }

  artifacts(job: string): Readable | null {
    const { queue } = this.#parts;
    return queue.job(job) === null ? null : queue.artifacts(job);
  }

  logs(source: LogSource, how: LogManner, signal: AbortSignal): AsyncIterable<LogPiece> {
    return this.#logs.read(source, how, signal);
  }

  agentLogs(source: LogSource, signal: AbortSignal): AsyncIterable<LogPiece> {
    return this.#logs.own(source, signal);
  }

  devices(): DeviceView[] {
    return this.#devices.devices();
  }

  changeDevice(name: string, change: DeviceChange): DeviceAnswer {
    return this.#devices.change(name, change);
  }

  proofs(filter: { readonly device: string | null; readonly limit: number }): ProofView[] {
    return this.#devices.proofs(filter);
  }

  pause(pool: string | null, reason: string): void {
    this.#parts.holds.pause(pool, reason);
  }

  resume(pool: string | null, reason: string): ResumeView {
    return { held: this.#parts.holds.resume(pool, reason) };
  }

  drain(pool: string | null): void {
    this.#parts.holds.drain(pool);
  }

  down(request: DownRequest): void {
    this.#parts.down(request);
  }

  forgotten(signal: AbortSignal): Promise<ForgottenView[]> {
    const gone = new Promise<never>((_, reject) => {
      signal.addEventListener('abort', () => reject(signal.reason), { once: true });
    });
    return Promise.race([this.#parts.forgotten, gone]);
  }

  hold(): () => void {
    // One that ends by itself has ended for whoever comes now: a client finds its place with the next one. A daemon that
    // somebody stops may wait for its jobs for hours, and can be looked at and hurried all the while.
    if (this.#parts.isEnding()) throw stopping();
    this.#parts.held(++this.#clients);
    let held = true;
    return () => {
      if (!held) return;
      held = false;
      this.#parts.held(--this.#clients);
    };
  }

  get #statusParts(): StatusParts {
    return { ...this.#parts, about: (job) => this.#serviceJobs.about(job) };
  }
}

function stopping(): OnejobError {
  return new OnejobError('E_DAEMON_STOPPING', 'This onejob is stopping and takes nothing more.', {
    hint: 'Try again once it runs again.',
    retry: true,
  });
}
