/**
 * What a service must do whose jobs are given once, and before there is an agent: the engine asks for them while a slot is free, and
 * each goes to an agent through the filter. `G`: a job as the service gives it. `K`: what of it is enough to ask about it and to end it.
 */
import type { z } from 'zod';
import type { AgentContext } from '../../ports/ci-service.ts';
import type { WayToFilter } from '../filter/filter.ts';
import type { Sealed } from '../filter/seal.ts';
import type { Admission } from '../kit/admission.ts';
import type { JobAbout, JobEnd } from '../kit/job-rows.ts';
import type { TrustFacts } from '../kit/trust.ts';

/** A job at its service: this host's, cancelled but not over, or over. */
export type JobState = 'ours' | 'cancelled' | JobEnd;

/** Why onejob ends a job. `refused`: it is not to be tried again; `lost`: it may be. */
export interface LateVerdict {
  /** A sentence for its log. */
  readonly words: string;
  readonly why: 'refused' | 'lost';
  /** How it ends with that. */
  readonly end: JobEnd;
}

export type Admitted = Extract<Admission, { kind: 'run' }>;

/** With what an agent gets its job. */
export interface JobHandover extends Pick<Admitted, 'secrets' | 'trusted'> {
  /** To the filter. */
  readonly way: WayToFilter;
  /** Lines for the log of the job. */
  readonly notes: readonly string[];
  /**
   * Keeps what the agent gets once; returns the sealed token for it. `signs`: headers with which the filter signs what the agent says.
   */
  readonly leave: (payload: string | Uint8Array, signs?: Sealed['signs']) => string;
  /** The same for an agent whose log shows the sealed token: that alone gets nothing, because the agent has to show the key. */
  readonly leaveApart: (payload: string | Uint8Array) => { readonly sealed: string; readonly key: string };
  /**
   * The address of the caches that this host keeps for the job, with a sealed token; null: the job has none. `secret`: what its runner
   * shows besides that address, which it may write into its log.
   */
  readonly caches: (as: 's3' | 'actions', secret: string) => string | null;
}

export interface LatePort<G, K> {
  /** Of the service's API, without a slash at its end; and the type of the filter's rules. */
  readonly endpoint: string;
  readonly rules: string;
  /** Of what is kept on disk. */
  readonly schemas: { readonly given: z.ZodType<G>; readonly key: z.ZodType<K> };
  /** ms between two looks at jobs, and that an agent may take to leave after its job is over or cancelled. */
  readonly pace: { readonly look: number; readonly over: number; readonly cancelled: number };
  keyOf(given: G): K;
  /** The service's: letters, digits and `-`. */
  idOf(key: K): string;
  /** For people, all but its id. */
  aboutOf(given: G): Omit<JobAbout, 'id'>;
  factsOf(given: G): TrustFacts;
  envOf(given: G): Readonly<Record<string, string>>;
  /** Kinds of trusted jobs that have caches of their own, and which one a job is; default: there is one kind. */
  readonly kinds?: { readonly all: readonly string[]; of(given: G): string };
  /** The image that its sandbox is to have; empty: the pool's. */
  imageOf(given: G, admitted: Pick<Admitted, 'trusted'>): string;
  /** Why no job like this can run here, as the end of a sentence; null: it can. */
  whyNot(given: G, admitted: Pick<Admitted, 'trusted'>): string | null;
  /** The next job, which is this host's then; null: none waits. `mayHold`: the service may hold the call. @throws OnejobError E_CI_*, E_SECRET */
  request(mayHold: boolean, signal: AbortSignal): Promise<G | null>;
  /** `waits`: no agent has begun it, and the service is told that this host still wants it. @throws OnejobError E_CI_* */
  look(key: K, waits: boolean, signal: AbortSignal): Promise<JobState>;
  /** Ends the job with the reason in its log. How it ended otherwise, or null. @throws OnejobError E_CI_* */
  end(key: K, verdict: LateVerdict, signal: AbortSignal): Promise<JobEnd | null>;
  /** What starts the agent in its sandbox. @throws OnejobError E_CI_* */
  script(context: AgentContext, given: G, how: JobHandover, signal: AbortSignal): string | Promise<string>;
  /** Whether a line of its agent's standard error says that the job failed outside of its script. */
  failsOutside?(line: string): boolean;
  /** The exit code of the job's script, if a line of its agent's standard error tells it. */
  exitIn?(line: string): string | null;
  /** Removes what it keeps at the service for the next request. @throws OnejobError E_CI_* */
  withdraw?(signal: AbortSignal): Promise<void>;
}
