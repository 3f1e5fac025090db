/**
 * What an error of AWS means. The code decides before the HTTP status does: EC2 reports a lack of capacity with 500
 * (botocore's and others' tables; the texts are from public issues).
 */
import { brief } from '../../http/exchange.ts';
import { CloudError, type CloudErrorCode } from '../../ports/cloud.ts';
import { type CloudRequest, sentence } from '../kit/caller.ts';
import { quotaOf } from './sizes.ts';

/** An error as a service of AWS sent it. */
export interface AwsProblem {
  readonly status: number;
  /** Empty: the answer could not be read. */
  readonly code: string;
  readonly message: string;
}

/** What was asked of a service in `region`. */
export interface AwsCall extends CloudRequest {
  readonly region: string;
}

/** By code, the first one that fits. */
const kinds: Readonly<Partial<Record<CloudErrorCode, RegExp>>> = {
  E_CLOUD_THROTTLED: /^(RequestLimitExceeded|Throttl\w*|TooManyRequests\w*|RequestThrottled\w*|EC2ThrottledException|SlowDown)$/,
  E_CLOUD_CAPACITY:
    /^(InsufficientInstanceCapacity|InsufficientHostCapacity|InsufficientCapacity\w*|UnfulfillableCapacity|SpotMaxPriceTooLow|InsufficientFreeAddressesInSubnet|InsufficientAddressCapacity|InsufficientVolumeCapacity|Unsupported)$/,
  E_CLOUD_QUOTA: /^(\w*LimitExceeded|MaxSpotInstanceCountExceeded|ServiceQuotaExceeded\w*|\w*QuotaExceeded\w*)$/,
  E_CLOUD_ACCOUNT: /^(PendingVerification|OptInRequired|Blocked|AccountDisabled|SubscriptionRequired\w*)$/,
  E_CLOUD_DENIED:
    /^(UnauthorizedOperation|AccessDenied(Exception)?|Client\.UnauthorizedOperation|AuthFailure\.ServiceLinkedRoleCreationNotPermitted|NotAuthorized)$/,
  E_CLOUD_CREDENTIAL:
    /^(AuthFailure|InvalidClientTokenId|UnrecognizedClient(Exception)?|InvalidAccessKeyId|ExpiredToken(Exception)?|RequestExpired|SignatureDoesNotMatch|InvalidSignature(Exception)?|IncompleteSignature(Exception)?|MissingAuthenticationToken(Exception)?|InvalidToken)$/,
  E_CLOUD_UNREACHABLE: /^(InternalError|InternalFailure|InternalServer\w*|ServiceUnavailable\w*|Unavailable|RequestTimeout\w*)$/,
};

/** Whether AWS refused the signature because of its time, so that nothing was done. */
export function isAboutTime({ code, message }: AwsProblem): boolean {
  if (code === 'RequestExpired' || code === 'RequestTimeTooSkewed') return true;
  return (
    /^(SignatureDoesNotMatch|InvalidSignatureException|AuthFailure)$/.test(code) && /not yet current|expired|skew/i.test(message)
  );
}

function kindOf({ status, code }: AwsProblem): CloudErrorCode {
  const known = Object.entries(kinds).find(([, codes]) => codes.test(code));
  if (known !== undefined) return known[0] as CloudErrorCode;
  if (status >= 500) return 'E_CLOUD_UNREACHABLE';
  if (status === 429) return 'E_CLOUD_THROTTLED';
  if (code === '') return 'E_CLOUD_ANSWER';
  return 'E_CLOUD_REQUEST';
}

/** Zones that an error names as having capacity: `… or choosing eu-central-1a, eu-central-1c`. */
function zonesIn(message: string): string[] {
  const named = /\bchoosing ([^.]+)/.exec(message)?.[1] ?? '';
  return named.match(/\b[a-z]{2,3}(?:-[a-z]+)+-\d+[a-z](?:-\w+)*/g) ?? [];
}

/** Codes for which another try may succeed without a change by a person. */
const passes: readonly CloudErrorCode[] = ['E_CLOUD_CAPACITY', 'E_CLOUD_THROTTLED', 'E_CLOUD_UNREACHABLE', 'E_CLOUD_ANSWER'];

/** Something is still attached, which goes first. */
const isInUse = ({ code, message }: AwsProblem): boolean =>
  /InUse$|^DependencyViolation$/.test(code) || (code === 'InvalidParameterValue' && /currently in use/.test(message));

export function toCloudError(problem: AwsProblem, asked: AwsCall): CloudError {
  const kind = kindOf(problem);
  const { doing, place, changes } = asked;
  const { code, status, message } = problem;
  // A refusal may come with a long encoded text, which says nothing to a person.
  const said = brief(message.replace(/\s*Encoded authorization failure message:.*$/s, ''));
  const what = code === '' ? `HTTP ${status}` : `${code} (HTTP ${status})`;
  const { text = '', hint } = kind === 'E_CLOUD_QUOTA' ? quotaOfError(problem, asked) : { hint: hintOf(kind, problem, asked) };
  // The token belongs to an earlier call with other values: that one may have made a machine.
  const isSecond = code === 'IdempotentParameterMismatch';
  return new CloudError(kind, `Cannot ${doing}: ${sentence(`${place} answered ${what}${said === '' ? '' : `: ${said}`}`)}${text}`, {
    hint,
    reason: code === '' ? null : code,
    retry: passes.includes(kind) || code === 'PendingVerification' || isInUse(problem),
    isAmbiguous: isSecond || (changes && (kind === 'E_CLOUD_UNREACHABLE' || kind === 'E_CLOUD_ANSWER')),
    zones: kind === 'E_CLOUD_CAPACITY' ? zonesIn(message) : [],
  });
}

/** Which quota a machine counts against, and what it needs of it. */
function quotaOfError(
  { code, message }: AwsProblem,
  { offer, region }: AwsCall,
): { readonly text?: string; readonly hint: string } {
  const quota = offer !== undefined && /Vcpu|MaxSpot|InstanceLimit/.test(code) ? quotaOf(offer.type, offer.spot) : null;
  if (quota === null) return { hint: `Ask for more in Service Quotas of the AWS console, in ${region}.` };
  const limit = /limit of (\d+)/.exec(message)?.[1];
  const needs = quota.vcpus === null ? 'vCPUs' : `${quota.vcpus} vCPUs`;
  const now = limit === undefined ? '' : `; its limit is ${limit}`;
  return {
    text: ` ${offer?.type} needs ${needs} of quota "${quota.name}" (${quota.code}) in ${region}${now}.`,
    hint: `Ask for more of ${quota.code} in Service Quotas of the AWS console, in ${region}. It often takes a day.`,
  };
}

function hintOf(kind: CloudErrorCode, { code, message }: AwsProblem, { needs }: AwsCall): string | null {
  switch (kind) {
    case 'E_CLOUD_DENIED':
      if (code.startsWith('AuthFailure.'))
        return 'Run "aws iam create-service-linked-role --aws-service-name spot.amazonaws.com" once in this account.';
      return `Allow ${needs.join(', ')}: deploy/cloud/aws-policy.json has all that onejob needs.`;
    case 'E_CLOUD_CREDENTIAL':
      if (code === 'RequestExpired') return 'Sign in again if the credential expires; else set the clock of this host.';
      if (code.startsWith('Expired')) return 'Sign in again, or look at what renews the credential.';
      return 'Look at "credentials" of this cloud, and whether the key is still active.';
    case 'E_CLOUD_ACCOUNT':
      if (code === 'PendingVerification')
        return 'AWS examines a new account in this region, which takes minutes to 4 hours; nothing was made.';
      return 'Look at the AWS console, and turn the region or service on there.';
    case 'E_CLOUD_CAPACITY':
      return 'onejob tries the next zone or type; another region may have it too.';
    case 'E_CLOUD_REQUEST':
      if (code === 'ValidationException' && /role/i.test(message))
        return 'Look at "scheduler_role" of this cloud, and at the trust policy of that role: docs/cloud/aws.md.';
      return requestHints.find(([codes]) => codes.test(code))?.[1] ?? null;
    default:
      return null;
  }
}

const requestHints: readonly (readonly [codes: RegExp, hint: string])[] = [
  [/AMI|Image|Parameter(NotFound|VersionNotFound)/, 'Look at "image" of the host: its "from" must exist in this region.'],
  [/InstanceType/, 'Look at "types" of the host.'],
  [/Subnet|Group|Vpc|VPC/, 'Look at "subnets" and "security_group" of this cloud: they must be in its region.'],
  [/BlockDevice|Volume/, 'Look at "disk" and "image" of the host.'],
];
