/**
 * The action that each state asks for. A state asks for at most one, whether an event caused it now or a manager that died last
 * week. Executors are idempotent, so a repetition after a crash is safe.
 */
import type { Action, AgentLane, Leaving, Slot, StandbyLane } from './slot.ts';

export function pursueStandby(lane: StandbyLane): Action | null {
  return lane.kind === 'preparing' ? { act: 'prepare', agent: lane.agent, job: lane.reserved?.job ?? null } : null;
}

export function pursueAgent(lane: AgentLane): Action | null {
  switch (lane.kind) {
    case 'registering':
      return { act: 'register', agent: lane.agent };
    case 'releasing':
      return { act: 'release', agent: lane.agent, job: lane.job };
    case 'retiring':
      return { act: 'retire', agent: lane.agent };
    case 'ending':
      return { act: lane.signal === 'TERM' ? 'terminate' : 'kill', agent: lane.agent };
    case 'proving':
      return { act: 'prove', agent: lane.agent };
    case 'free':
    case 'idle':
    case 'busy':
      return null;
  }
}

/** The action for an agent that has left its lane: first its job, then its sandbox. */
export function pursueLeaving({ agent, job }: Leaving): Action {
  return job === null ? { act: 'clear', agent } : { act: 'settle', agent, job };
}

/** All actions that a slot asks for, as after a restart. */
export function pursueAll(slot: Slot): Action[] {
  const lanes = [pursueStandby(slot.standby), pursueAgent(slot.agent)].filter((action) => action !== null);
  return [...lanes, ...slot.leaving.map(pursueLeaving)];
}

/** When the slot needs a `due` event, in ms on the core's clock; null without a deadline. */
export function dueAt(slot: Slot): number | null {
  const lane = slot.agent;
  return 'due' in lane ? lane.due : null;
}
