/** Writes a service's jobs down for people. A store that takes nothing holds up nobody: its rows are written with the next one it takes. */

import { toFailure } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import type { Clock } from '../../core/clock.ts';
import type { JobId } from '../../core/slot.ts';
import type { ServiceJob } from '../../ports/service-job.ts';
import type { Store } from '../../store/store.ts';
import { type OutcomeStore, serviceJobEnded } from '../../verdict/outcomes.ts';

export interface RowWriterParts {
  readonly store: Pick<Store, 'serviceJobs' | 'transaction'> & OutcomeStore;
  readonly clock: Pick<Clock, 'wall'>;
  readonly log: Pick<Log, 'info' | 'warn'>;
}

export function createRowWriter(service: string, { store, clock, log }: RowWriterParts) {
  /** Rows of jobs that are not over, as they were saved last. */
  const open = new Map<JobId, ServiceJob>();
  /** Rows that the store has not taken yet. */
  const unwritten = new Map<JobId, ServiceJob>();
  let isRefused = false;

  return {
    open: open as ReadonlyMap<JobId, ServiceJob>,
    unwritten: unwritten as ReadonlyMap<JobId, ServiceJob>,
    get: (id: JobId): ServiceJob | null => open.get(id) ?? unwritten.get(id) ?? store.serviceJobs.get(id),
    /** Never throws. */
    save(row: ServiceJob): void {
      if (JSON.stringify(row) === JSON.stringify(open.get(row.id)) && unwritten.size === 0) return;
      if (row.state === 'done') open.delete(row.id);
      else open.set(row.id, row);
      unwritten.set(row.id, row);
      const wasRefused = isRefused;
      try {
        store.transaction({ durable: false }, () => {
          for (const one of unwritten.values()) {
            store.serviceJobs.save(one, clock.wall());
            serviceJobEnded(store, one, clock.wall());
          }
        });
        unwritten.clear();
        isRefused = false;
        if (wasRefused) log.info('job records can be written again', { service });
      } catch (error) {
        isRefused = true;
        if (!wasRefused) log.warn('failed to write job records', { service, reason: toFailure(error).message });
      }
    },
  };
}
