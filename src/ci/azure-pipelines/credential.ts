/**
 * What onejob signs in with: a personal access token, or an Entra application. A credential that the service refused is not
 * shown to it again until it is another one or ten minutes have passed, so that nothing spins and no account is locked.
 */
import type { AzureCredential } from '../../config/config.ts';
import type { Clock } from '../../core/clock.ts';
import { OnejobError } from '../../errors.ts';
import { describeSecret, howToReplace, type SecretReference, type Variables } from '../../secrets/reference.ts';
import { baseOf, openness } from './address.ts';
import { createPrincipal } from './principal.ts';
import { createHold, createKnown, secretOf, without } from './secret.ts';

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

export function createCredential(config: AzureCredential, parts: CredentialParts): Credential {
  const base = baseOf(parts.url);
  return config.kind === 'pat' ? createToken(config.token, base, parts) : createPrincipal(config, base, parts);
}

function createToken(reference: SecretReference, base: string, { clock, wall, variables }: CredentialParts): Credential {
  const secret = secretOf(reference, variables, (text) => text.replace(/\s+/g, ''));
  const known = createKnown();
  const hold = createHold(clock);
  let last = '';
  const refusal = (why: string): OnejobError => refusedToken(reference, base, without(known.all(), why), wall());
  return {
    async header(signal) {
      signal.throwIfAborted();
      const token = await secret();
      const basic = Buffer.from(`:${token}`).toString('base64');
      known.add(token, basic, Buffer.from(token).toString('base64'));
      last = `Basic ${basic}`;
      hold.check(last);
      return last;
    },
    redact: known.all,
    rejected: (why, header = last) => hold.begin(header, refusal(why)),
    refusal,
    accepted: (header = last) => hold.end(header),
    describe: () => `personal access token, ${describeSecret(reference)}${openness(base)}`,
  };
}

function refusedToken(reference: SecretReference, base: string, why: string, now: number): OnejobError {
  const day = reference.expires === null ? null : new Date(reference.expires).toISOString().slice(0, 10);
  const expiry = day === null ? '' : `; by the config it ${(reference.expires ?? 0) < now ? 'expired' : 'expires'} on ${day}`;
  const place = describeSecret({ ...reference, expires: null });
  const message = `Cannot sign in to ${base}: it does not accept the token, ${place} (${why})${expiry}.`;
  return new OnejobError('E_CI_CREDENTIAL', message, {
    hint:
      'Make a new personal access token for this organisation with the scope Agent Pools (Read & manage). ' +
      `${howToReplace(reference)}. In an organisation that signs in with Entra a token can also end after 90 days without use.`,
  });
}
