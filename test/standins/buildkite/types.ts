/**
 * What a test sees of the stand-in for Buildkite. Times are ms since the epoch by the stand-in's own clock; intervals that
 * the agent is told are whole seconds, as on the wire.
 *
 * Shapes follow the agent's own client (v3.137.0) and the public pages on the Stacks API and metrics; no organisation at the
 * real service was used. Where they say nothing, a comment beside the route says that it is a guess.
 */
import type { Faults } from './faults.ts';

export interface BuildkiteOptions {
  /** Address to listen on; default 127.0.0.1. */
  readonly host?: string;
  /** Default: any that is free. */
  readonly port?: number;
  /** The host that URLs in answers name; default: `host`, or 127.0.0.1 where that means every address. */
  readonly publicHost?: string;
  /** Slug; default `acme`. */
  readonly organisation?: string;
  /** Seconds that agents are told; the service's own are about 10. Defaults 1, 1 and 2; at least 1. */
  readonly pingInterval?: number;
  readonly jobStatusInterval?: number;
  readonly heartbeatInterval?: number;
  /** Without a heartbeat for so long an agent is lost, ms; default 3 min. */
  readonly lostMs?: number;
  /** The stand-in's wall clock, ms. With one of its own, nothing expires before a request or `sweep()`. */
  readonly now?: () => number;
  /** Its timers; default those of Node. */
  readonly after?: (ms: number, fn: () => void) => () => void;
  /** `endpoint` in answers to register; default none. */
  readonly endpoint?: string;
  /** `request_headers` in answers to register; names begin with `Buildkite-`. */
  readonly requestHeaders?: Readonly<Record<string, string>>;
  /** Whether accept hands out a token of the job's own; else the session token serves. Default true. */
  readonly jobTokens?: boolean;
  /** Artifacts larger than this are uploaded in parts of it, bytes; default never. */
  readonly partBytes?: number;
  /** A reserved job can be acquired with its acquisition token only. Default false: any agent of the cluster may. */
  readonly reservedNeedsToken?: boolean;
  /** Requests that a stack may make per second and operation; default the documented limits. */
  readonly stackLimits?: Partial<Record<StackOperation, number>>;
  /** `Buildkite-Agent-Metrics-Poll-Duration`, s; default 10. */
  readonly metricsPollSeconds?: number;
}

export type StackOperation =
  | 'list'
  | 'reserve'
  | 'show'
  | 'states'
  | 'finish'
  | 'notifications'
  | 'deregister'
  | 'register'
  | 'tokens';

/** Whose token a request carried. `unknown`: none that this service ever made. */
export type TokenKind = 'registration' | 'metrics' | 'session' | 'job' | 'acquisition' | 'unknown' | 'none';

export interface LoggedRequest {
  readonly method: string;
  /** Path with names for ids, e.g. `jobs/:id/accept`; `?` when there is no such route. */
  readonly route: string;
  /** Ids that the path named, e.g. `{ id: '0190…' }`. */
  readonly params: Readonly<Record<string, string>>;
  readonly query: string;
  readonly token: TokenKind;
  /** The token is good at this moment: not revoked, its agent not gone, its job not over. */
  readonly valid: boolean;
  /** Name of the agent whose session or job it is. */
  readonly agent: string | null;
  /** Address that it came from: of the host, or of a container. */
  readonly from: string;
  readonly userAgent: string;
  /** Registration, metrics or acquisition tokens stood elsewhere than in the Authorization header. */
  leaked: boolean;
  /** Bytes of the body as sent. */
  bytes: number;
  /** 0 until answered, and for good when the connection was cut instead. */
  status: number;
  readonly at: number;
}

export interface JobSpec {
  /** Default `echo hello`. */
  readonly command?: string;
  readonly env?: Readonly<Record<string, string>>;
  /** Default `default`. */
  readonly queue?: string;
  /** Further agent query rules, e.g. `gpu=a100` or `cuda=*`. */
  readonly rules?: readonly string[];
  readonly priority?: number;
  readonly pipeline?: string;
  readonly branch?: string;
  readonly repo?: string;
  readonly commit?: string;
  /** Number of the pull request; default none. */
  readonly pullRequest?: number;
  /** Default the same repository. */
  readonly pullRequestRepo?: string;
  readonly message?: string;
  /** Waits for something else; `release` lets it continue. */
  readonly waiting?: boolean;
  /** Globs for `BUILDKITE_ARTIFACT_PATHS`. */
  readonly artifactPaths?: string;
  /** How often the agent sends what the job has written so far, s; default 1. */
  readonly chunksIntervalS?: number;
  /** Secrets that the step asks for; `variable` is set in the job's environment. */
  readonly stepSecrets?: readonly { readonly key: string; readonly variable?: string }[];
  /** Check out, instead of running in an empty folder; then `repo` must be reachable for the agent. */
  readonly checkout?: boolean;
  /** Jobs of one build share its meta-data and artifacts; default a build of its own. */
  readonly build?: string;
}

export type JobState =
  | 'waiting'
  | 'scheduled'
  | 'reserved'
  | 'assigned'
  | 'accepted'
  | 'running'
  | 'canceling'
  | 'canceled'
  | 'finished';

export interface ArtifactView {
  readonly id: string;
  readonly path: string;
  readonly size: number;
  /** As announced. */
  readonly sha1: string;
  readonly state: 'new' | 'finished' | 'error';
  /** What arrived at the artifact host; null until then. Content only up to 1 MiB; the hash is null for parts above it. */
  readonly received: { readonly size: number; readonly sha1: string | null; readonly content: Buffer | null } | null;
}

export interface JobView {
  readonly id: string;
  readonly build: string;
  readonly state: JobState;
  readonly queue: string;
  readonly command: string;
  readonly pipeline: string;
  readonly branch: string;
  /** The last that it was given to. */
  readonly agent: { readonly id: string; readonly name: string } | null;
  /** How often it was given to an agent. */
  readonly assignments: number;
  /** The number of `exit_status`; null while it runs. An agent that was lost leaves -1. */
  readonly exit: number | null;
  readonly signal: string;
  /** As on the wire; `agent_lost` is the stand-in's own. */
  readonly signalReason: string;
  /** Text that a stack gave when it ended the job. */
  readonly detail: string | null;
  readonly chunksFailed: number;
  /** As a person reads it: no time stamps, line ends `\n`. */
  readonly log: string;
  readonly rawLog: Buffer;
  /** Bytes below the end that never arrived. */
  readonly logMissing: number;
  readonly chunks: { readonly received: number; readonly repeated: number };
  readonly headerTimes: Readonly<Record<string, string>>;
  readonly metaData: Readonly<Record<string, string>>;
  readonly annotations: readonly { readonly context: string; readonly style: string; readonly body: string }[];
  readonly artifacts: readonly ArtifactView[];
  readonly notifications: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  readonly times: Readonly<JobTimes>;
}

export interface JobTimes {
  readonly queued: number;
  readonly assigned?: number;
  readonly accepted?: number;
  readonly started?: number;
  readonly firstChunk?: number;
  readonly canceled?: number;
  readonly finished?: number;
}

export type AgentState = 'registered' | 'idle' | 'busy' | 'disconnected' | 'lost';

export interface AgentView {
  readonly id: string;
  readonly name: string;
  readonly state: AgentState;
  readonly paused: boolean;
  /** Gets no job any more, by its own words. */
  readonly ignored: boolean;
  readonly tags: readonly string[];
  readonly queue: string;
  readonly priority: number | null;
  readonly version: string;
  readonly hostname: string;
  readonly features: readonly string[];
  /** Address that it registered from. */
  readonly from: string;
  /** What it registered with. */
  readonly token: TokenKind;
  readonly job: string | null;
  readonly registered: number;
  readonly connected: number | null;
  readonly gone: number | null;
}

export type StandinEvent =
  | { readonly kind: 'agentRegistered' | 'agentConnected' | 'agentDisconnected' | 'agentLost'; readonly agent: AgentView }
  | {
      readonly kind: 'jobQueued' | 'jobAssigned' | 'jobReturned' | 'jobAccepted' | 'jobStarted' | 'jobEnded';
      readonly job: JobView;
    }
  | { readonly kind: 'log'; readonly job: string; readonly text: string }
  | { readonly kind: 'answered'; readonly request: LoggedRequest };

export type EventOf<K extends StandinEvent['kind']> = StandinEvent & { readonly kind: K };

export interface BuildkiteStandin extends AsyncDisposable {
  /** Of the Agent API, with `/v3`, without a slash at the end. */
  readonly endpoint: string;
  readonly port: number;
  /** Of the artifact host. */
  readonly artifactHost: string;
  readonly organisation: string;
  /** A cluster token that may do everything. */
  readonly token: string;
  /** May read counts and nothing else. */
  readonly metricsToken: string;
  /** With a queue: only for agents of that queue. */
  addToken(about: { readonly kind: 'registration' | 'metrics'; readonly queue?: string }): string;
  /** Connected agents stay, as at the service. */
  revoke(token: string): void;
  /** Returns the job's id. */
  queueJob(spec?: JobSpec): string;
  /** A waiting job may run. */
  release(id: string): void;
  /** As a person's click on Cancel. */
  cancel(id: string): void;
  job(id: string): JobView;
  jobs(): JobView[];
  /** Resolves once it is finished or canceled. */
  jobEnded(id: string): Promise<JobView>;
  agents(): AgentView[];
  /** As a person's click: the next ping says so. By name; the one that has a job, else the latest of that name. */
  stopAgent(name: string): void;
  pauseAgent(name: string, note?: string): void;
  resumeAgent(name: string): void;
  /** As if its heartbeats had stopped for long enough. */
  loseAgent(name: string): void;
  /** A secret of the cluster, for jobs of that pipeline or of every one. */
  addSecret(key: string, value: string, pipeline?: string): void;
  /** Dispatch from that queue stops, or continues. */
  pauseQueue(queue: string, paused: boolean): void;
  /** Seconds for agents that register from now on. */
  setIntervals(seconds: { readonly ping?: number; readonly jobStatus?: number; readonly heartbeat?: number }): void;
  readonly requests: readonly LoggedRequest[];
  /** Called when a request has been answered. Returns what ends that. */
  onRequest(listener: (request: LoggedRequest) => void): () => void;
  on(listener: (event: StandinEvent) => void): () => void;
  /** The next event that fits. */
  next<K extends StandinEvent['kind']>(kind: K, fits?: (event: EventOf<K>) => boolean): Promise<EventOf<K>>;
  /** What would be left behind: agents that are still registered or connected, jobs that are not over. */
  census(): { readonly agents: readonly string[]; readonly jobs: readonly string[] };
  /** Lets agents and reservations expire that have; happens by itself on the real clock. */
  sweep(): void;
  readonly faults: Faults;
}
