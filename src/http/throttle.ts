/** Waits as a service asks. */

import { type ErrorOptions, OnejobError } from '../base/errors.ts';
import { type Clock, sleep } from '../core/clock.ts';
import { type Answer, asksFor } from './exchange.ts';

/** ms. Longest wait, whatever the service says. */
const longest = 600_000;
/** ms after a refusal that names no time. */
const unnamed = 60_000;

export interface Throttle {
  /** @throws OnejobError by default E_CI_THROTTLED, when the service may only be asked after `deadline` (the clock's `now`) */
  ready(doing: string, deadline: number, signal: AbortSignal): Promise<void>;
  /** What an answer asks for. `said`: the service's words about a refusal. */
  heard(answer: Pick<Answer, 'status' | 'headers'>, said?: string): void;
}

/**
 * Waits as a service asks (`Retry-After`, also on a 200; `X-RateLimit-*`). All requests with one credential share it, because the
 * service counts them together. `place`: the service, for messages. `fail`: the error for a wait that is too long.
 */
export function createThrottle(
  clock: Clock,
  place: string,
  fail = (message: string, options: ErrorOptions) => new OnejobError('E_CI_THROTTLED', message, options),
): Throttle {
  let until = Number.NEGATIVE_INFINITY;
  let why = '';
  /** Refusals in a row, so that a service that always says "at once" is not asked in a busy loop. */
  let refusals = 0;

  return {
    async ready(doing, deadline, signal) {
      signal.throwIfAborted();
      while (until > clock.now()) {
        const left = until - clock.now();
        if (until > deadline) {
          const when = new Date(clock.wall() + left).toISOString().replace(/\.\d+Z$/, 'Z');
          const message = `Cannot ${doing}: ${place} asked onejob to send no requests until ${when} (${why}).`;
          const hint = 'onejob waits until then. If it happens again, check who else uses the same credential.';
          throw fail(message, { hint, retry: true });
        }
        await sleep(clock, left, signal);
        signal.throwIfAborted();
      }
    },
    heard({ status, headers }, said = '') {
      const isRefusal = status === 429 || (status === 503 && headers.has('Retry-After'));
      refusals = isRefusal ? refusals + 1 : 0;
      const asked = asksFor(headers, clock.wall());
      const least = isRefusal ? Math.min(2 ** (refusals - 1), 60) * 1000 : 0;
      const ms = Math.min(Math.max(asked ?? (isRefusal ? unnamed : 0), least), longest);
      if (ms <= 0) return;
      const next = clock.now() + ms;
      if (next <= until) return;
      until = next;
      why = `${status}${said === '' ? '' : `, ${said}`}`;
    },
  };
}
