/** One request to Azure DevOps or Entra: the errors without a whole answer, and the waits that a service asks for. */
import { type Clock, sleep } from '../../core/clock.ts';
import { OnejobError } from '../../errors.ts';
import { type Answer, asksFor, type ExchangeParts, NoAnswer, type Outgoing, exchange as over, shown } from '../../http/exchange.ts';

/** `doing`: in words, for messages: `Cannot <doing> …`. */
export type Asked = Outgoing & { readonly url: string; readonly doing: string };

/** @throws OnejobError E_CI_UNREACHABLE without a whole answer, E_CI_ANSWER when it is too large; the reason of `signal` */
export async function exchange({ doing, ...request }: Asked, parts: ExchangeParts, signal: AbortSignal): Promise<Answer> {
  try {
    return await over(request, parts, signal);
  } catch (error) {
    if (!(error instanceof NoAnswer)) throw error;
    const { why, code, hint } = error.about;
    const place = shown(request.url);
    if (error.isTooLarge) {
      const message = `Cannot ${doing}: ${place} sent more than ${parts.most / 1024 / 1024} MiB.`;
      throw new OnejobError('E_CI_ANSWER', message, { hint, retry: true });
    }
    // The action comes last: "cannot find pool" would read as a wrong name.
    const message = `The service cannot be reached at ${place}: ${why}${code === '' ? '' : ` (${code})`}, so onejob cannot ${doing} now.`;
    throw new OnejobError('E_CI_UNREACHABLE', message, { hint, retry: true });
  }
}

/** ms. Longest wait, whatever the service says. */
const longest = 600_000;
/** ms after a refusal that names no time. */
const unnamed = 60_000;

/**
 * Waits as a service asks (`Retry-After`, also on a 200; `X-RateLimit-*`). All requests with one credential share it, because the
 * service counts them together. `place`: the service, for messages.
 */
export function createThrottle(clock: Clock, place: string) {
  let until = Number.NEGATIVE_INFINITY;
  let why = '';
  /** Refusals in a row, so that a service that always says "at once" is not asked in a busy loop. */
  let refusals = 0;

  return {
    /** @throws OnejobError E_CI_THROTTLED when the service may only be asked after `deadline` (the clock's `now`) */
    async ready(doing: string, deadline: number, signal: AbortSignal): Promise<void> {
      signal.throwIfAborted();
      while (until > clock.now()) {
        const left = until - clock.now();
        if (until > deadline) {
          const when = new Date(clock.wall() + left).toISOString().replace(/\.\d+Z$/, 'Z');
          const message = `Cannot ${doing}: ${place} asked onejob to send no requests until ${when} (${why}).`;
          const hint = 'onejob waits until then. If it happens again, check who else uses the same credential.';
          throw new OnejobError('E_CI_THROTTLED', message, { hint, retry: true });
        }
        await sleep(clock, left, signal);
        signal.throwIfAborted();
      }
    },
    heard({ status, headers }: Pick<Answer, 'status' | 'headers'>, said = ''): void {
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
