/** Deletes what nobody will ask for, in small pieces because jobs run meanwhile. */
import { existsSync } from 'node:fs';
import { opendir, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { type AgentId, agentsOf } from '../../core/slot.ts';
import { agentLogsFolder, agentLogsPath } from '../../logs/agent-logs.ts';
import { createLogFolder } from '../../logs/log-file.ts';
import { subdirectory } from '../../store/directory.ts';
import type { Store } from '../../store/store.ts';
import { turn } from '../../system/system-clock.ts';
import type { Spool } from './spool.ts';

/** ms that a workspace may wait for its job. */
const workspaceWait = 60 * 60_000;
/** ms between two sweeps of the folders of logs, which may have 100,000 files. */
const sweepEvery = 60 * 60_000;
/** Rows per commit, so that commits of the loop do not wait long. */
const batch = 100;

/** Deletes jobs that ended over `keepMs` ago, with logs and artifacts, files sent that were unused for as long, and workspaces unused for an hour. `now`: wall clock, ms since the epoch. */
export type Prune = (now: number, keepMs: number) => Promise<void>;

export function createPrune(store: Store, spool: Spool): Prune {
  let swept: number | null = null;
  return async (now, keepMs) => {
    const before = now - keepMs;
    // Files are deleted before their rows, so that after a crash the next prune finds the row.
    await inBatches(
      (limit) => store.jobs.endedBefore(before, limit),
      (id) => spool.deleteArtifacts(id),
      (id) => store.jobs.remove(id),
    );
    const logs = subdirectory(store.dir, 'logs');
    const output = createLogFolder(logs);
    await inBatches(
      (limit) => overBefore(store, before, limit),
      async (agent) => {
        output.delete(agent);
        // The sweep tries it again; one that cannot be deleted must not keep the rest.
        await rm(agentLogsPath(store.dir, agent), { force: true }).catch(() => {});
      },
      (agent) => store.history.remove(agent),
    );
    store.transaction({ durable: false }, () => {
      store.registrations.prune(before);
      store.serviceJobs.prune(before);
      store.outcomes.pruneSums(now);
    });
    while (store.transaction({ durable: false }, () => store.outcomes.prune(before, batch)) === batch) await turn();
    await spool.sweepWorkspaces(now - workspaceWait);
    await spool.sweepSent(before);
    // Also after the clock was set back.
    if (swept !== null && Math.abs(now - swept) < sweepEvery) return;
    swept = now;
    for (const folder of [logs, join(store.dir, agentLogsFolder)]) await sweepLogs(folder, before, agentsIn(store));
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

/** Agents that ended before `time`, without those in slots, whose last output is still being read. */
export function overBefore(store: Pick<Store, 'history' | 'slots'>, time: number, limit: number): AgentId[] {
  // Usually there are none, and reading every slot costs more.
  if (store.history.endedBefore(time, 1).length === 0) return [];
  const alive = agentsIn(store);
  return store.history
    .endedBefore(time, limit + alive.size)
    .filter((agent) => !alive.has(agent))
    .slice(0, limit);
}

/** Agents in any slot, in any lane. */
export function agentsIn({ slots }: Pick<Store, 'slots'>): Set<AgentId> {
  return new Set(slots.all().flatMap(({ slot }) => agentsOf(slot)));
}

const logFile = /^([^.]+)\.(?:log|tar)(?:\.\w+)*$/;

/** Logs without history, as after a crash; a quiet job's old log belongs to a slot. */
async function sweepLogs(logs: string, before: number, alive: ReadonlySet<string>): Promise<void> {
  if (!existsSync(logs)) return;
  for await (const { name } of await opendir(logs, { bufferSize: batch })) {
    const agent = logFile.exec(name)?.[1];
    if (agent === undefined || alive.has(agent)) continue;
    const path = join(logs, name);
    const found = await stat(path).catch(() => null);
    if (found !== null && found.mtimeMs < before) await rm(path, { force: true });
  }
}
