/** What is done about once a minute, whatever happens: forgetting what nobody will ask for any more, and looking at secrets' dates. */
import type { OwnQueue } from '../ci/own-queue/own-queue.ts';
import type { Config } from '../config/config.ts';
import { secretFindings } from '../config/findings.ts';
import { type Clock, every } from '../core/clock.ts';
import { toFailure } from '../errors.ts';
import type { Log } from '../log.ts';
import type { Finding } from '../runtimes/runtime.ts';
import type { Store } from '../store/store.ts';
import type { Caches } from './caches.ts';
import { createPruneServices } from './prune-services.ts';

export interface HousekeepingParts {
  readonly clock: Clock;
  readonly log: Log;
  readonly store: Store;
  readonly queue: Pick<OwnQueue, 'prune'>;
  readonly config: Pick<Config, 'keepJobs' | 'secretsKey' | 'services'>;
  /** Named caches, looked after once an hour; left out where there are none. */
  readonly caches?: Pick<Caches, 'tidy'>;
}

export interface Housekeeping {
  /** What is not in order with the config's secrets, one sentence each. */
  readonly problems: readonly string[];
  /** The same for `doctor`, looked at anew. */
  findings(): Promise<Finding[]>;
  close(): void;
}

const interval = 60_000;
const cachesEvery = 3_600_000;

export async function keepHouse({ clock, log, store, queue, config, caches }: HousekeepingParts): Promise<Housekeeping> {
  const pruneServices = createPruneServices(store);
  const findings = () => secretFindings(config, clock.wall());
  let problems: readonly string[] = [];
  const look = async (): Promise<void> => {
    const wrong = (await findings()).filter(({ level }) => level !== 'ok');
    problems = wrong.map(({ subject, message, hint }) => `${subject}: ${message}${hint === null ? '' : ` ${hint}`}`);
  };
  await look();
  const failed = (error: unknown): void => log.warn('housekeeping failed', { reason: toFailure(error).message });
  const stopCaches = caches === undefined ? () => {} : every(clock, cachesEvery, () => caches.tidy(), failed);
  const stop = every(
    clock,
    interval,
    async () => {
      await look();
      await queue.prune(clock.wall(), config.keepJobs);
      await pruneServices(clock.wall(), config.keepJobs);
      store.proofs.prune(clock.wall() - config.keepJobs);
      store.checkpoint();
    },
    failed,
  );
  return {
    get problems() {
      return problems;
    },
    findings,
    close: () => {
      stopCaches();
      stop();
    },
  };
}
