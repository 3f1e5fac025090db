/**
 * What an event changes in the standby lane, which holds at most one sandbox at the gate (S2). A sandbox leaves it by its
 * release. Otherwise its job always returns to the queue, because its script has certainly not begun (S7).
 */

import type { Failure } from '../base/errors.ts';
import { endedAtGate } from './gate-failure.ts';
import type { AgentId, Change, JobId, Reserved, Slot, SlotEvent } from './slot.ts';

/** null: the event changes nothing here. */
export type LaneStep = { readonly slot: Slot; readonly changes: readonly Change[] } | null;

export function inStandbyLane(slot: Slot, event: SlotEvent, now: number): LaneStep {
  const lane = slot.standby;
  if (lane.kind === 'none') {
    if (event.kind !== 'fill') return null;
    const standby = { kind: 'preparing', agent: event.agent, reserved: event.reserved, since: now } as const;
    const changes: Change[] = event.reserved === null ? [] : [{ change: 'reserved', job: event.reserved.job, agent: event.agent }];
    return { slot: { ...slot, standby }, changes };
  }
  const job = lane.reserved?.job ?? null;
  switch (event.kind) {
    case 'assign':
      if (lane.kind !== 'standby' || slot.agent.kind !== 'free') return null;
      if (job !== null && job !== event.job) return null;
      return {
        slot: {
          ...slot,
          standby: { kind: 'none' },
          agent: {
            kind: 'releasing',
            agent: lane.agent,
            job: event.job,
            limit: event.limit,
            fingerprint: lane.fingerprint,
            since: now,
          },
        },
        changes: [{ change: 'assigned', job: event.job, agent: lane.agent }],
      };
    case 'engage':
      if (lane.kind !== 'standby' || slot.agent.kind !== 'free' || job !== null) return null;
      return {
        slot: {
          ...slot,
          standby: { kind: 'none' },
          agent: { kind: 'registering', agent: lane.agent, fingerprint: lane.fingerprint, since: now },
        },
        changes: [],
      };
    case 'discard':
      return dropStandby(slot, lane.agent, returned(job, lane.agent, null));
  }
  if (!('agent' in event) || event.agent !== lane.agent) return null;
  switch (event.kind) {
    case 'ready': {
      if (lane.kind !== 'preparing') return null;
      const standby = {
        kind: 'standby',
        agent: lane.agent,
        reserved: lane.reserved,
        fingerprint: event.fingerprint,
        since: now,
      } as const;
      const changes: Change[] = lane.reserved?.cold === true ? [] : [{ change: 'worked', stage: 'prepare' }];
      return { slot: { ...slot, standby }, changes };
    }
    case 'prepareFailed':
      if (lane.kind !== 'preparing') return null;
      return dropStandby(slot, lane.agent, standbyFailure(lane.reserved, lane.agent, event.failure));
    case 'exited':
      if (event.exit.kind === 'lost') return dropStandby(slot, lane.agent, returned(job, lane.agent, null));
      return dropStandby(slot, lane.agent, standbyFailure(lane.reserved, lane.agent, endedAtGate(event.exit)));
    case 'gone':
      return dropStandby(slot, lane.agent, returned(job, lane.agent, null));
    case 'stop': {
      if (job === null || event.why !== 'cancelled') return dropStandby(slot, lane.agent, returned(job, lane.agent, null));
      const ended: Change = { change: 'ended', job, agent: lane.agent, result: { kind: 'cancelled' } };
      return dropStandby(slot, lane.agent, [ended], job);
    }
    default:
      return null;
  }
}

function dropStandby(slot: Slot, agent: AgentId, changes: readonly Change[], job: JobId | null = null): LaneStep {
  return { slot: { ...slot, standby: { kind: 'none' }, leaving: [...slot.leaving, { agent, job, exit: null }] }, changes };
}

function standbyFailure(reserved: Reserved | null, agent: AgentId, failure: Failure): Change[] {
  const changes = returned(reserved?.job ?? null, agent, failure);
  // A job's own image or volume must not delay the jobs behind it. Its service limits the attempts.
  return reserved?.cold === true ? changes : [...changes, { change: 'failed', stage: 'prepare', failure }];
}

/** Returns the job to its queue, if there is one. */
export function returned(job: JobId | null, agent: AgentId, failure: Failure | null): Change[] {
  return job === null ? [] : [{ change: 'returned', job, agent, failure }];
}
