/** What the dashboard reads, in the shapes of the API. Fields that an older daemon does not send are optional here. */
import type * as api from '../../src/api/schema.ts';

export type { ErrorView, FindingView, ProofView } from '../../src/api/schema.ts';

export interface Verdict {
  readonly kind: 'passed' | 'cancelled' | 'code' | 'infrastructure' | 'unknown';
  /** A sentence without its full stop. */
  readonly why: string;
  readonly evidence: readonly string[];
}

export type Job = api.JobView & {
  readonly verdict?: Verdict | null;
  /** UUIDs of the devices that its agent had. */
  readonly devices?: readonly string[];
  readonly image?: string | null;
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

/** Jobs that ended, by one of their properties. Mean times in ms; null without such jobs. */
export interface HistoryLine {
  readonly value: string;
  readonly jobs: number;
  readonly passed: number;
  readonly cancelled: number;
  readonly code: number;
  readonly infrastructure: number;
  readonly unknown: number;
  readonly waitMs: number | null;
  readonly runMs: number | null;
  readonly longestMs?: number | null;
}
