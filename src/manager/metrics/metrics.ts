/**
 * `/metrics` for Prometheus. Gauges are read from the state at each scrape. What has ended since the last scrape is read from the
 * store, where it is written anyway. Only gaps between agents and calls of CI services are counted as they happen. Before its first
 * scrape it costs nothing.
 */
import { readdirSync } from 'node:fs';
import { stat, statfs } from 'node:fs/promises';
import { join } from 'node:path';
import { monitorEventLoopDelay } from 'node:perf_hooks';
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

export type Metrics = ReturnType<typeof createMetrics>;

/** ms between two looks at the event loop's lateness. */
const resolution = 100;
/** Rows of the store that are read at a time, and those that the first scrape reads at most. */
const [batch, mostAtFirst] = [1_000, 10_000];
/** What happened before the first scrape, and is counted with it. */
const mostKept = 10_000;

/** ms that a job with devices waits for its proof before it is counted, and proofs of its agent that are read. */
const [proofPatience, proofsRead] = [120_000, 100];

type EndedJob = ReturnType<Store['outcomes']['after']>[number];

export function createMetrics(parts: MetricsParts) {
  const { clock, store, state, serviceNames } = parts;
  const gapOf = createGaps(clock.now);
  const seen = { outcome: store.outcomes.last(), proof: store.proofs.last() };
  /** Jobs whose devices are being proved, and since when each was looked at. */
  const unproved: { readonly outcome: EndedJob; readonly since: number }[] = [];
  const kept: ((registry: MetricRegistry) => void)[] = [];
  let opened: Promise<Opened> | null = null;
  let scraping: Promise<string> | null = null;
  let current: Opened | null = null;

  async function open(): Promise<Opened> {
    const { createRegistry } = await import('./registry.ts');
    const loop = monitorEventLoopDelay({ resolution });
    loop.enable();
    const registry = createRegistry();
    seen.outcome = Math.max(seen.outcome, store.outcomes.last() - mostAtFirst);
    seen.proof = Math.max(seen.proof, store.proofs.last() - mostAtFirst);
    for (const one of kept.splice(0)) one(registry);
    current = { registry, loop, cpu: 0 };
    return current;
  }

  function happened(what: (registry: MetricRegistry) => void): void {
    if (current !== null) what(current.registry);
    else if (kept.length < mostKept) kept.push(what);
  }

  function countJobs(registry: MetricRegistry): void {
    for (const { config } of state().reconciler.pools) {
      const { name: pool, service } = config;
      for (const verdict of verdictKinds) registry.count('onejob_jobs_total', { pool, service, verdict }, 0);
    }
    for (const { outcome, since } of unproved.splice(0)) {
      if (!isProved(outcome) && clock.now() - since < proofPatience) unproved.push({ outcome, since });
      else countJob(registry, outcome, store.outcomes.get(outcome.job)?.verdict.kind ?? outcome.kind);
    }
    for (;;) {
      const ended = store.outcomes.after(seen.outcome, batch);
      for (const outcome of ended) {
        seen.outcome = outcome.seq;
        if (isProved(outcome)) countJob(registry, outcome, outcome.kind);
        else unproved.push({ outcome, since: clock.now() });
      }
      if (ended.length < batch) return;
    }
  }

  /** Whether its verdict is final: a proof of its devices can change it. */
  function isProved({ agent, devices }: EndedJob): boolean {
    if (agent === null || devices.length === 0) return true;
    const proved = new Set(store.proofs.ofAgent(agent, proofsRead).map(({ device }) => device));
    return devices.every((device) => proved.has(device));
  }

  function countJob(registry: MetricRegistry, { pool, service, wait, run }: EndedJob, verdict: VerdictKind): void {
    registry.count('onejob_jobs_total', { pool, service, verdict });
    if (wait !== null) registry.observe('onejob_job_wait_seconds', { pool }, wait / 1000);
    if (run !== null) registry.observe('onejob_job_run_seconds', { pool }, run / 1000);
  }

  function countProofs(registry: MetricRegistry): void {
    // All were deleted, so their numbers began again.
    if (store.proofs.last() < seen.proof) seen.proof = 0;
    for (;;) {
      const proved = store.proofs.after(seen.proof, batch);
      for (const { id, verdict, took } of proved) {
        seen.proof = id;
        registry.observe('onejob_proof_seconds', { verdict }, took / 1000);
      }
      if (proved.length < batch) return;
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
    countJobs(registry);
    countProofs(registry);
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
    slotChanged(before: Slot, after: Slot): void {
      const gap = gapOf(before, after);
      const pool = poolOf(after.key);
      if (gap !== null) happened((registry) => registry.observe('onejob_slot_gap_seconds', { pool }, gap / 1000));
    },
    /** A call of a CI service has its answer. */
    called(service: string, result: CallResult): void {
      happened((registry) => registry.count('onejob_ci_calls_total', { service, result }));
    },
    /** In the text format of Prometheus. Scrapes at the same time get the same. */
    read(): Promise<string> {
      scraping ??= scrape().finally(() => {
        scraping = null;
      });
      return scraping;
    },
    close(): void {
      current?.loop.disable();
    },
  };
}

interface Opened {
  readonly registry: MetricRegistry;
  readonly loop: ReturnType<typeof monitorEventLoopDelay>;
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
