/** What the API asks of a running manager. */
import type { Readable } from 'node:stream';
import type { RunningShell } from '../ports/runtime.ts';
import type { Changes, Subject } from './changes.ts';
import type { Gap } from './gap.ts';
import type { EndedFilter, HistoryQuery } from './history.ts';
import type { ArrayRequest, JobRequest } from './job.ts';
import type { Submitter } from './people.ts';
import type * as Schemas from './schema.ts';
import type { ShellStart } from './shell-frames.ts';

export type LogSource =
  | { readonly job: string }
  | { readonly agent: string }
  | { readonly slot: string; readonly previous: boolean };

/** One piece of a job's output. `note` is a line of onejob's own; with a `gap` it says what is missing. */
export interface LogPiece {
  readonly stream: 'stdout' | 'stderr' | 'note';
  readonly bytes: Uint8Array;
  readonly gap?: Gap;
  /** It was written for a terminal. Escape sequences are removed last, so that everyone counts the bytes that the job printed. */
  readonly forTerminal?: boolean | undefined;
}

export interface JobPage {
  /** Newest last. */
  readonly jobs: Schemas.JobView[];
  /** Key of the page of older ones; null: there are none. */
  readonly next: string | null;
}

/** Jobs in a list of all jobs by default: the newest. */
export const jobsListed = 1_000;

/** Most jobs of one answer: the daemon does nothing else while it reads them. */
export const pageLimit = 10_000;

export interface JobsFilter {
  readonly all: boolean;
  readonly pool: string | null;
  readonly limit?: number | undefined;
  /** The `next` of an earlier page. */
  readonly before?: string | undefined;
}

/** Machines in clouds. */
export interface MachineService {
  hosts(): Schemas.CloudHostView[];
  /**
   * Asks for a machine of the host, unless one is ready, for `wait` ms.
   * @throws OnejobError E_USAGE for an unknown host, E_CLOUD_CHECK if its cloud would not make one, the reason of `signal`
   */
  up(host: string, wait: number, signal: AbortSignal): Promise<Schemas.CloudHostView>;
  /** Ends its machines: those that work drain first, unless `now`. @throws OnejobError E_USAGE for an unknown host */
  down(host: string, now: boolean): Schemas.CloudHostView;
  /** Those that are gone, newest first. */
  receipts(limit: number): Schemas.MachineView[];
}

export interface Manager {
  status(): Promise<Schemas.StatusView>;
  /** Whether new requests are refused, or about to be. */
  isStopping(): boolean;
  plan(): Schemas.PlanLine[];
  doctor(signal: AbortSignal): Promise<Schemas.FindingView[]>;

  /** Accepts a job durably (S7), of a person. @throws OnejobError for an unknown pool, workspace, or a store that cannot write. */
  submit(request: JobRequest, by?: Submitter | null): Schemas.JobView;
  /** Accepts all jobs of an array in one commit, or none. @throws as `submit` */
  submitArray(request: ArrayRequest, by?: Submitter | null): Schemas.JobView[];
  /** Jobs of an array in the order of its indices, ended or not; empty if there is no such array. */
  arrayJobs(id: string): Schemas.JobView[];
  /** Throws what `submit` would, except for the workspace, which need not be there yet. */
  verify(request: JobRequest, by?: Submitter | null): void;
  /**
   * A page of jobs, by default the newest: at most 10,000, of `all`, also those that are done, 1,000.
   * @throws OnejobError E_API_REQUEST for an invalid key
   */
  jobs(filter: JobsFilter): JobPage;
  /** Those that have ended and that an agent of this host had, by page. @throws OnejobError E_API_REQUEST for an invalid key */
  endedJobs(filter: EndedFilter): JobPage;
  /** How many jobs ended how, by pool, device and so on. It outlives the jobs. */
  history(query: HistoryQuery): Schemas.HistoryView[];
  /** While it waits, with the number of jobs `ahead` of it. */
  job(id: string): Schemas.JobView | null;
  /** Resolves with the job once it is `done`; also when it already is. */
  settled(id: string, signal: AbortSignal): Promise<Schemas.JobView>;
  /** Asks a job to end, or only one that waits; a waiting one ends at once. Idempotent. @throws OnejobError E_JOB_ELSEWHERE */
  cancel(id: string, only?: { readonly onlyWaiting?: boolean }): Schemas.JobView;
  /** Moves a waiting job to another pool. Idempotent. @throws OnejobError E_JOB_ELSEWHERE, E_POOL_UNKNOWN, E_JOB_REQUEST */
  move(id: string, pool: string): Schemas.JobView;
  /** The same for all jobs of an array, in one commit; returns those that had not ended. @throws OnejobError E_JOB_UNKNOWN */
  cancelArray(id: string): Schemas.JobView[];

  /** Whether `shell` may try. @throws OnejobError E_NOT_HELD, E_JOB_ELSEWHERE */
  checkShell(id: string): void;
  /**
   * Runs a shell in the files of a held job, or with `running` in the sandbox of an attended job, until `signal` aborts.
   * @throws OnejobError E_NOT_HELD, E_SHELL, E_SANDBOX_LOST
   */
  shell(id: string, start: ShellStart, signal: AbortSignal): Promise<RunningShell>;
  /** Removes the files of a held job. @throws OnejobError E_NOT_HELD, E_JOB_ELSEWHERE */
  unhold(id: string): Promise<Schemas.JobView>;

  /** Forgets jobs that ended, and removes their files. */
  pruneJobs(request: Schemas.PruneRequest): Promise<Schemas.PrunedView>;

  /** Caches of pools, and of services. */
  caches(signal: AbortSignal): Promise<Schemas.CacheView[]>;
  /** Empties caches. Those that a job uses stay. */
  clearCaches(request: Schemas.ClearCachesRequest, signal: AbortSignal): Promise<Schemas.CachesClearedView>;

  /** Stores a workspace tar; returns its id. Deleted when its job is done, or after an hour without a job. A person's is for his jobs only. */
  putWorkspace(files: Readable, signal: AbortSignal, by?: Submitter | null): Promise<string>;
  /** Keeps files for workspaces that `joinWorkspace` makes; their secret name. */
  keepFiles(files: Readable, signal: AbortSignal): Promise<string>;
  /** Makes a workspace of ranges of what is kept; returns its id. @throws OnejobError E_WORKSPACE_UNKNOWN if that is not here as it came */
  joinWorkspace(request: Schemas.JoinRequest, signal: AbortSignal, by?: Submitter | null): Promise<string>;
  /** The tar of a done job's artifacts; null when it has none. */
  artifacts(job: string): Readable | null;

  /**
   * The output of the job so far (of its agent, if the two cannot be told apart), or with `tail` so many of its last lines, and
   * with `follow` all further output until the agent has ended. @throws OnejobError when unknown.
   */
  logs(
    source: LogSource,
    how: { readonly follow: boolean; readonly tail?: number | null },
    signal: AbortSignal,
  ): AsyncIterable<LogPiece>;
  /**
   * The logs that an agent itself keeps: one file after the other, oldest first, each below a line with its name; with `tail` their
   * last lines. @throws OnejobError when unknown, E_LOG_UNKNOWN while there are none
   */
  agentLogs(source: LogSource, how: { readonly tail?: number | null }, signal: AbortSignal): AsyncIterable<LogPiece>;

  /** Each GPU followed by its MIG instances, then missing devices. Empty when no pool has devices. */
  devices(): Schemas.DeviceView[];
  /**
   * Samples of the last hour at most, since a time of the wall clock (ms), oldest first; `name` as below.
   * @throws OnejobError for a device that is unknown
   */
  deviceUse(name: string, since: number): Schemas.UseView[];
  /**
   * `name`: a UUID or its unique beginning, or the index or PCI address of a GPU. A job that runs on it is not touched.
   * @throws OnejobError for a device that is unknown, or in use where that matters, and a store that cannot write
   */
  changeDevice(name: string, change: Schemas.DeviceChange): Schemas.DeviceAnswer;
  /** Takes a device out of quarantine, and says what a look at it now finds. @throws OnejobError as above */
  clearDevice(name: string): Promise<Schemas.DeviceAnswer>;
  /** Newest first; `device` as above, null: of all. @throws OnejobError for a device that is unknown */
  proofs(filter: { readonly device: string | null; readonly limit: number }): Schemas.ProofView[];

  /** `reason` names the pause; only a resume with the same reason ends it. Null pool: all pools. A pause outlives the manager. */
  pause(pool: string | null, reason: string): void;
  resume(pool: string | null, reason: string): Schemas.ResumeView;
  /** Finishes running jobs, starts nothing new, keeps no standby, until `resume`. */
  drain(pool: string | null): void;
  /** Begins to stop. */
  down(request: Schemas.DownRequest): void;
  /** Resolves when it has ended with `forget`, with a line for each CI service that had something. */
  forgotten(signal: AbortSignal): Promise<Schemas.ForgottenView[]>;
  readonly changes: Events;
  /** Keeps a temporary manager alive until the returned function is called. */
  hold(): () => void;
}

/** What changes, and how it is now. */
export interface Events extends Pick<Changes, 'epoch' | 'head' | 'after' | 'listen'> {
  view(subject: Subject): Schemas.Event;
}

type ImageProgress = (pool: string, line: string) => void;

/** Requests about images that onejob builds, to a daemon or to this process. All methods throw OnejobError. */
export interface ImageService {
  /** Built by this installation, newest first. */
  list(signal: AbortSignal): Promise<Schemas.ImageView[]>;
  /**
   * `build`: images that `up` would build, if missing. `refresh`: with the newest agent. `pools`: empty for all. A failed pool is
   * an outcome. @throws OnejobError E_POOL_UNKNOWN
   */
  make(
    what: 'build' | 'refresh',
    pools: readonly string[],
    progress: ImageProgress,
    signal: AbortSignal,
  ): Promise<Schemas.ImageOutcome[]>;
  /** Removes images of this installation that neither a pool nor a container uses; their names. */
  prune(signal: AbortSignal): Promise<string[]>;
}

/**
 * Requests about encrypted values that do not contain their pipeline. `fingerprint`: 32 hex digits, or the unique beginning of a
 * known one.
 */
export interface SecretPins {
  /** All pinned values, the oldest first. */
  pins(): Schemas.PinnedView[] | Promise<Schemas.PinnedView[]>;
  /** Lets more pipelines use a value, durably. @throws OnejobError E_SECRET_UNKNOWN for a beginning that is unknown or ambiguous */
  allow(fingerprint: string, pipelines: readonly string[]): Schemas.PinnedView | Promise<Schemas.PinnedView>;
  /** Removes the pin of one pipeline; null: all, so that the next pipeline to use the value is the first again. @throws as above */
  forget(fingerprint: string, pipeline: string | null): Schemas.ForgetAnswer | Promise<Schemas.ForgetAnswer>;
}

/** The config file of the daemon. */
export interface ConfigService {
  /**
   * Reads the config again, and runs with it; with `dryRun` only tells what that would change.
   * @throws OnejobError E_CONFIG with every problem; nothing has changed then
   */
  applyConfig(request: Schemas.ApplyRequest): Promise<Schemas.ApplyAnswer>;
}

export interface MetricsService {
  /** In the text format of Prometheus, version 0.0.4. */
  read(): Promise<string>;
}
