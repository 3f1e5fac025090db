/** What can be made to go wrong at Buildkite. */
import {
  type CommonFault,
  createFaultRules,
  type FaultRules,
  NAMED_COMMON_FAULTS,
  type NamedFaults,
  type Where,
} from '../kit/faults.ts';
import type { TokenKind } from './types.ts';

export type Fault =
  | CommonFault
  /** Not done, that status. `retryAfter` in s. */
  | { readonly kind: 'error'; readonly status: number; readonly message?: string; readonly retryAfter?: number }
  /** Not done, but answered as if it were: 200 `{}`. */
  | { readonly kind: 'dropped' }
  /** Done twice, answered once, as when a proxy repeats. */
  | { readonly kind: 'doubled' }
  /** Not done, 200 with a page that is not JSON. */
  | { readonly kind: 'garbage' };

/** `agent`: name of the one whose session or job it is. */
export type FaultWhere = Where & { readonly token?: TokenKind; readonly agent?: string | null };

/** What else can go wrong. */
const SWITCHES = {
  /** The service's clock minus the real one, ms: in the Date header and wherever it tells a time. */
  skew: 0,
  /** What pings answer instead of a job; null: as usual. */
  pingAction: null as 'disconnect' | 'pause' | 'idle' | null,
};

export type Faults = FaultRules<Fault, FaultWhere> & typeof SWITCHES;

export const NAMED_FAULTS: NamedFaults<Fault, FaultWhere> = {
  throttled: { fault: { kind: 'error', status: 429, retryAfter: 1 } },
  broken: { fault: { kind: 'error', status: 500 } },
  unavailable: { fault: { kind: 'error', status: 503 } },
  ...NAMED_COMMON_FAULTS,
  garbage: { fault: { kind: 'garbage' } },
  unauthorized: { fault: { kind: 'error', status: 401, message: 'Invalid access token' } },
  'state-401': {
    fault: { kind: 'error', status: 401, message: 'Invalid access token' },
    where: { method: 'GET', route: 'jobs/:id' },
  },
  'acquire-422': {
    fault: { kind: 'error', status: 422, message: 'Jobs with this state cannot be acquired' },
    where: { route: 'jobs/:id/acquire' },
  },
  'acquire-423': {
    fault: { kind: 'error', status: 423, message: 'Job is waiting on a dependency', retryAfter: 1 },
    where: { route: 'jobs/:id/acquire' },
  },
  'accept-422': {
    fault: { kind: 'error', status: 422, message: 'The job was already accepted' },
    where: { route: 'jobs/:id/accept' },
  },
  'start-422': { fault: { kind: 'error', status: 422, message: 'The job cannot be started' }, where: { route: 'jobs/:id/start' } },
  'chunk-dropped': { fault: { kind: 'dropped' }, where: { route: 'jobs/:id/chunks' } },
  'chunk-doubled': { fault: { kind: 'doubled' }, where: { route: 'jobs/:id/chunks' } },
  'heartbeat-404': { fault: { kind: 'error', status: 404, message: 'Not found' }, where: { route: 'heartbeat' } },
};

/** The rules; `listening` opens and closes the door. */
export function createFaults(now: () => number, listening: Pick<Faults, 'down' | 'up'>) {
  return createFaultRules<Fault, typeof SWITCHES, 'token' | 'agent', { readonly token: TokenKind; readonly agent: string | null }>({
    now,
    listening,
    switches: SWITCHES,
    callers: ['token', 'agent'],
  });
}
