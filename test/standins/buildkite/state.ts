/** What the stand-in knows. Plain values; who changes them says so in the file of the layer. */
import { randomUUID } from 'node:crypto';
import type { Faults } from './faults.ts';
import type { ArtifactView, BuildkiteOptions, JobSpec, JobState, JobTimes, StandinEvent, TokenKind } from './types.ts';

export interface Agent {
  readonly id: string;
  readonly name: string;
  readonly tags: readonly string[];
  readonly queue: string;
  readonly priority: number | null;
  readonly version: string;
  readonly hostname: string;
  readonly features: readonly string[];
  readonly from: string;
  readonly token: TokenKind;
  readonly session: string;
  /** The one job that its acquisition token is for. */
  readonly only: string | null;
  readonly registered: number;
  connected: number | null;
  gone: number | null;
  lost: boolean;
  lastHeartbeat: number;
  ignored: boolean;
  paused: { note: string; until: number } | null;
  stopping: boolean;
  job: Job | null;
  /** When a job of its last passed: of equal agents the latest comes first. */
  lastPassed: number;
}

export interface Artifact {
  readonly id: string;
  readonly path: string;
  readonly absolutePath: string;
  readonly globPath: string;
  readonly size: number;
  readonly sha1: string;
  readonly sha256: string;
  readonly contentType: string;
  readonly destination: string;
  readonly created: number;
  state: ArtifactView['state'];
  received: ArtifactView['received'];
  readonly parts: Map<number, { readonly etag: string; readonly size: number; readonly content: Buffer | null }>;
}

export interface Build {
  readonly id: string;
  readonly number: number;
  readonly metaData: Map<string, string>;
}

export interface Job {
  readonly id: string;
  /** Grows from job to job. */
  readonly order: number;
  readonly spec: JobSpec;
  readonly build: Build;
  readonly pipeline: string;
  readonly branch: string;
  readonly step: string;
  readonly command: string;
  readonly queue: string;
  readonly rules: readonly string[];
  readonly priority: number;
  readonly env: Readonly<Record<string, string>>;
  state: JobState;
  agent: Agent | null;
  assignments: number;
  token: string | null;
  exit: number | null;
  signal: string;
  signalReason: string;
  detail: string | null;
  chunksFailed: number;
  readonly chunks: Map<number, Buffer>;
  received: number;
  repeated: number;
  readonly headerTimes: Map<string, string>;
  readonly annotations: Map<string, { context: string; style: string; body: string }>;
  readonly artifacts: Artifact[];
  readonly batches: Map<string, readonly Artifact[]>;
  readonly notifications: string[];
  readonly uploads: Map<string, unknown>;
  reservation: { readonly stack: string; readonly until: number } | null;
  times: { -readonly [K in keyof JobTimes]: JobTimes[K] };
  readonly ended: PromiseWithResolvers<void>;
}

/** A registration or metrics token. */
export interface ClusterToken {
  readonly id: string;
  readonly kind: 'registration' | 'metrics';
  readonly queue: string | null;
  revoked: boolean;
}

export interface Stack {
  readonly id: string;
  readonly key: string;
  readonly type: string;
  readonly queue: string;
  readonly metadata: Readonly<Record<string, string>>;
  lastConnected: number;
}

/** What every layer works on. */
export interface World {
  readonly options: BuildkiteOptions;
  /** `http://host:port`. */
  origin: string;
  /** The same of the artifact host. */
  artifactHost: string;
  readonly organisation: { readonly slug: string; readonly id: string };
  readonly cluster: { readonly name: string; readonly id: string };
  intervals: { ping: number; jobStatus: number; heartbeat: number };
  readonly faults: Faults;
  now(): number;
  /** Calls `fn` once after `ms`; the returned function calls it off. */
  after(ms: number, fn: () => void): () => void;
  /** A number never given before; from 1 on. */
  next(of: 'build' | 'job'): number;
  emit(event: StandinEvent): void;
  readonly clusterTokens: Map<string, ClusterToken>;
  readonly agents: Map<string, Agent>;
  /** Those that have not left. */
  readonly present: Set<Agent>;
  /** By token, also those of agents that are gone. */
  readonly sessions: Map<string, Agent>;
  readonly jobTokens: Map<string, Job>;
  readonly acquisitionTokens: Map<string, { readonly job: string; readonly until: number }>;
  readonly jobs: Map<string, Job>;
  /** Those that are not over, in their order. */
  readonly open: Set<Job>;
  readonly builds: Map<string, Build>;
  readonly queues: Map<string, { readonly id: string; paused: boolean }>;
  readonly stacks: Map<string, Stack>;
  readonly secrets: { readonly key: string; readonly value: string; readonly id: string; readonly pipeline: string | null }[];
  /** Requests of a stack in the current second, by `stack operation`. */
  readonly counted: Map<string, { second: number; count: number }>;
}

export const isOver = (job: Job): boolean => job.state === 'finished' || job.state === 'canceled';
export const isConnected = (agent: Agent): boolean => agent.connected !== null && agent.gone === null;

/** The queue of a name; made when first heard of. */
export function queueOf(world: World, name: string): { readonly id: string; paused: boolean } {
  const known = world.queues.get(name);
  if (known !== undefined) return known;
  const made = { id: randomUUID(), paused: false };
  world.queues.set(name, made);
  return made;
}
