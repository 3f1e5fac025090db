/** Jobs that are cancelled and go on: their agents have their time to end them, and are not asked after that. They may not be able to. */
import type { Clock } from '../../core/clock.ts';
import type { AgentId, JobId } from '../../core/slot.ts';
import type { BrokerAgent, Phase } from './broker/protocol.ts';

export interface UnheededParts {
  readonly clock: Clock;
  /** ms that the agent's sandbox may take to end after TERM. */
  readonly graceOf: (agent: BrokerAgent) => number;
  /** Its time is over. Said again after as long, should it still be there. */
  readonly end: (job: JobId, agent: AgentId) => void;
}

export interface Unheeded {
  saw(agent: BrokerAgent): void;
  close(): void;
}

/** ms beyond that grace, for the end of its log. */
const slack = 30_000;

/** An agent inside looks after its job. */
const inside: ReadonlySet<Phase> = new Set(['connected', 'running']);

export function createUnheeded({ clock, graceOf, end }: UnheededParts): Unheeded {
  const armed = new Map<string, () => void>();

  const arm = (agent: BrokerAgent, job: JobId, of: AgentId): void => {
    const fire = (): void => {
      arm(agent, job, of);
      end(job, of);
    };
    armed.set(agent.id, clock.after(graceOf(agent) + slack, fire));
  };

  return {
    saw(agent) {
      const { id, job, phase, cancelled } = agent;
      if (cancelled && job !== null && agent.agent !== null && inside.has(phase)) {
        if (!armed.has(id)) arm(agent, job.id, agent.agent);
        return;
      }
      armed.get(id)?.();
      armed.delete(id);
    },
    close() {
      for (const callOff of armed.values()) callOff();
      armed.clear();
    },
  };
}
