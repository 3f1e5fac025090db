/** A store whose syncs take no turn of the event loop: virtual time would continue while the disk works. */
import { openStore, type Store } from '../../src/store/store.ts';

export function openInstantStore(dir: string): Store {
  const store = openStore(dir);
  return Object.assign(store, { sync: async () => store.syncNow() });
}
