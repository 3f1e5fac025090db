/** What services share that know a job before there is an agent. */

import { OnejobError } from '../../base/errors.ts';
import type { Change, JobId } from '../../core/slot.ts';
import type { JobSource } from '../../ports/ci-service.ts';

/** Collects the changes of a transaction, and applies them once it is committed. */
export function whenCommitted(apply: (change: Change) => void): Pick<JobSource, 'record' | 'committed' | 'syncing' | 'rolledBack'> {
  let changes: Change[] = [];
  return {
    record: (change) => void changes.push(change),
    committed() {
      const now = changes;
      changes = [];
      for (const change of now) apply(change);
    },
    syncing: () => () => {},
    rolledBack() {
      changes = [];
    },
  };
}

export function jobGone(job: JobId | null): OnejobError {
  return new OnejobError('E_JOB_GONE', `Cannot start job ${job}: it was cancelled or abandoned before it began.`);
}

export function jobUndecided(job: JobId): OnejobError {
  return new OnejobError('E_JOB_GONE', `Cannot start job ${job} yet: onejob has not decided what it may do.`, { retry: true });
}
