/** What the dashboard reads, in the shapes of the API. */
import type * as api from '../../src/api/schema.ts';

export type { ErrorView, FindingView, HistoryView, ProofView } from '../../src/api/schema.ts';

export type Verdict = NonNullable<api.JobView['verdict']>;

export type Job = api.JobView & {
  /** When it may start, ms from now; `to` null: nobody can say. */
  readonly startsIn?: { readonly from: number; readonly to: number | null } | null;
};

/** Wall clock `at`, ms since the epoch. */
export interface Sample {
  readonly at: number;
  readonly memoryUsedMiB: number | null;
  /** 0 to 100. */
  readonly utilization: number | null;
}

export type Device = api.DeviceView & {
  readonly use?: (Sample & { readonly temperature: number | null; readonly powerW: number | null }) | null;
};

/** `since` is wall clock here, ms since the epoch, so that it need not be counted on. */
export type Slot = api.SlotView;

/** As `Slot`; `backoff.retryIn` is wall clock too. */
export type Pool = api.PoolView;

export type Host = Omit<api.StatusView, 'pools'>;

export interface Me {
  readonly role: 'read' | 'operator';
  readonly user: string | null;
}
