/**
 * What an answer means. Only 2xx with JSON is a success: Azure DevOps answers a bad credential with 203, 302, 401 or a page. Only a
 * real 404 means that something is absent, because a proxy may answer with any page.
 */
import { type ErrorCode, OnejobError } from '../../base/errors.ts';
import { jsonIn, mediaType, saysJson } from '../../http/api.ts';
import { type Answer, brief, type Outgoing, shown } from '../../http/exchange.ts';
import { azureRefusal } from './wire.ts';

export type AnswerVerdict =
  | { readonly kind: 'value'; readonly body: unknown }
  /** Done; there is no body. */
  | { readonly kind: 'nothing' }
  | { readonly kind: 'absent' }
  | { readonly kind: 'rejected' | 'throttled' | 'denied' | 'down'; readonly why: string }
  /** The version that was asked for is a preview here (`supports` null), or newer than this server. */
  | { readonly kind: 'version'; readonly supports: string | null; readonly why: string }
  /** The service refuses this request. */
  | { readonly kind: 'refused'; readonly status: number; readonly typeKey: string; readonly why: string }
  | { readonly kind: 'strange'; readonly why: string; readonly hint: string };

const look = 'Check "url", and what answers there: it may be a proxy or a sign-in page.';

/** typeKeys whose meaning their status may not show (agent `MessageListener.cs`, `Program.cs`). */
const denied = new Set(['AccessDeniedException', 'AccessCheckException', 'UnauthorizedAccessException']);
const absent = new Set(['TaskAgentNotFoundException']);

/** `redact`: applied to every text of the service. */
export function judgeAnswer(answer: Answer, redact: (text: string) => string): AnswerVerdict {
  const { status, headers, text } = answer;
  const said = (words: string) => brief(redact(words));
  if (status >= 300 && status < 400) return redirected(status, headers, said);
  if (status === 407) return { kind: 'down', why: 'is behind a proxy that requires a password (407)' };
  const body = jsonIn(answer);
  const type = mediaType(answer, 'nothing');
  if (status >= 200 && status < 300) {
    if (status === 204 || text === '') return { kind: 'nothing' };
    if (body !== undefined) return { kind: 'value', body };
    if (saysJson(answer)) return { kind: 'strange', why: `${status} with invalid JSON`, hint: look };
    // 203 is Azure DevOps' own way to say "sign in"; some 200s are the same page.
    if (status === 203 || isSignIn(text)) return { kind: 'rejected', why: `${status} with a sign-in page` };
    return { kind: 'strange', why: `${status} with ${type} instead of JSON`, hint: look };
  }
  const { message, typeKey } = azureRefusal.parse(body);
  const unread = body === undefined && text !== '' ? ` with ${type}` : '';
  const why = `${status}${message === '' ? unread : `: ${said(message)}`}`;
  if (status === 401) return { kind: 'rejected', why };
  if (status === 429 || (status === 503 && headers.has('Retry-After'))) return { kind: 'throttled', why: said(message) };
  if (absent.has(typeKey)) return { kind: 'absent' };
  if (status === 403 || denied.has(typeKey))
    return /token used has expired/i.test(message) ? { kind: 'rejected', why } : { kind: 'denied', why };
  if (status >= 500) return { kind: 'down', why: `answered ${why}` };
  if (typeKey === 'VssInvalidPreviewVersionException') return { kind: 'version', supports: null, why };
  if (typeKey === 'VssVersionOutOfRangeException')
    return { kind: 'version', supports: /supports is (\d+\.\d+)/.exec(message)?.[1] ?? null, why };
  if (status === 404) {
    if (body === undefined) {
      const hint = 'Compare "url" with the address in the browser: it must end with the organisation or the collection.';
      return {
        kind: 'strange',
        why: `404 with ${type}; the organisation or collection does not seem to exist`,
        hint,
      };
    }
    // An unknown route says nothing about the thing that was asked for.
    if (/^The controller for path|is not registered on/i.test(message)) return { kind: 'strange', why, hint: look };
    if (typeKey !== 'TaskAgentPoolNotFoundException') return { kind: 'absent' };
  }
  if (body === undefined) return { kind: 'strange', why: `${status} with ${type}`, hint: look };
  return { kind: 'refused', status, typeKey, why };
}

function redirected(status: number, headers: Headers, said: (text: string) => string): AnswerVerdict {
  const location = headers.get('Location') ?? '';
  const to = URL.parse(location, 'http://here.invalid');
  const isTold = to !== null && to.hostname !== 'here.invalid';
  if (to !== null && (/\/_signin\b/i.test(to.pathname) || /(^|\.)(login\.\w+\.com|vssps\.[\w.]+)$/i.test(to.hostname)))
    return { kind: 'rejected', why: `${status}, a redirect to a sign-in page` };
  const hint = isTold ? `If the address that it redirects to is the right one, set "url" to it.` : look;
  return { kind: 'strange', why: `${status}, a redirect to ${isTold ? said(shown(to.href)) : said(location)}`, hint };
}

function isSignIn(page: string): boolean {
  return /_signin|login\.microsoftonline\.com|Sign In<\/title>|vssps\./i.test(page.slice(0, 65_536));
}

/** A call of the REST API. */
export interface AzureCall {
  readonly method: Outgoing['method'];
  /** Its name, by which the caller remembers previews: `agents`. */
  readonly route: string;
  /** Below the base, encoded, beginning with a slash. */
  readonly path: string;
  readonly query?: Readonly<Record<string, string>>;
  readonly body?: unknown;
  /** In words, for messages: `Cannot <doing>: …`. */
  readonly doing: string;
  /** Number of its preview; absent: released. */
  readonly preview?: number;
  /** The scope of a token that may do this; absent: the usual one. */
  readonly scope?: string;
}

/** The verdict on a call as an error. The caller handles rejected and throttled itself. `base`: where it went. */
export function errorOf(
  verdict: AnswerVerdict,
  { doing, method, path, scope }: Omit<AzureCall, 'route'>,
  base: string,
): OnejobError {
  const error = (code: ErrorCode, why: string, hint: string, retry = true): OnejobError => {
    const message = `Cannot ${doing}: ${base} ${why}`;
    return new OnejobError(code, /[.!?]$/.test(message) ? message : `${message}.`, { hint, retry });
  };
  const strange = (why: string, hint: string) => error('E_CI_ANSWER', why, hint);
  const noPool = (why: string) => {
    const hint =
      'Fix the name ("queue" in the config, the third argument of "onejob azure"), or give the credential the role Administrator on the pool.';
    return error('E_CI_POOL', `has no such pool, or does not show it to this credential (${why})`, hint, false);
  };
  switch (verdict.kind) {
    case 'denied':
      return error('E_CI_DENIED', `does not allow it (${verdict.why})`, rights(scope), false);
    case 'down': {
      const hint = 'onejob tries again. See https://status.dev.azure.com, or the log of your own server.';
      return error('E_CI_UNREACHABLE', verdict.why, hint);
    }
    case 'refused':
      if (verdict.typeKey === 'TaskAgentPoolNotFoundException') return noPool(verdict.why);
      if (method === 'POST' && (verdict.typeKey === 'TaskAgentExistsException' || verdict.status === 409)) {
        const hint = 'Remove the agent there, or give the pool another "name".';
        return error('E_CI_NAME_TAKEN', `already has an agent with that name (${verdict.why})`, hint);
      }
      return strange(`answered ${verdict.why}`, 'If it happens again, report it with this message.');
    case 'version':
      return strange(`does not support this API version (${verdict.why})`, 'onejob needs Azure DevOps Server 2020 or newer.');
    case 'absent':
      // Within a pool a 404 means that the pool does not exist.
      return path.includes('/pools/') ? noPool('404') : strange('answered that it does not exist', look);
    case 'value':
    case 'nothing':
      return strange('sent an unexpected response', look);
    case 'strange':
    case 'rejected':
    case 'throttled':
      return strange(`answered ${verdict.why}`, verdict.kind === 'strange' ? verdict.hint : look);
  }
}

function rights(scope = 'Agent Pools (Read & manage)'): string {
  const token = `Give the token the scope "${scope}"`;
  if (!scope.startsWith('Agent Pools')) return `${token}, too.`;
  return `${token}, and its owner the role Administrator on the pool: Organization settings, Agent pools, the pool, Security.`;
}
