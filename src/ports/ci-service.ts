/**
 * The CI service axis: hands out jobs. A service returns a script, and never knows in which kind of sandbox it runs. A service that
 * binds late has a `JobSource`, and is an adapter of `late/` if its jobs are given once; one that binds early is an adapter of `early/`.
 * `next` and `record` are synchronous because they are part of a commit.
 */
import type { Readable } from 'node:stream';
import { type Failure, OnejobError } from '../base/errors.ts';
import type { Finding } from '../base/finding.ts';
import type { AgentId, Change, Exit, JobId, Reserved, StopReason } from '../core/slot.ts';
import type { Device } from '../gpu/inventory.ts';
import type { Recipe } from './runtime.ts';
import type { ServiceJob } from './service-job.ts';

export interface AgentContext {
  readonly agent: AgentId;
  readonly pool: string;
  readonly slot: string;
  readonly name: string;
  /** Where the job finds its workspace. */
  readonly workspace: string;
  /** Set when the service binds late. */
  readonly job: JobId | null;
  readonly devices: readonly Device[];
  /** Newest CUDA version of the host's driver, such as `12.4`, or null. */
  readonly cuda: string | null;
  /**
   * What the service's `asks` prints in a sandbox like the agent's, once per fingerprint; where an engine places sandboxes, in the
   * agent's own. @throws OnejobError if that fails
   */
  ask(signal: AbortSignal): Promise<string>;
  /** Whether its sandbox is on another host, so that what it says to this one crosses a network. */
  readonly isRemote: boolean;
  /** The address at which its sandbox reaches `port` of this host, or the one with a port that it must be. @throws OnejobError E_NO_DOOR */
  hostAddress(port: number, signal: AbortSignal): Promise<string>;
}

/** The part of a context that outlives the agent's sandbox. */
export type EndedContext = Omit<AgentContext, 'ask' | 'hostAddress' | 'isRemote' | 'devices' | 'cuda'>;

/** An agent as the service knows it, and the script that makes a sandbox that agent. */
export interface Registration {
  /** Id at the service; null when the service keeps none. */
  readonly id: string | null;
  readonly script: string;
  /** Opens a tar stream for the workspace, before the release; null: there is none. */
  readonly files: (() => Promise<Readable>) | null;
}

export type CiEvent =
  /** The pool's waiting jobs changed: ask `next` again. `slot`: only for that slot. */
  | { readonly kind: 'waiting'; readonly pool: string; readonly slot?: string }
  /** A reserved, assigned or running job must end. */
  | { readonly kind: 'cancel'; readonly job: JobId; readonly agent: AgentId; readonly grace: number | null }
  /** Early binding: the agent is online, and may get a job. */
  | { readonly kind: 'online'; readonly agent: AgentId }
  /** Early binding: the agent did not come online in time. */
  | { readonly kind: 'silent'; readonly agent: AgentId; readonly failure: Failure }
  /** Early binding: the service gave this agent a job. */
  | { readonly kind: 'jobSeen'; readonly agent: AgentId; readonly job: JobId }
  /** The service has the job's result, or can give the agent none any more: it has nothing left to do. */
  | { readonly kind: 'jobDone'; readonly agent: AgentId }
  /** Start no agents in the pool until `reason` is null. `beginning`: onejob is still starting, so only log it if it takes long. */
  | { readonly kind: 'hold'; readonly pool: string; readonly reason: string | null; readonly beginning?: boolean };
export interface Deregistered {
  /** The job it had; null: it had none; undefined: the service did not say. */
  readonly ran: JobId | null | undefined;
}

/** Waiting jobs of one kind that no pool of the config can run; other hosts may be able to. */
export interface UnfitJobs {
  readonly jobs: number;
  /** Where they wait and for what, for after "jobs wait". */
  readonly how: string;
  /** What to do about it, in sentences. */
  readonly hint: string;
}

/** Names of entries at a service. */
export interface NamedRemoval {
  /** Gone now. In a dry run: would be. */
  readonly removed: readonly string[];
  /** Still there: online, at work, or of a state that onejob does not know. */
  readonly left: readonly string[];
  /** Why there may be more, a sentence each. Empty: everything was seen. */
  readonly unknown: readonly string[];
}

/** The package of an agent that images must have. */
export interface AgentPackage {
  readonly type: string;
  readonly version: string;
  /** https address, or absolute path of a `.tar.gz`. */
  readonly from: string;
  /** Lower-case hex, or null. */
  readonly sha256: string | null;
}

/** An agent's workspace as tar streams, also after its end. */
export interface AgentFiles {
  /** `only`: top-level names that are enough; null or none: everything. The stream may contain more. */
  all(signal: AbortSignal, only?: readonly string[] | null): Promise<Readable>;
  /** null: there is none. */
  folder(name: string, signal: AbortSignal): Promise<Readable | null>;
}

export interface CiCapabilities {
  readonly binds: 'late' | 'early';
  /** Late binding: each job is for one slot, and `offer` tells the service what slots could do. */
  readonly standsForSlots: boolean;
  /**
   * How many TERMs end a running job: an agent may take the first as a wish to end after its job. With 2, an agent that binds early
   * gets the first TERM before it is retired.
   */
  readonly terms: 1 | 2;
  /** Whether a pool's `timeout` applies to its jobs; otherwise the service has its own. */
  readonly poolTimeout: boolean;
  /** Whether agents write their job's output on standard output, and their own log on standard error. */
  readonly jobOnStdout: boolean;
}

/** What a slot could do with a job now. `gone`: nothing, ever. */
export type SlotOffer = 'open' | 'closed' | 'gone';

/** An agent that was released and is asked to end. */
export interface EndingAgent {
  readonly agent: AgentId;
  /** null: none was seen. */
  readonly job: JobId | null;
  readonly why: StopReason;
  /** Whether its script has certainly begun. */
  readonly released: boolean;
}

/**
 * Sandboxes like those of a service's agents, for `doctor`: without devices and job, removed after their answer. The service does
 * not know where they run.
 */
export interface DiagnosticSandboxes {
  /** Like that of the pool's first slot. `change`: the recipe of a job's own. null: no such pool, no image yet, or an engine places it. */
  like(pool: string, change?: (recipe: Recipe) => Recipe): DiagnosticSandbox | null;
}

export interface DiagnosticSandbox {
  readonly recipe: Recipe;
  /** Whether it has an image. */
  readonly hasImage: boolean;
  /** Equal for equal sandboxes. */
  readonly kind: string;
  /** Each time in a new sandbox; pulls no image. @throws OnejobError E_IMAGE_NOT_FOUND, E_GATE_ENDED, of the runtime */
  ask(script: string, signal: AbortSignal): Promise<string>;
  /** Whether it is on another host. */
  readonly isRemote: boolean;
  /** The address at which it reaches `port` of this host. @throws OnejobError E_NO_DOOR */
  hostAddress(port: number, signal: AbortSignal): Promise<string>;
}

/** Every service. A missing member does nothing, or answers that there is nothing. */
export interface CiService {
  readonly name: string;
  readonly capabilities: CiCapabilities;
  /** null: it binds early. */
  readonly jobs: JobSource | null;
  /** Findings for `doctor`. Changes nothing at the service. */
  check(signal: AbortSignal, sandboxes: DiagnosticSandboxes): Promise<Finding[]>;
  observe(emit: (event: CiEvent) => void, signal: AbortSignal): void;
  register(context: AgentContext, signal: AbortSignal): Promise<Registration>;
  /** Removes the agent's registration. Idempotent. It waits for no outage: what the service keeps is removed later. */
  deregister(context: EndedContext, signal: AbortSignal): Promise<Deregistered>;
  /** Early binding: keeps jobs from the agent; answers one that it got anyway. @throws OnejobError (retry) if nobody knows */
  retire(agent: AgentId, signal: AbortSignal): Promise<JobId | null>;
  /**
   * An agent is about to be told to end. The service learns why its job ends, because the agent may report a result at once. An
   * agent without a job gets no more, but one that is on its way may still arrive. Takes half a minute at most, and never fails.
   */
  ending?(agent: EndingAgent, signal: AbortSignal): Promise<void>;
  /**
   * Keeps what the service wants of an ended job, such as artifacts, before its sandbox is removed. Idempotent. It bounds bytes and
   * time, because a job made what it reads. `hurry`: aborts when the manager must end: the rest is given up, with a note.
   */
  settle?(context: EndedContext, files: AgentFiles, signal: AbortSignal, hurry?: AbortSignal): Promise<void>;
  /**
   * An agent was released, by this manager or an earlier one. The function gets each line of its standard error, from the first,
   * before `settle` and `deregister`. It must not throw. Where a runtime has one stream only, it gets the lines of its job, too.
   */
  listen?(agent: AgentId): (line: string) => void;
  /** The failure of an agent that ended without a job. `outputTail`: the end of its output. Absent: `endedWithoutJob`. */
  describeExit?(exit: Exit, outputTail: string): Failure;
  /** A script of builtins: what it must know of an agent's sandbox before it registers the agent. Absent: nothing. */
  readonly asks?: string;
  /** Adds to config what every sandbox of this service needs. Pure. */
  equip?(recipe: Recipe, pool: string): Recipe;
  /** Number of waiting jobs; null: unknown. */
  waiting?(pool: string): number | null;
  /** As far as looks show that the service makes anyway. Absent: the service cannot tell. */
  unfit?(): readonly UnfitJobs[];
  /**
   * Late binding, for a pool that leases devices for each job: its place in the line for devices. The same text keeps the place, another
   * one goes to the end; null: it needs no devices now. Absent: the pool's next job.
   */
  turn?(pool: string): string | null;
  /** Unfinished jobs, for people; not the own queue's. */
  serviceJobs?(): readonly ServiceJob[];
  /** The agent that images need, or null. @throws OnejobError E_CI_*, E_AGENT_PACKAGE */
  agentPackage?(platform: string, signal: AbortSignal): Promise<AgentPackage | null>;
  /** Removes what stays when the manager ends, such as placeholders. */
  forget?(signal: AbortSignal): Promise<void>;
  /**
   * Removes what other onejobs have registered for the queues of this service's pools and left behind: agents whose names `isOurs`
   * accepts and that are offline and without a job, and the placeholders of their installations. This onejob's own are not touched.
   * Never fails: what went wrong is in the answer. Absent: the service keeps nothing of agents that are gone.
   * @throws the reason of `signal`
   */
  removeNamed?(
    isOurs: (name: string) => boolean,
    signal: AbortSignal,
    options?: { readonly dryRun: boolean },
  ): Promise<NamedRemoval>;
  /** The manager ends. `leaving`: its agents keep running, and so must what they need. */
  close?(leaving: boolean): Promise<void>;
}

/** Late binding: jobs are known before an agent has them. */
export interface JobSource {
  /**
   * The pool's next job for this slot, or for any slot (null). Does not take it. `only`: the slot can take only jobs whose
   * sandbox has another image than the pool's, so those before them are passed over, also cold ones that differ in something else.
   * A service that has no cold jobs may ignore it.
   */
  next(pool: string, slot: string | null, only?: 'ownImage'): Reserved | null;
  /** Records a change of a job, in the store's transaction. Must not throw for a change that it has seen before. */
  record(change: Change): void;
  /** The transaction was committed: `next` must follow at once. Results are not announced yet. */
  committed(): void;
  /** What is committed is being put on disk. The returned function is called after that: then results may be announced. */
  syncing(): () => void;
  /** The transaction failed: nothing since the last commit has happened. */
  rolledBack(): void;
  /** How many devices a waiting job asks for; null: as many as its pool gives. */
  devicesFor?(job: JobId): number | null;
  /** The pool's waiting jobs, the next one first. A service with it lets any of them be started. */
  line?(pool: string): Iterable<Reserved & { readonly devices: number | null }>;
  /** A job that waits in the pool, whatever its place; null: it does not. With `line`. */
  waits?(pool: string, job: JobId): Reserved | null;
  /** The recipe of a job that brings its own; null: the pool's. */
  recipeFor?(job: JobId, pool: Recipe): Recipe | null;
  /** Whether a job itself asks for an image, if only for its pool's. Absent: none does. */
  namesImage?(job: JobId): boolean;
  /** Whether an ended job that is not settled yet has failed by itself, so that people may want to look at its files. */
  hasFailed?(job: JobId): boolean;
  /** What a slot could do with a job, first and on every change. Only with `standsForSlots`. */
  offer?(slot: string, offer: SlotOffer): void;
}

/** The failure of an agent that ended without ever having a job. */
export function endedWithoutJob(exit: Exit, outputTail: string): Failure {
  const message = withLastOutput(`The agent ended ${howEnded(exit)} and had no job.`, outputTail);
  return { code: 'E_AGENT_ENDED', message, retry: true };
}

/** The error of a service that was asked for a pool of another one. */
export function foreignPool(service: string, pool: string): OnejobError {
  return new OnejobError('E_BUG', `Service ${service} was asked for pool ${pool}, which belongs to another service.`);
}

/** `message`, with the end of an agent's output. */
export function withLastOutput(message: string, outputTail: string): string {
  return outputTail === '' ? message : `${message} Its last output was:\n${outputTail}`;
}

function howEnded(exit: Exit): string {
  switch (exit.kind) {
    case 'code':
      return `with exit code ${exit.code}`;
    case 'signal':
      return `by ${exit.signal}`;
    case 'oom':
      return 'because it ran out of memory';
    case 'lost':
      return 'because of a problem on this host';
  }
}

/**
 * Stands for a CI service that is no longer in the config but still has agents in slots. Without its credential onejob cannot ask
 * it, so an agent that waits for a job keeps running.
 */
export function absentService(name: string): CiService {
  const absent = (): OnejobError =>
    new OnejobError('E_CI_UNREACHABLE', `The CI service "${name}" is no longer in the config, so onejob cannot ask it.`, {
      hint: 'Put the service back until its agents are gone, or end them with "onejob down".',
      retry: true,
    });
  return {
    name,
    capabilities: { binds: 'early', standsForSlots: false, terms: 1, poolTimeout: false, jobOnStdout: false },
    jobs: null,
    check: async () => [],
    observe() {},
    register: () => Promise.reject(absent()),
    deregister: async () => ({ ran: undefined }),
    retire: () => Promise.reject(absent()),
    describeExit: () => ({ code: 'E_AGENT_ENDED', message: 'The agent ended.', retry: true }),
  };
}
