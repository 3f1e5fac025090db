/**
 * An Entra application: its secret is exchanged for a token of about an hour, which is renewed early. The secret goes to the
 * authority only, the token to Azure DevOps only.
 */
import { z } from 'zod';
import { OnejobError } from '../../errors.ts';
import type { Answer } from '../../http/exchange.ts';
import { describeSecret, howToReplace } from '../../secrets/reference.ts';
import { until } from '../../until.ts';
import { openness } from './address.ts';
import { brief } from './answers.ts';
import type { Credential, CredentialParts } from './authorization.ts';
import { exchange } from './exchange.ts';
import { createHold, createKnown, secretOf, without } from './secret.ts';
import { createThrottle } from './throttle.ts';
import type { AzureCredential } from './type.ts';

/** Azure DevOps, as Entra knows it. */
const scope = '499b84ac-1321-427f-aa17-267ca6975798/.default';
/** ms for the authority to answer. */
const timeout = 30_000;
/** ms before its end that a token is renewed, or a tenth of its life if that is less. */
const early = 300_000;
/** ms. A token refused within its first minute was not refused for its age. */
const young = 60_000;

const granted = z.object({
  // Anything else would not be a header's value, and a refusal by fetch would quote it.
  access_token: z.string().regex(/^[\x21-\x7e]+$/),
  expires_in: z.coerce.number().positive(),
});
const refused = z.object({ error: z.string(), error_description: z.string().catch('') });

interface Token {
  readonly header: string;
  readonly secret: string;
  readonly madeAt: number;
  readonly renewAt: number;
  readonly endsAt: number;
}

export function createPrincipal(
  config: Extract<AzureCredential, { kind: 'principal' }>,
  base: string,
  { clock, variables, fetch: send = fetch }: CredentialParts,
): Credential {
  const { tenant, client, authority } = config;
  const who = `the Entra application ${client} of tenant ${tenant}`;
  const secretText = secretOf(config.secret, variables, (text) => text.trim());
  const known = createKnown();
  const hold = createHold(clock);
  const throttle = createThrottle(clock, authority);
  let token: Token | null = null;
  let flight: Promise<Token> | null = null;
  let last = '';

  const rejection = (where: string, why: string, retry: boolean): OnejobError =>
    new OnejobError('E_CI_CREDENTIAL', `Cannot sign in to ${where}: it does not accept ${who} (${without(known.all(), why)}).`, {
      hint:
        where === authority
          ? `Look at tenant and client, and make a new secret for the application. ${howToReplace(config.secret)}.`
          : 'Add the application to the users of the organisation, and make it Administrator of the agent pool.',
      retry,
    });

  /** Not bound to one caller's signal: others wait for it, too. */
  const fetchToken = async (secret: string): Promise<Token> => {
    const doing = `get a token for ${who}`;
    const signal = new AbortController().signal;
    await throttle.ready(doing, clock.now() + timeout, signal);
    const madeAt = clock.now();
    const body = new URLSearchParams({ grant_type: 'client_credentials', client_id: client, client_secret: secret, scope });
    const answer = await exchange(
      {
        method: 'POST',
        url: `${authority}/${encodeURIComponent(tenant)}/oauth2/v2.0/token`,
        headers: { 'Content-Type': 'application/x-www-form-urlencoded', Accept: 'application/json' },
        body: body.toString(),
        doing,
      },
      { clock, fetch: send, timeout, most: 256 * 1024 },
      signal,
    );
    const found = granted.safeParse(json(answer));
    if (answer.status === 200 && found.success) {
      throttle.heard(200, answer.headers);
      const { access_token: text, expires_in: seconds } = found.data;
      const life = seconds * 1000;
      known.add(text);
      return {
        header: `Bearer ${text}`,
        secret,
        madeAt,
        renewAt: madeAt + life - Math.min(early, life / 10),
        endsAt: madeAt + life,
      };
    }
    const said = refused.safeParse(json(answer)).data;
    const words = said === undefined ? '' : `, ${said.error}: ${said.error_description}`;
    const why = brief(without(known.all(), `${answer.status}${words}`));
    throttle.heard(answer.status, answer.headers, why);
    if (answer.status === 429) await throttle.ready(doing, Number.NEGATIVE_INFINITY, signal);
    if (answer.status >= 500 || said?.error === 'temporarily_unavailable') {
      throw new OnejobError('E_CI_UNREACHABLE', `Cannot ${doing}: ${authority} answered ${why}.`, {
        hint: 'onejob tries again.',
        retry: true,
      });
    }
    if (said === undefined && answer.status !== 401) {
      throw new OnejobError('E_CI_ANSWER', `Cannot ${doing}: ${authority} answered ${why} without a token.`, {
        hint: 'Look at "authority", and at a proxy before it.',
        retry: true,
      });
    }
    throw hold.begin(secret, rejection(authority, why, false));
  };

  /** One request at a time, however many ask. */
  const renewed = (secret: string): Promise<Token> => {
    flight ??= fetchToken(secret)
      .then((made) => {
        token = made;
        return made;
      })
      .finally(() => {
        flight = null;
      });
    return flight;
  };

  return {
    async header(signal) {
      signal.throwIfAborted();
      const secret = await secretText();
      known.add(secret, encodeURIComponent(secret), formEncoded(secret), Buffer.from(secret).toString('base64'));
      hold.check(secret);
      const now = clock.now();
      const held = token?.secret === secret && now < token.endsAt ? token : null;
      last = secret;
      if (held !== null && now < held.renewAt) return held.header;
      try {
        return (await until(renewed(secret), signal)).header;
      } catch (error) {
        // It is renewed early so that an hour in which the authority is away does not matter.
        const mayPass = error instanceof OnejobError && error.retry;
        if (held !== null && mayPass) return held.header;
        throw error;
      }
    },
    redact: known.all,
    rejected(why, header) {
      // Another one has taken its place meanwhile.
      if (header !== undefined && token !== null && header !== token.header) return rejection(base, why, true);
      const isYoung = token === null || clock.now() - token.madeAt < young;
      token = null;
      const error = rejection(base, why, !isYoung);
      return isYoung ? hold.begin(last, error) : error;
    },
    refusal: (why) => rejection(base, why, false),
    accepted: () => hold.end(last),
    describe: () => `${who.replace(/^the /, '')}, its secret in ${describeSecret(config.secret)}${openness(base)}`,
  };
}

function formEncoded(text: string): string {
  return new URLSearchParams({ '': text }).toString().slice(1);
}

function json({ text }: Answer): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
