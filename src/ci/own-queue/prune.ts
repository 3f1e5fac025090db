/** Forgets what nobody will ask for any more, so that the state directory does not grow for ever. */
import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { Slot } from '../../core/slot.ts';
import { deleteLog, logPath } from '../../logs/log-file.ts';
import { subdirectory } from '../../store/directory.ts';
import type { Store } from '../../store/store.ts';
import type { Spool } from './spool.ts';

/** Name of the folder of logs in the state directory. */
export const logsFolder = 'logs';

/** How long a workspace may wait for its job, in ms. */
const workspaceWait = 60 * 60_000;
/** Rows per commit, so that no commit of the loop waits long behind it. */
const batch = 200;

export interface PruneOptions {
  readonly store: Store;
  readonly spool: Spool;
  /** Wall clock, ms since the epoch. */
  readonly now: number;
  readonly keepMs: number;
  /** Workspaces of jobs that are not done. */
  readonly inUse: ReadonlySet<string>;
}

export async function prune({ store, spool, now, keepMs, inUse }: PruneOptions): Promise<void> {
  const before = now - keepMs;
  // Files go before the rows that name them: a crash in between leaves a row, which the next prune finds.
  for (let ids = store.jobs.endedBefore(before, batch); ids.length > 0; ids = store.jobs.endedBefore(before, batch)) {
    for (const id of ids) await spool.deleteArtifacts(id);
    store.transaction({ durable: false }, () => {
      for (const id of ids) store.jobs.remove(id);
    });
  }
  const logs = subdirectory(store.dir, logsFolder);
  for (let ids = store.history.endedBefore(before, batch); ids.length > 0; ids = store.history.endedBefore(before, batch)) {
    for (const agent of ids) deleteLog(logPath(logs, agent));
    store.transaction({ durable: false }, () => {
      for (const agent of ids) store.history.remove(agent);
    });
  }
  await sweepLogs(logs, before, agentsIn(store.slots.all().map(({ slot }) => slot)));
  store.transaction({ durable: false }, () => store.registrations.prune(before));
  await spool.sweepWorkspaces(now - workspaceWait, inUse);
}

/** Logs that no history tells of, such as a crash may leave; a quiet job's old log is in a slot. */
async function sweepLogs(logs: string, before: number, alive: ReadonlySet<string>): Promise<void> {
  for (const name of await readdir(logs)) {
    if (!name.endsWith('.log') || alive.has(name.slice(0, -'.log'.length))) continue;
    const path = join(logs, name);
    if ((await stat(path)).mtimeMs < before) deleteLog(path);
  }
}

function agentsIn(slots: readonly Slot[]): Set<string> {
  const agents = new Set<string>();
  for (const slot of slots) {
    if (slot.standby.kind !== 'none') agents.add(slot.standby.agent);
    if (slot.agent.kind !== 'free') agents.add(slot.agent.agent);
    for (const { agent } of slot.leaving) agents.add(agent);
  }
  return agents;
}
