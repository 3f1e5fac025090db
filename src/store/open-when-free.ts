/**
 * Takes the lead from a manager that ends by itself: a daemon that is there to stay does not wait for one that is not. The temporary one
 * is told to leave, and its jobs are adopted.
 */
import { systemClock } from '../clock.ts';
import { type Clock, sleep } from '../core/clock.ts';
import { OnejobError } from '../errors.ts';
import { leaderOf } from './lead.ts';
import { openStore, type Store } from './store.ts';

const [usualPatience, again] = [30_000, 50];

export interface OpenOptions {
  readonly temporary: boolean;
  /** Tells the temporary manager that listens there to leave its agents and go. May fail: it is told again. */
  readonly tellToLeave: (socket: string) => Promise<void>;
  /** ms that one which does not leave is waited for; default 30 s. */
  readonly patience?: number;
  /** Default: the real one. */
  readonly clock?: Clock;
}

/**
 * @throws OnejobError what `openStore` throws; E_STATE_LED at once for a leader that is there to stay and for who is temporary too,
 * else after `patience`
 */
export async function openWhenFree(stateDir: string, options: OpenOptions): Promise<Store> {
  const { temporary, tellToLeave, patience = usualPatience, clock = systemClock } = options;
  for (const until = clock.now() + patience; ; ) {
    try {
      return openStore(stateDir, { temporary });
    } catch (error) {
      // One that is temporary itself has a client that joins the leader.
      if (!(error instanceof OnejobError) || error.code !== 'E_STATE_LED' || temporary) throw error;
      const leader = leaderOf(stateDir);
      // Without one it is just coming or going.
      if (leader?.temporary === false) throw error;
      if (clock.now() > until) throw leader === null ? error : stays(stateDir, leader.pid, patience);
      if (leader?.socket != null) await tellToLeave(leader.socket).catch(() => {});
      await sleep(clock, again);
    }
  }
}

function stays(dir: string, pid: number, patience: number): OnejobError {
  const message = `A temporary onejob (pid ${pid}) leads the state directory ${dir}, and did not leave within ${patience / 1000} s.`;
  return new OnejobError('E_STATE_LED', message, {
    hint: `Type "kill -9 ${pid}" and start again: its jobs go on, and are taken over.`,
  });
}
