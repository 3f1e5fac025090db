/**
 * When a job that waits for devices has them at the latest, and until when another job must have begun to delay it no further. Pure.
 * Only time limits count: nobody promises what is merely likely. Times are of the core clock, in ms.
 */
import { formatTime } from '../../base/units.ts';
import type { Clock } from '../../core/clock.ts';
import type { DeviceId, JobId, Slot } from '../../core/slot.ts';

/** When a slot gives its devices back. */
export interface Ending {
  /** At the latest; null: nobody knows. */
  readonly until: number | null;
  readonly job: JobId | null;
  /** Its job has begun, or cannot begin later than assumed. */
  readonly isSure: boolean;
}

export interface LatestStart {
  readonly at: number;
  /** The job that is the last to give devices back, at its time limit. */
  readonly after: JobId | null;
  readonly isSure: boolean;
  /** How many devices there are then beyond those that it needs. */
  readonly spare: number;
}

/** A job that waits for devices. */
export interface Wait {
  readonly pool: string;
  readonly job: JobId | null;
  readonly count: number | 'all';
  /** How many it could have if all other jobs had ended. */
  readonly most: number;
  /** Free devices that are kept for it. */
  readonly held: readonly DeviceId[];
  /** null: a job without a time limit has some of them, or others come first. */
  readonly latest: LatestStart | null;
  /** A job without a time limit that has devices which it could have; null: there is none. */
  readonly endless: JobId | null;
}

/** A job in the order of its queue. */
export interface InLine {
  readonly job: JobId;
  readonly count: number | 'all';
  /** How long it has devices at most, ms, from its start on; null: it has no time limit. */
  readonly lasts: number | null;
}

/** ms that a job may take to begin if it goes before one that waits. */
const beginsWithin = 60_000;

export function endingOf({ agent, standby, grace, leaving }: Slot, now: number): Ending {
  const after = (job: JobId | null, limit: number | null): Ending => {
    return { until: limit === null ? null : now + limit + grace, job, isSure: false };
  };
  switch (agent.kind) {
    case 'busy':
      return { until: agent.due === null ? null : agent.due + grace, job: agent.job, isSure: true };
    case 'ending':
      return { until: agent.due, job: agent.job, isSure: true };
    case 'proving':
      return { until: now, job: null, isSure: true };
    case 'releasing':
      return after(agent.job, agent.limit);
    case 'free':
      if (standby.kind !== 'none') return after(standby.reserved?.job ?? null, standby.reserved?.limit ?? null);
      return { until: leaving.length > 0 ? now : null, job: null, isSure: true };
    default:
      return { until: null, job: null, isSure: false };
  }
}

/** `endings`: one for each device that it could have later. null: nobody knows. */
export function latestStart(needs: number, free: number, endings: readonly Ending[], now: number): LatestStart | null {
  const known = endings.flatMap((one) => (one.until === null ? [] : [{ ...one, until: one.until }]));
  const inOrder = known.toSorted((a, b) => a.until - b.until);
  const last = inOrder[needs - free - 1];
  if (last === undefined) return null;
  const back = inOrder.filter(({ until }) => until <= last.until);
  return {
    at: Math.max(now, last.until),
    after: last.job,
    isSure: back.every(({ isSure }) => isSure),
    spare: free + back.length - needs,
  };
}

/** Until when a job must begin that uses these devices, so that none of `waits` starts later at the latest; null: it must not. */
export function beginBy(used: ReadonlySet<DeviceId>, lasts: number | null, waits: readonly Wait[], now: number): number | null {
  let by = Number.POSITIVE_INFINITY;
  for (const { held, latest } of waits) {
    const taken = held.filter((uuid) => used.has(uuid)).length;
    if (taken === 0) continue;
    if (latest === null) return null;
    if (taken <= latest.spare) continue;
    if (lasts === null) return null;
    by = Math.min(by, latest.at - lasts);
  }
  return now + beginsWithin <= by ? by : null;
}

/** What the job waits for, what is kept for it, and when it starts at the latest, for people. */
export function waitText({ job, count, most, held, latest, endless }: Wait, clock: Pick<Clock, 'now' | 'wall'>): string {
  const it = job === null ? 'the next job' : `job ${job}`;
  const isOne = count === 1;
  if (count !== 'all' && most < count && !isOne) return `${it} waits for ${count} devices: no more than ${most} can be used now`;
  const free = held.length === 0 ? 'none is free' : `${held.length} ${held.length === 1 ? 'is' : 'are'} free and kept for it`;
  const why = isOne ? 'no device is free for it' : `${it} waits for ${count} devices: ${free}`;
  if (latest?.isSure === true) {
    // The next whole minute, since a proof takes a moment.
    const at = Math.ceil((clock.wall() + latest.at - clock.now()) / 60_000) * 60_000;
    const after = latest.after === null ? '' : `, when job ${latest.after} reaches its time limit`;
    return `${why}; ${isOne ? it : 'it'} starts by ${formatTime(at, clock.wall())} at the latest${after}`;
  }
  return isOne || endless === null ? why : `${why}; nobody knows until when, as job ${endless} has no time limit`;
}
