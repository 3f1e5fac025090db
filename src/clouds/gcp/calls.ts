/** Calls of Compute Engine's REST API (v1), one request each. A token that is refused is renewed once. */
import type { z } from 'zod';
import { OnejobError } from '../../base/errors.ts';
import { sleep } from '../../core/clock.ts';
import { brief } from '../../http/exchange.ts';
import { CloudError } from '../../ports/cloud.ts';
import { jsonOf } from '../../system/json.ts';
import type { Caller, CloudParts, CloudRequest } from '../kit/caller.ts';
import type { GcpAccess } from './access.ts';
import type { GcpConfig } from './config.ts';
import { failedOperation, refusedCall } from './errors.ts';
import { type Operation, operation as operationAnswer, type Page, page } from './wire.ts';

export interface GcpCall extends Omit<CloudRequest, 'place' | 'changes'> {
  readonly method?: 'GET' | 'POST' | 'DELETE';
  /** Below `projects/{project}/`, if it does not begin with `projects/`. */
  readonly path: string;
  readonly query?: Readonly<Record<string, string>>;
  readonly body?: unknown;
  /** It asks, although its method is POST. */
  readonly onlyAsks?: boolean;
  /** Other than that of Compute Engine. */
  readonly base?: string;
}

/**
 * Version of the API that every call asks for, as Google's own clients do. Without it, a list over all zones fails as a whole when one
 * zone cannot be reached; from this version on it lists the others, and no longer knows `returnPartialSuccess`.
 */
const apiVersion = '2026-09-01';
/** ms between two looks at an operation. */
const lookEvery = 2_000;
/** ms after which an operation that has not ended is given up. Starting a machine takes 10 to 60 s. */
const operationTime = 180_000;
/** Pages of one list. */
const mostPages = 1_000;

export class GcpCalls {
  readonly #parts: Pick<GcpConfig, 'project' | 'endpoint'>;
  readonly #access: GcpAccess;
  readonly #caller: Caller;
  readonly #parts3: Pick<CloudParts, 'clock'>;
  readonly #place: string;

  constructor(
    parts: Pick<GcpConfig, 'project' | 'endpoint'>,
    access: GcpAccess,
    caller: Caller,
    parts3: Pick<CloudParts, 'clock'>,
  ) {
    this.#parts = parts;
    this.#access = access;
    this.#caller = caller;
    this.#parts3 = parts3;
    this.#place = `Compute Engine in ${this.#parts.project}`;
  }

  /** @throws CloudError */
  async call<S extends z.ZodType>(how: GcpCall, answerAs: S, signal: AbortSignal): Promise<z.output<S>> {
    const { method = 'GET', path, query = {}, body, base } = how;
    const attempt = this.#attemptOf(how);
    const parameters = new URLSearchParams(query).toString();
    const where = path.startsWith('projects/') ? path : `projects/${this.#parts.project}/${path}`;
    const url = `${base ?? `${this.#parts.endpoint}/compute/v1`}/${where}${parameters === '' ? '' : `?${parameters}`}`;
    for (let tries = 1; ; tries++) {
      const token = await this.#access.token(signal);
      const headers = {
        Authorization: `Bearer ${token}`,
        Accept: 'application/json',
        ...(base === undefined && { 'X-Goog-Api-Version': apiVersion }),
      };
      const answer = await this.#caller.send({ method, url, headers, json: body }, attempt, signal);
      if (answer.status === 401) this.#access.refused(token);
      if (answer.status === 401 && tries === 1) continue;
      if (answer.status < 200 || answer.status > 299) throw refusedCall(answer.status, answer.text, attempt);
      const found = answerAs.safeParse(jsonOf(answer.text));
      if (found.success) return found.data;
      throw new CloudError('E_CLOUD_ANSWER', `Cannot ${how.doing}: ${this.#place} answered ${brief(answer.text.slice(0, 200))}.`, {
        isAmbiguous: attempt.changes,
      });
    }
  }

  /**
   * A call that begins an operation in a zone, and its end. Answers with 200 hide most failures, so only the end of the operation
   * tells. A look that fails changes nothing: the operation continues.
   */
  async carryOut(how: GcpCall, zone: string, lookNeeds: readonly string[], signal: AbortSignal): Promise<void> {
    const begun: Operation = await this.call(how, operationAnswer, signal);
    const attempt = this.#attemptOf(how);
    const look: GcpCall = { doing: how.doing, path: `zones/${zone}/operations/${begun.name}`, needs: lookNeeds };
    const until = this.#parts3.clock.now() + operationTime;
    let state = begun;
    let trouble: CloudError | null = null;
    while (state.status !== 'DONE') {
      if (this.#parts3.clock.now() >= until) throw unfinished(how, begun.name, trouble);
      await sleep(this.#parts3.clock, lookEvery, signal);
      if (signal.aborted) throw unfinished(how, begun.name, trouble);
      try {
        state = await this.call(look, operationAnswer, signal);
        trouble = null;
      } catch (error) {
        if (!(error instanceof CloudError)) throw unfinished(how, begun.name, null);
        trouble = error;
      }
    }
    if (state.error !== undefined) throw failedOperation(state.error.errors, attempt);
  }

  /**
   * All pages of a list over all zones or regions: `kind` is the name of the resources in it, `fields` what is read of them, and `what`
   * how messages call them. `each` gets the parts of one scope; what could not be listed goes to
   * `unknown`, and what was listed before that is kept. Returns the error that ended it early, else null.
   */
  async pages(
    how: GcpCall & { readonly kind: string; readonly what?: string; readonly fields: string },
    each: (scope: string, found: Page['items'][string]) => void,
    unknown: string[],
    signal: AbortSignal,
  ): Promise<OnejobError | null> {
    const { kind, what = kind } = how;
    // Only what is read: instances have the text for cloud-init, of up to 256 KB.
    const fields = `items/*/${kind}(${how.fields}),items/*/warning,nextPageToken,unreachables,warning`;
    const query = { maxResults: '500', fields, ...how.query };
    let pageToken: string | undefined;
    for (let pages = 0; pages < mostPages; pages++) {
      try {
        const found: Page = await this.call(
          { ...how, query: pageToken === undefined ? query : { ...query, pageToken } },
          page,
          signal,
        );
        for (const [scope, part] of Object.entries(found.items)) {
          if (isTrouble(part.warning)) unknown.push(`${what} in ${placeOfScope(scope)} (${wordOf(part.warning?.code)})`);
          each(scope, part);
        }
        for (const scope of found.unreachables) unknown.push(`${what} in ${placeOfScope(scope)} (unreachable)`);
        if (isTrouble(found.warning)) unknown.push(`${what} (${wordOf(found.warning?.code)})`);
        pageToken = found.nextPageToken;
      } catch (error) {
        signal.throwIfAborted();
        if (!(error instanceof OnejobError)) throw error;
        unknown.push(`${what} (${error.message.replace(/\.$/, '')})`);
        return error;
      }
      if (pageToken === undefined || pageToken === '') return null;
    }
    unknown.push(`${what} (more than ${mostPages} pages)`);
    return null;
  }

  #attemptOf({ doing, method = 'GET', onlyAsks = false, needs, offer }: GcpCall): CloudRequest {
    return {
      doing,
      place: this.#place,
      needs,
      changes: method !== 'GET' && !onlyAsks,
      ...(offer !== undefined && { offer }),
    };
  }
}

const isTrouble = (warning: Page['warning']): boolean => warning !== undefined && warning.code !== 'NO_RESULTS_ON_PAGE';
const wordOf = (code = ''): string => (code === '' ? 'warning' : code.toLowerCase().replaceAll('_', ' '));

/** `zones/us-central1-b` in words; scopes may also come as whole addresses. */
function placeOfScope(scope: string): string {
  const [, kind = '', name = scope] = /(zone|region)s\/([^/]+)$/.exec(scope) ?? [];
  return kind === '' ? name : `${kind} ${name}`;
}

function unfinished({ doing }: GcpCall, name: string, trouble: CloudError | null): CloudError {
  const why = trouble === null ? '' : ` ${trouble.message}`;
  return new CloudError('E_CLOUD_UNREACHABLE', `Cannot ${doing}: operation ${name} has not ended, and may yet succeed.${why}`, {
    retry: true,
    isAmbiguous: true,
  });
}
