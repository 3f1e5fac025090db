/**
 * What onejob signs in with: a personal access token, or an Entra application. onejob does not send a refused credential again
 * until it has changed or ten minutes have passed, so that no account is locked.
 */

import { OnejobError } from '../../base/errors.ts';
import type { Variables } from '../../base/variables.ts';
import type { Clock } from '../../core/clock.ts';
import { howToReplace, type SecretReference, secretPlace } from '../../schema/secret-reference.ts';
import { type Credential, createHold, createKnown, secretOf, without } from '../../secrets/credential.ts';
import { createEntra } from '../../secrets/entra.ts';
import { sendOnce } from '../kit/rest.ts';
import type { AzureCredential } from './type.ts';
import { baseOf } from './url.ts';

export interface CredentialParts {
  readonly clock: Clock;
  readonly variables?: Variables | undefined;
  readonly fetch?: typeof fetch;
  /** Of the organisation or collection; where the credential is used, for messages. */
  readonly url: string;
}

export function createCredential(config: AzureCredential, parts: CredentialParts): Credential {
  const base = baseOf(parts.url);
  return config.kind === 'pat' ? createToken(config.token, base, parts) : createPrincipal(config, base, parts);
}

function createToken(reference: SecretReference, base: string, { clock, variables }: CredentialParts): Credential {
  const secret = secretOf(reference, variables);
  const known = createKnown();
  const hold = createHold(clock);
  let last = '';

  const refusal = (said: string): OnejobError => {
    const why = without(known.all(), said);
    const { expires } = reference;
    const day = expires === null ? '' : new Date(expires).toISOString().slice(0, 10);
    const expiry =
      expires === null ? '' : `; according to the config it ${expires < clock.wall() ? 'expired' : 'expires'} on ${day}`;
    const message = `Cannot sign in to ${base}: it does not accept the token from ${secretPlace(reference)} (${why})${expiry}.`;
    return new OnejobError('E_CI_CREDENTIAL', message, {
      hint:
        'Create a new personal access token for this organisation with the scope Agent Pools (Read & manage). ' +
        `${howToReplace(reference)}. In an organisation that signs in with Entra, a token can also expire after 90 days without use.`,
    });
  };

  return {
    async header(signal) {
      signal.throwIfAborted();
      const token = (await secret()).replace(/\s+/g, '');
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
  };
}

/** What tokens for Azure DevOps are for: its own id as an application. */
const scope = '499b84ac-1321-427f-aa17-267ca6975798/.default';
/** ms for the authority to answer. */
const timeout = 30_000;

const codes = {
  credential: 'E_CI_CREDENTIAL',
  unreachable: 'E_CI_UNREACHABLE',
  throttled: 'E_CI_THROTTLED',
  answer: 'E_CI_ANSWER',
} as const;

function createPrincipal(
  config: Extract<AzureCredential, { kind: 'principal' }>,
  place: string,
  { clock, variables, fetch: send = fetch }: CredentialParts,
): Credential {
  return createEntra(config, {
    clock,
    variables,
    scope,
    place,
    hint: 'Add the application to the users of the organisation, and give it the role Administrator on the agent pool.',
    send: (request, doing, signal) =>
      sendOnce({ ...request, url: String(request.url), doing }, { clock, fetch: send, timeout, most: 256 * 1024 }, signal),
    fail: (why, message, options) => new OnejobError(codes[why], message, options),
  });
}
