/**
 * Access tokens of Google: from the key of a service account (RFC 7523), from the metadata server, or from a command. A token is held
 * until shortly before its end; one call at a time gets a new one. No text of this file contains a token or a key.
 */
import { createPrivateKey, sign } from 'node:crypto';
import { z } from 'zod';
import { clearTextHost } from '../../config/service-keys.ts';
import { attempt, OnejobError } from '../../errors.ts';
import { brief } from '../../http/exchange.ts';
import { placeOf, readSecret, type SecretReference } from '../../secrets/reference.ts';
import { jsonOf } from '../../system/json.ts';
import { CloudError } from '../cloud.ts';
import { askProgram, type Caller, type CloudParts } from '../kit/caller.ts';
import type { GcpCredential } from './type.ts';
import { token as tokenAnswer } from './wire.ts';

export interface Access {
  /** For people; never a secret. */
  readonly name: string;
  token(signal: AbortSignal): Promise<string>;
  /** The cloud refused this token, so it is not used again. */
  refused(token: string): void;
}

/** The role of the credential limits what a token can do, not its scope. */
const scope = 'https://www.googleapis.com/auth/cloud-platform';
/** ms before its end at which a token is replaced. */
const early = 5 * 60_000;
/** ms for which a token of a command is used, which does not say when it ends. gcloud prints one that is valid for 5 minutes at least. */
const ofCommand = 4 * 60_000;
/** ms by which clocks may differ before Google refuses what is signed with ours. */
const tolerance = 60_000;

const gcloud = ['gcloud', 'auth', 'print-access-token'];
/** Understands every kind of file that GOOGLE_APPLICATION_CREDENTIALS may name. */
const gcloudDefault = ['gcloud', 'auth', 'application-default', 'print-access-token'];

interface Held {
  readonly token: string;
  /** ms, of the clock's `now`. */
  readonly until: number;
}

const keyFile = z.object({
  type: z.string(),
  client_email: z.string().optional(),
  private_key: z.string().optional(),
  private_key_id: z.string().optional(),
  token_uri: z.string().default('https://oauth2.googleapis.com/token'),
});
type KeyFile = z.infer<typeof keyFile>;

export function createAccess(credential: GcpCredential, caller: Caller, parts: CloudParts): Access {
  const { clock, variables } = parts;
  let held: Held | null = null;
  let flight: Promise<Held> | null = null;
  let name = nameOf(credential, variables);

  const hold = (token: string, ms: number): Held => ({ token, until: clock.now() + ms });

  async function fromKey(reference: SecretReference, signal: AbortSignal): Promise<Held> {
    const found = keyFile.safeParse(jsonOf(await readSecret(reference, variables)));
    const { type, client_email: email, private_key: pem } = found.data ?? {};
    if (type !== 'service_account' || email === undefined || pem === undefined || found.data === undefined)
      throw refuse(`${placeOf(reference)} does not contain the key of a service account`, {
        hint: 'Create one with "gcloud iam service-accounts keys create", and put the whole file there.',
      });
    name = `service account ${email}`;
    return signIn({ ...found.data, client_email: email, private_key: pem }, signal);
  }

  async function signIn(key: KeyFile & { client_email: string; private_key: string }, signal: AbortSignal): Promise<Held> {
    const { token_uri: url, client_email: email } = key;
    if (!URL.canParse(url) || !/^https?:/.test(url) || clearTextHost(url) !== null)
      throw refuse(`"token_uri" in the key of ${email} is not an https address`, { hint: 'Create a new key.' });
    for (let attempts = 1; ; attempts++) {
      const usedSkew = caller.skew() ?? 0;
      const assertion = assertionOf(key, caller.now());
      const answer = await caller.send(
        {
          method: 'POST',
          url,
          headers: { 'Content-Type': 'application/x-www-form-urlencoded' },
          body: new URLSearchParams({ grant_type: 'urn:ietf:params:oauth:grant-type:jwt-bearer', assertion }).toString(),
        },
        { doing: `sign in to Google Cloud as ${email}`, place: 'its token endpoint', changes: false },
        signal,
      );
      const found = tokenAnswer.safeParse(jsonOf(answer.text));
      if (answer.status === 200 && found.success) return hold(found.data.access_token, found.data.expires_in * 1000 - early);
      // Our clock is wrong, and its answer said by how much.
      if (answer.status === 400 && attempts === 1 && Math.abs((caller.skew() ?? 0) - usedSkew) > tolerance) continue;
      throw whyNot(answer.status, answer.text, email);
    }
  }

  async function fromMetadata(signal: AbortSignal): Promise<Held> {
    const host = variables.GCE_METADATA_HOST ?? 'metadata.google.internal';
    const url = `http://${host}/computeMetadata/v1/instance/service-accounts/default/token`;
    const answer = await caller.send(
      { method: 'GET', url, headers: { 'Metadata-Flavor': 'Google' } },
      { doing: 'get a token of this machine', place: `its metadata server (${host})`, changes: false },
      signal,
    );
    const found = tokenAnswer.safeParse(jsonOf(answer.text));
    if (answer.status === 200 && found.success) return hold(found.data.access_token, found.data.expires_in * 1000 - early);
    throw refuse(`the metadata server answered ${answer.status}`, {
      hint: 'Give this machine a service account, or write "credentials" with a "file".',
      retry: answer.status >= 500,
    });
  }

  async function fromCommand(command: readonly string[], signal: AbortSignal): Promise<Held> {
    const token = await askProgram(command, parts, signal);
    if (/^[\x21-\x7e]{20,8192}$/.test(token)) return hold(token, ofCommand);
    throw refuse(`"${command[0]}" did not print one access token`, { hint: `Run "${command.join(' ')}" to see what it prints.` });
  }

  async function usual(signal: AbortSignal): Promise<Held> {
    const path = variables.GOOGLE_APPLICATION_CREDENTIALS ?? '';
    if (path === '') return fromCommand(gcloud, signal);
    const reference = { kind: 'file', path, expires: null } as const;
    const found = keyFile.safeParse(jsonOf(await readSecret(reference, variables)));
    return found.data?.type === 'service_account' ? fromKey(reference, signal) : fromCommand(gcloudDefault, signal);
  }

  function make(signal: AbortSignal): Promise<Held> {
    if (credential.kind === 'key') return fromKey(credential.key, signal);
    if (credential.kind === 'command') return fromCommand(credential.command, signal);
    return credential.kind === 'metadata' ? fromMetadata(signal) : usual(signal);
  }

  return {
    get name() {
      return name;
    },
    async token(signal) {
      if (held !== null && clock.now() < held.until) return held.token;
      // Others may wait for the same one, so it does not end with this caller's signal. It ends by itself in bounded time.
      flight ??= make(new AbortController().signal).finally(() => {
        flight = null;
      });
      const flying = flight;
      const gone = Promise.withResolvers<never>();
      const leave = (): void => gone.reject(signal.reason);
      signal.addEventListener('abort', leave, { once: true });
      try {
        signal.throwIfAborted();
        held = await Promise.race([flying, gone.promise]);
        return held.token;
      } finally {
        signal.removeEventListener('abort', leave);
      }
    },
    refused(token) {
      if (held?.token === token) held = null;
    },
  };
}

function nameOf(credential: GcpCredential, variables: CloudParts['variables']): string {
  if (credential.kind === 'key') return `key in ${placeOf(credential.key)}`;
  if (credential.kind === 'command') return `command ${credential.command[0]}`;
  if (credential.kind === 'metadata') return 'service account of this machine';
  const path = variables.GOOGLE_APPLICATION_CREDENTIALS ?? '';
  return path === '' ? 'account of gcloud' : `key in file ${path}`;
}

function refuse(why: string, options: { readonly hint: string; readonly retry?: boolean }): CloudError {
  return new CloudError('E_CLOUD_CREDENTIAL', `Cannot sign in to Google Cloud: ${why}.`, options);
}

/** RFC 7523, 3; Google takes at most an hour. `now`: ms since the epoch by Google's clock. @throws OnejobError E_SECRET */
function assertionOf(key: KeyFile & { client_email: string; private_key: string }, now: number): string {
  const pem = attempt(() => createPrivateKey(key.private_key));
  if (pem?.asymmetricKeyType !== 'rsa')
    throw new OnejobError('E_SECRET', `The key of ${key.client_email} does not contain an RSA key in PEM format.`, {
      hint: 'Create a new one with "gcloud iam service-accounts keys create".',
    });
  const iat = Math.floor(now / 1000);
  const body = [
    { alg: 'RS256', typ: 'JWT', kid: key.private_key_id },
    { iss: key.client_email, scope, aud: key.token_uri, iat, exp: iat + 3600 },
  ]
    .map((part) => Buffer.from(JSON.stringify(part)).toString('base64url'))
    .join('.');
  return `${body}.${sign('sha256', Buffer.from(body), pem).toString('base64url')}`;
}

/** RFC 6749, 5.2 */
const signInError = z.object({ error: z.string(), error_description: z.string().default('') });

function whyNot(status: number, text: string, email: string): CloudError {
  const said = signInError.safeParse(jsonOf(text)).data;
  if (status >= 500 || said === undefined)
    return new CloudError(
      'E_CLOUD_UNREACHABLE',
      `Cannot sign in to Google Cloud as ${email}: its token endpoint answered ${status}.`,
      {
        ...{ retry: true },
      },
    );
  const { error, error_description: description } = said;
  return new CloudError('E_CLOUD_CREDENTIAL', `Cannot sign in to Google Cloud as ${email}: ${error} (${brief(description)}).`, {
    reason: error,
    hint: 'Look whether the service account and this key still exist, and at the clock of this host.',
  });
}
