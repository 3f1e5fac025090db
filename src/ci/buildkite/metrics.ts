/**
 * How many jobs wait in each queue, for people only, asked once for all pools of a service. The number is that of the whole queue:
 * all pools and hosts that use it show the same.
 */
import { type Clock, sleep } from '../../core/clock.ts';
import { OnejobError, toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import { LaterError, type QueueCounts, type ServiceApi } from './api.ts';
import type { BuildkiteServiceConfig } from './type.ts';

export interface CountsParts {
  readonly api: Pick<ServiceApi, 'counts'>;
  readonly token: () => Promise<string>;
  /** `pollEvery` holds unless the service wants more. */
  readonly config: Pick<BuildkiteServiceConfig, 'name' | 'pollEvery'>;
  readonly clock: Clock;
  readonly log: Log;
  /** [0, 1): spreads the retries of many hosts. */
  readonly random?: () => number;
}

export type Counts = ReturnType<typeof createCounts>;

/** ms. Longest wait between two questions while the service is away. */
const longestWait = 5 * 60_000;
/** ms until a token that was refused is tried again; another one is at once. */
const refusedWait = 10 * 60_000;
/** Counts are shown for so many missed answers, and at least for so many ms. */
const [missed, youngest] = [3, 60_000];

export function createCounts(parts: CountsParts) {
  const { api, config, clock, log, random = Math.random } = parts;
  let heard: { readonly counts: QueueCounts; readonly at: number } | null = null;
  let failures = 0;
  /** A refused token, and until when it is not sent again. */
  let refused: { readonly token: string; readonly until: number } | null = null;
  /** Code of the failure that was logged last. */
  let said: string | null = null;

  const interval = (): number => Math.max(config.pollEvery, heard?.counts.pollAfter ?? 0);

  function failed(error: unknown, token: string | null): number {
    const { code, message } = error instanceof OnejobError ? error : toFailure(error);
    const isRefused = code === 'E_CI_CREDENTIAL' || code === 'E_CI_DENIED';
    if (isRefused && token !== null) refused = { token, until: clock.now() + refusedWait };
    const own = isRefused || code === 'E_SECRET' || code === 'E_CI_ANSWER';
    // The hold of its pools reports outages.
    if (own && said !== code) log.warn('failed to count the jobs', { service: config.name, reason: message });
    if (own) said = code;
    if (isRefused || code === 'E_SECRET') return interval();
    failures += 1;
    const backOff = Math.min(interval() * 2 ** (failures - 1), longestWait) * (1 + random() / 4);
    return Math.max(interval(), error instanceof LaterError ? error.retryAfter : backOff);
  }

  async function ask(signal: AbortSignal): Promise<number> {
    let token: string | null = null;
    try {
      token = (await parts.token()).trim();
      if (refused !== null && refused.token === token && clock.now() < refused.until) return interval();
      const { value } = await api.counts(token, signal);
      heard = { counts: value, at: clock.now() };
      if (said !== null) log.info('counting the jobs works again', { service: config.name });
      [failures, refused, said] = [0, null, null];
      return interval();
    } catch (error) {
      if (!signal.aborted && !(error instanceof OnejobError)) log.error('cannot count jobs', { service: config.name, error });
      return failed(error, token);
    }
  }

  return {
    /** null: unknown, or too old. */
    waiting(queue: string): number | null {
      if (heard === null || clock.now() - heard.at > Math.max(missed * interval(), youngest)) return null;
      const { scheduled, known } = heard.counts;
      return scheduled.get(queue) ?? (known.has(queue) ? 0 : null);
    },
    /** Asks until `signal` aborts; to be called once. */
    async follow(signal: AbortSignal): Promise<void> {
      while (!signal.aborted) await sleep(clock, await ask(signal), signal);
    },
  };
}
