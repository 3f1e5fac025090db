/** Housekeeping: deletes what nobody will ask for any more, and checks the dates of secrets. */
import { join } from 'node:path';
import { toFailure } from '../base/errors.ts';
import type { Finding } from '../base/finding.ts';
import type { Log } from '../base/log.ts';
import type { OwnQueue } from '../ci/own-queue/own-queue.ts';
import { overBefore } from '../ci/own-queue/prune.ts';
import type { Config } from '../config/config.ts';
import { type SecretState, secretStates, type WithSecrets } from '../config/findings.ts';
import type { PrunedView, PruneRequest } from '../contract/schema.ts';
import { type Clock, every } from '../core/clock.ts';
import { agentLogsPath } from '../logs/agent-logs.ts';
import type { LogFolder } from '../logs/log-file.ts';
import type { Store } from '../store/store.ts';
import type { Caches } from './caches/caches.ts';
import { sizeOf } from './caches/state-room.ts';

export interface HousekeepingParts {
  readonly clock: Clock;
  readonly log: Log;
  readonly store: Store;
  readonly queue: Pick<OwnQueue, 'prune'>;
  readonly config: Pick<Config, 'keepJobs'> & WithSecrets;
  /** Named caches, checked once an hour; omitted if there are none. */
  readonly caches?: Pick<Caches, 'tidy'>;
  /** Called after each check of secrets. */
  readonly checked?: () => void;
}

export interface SecretTrouble {
  readonly state: SecretState;
  readonly finding: Finding;
}

/** ms between checks of secrets, between deletions, and between checks of caches. */
const [interval, pruneEvery, cachesEvery] = [60_000, 600_000, 3_600_000];

/** Problems with the config's secrets, and what is deleted when its time is over. */
export interface House {
  /** Problems with secrets, one sentence each. */
  readonly problems: readonly string[];
  /** The same with what kind of problem it is. */
  readonly troubles: readonly SecretTrouble[];
  /** Those of a service's secrets. */
  problemsOf(service: string): string[];
  /** For `doctor`, checked again. */
  findings(): Promise<Finding[]>;
  close(): void;
}

export async function keepHouse(parts: HousekeepingParts): Promise<House> {
  const { clock, log, store, queue, config, caches, checked = () => {} } = parts;
  const states = () => secretStates(config, clock.wall());
  let troubles: readonly SecretTrouble[] = [];
  const look = async (): Promise<void> => {
    troubles = (await states()).filter(({ state }) => state !== 'present');
  };
  await look();
  const failed = (error: unknown): void => log.warn('housekeeping failed', { reason: toFailure(error).message });
  const stopCaches = caches === undefined ? () => {} : every(clock, cachesEvery, () => caches.tidy(), failed);
  let pruneAt = clock.now();
  const prune = async (): Promise<void> => {
    if (clock.now() < pruneAt) return;
    pruneAt = clock.now() + pruneEvery;
    await queue.prune(clock.wall(), config.keepJobs);
    store.proofs.prune(clock.wall() - config.keepJobs);
  };
  const stop = every(
    clock,
    interval,
    async () => {
      await look();
      checked();
      await prune();
      store.checkpoint();
    },
    failed,
  );
  return {
    get problems() {
      return inWords(troubles);
    },
    problemsOf: (service) => inWords(troubles.filter(({ finding }) => finding.subject.startsWith(`services.${service}.`))),
    get troubles() {
      return troubles;
    },
    findings: async () => (await states()).map(({ finding }) => finding),
    close() {
      stopCaches();
      stop();
    },
  };
}

const noLimit = 2 ** 31 - 1;

interface PruneJobsParts extends Pick<HousekeepingParts, 'clock' | 'queue'> {
  readonly store: Pick<Store, 'dir' | 'jobs' | 'history' | 'slots'>;
  readonly logs: Pick<LogFolder, 'files'>;
}

/**
 * `onejob jobs prune`: deletes jobs that ended longer ago than given, with everything that is kept of them, before `keep_jobs`
 * does.
 */
export function createPruneJobs({ store, queue, clock, logs }: PruneJobsParts) {
  return async ({ olderThan, dryRun }: PruneRequest): Promise<PrunedView> => {
    const now = clock.wall();
    const jobs = store.jobs.endedBefore(now - olderThan, noLimit);
    const agents = overBefore(store, now - olderThan, noLimit);
    let bytes = 0;
    for (const job of jobs) bytes += await sizeOf(join(store.dir, 'artifacts', `${job}.tar`));
    for (const agent of agents)
      for (const file of [...logs.files(agent), agentLogsPath(store.dir, agent)]) bytes += await sizeOf(file);
    if (!dryRun) await queue.prune(now, olderThan);
    return { jobs: jobs.length, agents: agents.length, bytes, dryRun };
  };
}

function inWords(troubles: readonly SecretTrouble[]): string[] {
  return troubles.map(({ finding: { subject, message, hint } }) => `${subject}: ${message}${hint === null ? '' : ` ${hint}`}`);
}
