/**
 * Errors of Compute Engine as those of onejob. It refuses a call with an HTTP status and a reason, or accepts it and says later, in
 * the call's operation, that it failed. Codes are those that Kubernetes' cluster-autoscaler and SkyPilot tell apart.
 */
import { brief } from '../../http/exchange.ts';
import { CloudError, type CloudErrorCode, type CloudErrorOptions } from '../../ports/cloud.ts';
import { jsonOf } from '../../system/json.ts';
import { type CloudRequest, sentence } from '../kit/caller.ts';
import { gcpRefusal, type OperationError, operationError } from './wire.ts';

const policyHint =
  'A policy of the organisation forbids it. For external addresses write "external_ip: false" and set up Cloud NAT; else ask an administrator of the organisation.';
const quotaHint = 'Ask for more in the console, at IAM & Admin, Quotas. A new project has GPUS_ALL_REGIONS at 0.';

interface Kind {
  readonly code: CloudErrorCode;
  readonly retry?: boolean;
  readonly hint?: string;
  readonly isAmbiguous?: boolean;
}

/** By the code of an operation's error. */
function kindOf(code: string, message: string, isSpot: boolean): Kind {
  if (/RESOURCE_POOL_EXHAUSTED|STOCKOUT|RESOURCE_AVAILABILITY/i.test(code) || /\bSTOCKOUT\b/.test(message))
    return { code: 'E_CLOUD_CAPACITY', retry: true };
  // A Spot machine that is taken away while it starts.
  if (isSpot && /UNSUPPORTED_OPERATION/.test(code)) return { code: 'E_CLOUD_CAPACITY', retry: true };
  if (/RATE_EXCEEDED|RATE_LIMIT/i.test(code)) return { code: 'E_CLOUD_THROTTLED', retry: true };
  if (/QUOTA/i.test(code)) return { code: 'E_CLOUD_QUOTA', hint: quotaHint };
  if (/IP_SPACE_EXHAUSTED/.test(code))
    return { code: 'E_CLOUD_QUOTA', hint: 'The subnetwork has no free address: enlarge it, or write another "subnetwork".' };
  if (/CONDITION_NOT_MET|constraints\//.test(`${code} ${message}`)) return { code: 'E_CLOUD_DENIED', hint: policyHint };
  if (/PERMISSION|FORBIDDEN/i.test(code)) return { code: 'E_CLOUD_DENIED', hint: roleHint };
  if (/ALREADY_EXISTS/.test(code)) return { code: 'E_CLOUD_ANSWER', isAmbiguous: true };
  if (/NOT_READY|INTERNAL|UNAVAILABLE|TIMEOUT|ABORTED|CANCELLED/i.test(code)) return { code: 'E_CLOUD_UNREACHABLE', retry: true };
  return { code: 'E_CLOUD_REQUEST' };
}

const roleHint = 'Give it the role of deploy/cloud/gcp-role.yaml in this project.';

/** The operation of a call that was accepted says that it failed. */
export function failedOperation(errors: readonly OperationError[], attempt: CloudRequest): CloudError {
  const [error = operationError.parse({})] = errors;
  const { code, message } = error;
  const kind = kindOf(code, message, attempt.offer?.spot ?? false);
  return build(kind, code, `${brief(message)}${detailsOf(error)}`, attempt, { zones: zonesOf(error) });
}

/** Zones that have capacity: `us-central1-a,us-central1-f` (kubernetes/k8s.io#9834). */
function zonesOf({ errorDetails }: OperationError): readonly string[] {
  const named = errorDetails.flatMap(({ errorInfo }) => errorInfo?.metadatas?.zonesAvailable?.split(',') ?? []);
  return named.map((zone) => zone.trim()).filter((zone) => /^[a-z0-9-]+$/.test(zone));
}

function detailsOf(error: OperationError): string {
  const quota = error.errorDetails.find(({ quotaInfo }) => quotaInfo !== undefined)?.quotaInfo;
  const zones = zonesOf(error);
  return [
    quota === undefined ? '' : ` Quota ${quota.limitName ?? quota.metricName ?? ''}: the limit is ${quota.limit ?? 'unknown'}.`,
    zones.length === 0 ? '' : ` It says that ${zones.join(', ')} had capacity.`,
  ].join('');
}

function build(kind: Kind, reason: string, said: string, attempt: CloudRequest, more: CloudErrorOptions = {}): CloudError {
  const { doing, place, offer } = attempt;
  const what = offer === undefined ? '' : ` (${offer.type}, ${offer.spot ? 'Spot' : 'on demand'}, ${offer.zone})`;
  const text = said === '' ? '' : `: ${said}`;
  return new CloudError(kind.code, `Cannot ${doing}${what}: ${sentence(`${place} answered ${reason}${text}`)}`, {
    reason,
    retry: kind.retry ?? false,
    hint: kind.hint ?? null,
    isAmbiguous: kind.isAmbiguous ?? false,
    ...more,
  });
}

/** An answer other than 2xx. */
export function refusedCall(status: number, text: string, attempt: CloudRequest): CloudError {
  const body = gcpRefusal.safeParse(jsonOf(text)).data?.error;
  const first = body?.errors[0];
  const reason = first?.reason ?? body?.details.find((one) => one.reason !== undefined)?.reason ?? '';
  const message = body === undefined ? '' : body.message || (first?.message ?? '');
  const kind = kindOfStatus(status, reason, body?.details.map((one) => one.reason ?? '') ?? [], message, attempt);
  return build(kind, reason === '' ? `HTTP ${status}` : reason, brief(message), attempt);
}

function kindOfStatus(status: number, reason: string, details: readonly string[], message: string, attempt: CloudRequest): Kind {
  const all = [reason, ...details];
  const has = (pattern: RegExp): boolean => all.some((one) => pattern.test(one));
  const rates = /^(rateLimitExceeded|userRateLimitExceeded|RATE_LIMIT_EXCEEDED|concurrentLimitExceeded)$/;
  if (/RESOURCE_POOL_EXHAUSTED|\bSTOCKOUT\b/.test(`${all.join(' ')} ${message}`)) return { code: 'E_CLOUD_CAPACITY', retry: true };
  if (has(rates) || status === 429) return { code: 'E_CLOUD_THROTTLED', retry: true };
  if (has(/quota/i)) return { code: 'E_CLOUD_QUOTA', hint: quotaHint };
  if (has(/accessNotConfigured|SERVICE_DISABLED/))
    return {
      code: 'E_CLOUD_ACCOUNT',
      hint: 'Run "gcloud services enable compute.googleapis.com" for the project, and wait a few minutes.',
    };
  if (has(/billing/i)) return { code: 'E_CLOUD_ACCOUNT', hint: 'Link a billing account to the project.' };
  if (status === 401) return { code: 'E_CLOUD_CREDENTIAL', hint: 'Sign in again, or create a new key.' };
  // A 412 for metadata means a concurrent edit: somebody else changed them since they were read.
  if (status === 412 && attempt.offer === undefined) return { code: 'E_CLOUD_ANSWER', retry: true };
  if (status === 412 || /constraints\//.test(message)) return { code: 'E_CLOUD_DENIED', hint: policyHint };
  if (status === 403) return { code: 'E_CLOUD_DENIED', hint: `${roleHint} This call needs ${attempt.needs.join(', ')}.` };
  if (status === 409) return { code: 'E_CLOUD_ANSWER', isAmbiguous: attempt.changes };
  // What a zone without capacity says at times (dstackai/dstack#488). Whether it made something is not known.
  if (status === 503 && attempt.offer !== undefined) return { code: 'E_CLOUD_CAPACITY', retry: true, isAmbiguous: true };
  if (status >= 500) return { code: 'E_CLOUD_UNREACHABLE', retry: true, isAmbiguous: attempt.changes };
  if (has(/^(resourceNotReady|resourceInUseByAnotherResource)$/)) return { code: 'E_CLOUD_ANSWER', retry: true };
  if (status >= 400) return { code: 'E_CLOUD_REQUEST' };
  return { code: 'E_CLOUD_ANSWER', isAmbiguous: attempt.changes };
}
