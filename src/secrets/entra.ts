/**
 * Tokens of an Entra application: onejob exchanges its secret for a token of about an hour, and renews that early. Only the authority
 * gets the secret, and only the place that the tokens are for gets them.
 */
import { z } from 'zod';
import type { ErrorOptions, OnejobError } from '../base/errors.ts';
import type { Variables } from '../base/variables.ts';
import type { Clock } from '../core/clock.ts';
import { type Answer, brief, type Outgoing } from '../http/exchange.ts';
import { createThrottle } from '../http/throttle.ts';
import { howToReplace, type SecretReference } from '../schema/secret-reference.ts';
import { jsonOf } from '../system/json.ts';
import { type Credential, createHold, createKnown, secretOf, without } from './credential.ts';
import { CachedToken, type TokenTimes } from './tokens.ts';

export interface EntraApplication {
  readonly tenant: string;
  readonly client: string;
  readonly secret: SecretReference;
  /** Where its tokens are made, without a slash at its end. */
  readonly authority: string;
}

export interface EntraParts {
  readonly clock: Clock;
  readonly variables?: Variables | undefined;
  /** What the tokens are for. */
  readonly scope: string;
  /** Where they are used, for messages. */
  readonly place: string;
  /** What to do if the place does not accept the application. */
  readonly hint: string;
  /** ms. A token refused within that time was not refused for its age, so its application is held back. Default 60 s. */
  readonly young?: number;
  /** One request to the authority. Throws if no whole answer came. */
  send(request: Outgoing, doing: string, signal: AbortSignal): Promise<Answer>;
  /** The error of the axis that uses them. */
  fail(why: 'credential' | 'unreachable' | 'throttled' | 'answer', message: string, options: ErrorOptions): OnejobError;
}

/** ms for the authority to be ready for a request. */
const timeout = 30_000;
/** ms before its end at which a token is renewed; at most a tenth of its life. */
const early = 300_000;

const granted = z.object({
  // Anything else is not a valid header value, and an error of fetch would quote it.
  access_token: z.string().regex(/^[\x21-\x7e]+$/),
  expires_in: z.coerce.number().positive(),
});
const refused = z.object({ error: z.string(), error_description: z.string().catch('') });

interface Token extends TokenTimes {
  readonly header: string;
  readonly secret: string;
}

export function createEntra(config: EntraApplication, parts: EntraParts): Credential {
  const { tenant, client, authority } = config;
  const { clock, variables, scope, place, send, fail, young = 60_000 } = parts;
  const secretText = secretOf(config.secret, variables);
  const who = `the Entra application ${client} of tenant ${tenant}`;
  const known = createKnown();
  const hold = createHold(clock);
  const throttle = createThrottle(clock, authority, (message, options) => fail('throttled', message, options));
  const token = new CachedToken<Token>(clock);
  let last = '';

  const rejection = (where: string, why: string, retry: boolean): OnejobError => {
    const message = `Cannot sign in to ${where}: it does not accept ${who} (${without(known.all(), why)}).`;
    const hint =
      where === authority
        ? `Check tenant and client, and create a new secret for the application. ${howToReplace(config.secret)}.`
        : parts.hint;
    return fail('credential', message, { hint, retry });
  };

  const fetchToken = async (secret: string): Promise<Token> => {
    const doing = `get a token for ${who}`;
    const signal = new AbortController().signal;
    await throttle.ready(doing, clock.now() + timeout, signal);
    const madeAt = clock.now();
    const form = new URLSearchParams({ grant_type: 'client_credentials', client_id: client, client_secret: secret, scope });
    const url = `${authority}/${encodeURIComponent(tenant)}/oauth2/v2.0/token`;
    const headers = { 'Content-Type': 'application/x-www-form-urlencoded', Accept: 'application/json' };
    const answer = await send({ method: 'POST', url, headers, body: form.toString() }, doing, signal);
    const body = jsonOf(answer.text);
    const found = granted.safeParse(body);
    if (answer.status === 200 && found.success) {
      throttle.heard(answer);
      const { access_token: text, expires_in: seconds } = found.data;
      const life = seconds * 1000;
      known.add(text);
      const renewAt = madeAt + life - Math.min(early, life / 10);
      return { header: `Bearer ${text}`, secret, madeAt, renewAt, endsAt: madeAt + life };
    }
    const said = refused.safeParse(body).data;
    const words = said === undefined ? '' : `, ${said.error}: ${said.error_description}`;
    const why = brief(without(known.all(), `${answer.status}${words}`));
    throttle.heard(answer, why);
    if (answer.status === 429) await throttle.ready(doing, Number.NEGATIVE_INFINITY, signal);
    if (answer.status >= 500 || said?.error === 'temporarily_unavailable') {
      const hint = 'onejob tries again.';
      throw fail('unreachable', `Cannot ${doing}: ${authority} answered ${why}.`, { hint, retry: true });
    }
    if (said === undefined && answer.status !== 401) {
      const hint = 'Check "authority", and any proxy in front of it.';
      const message = `Cannot ${doing}: ${authority} answered ${why}, without a token.`;
      throw fail('answer', message, { hint, retry: true });
    }
    throw hold.begin(secret, rejection(authority, why, false));
  };

  return {
    async header(signal) {
      signal.throwIfAborted();
      const secret = await secretText();
      const formEncoded = new URLSearchParams({ '': secret }).toString().slice(1);
      known.add(secret, encodeURIComponent(secret), formEncoded, Buffer.from(secret).toString('base64'));
      hold.check(secret);
      last = secret;
      const found = await token.get(
        () => fetchToken(secret),
        signal,
        (one) => one.secret === secret,
      );
      return found.header;
    },
    redact: known.all,
    rejected(why, header) {
      // A newer token has replaced it.
      const { current } = token;
      if (header !== undefined && current !== null && header !== current.header) return rejection(place, why, true);
      const isYoung = current === null || clock.now() - current.madeAt < young;
      token.forget();
      const error = rejection(place, why, !isYoung);
      return isYoung ? hold.begin(last, error) : error;
    },
    refusal: (why) => rejection(place, why, false),
    accepted: () => hold.end(last),
  };
}
