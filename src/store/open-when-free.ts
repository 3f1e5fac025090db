/** Takes the lead from a manager that ends by itself: whoever types two commands one after the other must not hear of the first one's. */
import { setTimeout as pause } from 'node:timers/promises';
import { OnejobError } from '../errors.ts';
import { leaderIsTemporary } from './lead.ts';
import { openStore, type Store } from './store.ts';

const [patience, again] = [10_000, 50];

/**
 * @throws OnejobError what `openStore` throws; E_STATE_LED at once for a leader that is there to stay and for who is temporary too,
 * else after 10 s
 */
export async function openWhenFree(stateDir: string, options: { readonly temporary: boolean }): Promise<Store> {
  for (const until = Date.now() + patience; ; ) {
    try {
      return openStore(stateDir, options);
    } catch (error) {
      const isLed = error instanceof OnejobError && error.code === 'E_STATE_LED';
      // One that is temporary itself has a client that joins the leader.
      if (!isLed || options.temporary || !leaderIsTemporary(stateDir) || Date.now() > until) throw error;
      await pause(again);
    }
  }
}
