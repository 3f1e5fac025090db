/** Writes a service's jobs down for people. A full store blocks nobody: its rows are written later, with the next one it takes. */

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

export class RowWriter {
  readonly #service: string;
  readonly #parts: RowWriterParts;
  /** Rows of jobs that are not over, as they were saved last. */
  readonly open = new Map<JobId, ServiceJob>();
  /** Rows that the store has not taken yet. */
  readonly unwritten = new Map<JobId, ServiceJob>();
  #isRefused = false;

  constructor(service: string, parts: RowWriterParts) {
    this.#service = service;
    this.#parts = parts;
  }

  get(id: JobId): ServiceJob | null {
    return this.open.get(id) ?? this.unwritten.get(id) ?? this.#parts.store.serviceJobs.get(id);
  }

  /** Never throws. */
  save(row: ServiceJob): void {
    if (JSON.stringify(row) === JSON.stringify(this.open.get(row.id)) && this.unwritten.size === 0) return;
    if (row.state === 'done') this.open.delete(row.id);
    else this.open.set(row.id, row);
    this.unwritten.set(row.id, row);
    const wasRefused = this.#isRefused;
    try {
      this.#parts.store.transaction({ durable: false }, () => {
        for (const one of this.unwritten.values()) {
          this.#parts.store.serviceJobs.save(one, this.#parts.clock.wall());
          serviceJobEnded(this.#parts.store, one, this.#parts.clock.wall());
        }
      });
      this.unwritten.clear();
      this.#isRefused = false;
      if (wasRefused) this.#parts.log.info('job records can be written again', { service: this.#service });
    } catch (error) {
      this.#isRefused = true;
      if (!wasRefused)
        this.#parts.log.warn('failed to write job records', { service: this.#service, reason: toFailure(error).message });
    }
  }
}
