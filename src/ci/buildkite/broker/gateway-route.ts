/**
 * What a call asks for, read from its method and path alone. Ids arrive with `%2E` for their dots (the agent's own escaping), so
 * a segment is decoded before it is compared; what is forwarded are the bytes as they came. Whatever two readers could take for
 * two different paths is refused, so that no job reaches a call that its alias does not stand for.
 */

export type Route =
  | { readonly kind: 'register' | 'connect' | 'ping' | 'heartbeat' | 'disconnect' }
  /** Never forwarded: these need, or touch, more than one agent's job. */
  | { readonly kind: 'withheld' }
  | {
      readonly kind: 'job';
      readonly call: JobCall;
      readonly job: string;
      readonly segments: readonly string[];
      readonly path: string;
      readonly query: string;
    }
  /** Builds, steps, cache registries: the service decides by the job's token. */
  | { readonly kind: 'shared'; readonly segments: readonly string[]; readonly path: string; readonly query: string }
  | { readonly kind: 'upload'; readonly sealed: string; readonly query: string }
  | { readonly kind: 'absent' }
  | { readonly kind: 'malformed'; readonly why: string };

const lifecycleCalls = ['accept', 'acquire', 'start', 'finish', 'chunks', 'state', 'secrets'] as const;

/** `data`: may be asked about other jobs too. `own`: about its own only. */
export type JobCall = (typeof lifecycleCalls)[number] | 'artifacts' | 'data' | 'own';

const methods: Readonly<Record<string, { readonly call: JobCall; readonly method: string }>> = {
  accept: { call: 'accept', method: 'PUT' },
  acquire: { call: 'acquire', method: 'PUT' },
  start: { call: 'start', method: 'PUT' },
  finish: { call: 'finish', method: 'PUT' },
  chunks: { call: 'chunks', method: 'POST' },
  secrets: { call: 'secrets', method: 'GET' },
};

const agentCalls: Readonly<
  Record<string, { readonly kind: 'register' | 'connect' | 'ping' | 'heartbeat' | 'disconnect'; readonly method: string }>
> = {
  register: { kind: 'register', method: 'POST' },
  connect: { kind: 'connect', method: 'POST' },
  ping: { kind: 'ping', method: 'GET' },
  heartbeat: { kind: 'heartbeat', method: 'POST' },
  disconnect: { kind: 'disconnect', method: 'POST' },
};

const withheld: ReadonlySet<string> = new Set(['metrics', 'token', 'stacks', 'stop', 'pause', 'resume']);
const shared: ReadonlySet<string> = new Set(['builds', 'steps', 'cache_registries']);
const othersToo: ReadonlySet<string> = new Set(['data', 'annotations', 'artifacts']);

const methodsThere: ReadonlySet<string> = new Set(['GET', 'POST', 'PUT', 'PATCH', 'DELETE']);

const absent: Route = { kind: 'absent' };

/** `url` as the request line had it; `longest` in characters. */
export function routeOf(method: string, url: string, longest: number): Route {
  if (!methodsThere.has(method)) return malformed('its method is none of those that go through');
  if (url.length > longest) return malformed('its path is too long');
  if (!/^\/[\x21-\x7e]*$/.test(url) || /[#\\]/.test(url)) return malformed('its path is not one');
  const mark = url.indexOf('?');
  const path = mark < 0 ? url : url.slice(0, mark);
  const query = mark < 0 ? '' : url.slice(mark + 1);
  const segments: string[] = [];
  for (const raw of path.slice(1).split('/')) {
    const segment = decoded(raw);
    if (segment === null) return malformed('its path can be read in two ways');
    segments.push(segment);
  }
  const [root, first, id, name, ...rest] = segments;
  const own = segments.slice(1);
  if (root === 'upload') return first !== undefined && id === undefined ? { kind: 'upload', sealed: first, query } : absent;
  if (root !== 'v3' || first === undefined) return absent;
  const forwarded = url.slice('/v3'.length);
  if (first === 'jobs' && id !== undefined) return jobRoute(method, { job: id, name, rest, segments: own, path: forwarded, query });
  if (shared.has(first)) return id === undefined ? absent : { kind: 'shared', segments: own, path: forwarded, query };
  if (withheld.has(first)) return { kind: 'withheld' };
  const call = Object.hasOwn(agentCalls, first) && id === undefined ? agentCalls[first] : undefined;
  return call?.method === method ? { kind: call.kind } : absent;
}

interface JobPath {
  readonly job: string;
  readonly name: string | undefined;
  readonly rest: readonly string[];
  readonly segments: readonly string[];
  readonly path: string;
  readonly query: string;
}

function jobRoute(method: string, { job, name, rest, segments, path, query }: JobPath): Route {
  const route = (call: JobCall): Route => ({ kind: 'job', call, job, segments, path, query });
  if (/[/%]/.test(job)) return malformed('its job is not one');
  if (name === undefined) return method === 'GET' ? route('state') : route('own');
  // No `finish.json`, which a service may well take for `finish`.
  if (!/^[a-z_]+$/.test(name)) return absent;
  const known = Object.hasOwn(methods, name) ? methods[name] : undefined;
  if (known !== undefined) return known.method === method && rest.length === 0 ? route(known.call) : absent;
  if (name === 'artifacts' && method === 'POST' && rest.length === 0) return route('artifacts');
  return route(othersToo.has(name) ? 'data' : 'own');
}

/** Null for what could be another path: empty, a step up, or that behind one more escape. */
function decoded(raw: string): string | null {
  try {
    const once = decodeURIComponent(raw);
    const twice = /%[0-9a-f]{2}/i.test(once) ? unescaped(once) : once;
    // biome-ignore lint/suspicious/noControlCharactersInRegex: those are what is looked for
    if (once === '' || /[\u0000-\u001f\u007f]/.test(twice)) return null;
    return twice.split(/[/\\]/).some((part) => part === '.' || part === '..') ? null : once;
  } catch {
    return null;
  }
}

/** Never throws, unlike the strict reader: it is asked what a careless one would see. */
function unescaped(text: string): string {
  return text.replace(/%([0-9a-f]{2})/gi, (_, hex: string) => String.fromCharCode(Number.parseInt(hex, 16)));
}

function malformed(why: string): Route {
  return { kind: 'malformed', why };
}
