/**
 * What requests are signed with. A credential that expires is kept until shortly before, one that a program printed without an end
 * until AWS refuses it; all others are read each time, so that a renewed file or secret counts at once.
 */
import { z } from 'zod';
import type { ErrorOptions } from '../../base/errors.ts';
import { CloudError } from '../../ports/cloud.ts';
import { readSecret } from '../../schema/secret-reference.ts';
import { jsonOf } from '../../system/json.ts';
import { askProgram, type Caller, type CloudParts } from '../kit/caller.ts';
import { type Expiring, ExpiringCache } from '../kit/expiring-cache.ts';
import type { AwsCredentialSource } from './config.ts';
import { profileOf, wordsOf } from './profile.ts';

export interface AwsCredential {
  readonly id: string;
  readonly secret: string;
  /** null: it is for good. */
  readonly session: string | null;
}

/** ms before its end from which a credential is not used any more. */
const margin = 5 * 60_000;

const printed = z.object({
  Version: z.literal(1),
  AccessKeyId: z.string().min(1),
  SecretAccessKey: z.string().min(1),
  SessionToken: z.string().nullish(),
  Expiration: z.string().nullish(),
});

/** The same, as the metadata service has it, without a version. */
const ofRole = z.object({ AccessKeyId: z.string(), SecretAccessKey: z.string(), Token: z.string(), Expiration: z.string() });

export interface AwsCredentials {
  /** @throws CloudError E_CLOUD_CREDENTIAL, E_SECRET */
  get(signal: AbortSignal): Promise<AwsCredential>;
  /** AWS refused it. */
  forget(credential: AwsCredential): void;
  /** How people call it. */
  readonly name: string;
}

export function createCredentials(
  source: AwsCredentialSource,
  parts: Pick<CloudParts, 'variables' | 'run'>,
  caller: Caller,
): AwsCredentials {
  const { variables } = parts;
  const held = new ExpiringCache<AwsCredential>(caller.now);

  const read = (id: string, secret: string, session: string | null): Expiring<AwsCredential> => ({
    value: { id, secret, session },
    until: 0,
  });
  const until = (end: string): number => Date.parse(end) - margin || 0;

  async function fromProgram(command: readonly string[], signal: AbortSignal): Promise<Expiring<AwsCredential>> {
    const found = printed.safeParse(jsonOf(await askProgram(command, parts, signal)));
    if (!found.success)
      throw refuse(`"${command[0]}" printed no credential`, {
        hint: 'It must print what credential_process of the AWS CLI prints: Version, AccessKeyId, SecretAccessKey.',
      });
    const { AccessKeyId: id, SecretAccessKey: secret, SessionToken: session = null, Expiration: end = null } = found.data;
    return { value: { id, secret, session }, until: end === null ? Number.POSITIVE_INFINITY : until(end) };
  }

  async function fromProfile(name: string, signal: AbortSignal): Promise<Expiring<AwsCredential>> {
    const profile = await profileOf(name, variables);
    if (profile === null)
      throw refuse(`there is no profile "${name}"`, {
        hint: `Run "aws configure --profile ${name}" as the user that onejob runs as, or change "credentials" of this cloud.`,
      });
    const { aws_access_key_id: id = '', aws_secret_access_key: secret = '', aws_session_token: session = null } = profile;
    if (profile.role_arn === undefined) {
      if (id !== '' && secret !== '') return read(id, secret, session);
      if (profile.credential_process !== undefined) return fromProgram(wordsOf(profile.credential_process), signal);
    }
    return fromProgram(['aws', 'configure', 'export-credentials', '--profile', name, '--format', 'process'], signal);
  }

  /** Of the machine that onejob runs on, by IMDSv2. */
  async function fromMetadata(signal: AbortSignal): Promise<Expiring<AwsCredential>> {
    const base = 'http://169.254.169.254/latest';
    const sending = { doing: 'sign in to AWS', place: 'the metadata service of this machine', changes: false };
    const ask = async (method: 'GET' | 'PUT', path: string, headers: Readonly<Record<string, string>>): Promise<string> => {
      const { status, text } = await caller.send({ method, url: `${base}${path}`, headers }, sending, signal);
      if (status === 200) return text.trim();
      throw refuse(status === 404 ? 'this machine has no role' : `the metadata service answered ${status}`, {
        hint: 'Give the EC2 instance that onejob runs on an instance profile with deploy/cloud/aws-policy.json.',
        retry: status === 429 || status >= 500,
      });
    };
    const token = { 'X-aws-ec2-metadata-token': await ask('PUT', '/api/token', { 'X-aws-ec2-metadata-token-ttl-seconds': '300' }) };
    const roles = '/meta-data/iam/security-credentials/';
    const [role = ''] = (await ask('GET', roles, token)).split('\n');
    const found = ofRole.safeParse(jsonOf(await ask('GET', `${roles}${encodeURIComponent(role)}`, token)));
    if (!found.success) throw refuse(`role "${role}" of this machine has no credential`, { retry: true });
    const { AccessKeyId: id, SecretAccessKey: secret, Token: session, Expiration: end } = found.data;
    return { value: { id, secret, session }, until: until(end) };
  }

  async function find(signal: AbortSignal): Promise<Expiring<AwsCredential>> {
    switch (source.kind) {
      case 'usual': {
        const { AWS_ACCESS_KEY_ID: id = '', AWS_SECRET_ACCESS_KEY: secret = '', AWS_SESSION_TOKEN: session = '' } = variables;
        if (id !== '' && secret !== '') return read(id, secret, session === '' ? null : session);
        return fromProfile(variables.AWS_PROFILE || 'default', signal);
      }
      case 'profile':
        return fromProfile(source.profile, signal);
      case 'keys': {
        const secret = await readSecret(source.secret, variables);
        return read(source.id, secret, source.session === null ? null : await readSecret(source.session, variables));
      }
      case 'command':
        return fromProgram(source.command, signal);
      case 'metadata':
        return fromMetadata(signal);
    }
  }

  return {
    get: (signal) => held.get('', find, signal),
    forget: (credential) => held.forget(credential),
    name: nameOf(source),
  };
}

const refuse = (why: string, options: ErrorOptions): CloudError =>
  new CloudError('E_CLOUD_CREDENTIAL', `Cannot sign in to AWS: ${why}.`, options);

function nameOf(source: AwsCredentialSource): string {
  switch (source.kind) {
    case 'usual':
      return 'the usual credential of AWS';
    case 'profile':
      return `profile ${source.profile}`;
    case 'keys':
      return `access key ${source.id}`;
    case 'command':
      return `what ${source.command[0]} prints`;
    case 'metadata':
      return 'the role of this machine';
  }
}
