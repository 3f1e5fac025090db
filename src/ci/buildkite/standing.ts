/** Why nothing can be begun in a service's pools right now: the broker, the token, the service itself, the agent's program, the list of jobs. */
import type { ServiceHealth } from './broker/protocol.ts';

/** In the order in which a person should look at them. */
const subjects = ['broker', 'program', 'token', 'service', 'stack'] as const;
export type Subject = (typeof subjects)[number];

export interface Standing {
  /** null: all is well with it. */
  set(subject: Subject, why: string | null): void;
  /** What the service is like, as the broker sees it. */
  health(health: ServiceHealth): void;
  /** For a pool that has agents at the service, or a job: those go on during an outage, and with a token that was revoked. */
  reason(isServed: boolean): string | null;
}

/** What keeps agents that are registered from working, too. */
const hard: ReadonlySet<Subject> = new Set(['broker', 'program']);

export function createStanding(): Standing {
  const reasons = new Map<Subject, string>();
  const set = (subject: Subject, why: string | null): void => {
    if (why === null) reasons.delete(subject);
    else reasons.set(subject, why);
  };
  return {
    set,
    health({ kind, why }) {
      set('service', kind === 'ok' ? null : (why ?? 'the service does not answer'));
    },
    reason(isServed) {
      for (const subject of subjects) {
        const why = reasons.get(subject);
        if (why !== undefined && (!isServed || hard.has(subject))) return why;
      }
      return null;
    },
  };
}
