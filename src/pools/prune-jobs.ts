/** `onejob jobs prune`: forgets jobs that ended longer ago than somebody says, with all that is kept of them, before `keep_jobs` does. */
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { PrunedView, PruneRequest } from '../api/schema.ts';
import type { OwnQueue } from '../ci/own-queue/own-queue.ts';
import { overBefore } from '../ci/own-queue/prune.ts';
import type { Clock } from '../core/clock.ts';
import { agentLogsPath } from '../logs/agent-logs.ts';
import { logPath } from '../logs/log-file.ts';
import { filesOf } from '../logs/parts.ts';
import type { Store } from '../store/store.ts';
import { createPruneServices } from './prune-services.ts';

export interface PruneJobsParts {
  readonly store: Pick<Store, 'dir' | 'jobs' | 'history' | 'slots' | 'serviceJobs' | 'transaction'>;
  readonly queue: Pick<OwnQueue, 'prune'>;
  readonly clock: Clock;
  readonly logDir: string;
}

const noLimit = 2 ** 31 - 1;

export function createPruneJobs({ store, queue, clock, logDir }: PruneJobsParts) {
  return async ({ olderThan, dryRun }: PruneRequest): Promise<PrunedView> => {
    const now = clock.wall();
    const jobs = store.jobs.endedBefore(now - olderThan, noLimit);
    const agents = overBefore(store, now - olderThan, noLimit);
    let bytes = 0;
    for (const job of jobs) bytes += await sizeOf(join(store.dir, 'artifacts', `${job}.tar`));
    for (const agent of agents)
      for (const file of [...filesOf(logPath(logDir, agent)), agentLogsPath(store.dir, agent)]) bytes += await sizeOf(file);
    if (!dryRun) {
      await queue.prune(now, olderThan);
      await createPruneServices(store)(now, olderThan);
    }
    return { jobs: jobs.length, agents: agents.length, bytes, dryRun };
  };
}

function sizeOf(path: string): Promise<number> {
  return stat(path).then(
    ({ blocks }) => blocks * 512,
    () => 0,
  );
}
