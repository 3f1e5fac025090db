/** Forgets jobs of CI services, and the logs of their agents, that nobody will ask for any more. */
import { readdir, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { agentsIn } from '../ci/own-queue/prune.ts';
import { agentLogsFolder } from '../logs/agent-logs.ts';
import type { Store } from '../store/store.ts';

/** How often the folder is looked through, in ms: it may hold many. */
const sweepEvery = 60 * 60_000;

/** `now`: wall clock, ms since the epoch. */
export type PruneServices = (now: number, keepMs: number) => Promise<void>;

export function createPruneServices(store: Pick<Store, 'dir' | 'slots' | 'serviceJobs' | 'transaction'>): PruneServices {
  let swept: number | null = null;
  return async (now, keepMs) => {
    const before = now - keepMs;
    store.transaction({ durable: false }, () => store.serviceJobs.prune(before));
    // A clock that was set back must not put it off.
    if (swept !== null && Math.abs(now - swept) < Math.min(sweepEvery, keepMs)) return;
    swept = now;
    const folder = join(store.dir, agentLogsFolder);
    const alive = agentsIn(store);
    for (const name of await list(folder)) {
      if (alive.has(name.split('.')[0] ?? '')) continue;
      const path = join(folder, name);
      const found = await stat(path).catch(() => null);
      if (found !== null && found.mtimeMs < before) await rm(path, { force: true });
    }
  };
}

async function list(folder: string): Promise<string[]> {
  try {
    return await readdir(folder);
  } catch (error) {
    if ((error as { code?: unknown }).code === 'ENOENT') return [];
    throw error;
  }
}
