/** What the API may ask of a running manager. The reconciler and the own queue stand behind it; `main.ts` joins them. */
import type { Readable } from 'node:stream';
import type { JobRequest } from '../job.ts';
import type { Gap } from '../logs/gap.ts';
import type {
  DeviceAnswer,
  DeviceChange,
  DeviceView,
  DownRequest,
  FindingView,
  ForgetAnswer,
  ForgottenView,
  ImageOutcome,
  ImageView,
  JobView,
  PinnedView,
  PlanLine,
  ProofView,
  PrunedView,
  PruneRequest,
  ResumeView,
  StatusView,
} from './schema.ts';

export type LogSource =
  | { readonly job: string }
  | { readonly agent: string }
  | { readonly slot: string; readonly previous: boolean };

export interface LogManner {
  /** Goes on until the agent has ended. */
  readonly follow: boolean;
}

/** One piece of a job's output. `note` is a line of onejob's own; with a `gap` it says what is missing in its place. */
export interface LogPiece {
  readonly stream: 'stdout' | 'stderr' | 'note';
  readonly bytes: Uint8Array;
  readonly gap?: Gap;
  /**
   * It was written for a terminal: who is none leaves out what only a terminal understands. That is the last thing done with it,
   * so that all count the bytes that the job printed.
   */
  readonly forTerminal?: boolean | undefined;
}

export interface Manager {
  status(): Promise<StatusView>;
  plan(): PlanLine[];
  doctor(signal: AbortSignal): Promise<FindingView[]>;

  /** Accepts a job durably (S7). @throws OnejobError for an unknown pool, workspace, or a store that cannot write. */
  submit(request: JobRequest): JobView;
  /** Throws what `submit` would, but for the workspace, which need not be there yet. */
  verify(request: JobRequest): void;
  /** Newest last. `all`: also those that are done, then the newest 1,000 unless `limit` says otherwise. */
  jobs(filter: { readonly all: boolean; readonly pool: string | null; readonly limit?: number | undefined }): JobView[];
  /** While it waits with the number of jobs `ahead` of it. */
  job(id: string): JobView | null;
  /** Resolves with the job once it is `done`; also when it already is. */
  settled(id: string, signal: AbortSignal): Promise<JobView>;
  /** Asks a job to end; a waiting one ends at once. Idempotent. @throws OnejobError E_JOB_ELSEWHERE */
  cancel(id: string): JobView;

  /** Forgets jobs that ended, and removes what is kept of them. */
  pruneJobs(request: PruneRequest): Promise<PrunedView>;

  /** Stores a workspace tar; returns its id. Deleted when its job is done, or after an hour without a job. */
  putWorkspace(files: Readable, signal: AbortSignal): Promise<string>;
  /** The tar of a done job's artifacts; null when it has none. */
  artifacts(job: string): Readable | null;

  /**
   * The job's output so far, or what its agent printed where nobody can tell the two apart, and with `follow` all that comes until
   * the agent has ended. @throws OnejobError when unknown.
   */
  logs(source: LogSource, how: LogManner, signal: AbortSignal): AsyncIterable<LogPiece>;
  /**
   * The logs that an agent itself keeps, as its CI service's people ask for them: one file after the other, oldest first, each
   * below a line with its name. @throws OnejobError when unknown, E_LOG_UNKNOWN while there are none
   */
  agentLogs(source: LogSource, signal: AbortSignal): AsyncIterable<LogPiece>;

  /** GPUs and MIG instances, each GPU followed by its instances; then those that are missed. @throws OnejobError when no pool has devices */
  devices(): DeviceView[];
  /**
   * `name`: a UUID or its unambiguous beginning, or the index or PCI address of a GPU. A job that runs on it is not touched.
   * @throws OnejobError for a device that is unknown, or in use where that matters, and a store that cannot write
   */
  changeDevice(name: string, change: DeviceChange): DeviceAnswer;
  /** Newest first; `device` as above, null: of all. @throws OnejobError for a device that is unknown */
  proofs(filter: { readonly device: string | null; readonly limit: number }): ProofView[];

  /** `reason` names who holds the pause; only the same reason releases it. Null pool: all pools. All of it outlives the manager. */
  pause(pool: string | null, reason: string): void;
  resume(pool: string | null, reason: string): ResumeView;
  /** Finish what runs, start nothing new, keep no standby; `resume` ends it. */
  drain(pool: string | null): void;
  /** Begins to stop; the connection may outlive it. */
  down(request: DownRequest): void;
  /** Once it has ended with `forget`: what came of that, a line for each CI service that had something. */
  forgotten(signal: AbortSignal): Promise<ForgottenView[]>;
  /** A client that holds a temporary manager open until the function is called. */
  hold(): () => void;
}

export type ImageProgress = (pool: string, line: string) => void;

/**
 * What may be asked about images that onejob builds: of a daemon through its API, or of this process where there is none.
 * All methods throw OnejobError.
 */
export interface ImageService {
  /** Built by this installation, newest first. */
  list(signal: AbortSignal): Promise<ImageView[]>;
  /**
   * `build`: what `up` would build, where it is not there. `refresh`: as things are now, with the newest agent. `pools`: none
   * for all. A pool that fails is an outcome. @throws OnejobError E_POOL_UNKNOWN
   */
  make(what: 'build' | 'refresh', pools: readonly string[], progress: ImageProgress, signal: AbortSignal): Promise<ImageOutcome[]>;
  /** Removes those of this installation that no pool uses and no container was made from; their names. */
  prune(signal: AbortSignal): Promise<string[]>;
}

/**
 * What may be asked about encrypted values that are bound to no pipeline themselves.
 * `fingerprint`: of 32 hex digits, or the unambiguous beginning of a known one.
 */
export interface SecretPins {
  /** All values that are pinned; the oldest first. */
  pins(): PinnedView[] | Promise<PinnedView[]>;
  /** Lets more pipelines use a value, durably. @throws OnejobError E_SECRET_UNKNOWN for a beginning that is of none, or of several */
  allow(fingerprint: string, pipelines: readonly string[]): PinnedView | Promise<PinnedView>;
  /** Takes the pin of one pipeline, or with null all: the next that uses the value is the first again. @throws as above */
  forget(fingerprint: string, pipeline: string | null): ForgetAnswer | Promise<ForgetAnswer>;
}
