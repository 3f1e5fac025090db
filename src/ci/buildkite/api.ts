/**
 * The calls that the manager itself makes to the service: what a token is, and how many jobs wait; for its stacks see `stacks.ts`.
 * Answers are bounded, no redirect is followed, and no token is in any error.
 */
import { z } from 'zod';
import type { Clock } from '../../core/clock.ts';
import { OnejobError } from '../../errors.ts';
import { brief } from '../../http/exchange.ts';
import { type Called, createUpstream } from './upstream.ts';

/** What a token stands for (agent v3.137 `api/token.go`). Empty texts and what is missing are null. */
export interface TokenIdentity {
  readonly type: string | null;
  readonly description: string | null;
  readonly organisation: string | null;
  /** null: the organisation has no clusters, or the token is of none. */
  readonly cluster: string | null;
  /** The only queue that its agents may be of; null: any of the cluster. */
  readonly queue: string | null;
  /** ms since the epoch; null when the service does not say. */
  readonly expires: number | null;
}

/** Jobs by queue (docs page `apis/agent_api/metrics`). */
export interface QueueCounts {
  /** Jobs that an agent could take now; those that wait for others are not among them. */
  readonly scheduled: ReadonlyMap<string, number>;
  /** Every queue that the service speaks of. */
  readonly known: ReadonlySet<string>;
  /** ms that the service wants between two questions; null when it does not say. */
  readonly pollAfter: number | null;
}

/** `skew`: how far the service's clock is ahead of this host's, ms; null when it does not say. */
export interface Told<T> {
  readonly value: T;
  readonly skew: number | null;
}

export interface ServiceApi {
  /** null: the service does not know the question. @throws OnejobError E_CI_*, or the reason of `signal` */
  identity(token: string, signal: AbortSignal): Promise<Told<TokenIdentity> | null>;
  /** @throws OnejobError E_CI_*, or the reason of `signal`; one with `retryAfter` where the service says when to ask again */
  counts(token: string, signal: AbortSignal): Promise<Told<QueueCounts>>;
}

/** The service refused, and said when it wants to be asked again. */
export class LaterError extends OnejobError {
  /** ms */
  readonly retryAfter: number;

  constructor(error: OnejobError, retryAfter: number) {
    super(error.code, error.message, { hint: error.hint ?? 'onejob asks again.', retry: true });
    this.retryAfter = retryAfter;
  }
}

export interface ApiParts {
  /** Without a slash at its end. */
  readonly endpoint: string;
  /** Of onejob. */
  readonly version: string;
  readonly clock: Clock;
  /** ms for one answer; default 20 s. */
  readonly timeout?: number;
  readonly fetch: typeof fetch;
}

const words = z
  .string()
  .nullish()
  .catch(null)
  .transform((found) => (found == null || found === '' ? null : brief(found)));

const identityAnswer = z
  .object({
    token_type: words,
    description: words,
    organization_slug: words,
    cluster_uuid: words,
    cluster_name: words,
    organization_queue_key: words,
    expires_at: words,
  })
  .transform((found): TokenIdentity => {
    const expires = Date.parse(found.expires_at ?? '');
    return {
      type: found.token_type,
      description: found.description,
      organisation: found.organization_slug,
      cluster: found.cluster_name ?? found.cluster_uuid,
      queue: found.organization_queue_key,
      expires: Number.isNaN(expires) ? null : expires,
    };
  });

const count = z.int().nonnegative();
const countsAnswer = z.object({
  jobs: z.object({ queues: z.record(z.string(), z.object({ scheduled: count.catch(0) })).nullish() }),
  agents: z.object({ queues: z.record(z.string(), z.unknown()).nullish() }).nullish(),
});

/** s; a service that asks for more is asked once an hour. */
const longestPoll = 3600;

export function createServiceApi({ endpoint, version, clock, timeout = 20_000, fetch }: ApiParts): ServiceApi {
  const upstream = createUpstream({ version, clock, timeout, fetch });

  async function get(path: string, token: string, doing: string, signal: AbortSignal): Promise<Called> {
    // Anything else could not stand in a header.
    if (!/^[\x21-\x7e]{1,4096}$/.test(token)) {
      throw new OnejobError('E_CI_CREDENTIAL', `Cannot ${doing}: the token is none: it is empty, or has blanks or lines in it.`, {
        hint: 'Put the agent token, and nothing else, where the config looks for it.',
      });
    }
    return upstream.call({ endpoint, method: 'GET', path, token, doing }, signal);
  }

  function told<T>(called: Called, schema: z.ZodType<T>, doing: string): { readonly parsed: T; readonly skew: number | null } {
    if (!called.ok) throw called.retryAfter === null ? called.error : new LaterError(called.error, called.retryAfter);
    const found = schema.safeParse(called.body);
    if (!found.success) {
      throw new OnejobError('E_CI_ANSWER', `Cannot ${doing}: ${endpoint} answered something else than was asked for.`, {
        hint: 'Look at "endpoint" of the service, and at what answers there: a proxy, or a sign-in page.',
        retry: true,
      });
    }
    const date = Date.parse(called.headers.get('date') ?? '');
    return { parsed: found.data, skew: Number.isNaN(date) ? null : date - clock.wall() };
  }

  return {
    async identity(token, signal) {
      const doing = 'ask what the token is';
      const called = await get('token', token, doing, signal);
      if (!called.ok && called.status === 404) return null;
      const { parsed, skew } = told(called, identityAnswer, doing);
      return { value: parsed, skew };
    },
    async counts(token, signal) {
      const doing = 'count waiting jobs';
      const called = await get('metrics', token, doing, signal);
      const { parsed, skew } = told(called, countsAnswer, doing);
      const jobs = Object.entries(parsed.jobs.queues ?? {});
      const said = called.ok ? called.headers.get('buildkite-agent-metrics-poll-duration') : null;
      const seconds = said !== null && /^\d{1,9}$/.test(said.trim()) ? Number(said) : 0;
      return {
        value: {
          scheduled: new Map(jobs.map(([queue, { scheduled }]) => [queue, scheduled])),
          known: new Set([...jobs.map(([queue]) => queue), ...Object.keys(parsed.agents?.queues ?? {})]),
          pollAfter: seconds === 0 ? null : Math.min(seconds, longestPoll) * 1000,
        },
        skew,
      };
    },
  };
}
