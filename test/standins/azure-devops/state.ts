/** What the stand-in knows. Plain values; who changes them says so in the file of the layer. */
import { randomUUID } from 'node:crypto';
import type { Faults } from './faults.ts';
import type { Scope, StandInEvent } from './types.ts';

export interface Pool {
  readonly id: number;
  readonly name: string;
  readonly hosted: boolean;
  autoUpdate: boolean;
  /** Version that its agents are asked to update to. */
  wanted: string | null;
  readonly agents: Map<number, Agent>;
}

export interface PublicKey {
  readonly exponent: string;
  readonly modulus: string;
}

export interface Agent {
  readonly id: number;
  readonly pool: Pool;
  name: string;
  version: string;
  osDescription: string;
  enabled: boolean;
  system: Record<string, string>;
  user: Record<string, string>;
  clientId: string;
  publicKey: PublicKey;
  session: Session | null;
  everOnline: boolean;
  /** It said with its last job that it is leaving. */
  leaving: boolean;
}

export interface Message {
  readonly id: number;
  readonly type: string;
  readonly iv: string | null;
  readonly body: string;
  /** The request that it hands out. */
  readonly request: number | null;
}

export interface Session {
  readonly id: string;
  readonly agent: Agent;
  readonly owner: string;
  /** AES-256. */
  readonly key: Buffer;
  readonly messages: Message[];
  lastSeen: number;
  /** Polls that are being held; called when there is something to say. */
  readonly polls: Set<() => void>;
}

export interface Request {
  readonly id: number;
  readonly pool: Pool;
  readonly jobId: string;
  readonly name: string;
  readonly demands: readonly string[];
  readonly script: string;
  readonly build: Build;
  readonly plan: Plan;
  readonly queueTime: number;
  assignTime: number | null;
  receiveTime: number | null;
  finishTime: number | null;
  lockedUntil: number | null;
  result: string | null;
  statusMessage: string | null;
  failedAtQueue: boolean;
  /** What it says of the agent stays when the registration is gone. */
  agent: { readonly id: number; readonly name: string; readonly version: string; readonly osDescription: string } | null;
  cancelled: boolean;
  readonly done: PromiseWithResolvers<{ readonly result: string; readonly log: string }>;
}

export interface Plan {
  readonly id: string;
  readonly scope: string;
  readonly timeline: string;
  changeId: number;
  readonly records: Map<string, Record<string, unknown>>;
  readonly feed: string[];
  readonly logs: { readonly id: number; readonly path: string; text: string }[];
  readonly token: string;
}

export interface Build {
  readonly id: number;
  readonly number: string;
  readonly definition: { readonly id: number; readonly name: string };
  readonly repository: string;
  readonly branch: string;
  readonly reason: string;
}

export interface Pat {
  readonly scopes: readonly Scope[];
  readonly poolAdmin: boolean;
  expired: boolean;
}

export interface Package {
  readonly platform: string;
  readonly version: string;
  readonly filename: string;
  /** Null: the version is listed, and nothing is to be had. */
  readonly file: string | null;
  readonly sha256: string;
}

export const PROJECT = { id: '6ce954b1-ce1f-45d1-b94d-e6bf2464ba2c', name: 'demo' } as const;

/** What every layer works on. */
export interface World {
  /** `http://host:port`. */
  readonly origin: string;
  /** Path of organisation or collection, without slashes at the ends. */
  readonly base: string;
  readonly hosted: boolean;
  pollHoldMs: number;
  readonly lockMs: number;
  readonly sessionMs: number;
  readonly tokenMs: number;
  readonly requeueUnreceived: boolean;
  readonly faults: Faults;
  now(): number;
  /** Calls `fn` once after `ms` of its time; what it returns calls that off. */
  after(ms: number, fn: () => void): () => void;
  /** How many finished requests it remembers. */
  readonly remembered: number;
  /** A number never given before. */
  next(): number;
  emit(event: StandInEvent): void;
  readonly pools: Map<number, Pool>;
  readonly sessions: Map<string, Session>;
  readonly requests: Map<number, Request>;
  /** Requests that are not finished, oldest first. */
  readonly open: Set<Request>;
  readonly plans: Map<string, Plan>;
  readonly builds: Map<number, Build>;
  readonly pats: Map<string, Pat>;
  readonly principal: { readonly tenant: string; readonly client: string; readonly secret: string };
  /** Bearer tokens of agents and principals. */
  readonly tokens: Map<string, { readonly of: Agent | 'principal'; readonly until: number }>;
  readonly packages: Package[];
}

/** URL of organisation or collection. */
export function urlOf(world: World): string {
  return `${world.origin}/${world.base}`;
}

/** A registration. */
export function newAgent(
  world: World,
  pool: Pool,
  about: Pick<Agent, 'name' | 'version' | 'osDescription' | 'publicKey' | 'system'>,
): Agent {
  return {
    ...about,
    id: world.next(),
    pool,
    enabled: true,
    user: {},
    clientId: randomUUID(),
    session: null,
    everOnline: false,
    leaving: false,
  };
}

/** The request that keeps an agent busy; the first, should there be two. */
export function requestOf(world: World, agent: Agent): Request | null {
  for (const request of world.open) if (request.agent?.id === agent.id) return request;
  return null;
}

/** What was made of the capabilities of an agent, which are never changed but replaced. */
const read = new WeakMap<Agent, Pick<Agent, 'system' | 'user'> & { readonly all: ReadonlyMap<string, string> }>();

/** Names without regard to case, the user's before the system's own. */
export function capabilitiesOf(agent: Agent): ReadonlyMap<string, string> {
  const { system, user } = agent;
  const known = read.get(agent);
  if (known?.system === system && known.user === user) return known.all;
  const all = new Map<string, string>();
  for (const [name, value] of [...Object.entries(system), ...Object.entries(user)]) all.set(name.toLowerCase(), value);
  read.set(agent, { system, user, all });
  return all;
}
