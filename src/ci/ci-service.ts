/**
 * The CI service axis: hands out jobs. A service returns a script; it never knows in what kind of sandbox it runs.
 *
 * `next` and `record` are synchronous, because they are part of one commit; everything that talks to the world is not.
 */
import type { Readable } from 'node:stream';
import type { WaitingJob } from '../core/plan.ts';
import type { AgentId, Change, JobId } from '../core/slot.ts';
import type { Finding, Recipe } from '../runtimes/runtime.ts';

export interface AgentContext {
  readonly agent: AgentId;
  readonly pool: string;
  readonly slot: string;
  /** The agent's name from the pool's template. */
  readonly name: string;
  /** Where the job finds its workspace. */
  readonly workspace: string;
  /** Set when the service binds late. */
  readonly job: JobId | null;
}

/** What the service knows of one agent, and the script that makes a sandbox that agent. */
export interface Registration {
  /** Id at the service; null when the service keeps none. */
  readonly id: string | null;
  readonly script: string;
  /** Values that must not appear in logs, errors or the store. */
  readonly redact: readonly string[];
  /** Opens the tar stream that is put into the workspace before the release; null for none. */
  readonly files: (() => Promise<Readable>) | null;
}

export type CiEvent =
  /** Something about the pool's waiting jobs changed: ask `next` again. */
  | { readonly kind: 'waiting'; readonly pool: string }
  /** A job, reserved or assigned or running, must end. */
  | { readonly kind: 'cancel'; readonly job: JobId; readonly agent: AgentId; readonly grace: number | null }
  /** Early binding: the service gave this agent a job. */
  | { readonly kind: 'jobSeen'; readonly agent: AgentId; readonly job: JobId };

export interface CiCapabilities {
  readonly binds: 'late' | 'early';
  /** Whether `next` and the waiting count know about jobs that wait. */
  readonly canCountQueue: boolean;
}

export interface CiService {
  readonly name: string;
  readonly capabilities: CiCapabilities;

  check(signal: AbortSignal): Promise<Finding[]>;

  /** Calls `emit` until `signal` aborts. */
  observe(emit: (event: CiEvent) => void, signal: AbortSignal): void;

  /** Late binding: the pool's next job, not taking it. Early binding: null. */
  next(pool: string): WaitingJob | null;

  /** How many devices a waiting job asks for itself; null: as many as its pool gives each agent. */
  devicesFor(job: JobId): number | null;

  /** The recipe of a job that brought its own; null when the pool's fits. */
  recipeFor(job: JobId, pool: Recipe): Recipe | null;

  /** Writes down what became of a job. Called inside the store's transaction; must not throw for a change it has seen before. */
  record(change: Change): void;

  /** The transaction was committed: `next` and the like must follow at once. Nobody is told of a result yet. */
  committed(): void;

  /**
   * Everything committed so far is being put on disk. What it answers is called once that is done: then whoever waits for
   * a result of before may be told.
   */
  syncing(): () => void;

  /** The transaction was not committed: everything recorded since the last commit has not happened. */
  rolledBack(): void;

  register(context: AgentContext, signal: AbortSignal): Promise<Registration>;

  /** Everything the service wants to keep of an ended job before its sandbox is removed, such as artifacts. Idempotent. */
  settle(context: AgentContext, files: (signal: AbortSignal) => Promise<Readable>, signal: AbortSignal): Promise<void>;

  /** Forgets the agent's registration. Idempotent; none there is no error. */
  deregister(agent: AgentId, signal: AbortSignal): Promise<void>;
}
