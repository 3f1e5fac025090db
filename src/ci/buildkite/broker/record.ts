/** One agent in the broker's book: what is shown of it, and what is kept sealed. */
import type { BrokerAgent, Finished } from './protocol.ts';

/** Read by the broker only. On disk it is sealed with the installation's key, and wiped once the agent has disconnected. */
export interface Sealed {
  /** Stands for the agent at the service; null before it is registered and after it has disconnected. */
  readonly session: string | null;
  /** What the service answered to `register`; foreign. */
  readonly registerAnswer: unknown;
  /** What it answered to `accept` or `acquire`, whole; foreign. */
  readonly jobAnswer: unknown;
  /** Stands for the job at the service; null where it gives none, then `session` does. */
  readonly jobToken: string | null;
  readonly secrets: readonly { readonly name: string; readonly value: string }[];
  /** Stands for the registration token of a carried agent; null: the service's own does. */
  readonly acquisition: { readonly job: string; readonly token: string } | null;
}

/** What the service is still to be told of an agent of which nothing is wanted any more. */
export interface Ending {
  /** For a job that has no result of its own; null when it has one or there is no job: then the agent only leaves. */
  readonly verdict: { readonly reason: string; readonly signalReason: string } | null;
  /** What comes next. Written down after each, so one may be said twice. */
  readonly next: 'start' | 'log' | 'finish' | 'disconnect';
}

export interface AgentRecord {
  readonly shown: BrokerAgent;
  readonly sealed: Sealed;
  readonly metaData: readonly string[];
  readonly priority: number;
  /** The endpoint as config names it: an agent of another one is none of this service any more. */
  readonly base: string;
  /** Base of the service's calls, which it may move: without a slash at its end. */
  readonly endpoint: string;
  /** Headers that the service wants on every later call. */
  readonly requestHeaders: Readonly<Record<string, string>>;
  /** How much of the job's log has passed: the highest sequence, and the end of what was sent, in bytes. */
  readonly log: { readonly sequence: number; readonly offset: number };
  /** Whether the agent in the sandbox has sent a heartbeat of its own: from then on its life is its own. */
  readonly livesAlone: boolean;
  /** Whether the manager has decided about the job of a carried agent, which waits for that with its `accept`. */
  readonly allowed: boolean;
  /** Whether its job may do more at the service than run. */
  readonly trusted: boolean;
  /** A carried agent that is to take no job any more. */
  readonly retired: boolean;
  /** Why its job is being ended from here, for the job's log; null while it is not, and once that stands there. */
  readonly why: string | null;
  /** Its job's result, which the service may have been told without being heard to take it; null: it surely was not. */
  readonly finishing: Finished | null;
  /** From `ending` on. */
  readonly ending: Ending | null;
}

export type RecordPatch = Partial<Omit<AgentRecord, 'shown' | 'sealed'>> & {
  readonly shown?: Partial<BrokerAgent>;
  readonly sealed?: Partial<Sealed>;
};

/** Every agent that is not over. The only place where records change. */
export interface AgentBook {
  get(id: string): AgentRecord | null;
  all(): readonly AgentRecord[];
  /**
   * Writes the change down, then shows it. It is on disk when this returns, unless `lazily` (progress that the next look would
   * find again). `since` follows the phase by itself. @throws OnejobError E_STATE_FULL and the like; then nothing has changed.
   */
  update(id: string, patch: RecordPatch, lazily?: boolean): AgentRecord;
  /** Calls `listener` after each change of the agent; the returned function ends that. */
  watch(id: string, listener: (record: AgentRecord) => void): () => void;
}

/** What stands in the place of the service's tokens inside a sandbox. */
export type AliasKind = 'once' | 'session' | 'job';

/**
 * Tokens of the broker's own: made from the installation's key, so none is stored, and each is worth something only here and
 * only while its agent is in the book.
 */
export interface Aliases {
  make(kind: AliasKind, record: AgentRecord): string;
  /** Whose it is. Compares in constant time; null for anything else, also for one of another sandbox's agent. */
  find(token: string): { readonly kind: AliasKind; readonly record: AgentRecord } | null;
}
