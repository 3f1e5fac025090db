/**
 * What onejob signs in with: a personal access token, or an Entra application. A credential that the service refused is not
 * shown to it again until it is another one or ten minutes have passed, so that nothing spins and no account is locked.
 */

import { OnejobError } from '../../errors.ts';
import { describeSecret, howToReplace, type SecretReference } from '../../secrets/reference.ts';
import { baseOf, openness } from './address.ts';
import type { Credential, CredentialParts } from './authorization.ts';
import { createPrincipal } from './principal.ts';
import { createHold, createKnown, secretOf, without } from './secret.ts';
import type { AzureCredential } from './type.ts';

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
  const message = `Cannot sign in to ${base}: it does not accept the token from ${place} (${why})${expiry}.`;
  return new OnejobError('E_CI_CREDENTIAL', message, {
    hint:
      'Make a new personal access token for this organisation with the scope Agent Pools (Read & manage). ' +
      `${howToReplace(reference)}. In an organisation that signs in with Entra a token can also end after 90 days without use.`,
  });
}
