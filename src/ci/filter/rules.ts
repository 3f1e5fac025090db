/**
 * What a service lets jobs ask through the filter, and how its answers look in a sandbox.
 * A call is judged by its method and path alone. Agents escape the dots of ids, so segments are decoded before they are compared,
 * but forwarded as they came. A path that two readers could understand differently is refused, so that no job reaches a call that
 * its token does not allow.
 */
import { attempt } from '../../base/errors.ts';
import type { Seal, Sealed } from './seal.ts';

export interface FilterRequest {
  readonly method: string;
  /** Decoded. */
  readonly segments: readonly string[];
  /** As it came, without its `?`. */
  readonly query: string;
}

export type RuleVerdict =
  /** Said in the service's own form, `{message}`. */
  | { readonly kind: 'refused'; readonly status: 401 | 403 | 404; readonly why: string }
  /** Answered by the filter itself. */
  | { readonly kind: 'answered'; readonly status: number; readonly json: unknown }
  /** Answered once, with what the manager left for this job (`one-time-files.ts`), and later with `after`. */
  | {
      readonly kind: 'left';
      readonly status: number;
      readonly type: string;
      readonly after: 204 | 404;
      /** The key of what was left, in the body of the call. null, or absent: the sealed token has it, if any. */
      readonly keyIn?: (json: unknown) => string | null;
    }
  /** Answered by the filter itself, from the caches of this host. */
  | { readonly kind: 'caches' }
  /** Streamed both ways. `toldAs`: what the agent is told in the place of a status. */
  | { readonly kind: 'stream'; readonly toldAs?: (status: number) => number }
  /** Read as a whole before it is forwarded. */
  | {
      readonly kind: 'whole';
      /** The body to forward, written anew so that nobody reads another one; null: refused with `why`. `json` null: no JSON. */
      readonly body?: (json: unknown) => string | null;
      readonly why?: string;
      /** A successful answer for the sandbox. `host`: under which the agent called. @throws Error when the answer is invalid */
      readonly answer?: (json: unknown, seal: Seal, host: string) => unknown;
    };

export interface Rules {
  /** What the paths of its API begin with in a sandbox, such as `v3`; left out on the way. */
  readonly root: string;
  /**
   * What the credential in `Authorization` begins with, such as `Token`: the sealed token follows it, and the service gets its own in
   * that place. null: the sealed token is the segment after the root, which is left out on the way too. Then the filter signs nothing:
   * the service judges the job by the headers that its agent sends. `x-runner-token`: the sealed token is that header, and the service
   * gets the sealed `signs` instead.
   */
  readonly scheme: string | null;
  judge(sealed: Sealed, asked: FilterRequest): RuleVerdict;
}

const methods: ReadonlySet<string> = new Set(['GET', 'POST', 'PUT', 'PATCH', 'DELETE']);
/** Longest path with its query, characters. */
const longest = 12_000;

/** `url` as the request line had it. A text says why it is refused. */
export function readPath(method: string, url: string): FilterRequest | string {
  if (!methods.has(method)) return 'its method is not allowed';
  if (url.length > longest) return 'its path is too long';
  if (!/^\/[\x21-\x7e]*$/.test(url) || /[#\\]/.test(url)) return 'its path is invalid';
  const mark = url.indexOf('?');
  const path = mark < 0 ? url : url.slice(0, mark);
  const segments = path.slice(1).split('/').map(decoded);
  if (segments.some((segment) => segment === null)) return 'its path is ambiguous';
  return { method, segments: segments.filter((segment) => segment !== null), query: mark < 0 ? '' : url.slice(mark + 1) };
}

/** null for an ambiguous segment: empty, a step up, or either behind another escape. */
function decoded(raw: string): string | null {
  const once = attempt(() => decodeURIComponent(raw)) ?? '';
  const twice = /%[0-9a-f]{2}/i.test(once) ? unescaped(once) : once;
  // biome-ignore lint/suspicious/noControlCharactersInRegex: those are what is looked for
  if (once === '' || /[\u0000-\u001f\u007f/\\]/.test(twice)) return null;
  return twice === '.' || twice === '..' ? null : once;
}

/** Never throws: shows what a careless reader would see. */
function unescaped(text: string): string {
  return text.replace(/%([0-9a-f]{2})/gi, (_, hex: string) => String.fromCharCode(Number.parseInt(hex, 16)));
}

/**
 * Whether a call is in the list. `own` after `jobs` or `builds` is the id of the job or build; `*` is one segment of plain letters,
 * because a service may decode again and find a slash. After `?` are the allowed names of the query: a service may prefer a query
 * to a body or path, and so read another build.
 */
export function isListed(
  { method, segments, query }: FilterRequest,
  list: readonly (readonly [method: string, path: string])[],
  own: Readonly<Record<string, string | null>>,
): boolean {
  return list.some(([how, path]) => {
    const [way = '', names = ''] = path.split('?');
    const parts = way.split('/');
    if (how !== method || parts.length !== segments.length || !asksOnly(query, names.split('&'))) return false;
    return parts.every((part, at) => {
      if (part === 'own') return segments[at] !== undefined && segments[at] === own[parts[at - 1] ?? ''];
      return part === '*' ? /^[A-Za-z0-9._-]+$/.test(segments[at] ?? '') : part === segments[at];
    });
  });
}

/** Names are compared undecoded: agents escape none, but the service would decode them. */
function asksOnly(query: string, names: readonly string[]): boolean {
  if (query === '') return true;
  return query.split(/[&;]/).every((pair) => names.includes(/^[^=]+/.exec(pair)?.[0] ?? '?'));
}
