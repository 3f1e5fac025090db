/** What every step in an agent's life has at hand: its record, the service, and what is remembered only while this broker runs. */
import type { Clock } from '../../../core/clock.ts';
import type { Log } from '../../../log.ts';
import type { Book } from './book.ts';
import type { Desired } from './desired.ts';
import type { Health } from './health.ts';
import type { Pace } from './pace.ts';
import type { AgentRecord, Ending } from './record.ts';
import type { Call, Called, Upstream } from './upstream.ts';
import { retryWait, type Waker } from './wake.ts';

/** What the broker says of this host when it registers an agent. */
export interface HostFacts {
  readonly hostname: string;
  /** As Go names it: `amd64`, `arm64`. */
  readonly arch: string;
  readonly os: string;
  readonly machineId: string;
  readonly pid: number;
}

export interface AgentParts {
  readonly book: Book;
  readonly desired: Desired;
  readonly upstream: Upstream;
  readonly health: Health;
  readonly pace: Pace;
  readonly clock: Clock;
  readonly log: Log;
  readonly host: HostFacts;
  /** In [0, 1). */
  random(): number;
}

/** Remembered of one agent while this broker runs; a new broker begins with nothing of it. */
export interface Memory {
  /** Failed calls in a row. */
  failures: number;
  /** Nothing is asked before (the clock's `now`). */
  notBefore: number;
  /** Since when its slot does not want it to ask for jobs; null while it does. */
  unwantedSince: number | null;
  /** Since when neither the manager nor an agent inside has looked after its job; null while one does. */
  unattendedSince: number | null;
  /** Since when this broker has seen it in its phase. */
  phaseSince: number;
  /** When the agent inside last sent a heartbeat; not while this broker runs: `-Infinity`. */
  heardAt: number;
  /** The same: when it last asked for the state of its job. */
  askedAt: number;
  /** When it first said how its job ended; null while it has not. */
  resultAt: number | null;
  /** The service may have been told already that its job is taken. */
  maybeAccepted: boolean;
}

export interface Self {
  readonly id: string;
  readonly parts: AgentParts;
  readonly memory: Memory;
  readonly waker: Waker;
  readonly signal: AbortSignal;
}

/** A call of the agent, with what the service wants on each of its calls. */
export async function ask(
  { parts, signal }: Self,
  record: AgentRecord,
  call: Pick<Call, 'method' | 'path' | 'body' | 'gzip' | 'once'> & {
    readonly doing: string;
    /** Default: its session's. */
    readonly token?: string | null;
    /** Default: the one it has. */
    readonly endpoint?: string;
  },
): Promise<Called> {
  const { shown, sealed } = record;
  const called = await parts.upstream.call(
    {
      ...call,
      endpoint: call.endpoint ?? record.endpoint,
      headers: record.requestHeaders,
      token: call.token ?? sealed.session ?? '',
      doing: `${call.doing} agent "${shown.name}"`,
    },
    signal,
  );
  parts.health.heard(shown.service, called);
  return called;
}

/** ms that the service is left alone at most, whatever it asks for: a slip of what stands before it must not cost an hour. */
export const longestAlone = 60_000;

/** After a call that may succeed later: not before the service wants it, nor before the wait that grows with each failure. */
export function backOff({ parts, memory }: Self, called: Called): void {
  if (called.ok) return;
  memory.failures += 1;
  memory.notBefore = parts.clock.now() + retryWait(memory.failures, parts.random, Math.min(called.retryAfter ?? 0, longestAlone));
}

/** Shows what is wrong, once. */
export function problem({ parts, id }: Self, record: AgentRecord, text: string | null): void {
  if (record.shown.problem !== text) parts.book.update(id, { shown: { problem: text } }, true);
}

/** The service does not know the agent any more. */
export function isDead(called: Called): boolean {
  return !called.ok && (called.status === 401 || called.status === 404);
}

/** It is over at the service: nothing can be said for it any more. */
export function forget({ parts, id }: Self, record: AgentRecord, why: string | null): void {
  if (why !== null) {
    parts.pace.failed(record.shown.slot);
    const { name, slot, job } = record.shown;
    parts.log.warn('agent lost', { id, name, slot, job: job?.id ?? null, reason: why });
  }
  parts.book.update(id, { shown: { phase: 'gone', problem: why } });
}

/** It leaves the service, without a word about a job. `why`: it should not have had to. */
export function leave({ parts, id }: Self, record: AgentRecord, why: string | null): void {
  if (why !== null) {
    parts.pace.failed(record.shown.slot);
    parts.log.warn('agent leaves', { id, name: record.shown.name, slot: record.shown.slot, reason: why });
  }
  end(parts.book, record, null, why);
}

/**
 * Nothing is wanted of it any more, in whatever phase it is. A job without a result is given one by `verdict`; without a
 * session there is nobody to be told.
 */
export function end(
  book: Book,
  record: AgentRecord,
  verdict: Ending['verdict'],
  why: string | null = record.shown.problem,
): AgentRecord {
  const { id, phase } = record.shown;
  if (record.sealed.session === null) return book.update(id, { shown: { phase: 'gone', problem: why } });
  const isOpen =
    phase === 'accepting' || phase === 'accepted' || phase === 'handed' || phase === 'connected' || phase === 'running';
  const ending: Ending =
    isOpen && verdict !== null ? { verdict, next: phase === 'running' ? 'log' : 'start' } : { verdict: null, next: 'disconnect' };
  return book.update(id, { shown: { phase: 'ending', problem: why }, ending });
}
