/** One request to Azure DevOps, or to whom it signs in at, and what is said where no whole answer came. */
import { OnejobError } from '../../errors.ts';
import { type Answer, type ExchangeParts, NoAnswer, type Outgoing, exchange as over } from '../../http/exchange.ts';
import { shown } from './address.ts';

/** `doing`: in words, for messages: `Cannot <doing> …`. */
export type Asked = Outgoing & { readonly url: string; readonly doing: string };

/**
 * @throws OnejobError E_CI_UNREACHABLE when no whole answer came, E_CI_ANSWER when it is too large; and what `signal` was
 * aborted with
 */
export async function exchange({ doing, ...request }: Asked, parts: ExchangeParts, signal: AbortSignal): Promise<Answer> {
  try {
    return await over(request, parts, signal);
  } catch (error) {
    if (!(error instanceof NoAnswer)) throw error;
    const { why, code, hint } = error;
    const place = shown(request.url);
    if (error.isTooLarge) {
      throw new OnejobError('E_CI_ANSWER', `Cannot ${doing}: ${place} answered more than ${parts.most / 1024 / 1024} MiB.`, {
        hint,
        retry: true,
      });
    }
    // What was to be done comes last: "cannot find pool" would read as a wrong name.
    const message = `The service cannot be reached at ${place}: ${why}${code === '' ? '' : ` (${code})`}, so onejob cannot ${doing} now.`;
    throw new OnejobError('E_CI_UNREACHABLE', message, { hint, retry: true });
  }
}
