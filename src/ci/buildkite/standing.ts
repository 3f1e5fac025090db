/** Why nothing can be begun in a service's pools right now: the broker, the token, the service itself, the agent's program, the list of jobs. */
import type { ServiceHealth } from './broker/protocol.ts';

/** In the order in which a person should look at them. */
const subjects = ['broker', 'program', 'token', 'service', 'stack'] as const;
export type Subject = (typeof subjects)[number];

export interface Standing {
  /** null: all is well with it. `beginning`: it is only being got ready. */
  set(subject: Subject, why: string | null, beginning?: boolean): void;
  /** What the service is like, as the broker sees it. */
  health(health: ServiceHealth): void;
  /** For a pool that has agents at the service, or a job: those go on during an outage, and with a token that was revoked. */
  reason(isServed: boolean): Reason | null;
}

export interface Reason {
  readonly why: string;
  /** Nothing is wrong so far. */
  readonly beginning: boolean;
}

/** What keeps agents that are registered from working, too. */
const hard: ReadonlySet<Subject> = new Set(['broker', 'program']);

export function createStanding(): Standing {
  const reasons = new Map<Subject, Reason>();
  const set = (subject: Subject, why: string | null, beginning = false): void => {
    if (why === null) reasons.delete(subject);
    else reasons.set(subject, { why, beginning });
  };
  return {
    set,
    health({ kind, why }) {
      set('service', kind === 'ok' ? null : (why ?? 'the service does not answer'));
    },
    reason(isServed) {
      for (const subject of subjects) {
        const reason = reasons.get(subject);
        if (reason !== undefined && (!isServed || hard.has(subject))) return reason;
      }
      return null;
    },
  };
}
