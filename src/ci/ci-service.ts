/**
 * The CI service axis: hands out jobs. A service returns a script; it never knows in what kind of sandbox it runs. One that binds late
 * has a `JobSource`; what one that binds early needs stands in `early/`, over a small port.
 *
 * `next` and `record` are synchronous, because they are part of one commit; everything that talks to the world is not.
 */
import type { Readable } from 'node:stream';
import type { AgentId, Change, Exit, Failure, JobId, Reserved, StopReason } from '../core/slot.ts';
import { OnejobError } from '../errors.ts';
import type { Finding } from '../finding.ts';
import type { Device } from '../gpu/inventory.ts';
import type { Recipe } from '../runtimes/runtime.ts';
import type { DiagnosticSandboxes } from './diagnostic-sandbox.ts';

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
  /** What its sandbox was granted. */
  readonly devices: readonly Device[];
  /** Newest version of CUDA that the host's driver can run, such as `12.4`; null where there is none. */
  readonly cuda: string | null;
  /**
   * What a script says on its standard output in a sandbox like the agent's, which is then removed. Asked once for each
   * fingerprint. @throws OnejobError when no such sandbox can be made, or the script fails
   */
  ask(script: string, signal: AbortSignal): Promise<string>;
  /** The address under which its sandbox reaches what listens on this host at `port`. @throws OnejobError E_NO_DOOR */
  door(port: number, signal: AbortSignal): Promise<string>;
}

/** The part of a context that outlives the agent's sandbox. */
export type EndedContext = Omit<AgentContext, 'ask' | 'door' | 'devices' | 'cuda'>;

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
  /** Something about the pool's waiting jobs changed: ask `next` again. `slot`: only that one's. */
  | { readonly kind: 'waiting'; readonly pool: string; readonly slot?: string }
  /** A job, reserved or assigned or running, must end. */
  | { readonly kind: 'cancel'; readonly job: JobId; readonly agent: AgentId; readonly grace: number | null }
  /** Early binding: the service sees the agent, and could give it a job. */
  | { readonly kind: 'online'; readonly agent: AgentId }
  /** Early binding: it should be online by now, and never was. */
  | { readonly kind: 'silent'; readonly agent: AgentId; readonly failure: Failure }
  /** Early binding: the service gave this agent a job. */
  | { readonly kind: 'jobSeen'; readonly agent: AgentId; readonly job: JobId }
  /** The service has the result of the agent's job: nothing is left for the agent to do. */
  | { readonly kind: 'jobDone'; readonly agent: AgentId }
  /**
   * Nothing must be begun in this pool until `reason` is null: the credential is refused, the service is away. `beginning`: onejob
   * itself is only getting ready, which nobody need be told of unless it takes long.
   */
  | { readonly kind: 'hold'; readonly pool: string; readonly reason: string | null; readonly beginning?: boolean };

/** What became of an agent, as the service knows it. */
export interface Deregistered {
  /** The job it had; null: it had none; undefined: the service did not say. */
  readonly ran: JobId | null | undefined;
}

/** A job of a service that keeps its jobs itself, as far as onejob has seen it. Times are wall clock, ms since the epoch. */
export interface ServiceJob {
  readonly id: JobId;
  /** Name of the service in the config. */
  readonly service: string;
  readonly pool: string;
  readonly agent: AgentId | null;
  /** For people, in one line. */
  readonly title: string;
  readonly definition: string | null;
  readonly build: string | null;
  readonly repository: string | null;
  readonly branch: string | null;
  /** Why it was started, in the service's word. */
  readonly reason: string | null;
  readonly link: string | null;
  readonly demands: readonly string[];
  readonly state: 'waiting' | 'assigned' | 'running' | 'done';
  /** In the service's word; null while it has none. */
  readonly result: string | null;
  /** What onejob made of it, as a sentence: why it was refused or given up, or what it was not given. */
  readonly note: string | null;
  readonly queuedAt: number | null;
  readonly startedAt: number | null;
  readonly endedAt: number | null;
}

/** The package of an agent that images must have, and what it is checked against. */
export interface AgentPackage {
  /** Type of the service. */
  readonly type: string;
  readonly version: string;
  /** https address, or absolute path of a `.tar.gz`. */
  readonly from: string;
  /** Lower-case hex; null when nobody says it. */
  readonly sha256: string | null;
}

/** An agent's workspace, also after its end, as tar streams. */
export interface AgentFiles {
  /** `only`: names at the top of the workspace that are enough; null or none: everything. It may hold more. */
  all(signal: AbortSignal, only?: readonly string[] | null): Promise<Readable>;
  /** One folder in it; null when there is none. */
  folder(name: string, signal: AbortSignal): Promise<Readable | null>;
}

export interface CiCapabilities {
  readonly binds: 'late' | 'early';
  /** Whether `next` and the waiting count know about jobs that wait. */
  readonly canCountQueue: boolean;
  /** Late binding: an agent stands for each slot at the service, and each job is for one slot. Told by `offer` what slots could do. */
  readonly standsForSlots: boolean;
  /**
   * How many TERMs ask a running job to end: an agent may take the first one as a wish to end after its job. Then one that binds early
   * is sent that one before it is retired.
   */
  readonly terms: 1 | 2;
  /** Whether a pool's `timeout` holds for its jobs; where not, the service counts by itself. */
  readonly poolTimeout: boolean;
  /** Whether its agents write the output of their job on standard output, and what they log themselves on standard error. */
  readonly jobOnStdout: boolean;
}

/** What a slot could do with a job now. `gone`: nothing, and so it stays. */
export type SlotOffer = 'open' | 'closed' | 'gone';

/** An agent that was released and is asked to end. */
export interface EndingAgent {
  readonly agent: AgentId;
  /** Null: none has been seen. */
  readonly job: JobId | null;
  readonly why: StopReason;
  /** Whether its script has certainly begun. */
  readonly released: boolean;
}

/** What every service has. What is absent does nothing, or answers that there is nothing. */
export interface CiService {
  readonly name: string;
  readonly capabilities: CiCapabilities;
  /** null: it binds early, and shows no job before an agent has it. */
  readonly jobs: JobSource | null;

  /** Findings for `doctor`. Changes nothing at the service. */
  check(signal: AbortSignal, trial: DiagnosticSandboxes): Promise<Finding[]>;

  /** Calls `emit` until `signal` aborts. */
  observe(emit: (event: CiEvent) => void, signal: AbortSignal): void;

  register(context: AgentContext, signal: AbortSignal): Promise<Registration>;

  /**
   * Forgets the agent's registration. Idempotent; none there is no error. What the service does not give up yet is removed
   * later: this waits for no refusal and no outage.
   */
  deregister(context: EndedContext, signal: AbortSignal): Promise<Deregistered>;

  /**
   * Early binding: from its end on no job can come to the agent any more; answers the one that has come all the same.
   * @throws OnejobError (retry) when nobody can say
   */
  retire(agent: AgentId, signal: AbortSignal): Promise<JobId | null>;

  /**
   * An agent is about to be told to end. Of its job the service is told why, as far as that can be done at once, since the agent may
   * give it a result in the next moment; to an agent without one no job is to come any more, and one that is on its way may arrive
   * first, since nobody else would tell of it. Takes half a minute at most, and never fails.
   */
  ending?(agent: EndingAgent, signal: AbortSignal): Promise<void>;

  /**
   * Everything the service wants to keep of an ended job before its sandbox is removed, such as artifacts. Idempotent. It reads
   * what a job has made, so it bounds bytes and time. `hurry`: aborts when the manager ends and waits no longer: what is not
   * kept by then is given up, with a note.
   */
  settle?(context: EndedContext, files: AgentFiles, signal: AbortSignal, hurry?: AbortSignal): Promise<void>;

  /**
   * An agent was let in, now or by an earlier manager. What this answers is told each line that the agent writes on its standard
   * error, from its first on, before `settle` and `deregister`; it must not throw.
   */
  listen?(agent: AgentId): (line: string) => void;

  /** What to say of an agent that ended by itself and never had a job. `lastWords`: the end of its output. Absent: as `endedWithoutJob`. */
  describeExit?(exit: Exit, lastWords: string): Failure;

  /** What every sandbox for this service has beside what config says. Pure: what it adds is the same each time. */
  equip?(recipe: Recipe, pool: string): Recipe;

  /** Number of jobs that wait for a pool; null when the service does not say. */
  waiting?(pool: string): number | null;

  /** Jobs that are known and not over, for people; the own queue's are told elsewhere. */
  serviceJobs?(): readonly ServiceJob[];

  /** The agent that images for this service must have; null when none. @throws OnejobError E_CI_*, E_AGENT_PACKAGE */
  agentPackage?(platform: string, signal: AbortSignal): Promise<AgentPackage | null>;

  /** Removes what is meant to stay when the manager ends: placeholders. */
  forget?(signal: AbortSignal): Promise<void>;

  /** The manager ends. `leaving`: its agents go on, and so must what carries them. */
  close?(leaving: boolean): Promise<void>;
}

/** Late binding: jobs are known before an agent has them. */
export interface JobSource {
  /** The pool's next job that this slot could take, or with null any slot, not taking it. */
  next(pool: string, slot: string | null): Reserved | null;

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

  /** How many devices a waiting job asks for itself; null: as many as its pool gives each agent. */
  devicesFor?(job: JobId): number | null;

  /** The recipe of a job that brought its own; null when the pool's fits. */
  recipeFor?(job: JobId, pool: Recipe): Recipe | null;

  /**
   * Whether the slot's job is just being let in, and its agent makes its way to its first instruction. Until it is no more, said by
   * `waiting`, the slot's next sandbox is not made: both would be slower.
   */
  isStarting?(slot: string): boolean;

  /** Tells what a slot could do with a job: on every change, and at first. Only where an agent stands for each slot. */
  offer?(slot: string, offer: SlotOffer): void;
}

/** What to say of an agent that ended by itself and never had a job, where its service knows nothing better. */
export function endedWithoutJob(exit: Exit, lastWords: string): Failure {
  const said = lastWords === '' ? '' : ` Its last output was:\n${lastWords}`;
  return { code: 'E_AGENT_ENDED', message: `The agent ended ${howEnded(exit)} and had no job.${said}`, retry: true };
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
 * Stands for a CI service that config does not name any more, while there is still something of its own in a slot. Without its
 * credential nothing can be asked or removed there, so an agent that waits for a job is left to itself rather than ended with one.
 */
export function absentService(name: string): CiService {
  const absent = (): OnejobError =>
    new OnejobError('E_CI_UNREACHABLE', `The CI service "${name}" is no longer in the config, so onejob cannot ask it.`, {
      hint: 'Put the service back until its agents are gone, or end them with "onejob down".',
      retry: true,
    });
  return {
    name,
    capabilities: { binds: 'early', canCountQueue: false, standsForSlots: false, terms: 1, poolTimeout: false, jobOnStdout: false },
    jobs: null,
    check: async () => [],
    observe() {},
    register: () => Promise.reject(absent()),
    deregister: async () => ({ ran: undefined }),
    retire: () => Promise.reject(absent()),
    describeExit: () => ({ code: 'E_AGENT_ENDED', message: 'The agent ended.', retry: true }),
  };
}
