/**
 * One call to Azure DevOps from the credential to the verdict: waits where the service asks for it, signs in, and asks again
 * only where the service has said that nothing was done.
 */
import type { Clock } from '../../core/clock.ts';
import type { OnejobError } from '../../errors.ts';
import type { Answer } from '../../http/exchange.ts';
import { errorOf, judge, type Verdict } from './answers.ts';
import type { Credential } from './authorization.ts';
import { type Asked, exchange } from './exchange.ts';
import { without } from './secret.ts';
import { createThrottle } from './throttle.ts';

export interface Call {
  readonly method: Asked['method'];
  /** Of the route, for counting: `agents`. */
  readonly route: string;
  /** Below the base, encoded, beginning with a slash. */
  readonly path: string;
  readonly query?: Readonly<Record<string, string>>;
  readonly body?: unknown;
  /** In words, for messages: `Cannot <doing>: …`. */
  readonly doing: string;
  /** Number of the resource's preview; null for one that is released. */
  readonly preview: number | null;
  /** The scope that it needs; null: that of every other call. */
  readonly scope: string | null;
}

export interface CallerParts {
  /** Without a slash at its end. */
  readonly base: string;
  readonly credential: Credential;
  readonly clock: Clock;
  readonly fetch: typeof fetch;
  /** ms for one answer, and for all that has to be waited for before it. */
  readonly timeout: number;
  readonly agent: string;
}

/** What the service is asked for: its newest that is not a preview (2025). An older Server is asked for its own. */
const newest = '7.1';
const readAndManage = 'Agent Pools (Read & manage)';
/** Bytes of an answer. A pool of thousands of agents with their capabilities stays below it. */
const most = 8 * 1024 * 1024;

export interface Called {
  readonly verdict: Exclude<Verdict, { kind: 'rejected' | 'throttled' | 'version' }>;
  readonly answer: Answer;
  /** The verdict as an error, for where it is none of those that were hoped for. */
  error(): OnejobError;
}

export function createCaller({ base, credential, clock, fetch, timeout, agent }: CallerParts) {
  const throttle = createThrottle(clock, base);
  const counts = new Map<string, number>();
  /** The newest version this server knows, once it has refused a newer one. */
  let supported: string | null = null;
  /** Routes that turned out to be previews here. */
  const previews = new Set<string>();

  const accept = ({ route, preview }: Call): string => {
    const version = supported ?? newest;
    const isPreview = preview !== null || previews.has(route);
    // A preview's number belongs to its version.
    const number = preview === null || supported !== null ? '' : `.${preview}`;
    return `application/json;api-version=${version}${isPreview ? `-preview${number}` : ''}`;
  };
  const redact = (text: string) => without(credential.redact(), text);

  const send = async (call: Call, header: string, signal: AbortSignal): Promise<Answer> => {
    const key = `${call.method} ${call.route}`;
    counts.set(key, (counts.get(key) ?? 0) + 1);
    const headers = {
      Authorization: header,
      Accept: accept(call),
      'User-Agent': agent,
      'X-TFS-FedAuthRedirect': 'Suppress',
      ...(call.body !== undefined && { 'Content-Type': 'application/json' }),
    };
    const body = call.body === undefined ? {} : { body: JSON.stringify(call.body) };
    const request = { method: call.method, url: base + call.path + queryOf(call.query), headers, doing: call.doing, ...body };
    return exchange(request, { clock, fetch, timeout, most }, signal);
  };

  /** What the same credential gets where every credential of onejob gets something. */
  const probed = async (header: string, signal: AbortSignal): Promise<Verdict> => {
    const answer = await send({ ...probe, doing: 'look whether the token is accepted' }, header, signal);
    throttle.heard(answer.status, answer.headers);
    return judge(answer, redact);
  };

  /** @throws OnejobError E_CI_CREDENTIAL, E_CI_DENIED, E_CI_THROTTLED, E_CI_UNREACHABLE, E_CI_ANSWER, E_SECRET */
  const call = async (what: Call, signal: AbortSignal): Promise<Called> => {
    const about = {
      doing: what.doing,
      base,
      scope: what.scope ?? readAndManage,
      isInPool: what.path.includes('/pools/'),
      isNew: what.method === 'POST',
    };
    const deadline = clock.now() + timeout;
    let tries = 0;
    let isRenewed = false;
    for (;;) {
      await throttle.ready(what.doing, deadline, signal);
      const header = await credential.header(signal);
      const accepted = accept(what);
      const answer = await send(what, header, signal);
      const verdict = judge(answer, redact);
      throttle.heard(answer.status, answer.headers, verdict.kind === 'throttled' ? verdict.why : '');
      switch (verdict.kind) {
        case 'throttled':
          // Of a call that changes something it is not known what a service that is not well has done.
          if (answer.status === 429 || what.method !== 'POST') continue;
          throw errorOf({ kind: 'down', why: `answered 503: ${verdict.why}` }, about);
        case 'version': {
          tries += 1;
          if (verdict.supports === null) previews.add(what.route);
          else supported = verdict.supports;
          // Another call may have learned it meanwhile.
          if (tries > 2 || accept(what) === accepted) throw errorOf(verdict, about);
          continue;
        }
        case 'rejected': {
          // A token without the right scope looks the same as a wrong one; what everything else needs tells them apart.
          const isOther = what.method !== 'GET' || what.scope !== null;
          const other = isOther ? await probed(header, signal) : verdict;
          if (other.kind === 'value') throw errorOf({ kind: 'denied', why: verdict.why }, about);
          if (other.kind === 'throttled') continue;
          if (other.kind !== 'rejected') throw errorOf(other, about);
          const error = credential.rejected(verdict.why, header);
          if (!error.retry || isRenewed) throw error;
          isRenewed = true;
          continue;
        }
        default:
          if (verdict.kind !== 'down' && verdict.kind !== 'strange') credential.accepted(header);
          return { verdict, answer, error: () => errorOf(verdict, about) };
      }
    }
  };

  return { call, counts: counts as ReadonlyMap<string, number> };
}

/** A space as `%20`, and `$` as itself: what some servers do not read in a form's writing. */
function queryOf(query: Readonly<Record<string, string>> = {}): string {
  const written = new URLSearchParams(query).toString().replaceAll('+', '%20').replaceAll('%24', '$');
  return written === '' ? '' : `?${written}`;
}

const probe = {
  method: 'GET',
  route: 'pools',
  path: '/_apis/distributedtask/pools',
  query: { poolName: 'onejob', poolType: 'automation' },
  preview: null,
  scope: null,
} as const;
