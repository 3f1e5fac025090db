/**
 * Decides what an event changes in a slot. Pure: the same slot, event and time always give the same next slot.
 *
 * Guarantees: an agent enters the agent lane only by its release from standby (S2). Its job is recorded as started at most once
 * (S3). The job returns to the queue only while its script has certainly not begun (S7). An event about another agent, or one
 * that makes no sense in this state, changes nothing.
 */
import { endedAtGate } from './gate-failure.ts';
import { pursueAgent, pursueLeaving, pursueStandby } from './pursue.ts';
import {
  type Action,
  type AgentId,
  type AgentLane,
  type Change,
  type EndingLane,
  type Exit,
  type JobId,
  type JobResult,
  type Leaving,
  type Slot,
  type SlotEvent,
  stoppedWithJob,
  takenWithJob,
} from './slot.ts';
import { inStandbyLane, type LaneStep, returned } from './standby-lane.ts';

/** ms between two kills of a sandbox that does not end. */
export const killInterval = 10_000;

export interface Decision {
  /** The same object as before if the event changed nothing. */
  readonly slot: Slot;
  readonly changes: readonly Change[];
  readonly actions: readonly Action[];
}

/** Applies one event to one slot at `now` (core clock, ms). */
export function decide(slot: Slot, event: SlotEvent, now: number): Decision {
  const step = inStandbyLane(slot, event, now) ?? inAgentLane(slot, event, now) ?? whileLeaving(slot, event);
  if (step === null) return { slot, changes: [], actions: [] };
  return { ...step, actions: newPursuits(slot, step.slot) };
}

function newPursuits(before: Slot, after: Slot): Action[] {
  const actions: (Action | null)[] = [];
  if (after.standby !== before.standby) actions.push(pursueStandby(after.standby));
  if (after.agent !== before.agent) actions.push(pursueAgent(after.agent));
  const known = new Set(before.leaving);
  for (const one of after.leaving) if (!known.has(one)) actions.push(pursueLeaving(one));
  return actions.filter((action) => action !== null);
}

function inAgentLane(slot: Slot, event: SlotEvent, now: number): LaneStep {
  const lane = slot.agent;
  if (lane.kind === 'free') return null;
  if (event.kind === 'due') return atDeadline(slot, lane, now);
  if (!('agent' in event) || event.agent !== lane.agent) return null;
  switch (event.kind) {
    case 'registered':
      if (lane.kind !== 'registering') return null;
      return to(slot, { ...lane, kind: 'releasing', job: null, limit: null, since: now });
    case 'registerFailed':
      if (lane.kind !== 'registering') return null;
      return leaveLane(slot, { agent: lane.agent }, now, [{ change: 'failed', stage: 'release', failure: event.failure }]);
    case 'released':
      return whenReleased(slot, lane, now);
    case 'releaseFailed': {
      const isSilent = lane.kind === 'idle' && !lane.online;
      if (lane.kind !== 'releasing' && !isSilent) return null;
      const failed: Change = { change: 'failed', stage: 'release', failure: event.failure };
      const killed = ending(lane, {
        signal: 'KILL',
        why: 'unreleased',
        released: isSilent,
        failure: event.failure,
        due: now + killInterval,
      });
      return to(slot, killed, event.countsAgainst === 'pool' ? [failed] : []);
    }
    case 'online':
      if (lane.kind !== 'idle' || lane.online) return null;
      return to(slot, { ...lane, online: true }, [{ change: 'worked', stage: 'online' }]);
    case 'jobSeen':
      if (lane.kind !== 'idle' && lane.kind !== 'retiring') return null;
      return to(slot, { kind: 'busy', agent: lane.agent, job: event.job, since: now, due: dueAfter(event.limit, now) }, [
        { change: 'worked', stage: 'release' },
        { change: 'started', job: event.job, agent: lane.agent },
      ]);
    case 'retire':
      return lane.kind === 'idle' ? to(slot, { kind: 'retiring', agent: lane.agent, since: now }) : null;
    case 'retired':
      return lane.kind === 'retiring' ? to(slot, ending(lane, { why: 'renewal', due: now + slot.grace })) : null;
    case 'stop':
      return whenStopped(slot, lane, event, now);
    case 'exited':
      return whenExited(slot, lane, event.exit, event.released, now);
    case 'gone':
      return whenExited(slot, lane, { kind: 'lost', reason: 'its sandbox was removed by someone else' }, true, now);
    case 'proved':
      return lane.kind === 'proving' ? to(slot, { kind: 'free' }) : null;
    default:
      return null;
  }
}

function whileLeaving(slot: Slot, event: SlotEvent): LaneStep {
  if (event.kind !== 'settled' && event.kind !== 'cleared') return null;
  const left = slot.leaving.find((one) => one.agent === event.agent);
  if (left === undefined) return null;
  if (event.kind === 'cleared')
    return { slot: { ...slot, leaving: slot.leaving.filter((one) => one !== left) }, changes: outcomeOf(event.outcome) };
  if (left.job === null) return null;
  const settled: Change = { change: 'settled', job: left.job, agent: left.agent };
  return {
    slot: { ...slot, leaving: slot.leaving.map((one) => (one === left ? { ...left, job: null } : one)) },
    changes: [settled],
  };
}

function outcomeOf(outcome: Extract<SlotEvent, { kind: 'cleared' }>['outcome']): Change[] {
  if (outcome === null) return [];
  return [outcome === 'worked' ? { change: 'worked', stage: 'release' } : { change: 'failed', stage: 'release', failure: outcome }];
}

function dueAfter(limit: number | null, now: number): number | null {
  return limit === null ? null : now + limit;
}

type Occupied = Exclude<AgentLane, { kind: 'free' }>;

function atDeadline(slot: Slot, lane: Occupied, now: number): LaneStep {
  if (!('due' in lane) || lane.due === null || now < lane.due) return null;
  switch (lane.kind) {
    case 'busy':
      return to(slot, ending(lane, { why: 'timeout', due: now + slot.grace }));
    case 'ending':
      return to(slot, { ...lane, signal: 'KILL', due: now + killInterval });
  }
}

function whenReleased(slot: Slot, lane: Occupied, now: number): LaneStep {
  // A started script says nothing about an agent that its CI service has yet to see.
  if (lane.kind === 'releasing' && lane.job === null) {
    const { agent, fingerprint } = lane;
    return to(slot, { kind: 'idle', agent, fingerprint, online: false, since: now });
  }
  const changes: Change[] = [{ change: 'worked', stage: 'release' }];
  if (lane.kind !== 'releasing' && (lane.kind !== 'ending' || lane.released)) return null;
  if (lane.job !== null) changes.push({ change: 'started', job: lane.job, agent: lane.agent });
  if (lane.kind !== 'releasing') return to(slot, { ...lane, released: true }, changes);
  return to(slot, { kind: 'busy', agent: lane.agent, job: lane.job, since: now, due: dueAfter(lane.limit, now) }, changes);
}

function whenStopped(slot: Slot, lane: Occupied, { why, grace }: Extract<SlotEvent, { kind: 'stop' }>, now: number): LaneStep {
  const due = now + grace;
  switch (lane.kind) {
    case 'registering':
      return leaveLane(slot, { agent: lane.agent }, now);
    case 'releasing':
      return to(slot, ending(lane, { why, released: false, due }));
    case 'idle':
    case 'retiring':
    case 'busy':
      return to(slot, ending(lane, { why, due }));
    case 'ending':
      // A second request to stop can only bring the kill forward; the first reason stays the reason.
      return lane.signal === 'TERM' && due < lane.due ? to(slot, { ...lane, due }) : null;
    case 'proving':
      return null;
  }
}

function whenExited(slot: Slot, lane: Occupied, exit: Exit, logSaysReleased: boolean, now: number): LaneStep {
  switch (lane.kind) {
    case 'registering': {
      const failed: Change = { change: 'failed', stage: 'release', failure: endedAtGate(exit) };
      return leaveLane(slot, { agent: lane.agent }, now, exit.kind === 'lost' ? [] : [failed]);
    }
    case 'releasing': {
      // The log may show the beginning only together with the end.
      if (logSaysReleased) return lane.job === null ? idleEnded(slot, lane.agent, exit, now) : finish(slot, lane, exit, now);
      const failure = endedAtGate(exit);
      const changes = returned(lane.job, lane.agent, failure);
      if (exit.kind !== 'lost') changes.push({ change: 'failed', stage: 'release', failure });
      return leaveLane(slot, { agent: lane.agent }, now, changes);
    }
    case 'idle':
    case 'retiring':
      return idleEnded(slot, lane.agent, exit, now);
    case 'busy':
      return finish(slot, lane, exit, now);
    case 'ending': {
      const released = lane.released || logSaysReleased;
      if (!released && lane.why !== 'cancelled')
        return leaveLane(slot, { agent: lane.agent }, now, returned(lane.job, lane.agent, lane.failure));
      return finish(slot, lane, stopResult(lane, exit), now);
    }
    case 'proving':
      return null;
  }
}

/** No job was seen, so its CI service is asked, with how it ended. */
function idleEnded(slot: Slot, agent: AgentId, exit: Exit, now: number): LaneStep {
  return leaveLane(slot, { agent, exit }, now);
}

function stopResult({ why, failure }: EndingLane, exit: Exit): JobResult {
  switch (why) {
    case 'cancelled':
    case 'timeout':
    case 'disk':
      return { kind: why };
    case 'shutdown':
      return { kind: 'lost', reason: stoppedWithJob };
    case 'taken':
      return { kind: 'lost', reason: takenWithJob };
    case 'unreleased':
      // The script had begun after all. Our TERM or KILL says nothing about the job; any other end is its own.
      if (exit.kind !== 'code' || (exit.code !== 137 && exit.code !== 143)) return exit;
      return { kind: 'lost', reason: failure?.message ?? 'nobody saw it begin in time' };
    case 'renewal':
      return exit;
  }
}

function finish(slot: Slot, lane: Occupied & { job?: JobId | null }, result: JobResult, now: number): LaneStep {
  const job = lane.job ?? null;
  const changes: Change[] = job === null ? [] : [{ change: 'ended', job, agent: lane.agent, result }];
  return leaveLane(slot, { agent: lane.agent, job }, now, changes);
}

function leaveLane(slot: Slot, { agent, job = null, exit = null }: Left, now: number, changes: readonly Change[] = []): LaneStep {
  const next: AgentLane = slot.devices.length > 0 ? { kind: 'proving', agent, since: now } : { kind: 'free' };
  return { slot: { ...slot, agent: next, leaving: [...slot.leaving, { agent, job, exit }] }, changes };
}

type Left = Pick<Leaving, 'agent'> & Partial<Leaving>;

function to(slot: Slot, agent: AgentLane, changes: readonly Change[] = []): LaneStep {
  return { slot: { ...slot, agent }, changes };
}

/** Asked by TERM and released unless `how` says otherwise. */
function ending(
  { agent, job = null }: { readonly agent: AgentId; readonly job?: JobId | null },
  how: Pick<EndingLane, 'why' | 'due'> & Partial<EndingLane>,
): EndingLane {
  return { kind: 'ending', signal: 'TERM', agent, job, released: true, failure: null, ...how };
}
