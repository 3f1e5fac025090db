/**
 * Forgets what nobody will ask for any more, so that the state directory does not grow for ever. Jobs run meanwhile: it
 * works in small pieces, and everything else has its turn between two of them.
 */

import { opendir, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { turn } from '../../clock.ts';
import { type AgentId, agentsOf } from '../../core/slot.ts';
import { createLogFolder } from '../../logs/log-folder.ts';
import { subdirectory } from '../../store/directory.ts';
import type { Store } from '../../store/store.ts';
import type { Spool } from './spool.ts';

/** Name of the folder of logs in the state directory. */
const logsFolder = 'logs';

/** How long a workspace may wait for its job, in ms. */
const workspaceWait = 60 * 60_000;
/** How often the whole folder of logs is looked through, in ms: it may hold a hundred thousand. */
const sweepEvery = 60 * 60_000;
/** Rows per commit, so that no commit of the loop waits long behind it. */
const batch = 100;

export interface PruneParts {
  readonly store: Store;
  readonly spool: Spool;
  /** Workspaces of jobs that are not done. */
  readonly inUse: ReadonlySet<string>;
}

/** `now`: wall clock, ms since the epoch. */
export function createPrune({ store, spool, inUse }: PruneParts) {
  let swept: number | null = null;
  return async (now: number, keepMs: number): Promise<void> => {
    const before = now - keepMs;
    // Files go before the rows that name them: a crash in between leaves a row, which the next prune finds.
    await inBatches(
      (limit) => store.jobs.endedBefore(before, limit),
      (id) => spool.deleteArtifacts(id),
      (id) => store.jobs.remove(id),
    );
    const logs = subdirectory(store.dir, logsFolder);
    const output = createLogFolder(logs);
    await inBatches(
      (limit) => overBefore(store, before, limit),
      async (agent) => output.delete(agent),
      (agent) => store.history.remove(agent),
    );
    // A clock that was set back must not put it off.
    if (swept === null || Math.abs(now - swept) >= sweepEvery) {
      swept = now;
      await sweepLogs(logs, before, agentsIn(store));
    }
    store.transaction({ durable: false }, () => store.registrations.prune(before));
    await spool.sweepWorkspaces(now - workspaceWait, inUse);
  };

  async function inBatches(
    next: (limit: number) => string[],
    deleteFile: (id: string) => Promise<void>,
    remove: (id: string) => void,
  ): Promise<void> {
    for (let ids = next(batch); ids.length > 0; ids = next(batch)) {
      for (const id of ids) await deleteFile(id);
      store.transaction({ durable: false }, () => {
        for (const id of ids) remove(id);
      });
      await turn();
    }
  }
}

/**
 * Up to `limit` agents that ended before `time` and that no slot knows any more: one that leaves has ended, and what it wrote last is
 * read, and counted, only then.
 */
export function overBefore(store: Pick<Store, 'history' | 'slots'>, time: number, limit: number): AgentId[] {
  // Mostly there is none, and reading every slot costs more.
  if (store.history.endedBefore(time, 1).length === 0) return [];
  const alive = agentsIn(store);
  const ended = store.history.endedBefore(time, limit + alive.size);
  return ended.filter((agent) => !alive.has(agent)).slice(0, limit);
}

/** Agents that are in any slot, in whatever lane. */
export function agentsIn({ slots }: Pick<Store, 'slots'>): Set<AgentId> {
  return new Set(slots.all().flatMap(({ slot }) => agentsOf(slot)));
}

/** Any of the files of an agent's log. */
const logFile = /^([^.]+)\.log(?:\.\w+)*$/;

/** Logs that no history tells of, such as a crash may leave; a quiet job's old log is in a slot. */
async function sweepLogs(logs: string, before: number, alive: ReadonlySet<string>): Promise<void> {
  for await (const { name } of await opendir(logs, { bufferSize: batch })) {
    const agent = logFile.exec(name)?.[1];
    if (agent === undefined || alive.has(agent)) continue;
    const path = join(logs, name);
    const found = await stat(path).catch(() => null);
    if (found !== null && found.mtimeMs < before) await rm(path, { force: true });
  }
}
