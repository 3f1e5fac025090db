/** What the dashboard reads, in the shapes of the API. */
import type { z } from 'zod';
import type * as api from '../../src/contract/schema.ts';

export type { ErrorView, FindingView, HistoryView, ProofView } from '../../src/contract/schema.ts';

export type Job = api.JobView;
export type Verdict = NonNullable<Job['verdict']>;
export type Device = api.DeviceView;

/** Of a device's use. */
export type Sample = Pick<api.UseView, 'at' | 'memoryUsedMiB' | 'utilization'>;

/** `since` is wall clock here, ms since the epoch, so that it need not be counted on. */
export type Slot = api.SlotView;

/** As `Slot`; `backoff.retryIn` is wall clock too. */
export type Pool = api.PoolView;

export type Host = Omit<api.StatusView, 'pools'>;

/** Who looks. */
export interface Me {
  readonly role: 'read' | 'submit' | 'operator';
  readonly user: string | null;
}

export type LoginView = z.infer<typeof api.loginView>;
