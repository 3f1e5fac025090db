/**
 * What a test sees of the stand-in for Azure DevOps. Times are ms since the epoch by the stand-in's own clock.
 *
 * Nothing here was seen at the real service: shapes follow the agent, the .NET and node clients and KEDA.
 */
import type { Faults } from './faults.ts';

export interface StandInOptions {
  /** Address to listen on; default 127.0.0.1. */
  readonly host?: string;
  /** Default: any that is free. */
  readonly port?: number;
  /** The host that URLs in answers name; default: `host`, or 127.0.0.1 where that means every address. */
  readonly publicHost?: string;
  /** On-premises instead of hosted, below this path, e.g. `tfs/DefaultCollection`. */
  readonly collectionPath?: string;
  /** How long a poll for messages is held, ms; the service holds 50 s. */
  readonly pollHoldMs?: number;
  /** How long a job's lock lasts after assignment and renewal, ms; default 10 min. */
  readonly lockMs?: number;
  /** How long a session lives without a poll, ms; default 5 min. */
  readonly sessionMs?: number;
  /** Life of agents' and principals' tokens, ms; default 1 h. */
  readonly tokenMs?: number;
  /** The stand-in's wall clock, ms. With one of its own, nothing expires before a request or `sweep()`. */
  readonly now?: () => number;
  /** Its timers, which go with `now`; default: real ones. Calls `fn` once after `ms`; what it returns calls that off. */
  readonly after?: (ms: number, fn: () => void) => () => void;
  /** How many finished requests it remembers, with their builds and plans; default: all. */
  readonly remembered?: number;
  /** A request whose agent's session ends before the agent received it waits again, instead of being abandoned with its lock. Default false. */
  readonly requeueUnreceived?: boolean;
}

export type Scope = 'agentpools_manage' | 'agentpools' | 'build';

/** As whom a request came: any Basic header is a `pat`, also a wrong one; an unknown bearer is `none`. */
export type Identity = 'pat' | 'principal' | 'agent' | 'job' | 'none';

export interface LoggedRequest {
  readonly method: string;
  /** Short name of the route, e.g. `agents/{agentId}`; `?` if there isn't one. See `routes.ts`. */
  readonly route: string;
  readonly path: string;
  readonly identity: Identity;
  /** Address that it came from: of the manager, or of a container. */
  readonly from: string;
  /** A PAT or the principal's secret stood elsewhere than in the Authorization header, or the token endpoint's own field. */
  readonly leaked: boolean;
  /** 0 until answered, and for good when the connection was cut instead. */
  status: number;
  readonly at: number;
}

export interface JobSpec {
  readonly name?: string;
  readonly demands?: readonly string[];
  /** Default `echo hello`. */
  readonly script?: string;
  readonly definition?: string;
  readonly repository?: string;
  readonly branch?: string;
  /** A build reason as on the wire, e.g. `pullRequest`, `individualCI`; default `manual`. */
  readonly reason?: string;
}

export interface QueuedJob {
  readonly requestId: number;
  /** Result as on the wire (`succeeded`, `failed`, `canceled`, `abandoned` …) and the log: what was uploaded, else what was fed to the console. */
  readonly finished: Promise<{ readonly result: string; readonly log: string }>;
  view(): RequestView;
}

export interface AgentView {
  readonly id: number;
  readonly name: string;
  readonly version: string;
  readonly online: boolean;
  readonly enabled: boolean;
  /** It has had a session at some time. */
  readonly everOnline: boolean;
  /** Its unfinished request. */
  readonly request: number | null;
  readonly systemCapabilities: Readonly<Record<string, string>>;
  readonly userCapabilities: Readonly<Record<string, string>>;
}

export interface RequestView {
  readonly requestId: number;
  readonly pool: number;
  readonly buildId: number;
  readonly name: string;
  readonly demands: readonly string[];
  readonly state: 'waiting' | 'assigned' | 'running' | 'done';
  readonly result: string | null;
  readonly statusMessage: string | null;
  /** It failed because no registered agent met its demands. */
  readonly failedAtQueue: boolean;
  readonly agent: { readonly id: number; readonly name: string } | null;
  readonly receiveTime: number | null;
}

export type StandInEvent =
  | {
      readonly kind: 'agentAdded' | 'agentDeleted' | 'sessionOpened';
      readonly pool: number;
      readonly agent: number;
      readonly name: string;
    }
  | {
      readonly kind: 'sessionClosed';
      readonly pool: number;
      readonly agent: number;
      readonly name: string;
      readonly why: 'left' | 'expired' | 'removed';
    }
  | {
      readonly kind: 'requestQueued' | 'requestAssigned' | 'requestFinished';
      readonly pool: number;
      readonly request: RequestView;
    }
  | { readonly kind: 'line'; readonly requestId: number; readonly text: string }
  | { readonly kind: 'answered'; readonly request: LoggedRequest };

export interface AzureDevOps extends AsyncDisposable {
  /** What a user configures: organisation or collection, without a slash at the end. */
  readonly url: string;
  readonly port: number;
  /** A PAT with every right that onejob asks for. 84 characters, in the shape that clients recognise. */
  readonly pat: string;
  /** An Entra application with the same rights; `authority` is a token endpoint of the stand-in. */
  readonly principal: { readonly tenant: string; readonly client: string; readonly secret: string; readonly authority: string };
  addPat(o: { readonly scopes: readonly Scope[]; readonly poolAdmin?: boolean }): string;
  expirePat(pat: string): void;
  addPool(name: string, o?: { readonly autoUpdate?: boolean }): number;
  queue(pool: number, job?: JobSpec): QueuedJob;
  /** As a person's click on Cancel: waiting requests end, running ones get a message. */
  cancel(requestId: number): void;
  agents(pool: number): AgentView[];
  requests(pool: number): RequestView[];
  /** Asks every agent of the pool to update, and every older one that comes later if the pool updates by itself. */
  updateAgents(pool: number, version: string): void;
  /** A version that the packages route hands out; `file` is served from disk with its SHA-256. */
  addPackage(o: { readonly version: string; readonly file: string }): Promise<void>;
  /** Lets locks and sessions expire that have; happens by itself on the real clock. */
  sweep(): void;
  readonly log: readonly LoggedRequest[];
  /** Lines of the console feed of a request. */
  lines(requestId: number): readonly string[];
  /** Requests that followed a redirect to the other host, with the Authorization header that came along. */
  readonly strays: readonly { readonly path: string; readonly authorization: string | null }[];
  readonly faults: Faults;
  on(listener: (event: StandInEvent) => void): () => void;
  /** The next event that fits. */
  next<K extends StandInEvent['kind']>(kind: K, fits?: (event: EventOf<K>) => boolean): Promise<EventOf<K>>;
}

export type EventOf<K extends StandInEvent['kind']> = StandInEvent & { readonly kind: K };
