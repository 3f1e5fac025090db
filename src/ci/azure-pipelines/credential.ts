/**
 * What onejob signs in with: a personal access token, or an Entra application. onejob does not send a refused credential again
 * until it has changed or ten minutes have passed, so that no account is locked.
 */
import { stat } from 'node:fs/promises';
import { z } from 'zod';
import { abortable } from '../../abortable.ts';
import type { Clock } from '../../core/clock.ts';
import { OnejobError } from '../../errors.ts';
import { brief } from '../../http/exchange.ts';
import { createThrottle } from '../../http/throttle.ts';
import { howToReplace, placeOf, readSecret, type SecretReference, type Variables } from '../../secrets/reference.ts';
import { jsonOf } from '../../system/json.ts';
import { exchange } from '../kit/rest.ts';
import type { AzureCredential } from './type.ts';
import { baseOf } from './url.ts';

export interface Credential {
  /** A fresh Authorization header. @throws OnejobError E_SECRET, E_CI_CREDENTIAL; for an Entra application also E_CI_* */
  header(signal: AbortSignal): Promise<string>;
  /** Values that must not be shown: the secrets so far, and their encodings. */
  readonly redact: () => readonly string[];
  /**
   * The service refused `header`, by default the last one. Unless the error's `retry` is true, when a new token may help, `header`
   * throws it until the secret changes or ten minutes have passed.
   */
  rejected(why: string, header?: string): OnejobError;
  /** An error for a refusal that does not hold the credential back. */
  refusal(why: string): OnejobError;
  /** The service accepted `header`, by default the last one. */
  accepted(header?: string): void;
}

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
    const message = `Cannot sign in to ${base}: it does not accept the token from ${placeOf(reference)} (${why})${expiry}.`;
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

const scope = '499b84ac-1321-427f-aa17-267ca6975798/.default';
/** ms for the authority to answer. */
const timeout = 30_000;
/** ms before its end at which a token is renewed; at most a tenth of its life. */
const early = 300_000;
/** ms. A token refused within its first minute was not refused for its age. */
const young = 60_000;

const granted = z.object({
  // Anything else is not a valid header value, and an error of fetch would quote it.
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

/**
 * An Entra application: onejob exchanges its secret for a token of about an hour, and renews that early. Only the authority gets
 * the secret, and only Azure DevOps the token.
 */
function createPrincipal(
  config: Extract<AzureCredential, { kind: 'principal' }>,
  base: string,
  { clock, variables, fetch: send = fetch }: CredentialParts,
): Credential {
  const { tenant, client, authority } = config;
  const secretText = secretOf(config.secret, variables);
  const who = `the Entra application ${client} of tenant ${tenant}`;
  const known = createKnown();
  const hold = createHold(clock);
  const throttle = createThrottle(clock, authority);
  let token: Token | null = null;
  let flight: Promise<Token> | null = null;
  let last = '';

  const rejection = (where: string, why: string, retry: boolean): OnejobError => {
    const message = `Cannot sign in to ${where}: it does not accept ${who} (${without(known.all(), why)}).`;
    const hint =
      where === authority
        ? `Check tenant and client, and create a new secret for the application. ${howToReplace(config.secret)}.`
        : 'Add the application to the users of the organisation, and give it the role Administrator on the agent pool.';
    return new OnejobError('E_CI_CREDENTIAL', message, { hint, retry });
  };

  /** Not bound to one caller's signal, because others wait for it too. */
  const fetchToken = async (secret: string): Promise<Token> => {
    const doing = `get a token for ${who}`;
    const signal = new AbortController().signal;
    await throttle.ready(doing, clock.now() + timeout, signal);
    const madeAt = clock.now();
    const form = new URLSearchParams({ grant_type: 'client_credentials', client_id: client, client_secret: secret, scope });
    const url = `${authority}/${encodeURIComponent(tenant)}/oauth2/v2.0/token`;
    const headers = { 'Content-Type': 'application/x-www-form-urlencoded', Accept: 'application/json' };
    const request = { method: 'POST', url, headers, body: form.toString(), doing } as const;
    const answer = await exchange(request, { clock, fetch: send, timeout, most: 256 * 1024 }, signal);
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
      throw new OnejobError('E_CI_UNREACHABLE', `Cannot ${doing}: ${authority} answered ${why}.`, { hint, retry: true });
    }
    if (said === undefined && answer.status !== 401) {
      const hint = 'Check "authority", and any proxy in front of it.';
      const message = `Cannot ${doing}: ${authority} answered ${why}, without a token.`;
      throw new OnejobError('E_CI_ANSWER', message, { hint, retry: true });
    }
    throw hold.begin(secret, rejection(authority, why, false));
  };

  /** One request at a time for all callers. */
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
      const formEncoded = new URLSearchParams({ '': secret }).toString().slice(1);
      known.add(secret, encodeURIComponent(secret), formEncoded, Buffer.from(secret).toString('base64'));
      hold.check(secret);
      const now = clock.now();
      const held = token?.secret === secret && now < token.endsAt ? token : null;
      last = secret;
      if (held !== null && now < held.renewAt) return held.header;
      try {
        return (await abortable(renewed(secret), signal)).header;
      } catch (error) {
        // The early renewal covers an hour in which the authority is away.
        const mayPass = error instanceof OnejobError && error.retry;
        if (held !== null && mayPass) return held.header;
        throw error;
      }
    },
    redact: known.all,
    rejected(why, header) {
      // A newer token has replaced it.
      if (header !== undefined && token !== null && header !== token.header) return rejection(base, why, true);
      const isYoung = token === null || clock.now() - token.madeAt < young;
      token = null;
      const error = rejection(base, why, !isYoung);
      return isYoung ? hold.begin(last, error) : error;
    },
    refusal: (why) => rejection(base, why, false),
    accepted: () => hold.end(last),
  };
}

/** Reads a secret for each use, from its file only when that has changed. @throws OnejobError E_SECRET */
function secretOf(reference: SecretReference, variables: Variables | undefined) {
  let cached: { readonly mark: string; readonly text: string } | null = null;
  return async (): Promise<string> => {
    const mark = reference.kind === 'file' ? await markOf(reference.path) : null;
    if (cached !== null && mark !== null && cached.mark === mark) return cached.text;
    const text = (await readSecret(reference, variables)).trim();
    if (text === '') {
      const hint = `${howToReplace(reference)}.`;
      throw new OnejobError('E_SECRET', `The secret in ${placeOf(reference)} contains only whitespace.`, { hint });
    }
    cached = mark === null ? null : { mark, text };
    return text;
  };
}

/** Changes with the file; null when it cannot be read, which reading it reports better. */
async function markOf(path: string): Promise<string | null> {
  const found = await stat(path, { bigint: true }).catch(() => null);
  return found === null ? null : [found.ino, found.size, found.mtimeNs, found.ctimeNs].join(' ');
}

/** Secrets to remove from texts. Old ones stay, because messages about them may still come. */
function createKnown() {
  const values = new Set<string>();
  return {
    add(...texts: readonly string[]): void {
      for (const text of texts) {
        // Such a short text is not a secret, and removing it would spoil messages.
        if (text.length < 6) continue;
        values.delete(text);
        values.add(text);
      }
      for (const oldest of [...values].slice(0, -32)) values.delete(oldest);
    },
    all: (): readonly string[] => [...values],
  };
}

/** ms until a refused secret is tried again. */
const retryAfter = 600_000;

/** Keeps onejob from sending a refused secret again and again. */
function createHold(clock: Clock) {
  let held: { readonly secret: string; readonly until: number; readonly error: OnejobError } | null = null;
  return {
    check(secret: string): void {
      if (held !== null && held.secret === secret && clock.now() < held.until) throw held.error;
    },
    begin(secret: string, error: OnejobError): OnejobError {
      held = { secret, until: clock.now() + retryAfter, error };
      return error;
    },
    end(secret: string): void {
      if (held?.secret === secret) held = null;
    },
  };
}

/** Removes secrets from a text, the longest first, since one may contain another. */
export function without(secrets: readonly string[], text: string): string {
  return [...secrets].sort((a, b) => b.length - a.length).reduce((left, secret) => left.replaceAll(secret, '***'), text);
}
