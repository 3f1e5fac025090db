/**
 * The terms of the core: what a slot is, what can happen to it, and what must be done about it.
 *
 * A slot has two lanes. The standby lane holds at most one sandbox that waits at the gate; the agent lane holds at most one
 * released agent. An agent that has ended, or a standby that is no longer wanted, moves to `leaving` and occupies no lane: its
 * log is read to the end, its job is settled and its sandbox removed while the next one works.
 *
 * Every state asks for at most one action (see `pursue.ts`), so starting after a crash is the same loop on an old store. Times
 * are monotonic milliseconds since boot, so a jump of the wall clock moves no deadline.
 */
import type { Failure } from '../base/errors.ts';

/** Id of a single-use agent, and of its sandbox, gate frame and log. */
export type AgentId = string;
/** Id of a job in its CI service. */
export type JobId = string;
/** UUID of a GPU or MIG instance. */
export type DeviceId = string;

/** How the first process of a sandbox ended. `lost` means that the infrastructure ended it, never the job. */
export type Exit =
  | { readonly kind: 'code'; readonly code: number }
  | { readonly kind: 'signal'; readonly signal: string }
  /** `peak`: bytes of memory that it had at most; left out: unknown. */
  | { readonly kind: 'oom'; readonly peak?: number | undefined }
  | { readonly kind: 'lost'; readonly reason: string };

/** `taken`: a shutdown because others than its owner end the host. */
export type StopReason = 'cancelled' | 'timeout' | 'disk' | 'shutdown' | 'taken' | 'renewal' | 'unreleased';

/** How everything ended that an earlier boot of this host left. */
export const hostRestarted: Exit = { kind: 'lost', reason: 'the host was restarted' };

/** Why a job was lost that ran when its owner stopped onejob. Stored with the job, so a change of it changes the verdict of new jobs only. */
export const stoppedWithJob = 'onejob was stopped while the job ran';

/** The same when the cloud ends the machine, such as a spot machine. Nobody chose that moment, so it counts as a fault of the infrastructure. */
export const takenWithJob = 'the cloud ended the machine while the job ran';

export type JobResult =
  | Exit
  | { readonly kind: 'cancelled' }
  | { readonly kind: 'timeout' }
  /** Its files exceeded its pool's `disk`. */
  | { readonly kind: 'disk' }
  | { readonly kind: 'unstartable'; readonly failure: Failure };

/** A job that a sandbox is made for, with its time limit in ms after the release. */
export interface Reserved {
  readonly job: JobId;
  readonly limit: number | null;
  /** The sandbox has the job's own recipe: errors with it are the job's, not the pool's. */
  readonly cold: boolean;
}

export type StandbyLane =
  | { readonly kind: 'none' }
  /** `reserved` is set if the sandbox is for one job: its recipe differs, or the pool keeps no standby. */
  | { readonly kind: 'preparing'; readonly agent: AgentId; readonly reserved: Reserved | null; readonly since: number }
  | {
      readonly kind: 'standby';
      readonly agent: AgentId;
      readonly reserved: Reserved | null;
      readonly fingerprint: string;
      readonly since: number;
    };

/** An agent that was asked to end (`TERM`) or is killed (`KILL`). At `due` it is killed, again if necessary. */
export interface EndingLane {
  readonly kind: 'ending';
  readonly signal: 'TERM' | 'KILL';
  readonly agent: AgentId;
  readonly job: JobId | null;
  readonly why: StopReason;
  /** Whether the script has certainly begun. */
  readonly released: boolean;
  /** What went wrong, when that is why. */
  readonly failure: Failure | null;
  readonly due: number;
}

export type AgentLane =
  | { readonly kind: 'free' }
  /** Early binding only: waits for the CI service's registration. `fingerprint`: what its sandbox was made from. */
  | { readonly kind: 'registering'; readonly agent: AgentId; readonly fingerprint: string; readonly since: number }
  /**
   * The script is being sent; the released marker was not seen yet. `limit` is the job's time limit in ms. There is no deadline
   * here: sending may include gigabytes of workspace, so the executor decides when it takes too long.
   */
  | {
      readonly kind: 'releasing';
      readonly agent: AgentId;
      readonly job: JobId | null;
      readonly limit: number | null;
      readonly fingerprint: string;
      readonly since: number;
    }
  /** Early binding only: released, and waits for a job of the CI service. `online`: the service has seen it. */
  | {
      readonly kind: 'idle';
      readonly agent: AgentId;
      readonly fingerprint: string;
      readonly online: boolean;
      readonly since: number;
    }
  /** Early binding only: will end without a job. The CI service is told to give it none before it is told to end. */
  | { readonly kind: 'retiring'; readonly agent: AgentId; readonly since: number }
  | {
      readonly kind: 'busy';
      readonly agent: AgentId;
      readonly job: JobId | null;
      readonly since: number;
      readonly due: number | null;
    }
  | EndingLane
  /** The agent is gone. Its devices must be proved clean before the lane is free. */
  | { readonly kind: 'proving'; readonly agent: AgentId; readonly since: number };

/**
 * An agent outside the lanes that is not cleared yet. While `job` is set its job has a result, but its log and artifacts are
 * still being completed. Only then is its sandbox removed.
 */
export interface Leaving {
  readonly agent: AgentId;
  readonly job: JobId | null;
  /** How an idle agent ended by itself, or was lost; its CI service says whether it had a job. null for any other. */
  readonly exit: Exit | null;
}

export interface Slot {
  /** `<pool>/<n>`; it outlives agents. */
  readonly key: string;
  /** Name of the runtime of its sandboxes; it changes only while the slot is empty. */
  readonly runtime: string;
  /**
   * Name of the CI service of its agents; it changes only while the slot is empty. Slots of older versions have an empty name:
   * the pool's own.
   */
  readonly service: string;
  /** Devices leased to the slot; empty for CPU pools. */
  readonly devices: readonly DeviceId[];
  /** How long a job may take to end before it is killed, in ms. */
  readonly grace: number;
  readonly standby: StandbyLane;
  readonly agent: AgentLane;
  readonly leaving: readonly Leaving[];
}

/** Events of a slot. All but the first four from the planner name their agent; an event about another agent changes nothing. */
export type SlotEvent =
  // from the planner
  | { readonly kind: 'fill'; readonly agent: AgentId; readonly reserved: Reserved | null }
  | { readonly kind: 'discard' }
  | { readonly kind: 'assign'; readonly job: JobId; readonly limit: number | null }
  | { readonly kind: 'engage' }
  | { readonly kind: 'retire'; readonly agent: AgentId }
  // from executors and the world
  | { readonly kind: 'ready'; readonly agent: AgentId; readonly fingerprint: string }
  | { readonly kind: 'prepareFailed'; readonly agent: AgentId; readonly failure: Failure }
  | { readonly kind: 'registered'; readonly agent: AgentId }
  | { readonly kind: 'registerFailed'; readonly agent: AgentId; readonly failure: Failure }
  | { readonly kind: 'released'; readonly agent: AgentId }
  /** `countsAgainst`: whether the pool should back off, or only the job is to blame. */
  | { readonly kind: 'releaseFailed'; readonly agent: AgentId; readonly failure: Failure; readonly countsAgainst: 'pool' | 'job' }
  /** The CI service sees the agent and could give it a job. */
  | { readonly kind: 'online'; readonly agent: AgentId }
  /** The CI service gives it no more jobs, and it has none. */
  | { readonly kind: 'retired'; readonly agent: AgentId }
  /** `limit`: the job's time limit in ms, from now on. */
  | { readonly kind: 'jobSeen'; readonly agent: AgentId; readonly job: JobId; readonly limit: number | null }
  /** `released` is final: the whole log was read, or the marker was seen before. */
  | { readonly kind: 'exited'; readonly agent: AgentId; readonly exit: Exit; readonly released: boolean }
  /** The runtime answered and has no such sandbox. Never sent for a runtime that did not answer. */
  | { readonly kind: 'gone'; readonly agent: AgentId }
  /** Log and artifacts of its job are complete. */
  | { readonly kind: 'settled'; readonly agent: AgentId }
  /** `outcome` of an idle agent that ended by itself: it had a job after all, or what was wrong; null if unknown. */
  | { readonly kind: 'cleared'; readonly agent: AgentId; readonly outcome: 'worked' | Failure | null }
  | { readonly kind: 'proved'; readonly agent: AgentId }
  // from people and clocks
  | { readonly kind: 'stop'; readonly agent: AgentId; readonly why: StopReason; readonly grace: number }
  | { readonly kind: 'due' };

/** What has to be recorded together with the slot, in the same commit. */
export type Change =
  | { readonly change: 'reserved'; readonly job: JobId; readonly agent: AgentId }
  | { readonly change: 'assigned'; readonly job: JobId; readonly agent: AgentId }
  | { readonly change: 'started'; readonly job: JobId; readonly agent: AgentId }
  /** The job has certainly not begun and returns to its queue. */
  | { readonly change: 'returned'; readonly job: JobId; readonly agent: AgentId; readonly failure: Failure | null }
  | { readonly change: 'ended'; readonly job: JobId; readonly agent: AgentId; readonly result: JobResult }
  /** Log and artifacts are complete: those who wait for the job may be notified. */
  | { readonly change: 'settled'; readonly job: JobId; readonly agent: AgentId }
  /** The pool should back off. */
  | { readonly change: 'failed'; readonly stage: 'prepare' | 'release'; readonly failure: Failure }
  /** `online`: its CI service has seen the agent, which does not have a job yet. */
  | { readonly change: 'worked'; readonly stage: 'prepare' | 'online' | 'release' };

/** The effects on the world, keyed by agent, so that a repetition has no further effect. */
export interface ActionArgs {
  prepare: { readonly agent: AgentId; readonly job: JobId | null };
  register: { readonly agent: AgentId };
  release: { readonly agent: AgentId; readonly job: JobId | null };
  retire: { readonly agent: AgentId };
  terminate: { readonly agent: AgentId };
  kill: { readonly agent: AgentId };
  settle: { readonly agent: AgentId; readonly job: JobId };
  clear: { readonly agent: AgentId };
  prove: { readonly agent: AgentId };
}
export type Action<K extends keyof ActionArgs = keyof ActionArgs> = {
  [P in K]: { readonly act: P } & ActionArgs[P];
}[K];

/** A slot in which nothing has happened yet. */
export function emptySlot(
  place: Pick<Slot, 'key' | 'runtime' | 'grace'> & { readonly service?: string; readonly devices?: readonly DeviceId[] },
): Slot {
  return { service: '', devices: [], ...place, standby: { kind: 'none' }, agent: { kind: 'free' }, leaving: [] };
}

export function isEmpty(slot: Slot): boolean {
  return slot.standby.kind === 'none' && slot.agent.kind === 'free' && slot.leaving.length === 0;
}

/** The state of an agent in the words of the API. */
export function stateName(lane: AgentLane): Exclude<AgentLane['kind'], 'ending'> | 'stopping' | 'killing' {
  if (lane.kind !== 'ending') return lane.kind;
  return lane.signal === 'TERM' ? 'stopping' : 'killing';
}

/** Every agent of a slot, in any lane. */
export function agentsOf(slot: Slot): AgentId[] {
  const agents = slot.leaving.map((one) => one.agent);
  if (slot.standby.kind !== 'none') agents.push(slot.standby.agent);
  if (slot.agent.kind !== 'free') agents.push(slot.agent.agent);
  return agents;
}

/** Every job of a slot, in any lane. */
export function jobsIn({ standby, agent, leaving }: Slot): JobId[] {
  const reserved = standby.kind === 'none' ? null : (standby.reserved?.job ?? null);
  const here = 'job' in agent ? agent.job : null;
  return [reserved, here, ...leaving.map((one) => one.job)].filter((job) => job !== null);
}
