/** Everything that can be made to go wrong at a stand-in: per route and caller, by count, time or chance, while clients run. */

/** What every service can do wrong. */
export type CommonFault =
  /** Not done, connection cut. */
  | { readonly kind: 'reset' }
  /** Done, connection cut instead of the answer. */
  | { readonly kind: 'lost' }
  /** Accepted, never done, never answered. */
  | { readonly kind: 'hang' }
  /** Done, half of the answer, and then nothing. */
  | { readonly kind: 'half' }
  /** Done, later. */
  | { readonly kind: 'delay'; readonly ms: number };

const common = new Set(['reset', 'lost', 'hang', 'half', 'delay'] satisfies CommonFault['kind'][] as string[]);

export function isCommon(fault: { readonly kind: string }): fault is CommonFault {
  return common.has(fault.kind);
}

export const NAMED_COMMON_FAULTS = {
  reset: { fault: { kind: 'reset' } },
  lost: { fault: { kind: 'lost' } },
  hang: { fault: { kind: 'hang' } },
  half: { fault: { kind: 'half' } },
  delay: { fault: { kind: 'delay', ms: 2000 } },
} satisfies Record<string, { readonly fault: CommonFault }>;

/** Which requests a fault hits: all that fit what is set. */
export interface Where {
  readonly method?: string;
  /** Name of a route as in the log; `*` stands for anything; every route when left out. */
  readonly route?: string;
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

/** Faults by name, for the console and for tests that go through all of them; `where`: the route that the name is about. */
export type NamedFaults<Fault, At> = Readonly<Record<string, { readonly fault: Fault; readonly where?: At }>>;

export interface FaultRules<Fault, At> {
  /** Returns what takes it away again. The first rule that fits is applied, in the order in which they were added. */
  add(fault: Fault, where?: At): () => void;
  /** Takes away every rule, and puts the switches back. */
  clear(): void;
  /** Nobody listens any more; open connections are cut. */
  down(): Promise<void>;
  /** Listens again, on the same port. */
  up(): Promise<void>;
}

export interface FaultsOptions<Switches, Key> {
  readonly now: () => number;
  /** Opens and closes the door. */
  readonly listening: { down(): Promise<void>; up(): Promise<void> };
  /** What else can be set to go wrong, as it is while all is well. */
  readonly switches: Switches;
  /** What of a request's caller a rule can name. */
  readonly callers: readonly Key[];
}

interface Rule<Fault, At> {
  readonly fault: Fault;
  readonly where: At;
  readonly fits: (route: string) => boolean;
  readonly until: number;
  left: number;
  skip: number;
}

export function createFaultRules<Fault, Switches extends object, Key extends string, Entry extends Record<Key, unknown>>({
  now,
  listening,
  switches,
  callers,
}: FaultsOptions<Switches, Key>): FaultRules<Fault, Where & Partial<Pick<Entry, Key>>> &
  Switches & { pick(entry: Entry & { readonly method: string; readonly route: string }): Fault | null } {
  type At = Where & Partial<Pick<Entry, Key>>;
  let rules: Rule<Fault, At>[] = [];
  const all = {
    ...switches,
    add(fault: Fault, where: At = {}) {
      const rule: Rule<Fault, At> = {
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
      Object.assign(all, switches);
    },
    down: () => listening.down(),
    up: () => listening.up(),
    pick(entry: Entry & { readonly method: string; readonly route: string }): Fault | null {
      rules = rules.filter(({ until }) => until > now());
      for (const rule of rules) {
        const { where } = rule;
        if (where.method !== undefined && where.method !== entry.method) continue;
        if (callers.some((key) => where[key] !== undefined && where[key] !== entry[key])) continue;
        if (!rule.fits(entry.route)) continue;
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
  return all;
}

function pattern(route: string | undefined): (route: string) => boolean {
  if (route === undefined) return () => true;
  const parts = route.split('*').map((part) => part.replace(/[.+?^${}()|[\]\\]/g, '\\$&'));
  const whole = new RegExp(`^${parts.join('.*')}$`);
  return (name) => whole.test(name);
}
