/** Writes a service's jobs down for people. A store that takes nothing holds up nobody: its rows are written with the next one it takes. */
import type { Clock } from '../../core/clock.ts';
import type { JobId } from '../../core/slot.ts';
import { toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import type { ServiceJob } from '../../store/service-jobs.ts';
import type { Store } from '../../store/store.ts';

export interface RowWriterParts {
  readonly store: Pick<Store, 'serviceJobs' | 'transaction'>;
  readonly clock: Pick<Clock, 'wall'>;
  readonly log: Pick<Log, 'info' | 'warn'>;
}

export function createRowWriter(service: string, { store, clock, log }: RowWriterParts) {
  /** Rows that the store has not taken yet. */
  const unwritten = new Map<JobId, ServiceJob>();
  let isRefused = false;

  return {
    unwritten: unwritten as ReadonlyMap<JobId, ServiceJob>,
    get: (id: JobId): ServiceJob | null => unwritten.get(id) ?? store.serviceJobs.get(id),
    /** Never throws. `before`: the row as it was last saved, or null. */
    save(row: ServiceJob, before: ServiceJob | null): void {
      if (JSON.stringify(row) === JSON.stringify(before) && unwritten.size === 0) return;
      unwritten.set(row.id, row);
      const wasRefused = isRefused;
      try {
        store.transaction({ durable: false }, () => {
          for (const one of unwritten.values()) store.serviceJobs.save(one, clock.wall());
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
