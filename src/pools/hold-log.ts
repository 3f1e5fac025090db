/**
 * Says in the daemon's log that a pool waits for its CI service, and that it does so no more. A service that is only getting ready
 * is worth a warning when that takes long: the first lines of a normal start must not look like trouble.
 */
import type { Clock } from '../core/clock.ts';
import type { Log } from '../log.ts';

export interface HoldLog {
  /** @param reason null: the pool waits no more; `beginning`: nothing is wrong so far */
  tell(pool: string, reason: string | null, beginning: boolean): void;
  close(): void;
}

/** ms that a service may take to get ready; a small host that is busy needs some seconds for it. */
const patience = 5_000;

export function createHoldLog(clock: Clock, log: Pick<Log, 'info' | 'warn'>): HoldLog {
  const beginnings = new Map<string, { reason: string; readonly callOff: () => void }>();
  const told = new Set<string>();

  const drop = (pool: string): void => {
    beginnings.get(pool)?.callOff();
    beginnings.delete(pool);
  };
  const warn = (pool: string, reason: string): void => {
    drop(pool);
    told.add(pool);
    log.warn('pool waits for its CI service', { pool, reason });
  };

  return {
    tell(pool, reason, beginning) {
      if (reason === null) {
        drop(pool);
        if (told.delete(pool)) log.info('CI service is back', { pool });
        return;
      }
      const begun = beginnings.get(pool);
      if (!beginning || told.has(pool)) warn(pool, reason);
      else if (begun !== undefined) begun.reason = reason;
      else {
        const late = (): void => warn(pool, beginnings.get(pool)?.reason ?? reason);
        beginnings.set(pool, { reason, callOff: clock.after(patience, late) });
      }
    },
    close() {
      for (const pool of [...beginnings.keys()]) drop(pool);
    },
  };
}
