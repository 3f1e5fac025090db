/** Access tokens for Azure Resource Manager: of an Entra application, from a program of the user, or of a managed identity. */
import { z } from 'zod';
import type { Clock } from '../../core/clock.ts';
import { CloudError } from '../../ports/cloud.ts';
import { type Credential, createKnown, without } from '../../secrets/credential.ts';
import { createEntra } from '../../secrets/entra.ts';
import { jsonOf } from '../../system/json.ts';
import { askProgram, type Caller, type CloudParts } from '../kit/caller.ts';
import { type Expiring, ExpiringCache } from '../kit/expiring-cache.ts';
import { type AzureConfig, audienceOf } from './config.ts';

export interface ArmCredential extends Pick<Credential, 'header' | 'redact'> {
  /** As `Cloud.credential` has it. */
  readonly title: string;
  /** Azure refused the header. A new one is asked for at the next call. */
  rejected(why: string, header: string): CloudError;
}

/** Where a managed identity's tokens are; only inside of Azure. */
const metadata = 'http://169.254.169.254/metadata/identity/oauth2/token?api-version=2018-02-01';

const codes = {
  credential: 'E_CLOUD_CREDENTIAL',
  unreachable: 'E_CLOUD_UNREACHABLE',
  throttled: 'E_CLOUD_THROTTLED',
  answer: 'E_CLOUD_ANSWER',
} as const;

export function createArmCredential(config: AzureConfig, parts: CloudParts, caller: Pick<Caller, 'send' | 'now'>): ArmCredential {
  const { credentials, loginEndpoint: authority, subscription } = config;
  const audience = audienceOf(config);
  if (credentials.kind === 'application') {
    const { tenant, client, secret } = credentials;
    const entra = createEntra(
      { tenant, client, secret, authority },
      {
        clock: parts.clock,
        variables: parts.variables,
        scope: `${audience}/.default`,
        place: audience,
        // Machines must be removed as soon as Azure takes its tokens again, and no account is locked for refused ones.
        young: 0,
        hint: `Give the application ${client} a role in subscription ${subscription}.`,
        send: (request, doing, signal) => caller.send(request, { doing, place: authority, changes: false }, signal),
        fail: (why, message, options) => new CloudError(codes[why], message, options),
      },
    );
    return {
      title: `Entra application ${client}`,
      header: entra.header,
      redact: entra.redact,
      rejected: (why, header) => entra.rejected(why, header) as CloudError,
    };
  }
  if (credentials.kind === 'command') {
    const usual = ['az', 'account', 'get-access-token', '--resource', audience, '--subscription', subscription, '--output', 'json'];
    const command = credentials.command ?? usual;
    return createCached(`program ${command[0]}`, parts.clock, async (signal) => {
      const text = await askProgram(command, parts, signal);
      const token = tokenOf(text, caller.now());
      if (token !== null) return token;
      const message = `Cannot get a credential from "${command[0]}": it printed neither a token nor JSON with an "accessToken".`;
      throw new CloudError('E_CLOUD_CREDENTIAL', message, { hint: `Run "${command.join(' ')}" and look at what it prints.` });
    });
  }
  const { client } = credentials;
  const who = client === null ? 'the managed identity of this machine' : `managed identity ${client}`;
  return createCached(who, parts.clock, async (signal) => {
    const query = `&resource=${encodeURIComponent(`${audience}/`)}${client === null ? '' : `&client_id=${client}`}`;
    const doing = `get a token for ${who}`;
    const place = "Azure's metadata service (169.254.169.254)";
    const request = { method: 'GET', url: `${metadata}${query}`, headers: { Metadata: 'true' } } as const;
    const answer = await caller.send(request, { doing, place, changes: false }, signal);
    const token = tokenOf(answer.text, caller.now());
    if (answer.status === 200 && token !== null) return token;
    const isBusy = answer.status === 429 || answer.status >= 500;
    const message = `Cannot ${doing}: ${place} answered ${answer.status}.`;
    const hint = isBusy
      ? 'onejob tries again.'
      : 'Give this machine a managed identity, or write other "credentials" for the cloud.';
    throw new CloudError(isBusy ? 'E_CLOUD_UNREACHABLE' : 'E_CLOUD_CREDENTIAL', message, { hint, retry: isBusy });
  });
}

interface Token {
  readonly text: string;
  /** ms that it is good for. */
  readonly life: number;
}

/** ms before its end at which a token is renewed. */
const early = 300_000;
/** ms within which no token has become too old. */
const young = 60_000;
/** ms that a token is used whose end nobody says. */
const unknownLife = 300_000;

function createCached(title: string, clock: Clock, make: (signal: AbortSignal) => Promise<Token>): ArmCredential {
  const known = createKnown();
  const held = new ExpiringCache<string>(clock.now);
  let [wasRefused, isSecond, madeAt] = [false, false, 0];
  const renew = async (signal: AbortSignal): Promise<Expiring<string>> => {
    const { text, life } = await make(signal);
    known.add(text);
    [isSecond, wasRefused, madeAt] = [wasRefused, false, clock.now()];
    return { value: `Bearer ${text}`, until: clock.now() + Math.max(life - early, life / 2, 0) };
  };
  return {
    title,
    redact: known.all,
    header: (signal) => held.get('', renew, signal),
    rejected(why, header) {
      held.forget(header);
      wasRefused = true;
      const message = `Azure does not accept the token of ${title} (${without(known.all(), why)}).`;
      // A new one in place of a refused one was not refused for its age.
      const retry = !isSecond || clock.now() - madeAt >= young;
      const hint = retry ? 'onejob asks for a new one at its next call.' : 'Check for which account and tenant it makes tokens.';
      return new CloudError('E_CLOUD_CREDENTIAL', message, { hint, retry });
    },
  };
}

const seconds = z.coerce.number().positive();
const printed = z.object({
  accessToken: z.string().optional(),
  access_token: z.string().optional(),
  /** Seconds since the epoch; `expiresOn`, next to it, is in an unknown time zone. */
  expires_on: seconds.optional().catch(undefined),
  expires_in: seconds.optional().catch(undefined),
});

/** What a program or the metadata service says of a token; null: none. `now`: ms since the epoch by the cloud's clock. */
function tokenOf(text: string, now: number): Token | null {
  const found = printed.safeParse(jsonOf(text)).data;
  const token = found?.accessToken ?? found?.access_token ?? text.trim();
  // Anything else is not a valid header value, and an error of fetch would quote it.
  if (!/^[\x21-\x7e]{16,}$/.test(token) || token.startsWith('{')) return null;
  const end = found?.expires_on ?? endOf(token);
  const life = found?.expires_in !== undefined ? found.expires_in * 1000 : end === null ? unknownLife : end * 1000 - now;
  return { text: token, life: Math.max(life, 0) };
}

/** `exp` of a JSON Web Token (RFC 7519), in seconds since the epoch; null: it says none. */
function endOf(token: string): number | null {
  const body = jsonOf(Buffer.from(token.split('.')[1] ?? '', 'base64url').toString());
  return z.object({ exp: seconds }).safeParse(body).data?.exp ?? null;
}
