/** Everything that can be made to go wrong, per route, once or for good. */
import type { Identity } from './types.ts';

/** How a rejected credential looks. Four shapes are known from reports; which comes when is not documented. */
export type RejectionShape = '203' | '302' | '401-json' | '401-bare';

export type Fault =
  /** The credential is refused. */
  | { readonly kind: 'rejected'; readonly shape: RejectionShape }
  /** Signed in, without the right. */
  | { readonly kind: 'denied' }
  /** 429 or 503, not done. `retryAfter` in s; null: no such header. */
  | { readonly kind: 'throttled'; readonly retryAfter: number | null; readonly status?: 429 | 503 }
  /** Done, 200, with the headers that announce throttling. `retryAfter` and `reset` in s from now. */
  | {
      readonly kind: 'slowed';
      readonly retryAfter?: number;
      readonly remaining?: number;
      readonly reset?: number;
      readonly delay?: number;
    }
  /** Done, later. */
  | { readonly kind: 'delay'; readonly ms: number }
  /** Accepted, never done, never answered. */
  | { readonly kind: 'hang' }
  /** Half of the answer, and then nothing. */
  | { readonly kind: 'half' }
  /** Not done, connection cut. */
  | { readonly kind: 'reset' }
  /** Done, connection cut instead of the answer. */
  | { readonly kind: 'lost' }
  /** Not done, 500 with a page. */
  | { readonly kind: 'broken' }
  /** Not done, 200 with JSON that is something else. */
  | { readonly kind: 'garbage' }
  /** Not done, 302 to another host, which records who comes. */
  | { readonly kind: 'redirect' }
  /** Not done, an error of the service's kind. */
  | { readonly kind: 'error'; readonly status: number; readonly typeKey: string; readonly message?: string };

export interface FaultWhere {
  readonly method?: string;
  /** Short name of a route as in the log; all of them when left out. */
  readonly route?: string;
  readonly identity?: Identity;
  /** How many requests it hits; for good when left out. */
  readonly times?: number;
  /** How many fitting requests it lets pass first. */
  readonly after?: number;
}

export interface Faults {
  /** Returns what takes it away again. The first rule that fits is applied, in the order in which they were added. */
  add(fault: Fault, where?: FaultWhere): () => void;
  clear(): void;
  /** The service's clock minus the real one, ms: in the Date header, and where tokens are judged. */
  skew: number;
  /** Registrations that never had a session do not count when a job is queued. */
  placeholderNotCounted: boolean;
  /** A second request is given to an agent: while its first one runs, or when it has said that it is leaving. */
  secondJob: 'no' | 'while-busy' | 'at-end';
  /** Nobody listens any more; open connections are cut. */
  down(): Promise<void>;
  /** Listens again, on the same port. */
  up(): Promise<void>;
}

/** For the console and for tests that go through all of them. */
export const NAMED_FAULTS: Readonly<Record<string, Fault>> = {
  'rejected-203': { kind: 'rejected', shape: '203' },
  'rejected-302': { kind: 'rejected', shape: '302' },
  'rejected-401': { kind: 'rejected', shape: '401-json' },
  'rejected-bare': { kind: 'rejected', shape: '401-bare' },
  denied: { kind: 'denied' },
  throttled: { kind: 'throttled', retryAfter: 5 },
  slowed: { kind: 'slowed', retryAfter: 5, remaining: 0, reset: 5 },
  delay: { kind: 'delay', ms: 2000 },
  hang: { kind: 'hang' },
  half: { kind: 'half' },
  reset: { kind: 'reset' },
  lost: { kind: 'lost' },
  broken: { kind: 'broken' },
  garbage: { kind: 'garbage' },
  redirect: { kind: 'redirect' },
  'name-taken': {
    kind: 'error',
    status: 409,
    typeKey: 'TaskAgentExistsException',
    message: 'An agent of that name exists already.',
  },
  'delete-refused': {
    kind: 'error',
    status: 400,
    typeKey: 'TaskAgentJobStillRunningException',
    message: 'The agent cannot be deleted because it is running a job.',
  },
};

/** Where a named fault belongs when its name is about one route. */
export const FAULT_PLACES: Readonly<Record<string, FaultWhere>> = {
  'name-taken': { method: 'POST', route: 'agents' },
  'delete-refused': { method: 'DELETE', route: 'agents/{agentId}' },
};

interface Rule {
  readonly fault: Fault;
  readonly where: FaultWhere;
  left: number;
  skip: number;
}

/** The rules; `listening` opens and closes the door. */
export function createFaults(listening: { down(): Promise<void>; up(): Promise<void> }): Faults & {
  pick(request: { readonly method: string; readonly route: string; readonly identity: Identity }): Fault | null;
} {
  let rules: Rule[] = [];
  return {
    skew: 0,
    placeholderNotCounted: false,
    secondJob: 'no',
    add(fault, where = {}) {
      const rule: Rule = { fault, where, left: where.times ?? Number.POSITIVE_INFINITY, skip: where.after ?? 0 };
      rules.push(rule);
      return () => {
        rules = rules.filter((other) => other !== rule);
      };
    },
    clear() {
      rules = [];
      this.skew = 0;
      this.placeholderNotCounted = false;
      this.secondJob = 'no';
    },
    down: () => listening.down(),
    up: () => listening.up(),
    pick({ method, route, identity }) {
      for (const rule of rules) {
        const { where } = rule;
        if (where.method !== undefined && where.method !== method) continue;
        if (where.route !== undefined && where.route !== route) continue;
        if (where.identity !== undefined && where.identity !== identity) continue;
        if (rule.skip > 0) {
          rule.skip--;
          continue;
        }
        rule.left--;
        if (rule.left <= 0) rules = rules.filter((other) => other !== rule);
        return rule.fault;
      }
      return null;
    },
  };
}
