/**
 * Access tokens of Google: from the key of a service account (RFC 7523), from the metadata server, or from a command. A token is held
 * until shortly before its end. No text of this file contains a token or a key.
 */
import { z } from 'zod';
import { type ErrorOptions, OnejobError } from '../../base/errors.ts';
import { clearTextHost } from '../../http/address.ts';
import { type Answer, brief } from '../../http/exchange.ts';
import { CloudError } from '../../ports/cloud.ts';
import { readSecret, type SecretReference, secretPlace } from '../../schema/secret-reference.ts';
import { assertion, rsaKeyIn } from '../../secrets/tokens.ts';
import { jsonOf } from '../../system/json.ts';
import { askProgram, type Caller, type CloudParts } from '../kit/caller.ts';
import { type Expiring, ExpiringCache } from '../kit/expiring-cache.ts';
import type { GcpCredential } from './config.ts';
import { token as tokenAnswer } from './wire.ts';

export interface GcpAccess {
  /** For people; never a secret. */
  readonly name: string;
  /** @throws CloudError E_CLOUD_*, OnejobError E_SECRET */
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

const keyFile = z.object({
  type: z.literal('service_account'),
  client_email: z.string(),
  private_key: z.string(),
  private_key_id: z.string().optional(),
  token_uri: z.string().default('https://oauth2.googleapis.com/token'),
});
type KeyFile = z.infer<typeof keyFile>;
/** A file that may contain something else. */
const anyFile = z.object({ type: z.string() });

export function createAccess(credential: GcpCredential, caller: Caller, parts: CloudParts): GcpAccess {
  const { clock, variables } = parts;
  const tokens = new ExpiringCache<string>(clock.now);
  let name = nameOf(credential, variables);

  const lease = (value: string, ms: number): Expiring<string> => ({ value, until: clock.now() + ms });

  /** What an endpoint says that makes tokens; null: no token. */
  function granted({ status, text }: Answer): Expiring<string> | null {
    const found = tokenAnswer.safeParse(jsonOf(text)).data;
    return status === 200 && found !== undefined ? lease(found.access_token, found.expires_in * 1000 - early) : null;
  }

  async function fromKey(reference: SecretReference, signal: AbortSignal): Promise<Expiring<string>> {
    const { data: key } = keyFile.safeParse(jsonOf(await readSecret(reference, variables)));
    if (key === undefined)
      throw refuse(`${secretPlace(reference)} does not contain the key of a service account`, {
        hint: 'Create one with "gcloud iam service-accounts keys create", and put the whole file there.',
      });
    const { token_uri: url, client_email: email } = key;
    name = `service account ${email}`;
    if (!URL.canParse(url) || !/^https?:/.test(url) || clearTextHost(url) !== null)
      throw refuse(`"token_uri" in the key of ${email} is not an https address`, { hint: 'Create a new key.' });
    const headers = { 'Content-Type': 'application/x-www-form-urlencoded' };
    const asked = { doing: `sign in to Google Cloud as ${email}`, place: 'its token endpoint', changes: false };
    for (let attempts = 1; ; attempts++) {
      const usedSkew = caller.skew() ?? 0;
      const assertion = assertionOf(key, caller.now());
      const body = new URLSearchParams({ grant_type: 'urn:ietf:params:oauth:grant-type:jwt-bearer', assertion }).toString();
      const answer = await caller.send({ method: 'POST', url, headers, body }, asked, signal);
      const found = granted(answer);
      if (found !== null) return found;
      // Our clock is wrong, and its answer said by how much.
      if (answer.status === 400 && attempts === 1 && Math.abs((caller.skew() ?? 0) - usedSkew) > tolerance) continue;
      throw whyNot(answer, asked.doing);
    }
  }

  async function fromMetadata(signal: AbortSignal): Promise<Expiring<string>> {
    const host = variables.GCE_METADATA_HOST ?? 'metadata.google.internal';
    const url = `http://${host}/computeMetadata/v1/instance/service-accounts/default/token`;
    const asked = { doing: 'get a token of this machine', place: `its metadata server (${host})`, changes: false };
    const answer = await caller.send({ method: 'GET', url, headers: { 'Metadata-Flavor': 'Google' } }, asked, signal);
    const found = granted(answer);
    if (found !== null) return found;
    throw refuse(`the metadata server answered ${answer.status}`, {
      hint: 'Give this machine a service account, or write "credentials" with a "file".',
      retry: answer.status >= 500,
    });
  }

  async function fromCommand(command: readonly string[], signal: AbortSignal): Promise<Expiring<string>> {
    const token = await askProgram(command, parts, signal);
    if (/^[\x21-\x7e]{20,8192}$/.test(token)) return lease(token, ofCommand);
    throw refuse(`"${command[0]}" did not print one access token`, { hint: `Run "${command.join(' ')}" to see what it prints.` });
  }

  async function usual(signal: AbortSignal): Promise<Expiring<string>> {
    const path = variables.GOOGLE_APPLICATION_CREDENTIALS ?? '';
    if (path === '') return fromCommand(gcloud, signal);
    const reference = { kind: 'file', path, expires: null } as const;
    const found = anyFile.safeParse(jsonOf(await readSecret(reference, variables))).data;
    return found?.type === 'service_account' ? fromKey(reference, signal) : fromCommand(gcloudDefault, signal);
  }

  function make(signal: AbortSignal): Promise<Expiring<string>> {
    if (credential.kind === 'key') return fromKey(credential.key, signal);
    if (credential.kind === 'command') return fromCommand(credential.command, signal);
    return credential.kind === 'metadata' ? fromMetadata(signal) : usual(signal);
  }

  return {
    get name() {
      return name;
    },
    token: (signal) => tokens.get('', make, signal),
    refused: (token) => tokens.forget(token),
  };
}

function nameOf(credential: GcpCredential, variables: CloudParts['variables']): string {
  if (credential.kind === 'key') return `key in ${secretPlace(credential.key)}`;
  if (credential.kind === 'command') return `command ${credential.command[0]}`;
  if (credential.kind === 'metadata') return 'service account of this machine';
  const path = variables.GOOGLE_APPLICATION_CREDENTIALS ?? '';
  return path === '' ? 'account of gcloud' : `key in file ${path}`;
}

const refuse = (why: string, options: ErrorOptions): CloudError =>
  new CloudError('E_CLOUD_CREDENTIAL', `Cannot sign in to Google Cloud: ${why}.`, options);

/** RFC 7523, 3; Google takes at most an hour. `now`: ms since the epoch by Google's clock. @throws OnejobError E_SECRET */
function assertionOf(key: KeyFile, now: number): string {
  const pem = rsaKeyIn(key.private_key);
  if (pem === null)
    throw new OnejobError('E_SECRET', `The key of ${key.client_email} does not contain an RSA key in PEM format.`, {
      hint: 'Create a new one with "gcloud iam service-accounts keys create".',
    });
  const iat = Math.floor(now / 1000);
  return assertion(pem, { iss: key.client_email, scope, aud: key.token_uri, iat, exp: iat + 3600 }, key.private_key_id);
}

/** RFC 6749, 5.2 */
const signInError = z.object({ error: z.string(), error_description: z.string().default('') });

function whyNot({ status, text }: Answer, doing: string): CloudError {
  const said = signInError.safeParse(jsonOf(text)).data;
  if (status >= 500 || said === undefined)
    return new CloudError('E_CLOUD_UNREACHABLE', `Cannot ${doing}: its token endpoint answered ${status}.`, { retry: true });
  const { error, error_description: description } = said;
  return new CloudError('E_CLOUD_CREDENTIAL', `Cannot ${doing}: ${error} (${brief(description)}).`, {
    reason: error,
    hint: 'Look whether the service account and this key still exist, and at the clock of this host.',
  });
}
