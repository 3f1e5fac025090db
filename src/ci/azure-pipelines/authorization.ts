/** What requests to the service are signed in by, whatever kind of credential that is. */
import type { Clock } from '../../core/clock.ts';
import type { OnejobError } from '../../errors.ts';
import type { Variables } from '../../secrets/reference.ts';

export interface Credential {
  /**
   * Value of the Authorization header, fresh enough for one request.
   * @throws OnejobError E_SECRET, E_CI_CREDENTIAL, and for an Entra application E_CI_UNREACHABLE or E_CI_THROTTLED
   */
  header(signal: AbortSignal): Promise<string>;
  /** Values that must not be shown: the secrets of this process so far, and what they travel as. */
  readonly redact: () => readonly string[];
  /**
   * The service refused `header`; without it, what was given last. Unless the error's `retry` is true, when a new token may
   * mend it, `header` throws it without a request until the secret changes or ten minutes have passed.
   */
  rejected(why: string, header?: string): OnejobError;
  /** What to say of a refusal that came beside the work, and by which nothing is held back. */
  refusal(why: string): OnejobError;
  /** The service took `header`; without it, what was given last. */
  accepted(header?: string): void;
  /** For people; holds no secret. */
  describe(): string;
}

export interface CredentialParts {
  readonly clock: Clock;
  /** ms since the epoch. */
  readonly wall: () => number;
  readonly variables?: Variables;
  readonly fetch?: typeof fetch;
  /** Of the organisation or collection; where the credential is used, for messages. */
  readonly url: string;
}
