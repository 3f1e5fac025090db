/**
 * What each state asks of the world. A state has one pursuit or none, whoever brought it about: an event a moment ago,
 * or a manager that died last week. Executors are idempotent, so pursuing again after a crash is safe.
 */
import type { Action, AgentLane, Leaving, Slot, StandbyLane } from './slot.ts';

/** The pursuit of the standby lane. */
export function pursueStandby(lane: StandbyLane): Action | null {
  return lane.kind === 'preparing' ? { act: 'prepare', agent: lane.agent, job: lane.reserved?.job ?? null } : null;
}

/** The pursuit of the agent lane. */
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

/** What is left to do about one agent that has left its lane: first its job, then its sandbox. */
export function pursueLeaving({ agent, job }: Leaving): Action {
  return job === null ? { act: 'clear', agent } : { act: 'settle', agent, job };
}

/** Everything a slot asks for, as after a restart. */
export function pursueAll(slot: Slot): Action[] {
  const lanes = [pursueStandby(slot.standby), pursueAgent(slot.agent)].filter((action) => action !== null);
  return [...lanes, ...slot.leaving.map(pursueLeaving)];
}

/** When the slot wants to be told `due`, in ms on the core's clock; null when no deadline runs. */
export function dueAt(slot: Slot): number | null {
  const lane = slot.agent;
  return 'due' in lane ? lane.due : null;
}
