/** How long an accepted job may wait for its sandbox, and the agent in that sandbox for its first call. */
import type { Clock } from '../../core/clock.ts';
import type { BrokerAgent } from './broker/protocol.ts';

export interface DeadlineParts {
  readonly clock: Clock;
  /** ms */
  readonly holdTimeout: number;
  /** ms */
  readonly bootTimeout: number;
}

type Late = (agent: BrokerAgent, why: string) => void;

export interface Deadlines {
  /** Arms what holds in the agent's phase, and calls the one of before off. `late` is told why, as a sentence. */
  saw(agent: BrokerAgent, late: Late): void;
  /** Its sandbox did not come to anything: it waits for another one, however far the broker says that it is. */
  returned(agent: BrokerAgent, late: Late): void;
  close(): void;
}

export function createDeadlines({ clock, holdTimeout, bootTimeout }: DeadlineParts): Deadlines {
  /** By the broker's id of the agent; `of`: the phase and the sandbox that the deadline is about. */
  const armed = new Map<string, { readonly of: string; readonly callOff: () => void }>();

  const disarm = (id: string): void => {
    armed.get(id)?.callOff();
    armed.delete(id);
  };

  const arm = (agent: BrokerAgent, limit: number, why: string, late: Late): void => {
    const { id } = agent;
    disarm(id);
    const fire = (): void => {
      // Who could not be told of it is told again after as long, should the agent still be there then.
      armed.delete(id);
      late(agent, why);
    };
    armed.set(id, { of: subjectOf(agent), callOff: clock.after(limit, fire) });
  };
  const waits = ({ kind }: BrokerAgent): string =>
    `${kind === 'held' ? 'no sandbox was ready for it' : 'its agent did not begin it'} within ${inWords(holdTimeout)}.`;

  return {
    saw(agent, late) {
      if (armed.get(agent.id)?.of === subjectOf(agent)) return;
      disarm(agent.id);
      if (agent.phase === 'accepted') arm(agent, holdTimeout, waits(agent), late);
      if (agent.phase === 'handed')
        arm(agent, bootTimeout, `the agent in its sandbox did not call in within ${inWords(bootTimeout)}.`, late);
    },
    returned(agent, late) {
      arm(agent, holdTimeout, waits(agent), late);
    },
    close() {
      for (const id of [...armed.keys()]) disarm(id);
    },
  };
}

function subjectOf({ phase, agent }: BrokerAgent): string {
  return `${phase} ${agent}`;
}

function inWords(ms: number): string {
  return ms % 60_000 === 0 ? `${ms / 60_000} min` : `${Math.round(ms / 1000)} s`;
}
