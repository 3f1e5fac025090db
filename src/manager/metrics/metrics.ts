/**
 * `/metrics` for Prometheus. Gauges are read from the state at each scrape. What has ended since the last scrape is read from the
 * store, where it is written anyway. Only gaps between agents and calls of CI services are counted as they happen. Before its first
 * scrape it costs nothing.
 */
import { readdirSync } from 'node:fs';
import { stat, statfs } from 'node:fs/promises';
import { join } from 'node:path';
import { type ELDHistogram, monitorEventLoopDelay } from 'node:perf_hooks';
import { attempt } from '../../base/errors.ts';
import { type CallResult, callResults } from '../../ci/calls.ts';
import { type VerdictKind, verdictKinds } from '../../contract/verdict.ts';
import type { Clock } from '../../core/clock.ts';
import type { Slot } from '../../core/slot.ts';
import { databaseName } from '../../store/directory.ts';
import type { Store } from '../../store/store.ts';
import { poolOf } from '../loop/pool.ts';
import { createGaps } from './gaps.ts';
import { type ReadingParts, readings } from './readings.ts';
import type { MetricRegistry } from './registry.ts';

export interface MetricsParts {
  readonly clock: Clock;
  readonly version: string;
  readonly store: Pick<Store, 'dir' | 'outcomes' | 'proofs'>;
  /** Problems of the whole host, one sentence each. */
  readonly problems: () => readonly string[];
  /** Names of the CI services but the own queue. */
  readonly serviceNames: readonly string[];
  /** What there is to read, once the loop exists. */
  readonly state: () => ReadingParts;
}

export interface Metrics {
  slotChanged(before: Slot, after: Slot): void;
  /** A call of a CI service has its answer. */
  called(service: string, result: CallResult): void;
  /** In the text format of Prometheus. Scrapes at the same time get the same. */
  read(): Promise<string>;
  close(): void;
}

/** ms between two looks at the event loop's lateness. */
const resolution = 100;
/** Rows of the store that are read at a time, and those that the first scrape reads at most. */
const [batch, mostAtFirst] = [1_000, 10_000];
/** What happened before the first scrape, and is counted with it. */
const mostKept = 10_000;

/** ms that a job with devices waits for its proof before it is counted, and proofs of its agent that are read. */
const [proofPatience, proofsRead] = [120_000, 100];

type EndedJob = ReturnType<Store['outcomes']['after']>[number];

export function createMetrics(parts: MetricsParts): Metrics {
  const { clock, store, state, serviceNames } = parts;
  const gapOf = createGaps(clock.now);
  const ended = new EndedCounts(store, clock);
  const kept: ((registry: MetricRegistry) => void)[] = [];
  let opened: Promise<Opened> | null = null;
  let scraping: Promise<string> | null = null;
  let current: Opened | null = null;

  async function open(): Promise<Opened> {
    const { createRegistry } = await import('./registry.ts');
    const loop = monitorEventLoopDelay({ resolution });
    loop.enable();
    const registry = createRegistry();
    ended.begin();
    for (const one of kept.splice(0)) one(registry);
    current = { registry, loop, cpu: 0 };
    return current;
  }

  function happened(what: (registry: MetricRegistry) => void): void {
    if (current !== null) what(current.registry);
    else if (kept.length < mostKept) kept.push(what);
  }

  function countPools(registry: MetricRegistry): void {
    for (const { config } of state().reconciler.pools) {
      const { name: pool, service } = config;
      for (const verdict of verdictKinds) registry.count('onejob_jobs_total', { pool, service, verdict }, 0);
    }
  }

  function countCalls(registry: MetricRegistry): void {
    for (const service of serviceNames)
      for (const result of callResults) registry.count('onejob_ci_calls_total', { service, result }, 0);
  }

  async function scrape(): Promise<string> {
    opened ??= open();
    const { registry } = await opened;
    const disk = await readDisk(store.dir);
    state().devices?.use.asked();
    countPools(registry);
    ended.count(registry);
    countCalls(registry);
    registry.clear();
    for (const [name, labels, value] of readings(state(), clock.wall())) registry.set(name, labels as never, value);
    registry.set('onejob_build_info', { version: parts.version, node: process.versions.node }, 1);
    registry.set('onejob_problems', {}, parts.problems().length);
    if (disk.store !== null) registry.set('onejob_store_bytes', {}, disk.store);
    if (disk.size !== null) registry.set('onejob_state_disk_bytes', {}, disk.size);
    if (disk.free !== null) registry.set('onejob_state_disk_free_bytes', {}, disk.free);
    if (current !== null) readProcess(current, clock.wall());
    return registry.text();
  }

  return {
    slotChanged(before, after) {
      const gap = gapOf(before, after);
      const pool = poolOf(after.key);
      if (gap !== null) happened((registry) => registry.observe('onejob_slot_gap_seconds', { pool }, gap / 1000));
    },
    called(service, result) {
      happened((registry) => registry.count('onejob_ci_calls_total', { service, result }));
    },
    read() {
      scraping ??= scrape().finally(() => {
        scraping = null;
      });
      return scraping;
    },
    close() {
      current?.loop.disable();
    },
  };
}

/** Counts what has ended since it was counted last, from the store, where it is written anyway. */
class EndedCounts {
  readonly #store: MetricsParts['store'];
  readonly #clock: Clock;
  /** What was counted last. */
  readonly #seen: { outcome: number; proof: number };
  /** Jobs whose devices are being proved, and since when each was looked at. */
  readonly #unproved: { readonly outcome: EndedJob; readonly since: number }[] = [];

  constructor(store: MetricsParts['store'], clock: Clock) {
    this.#store = store;
    this.#clock = clock;
    this.#seen = { outcome: store.outcomes.last(), proof: store.proofs.last() };
  }

  /** Before the first count, for which not all is read. */
  begin(): void {
    const { outcomes, proofs } = this.#store;
    this.#seen.outcome = Math.max(this.#seen.outcome, outcomes.last() - mostAtFirst);
    this.#seen.proof = Math.max(this.#seen.proof, proofs.last() - mostAtFirst);
  }

  count(registry: MetricRegistry): void {
    this.#countJobs(registry);
    this.#countProofs(registry);
  }

  #countJobs(registry: MetricRegistry): void {
    const { outcomes } = this.#store;
    for (const { outcome, since } of this.#unproved.splice(0)) {
      const isLate = this.#clock.now() - since >= proofPatience;
      if (!this.#isProved(outcome) && !isLate) this.#unproved.push({ outcome, since });
      else countJob(registry, outcome, outcomes.get(outcome.job)?.verdict.kind ?? outcome.kind);
    }
    for (;;) {
      const ended = outcomes.after(this.#seen.outcome, batch);
      for (const outcome of ended) {
        this.#seen.outcome = outcome.seq;
        if (this.#isProved(outcome)) countJob(registry, outcome, outcome.kind);
        else this.#unproved.push({ outcome, since: this.#clock.now() });
      }
      if (ended.length < batch) return;
    }
  }

  /** Whether its verdict is final: a proof of its devices can change it. */
  #isProved({ agent, devices }: EndedJob): boolean {
    if (agent === null || devices.length === 0) return true;
    const proved = new Set(this.#store.proofs.ofAgent(agent, proofsRead).map(({ device }) => device));
    return devices.every((device) => proved.has(device));
  }

  #countProofs(registry: MetricRegistry): void {
    const { proofs } = this.#store;
    // All were deleted, so their numbers began again.
    if (proofs.last() < this.#seen.proof) this.#seen.proof = 0;
    for (;;) {
      const proved = proofs.after(this.#seen.proof, batch);
      for (const { id, verdict, took } of proved) {
        this.#seen.proof = id;
        registry.observe('onejob_proof_seconds', { verdict }, took / 1000);
      }
      if (proved.length < batch) return;
    }
  }
}

function countJob(registry: MetricRegistry, { pool, service, wait, run }: EndedJob, verdict: VerdictKind): void {
  registry.count('onejob_jobs_total', { pool, service, verdict });
  if (wait !== null) registry.observe('onejob_job_wait_seconds', { pool }, wait / 1000);
  if (run !== null) registry.observe('onejob_job_run_seconds', { pool }, run / 1000);
}

interface Opened {
  readonly registry: MetricRegistry;
  readonly loop: ELDHistogram;
  /** CPU seconds that were counted. */
  cpu: number;
}

function readProcess(opened: Opened, wall: number): void {
  const { registry, loop } = opened;
  // Each interval contains the resolution.
  const late = (ns: number): number => (loop.count === 0 ? 0 : Math.max(0, ns / 1e9 - resolution / 1000));
  registry.set('onejob_event_loop_lag_p99_seconds', {}, late(loop.percentile(99)));
  registry.set('onejob_event_loop_lag_max_seconds', {}, late(loop.max));
  loop.reset();
  const { user, system } = process.cpuUsage();
  const cpu = (user + system) / 1e6;
  registry.count('process_cpu_seconds_total', {}, cpu - opened.cpu);
  opened.cpu = cpu;
  const { rss, heapUsed } = process.memoryUsage();
  registry.set('process_resident_memory_bytes', {}, rss);
  registry.set('nodejs_heap_used_bytes', {}, heapUsed);
  registry.set('process_start_time_seconds', {}, Math.round(wall / 1000 - process.uptime()));
  const fds = attempt(() => readdirSync('/proc/self/fd').length);
  if (fds !== null) registry.set('process_open_fds', {}, fds);
}

/** Bytes; null where unknown. */
async function readDisk(dir: string) {
  const file = join(dir, databaseName);
  const [database, log, disk] = await Promise.all([
    stat(file).catch(() => null),
    stat(`${file}-wal`).catch(() => null),
    statfs(dir).catch(() => null),
  ]);
  return {
    store: database === null ? null : database.size + (log?.size ?? 0),
    size: disk === null ? null : disk.blocks * disk.bsize,
    free: disk === null ? null : disk.bavail * disk.bsize,
  };
}
