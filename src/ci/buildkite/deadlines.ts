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

export interface Deadlines {
  /** Arms what holds in the agent's phase, and calls the one of before off. `late` is told why, as a sentence. */
  saw(agent: BrokerAgent, late: (agent: BrokerAgent, why: string) => void): void;
  close(): void;
}

export function createDeadlines({ clock, holdTimeout, bootTimeout }: DeadlineParts): Deadlines {
  const armed = new Map<string, { readonly phase: string; readonly callOff: () => void }>();

  const disarm = (id: string): void => {
    armed.get(id)?.callOff();
    armed.delete(id);
  };

  return {
    saw(agent, late) {
      const { id, phase, kind } = agent;
      if (armed.get(id)?.phase === phase) return;
      disarm(id);
      const [limit, why] =
        phase === 'accepted'
          ? [
              holdTimeout,
              `${kind === 'held' ? 'no sandbox was ready for it' : 'its agent did not begin it'} within ${inWords(holdTimeout)}.`,
            ]
          : phase === 'handed'
            ? [bootTimeout, `the agent in its sandbox did not call in within ${inWords(bootTimeout)}.`]
            : [null, ''];
      if (limit === null) return;
      const fire = (): void => {
        // Who could not be told of it is told again after as long, should the agent still be there then.
        armed.delete(id);
        late(agent, why);
      };
      armed.set(id, { phase, callOff: clock.after(limit, fire) });
    },
    close() {
      for (const id of [...armed.keys()]) disarm(id);
    },
  };
}

function inWords(ms: number): string {
  return ms % 60_000 === 0 ? `${ms / 60_000} min` : `${Math.round(ms / 1000)} s`;
}
