/** Everything that can be made to go wrong: per route, token and count or time, switchable while agents run. */
import type { TokenKind } from './types.ts';

export type Fault =
  /** Not done, that status. `retryAfter` in s. */
  | { readonly kind: 'error'; readonly status: number; readonly message?: string; readonly retryAfter?: number }
  /** Not done, connection cut. */
  | { readonly kind: 'reset' }
  /** Done, connection cut instead of the answer. */
  | { readonly kind: 'lost' }
  /** Accepted, never done, never answered. */
  | { readonly kind: 'hang' }
  /** Done, half of the answer, and then nothing. */
  | { readonly kind: 'half' }
  /** Done, later. */
  | { readonly kind: 'delay'; readonly ms: number }
  /** Not done, but answered as if it were: 200 `{}`. */
  | { readonly kind: 'dropped' }
  /** Done twice, answered once, as when a proxy repeats. */
  | { readonly kind: 'doubled' }
  /** Not done, 200 with a page that is not JSON. */
  | { readonly kind: 'garbage' };

export interface FaultWhere {
  readonly method?: string;
  /** As in the log, e.g. `jobs/:id/accept`; `*` stands for anything; every route when left out. */
  readonly route?: string;
  readonly token?: TokenKind;
  /** Name of the agent whose session or job it is. */
  readonly agent?: string;
  /** How many requests it hits; for good when left out. */
  readonly times?: number;
  /** How many fitting requests it lets pass first. */
  readonly after?: number;
  /** How long it lasts from now on, ms by the stand-in's clock. */
  readonly forMs?: number;
  /** How likely it hits a fitting request, 0 to 1, by `random` of the same rule. */
  readonly chance?: number;
  /** Numbers in [0, 1); default Math.random. */
  readonly random?: () => number;
}

export interface Faults {
  /** Returns what takes it away again. The first rule that fits is applied, in the order in which they were added. */
  add(fault: Fault, where?: FaultWhere): () => void;
  clear(): void;
  /** The service's clock minus the real one, ms: in the Date header and wherever it tells a time. */
  skew: number;
  /** What pings answer instead of a job; null: as usual. */
  pingAction: 'disconnect' | 'pause' | 'idle' | null;
  /** Nobody listens any more; open connections are cut. */
  down(): Promise<void>;
  /** Listens again, on the same port. */
  up(): Promise<void>;
}

export interface Asked {
  readonly method: string;
  readonly route: string;
  readonly token: TokenKind;
  readonly agent: string | null;
}

/** For the console and for tests that go through all of them. */
export const NAMED_FAULTS: Readonly<Record<string, { readonly fault: Fault; readonly where?: FaultWhere }>> = {
  throttled: { fault: { kind: 'error', status: 429, retryAfter: 1 } },
  broken: { fault: { kind: 'error', status: 500 } },
  unavailable: { fault: { kind: 'error', status: 503 } },
  reset: { fault: { kind: 'reset' } },
  lost: { fault: { kind: 'lost' } },
  hang: { fault: { kind: 'hang' } },
  half: { fault: { kind: 'half' } },
  delay: { fault: { kind: 'delay', ms: 2000 } },
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

interface Rule {
  readonly fault: Fault;
  readonly where: FaultWhere;
  readonly fits: (route: string) => boolean;
  readonly until: number;
  left: number;
  skip: number;
}

/** The rules; `listening` opens and closes the door. */
export function createFaults(
  now: () => number,
  listening: { down(): Promise<void>; up(): Promise<void> },
): Faults & { pick(asked: Asked): Fault | null } {
  let rules: Rule[] = [];
  return {
    skew: 0,
    pingAction: null,
    add(fault, where = {}) {
      const rule: Rule = {
        fault,
        where,
        fits: pattern(where.route),
        until: where.forMs === undefined ? Number.POSITIVE_INFINITY : now() + where.forMs,
        left: where.times ?? Number.POSITIVE_INFINITY,
        skip: where.after ?? 0,
      };
      rules.push(rule);
      return () => {
        rules = rules.filter((other) => other !== rule);
      };
    },
    clear() {
      rules = [];
      this.skew = 0;
      this.pingAction = null;
    },
    down: () => listening.down(),
    up: () => listening.up(),
    pick({ method, route, token, agent }) {
      rules = rules.filter(({ until }) => until > now());
      for (const rule of rules) {
        const { where } = rule;
        if (where.method !== undefined && where.method !== method) continue;
        if (where.token !== undefined && where.token !== token) continue;
        if (where.agent !== undefined && where.agent !== agent) continue;
        if (!rule.fits(route)) continue;
        if (where.chance !== undefined && (where.random ?? Math.random)() >= where.chance) continue;
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

function pattern(route: string | undefined): (route: string) => boolean {
  if (route === undefined) return () => true;
  const parts = route.split('*').map((part) => part.replace(/[.+?^${}()|[\]\\]/g, '\\$&'));
  const whole = new RegExp(`^${parts.join('.*')}$`);
  return (name) => whole.test(name);
}
