/** What can be made to go wrong at Azure DevOps. */
import {
  type CommonFault,
  createFaultRules,
  type FaultRules,
  NAMED_COMMON_FAULTS,
  type NamedFaults,
  type Where,
} from '../kit/faults.ts';
import type { Identity } from './types.ts';

/** How a rejected credential looks. Four shapes are known from reports; which comes when is not documented. */
export type RejectionShape = '203' | '302' | '401-json' | '401-bare';

export type Fault =
  | CommonFault
  /** The credential is refused. */
  | { readonly kind: 'rejected'; readonly shape: RejectionShape }
  /** Signed in, without the right. */
  | { readonly kind: 'denied' }
  /** 429 or 503, not done. `retryAfter` in s; null: no such header. */
  | { readonly kind: 'throttled'; readonly retryAfter: number | null; readonly status?: 429 | 503 }
  /** Done, 200, with the header that announces throttling: s from now. */
  | { readonly kind: 'slowed'; readonly retryAfter: number }
  /** Not done, 500 with a page. */
  | { readonly kind: 'broken' }
  /** Not done, 200 with JSON that is something else. */
  | { readonly kind: 'garbage' }
  /** Not done, 302 to another host, which records who comes. */
  | { readonly kind: 'redirect' }
  /** Not done, an error of the service's kind. */
  | { readonly kind: 'error'; readonly status: number; readonly typeKey: string; readonly message?: string };

export type FaultWhere = Where & { readonly identity?: Identity };

/** What else can go wrong. */
const SWITCHES = {
  /** The service's clock minus the real one, ms: in the Date header, and where tokens are judged. */
  skew: 0,
  /** A second request is given to an agent while its first one runs. */
  givesSecondJob: false,
};

export type Faults = FaultRules<Fault, FaultWhere> & typeof SWITCHES;

export const NAMED_FAULTS: NamedFaults<Fault, FaultWhere> = {
  'rejected-203': { fault: { kind: 'rejected', shape: '203' } },
  'rejected-302': { fault: { kind: 'rejected', shape: '302' } },
  'rejected-401': { fault: { kind: 'rejected', shape: '401-json' } },
  'rejected-bare': { fault: { kind: 'rejected', shape: '401-bare' } },
  denied: { fault: { kind: 'denied' } },
  throttled: { fault: { kind: 'throttled', retryAfter: 5 } },
  slowed: { fault: { kind: 'slowed', retryAfter: 5 } },
  ...NAMED_COMMON_FAULTS,
  broken: { fault: { kind: 'broken' } },
  garbage: { fault: { kind: 'garbage' } },
  redirect: { fault: { kind: 'redirect' } },
};

/** The rules; `listening` opens and closes the door. */
export function createFaults(now: () => number, listening: Pick<Faults, 'down' | 'up'>) {
  return createFaultRules<Fault, typeof SWITCHES, 'identity', { readonly identity: Identity }>({
    now,
    listening,
    switches: SWITCHES,
    callers: ['identity'],
  });
}
