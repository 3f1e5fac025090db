/** The manager as the API sees it: questions and wishes, answered by the loop, the own queue and the logs. */
import { existsSync } from 'node:fs';
import type { Readable } from 'node:stream';
import type { DeviceAnswer, DeviceChange, DeviceView, ProofView } from '../api/device-schema.ts';
import type { LogPiece, LogSource, Manager } from '../api/manager.ts';
import type { DownRequest, FindingView, JobRequest, JobView, PlanLine, StatusView } from '../api/schema.ts';
import type { OwnQueue } from '../ci/own-queue/own-queue.ts';
import type { AgentId } from '../core/slot.ts';
import { OnejobError } from '../errors.ts';
import type { Keepers } from '../logs/keepers.ts';
import { logPath } from '../logs/log-file.ts';
import { type PlacedPiece, readLog } from '../logs/read.ts';
import type { Runtime } from '../runtimes/runtime.ts';
import type { HistoryTable } from '../store/history.ts';
import { createDeviceRequests, type DeviceRequests } from './device-requests.ts';
import { missingDevices } from './device-views.ts';
import { deviceFindings, poolFindings } from './findings.ts';
import type { Observer } from './observe.ts';
import type { Pool } from './pool.ts';
import type { Reconciler } from './reconciler.ts';
import { planLines, poolViews, type StatusParts } from './status.ts';

export interface ManagerParts extends StatusParts {
  readonly reconciler: Reconciler;
  readonly observer: Observer;
  readonly keepers: Keepers;
  readonly queue: OwnQueue;
  readonly history: HistoryTable;
  readonly runtimes: readonly Runtime[];
  readonly logDir: string;
  /** What never changes while this manager lives. */
  readonly facts: Pick<StatusView, 'version' | 'pid' | 'owner' | 'config' | 'stateDir' | 'temporary' | 'runtimeReason' | 'weaker'>;
  readonly findings: () => FindingView[];
  /** What of a host with GPUs needs mending, and what its pools cannot have; none without pools that have devices. */
  readonly hostFindings: (signal: AbortSignal) => Promise<FindingView[]>;
  readonly down: (request: DownRequest) => void;
  /** Called whenever a client came or went. */
  readonly held: (clients: number) => void;
}

export class HostManager implements Manager {
  readonly #parts: ManagerParts;
  readonly #devices: DeviceRequests;
  #clients = 0;

  constructor(parts: ManagerParts) {
    this.#parts = parts;
    const { fleet, clock, reconciler } = parts;
    this.#devices = createDeviceRequests({ fleet, clock, slots: () => reconciler.slots });
  }

  status(): StatusView {
    const { facts, reconciler, observer, fleet } = this.#parts;
    const missing = fleet === null ? [] : missingDevices(fleet.book);
    return { ...facts, stopping: reconciler.stopping, problems: observer.problems, missing, pools: poolViews(this.#parts) };
  }

  plan(): PlanLine[] {
    return planLines(this.#parts);
  }

  async doctor(signal: AbortSignal): Promise<FindingView[]> {
    const checks = [this.#parts.queue.check(signal), ...this.#parts.runtimes.map((runtime) => runtime.check(signal))];
    const { reconciler, fleet, findings } = this.#parts;
    const host = await this.#parts.hostFindings(signal);
    // What a pool lacks is said once, where the reason is said, too.
    const explained = new Set(host.flatMap(({ subject }) => (subject.startsWith('pool ') ? [subject] : [])));
    const all = fleet === null ? [] : deviceFindings(fleet, reconciler.slots);
    const devices = all.filter(({ subject }) => !explained.has(subject));
    const pools = poolFindings(reconciler, fleet?.watch.fault ?? null);
    return [...pools, ...devices, ...host, ...findings(), ...(await Promise.all(checks)).flat()];
  }

  verify(request: JobRequest): void {
    this.#parts.queue.verify(request);
  }

  submit(request: JobRequest): JobView {
    if (this.#parts.reconciler.stopping) throw stopping();
    return this.#parts.queue.submit(request);
  }

  jobs(filter: { readonly all: boolean; readonly pool: string | null }): JobView[] {
    return this.#parts.queue.jobs(filter);
  }

  job(id: string): JobView | null {
    return this.#parts.queue.job(id);
  }

  settled(id: string, signal: AbortSignal): Promise<JobView> {
    return this.#parts.queue.settled(id, signal);
  }

  cancel(id: string): JobView {
    return this.#parts.queue.cancel(id);
  }

  putWorkspace(files: Readable, signal: AbortSignal): Promise<string> {
    return this.#parts.queue.putWorkspace(files, signal);
  }

  artifacts(job: string): Readable | null {
    return this.#parts.queue.artifacts(job);
  }

  async *logs(source: LogSource, follow: boolean, signal: AbortSignal): AsyncIterable<LogPiece> {
    if ('job' in source) yield* this.#jobLogs(source.job, follow, signal);
    else if ('agent' in source) yield* this.#agentLog(source.agent, follow, signal);
    else yield* this.#agentLog(this.#agentOf(source.slot, source.previous), follow, signal);
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
    for (const one of this.#chosen(pool)) one.pause.hold(reason, `by ${reason}`, { closes: true });
    this.#parts.reconciler.replanAll();
  }

  resume(pool: string | null, reason: string): void {
    for (const one of this.#chosen(pool)) {
      one.pause.release(reason);
      one.draining = false;
    }
    this.#parts.reconciler.replanAll();
  }

  drain(pool: string | null): void {
    for (const one of this.#chosen(pool)) one.draining = true;
    this.#parts.reconciler.replanAll();
  }

  down(request: DownRequest): void {
    this.#parts.down(request);
  }

  hold(): () => void {
    // One that ends by itself has ended for whoever comes now: a client finds its place with the next one. A daemon that
    // somebody stops may wait for its jobs for hours, and can be looked at and hurried all the while.
    if (this.#parts.reconciler.stopping && this.#parts.facts.temporary) throw stopping();
    this.#parts.held(++this.#clients);
    let held = true;
    return () => {
      if (!held) return;
      held = false;
      this.#parts.held(--this.#clients);
    };
  }

  #chosen(name: string | null): Pool[] {
    const pools = this.#parts.reconciler.pools.filter((pool) => name === null || pool.config.name === name);
    if (pools.length > 0) return pools;
    const known = this.#parts.reconciler.pools.map((pool) => pool.config.name).join(', ');
    throw new OnejobError('E_POOL_UNKNOWN', `There is no pool "${name}".`, { hint: `The pools are: ${known}.` });
  }

  async *#jobLogs(id: string, follow: boolean, signal: AbortSignal): AsyncGenerator<LogPiece, void> {
    const { queue, history } = this.#parts;
    const read = new Set<AgentId>();
    using changes = changesOf(queue, id, signal);
    while (!signal.aborted) {
      const job = queue.job(id);
      if (job === null) throw new OnejobError('E_JOB_UNKNOWN', `There is no job ${id}.`, { hint: 'See "onejob jobs --all".' });
      const begun = history.ofJob(id, 100).filter((entry) => entry.releasedAt !== null);
      const agents = begun
        .map((entry) => entry.agent)
        .reverse()
        .filter((agent) => !read.has(agent));
      const [agent] = agents;
      if (agent !== undefined) {
        if (read.size > 0) yield { stream: 'note', bytes: Buffer.from(`attempt ${read.size + 1}\n`) };
        read.add(agent);
        yield* this.#agentLog(agent, follow, signal);
        continue;
      }
      if (!follow || job.state === 'done' || job.state === 'settling') return;
      await changes.next();
    }
  }

  async *#agentLog(agent: AgentId, follow: boolean, signal: AbortSignal): AsyncGenerator<LogPiece, void> {
    const { keepers, history, reconciler, logDir } = this.#parts;
    // An id is part of a path below, so only one that was given out may come so far.
    if (history.get(agent) === null && reconciler.placeOf(agent) === undefined) {
      throw new OnejobError('E_AGENT_UNKNOWN', `There is no agent ${agent}.`, {
        hint: 'See "onejob status" and "onejob jobs --all".',
      });
    }
    const keeper = keepers.get(agent);
    const path = logPath(logDir, agent);
    if (keeper !== undefined) yield* withoutPlace(keeper.file.read({ follow, signal }));
    else if (existsSync(path)) yield* withoutPlace(readLog(path));
  }

  #agentOf(key: string, previous: boolean): AgentId {
    const slot = this.#parts.reconciler.slot(key);
    const entries = this.#parts.history.ofSlot(key, 2);
    if (slot === undefined && entries.length === 0) {
      throw new OnejobError('E_SLOT_UNKNOWN', `There is no slot ${key}.`, { hint: 'See "onejob status".' });
    }
    const found = entries[previous ? 1 : 0];
    if (found !== undefined) return found.agent;
    const which = previous ? 'previous ' : '';
    throw new OnejobError('E_AGENT_UNKNOWN', `Slot ${key} had no ${which}agent yet.`, { hint: 'See "onejob status".' });
  }
}

function stopping(): OnejobError {
  return new OnejobError('E_DAEMON_STOPPING', 'This onejob is stopping and takes nothing more.', {
    hint: 'Try again once it runs again.',
    retry: true,
  });
}

/** Tells of changes of one job until disposed of. `next` resolves at once when there was one since it was last called. */
function changesOf(queue: OwnQueue, id: string, signal: AbortSignal): Disposable & { next(): Promise<void> } {
  let changed = false;
  let wake = (): void => {};
  const tell = (): void => {
    changed = true;
    wake();
  };
  const stop = queue.onChange((job) => {
    if (job.id === id) tell();
  });
  signal.addEventListener('abort', tell, { once: true });
  return {
    async next() {
      if (!changed) await new Promise<void>((resolve) => (wake = resolve));
      changed = false;
    },
    [Symbol.dispose]() {
      stop();
      signal.removeEventListener('abort', tell);
    },
  };
}

async function* withoutPlace(pieces: AsyncIterable<PlacedPiece>): AsyncGenerator<LogPiece, void> {
  for await (const { stream, bytes } of pieces) yield { stream, bytes };
}
