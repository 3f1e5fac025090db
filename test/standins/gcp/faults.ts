/** What can be made to go wrong at the stand-in. */

/** What goes wrong, until it is put back. */
export interface Faults {
  /** ms by which the cloud's clock is ahead. */
  skew: number;
  /** Zones without capacity, and those that the error names as having some. `type`: only for what begins so; `name`: only for it. */
  stockout: {
    readonly zones: readonly string[];
    readonly type?: string;
    readonly name?: string;
    readonly available?: readonly string[];
  } | null;
  /** The error that operations of inserts end with. */
  operation: { readonly code: string; readonly message: string } | null;
  /** Boot disks stay when their instance goes. */
  diskSurvives: boolean;
  /** ms until lists contain a new instance. */
  late: number;
  /** The operation of a delete ends, but the instance lives. */
  deleteLies: boolean;
  /** What becomes of an instance's end of life. `stops`: it is stopped instead of deleted. */
  end: 'kept' | 'missing' | 'late' | 'stops';
  /** Zones that lists over all zones cannot reach. */
  unreachable: readonly string[];
  /** Permissions that the caller does not have. */
  denied: readonly string[];
  /** A policy of the organisation that forbids external addresses. */
  noAddresses: boolean;
  /** APIs that are not enabled. */
  disabled: readonly ('compute' | 'cloudresourcemanager')[];
  /** ms for which tokens are valid. */
  tokenLife: number;
}

export const good: Faults = {
  skew: 0,
  stockout: null,
  operation: null,
  diskSurvives: false,
  late: 0,
  deleteLies: false,
  end: 'kept',
  unreachable: [],
  denied: [],
  noAddresses: false,
  disabled: [],
  tokenLife: 3_600_000,
};

/** `cut`: not done, no answer; `lost`: done, but no answer; `silent`: not done, and nothing comes. A number: a status, with a reason. */
export type Failure = 'cut' | 'lost' | 'silent' | { readonly status: number; readonly reason?: string; readonly message?: string };

export interface Where {
  readonly method?: string;
  readonly path: RegExp;
  /** How many requests; for good when left out. */
  readonly times?: number;
  /** How many it lets pass first. */
  readonly after?: number;
}
